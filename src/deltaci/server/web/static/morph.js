// Make a tree like another one with as few changes as can be: what stays the same keeps its focus, its scroll, its
// selection. Afterwards `from` is like `to`, except for what is not the server's to say:
//
// - whether a <details> or <dialog> that was there before is open;
// - what somebody wrote, ticked or chose in a field;
// - the attributes data-own-…, which scripts write, and all that is inside an element with data-keep.
//
// An element with an id is known again wherever it was, and is moved instead of made anew; so is one without, if it is
// exactly the same and not far away. `to` is used up: what is new is taken from it.

const NEAR = 4; // So far is looked for siblings that are exactly the same.

export function morph(from, to) {
  const focused = document.activeElement;
  const chosen = selectionOf(focused);
  same(from, to, idsOf(from, to));
  // A browser without moveBefore takes the focus from what is moved.
  if (focused && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
    if (chosen) focused.setSelectionRange(...chosen);
  }
}

// Which elements are known by their id. One that is wanted twice is nobody's, and what a script keeps is not ours.
function idsOf(from, to) {
  const known = new Map();
  if (from.nodeType !== Node.ELEMENT_NODE || to.nodeType !== Node.ELEMENT_NODE) return known;
  for (const each of from.querySelectorAll("[id]:not([data-keep] [id])")) known.set(each.id, each);
  const seen = new Set();
  for (const { id } of to.querySelectorAll("[id]")) seen.has(id) ? known.delete(id) : seen.add(id);
  return known;
}

function selectionOf(field) {
  const has = typeof field?.selectionStart === "number" && typeof field.setSelectionRange === "function";
  return has ? [field.selectionStart, field.selectionEnd, field.selectionDirection] : null;
}

// The one that stands there afterwards.
function same(from, to, known) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    const fresh = put(from.parentNode, to, from, known);
    from.remove();
    return fresh;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return from;
  }
  if (from.isEqualNode(to)) return from;
  attributes(from, to);
  if (from.hasAttribute("data-keep")) return from;
  if (from.localName === "select") options(from, to, known);
  else children(from, to, known);
  return from;
}

function attributes(from, to) {
  const isTheirs = (name) => name === "open" && (from.localName === "dialog" || from.localName === "details");
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !isTheirs(name)) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !isTheirs(name) && !name.startsWith("data-own-")) from.removeAttribute(name);
  }
}

// What was chosen stays chosen, as long as it can be.
function options(from, to, known) {
  const all = [...from.options];
  const isTouched = all.some((each) => each.selected !== each.defaultSelected) && !isFirstByDefault(from, all);
  const values = new Set(all.filter((each) => each.selected).map((each) => each.value));
  children(from, to, known);
  const kept = [...from.options].filter((each) => values.has(each.value));
  if (!isTouched || !kept.length) return;
  for (const each of from.options) each.selected = values.has(each.value);
}

// A list from which nobody chose anything has its first entry chosen, though no entry says so.
function isFirstByDefault(list, all) {
  return !list.multiple && list.selectedIndex === 0 && !all.some((each) => each.defaultSelected);
}

function children(from, to, known) {
  const wanted = new Set();
  for (const each of to.children) if (each.id) wanted.add(each.id);

  let last = null; // The last one that is in its place. What follows it may be taken away by whatever is done inside.
  const following = () => (last ? last.nextSibling : from.firstChild);
  for (let next = to.firstChild; next; ) {
    const each = next;
    next = next.nextSibling;
    let at = following();
    // What is wanted elsewhere or nowhere must not be written over: it goes, and is still known.
    while (at && idOf(at) && !wanted.has(at.id)) at = removed(at);
    const found = counterpart(at, each, from, known);
    if (found) {
      if (found !== at) move(from, found, at);
      last = same(found, each, known);
    } else {
      last = put(from, each, at, known);
    }
  }
  for (let at = following(); at; ) at = removed(at);
}

// Which of what is there becomes this one, if any does.
function counterpart(at, each, parent, known) {
  const id = idOf(each);
  if (id) {
    const found = known.get(id);
    return found && !found.contains(parent) ? found : null;
  }
  if (!at) return null;
  if (!idOf(at) && at.isEqualNode(each)) return at;
  if (each.nodeType === Node.ELEMENT_NODE) {
    let other = at.nextSibling;
    for (let n = 0; other && n < NEAR; n++, other = other.nextSibling) {
      if (!idOf(other) && other.isEqualNode(each)) return other;
    }
  }
  if (idOf(at) || at.nodeName !== each.nodeName) return null;
  let later = each.nextSibling;
  for (let n = 0; later && n < NEAR; n++, later = later.nextSibling) {
    if (at.nodeType === Node.ELEMENT_NODE && at.isEqualNode(later)) return null; // It is wanted there, as it is.
  }
  return at;
}

// Something new, as it comes; but what it contains and was there before is the one that was there.
function put(parent, each, before, known) {
  const ids = known.size && each.nodeType === Node.ELEMENT_NODE ? [...each.querySelectorAll("[id]")] : [];
  if (!ids.some(({ id }) => known.has(id))) return parent.insertBefore(each, before);
  const empty = parent.insertBefore(document.importNode(each, false), before);
  children(empty, each, known);
  return empty;
}

function move(parent, node, before) {
  if (parent.moveBefore && parent.isConnected && node.isConnected) parent.moveBefore(node, before);
  else parent.insertBefore(node, before);
}

function idOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id : "";
}

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}
