// Elements of the log's viewer.

import { PLAIN, runs, write } from "./log_ansi.js";
import { lasted } from "./times.js";

const MAX_SHOWN = 20000; // Characters of a line; who wants more takes the file.
const SIGNS = { good: "M3.5 8.5l3 3 6-7", bad: "M4.5 4.5l7 7m0-7l-7 7", busy: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5", gone: "M3.5 8h9" };
const SVG = "http://www.w3.org/2000/svg";

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function button(title, what, key) {
  const named = key ? `${what} (${key})` : what;
  return make("button", { type: "button", title: named, "data-key": key ?? null }, title);
}

function sign(tone) {
  const drawn = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", SIGNS[tone]);
  drawn.setAttribute("viewBox", "0 0 16 16");
  drawn.setAttribute("class", `sign ${tone}`);
  drawn.setAttribute("aria-hidden", "true");
  drawn.append(path);
  return drawn;
}

function howItWent(section, isOpen) {
  if (!section.is_over) return isOpen ? ["busy", "running"] : ["gone", "has no end"];
  if (section.exit_code === 0) return ["good", "succeeded"];
  if (section.exit_code === null) return ["gone", section.seconds === null ? "has no end" : "was stopped"];
  return ["bad", `exit ${section.exit_code}`];
}

// The head of a step. It is the same element as long as it is seen, so that who has it in focus keeps it.
export function headRow(toggle) {
  const opens = make("button", { type: "button", class: "log-step" });
  opens.addEventListener("click", toggle);
  return make("div", { class: "log-row log-head" }, opens);
}

export function drawHead(row, section, { isFolded, isEmpty, isOpen, isSelected, query }) {
  const [tone, word] = howItWent(section, isOpen);
  const drawn = JSON.stringify([section, isFolded, isEmpty, tone, isSelected, query]);
  if (row.dataset.drawn === drawn) return;
  row.dataset.drawn = drawn;
  row.classList.toggle("selected", isSelected);
  const opens = row.firstElementChild;
  opens.setAttribute("aria-expanded", String(!isFolded));
  const name = make("span", { class: "log-name" });
  write(name, runs(section.name || "(no name)", PLAIN), query);
  const took = section.seconds === null ? "" : lasted(section.seconds);
  opens.replaceChildren(
    make("span", { class: "log-fold", "aria-hidden": "true" }, isFolded ? "▸" : "▾"),
    sign(tone),
    name,
    make("span", { class: `log-word ${tone}` }, word),
    make("span", { class: "log-took" }, took),
  );
}

// A line: its number, which is a link to it, and its text.
export function lineRow(line, found, { anchor, isSelected, isCurrent, query }) {
  const number = make("a", { class: "log-number", href: `#${anchor}${line + 1}`, tabindex: "-1", "data-line": line }, String(line + 1));
  const text = make("span", { class: "log-text" });
  const row = make("div", { class: "log-row" }, number, text);
  row.classList.toggle("selected", isSelected);
  row.classList.toggle("current", isCurrent);
  if (!found) {
    row.classList.add("unread");
    text.textContent = "…";
    return row;
  }
  const { shown, more } = shortened(found);
  row.characters = shown.reduce((sum, each) => sum + each.text.length, 0);
  write(text, shown, query);
  if (more) text.append(make("span", { class: "unseen" }, `… ${more.toLocaleString("en")} more; see the raw log`));
  return row;
}

function shortened({ text, state, more }) {
  const shown = runs(text, state);
  let left = MAX_SHOWN;
  const kept = [];
  for (const run of shown) {
    if (left <= 0) break;
    kept.push(run.text.length > left ? { ...run, text: run.text.slice(0, left) } : run);
    left -= run.text.length;
  }
  return { shown: kept, more: more + Math.max(0, -left) };
}

export function bytesText(count) {
  let size = count;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} GiB`;
}
