// The viewer of a log. Only the rows that are seen are elements. The scroll bar says which row is on top; where there are
// more rows than the browser has pixels, each of its pixels stands for several.

import { Finder } from "./log_find.js";
import { button, bytesText, drawHead, headRow, lineRow, make } from "./log_elements.js";
import { Rows, sectionOf } from "./log_rows.js";
import { failureLine } from "./log_search.js";
import { Source } from "./log_source.js";

const MAX_PIXELS = 15_000_000; // Less than any browser's limit.
const LEAST_PIXELS = 300;
const FOOT = 62; // Of the page, and of the log itself.
const MORE_ROWS = 2;
const END = Number.MAX_SAFE_INTEGER; // As a row: behind all that there are.
const KEYS = "/ search  f failure  p follow  z fold  w wrap  c copy link";
const NOTE_APART = 250;

class View {
  constructor(element) {
    this.element = element;
    const { address, lease, anchor } = element.dataset;
    this.anchor = anchor;
    this.source = new Source(address, lease, () => this.grown(), (word, why) => this.heard(word, why));
    this.finder = new Finder(this);
    this.rows = new Rows();
    this.chosen = new Map(); // What somebody folded or unfolded.
    this.settled = new Map(); // What is folded because it ended well.
    this.seen = new Set();
    this.drawn = new Map();
    this.top = 0;
    this.lastScroll = 0;
    this.isFollowing = false;
    this.isPlaced = false;
    this.isResized = true;
    this.height = 20;
    this.page = this.visible = 0;
    this.widest = 0;
    this.isWrapped = false;
    this.selected = null;
    this.current = -1;
    this.frame = 0;
    this.state = "looking";
    this.build();
    this.listen();
    this.source.open();
  }

  // What the page says of the attempt may change while it is looked at.
  get isFailed() {
    return this.element.dataset.failed !== undefined;
  }

  build() {
    const { address, lease, title } = this.element.dataset;
    this.failureButton = button("Failure", "Jump to the failure", "f");
    this.foldButton = button("Fold", "Fold or unfold all steps", "z");
    this.wrapButton = button("Wrap", "Break long lines", "w");
    this.followButton = button("Follow", "Follow the end, or stop following", "p");
    this.copyButton = button("Copy link", "Copy the address of the line", "c");
    const raw = make("a", { class: "button", href: `${address}?lease=${lease}` }, "Raw");
    const load = make("a", { class: "button", href: `${address}?lease=${lease}&download=true`, download: true }, "Download");
    this.failureButton.hidden = !this.isFailed;
    this.inner = make("div", { class: "log-inner" });
    this.screen = make("div", { class: "log-screen" });
    this.list = make("div", { class: "log-rows" });
    this.scroller = make("div", { class: "log-scroll", tabindex: "0", role: "region", "aria-label": title });
    this.note = make("span", { class: "log-note" });
    this.word = make("span", { class: "log-state", role: "status" });
    this.inner.append(this.screen);
    this.screen.append(this.list);
    this.scroller.append(this.inner);
    const bar = make(
      "div",
      { class: "log-bar" },
      this.finder.build(title),
      make("div", { class: "log-does" }, this.followButton, this.failureButton, this.foldButton, this.wrapButton, this.copyButton, raw, load),
    );
    const keys = make("span", { class: "log-keys" }, KEYS);
    this.element.replaceChildren(bar, this.scroller, make("div", { class: "log-foot" }, this.word, this.note, keys));
  }

  listen() {
    this.ends = new AbortController();
    const on = (target, name, then, more = {}) => target.addEventListener(name, then, { signal: this.ends.signal, ...more });
    on(this.scroller, "scroll", () => this.scrolled());
    on(this.scroller, "wheel", (event) => this.wheeled(event), { passive: false });
    on(this.scroller, "keydown", (event) => this.pressed(event));
    on(this.list, "click", (event) => this.clicked(event));
    on(this.failureButton, "click", () => this.goToFailure());
    on(this.foldButton, "click", () => this.foldAll());
    on(this.wrapButton, "click", () => this.wrap());
    on(this.followButton, "click", () => this.follow(!this.isFollowing));
    on(this.copyButton, "click", () => this.copy());
    on(window, "hashchange", () => this.goToHash());
    // A browser has few connections to one server: who does not look needs none.
    on(document, "visibilitychange", () => (document.hidden ? this.source.close() : this.source.open()));
    on(window, "resize", () => this.resized());
    on(window, "pageshow", () => this.source.open());
    on(window, "online", () => this.source.open());
    on(document, "deltaci:drawn", () => {
      this.failureButton.hidden = !this.isFailed;
      this.resized();
    });
    this.sizes = new ResizeObserver(() => this.resized());
    this.sizes.observe(this.scroller);
  }

  close() {
    this.ends.abort();
    this.sizes.disconnect();
    this.finder.close();
    this.source.close();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.noteTimer);
  }

  // -- what the source says

  grown() {
    this.settle();
    this.isStale = true;
    if (!this.isPlaced && this.source.isKnown) this.place();
    this.finder.grown();
    this.schedule();
  }

  heard(word, why) {
    this.state = word;
    this.word.title = why?.message ?? "";
    if (word === "over" && this.isFollowing) {
      this.isFollowing = false;
      this.top = END; // Its last lines may have come just now, and are not drawn yet.
      this.schedule();
    }
    this.sayState();
  }

  // A step that ended well is folded, unless somebody stopped to read it.
  settle() {
    this.source.sections.forEach((section, number) => {
      if (section.is_over && !this.settled.has(number)) {
        this.settled.set(number, section.exit_code === 0 && (this.isFollowing || !this.seen.has(number)));
      }
      this.seen.add(number);
    });
  }

  isFolded(number) {
    return this.chosen.get(number) ?? this.settled.get(number) ?? false;
  }

  place() {
    this.isPlaced = true;
    if (this.goToHash()) return;
    this.isFollowing = this.source.isOpen;
    this.top = END;
    if (!this.source.isOpen && this.isFailed) this.goToFailure();
    this.sayState();
  }

  // -- drawing

  resized() {
    this.isResized = true;
    this.schedule();
  }

  schedule() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    if (this.isStale) {
      this.rows.build(this.source, (number) => this.isFolded(number));
      this.isStale = false;
    }
    this.measure();
    const last = this.lastTop();
    // Whoever is at the end stays there, also when lines get other heights.
    if (this.isFollowing || this.top === this.endTop()) this.top = last;
    this.top = Math.min(last, Math.max(0, this.top));
    this.scrollTo();
    const need = Math.ceil(this.visible) + MORE_ROWS;
    let first = Math.floor(this.top);
    if (this.isWrapped) first = Math.max(0, Math.min(first, this.rows.count - need));
    this.fill(first, Math.min(this.rows.count, first + need));
    this.shift(first);
    this.sayNote();
  }

  // As high as fits below what is above it, if that is enough to read in. Sizes are asked for only when they may have
  // changed: to ask costs a layout.
  fit() {
    if (!this.isResized) return;
    this.isResized = false;
    const above = this.scroller.getBoundingClientRect().top + scrollY;
    const room = Math.floor(innerHeight - above - FOOT);
    this.scroller.style.setProperty("max-height", room >= LEAST_PIXELS ? `${room}px` : "");
    this.height = Number.parseFloat(getComputedStyle(this.scroller).lineHeight) || 20;
    this.page = this.scroller.clientHeight;
    this.visible = this.page / this.height;
    this.screen.style.setProperty("height", `${this.page}px`);
    this.screen.style.setProperty("--log-width", `${this.scroller.clientWidth}px`);
  }

  measure() {
    this.fit();
    const whole = this.rows.count * this.height + (this.isWrapped ? this.page : 0);
    const pixels = Math.min(MAX_PIXELS, whole);
    if (this.pixels !== pixels) this.inner.style.setProperty("height", `${pixels}px`);
    this.pixels = pixels;
    this.factor = pixels < MAX_PIXELS ? 1 : (whole - this.page) / (pixels - this.page);
  }

  lastTop() {
    return Math.max(0, this.isWrapped ? this.rows.count : this.rows.count - this.visible);
  }

  // The row on top when the end is at the bottom: of a wrapped log it is known once the end was drawn.
  endTop() {
    return this.isWrapped && this.end?.count === this.rows.count ? this.end.top : this.lastTop();
  }

  scrollTo() {
    const wanted = (this.top * this.height) / this.factor;
    if (Math.abs(this.scroller.scrollTop - wanted) >= 1) this.scroller.scrollTop = wanted;
    this.lastScroll = this.scroller.scrollTop;
  }

  // Rows that stay are not touched: whoever has something in them in focus, or selected, keeps it.
  fill(first, stop) {
    const now = new Map();
    for (let row = first; row < stop; row++) {
      const { line, number, isEmpty } = this.rows.at(row);
      now.set(number < 0 ? line : `step ${number}`, this.row(line, number, isEmpty));
    }
    const wanted = new Set(now.values());
    let hasFocus = false;
    for (const each of [...this.list.children]) {
      if (wanted.has(each)) continue;
      hasFocus ||= each.contains(document.activeElement);
      each.remove();
    }
    let at = this.list.firstChild;
    for (const each of wanted) {
      if (each === at) at = at.nextSibling;
      else this.list.insertBefore(each, at);
    }
    this.drawn = now;
    if (hasFocus) this.scroller.focus({ preventScroll: true });
    const widest = Math.max(0, ...[...wanted].map((each) => each.characters ?? 0));
    if (!this.isWrapped && widest > this.widest) {
      this.widest = widest;
      this.list.style.setProperty("min-width", `${this.list.scrollWidth}px`);
    }
  }

  row(line, number, isEmpty) {
    const query = this.finder.query;
    const isSelected = this.selected !== null && line >= this.selected[0] && line <= this.selected[1];
    if (number >= 0) {
      const row = this.drawn.get(`step ${number}`) ?? headRow(() => this.toggle(number));
      const section = this.source.sections[number];
      drawHead(row, section, { isFolded: this.isFolded(number), isEmpty, isOpen: this.source.isOpen, isSelected, query });
      return row;
    }
    const found = this.source.line(line);
    const isCurrent = line === this.current;
    const old = this.drawn.get(line);
    const sign = `${found ? found.text.length : -1} ${isSelected} ${isCurrent} ${query}`;
    if (old && old.sign === sign && old.state === found?.state) return old;
    const row = lineRow(line, found, { anchor: this.anchor, isSelected, isCurrent, query });
    row.sign = sign;
    row.state = found?.state;
    return row;
  }

  // The row on top may be half out of sight. What has no more rows behind it ends at the bottom.
  shift(first) {
    let above = (this.top - first) * this.height;
    if (this.isWrapped) above = this.shiftWrapped(first);
    this.list.style.setProperty("transform", `translateY(${-above}px)`);
  }

  // Rows have heights of their own here: which one is on top at the end is known when they are drawn.
  shiftWrapped(first) {
    const heights = [...this.list.children].map((each) => each.offsetHeight);
    const whole = Math.floor(this.top) - first;
    let above = heights.slice(0, whole).reduce((sum, each) => sum + each, 0);
    above += (this.top - Math.floor(this.top)) * (heights[whole] ?? 0);
    const room = Math.max(0, this.list.offsetHeight - this.page);
    const isEnd = first + heights.length >= this.rows.count;
    if (!isEnd || above < room) return above;
    let row = 0;
    for (let left = room; row < heights.length; row++) {
      if (left < heights[row]) {
        this.top = first + row + left / heights[row];
        break;
      }
      left -= heights[row];
    }
    this.end = { count: this.rows.count, top: this.top };
    this.scrollTo();
    return room;
  }

  sayNote() {
    if (this.noteTimer) return;
    this.noteTimer = setTimeout(() => {
      this.noteTimer = 0;
      const { lines, size } = this.source;
      this.note.textContent = `${lines.toLocaleString("en")} lines, ${bytesText(size)}`;
    }, NOTE_APART);
  }

  sayState() {
    const isOpen = this.source.isOpen && this.state !== "over";
    const says = { looking: "reading", away: "the server is away; trying again", over: "complete" };
    const word = says[this.state] ?? (this.isFollowing ? "following" : "paused");
    if (this.word.textContent !== word) this.word.textContent = word;
    this.followButton.hidden = !isOpen;
    this.followButton.textContent = this.isFollowing ? "Pause" : "Follow";
    this.followButton.setAttribute("aria-pressed", String(this.isFollowing));
    this.followButton.classList.toggle("primary", isOpen && !this.isFollowing);
    this.foldButton.hidden = !this.source.sections.length;
  }

  // -- scrolling

  scrolled() {
    if (this.isResized) return; // A box that gets higher is scrolled by the browser, too: that is nobody's wish.
    const now = this.scroller.scrollTop;
    if (Math.abs(now - this.lastScroll) < 1) return;
    this.lastScroll = now;
    this.goTo((now * this.factor) / this.height);
  }

  // Somebody wants this row on top. At the end of a log that grows that means to follow it.
  goTo(top) {
    const last = this.lastTop();
    this.top = Math.min(last, Math.max(0, top));
    const isAtEnd = this.top >= this.endTop() - 0.5;
    if (this.isFollowing !== (isAtEnd && this.source.isOpen)) {
      this.isFollowing = !this.isFollowing;
      this.sayState();
    }
    this.schedule();
  }

  wheeled(event) {
    if (event.ctrlKey || event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
    if (event.deltaY < 0 && this.isFollowing && this.lastTop() > 0) this.follow(false);
    if (this.factor <= 1) return;
    const rows = event.deltaMode === 0 ? event.deltaY / this.height : event.deltaMode === 1 ? event.deltaY : event.deltaY * this.visible;
    if ((rows < 0 && this.top <= 0) || (rows > 0 && this.top >= this.lastTop())) return;
    event.preventDefault();
    this.goTo(this.top + rows);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && event.target.closest("button") !== null) return;
    const page = Math.max(1, this.visible - 2);
    const steps = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    let step = steps[event.key];
    if (event.key === " ") step = event.shiftKey ? -page : page;
    if (step === undefined) return;
    event.preventDefault();
    this.goTo(this.top + step);
  }

  follow(isOn) {
    this.isFollowing = isOn && this.source.isOpen;
    this.sayState();
    this.schedule();
  }

  // -- lines

  reveal(line) {
    this.isFollowing = false;
    const number = sectionOf(this.source.sections, line);
    if (number >= 0 && line >= this.source.sections[number].first_line) this.chosen.set(number, false);
    this.rows.build(this.source, (each) => this.isFolded(each));
    this.current = line;
    this.measure();
    const row = this.rows.rowOf(line);
    if (row < this.top + 1 || row > this.top + this.visible - 2 || !Number.isFinite(this.top)) this.top = row - this.visible / 3;
    this.sayState();
    this.schedule();
  }

  clicked(event) {
    const number = event.target.closest(".log-number");
    if (!number || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const line = Number(number.dataset.line);
    const from = event.shiftKey && this.selected ? this.selected[0] : line;
    this.select(Math.min(from, line), Math.max(from, line));
  }

  select(from, to) {
    this.selected = [from, to];
    this.current = from;
    const hash = from === to ? `#${this.anchor}${from + 1}` : `#${this.anchor}${from + 1}-L${to + 1}`;
    history.replaceState(null, "", hash);
    if (this.isFollowing) this.follow(false);
    this.schedule();
  }

  // The first line that is seen.
  get firstLine() {
    return this.rows.count ? this.rows.at(Math.min(this.rows.count - 1, Math.floor(this.top))).line : 0;
  }

  goToLines(from, to) {
    const last = Math.max(0, this.source.lines - 1);
    const [first, end] = [from, to].map((each) => Math.min(last, Math.max(0, each - 1))).sort((a, b) => a - b);
    this.select(first, end);
    this.reveal(first);
    this.scroller.focus();
  }

  // Whether the address names a line of this log.
  goToHash() {
    const [, anchor, from, to] = /^#((?:A\d+-)?L)(\d{1,9})(?:-L?(\d{1,9}))?$/.exec(location.hash) ?? [];
    if (anchor !== this.anchor || !this.source.isKnown) return false;
    const last = Math.max(0, this.source.lines - 1);
    const lines = [from, to ?? from].map((each) => Math.min(last, Math.max(0, Number(each) - 1))).sort((a, b) => a - b);
    this.selected = lines;
    this.reveal(lines[0]);
    return true;
  }

  async copy() {
    if (this.selected === null) {
      this.select(this.firstLine, this.firstLine);
    }
    try {
      await navigator.clipboard.writeText(location.href);
      this.finder.note.textContent = "copied";
    } catch {
      this.finder.note.textContent = "the address bar has it";
    }
  }

  async goToFailure() {
    try {
      const line = await failureLine(this.source, this.element.dataset.failure ?? "");
      if (line < 0) return;
      this.selected = [line, line];
      this.reveal(line);
    } catch {
      this.finder.note.textContent = "the server is away";
    }
  }

  // -- folding and wrapping

  toggle(number) {
    this.chosen.set(number, !this.isFolded(number));
    if (this.isFollowing && this.chosen.get(number) === false) this.isFollowing = false;
    this.redraw();
  }

  foldAll() {
    const isAnyOpen = this.source.sections.some((_, number) => !this.isFolded(number));
    this.source.sections.forEach((_, number) => this.chosen.set(number, isAnyOpen));
    this.redraw();
  }

  // What is on top stays there.
  redraw() {
    const on = this.firstLine;
    const rest = this.top - Math.floor(this.top);
    this.rows.build(this.source, (number) => this.isFolded(number));
    this.top = this.rows.rowOf(on) + rest;
    this.sayState();
    this.schedule();
  }

  wrap() {
    this.isWrapped = !this.isWrapped;
    this.wrapButton.setAttribute("aria-pressed", String(this.isWrapped));
    this.scroller.classList.toggle("wrapped", this.isWrapped);
    this.list.style.removeProperty("min-width");
    this.widest = 0;
    this.schedule();
  }
}

class DeltaLog extends HTMLElement {
  connectedCallback() {
    this.view ??= new View(this);
  }

  disconnectedCallback() {
    // An element that is only moved is connected again at once.
    queueMicrotask(() => {
      if (this.isConnected) return;
      this.view?.close();
      this.view = undefined;
    });
  }
}

customElements.define("delta-log", DeltaLog);
