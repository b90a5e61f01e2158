// Single keys: g and a letter goes somewhere, j and k walk through a list, / searches, ? says all that. They do nothing
// while somebody writes, and can be turned off (WCAG 2.1.4).

const AFTER_G = 1500;
let gAt = -Infinity;

const box = () => document.getElementById("shortcuts-on");

function isOn() {
  try {
    return localStorage.getItem("shortcuts") !== "off";
  } catch {
    return true;
  }
}

// A button or field of a dialog keeps the focus until the first frame after the dialog was closed.
function isWriting(target) {
  const field = target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
  return field != null && !field.closest("dialog:not([open])");
}

export function startKeys() {
  if (box()) {
    box().checked = isOn();
    box().addEventListener("change", () => {
      try {
        localStorage.setItem("shortcuts", box().checked ? "on" : "off");
      } catch {
        // It holds for this page, then.
      }
    });
  }
  document.addEventListener("keydown", pressed);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (isWriting(event.target) || !isOn() || document.querySelector("dialog[open]")) return;
  const key = event.key;
  const now = performance.now();
  if (now - gAt < AFTER_G) {
    gAt = -Infinity;
    const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (key === "g") {
    gAt = now;
    return;
  }
  if (key === "?") {
    document.getElementById("shortcuts")?.showModal();
    event.preventDefault();
    return;
  }
  if (key === "j" || key === "k") {
    walk(key === "j" ? 1 : -1);
    event.preventDefault();
    return;
  }
  const named = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (named) {
    event.preventDefault();
    if (named.matches("input, select, textarea")) named.focus();
    else named.click();
  }
}

// From one line of the page's list to the next: the link that names a line has the focus.
function walk(step) {
  const all = document.querySelectorAll("main tbody th a, main [data-walk]");
  const links = [...all].filter((each) => each.checkVisibility?.() ?? true);
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + step));
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}
