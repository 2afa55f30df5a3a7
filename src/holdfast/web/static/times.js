// Updates relative times while the page is open, in the format of format_duration in model/clock.py.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size);
  const [size, unit] = UNITS[at];
  const whole = Math.floor(seconds / size);
  const rest = Math.floor(seconds) % size;
  const next = UNITS[at + 1];
  const more = whole < 10 && next && rest >= next[0] ? ` ${Math.floor(rest / next[0])} ${next[1]}` : "";
  return `${whole} ${unit}${more}`;
}

export function updateTimes(root) {
  const now = Date.now();
  for (const it of root.querySelectorAll("time[datetime]")) {
    const seconds = (now - Date.parse(it.dateTime)) / 1000;
    it.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
  }
}
