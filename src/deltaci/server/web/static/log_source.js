// A log of any size, as much of it as is looked at: an index says where lines are, blocks are read when they are wanted
// and forgotten when others are, and what is added while somebody looks is appended as it comes.

import { PLAIN, stateAfter } from "./log_ansi.js";

export const BLOCK = 65536;
const MAX_BLOCKS = 128; // 8 MiB.
const BLOCKS_AT_ONCE = 8;
const REQUESTS = 2;
const FOLLOW_SECONDS = 55;
const FIRST_WAIT = 300;
const MAX_WAIT = 3000;
const SECTIONS_APART = 400;
const MAX_LINE = 4 * BLOCK; // Of a longer line only so much is read.
const NEWLINE = 10;
const COLON = 58;
const ESCAPE = 27;
const LATIN = new TextDecoder("latin1");

class Block {
  constructor(bytes) {
    this.bytes = bytes ?? new Uint8Array(BLOCK);
    this.length = bytes ? bytes.length : 0;
    this.newlines = [];
    this.counted = 0;
    this.states = [];
  }

  add(part) {
    if (this.bytes.length < BLOCK) {
      const room = new Uint8Array(BLOCK);
      room.set(this.bytes.subarray(0, this.length));
      this.bytes = room;
    }
    this.bytes.set(part, this.length);
    this.length += part.length;
  }

  // Where its n-th newline is.
  newline(n) {
    if (this.counted < this.length) {
      const some = this.bytes.subarray(0, this.length);
      for (let at = some.indexOf(NEWLINE, this.counted); at >= 0; at = some.indexOf(NEWLINE, at + 1)) this.newlines.push(at);
      this.counted = this.length;
    }
    return this.newlines[n];
  }

  // The colours behind its n-th newline, -1 for its beginning, if those at its beginning are these. A step begins plain.
  state(n, begin) {
    this.newline(0);
    if (this.states[0] !== begin) this.states = [begin];
    if (this.states.length <= this.newlines.length) this.paint();
    return this.states[Math.min(n + 1, this.states.length - 1)];
  }

  // Only lines that came since, and of them only those that have an escape in them.
  paint() {
    const some = this.bytes.subarray(0, this.length);
    let from = this.states.length > 1 ? this.newlines[this.states.length - 2] + 1 : 0;
    let escape = some.indexOf(ESCAPE, from);
    for (let at = this.states.length - 1; at < this.newlines.length; at++) {
      const stop = this.newlines[at];
      let now = this.states[at];
      if (escape >= 0 && escape < stop) {
        now = stateAfter(LATIN.decode(some.subarray(from, stop)), now);
        escape = some.indexOf(ESCAPE, stop);
      } else if (some[from] === COLON && LATIN.decode(some.subarray(from, from + 7)) === "::step ") now = PLAIN;
      this.states.push(now);
      from = stop + 1;
    }
  }
}

export class Source {
  // `changed` is called when there is more to see; `said` with how it goes: looking, following, away, over.
  constructor(address, lease, changed, said) {
    this.address = address;
    this.lease = lease;
    this.changed = changed;
    this.said = said;
    this.forget();
    this.sections = [];
    this.hasHeader = false;
    this.isOpen = true;
    this.isKnown = false;
    this.stop = null;
    this.wanted = new Set();
    this.asked = new Set();
    this.requests = 0;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  forget() {
    this.size = 0;
    this.newlines = 0;
    this.isLineOpen = false;
    this.starts = [0];
    this.blocks = new Map();
  }

  get lines() {
    return this.newlines + (this.isLineOpen ? 1 : 0);
  }

  // -- what is there, and what is added

  async open() {
    if (this.stop) return;
    const stop = new AbortController();
    this.stop = stop;
    let wait = FIRST_WAIT;
    while (!stop.signal.aborted) {
      try {
        await this.look(stop.signal);
        wait = FIRST_WAIT;
        if (!this.isOpen) {
          this.said("over");
          break;
        }
        this.said("following");
        await this.follow(stop.signal);
      } catch (error) {
        if (stop.signal.aborted) break;
        this.said("away", error);
        await pause(wait);
        wait = Math.min(MAX_WAIT, wait * 2);
      }
    }
    if (this.stop === stop) this.stop = null;
  }

  close() {
    this.stop?.abort();
    this.stop = null;
  }

  async index(block, signal) {
    const answer = await fetch(`${this.address}/index?lease=${this.lease}&block=${block}`, { signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`the log's index: ${answer.status}`);
    return answer.json();
  }

  async look(signal) {
    let found = await this.index(this.starts.length - 1, signal);
    if (found.size < this.size) {
      this.forget();
      found = await this.index(0, signal);
    }
    this.starts.length = found.first_block;
    for (const each of found.blocks) this.starts.push(each);
    this.size = found.size;
    this.newlines = found.newlines;
    this.isLineOpen = found.lines > found.newlines;
    this.isOpen = found.is_open;
    this.isKnown = true;
    this.take(found);
    this.changed();
  }

  take(found) {
    this.sections = found.sections;
    this.hasHeader = found.has_header;
  }

  async follow(signal) {
    const answer = await fetch(`${this.address}?lease=${this.lease}&follow=${FOLLOW_SECONDS}`, {
      headers: { Range: `bytes=${this.size}-` },
      signal,
      cache: "no-store",
    });
    if (!answer.ok) throw new Error(`the log: ${answer.status}`);
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (this.append(value)) this.lookForSections(signal);
      this.changed();
    }
  }

  // Bytes at the end of what is known. Whether there may be a marker among them.
  append(chunk) {
    let isMarked = !this.isLineOpen && chunk[0] === COLON;
    for (let at = 0; at < chunk.length; ) {
      const block = Math.floor(this.size / BLOCK);
      const within = this.size % BLOCK;
      const part = chunk.subarray(at, at + BLOCK - within);
      let held = this.blocks.get(block);
      if (!held && within === 0) held = this.keep(block, new Block());
      // What was read meanwhile may already be further than what was told so far.
      if (held && held.length >= within && held.length < within + part.length) held.add(part.subarray(held.length - within));
      for (let found = part.indexOf(NEWLINE); found >= 0; found = part.indexOf(NEWLINE, found + 1)) {
        this.newlines++;
        if (part[found + 1] === COLON) isMarked = true;
      }
      this.size += part.length;
      at += part.length;
      if (this.size % BLOCK === 0) this.starts.push(this.newlines);
    }
    if (chunk.length) this.isLineOpen = chunk[chunk.length - 1] !== NEWLINE;
    return isMarked;
  }

  // While it is followed only the steps are asked for: where it ends is known better here.
  async lookForSections(signal) {
    this.isAsking = true;
    if (this.timer) return;
    this.timer = setTimeout(async () => {
      this.isAsking = false;
      try {
        this.take(await this.index(this.starts.length - 1, signal));
        this.changed();
      } catch {
        // The stream breaks off as well, and then all is asked for.
      }
      this.timer = 0;
      if (this.isAsking) this.lookForSections(signal);
    }, SECTIONS_APART);
  }

  // -- blocks

  keep(at, block) {
    this.blocks.delete(at);
    this.blocks.set(at, block);
    if (this.blocks.size > MAX_BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
    return block;
  }

  // The block, if it has a byte at this place of it; otherwise it is asked for.
  block(at, place) {
    const held = this.blocks.get(at);
    if (held && held.length > place) {
      this.blocks.delete(at);
      this.blocks.set(at, held);
      return held;
    }
    this.want(at);
    return null;
  }

  want(at) {
    if (this.asked.has(at)) return;
    if (!this.wanted.size) queueMicrotask(() => this.fetchWanted());
    this.wanted.add(at);
  }

  async fetchWanted() {
    if (this.requests >= REQUESTS || !this.wanted.size) {
      this.wanted.clear(); // Whoever is drawn again says again what is wanted: then it is what is looked at.
      return;
    }
    const some = [...this.wanted].sort((a, b) => a - b);
    this.wanted.clear();
    let count = 1;
    while (count < BLOCKS_AT_ONCE && some[count] === some[0] + count) count++;
    const first = some[0];
    for (let at = first; at < first + count; at++) this.asked.add(at);
    this.requests++;
    try {
      const bytes = await this.read(first * BLOCK, (first + count) * BLOCK);
      for (let at = 0; at * BLOCK < bytes.length; at++) {
        const part = bytes.slice(at * BLOCK, (at + 1) * BLOCK);
        const held = this.blocks.get(first + at);
        if (!held || held.length < part.length) this.keep(first + at, new Block(part));
      }
    } catch {
      await pause(1000);
    }
    this.requests--;
    for (let at = first; at < first + count; at++) this.asked.delete(at);
    this.changed();
  }

  // Bytes of the log, past the blocks that are kept.
  async read(start, stop, signal) {
    // Past the browser's cache, which lets requests for one address wait for each other.
    const headers = { Range: `bytes=${start}-${stop - 1}` };
    const answer = await fetch(`${this.address}?lease=${this.lease}`, { headers, signal, cache: "no-store" });
    if (answer.status !== 206) throw new Error(`bytes of the log: ${answer.status}`);
    return new Uint8Array(await answer.arrayBuffer());
  }

  // -- lines, from 0 on

  // The block that has the n-th newline, from 1 on.
  blockOf(n) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] < n) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  newlineAt(n) {
    const at = this.blockOf(n);
    const held = this.blocks.get(at);
    const place = held?.newline(n - this.starts[at] - 1);
    if (place === undefined) {
      this.want(at);
      return -1;
    }
    return at * BLOCK + place;
  }

  // {text, state, more}: a line, the colours it begins with, and how many bytes of it are left out. Null: not read yet.
  line(n) {
    const start = n ? this.newlineAt(n) + 1 : 0;
    const stop = n < this.newlines ? this.newlineAt(n + 1) : this.size;
    if ((n && !start) || stop < 0) return null;
    const end = Math.min(stop, start + MAX_LINE);
    const parts = [];
    for (let at = start; at < end; ) {
      const block = Math.floor(at / BLOCK);
      const to = Math.min(end, (block + 1) * BLOCK);
      const held = this.block(block, to - 1 - block * BLOCK);
      if (!held) return null;
      parts.push(held.bytes.subarray(at - block * BLOCK, to - block * BLOCK));
      at = to;
    }
    return { text: this.decoded(parts), state: this.stateOf(n), more: stop - end };
  }

  decoded(parts) {
    if (parts.length < 2) return parts.length ? this.decoder.decode(parts[0]) : "";
    return parts.map((each, at) => this.decoder.decode(each, { stream: at < parts.length - 1 })).join("");
  }

  // Colours go on from line to line. What is before the block before is not looked at.
  stateOf(n) {
    if (!n) return PLAIN;
    const at = this.blockOf(n);
    const held = this.blocks.get(at);
    if (!held) return PLAIN;
    const before = this.blocks.get(at - 1);
    const begin = before && before.length === BLOCK ? before.state(Infinity, PLAIN) : PLAIN;
    return held.state(n - this.starts[at] - 1, begin);
  }
}

export const pause = (time) => new Promise((then) => setTimeout(then, time));
