// Inlined in every page, so that it is there even if no other resource loads, and runs before the first paint.

{
  const RELOADS = "deltaci:mends"; // The number of reloads in a row because of a missing resource,
  const MAX_RELOADS = 5; // which is assumed if the browser stores nothing.
  const LONGEST = 60000; // Between two tries, in milliseconds.
  let missing = ""; // The URL of the first resource that did not load.

  const ignoringErrors = (access) => {
    try {
      return access();
    } catch {
      return undefined; // The browser does not allow storage.
    }
  };

  // Set the theme before the first paint, so that the page does not flash in the other one.
  const theme = ignoringErrors(() => localStorage.getItem("theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

  // Reload the page unless that would lose what a person has typed. Returns whether it is reloaded.
  globalThis.loadAnew = () => {
    const fields = [...document.querySelectorAll("form[method=post] :is(input, textarea)")];
    if (fields.some((field) => field.type !== "hidden" && field.value !== field.defaultValue)) return false;
    location.reload();
    return true;
  };

  // A page that lacks a script or style sheet may look complete, but does not update: the network changed while it
  // loaded, the server stopped, or another version replaced it. Reload it as soon as the server answers a request for that
  // resource; if it still does not load, wait longer each time.
  const reloadWhenAvailable = (wait, reloads) => {
    const retry = async () => {
      const response = await fetch(missing, { cache: "reload" }).catch(() => null);
      const isAnswered = response !== null && response.status < 500;
      if (isAnswered && loadAnew()) ignoringErrors(() => sessionStorage.setItem(RELOADS, reloads + 1));
      else reloadWhenAvailable(2 * wait, reloads);
    };
    setTimeout(retry, Math.min(LONGEST, wait) * (0.5 + Math.random()));
  };
  const onError = ({ target }) => {
    if (missing || !target.matches?.("script, link")) return;
    missing = target.src || target.href;
    const reloads = Number(ignoringErrors(() => sessionStorage.getItem(RELOADS) ?? 0) ?? MAX_RELOADS);
    reloadWhenAvailable(500 * 2 ** reloads, reloads);
  };
  addEventListener("error", onError, true); // Capturing: these events do not bubble.
  addEventListener("load", () => missing || ignoringErrors(() => sessionStorage.removeItem(RELOADS)));
}
