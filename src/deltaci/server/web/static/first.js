// Stands in every page itself, so that it is there whatever else does not come, and runs before the first paint.

{
  const MENDS = "deltaci:mends"; // How often in a row a page was loaded anew to be whole,
  const MANY = 5; // which is taken for so often where nothing can be kept.
  const LONGEST = 60000; // Between two tries, in milliseconds.
  let missing = ""; // The first part that did not come.

  const tried = (what) => {
    try {
      return what();
    } catch {
      return undefined; // The browser keeps nothing for us.
    }
  };

  // A page never flashes in the other theme.
  const theme = tried(() => localStorage.getItem("theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

  // What somebody is writing is worth more than a page that is up to date, or whole. Whether it was loaded anew.
  globalThis.loadAnew = () => {
    const fields = [...document.querySelectorAll("form[method=post] :is(input, textarea)")];
    if (fields.some((each) => each.type !== "hidden" && each.value !== each.defaultValue)) return false;
    location.reload();
    return true;
  };

  // A page without one of its parts looks whole, but does not stay true: perhaps the network changed while it came, or the
  // server went away, or another version took its place. It is loaded anew as soon as there is an answer to who asks for
  // that part; if this does not help, later each time.
  const mend = (wait, mends) => {
    const again = async () => {
      const answer = await fetch(missing, { cache: "reload" }).catch(() => null);
      const isThere = answer !== null && answer.status < 500;
      if (isThere && loadAnew()) tried(() => sessionStorage.setItem(MENDS, mends + 1));
      else mend(2 * wait, mends);
    };
    setTimeout(again, Math.min(LONGEST, wait) * (0.5 + Math.random()));
  };
  const lost = ({ target }) => {
    if (missing || !target.matches?.("script, link")) return;
    missing = target.src || target.href;
    const mends = Number(tried(() => sessionStorage.getItem(MENDS) ?? 0) ?? MANY);
    mend(500 * 2 ** mends, mends);
  };
  addEventListener("error", lost, true); // It does not bubble.
  addEventListener("load", () => missing || tried(() => sessionStorage.removeItem(MENDS)));
}
