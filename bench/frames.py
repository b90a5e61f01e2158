"""What a browser does while something is shown: its frames, its long tasks, and how late what it shows is.

A page draws a frame at most every 16.7 ms here: headless Chromium has a screen of 60 Hz that nobody looks at, and draws
with the processor. So a frame that is missing is missing for want of processor time, as on a laptop without a GPU.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

FRAME_MS: Final = 1000 / 60

# Every frame's time is kept; so is every task that kept the page from answering for 50 ms or more.
WATCH: Final = """
() => {
  const watch = { frames: [], tasks: [], isOn: true, lags: [] };
  window.watch = watch;
  new PerformanceObserver((list) => list.getEntries().forEach((each) => watch.tasks.push(each.duration)))
    .observe({ type: "longtask" });
  let before = 0;
  const frame = (now) => {
    if (before) watch.frames.push(now - before);
    before = now;
    const texts = document.querySelectorAll(".log-text, .plain-line");
    const stamp = /^at (\\d+)/.exec(texts[texts.length - 1]?.textContent ?? "");
    if (stamp) watch.lags.push(Date.now() - Number(stamp[1]));
    if (watch.isOn) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
"""
# What everybody would write first: a line is an element, and the last one is scrolled to.
PLAIN: Final = """
(address) => {
  document.body.replaceChildren();
  const list = document.createElement("div");
  list.setAttribute("class", "plain");
  document.body.append(list);
  const read = async () => {
    const answer = await fetch(address);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\\n");
      rest = lines.pop();
      for (const line of lines) {
        const made = document.createElement("div");
        made.className = "plain-line";
        made.textContent = line;
        list.append(made);
      }
      list.lastChild?.scrollIntoView();
    }
  };
  read();
}
"""


class Frames(msgspec.Struct, frozen=True):
    """What was seen in so many seconds, in milliseconds, sorted."""

    seconds: float
    frames: list[float]
    tasks: list[float]
    lags: list[float]
    busy: (
        float  # Of the page's main thread: milliseconds of the processor a second. Others on the machine are not in it.
    )

    def at(self, part: float) -> float:
        """The frame time that this part of all frames did not exceed."""
        return quantile(self.frames, part)

    @property
    def dropped(self) -> float:
        """Of a hundred frames that a screen of 60 Hz would have had."""
        missed = sum(max(0, round(frame / FRAME_MS) - 1) for frame in self.frames)
        return 100 * missed / max(1, missed + len(self.frames))


def quantile(values: list[float], part: float) -> float:
    """Of sorted values; NaN of none."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else math.nan


def watched(page: Any, seconds: float) -> Frames:
    """Look at what it does for so long."""
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate(WATCH)
    before = _spent(client)
    page.wait_for_timeout(seconds * 1000)
    found = page.evaluate("() => { window.watch.isOn = false; return window.watch }")
    busy = (_spent(client) - before) / seconds * 1000
    client.detach()
    return Frames(seconds, sorted(found["frames"]), sorted(found["tasks"]), sorted(found["lags"]), busy)


def _spent(client: Any) -> float:
    """Seconds of the processor in tasks of the page, so far."""
    metrics = client.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))
