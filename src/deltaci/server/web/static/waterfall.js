// The waterfall of a run that goes on: what has no end grows, and everything else makes room for it.

import { lasted, now } from "./times.js";

const STEP = 1000;

function grow() {
  const fall = document.getElementById("waterfall");
  if (!fall || !fall.hasAttribute("data-goes-on")) return;
  const start = Date.parse(fall.dataset.start);
  // A clock that is a little behind the server's does not make it shorter than what is known.
  const whole = (Math.max(now(), Date.parse(fall.dataset.until)) - start) / 1000;
  if (!(whole > 0)) return;
  const part = (seconds) => `${((100 * seconds) / whole).toFixed(3)}%`;
  for (const bar of fall.querySelectorAll("rect[data-from]")) {
    const from = Number(bar.dataset.from);
    const to = bar.dataset.to === undefined ? whole : Number(bar.dataset.to);
    bar.setAttribute("x", part(from));
    bar.setAttribute("width", part(Math.max(0, to - from)));
  }
  for (const tick of fall.querySelectorAll("[data-tick]")) {
    const text = Number(tick.dataset.tick) ? lasted(whole * Number(tick.dataset.tick)) : "0";
    if (tick.textContent !== text) tick.textContent = text;
  }
}

grow();
setInterval(() => document.hidden || grow(), STEP);
document.addEventListener("deltaci:drawn", grow);
