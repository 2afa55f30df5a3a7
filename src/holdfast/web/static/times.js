// Updates relative times while the page is open, in the format of format_duration in model/clock.py, and adds the local
// time to the UTC time that hovering shows.
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

const LOCAL = new Intl.DateTimeFormat([], {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, hourCycle: "h23", timeZoneName: "longOffset",
});
const ZONE = LOCAL.resolvedOptions().timeZone;

// Formats a time like the server does, in the zone of the browser, which it names.
export function localTime(at) {
  const part = Object.fromEntries(LOCAL.formatToParts(at).map((it) => [it.type, it.value]));
  const time = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}.${part.fractionalSecond}`;
  return `${time} ${ZONE} (${part.timeZoneName.replace("GMT", "UTC")})`;
}

export function updateTimes(root) {
  const now = Date.now();
  for (const it of root.querySelectorAll("time[datetime]")) {
    if (!it.dataset.local) {
      it.dataset.local = "1";
      it.title = `${localTime(new Date(it.dateTime))}\n${it.title}`;
    }
    const seconds = (now - Date.parse(it.dateTime)) / 1000;
    it.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
  }
}
