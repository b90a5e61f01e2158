// Looking through all of a log, however large: in pieces that are forgotten at once, so that it can be seen how far it is
// and stopped. And finding the line that says why something failed.

import { stripped } from "./log_ansi.js";
import { BLOCK } from "./log_source.js";

const PIECE = 32 * BLOCK;
const MAX_CARRY = 4 * PIECE;
export const MAX_HITS = 10000;
const FAILURE_BLOCKS = 16;
const ERRORISH = /\b(error|fatal|panic(ked)?|exception|traceback|failed|failure|assert(ion)?|cannot|undefined|denied|not found)\b|✗|✘/i;
const NEWLINE = 10;

export class Search {
  // `changed` is called whenever something was found, or it is further.
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    this.query = "";
    this.clear();
  }

  clear() {
    this.stop?.abort();
    this.stop = null;
    this.hits = [];
    this.at = 0;
    this.line = 0;
    this.isBroken = false;
  }

  get isRunning() {
    return this.stop !== null;
  }

  get isFull() {
    return this.hits.length >= MAX_HITS;
  }

  // Look for this from the beginning; nothing for "".
  start(query) {
    this.clear();
    this.query = query.toLowerCase();
    return this.goOn();
  }

  cancel() {
    this.stop?.abort();
    this.stop = null;
    this.changed();
  }

  // Look through what is there and was not looked through.
  async goOn() {
    if (!this.query || this.stop || this.isFull) return;
    const stop = new AbortController();
    this.stop = stop;
    let carry = new Uint8Array(0);
    let ahead = null;
    try {
      while (this.at + carry.length < this.source.size && !this.isFull && !stop.signal.aborted) {
        const from = this.at + carry.length;
        const piece = await (ahead ?? this.piece(from, stop.signal));
        if (stop.signal.aborted) return;
        const then = from + piece.length;
        ahead = then < this.source.size ? this.piece(then, stop.signal) : null; // It comes while this one is looked at.
        ahead?.catch(() => {});
        const some = joined(carry, piece);
        const isLast = ahead === null;
        const end = isLast || some.length > MAX_CARRY ? some.length : some.lastIndexOf(NEWLINE) + 1;
        this.through(some.subarray(0, end), isLast);
        this.changed();
        if (isLast && this.source.size <= then) break;
        carry = isLast ? new Uint8Array(0) : some.slice(end); // A line without an end is read again, with more of it.
      }
      this.isBroken = false;
    } catch {
      this.isBroken = !stop.signal.aborted;
    }
    if (this.stop === stop) this.stop = null;
    this.changed();
  }

  piece(from, signal) {
    return this.source.read(from, Math.min(this.source.size, from + PIECE), signal);
  }

  // Whole lines; only the last one of all may have no end, and is looked at again when it has more.
  through(bytes, isLast) {
    const text = stripped(new TextDecoder().decode(bytes)).toLowerCase();
    let counted = 0;
    let line = this.line;
    for (let at = text.indexOf(this.query); at >= 0 && !this.isFull; ) {
      for (let next = text.indexOf("\n", counted); next >= 0 && next < at; next = text.indexOf("\n", counted)) {
        line++;
        counted = next + 1;
      }
      if (this.hits[this.hits.length - 1] !== line && this.isShown(line)) this.hits.push(line);
      const end = text.indexOf("\n", at);
      at = end < 0 ? -1 : text.indexOf(this.query, end);
    }
    const whole = isLast ? bytes.lastIndexOf(NEWLINE) + 1 : bytes.length;
    for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) this.line++;
    this.at += whole;
  }

  // A marker is seen by its step's name alone.
  isShown(line) {
    if (line === 0 && this.source.hasHeader) return false;
    for (const section of this.source.sections) {
      if (section.first_line - 1 === line) return section.name.toLowerCase().includes(this.query);
      if (section.seconds !== null && section.last_line - 1 === line) return false;
    }
    return true;
  }

  // The hit behind (or before) a line, around the ends; -1: there is none.
  next(line, step) {
    if (!this.hits.length) return -1;
    if (step > 0) return this.hits.find((each) => each > line) ?? this.hits[0];
    return this.hits.findLast((each) => each < line) ?? this.hits[this.hits.length - 1];
  }
}

function joined(one, other) {
  if (!one.length) return other;
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

// The line (from 0 on) that says why it failed: the one that a rule named, or else the last one of the failed step that
// looks like an error, or else its last one. -1: there is no line.
export async function failureLine(source, named) {
  const failed = source.sections.findLast((each) => (each.exit_code ?? 0) !== 0) ?? source.sections.findLast((each) => each.seconds === null);
  const from = failed ? failed.first_line : source.hasHeader ? 1 : 0;
  const ended = failed?.last_line ?? source.lines;
  const to = failed && failed.seconds !== null ? ended - 1 : ended;
  if (to <= from) return failed ? failed.first_line - 1 : source.lines - 1;
  const last = source.blockOf(Math.max(1, to));
  const first = Math.max(source.blockOf(Math.max(1, from)), last - FAILURE_BLOCKS + 1);
  const bytes = await source.read(first * BLOCK, Math.min(source.size, (last + 1) * BLOCK));
  const lines = new TextDecoder().decode(bytes).split("\n");
  const begin = source.starts[first];
  const wanted = named.replace(/\ufffd/g, "").trim().slice(0, 120);
  let found = -1;
  let filled = -1;
  for (let line = Math.min(to, begin + lines.length) - 1; line >= Math.max(from, begin); line--) {
    const text = stripped(lines[line - begin]).replace(/\t/g, " ").trim();
    if (wanted && text.includes(wanted)) return line;
    if (found < 0 && ERRORISH.test(text)) found = line;
    if (filled < 0 && text) filled = line;
    if (found >= 0 && !wanted) break;
  }
  return found >= 0 ? found : filled >= 0 ? filled : to - 1;
}
