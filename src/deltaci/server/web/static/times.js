// Moments as "3 min ago", and durations that go on. The server writes whole moments; here they are made readable.

const STEP = 1000;
const SKEW = 5000; // A clock that differs by less is right.
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

let ahead = 0; // By so many milliseconds the server's clock is before ours.

// What the server says that the time is: durations that go on are counted by its clock, as all others are.
export function setClock(date) {
  const differs = date ? Date.parse(date) - Date.now() : NaN;
  if (!Number.isNaN(differs)) ahead = Math.abs(differs) > SKEW ? differs : 0;
}

// The time, by the server's clock if ours is wrong.
export const now = () => Date.now() + ahead;

export function lasted(seconds) {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function ago(moment) {
  const seconds = (moment - now()) / 1000;
  const size = Math.abs(seconds);
  if (size < 10) return "just now";
  if (size < 60) return words.format(Math.round(seconds), "second");
  if (size < 3600) return words.format(Math.round(seconds / 60), "minute");
  if (size < 86400) return words.format(Math.round(seconds / 3600), "hour");
  return words.format(Math.round(seconds / 86400), "day");
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function keepTimes(root) {
  for (const each of root.querySelectorAll("time[data-ago]")) {
    const moment = Date.parse(each.dateTime);
    if (!each.title) each.title = exact.format(moment);
    write(each, ago(moment));
  }
  for (const each of root.querySelectorAll("[data-since]")) {
    write(each, lasted((now() - Date.parse(each.dataset.since)) / 1000));
  }
}

setInterval(() => document.hidden || keepTimes(document), STEP);
document.addEventListener("visibilitychange", () => document.hidden || keepTimes(document));
