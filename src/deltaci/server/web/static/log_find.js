// The box above a log: what to look for in all of it, from hit to hit; or the number of a line to go to.

import { button, make } from "./log_elements.js";
import { Search } from "./log_search.js";

const AGAIN = 1000; // Between two looks through what was added.
const TYPED = 250;

export class Finder {
  constructor(view) {
    this.view = view;
    this.search = new Search(view.source, () => this.searched());
    this.isGone = false;
    this.from = 0;
  }

  get query() {
    return this.search.query;
  }

  build(title) {
    this.box = make("input", {
      type: "search",
      "aria-label": `Search ${title}`,
      placeholder: "Search, or :line",
      "data-key": "/",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.note = make("span", { class: "log-found", role: "status" });
    const before = button("↑", "Previous hit (Shift+Enter)");
    const after = button("↓", "Next hit (Enter)");
    for (const each of [before, after]) each.setAttribute("aria-label", each.title);
    this.box.addEventListener("input", () => this.typed());
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    before.addEventListener("click", () => this.goToHit(-1));
    after.addEventListener("click", () => this.goToHit(1));
    return make("div", { class: "log-search", role: "search", "aria-label": title }, this.box, this.note, before, after);
  }

  close() {
    this.search.clear();
    clearTimeout(this.timer);
    clearTimeout(this.typing);
  }

  // The log has more: what is looked for may be in it.
  grown() {
    if (!this.query || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.search.goOn();
    }, AGAIN);
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.begin(), TYPED);
  }

  async begin() {
    const query = this.box.value;
    if (query.startsWith(":") || query.toLowerCase() === this.query) return;
    this.isGone = false;
    this.from = this.view.firstLine;
    await this.search.start(query);
    this.searched();
  }

  pressed(event) {
    if (event.key === "Escape") {
      if (this.search.isRunning) this.search.cancel();
      else this.clear();
      this.view.scroller.focus();
    } else if (event.key === "Enter") {
      event.preventDefault();
      clearTimeout(this.typing);
      const [, from, to] = /^:\s*(\d{1,9})(?:-(\d{1,9}))?$/.exec(this.box.value) ?? [];
      if (from) this.view.goToLines(Number(from), Number(to ?? from));
      else if (this.box.value.toLowerCase() === this.query) this.goToHit(event.shiftKey ? -1 : 1);
      else this.begin();
    }
  }

  clear() {
    this.box.value = "";
    this.search.start("");
    this.searched();
  }

  searched() {
    this.note.textContent = this.told();
    const { hits, isRunning } = this.search;
    // The first one behind what was looked at, as soon as it is known; from the beginning if there is none.
    if (this.query && !this.isGone && hits.length && (hits[hits.length - 1] >= this.from || !isRunning)) {
      this.isGone = true;
      this.view.reveal(this.search.next(this.from - 1, 1));
      this.note.textContent = this.told();
    }
    this.view.schedule();
  }

  // How far it is, and how many lines have it.
  told() {
    const { hits, isRunning, isFull, isBroken, at } = this.search;
    if (!this.query) return "";
    const place = hits.indexOf(this.view.current);
    const said = [];
    if (hits.length) {
      const which = place >= 0 ? `${(place + 1).toLocaleString("en")} of ` : "";
      said.push(`${which}${hits.length.toLocaleString("en")}${isFull ? "+" : ""}`);
    } else if (!isRunning && !isBroken) said.push("nothing found");
    if (isRunning) said.push(`${Math.floor((100 * at) / Math.max(1, this.view.source.size))}%`);
    if (isBroken) said.push("broken off");
    return said.join(", ");
  }

  goToHit(step) {
    const hit = this.search.next(this.view.current, step);
    if (hit < 0) return;
    this.view.reveal(hit);
    this.searched();
  }
}
