// Numbers, durations and instants as people read them.

const NONE = "–";
/** When something happened that the console was not there to see, or that never happened. */
export const UNSEEN = "not seen";

/** 1234.5 as 1,235; small ones with one decimal. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  return value !== 0 && Math.abs(value) < 10 && !Number.isInteger(value)
    ? value.toFixed(1)
    : Math.round(value).toLocaleString("en-US");
}

/** A share of 0.98765 as 98.8 %; what is near to all or nothing keeps the digits that matter. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return NONE;
  const value = 100 * share;
  if (value === 0 || value === 100) return `${value} %`;
  if (value > 99.99) return ">99.99 %";
  if (value < 0.01) return "<0.01 %";
  return `${value.toFixed(value > 99 || value < 1 ? 2 : 1)} %`;
}

/** A share as a whole number of percent: for meters. */
export function whole(share) {
  return `${Math.round(100 * share)} %`;
}

/** Milliseconds, or seconds from ten thousand on. */
export function ms(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  return `${value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)} ms`;
}

/** Nanoseconds in the unit that suits them. */
export function ns(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 1e6 ? `${Math.round(value / 1e3)} µs` : ms(value / 1e6);
}

/** How long ago an instant was: 0.3 s, 45 s, 3 min, 2 h. */
export function ago(at_ns, now_ns) {
  if (at_ns === null || at_ns === undefined) return NONE;
  return `${span(Math.max(0, now_ns - at_ns))} ago`;
}

/** A stretch of time, roughly. */
export function span(length_ns) {
  const s = length_ns / 1e9;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

const KEPT_ZONE = "mainspring.zone";

/** The time zone in which instants are written: UTC, or the browser's own. It is kept for this browser. */
export const zone = {
  get utc() {
    try {
      return localStorage.getItem(KEPT_ZONE) === "utc";
    } catch {
      return false;
    }
  },
  set utc(chosen) {
    try {
      localStorage.setItem(KEPT_ZONE, chosen ? "utc" : "local");
    } catch {
      // A browser that keeps nothing writes its own zone.
    }
  },
  /** What the zone is called at an instant: UTC, CET, GMT+5:30. */
  name(at_ns, head) {
    const date = new Date(unixMs(at_ns, head));
    if (zone.utc || Number.isNaN(date.getTime())) return "UTC";
    const parts = new Intl.DateTimeFormat("en", { hour: "2-digit", timeZoneName: "short" }).formatToParts(date);
    return parts.find((part) => part.type === "timeZoneName")?.value ?? "local";
  },
};

function unixMs(at_ns, head) {
  return (head.unix_ns - head.now_ns + at_ns) / 1e6;
}

/** The parts of an instant in the zone that is chosen: its day and its time of day. */
function parts(unix_ms) {
  const date = new Date(zone.utc ? unix_ms : unix_ms - new Date(unix_ms).getTimezoneOffset() * 60_000);
  return Number.isNaN(date.getTime()) ? [NONE, NONE] : [date.toISOString().slice(0, 10), date.toISOString().slice(11, 19)];
}

/** An instant of the controller's clock as time of day; `digits` of the second's fraction. */
export function clock(at_ns, head, digits = 0) {
  const unix_ms = unixMs(at_ns, head);
  const text = parts(unix_ms)[1];
  if (!digits || text === NONE) return text;
  const fraction = ((unix_ms % 1000) + 1000) % 1000;
  return `${text}.${fraction.toFixed(3).replace(".", "").padStart(6, "0").slice(0, digits)}`;
}

/** An instant in full: time of day and zone, with the day unless it is today. */
export function when(at_ns, head, digits = 0) {
  const [day] = parts(unixMs(at_ns, head));
  const today = parts(Date.now())[0];
  return `${day === today || day === NONE ? "" : `${day} `}${clock(at_ns, head, digits)} ${zone.name(at_ns, head)}`;
}

/** An instant as addresses have it: in UTC, to the microsecond. */
export function stamp(at_ns, head) {
  const unix_us = Math.round((head.unix_ns - head.now_ns + at_ns) / 1e3);
  const date = new Date(Math.floor(unix_us / 1e3));
  if (Number.isNaN(date.getTime())) return "";
  return `${date.toISOString().slice(0, -1)}${String(unix_us % 1e3).padStart(3, "0")}Z`;
}

/** The instant on the controller's clock of such a text; null if it is none, or the calendar is not known yet. */
export function instant(text, head) {
  const found = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z$/.exec(text ?? "");
  if (!found || !head?.unix_ns) return null;
  const unix_ns = Date.parse(`${found[1]}Z`) * 1e6 + Number((found[2] ?? "").padEnd(9, "0"));
  return Number.isNaN(unix_ns) ? null : Math.round(unix_ns - head.unix_ns + head.now_ns);
}

/** Bytes in binary units. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

/** A code such as deadline_unreachable as words. */
export function words(code) {
  return code.replaceAll("_", " ");
}

const collator = new Intl.Collator("en", { numeric: true });

/** Things in the order of their names, worker-2 before worker-10. */
export function byName(things, nameOf = (thing) => thing.name) {
  return [...things].sort((a, b) => collator.compare(nameOf(a), nameOf(b)));
}

/** 1 page, 2 pages. */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
