// Keeps a page up to date: when the server announces a change, fetch the page again and replace its parts. Focus, open
// details and the contents of edited fields are kept.
import { updateTimes } from "./times.js";

const REFRESH_DELAY_MS = 400;
const RECONNECT_DELAY_MS = 30000;
const FOCUSED = "a, button, summary, [tabindex]";
const source = document.body.dataset.live;
let waiting = null;
let loggedOut = false;
let failed = false;

function isEditing(part) {
  const at = document.activeElement;
  return part.contains(at) && at.matches("input, select, textarea");
}

// Identifies a <details> element regardless of its position: by a field in it, or by its text.
function detailsKey(details) {
  return details.querySelector("[id]")?.id ?? details.querySelector("summary").textContent;
}

function openDetails(part) {
  return new Set([...part.querySelectorAll("details[open]")].map(detailsKey));
}

function isChanged(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.matches("select")) return [...field.options].some((it) => it.selected !== it.defaultSelected);
  return field.value !== field.defaultValue;
}

function editedFields(part) {
  const fields = [...part.querySelectorAll("input[id], select[id], textarea[id]")];
  return fields.filter(isChanged).map((it) => [it.id, it.value, it.checked]);
}

// Identifies the form or <details> that contains an element: many have buttons with the same text.
function containerKey(it) {
  return it.closest("details, form")?.querySelector("[id]")?.id;
}

// Finds the link or button that had the focus, even if others were added or removed around it.
function findSame(old, part) {
  const [href, cls, text, container] = [old.getAttribute("href"), old.getAttribute("class"), old.textContent, containerKey(old)];
  const alike = [...part.querySelectorAll(FOCUSED)].filter(
    (it) => it.tagName === old.tagName && it.getAttribute("class") === cls && containerKey(it) === container);
  return alike.find((it) => it.getAttribute("href") === href && it.textContent === text)
    ?? alike.find((it) => href && it.getAttribute("href") === href)
    ?? alike.find((it) => it.ariaLabel && it.ariaLabel === old.ariaLabel);
}

function replace(part, fresh) {
  if (part.isEqualNode(fresh) || isEditing(part)) return;
  const open = openDetails(part);
  const written = editedFields(part);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = [...part.querySelectorAll(".scroll")].map((it) => it.scrollLeft);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll("details").forEach((it) => { it.open ||= open.has(detailsKey(it)); });
  for (const [id, value, checked] of written) {
    const field = document.getElementById(id);
    if (field?.type === "checkbox") field.checked = checked;
    else if (field) field.value = value;
  }
  part.querySelectorAll(".scroll").forEach((it, n) => { it.scrollLeft = scrolled[n] ?? 0; });
  if (focused) (findSame(focused, part) ?? document.getElementById("main")).focus({ preventScroll: true });
}

async function refresh() {
  waiting = null;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  loggedOut = answer.status === 401;
  if (loggedOut) note("Your login has ended. Reload the page to log in again.");
  else if (!answer.ok) note(`This page couldn't be updated: the server answered ${answer.status}.`);
  else if (failed) note("");
  failed = !answer.ok;
  if (failed) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  updateTimes(document);
  updateTimes(page);
  for (const part of document.querySelectorAll("[data-part]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) replace(part, fresh);
  }
  document.title = page.title;
}

function soon() {
  waiting ??= setTimeout(() => refresh().catch(() => {}), REFRESH_DELAY_MS);
}

function note(text) {
  const element = document.getElementById("live-note");
  element.hidden = !text;
  element.textContent = text;
}

function listen() {
  const stream = new EventSource(source);
  stream.addEventListener("now", () => { note(""); soon(); });  // changes before the connection were missed
  stream.addEventListener("changed", soon);
  stream.addEventListener("over", () => { soon(); stream.close(); });
  stream.addEventListener("error", () => {
    note("Live updates interrupted; reconnecting…");
    if (stream.readyState !== EventSource.CLOSED) return;
    // Rejected: the browser doesn't retry by itself. Find out whether the login has ended.
    soon();
    setTimeout(() => { if (!loggedOut) listen(); }, RECONNECT_DELAY_MS);
  });
  stream.addEventListener("open", () => note(""));
}

updateTimes(document);
setInterval(() => updateTimes(document), 5000);
if (source) listen();
