// The door: a link of `deltaci web` opens it by itself, and what was pasted can be looked at.

const field = document.getElementById("key");
const show = document.getElementById("show-key");

show.hidden = false;
show.addEventListener("click", () => {
  const isShown = field.type === "password";
  field.type = isShown ? "text" : "password";
  show.textContent = isShown ? "Hide" : "Show";
  show.setAttribute("aria-pressed", String(isShown));
  field.focus();
});

// What follows # is never sent to anybody, so it is in no log; and here it leaves the address, and so the history. Only
// what the operator of this server signed is taken: nobody else can make a link that signs others in.
function open() {
  const token = /^#token=(dci_[\w.-]+)$/.exec(location.hash)?.[1];
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  field.value = token;
  document.getElementById("door").requestSubmit();
}

addEventListener("hashchange", open);
open();
