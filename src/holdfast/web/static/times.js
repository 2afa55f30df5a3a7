// Updates relative times while the page is open, in the same format as the server.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const rest = seconds % size;
  const next = UNITS[at + 1];
  const more = next && rest >= next[0] ? ` ${Math.floor(rest / next[0])} ${next[1]}` : "";
  return `${Math.floor(seconds / size)} ${unit}${more}`;
}

export function updateTimes(root) {
  const now = Date.now();
  for (const it of root.querySelectorAll("time[datetime]")) {
    const seconds = (now - Date.parse(it.dateTime)) / 1000;
    it.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
  }
}
