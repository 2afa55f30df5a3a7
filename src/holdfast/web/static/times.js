// Relative times go on while the page stands. The words are those of the server.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const rest = seconds % size;
  const next = UNITS[at + 1];
  const more = next && rest >= next[0] ? ` ${Math.floor(rest / next[0])} ${next[1]}` : "";
  return `${Math.floor(seconds / size)} ${unit}${more}`;
}

export function tell_times(root) {
  const now = Date.now();
  for (const it of root.querySelectorAll("time[datetime]")) {
    const seconds = (now - Date.parse(it.dateTime)) / 1000;
    it.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }
}
