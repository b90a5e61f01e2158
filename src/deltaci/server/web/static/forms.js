// Forms: copied with a click, and the cursor where something is wrong.

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Selected"; // Where a page may not copy, the keyboard still does.
  }
});

// What was made by sending a form must not be made again by looking at it again.
const after = document.querySelector("[data-after]");
if (after) history.replaceState(null, "", after.dataset.after);

// To the line that is wrong.
const wrong = document.querySelector("textarea[data-line]");
if (wrong) {
  const lines = wrong.value.split("\n");
  const line = Math.min(Number(wrong.dataset.line), lines.length) - 1;
  const start = lines.slice(0, line).reduce((sum, each) => sum + each.length + 1, 0);
  wrong.focus();
  wrong.setSelectionRange(start, start + lines[line].length);
  const height = wrong.scrollHeight / lines.length;
  wrong.scrollTop = Math.max(0, (line - 3) * height);
}
