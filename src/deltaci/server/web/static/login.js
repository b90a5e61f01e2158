// The sign-in page: a link that `deltaci web` prints signs in without a click; a pasted key can be shown.

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

// A browser does not send the fragment of a URL, so that the token is in no log; removing it here keeps it out of the
// history. Only a token that this server's operator signed is accepted, so that a link of another person signs no one in.
function signInByLink() {
  const token = /^#token=(dci_[\w.-]+)$/.exec(location.hash)?.[1];
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  field.value = token;
  document.getElementById("login").requestSubmit();
}

addEventListener("hashchange", signInByLink);
signInByLink();
