// The command palette: "/" or Ctrl-K opens it, typing filters, Enter opens a page, presses a button of this page or
// searches. It offers the sections, the actions of this page, and the tasks, read when it is opened for the first time.
const MAX_SHOWN = 12;
const palette = document.getElementById("palette");
const field = palette.querySelector("input");
const list = palette.querySelector("ul");
const find = document.querySelector("form.find");
const root = palette.dataset.root;
let tasks = null;
let shown = [];
let chosen = 0;

function go(address) {
  return () => { location.href = root + address; };
}

function press(element) {
  return () => {
    element.scrollIntoView({ block: "center" });
    element.focus();
    if (element.matches("summary")) element.parentElement.open = true;
    else if (!element.matches("button")) element.click();
  };
}

// Buttons that change something at once are only focused: Enter presses them.
function commands() {
  const actions = [...document.querySelectorAll("#actions button, #actions summary, #actions a")]
    .filter((it) => !it.closest("details:not([open])") || it.matches("summary"))
    .map((it) => ({ group: "This page", name: it.textContent.trim(), run: press(it) }));
  const sections = [...document.querySelectorAll("#sections a")]
    .map((it) => ({ group: "Go to", name: it.textContent.trim(), run: () => it.click() }));
  const ofTasks = (tasks ?? []).flatMap((name) => [
    { group: "Task", name, run: go(`/tasks/${encodeURIComponent(name)}`) },
    ...(palette.dataset.operates ? [{ group: "Enqueue", name, run: go(`/enqueue?task=${encodeURIComponent(name)}`) }] : []),
  ]);
  return [...actions, ...sections, ...ofTasks];
}

function matches(command, words) {
  const text = `${command.group} ${command.name}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function show() {
  const text = field.value.trim();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  shown = commands().filter((it) => matches(it, words)).slice(0, MAX_SHOWN);
  if (text) shown.push({ group: "Find", name: text, run: search });
  chosen = Math.min(chosen, Math.max(shown.length - 1, 0));
  list.replaceChildren(...shown.map((it, at) => {
    const item = Object.assign(document.createElement("li"), { id: `palette-${at}`, role: "option" });
    item.ariaSelected = String(at === chosen);
    const group = Object.assign(document.createElement("span"), { className: "muted", textContent: it.group });
    item.append(group, ` ${it.name}`);
    item.addEventListener("click", () => run(it));
    return item;
  }));
  if (shown.length) field.setAttribute("aria-activedescendant", `palette-${chosen}`);
  else field.removeAttribute("aria-activedescendant");
  list.children[chosen]?.scrollIntoView({ block: "nearest" });
}

function search() {
  find.querySelector("input:not([type=hidden])").value = field.value.trim();
  find.requestSubmit();
}

function run(command) {
  palette.close();
  command.run();
}

async function readTasks() {
  if (tasks !== null) return;
  tasks = [];
  const answer = await fetch(`${root}/api/v1/tasks`);
  if (answer.ok) tasks = (await answer.json()).tasks.map((it) => it.name);
  show();
}

function open() {
  field.value = "";
  chosen = 0;
  palette.showModal();
  show();
  readTasks().catch(() => {});
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, select, textarea");
  const isCtrlK = (event.ctrlKey || event.metaKey) && event.key === "k";
  if (palette.open || !(isCtrlK || (event.key === "/" && !isTyping && !event.ctrlKey && !event.altKey))) return;
  event.preventDefault();
  open();
});

field.addEventListener("input", () => { chosen = 0; show(); });
field.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) chosen = (chosen + step + shown.length) % Math.max(shown.length, 1);
  else if (event.key !== "Enter") return;
  event.preventDefault();
  if (step) show();
  else if (shown[chosen]) run(shown[chosen]);
});
palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
document.getElementById("palette-open").hidden = false;
document.getElementById("palette-open").addEventListener("click", open);
