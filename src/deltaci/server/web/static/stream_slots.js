// Limits how many pages of this browser hold an event stream. A browser has six connections to one server for all tabs
// together, and further requests would wait for ever. Hidden pages hold no stream; visible pages without a slot poll
// instead. Each page renews its slot in localStorage, so that the slot of a closed page expires.

const SLOTS = 3;
const RENEWAL = 2000; // In milliseconds.
const EXPIRY = 3 * RENEWAL;
const NAME = "seats";
const pageId = Math.random().toString(36).slice(2);
let renewal = 0;

function readSlots() {
  const now = Date.now();
  const slots = Object.entries(JSON.parse(localStorage.getItem(NAME) ?? "{}"));
  return Object.fromEntries(slots.filter(([, until]) => until > now && until < now + 2 * EXPIRY));
}

function renewSlot() {
  localStorage.setItem(NAME, JSON.stringify({ ...readSlots(), [pageId]: Date.now() + EXPIRY }));
}

// Return whether this page has a slot; take a free one if it has none.
export function takeSlot() {
  try {
    if (renewal) return true;
    if (Object.keys(readSlots()).length >= SLOTS) return false;
    renewSlot();
    renewal = setInterval(renewSlot, RENEWAL);
    return true;
  } catch {
    return true; // Without storage, other tabs cannot be counted.
  }
}

export function releaseSlot() {
  if (!renewal) return;
  clearInterval(renewal);
  renewal = 0;
  try {
    const slots = readSlots();
    delete slots[pageId];
    localStorage.setItem(NAME, JSON.stringify(slots));
  } catch {
    // Without storage, there was no slot.
  }
}
