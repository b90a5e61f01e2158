// How many pages of this browser may hold a stream: it has six connections to one server, for all tabs together, and
// whoever opens a seventh waits for good. Hidden pages hold none; of those that are seen side by side some ask now and
// then instead. A seat that nobody keeps warm is free: its page is gone.

const SEATS = 3;
const WARM = 2000;
const COLD = 3 * WARM;
const NAME = "seats";
const me = Math.random().toString(36).slice(2);
let warming = 0;

function read() {
  const now = Date.now();
  const all = Object.entries(JSON.parse(localStorage.getItem(NAME) ?? "{}"));
  return Object.fromEntries(all.filter(([, until]) => until > now && until < now + 2 * COLD));
}

function keepWarm() {
  localStorage.setItem(NAME, JSON.stringify({ ...read(), [me]: Date.now() + COLD }));
}

// Whether this page has a seat; takes one that is free.
export function haveSeat() {
  try {
    if (warming) return true;
    if (Object.keys(read()).length >= SEATS) return false;
    keepWarm();
    warming = setInterval(keepWarm, WARM);
    return true;
  } catch {
    return true; // No storage, no other tabs that we could know of.
  }
}

export function leaveSeat() {
  if (!warming) return;
  clearInterval(warming);
  warming = 0;
  try {
    const all = read();
    delete all[me];
    localStorage.setItem(NAME, JSON.stringify(all));
  } catch {
    // Nobody knew of it.
  }
}
