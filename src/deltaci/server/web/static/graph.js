// The graph of a run: what leads to a job and what follows from it stands out while it is pointed at or has the focus,
// and arrow keys walk from job to job. The server draws; here only marks of ours (data-own-…) are set.

const box = () => document.getElementById("graph-box");
const picture = () => document.getElementById("graph-picture");

let ways = null; // Of the graph as it was drawn last: who is behind and before whom.

function edges() {
  if (ways) return ways;
  const to = new Map();
  const from = new Map();
  for (const edge of picture().querySelectorAll(".edge")) {
    const { from: a, to: b } = edge.dataset;
    if (!to.has(a)) to.set(a, []);
    if (!from.has(b)) from.set(b, []);
    to.get(a).push(edge);
    from.get(b).push(edge);
  }
  ways = { to, from };
  return ways;
}

function reached(start, next, end) {
  const seen = new Set([start]);
  const found = new Set();
  const stack = [start];
  while (stack.length) {
    for (const edge of next.get(stack.pop()) ?? []) {
      found.add(edge);
      const other = edge.dataset[end];
      if (!seen.has(other)) {
        seen.add(other);
        stack.push(other);
      }
    }
  }
  return [seen, found];
}

function light(node) {
  const all = picture();
  if (!all) return;
  for (const each of all.querySelectorAll("[data-own-on]")) delete each.dataset.ownOn;
  if (!node) {
    delete all.dataset.ownLit;
    return;
  }
  const { to, from } = edges();
  const [after, onward] = reached(node.dataset.node, to, "to");
  const [before, back] = reached(node.dataset.node, from, "from");
  all.dataset.ownLit = node.dataset.node;
  for (const edge of [...onward, ...back]) edge.dataset.ownOn = "";
  for (const each of all.querySelectorAll("[data-node]")) {
    if (after.has(each.dataset.node) || before.has(each.dataset.node)) each.dataset.ownOn = "";
  }
}

const nodeOf = (target) => target.closest?.("#graph-picture .node") ?? null;

// The nearest job in a direction: straight ahead counts more than aside.
function neighbour(node, dx, dy) {
  const { x, y } = place(node);
  let best = null;
  let least = Infinity;
  for (const each of picture().querySelectorAll(".node")) {
    const at = place(each);
    const ahead = (at.x - x) * dx + (at.y - y) * dy;
    const aside = Math.abs((at.x - x) * dy) + Math.abs((at.y - y) * dx);
    if (ahead <= 0 || (dy && aside > 0)) continue;
    const far = ahead + 2 * aside;
    if (far < least) [best, least] = [each, far];
  }
  return best;
}

function place(node) {
  const { e, f } = node.transform.baseVal.consolidate().matrix;
  return { x: e, y: f };
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function pressed(event) {
  if (!box()?.contains(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
  const node = nodeOf(event.target);
  if (!node) {
    if (event.key !== "Enter" || event.target !== box()) return;
    // Where it went wrong is what most people look for.
    (picture().querySelector(".node.bad") ?? picture().querySelector(".node"))?.focus();
    event.preventDefault();
  } else if (event.key === "Escape") {
    box().focus();
  } else if (STEPS[event.key]) {
    const next = neighbour(node, ...STEPS[event.key]);
    next?.focus();
    next?.scrollIntoView({ block: "nearest", inline: "nearest" });
    event.preventDefault();
  }
}

// A graph that is larger than its box can be seen whole.
function size() {
  const button = document.getElementById("graph-fit");
  if (!button) return;
  const { scrollWidth, clientWidth, scrollHeight, clientHeight } = box();
  const isLarge = scrollWidth > clientWidth || scrollHeight > clientHeight;
  if (isLarge || "ownFit" in box().dataset) button.dataset.ownShown = "";
  else delete button.dataset.ownShown;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("#graph-fit");
  if (!button) return;
  box().toggleAttribute("data-own-fit");
  button.textContent = "ownFit" in box().dataset ? "Full size" : "Fit to page";
  if (!("ownFit" in box().dataset)) show();
});

// What people look for first is in sight: what failed, what runs, or else where it begins.
function show() {
  const all = picture();
  const node = all?.querySelector(".node.bad") ?? all?.querySelector(".node.busy") ?? all?.querySelector(".node");
  if (!node) return;
  const { x, y } = place(node);
  const view = box();
  if (y > view.clientHeight - 60) view.scrollTop = y - view.clientHeight / 2 + 20;
  if (x > view.clientWidth - 220) view.scrollLeft = x - view.clientWidth / 2 + 100;
}

show();
size();
addEventListener("resize", size);
document.addEventListener("keydown", pressed);
document.addEventListener("pointerover", (event) => light(nodeOf(event.target) ?? nodeOf(document.activeElement)));
document.addEventListener("focusin", (event) => light(nodeOf(event.target)));
document.addEventListener("deltaci:drawn", () => {
  ways = null;
  size();
});
