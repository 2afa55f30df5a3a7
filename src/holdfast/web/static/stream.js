// Continues the output of a run: adds chunks as they arrive and removes those that a repeated step replaces. Follows
// only while the page is visible: browsers open few connections to a server.
const MAX_CHUNKS = 2000;
const RECONNECT_DELAY_MS = 30000;
const section = document.getElementById("output");
const list = section?.querySelector("pre");
let source = null;
let ended = false;

function add(chunk) {
  const data = typeof chunk.data === "string" ? chunk.data : `${JSON.stringify(chunk.data)}\n`;
  const element = Object.assign(document.createElement("span"), { textContent: data });
  Object.assign(element.dataset, { chunk: chunk.id, step: chunk.step ?? "" });
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  list.append(element);
  if (list.childElementCount > MAX_CHUNKS) list.firstElementChild.remove();
  section.hidden = false;
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function drop(reset) {
  for (const element of [...list.children]) {
    const { chunk, step } = element.dataset;
    if (reset.after < +chunk && +chunk < reset.before && (reset.everything || step === (reset.step ?? ""))) element.remove();
  }
}

function follow() {
  if (source || ended || document.hidden) return;
  const url = new URL(section.dataset.stream, location.href);
  const last = list.lastElementChild?.dataset.chunk ?? section.dataset.last;
  url.searchParams.set("after", Math.max(last, section.dataset.last));
  source = new EventSource(url);
  source.addEventListener("chunk", (event) => {
    section.dataset.last = event.lastEventId;
    add(JSON.parse(event.data));
  });
  source.addEventListener("reset", (event) => drop(JSON.parse(event.data)));
  source.addEventListener("end", () => { ended = true; stop(); });
  source.addEventListener("error", () => {
    if (source?.readyState !== EventSource.CLOSED) return;  // the browser reconnects by itself
    stop();
    setTimeout(follow, RECONNECT_DELAY_MS);
  });
}

function stop() {
  source?.close();
  source = null;
}

if (section?.dataset.stream) {
  list.scrollTop = list.scrollHeight;
  follow();
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : follow()));
}
