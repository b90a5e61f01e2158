// What a job wrote, made into text with a look. Colours are taken from it, and nothing else: whatever would move the
// cursor, set a title, link somewhere or copy something is left out, and what hides or turns text around is shown as a
// sign. Nothing here makes markup.

const ESCAPE =
  "\\u001b\\[([0-9;:<=>?]*)[ -/]*([@-~])" + // Colours (…m), and everything that moves.
  "|\\u001b[\\]PX^_][^\\u0007\\u001b\\n]*(?:\\u0007|\\u001b\\\\)" + // Titles, links, the clipboard, with all they say.
  "|\\u001b[ -/]*[0-~]?";
const HIDING = "[\\u0000-\\u0008\\u000a-\\u001a\\u001c-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f" +
  "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]";
const TOKENS = new RegExp(`${ESCAPE}|(${HIDING})`, "gu");
const ESCAPES = new RegExp(ESCAPE, "gu");

export const PLAIN = Object.freeze({ fg: null, bg: null, bold: false, dim: false, italic: false, under: false, gone: false, inverse: false });

// The sixteen colours, each with more than 7:1 on the log's background; black is a grey, or nobody would see it.
const PALETTE = [
  [154, 165, 181], [255, 143, 135], [125, 219, 156], [240, 198, 116], [138, 184, 255], [224, 163, 255], [121, 219, 230], [215, 220, 229],
  [154, 165, 181], [255, 166, 158], [152, 232, 178], [250, 216, 148], [166, 202, 255], [235, 188, 255], [152, 232, 242], [255, 255, 255],
];
const PAGE = [16, 20, 27];
const INK = [215, 220, 229];
const QUIET = [160, 170, 186];
const MAX_KNOWN = 512; // A job may have as many colours as it likes.
const FLOOR = 6; // Above 4.5, so that a line that is marked is legible, too.

export const stripped = (text) => (text.includes("\u001b") ? text.replace(ESCAPES, "") : text);

const nexts = new WeakMap();

// The state after one sequence of colours. The same ones are the same object, as long as there are not too many.
export function coloured(state, parameters) {
  let known = nexts.get(state);
  if (!known || known.size > MAX_KNOWN) nexts.set(state, (known = new Map()));
  let next = known.get(parameters);
  if (!next) known.set(parameters, (next = changed(state, parameters)));
  return next;
}

function changed(state, parameters) {
  const codes = parameters.split(/[;:]/).map((each) => (each === "" ? 0 : Number(each)));
  let next = { ...state };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.under = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.gone = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.under = false;
    else if (code === 27) next.inverse = false;
    else if (code === 29) next.gone = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 39) next.fg = null;
    else if (code === 49) next.bg = null;
    else if (code === 38 || code === 48) {
      const [colour, taken] = extended(codes, at + 1);
      if (colour !== undefined) next[code === 38 ? "fg" : "bg"] = colour;
      at += taken;
    }
  }
  return Object.keys(PLAIN).every((each) => next[each] === PLAIN[each]) ? PLAIN : Object.freeze(next);
}

// 5;N is one of 256, 2;R;G;B is any.
function extended(codes, at) {
  if (codes[at] === 5) return [codes[at + 1] >= 0 && codes[at + 1] < 256 ? codes[at + 1] : undefined, 2];
  if (codes[at] !== 2) return [undefined, 0];
  const rgb = codes.slice(at + 1, at + 4);
  return [rgb.length === 3 && rgb.every((each) => each >= 0 && each < 256) ? rgb : undefined, 4];
}

function rgb(colour) {
  if (Array.isArray(colour)) return colour;
  if (colour < 16) return PALETTE[colour];
  if (colour >= 232) return Array(3).fill(8 + (colour - 232) * 10);
  const at = colour - 16;
  return [Math.floor(at / 36), Math.floor(at / 6) % 6, at % 6].map((each) => (each ? 55 + each * 40 : 0));
}

function luminance(colour) {
  const [r, g, b] = colour.map((each) => {
    const part = each / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

// The colour itself, or as much lighter or darker as it takes to be read on this background.
function legible(colour, page) {
  const end = luminance(page) < 0.18 ? 255 : 0;
  for (let share = 0; share <= 1; share += 0.1) {
    const mixed = colour.map((each) => Math.round(each + (end - each) * share));
    if (contrast(mixed, page) >= (page === PAGE ? FLOOR : 4.5)) return mixed;
  }
  return [end, end, end];
}

const text = (colour) => `rgb(${colour.join(" ")})`;
const looks = new WeakMap();

// Classes, and where those do not do, colours: {classes, fg, bg}.
function look(state) {
  let found = looks.get(state);
  if (found) return found;
  const classes = ["bold", "italic", "under", "gone"].filter((each) => state[each]).map((each) => `ansi-${each}`);
  found = { classes, fg: "", bg: "" };
  const isSimple = state.bg === null && !state.inverse && !state.dim && (state.fg === null || state.fg < 16);
  if (isSimple && !Array.isArray(state.fg)) {
    if (state.fg !== null) classes.push(`fg${state.fg}`);
  } else {
    let fg = state.fg === null ? (state.dim ? QUIET : INK) : rgb(state.fg);
    let bg = state.bg === null ? PAGE : rgb(state.bg);
    if (state.dim && state.fg !== null) fg = fg.map((each, n) => Math.round((each + PAGE[n]) / 2));
    if (state.inverse) [fg, bg] = [bg, fg];
    found.fg = text(legible(fg, bg));
    if (bg !== PAGE) found.bg = text(bg);
  }
  looks.set(state, found);
  return found;
}

// What a terminal would show at last of a line that was written over and over.
function lastState(line, state) {
  const end = line.replace(/\r+$/, "");
  if (!end.includes("\r")) return [end, state];
  const written = end.split("\r");
  let at = written.length - 1;
  while (at > 0 && !stripped(written[at]).trim()) at--;
  return [written[at], stateAfter(written.slice(0, at).join(""), state)];
}

// The state that a text leaves behind it.
export function stateAfter(text, state) {
  if (!text.includes("\u001b")) return state;
  for (const [, parameters, end] of text.matchAll(ESCAPES)) {
    if (end === "m" && /^[0-9;:]*$/.test(parameters)) state = coloured(state, parameters);
  }
  return state;
}

// A line as runs of text: {text, state, isSign}.
export function runs(line, state) {
  const [shown, begin] = lastState(line, state);
  const found = [];
  let now = begin;
  let at = 0;
  for (const token of shown.matchAll(TOKENS)) {
    if (token.index > at) found.push({ text: shown.slice(at, token.index), state: now, isSign: false });
    at = token.index + token[0].length;
    if (token[3] !== undefined) found.push({ text: sign(token[3]), state: now, isSign: true });
    else if (token[2] === "m" && /^[0-9;:]*$/.test(token[1])) now = coloured(now, token[1]);
  }
  if (at < shown.length) found.push({ text: shown.slice(at), state: now, isSign: false });
  return found;
}

function sign(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return `^${String.fromCodePoint(code + 64)}`;
  if (code === 0x7f) return "^?";
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// Put runs into an element as text, with the places that were searched for marked.
export function write(element, found, query) {
  const whole = query ? found.map((each) => each.text).join("") : "";
  const low = whole.toLowerCase();
  const hits = [];
  if (query && low.length === whole.length) {
    for (let at = low.indexOf(query); at >= 0 && hits.length < 200; at = low.indexOf(query, at + query.length)) hits.push(at);
  }
  let place = 0;
  for (const run of found) {
    const parent = dressed(element, run);
    let done = 0;
    for (const hit of hits) {
      const from = Math.max(0, hit - place);
      const to = Math.min(run.text.length, hit + query.length - place);
      if (from >= to || to <= done) continue;
      if (from > done) parent.append(run.text.slice(done, from));
      const mark = document.createElement("mark");
      mark.textContent = run.text.slice(from, to);
      parent.append(mark);
      done = to;
    }
    if (done < run.text.length) parent.append(done ? run.text.slice(done) : run.text);
    place += run.text.length;
  }
}

function dressed(element, run) {
  const { classes, fg, bg } = look(run.state);
  if (!classes.length && !fg && !run.isSign) return element;
  const span = document.createElement("span");
  if (run.isSign) span.className = "unseen";
  else if (classes.length) span.className = classes.join(" ");
  if (fg && !run.isSign) span.style.setProperty("color", fg);
  if (bg && !run.isSign) span.style.setProperty("background-color", bg);
  element.append(span);
  return span;
}
