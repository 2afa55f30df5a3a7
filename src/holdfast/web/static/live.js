// Keeps a page up to date: when the server says that something has changed, the page is asked for again and its parts
// are put in place of the old ones. What somebody is typing, has opened or has focused is left as it is.
import { tell_times } from "./times.js";

const PAUSE = 400;
const source = document.body.dataset.live;
let waiting = null;

function busy(part) {
  const at = document.activeElement;
  return part.contains(at) && at.matches("input, select, textarea");
}

function opened(part) {
  return new Set([...part.querySelectorAll("details")].map((it, n) => (it.open ? n : -1)));
}

function replace(part, fresh) {
  if (part.isEqualNode(fresh) || busy(part)) return;
  const open = opened(part);
  const scrolled = [...part.querySelectorAll(".scroll")].map((it) => it.scrollLeft);
  const focused = [...part.querySelectorAll("a, button, summary, [tabindex]")].indexOf(document.activeElement);
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll("details").forEach((it, n) => { it.open = open.has(n); });
  part.querySelectorAll(".scroll").forEach((it, n) => { it.scrollLeft = scrolled[n] ?? 0; });
  if (focused >= 0) [...part.querySelectorAll("a, button, summary, [tabindex]")][focused]?.focus({ preventScroll: true });
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
  stream.addEventListener("now", () => note(""));
  stream.addEventListener("changed", soon);
  stream.addEventListener("over", () => { soon(); stream.close(); });
  stream.addEventListener("error", () => note("Not live just now; trying again"));
  stream.addEventListener("open", () => note(""));
}

tell_times(document);
setInterval(() => tell_times(document), 5000);
if (source) listen();
