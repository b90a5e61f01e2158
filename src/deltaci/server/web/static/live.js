// A page that stays true: the server says that something changed, the page is asked for again and what differs is
// changed in place. While nobody looks nothing is asked and no connection is held; what was missed is caught up with.
//
// One look at a time, so that an older answer never writes over a newer one. Whoever asks meanwhile asks for one more.

import { morph } from "./morph.js";
import { releaseSlot, takeSlot } from "./stream_slots.js";
import { keepTimes, setClock } from "./times.js";

const APART = 300; // Between two looks, in milliseconds; longer while there is always something new, and
const MAX_APART = 1000; // when a look takes long.
const CALM = 3000; // After so long without anything new the next look comes at once.
const SLOW = 15000; // A look without any hint: for what no hint is given of. More or less: pages must not march in step.
const POLL = 3000; // The same for a page that has no stream.
const GIVE_UP = 30000; // A look that takes so long is lost.
const SILENCE = 40000; // The server says something every 15 s: a stream as silent as this is dead.
const FIRST = 2000; // A stream that broke is opened again after a random part of this, then of twice as much,
const LAST = 8000; // and so on up to this: a thousand pages must not come back in one moment, nor any of them late.
const SETTLED = 5000; // A page is not loaded anew before it is as old as this.
const SAY_AFTER = 2500; // What is repaired sooner is not worth a word.
const LEAVING = 10000; // A form that was sent leads to another page; if it did not after so long, this one goes on.

// The only place that makes a page out of a text: one that this server wrote, asked for by its own address.
const policy = globalThis.trustedTypes
  ? trustedTypes.createPolicy("page", { createHTML: (text) => text })
  : { createHTML: (text) => text };

const root = document.documentElement;
let source = null; // The stream.
let spread = FIRST;
let heardAt = 0;
let etag = `"${root.dataset.etag}"`;
let asking = null; // The look that is under way.
let isAsked = false;
let apart = APART;
let lookedAt = -Infinity;
let took = 0;
let isResting = true;
const timers = { again: 0, soon: 0, slow: 0, say: 0 };

export function startLive() {
  if (!document.body.dataset.live) return;
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : wake()));
  addEventListener("pagehide", rest);
  addEventListener("submit", leave);
  addEventListener("pageshow", (event) => event.persisted && wake());
  addEventListener("offline", cutOff);
  addEventListener("online", wake);
  // Tabs tell each other which tenant they look at: one that was left behind looks at once, and says so.
  const tabs = new BroadcastChannel("deltaci");
  tabs.onmessage = ({ data }) => data === document.body.dataset.tenant || look();
  tabs.postMessage(document.body.dataset.tenant);
  if (!document.hidden) wake();
}

function wake() {
  if (document.hidden) return;
  isResting = false;
  spread = FIRST;
  open();
}

function rest() {
  isResting = true;
  close();
  asking?.abort();
  for (const name of Object.keys(timers)) clear(name);
}

// What the form removes must not be looked for, and missed, while its answer is on the way.
function leave(event) {
  if (event.defaultPrevented || event.target.method !== "post") return;
  rest();
  later("again", wake, LEAVING);
}

function later(name, then, wait) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(() => {
    timers[name] = 0;
    then();
  }, wait);
}

function clear(name) {
  clearTimeout(timers[name]);
  timers[name] = 0;
}

// -- the stream of hints

// The server sends "changed" first, so that changes since the page was rendered are fetched.
function open() {
  clear("again");
  close();
  if (!timers.slow) slowly();
  if (!takeSlot()) return look(); // Other pages of this browser hold all slots: poll instead.
  heardAt = performance.now();
  source = new EventSource(document.body.dataset.live);
  source.addEventListener("still", heard);
  source.addEventListener("changed", () => {
    heard();
    look();
  });
  source.onerror = () => {
    const isRefused = source?.readyState === EventSource.CLOSED;
    cutOff();
    if (isRefused) look(); // Signed out, perhaps: the page itself says why.
  };
}

function close() {
  source?.close();
  source = null;
  releaseSlot();
}

function heard() {
  heardAt = performance.now();
}

// The browser would try again by itself, but all pages at the same moment, and never if it was refused.
function cutOff() {
  close();
  if (isResting) return;
  if (!timers.say) later("say", () => say("reconnecting"), SAY_AFTER);
  later("again", open, 100 + Math.random() * spread);
  spread = Math.min(LAST, spread * 2);
}

function well() {
  spread = FIRST;
  clear("say");
  say("live");
}

// It is a status that is read out: it changes only when something is wrong for a while, and when it is well again.
function say(word) {
  const sign = document.getElementById("live");
  if (!sign) return;
  sign.dataset.ownState = word;
  const text = document.getElementById("live-word");
  if (text && text.textContent !== word) text.textContent = word;
}

// -- looks

// Look once more, soon. Whatever is asked for meanwhile is one look.
export function look() {
  isAsked = true;
  if (asking || timers.soon || isResting) return;
  const since = performance.now() - lookedAt;
  if (since > CALM) apart = APART;
  later("soon", run, Math.max(0, Math.max(apart, took) - since));
}

async function run() {
  isAsked = false;
  const mine = (asking = new AbortController());
  const giveUp = setTimeout(() => mine.abort(), GIVE_UP);
  const began = performance.now();
  try {
    const answer = await ask(mine.signal).catch(() => null);
    if (answer) draw(answer);
    else if (!timers.again) cutOff();
    if (answer && !timers.again && !isResting) well();
  } finally {
    clearTimeout(giveUp);
    asking = null;
    lookedAt = performance.now();
    took = lookedAt - began;
    apart = Math.min(MAX_APART, apart * 1.5);
    if (!isResting) slowly();
    if (isAsked) look();
  }
}

function slowly() {
  later("slow", slow, (source ? SLOW : POLL) * (0.8 + 0.4 * Math.random()));
}

function slow() {
  if (source && performance.now() - heardAt > SILENCE) cutOff();
  else if (!source && !timers.again) open();
  slowly();
  look();
}

// What the server says now: null if it is no use, and no text if it is what it was.
async function ask(signal) {
  const address = location.pathname + location.search;
  const headers = { "Delta-Live": "1", "If-None-Match": etag };
  const answer = await fetch(address, { headers, signal, redirect: "manual", cache: "no-store" });
  setClock(answer.headers.get("Date"));
  if (answer.status === 304) return { address };
  const isMoved = answer.type === "opaqueredirect";
  if (!answer.ok && !isMoved && answer.status !== 404) return null;
  return { address, isMoved, etag: answer.headers.get("ETag") ?? "", text: isMoved ? "" : await answer.text() };
}

function draw(answer) {
  if (answer.isMoved) return reload(); // Signed out, or elsewhere: that is for a whole page to say.
  if (answer.text === undefined || isResting || answer.address !== location.pathname + location.search) return;
  const page = new DOMParser().parseFromString(policy.createHTML(answer.text), "text/html");
  // Another version of the server has other scripts; to somebody else, or to another tenant, all of it is different.
  // While servers are replaced one after the other a page must not go to and fro between two of them all the time.
  if (page.documentElement.dataset.key !== root.dataset.key) {
    setTimeout(reload, Math.max(0, SETTLED - performance.now()));
    return;
  }
  etag = answer.etag;
  document.title = page.title;
  const next = page.getElementById("main");
  keepTimes(next); // So that what is the same looks the same already.
  morph(document.getElementById("main"), next);
  document.dispatchEvent(new CustomEvent("deltaci:drawn"));
}

// Not over what somebody is writing.
function reload() {
  if (loadAnew()) return;
  rest();
  say("out of date");
}
