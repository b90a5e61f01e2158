// What every page has: it stays true, its times go on, and the keyboard does everything.

import { startLive } from "./live.js";
import { startKeys } from "./keys.js";
import { keepTimes } from "./times.js";

keepTimes(document);
startKeys();
startLive();

document.getElementById("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // It holds for this page, then.
  }
});

// What was sent is not sent twice by a second click.
let sent = new WeakSet();
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post" || event.defaultPrevented) return;
  if (sent.has(event.target)) event.preventDefault();
  sent.add(event.target);
});
addEventListener("pageshow", () => (sent = new WeakSet()));

// The account's menu closes as menus do.
document.addEventListener("click", (event) => {
  const menu = document.getElementById("account");
  if (menu?.open && !menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = document.getElementById("account");
  if (event.key === "Escape" && menu?.open) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

// What opens a dialog says so by attributes; a browser that does not know them yet is told here.
if (!("commandForElement" in HTMLButtonElement.prototype)) {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest?.("button[commandfor]");
    const dialog = opener && document.getElementById(opener.getAttribute("commandfor"));
    if (!dialog) return;
    if (opener.getAttribute("command") === "show-modal") dialog.showModal();
    else dialog.close();
  });
}

// On a narrow screen the entry that one is at must not be out of sight. Only its bar is moved, never the page.
for (const here of document.querySelectorAll(".main-nav [aria-current], .tabs [aria-current]")) {
  const [bar, place] = [here.parentElement, here.getBoundingClientRect()];
  const around = bar.getBoundingClientRect();
  bar.scrollLeft += place.left + place.width / 2 - around.left - around.width / 2;
}
