// Which line is in which row: markers are no rows, a step has a head, and one that is folded has nothing else.

export class Rows {
  constructor() {
    this.parts = [];
    this.count = 0;
  }

  // Lines count from 0 here; of a section the first line is its head, the last one is none if it says how it ended.
  build(source, isFolded) {
    this.parts = [];
    this.count = 0;
    let at = source.hasHeader ? 1 : 0;
    source.sections.forEach((section, number) => {
      const head = section.first_line - 1;
      if (head >= source.lines || head < at) return;
      this.add(at, head);
      const next = source.sections[number + 1];
      const after = section.last_line ?? (next ? next.first_line - 1 : source.lines);
      const end = section.last_line !== null && section.seconds !== null ? after - 1 : after;
      const stop = Math.max(head + 1, Math.min(end, source.lines));
      this.parts.push({ row: this.count, line: head, count: 1, number, isEmpty: stop === head + 1 });
      this.count++;
      if (!isFolded(number)) this.add(head + 1, stop);
      at = Math.max(head + 1, Math.min(after, source.lines));
    });
    this.add(at, source.lines);
  }

  add(from, to) {
    if (to <= from) return;
    this.parts.push({ row: this.count, line: from, count: to - from, number: -1, isEmpty: false });
    this.count += to - from;
  }

  // {line, number, isEmpty}; number is that of the section whose head it is, or -1.
  at(row) {
    const part = this.parts[find(this.parts, (each) => each.row <= row)];
    return { line: part.line + row - part.row, number: part.number, isEmpty: part.isEmpty };
  }

  // The row of a line; of one that has none, the row that stands for it.
  rowOf(line) {
    const at = find(this.parts, (each) => each.line <= line);
    if (at < 0) return 0;
    const part = this.parts[at];
    return part.row + Math.min(part.count - 1, line - part.line);
  }
}

// The last for which it holds; it holds for some at the beginning.
function find(list, holds) {
  let low = -1;
  let high = list.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (holds(list[middle])) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The section that a line, from 0 on, belongs to; -1: none.
export function sectionOf(sections, line) {
  const at = find(sections, (each) => each.first_line - 1 <= line);
  return at >= 0 && (sections[at].last_line === null || line < sections[at].last_line) ? at : -1;
}
