// What only people at a keyboard notice: a card that moves to another column keeps the focus, and the place of a problem
// is shown in what was typed.

let walked = "";
document.addEventListener("focusin", (event) => {
  walked = event.target.closest?.("[data-walk]")?.id ?? "";
});
document.addEventListener("deltaci:drawn", () => {
  if (walked && document.activeElement === document.body) {
    document.getElementById(walked)?.focus({ preventScroll: true });
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-line]");
  const file = document.getElementById("file");
  if (!link || !file) return;
  event.preventDefault();
  const lines = file.value.split("\n");
  const before = lines.slice(0, link.dataset.line - 1).join("\n").length;
  const line = lines[link.dataset.line - 1] ?? "";
  const start = before + (link.dataset.line > 1 ? 1 : 0);
  file.focus();
  file.setSelectionRange(start + Math.min(line.length, link.dataset.column - 1), start + line.length);
});
