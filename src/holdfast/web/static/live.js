// Keeps a page up to date: when the server says that something has changed, the page is asked for again and its parts
// are put in place of the old ones. What somebody is typing, has typed, opened or focused is left as it is.
import { tell_times } from "./times.js";

const PAUSE = 400;
const AGAIN = 30000;
const FOCUSED = "a, button, summary, [tabindex]";
const source = document.body.dataset.live;
let waiting = null;

function busy(part) {
  const at = document.activeElement;
  return part.contains(at) && at.matches("input, select, textarea");
}

// What a foldable part is known by, wherever it stands among the others: a field in it, or its words.
function known_by(details) {
  return details.querySelector("[id]")?.id ?? details.querySelector("summary").textContent;
}

function opened(part) {
  return new Set([...part.querySelectorAll("details[open]")].map(known_by));
}

function is_changed(field) {
  if (field.matches("select")) return [...field.options].some((it) => it.selected !== it.defaultSelected);
  return field.value !== field.defaultValue;
}

function typed(part) {
  const fields = [...part.querySelectorAll("input[id], select[id], textarea[id]")];
  return fields.filter(is_changed).map((it) => [it.id, it.value]);
}

// Whose form or foldable part something stands in: many have buttons with the same words.
function home_of(it) {
  return it.closest("details, form")?.querySelector("[id]")?.id;
}

// The same link or button as before, even where others came or went around it.
function same_as(old, part) {
  const [href, kind, words, home] = [old.getAttribute("href"), old.getAttribute("class"), old.textContent, home_of(old)];
  const alike = [...part.querySelectorAll(FOCUSED)].filter(
    (it) => it.tagName === old.tagName && it.getAttribute("class") === kind && home_of(it) === home);
  return alike.find((it) => it.getAttribute("href") === href && it.textContent === words)
    ?? alike.find((it) => href && it.getAttribute("href") === href)
    ?? alike.find((it) => it.ariaLabel && it.ariaLabel === old.ariaLabel);
}

function replace(part, fresh) {
  if (part.isEqualNode(fresh) || busy(part)) return;
  const open = opened(part);
  const written = typed(part);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = [...part.querySelectorAll(".scroll")].map((it) => it.scrollLeft);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll("details").forEach((it) => { it.open ||= open.has(known_by(it)); });
  for (const [id, value] of written) {
    const field = document.getElementById(id);
    if (field) field.value = value;
  }
  part.querySelectorAll(".scroll").forEach((it, n) => { it.scrollLeft = scrolled[n] ?? 0; });
  if (focused) (same_as(focused, part) ?? document.getElementById("main")).focus({ preventScroll: true });
}

async function refresh() {
  waiting = null;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-part]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) replace(part, fresh);
  }
  document.title = page.title;
  tell_times(document);
}

function soon() {
  waiting ??= setTimeout(() => refresh().catch(() => {}), PAUSE);
}

function note(text) {
  const place = document.getElementById("live-note");
  place.hidden = !text;
  place.textContent = text;
}

function listen() {
  const stream = new EventSource(source);
  stream.addEventListener("now", () => { note(""); soon(); });  // what changed before somebody listened was missed
  stream.addEventListener("changed", soon);
  stream.addEventListener("over", () => { soon(); stream.close(); });
  stream.addEventListener("error", () => {
    note("Not live just now; trying again");
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN);  // refused, not only cut
  });
  stream.addEventListener("open", () => note(""));
}

tell_times(document);
setInterval(() => tell_times(document), 5000);
if (source) listen();
