"""Pages as people get them: a real Chromium before a real server, on one machine.

For each page what a Lighthouse report would say: bytes, requests, first byte, first and largest paint, nodes; what it
costs the server; how soon something that happened is on the screen; and whether a log of 10,000 lines a second, written
by a real job through a real runner, can be looked at while it comes.

The limits are measured in the same run: the same bytes, written before, from the same uvicorn; the event alone at the
same browser; an empty page's frames. The peer of the log is the viewer that everybody would write first, one element
for each line. Chromium is headless and draws with the processor, so paint times and frames share it with the server.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import msgspec
from playwright.sync_api import Browser, BrowserContext, Page

from bench.databases import log_progress
from bench.figures import Figure
from bench.frames import PLAIN, Frames, quantile, watched
from bench.processes import Process, address, started
from deltaci.app import registration_token
from tests.browser.browsing import browsers
from tests.browser.house import House, task

JOBS = (10, 100, 1000)
RUNS = 60
ROUNDS = 3
ASKED = 200
ENOUGH_SECONDS: Final = 0.3
CHANGES = 6
CALM_SECONDS = 3.2  # Longer than static/live.js takes for calm.
BUSY_SECONDS: Final = 0.4
LOG_SECONDS = 8.0
LINES_A_SECOND = 10_000
AS_A_BROWSER: Final = {"Accept-Encoding": "gzip", "Sec-Fetch-Site": "same-origin"}
NOBODY: Final = ["a-label-that-nobody-has"]
NAMES: Final = {
    "written": "the same bytes, written before",
    "empty": "an empty page",
    "event": "the event alone at the same browser",
    "plain": "one element a line",
}
EMPTY: Final = "<!doctype html><title>empty</title><p>empty"

LINES: Final = """
import sys, time
began = time.monotonic()
for n in range(int({seconds} * 100)):
    at = int(time.time() * 1000)
    sys.stdout.write("".join(f"at {{at}} compiling module {{n}}.{{k}}: nothing to see here\\n" for k in range({part})))
    sys.stdout.flush()
    time.sleep(max(0, began + (n + 1) / 100 - time.monotonic()))
"""
SEEN: Final = """
() => new Promise((done) => new PerformanceObserver((list) => {
  const [page] = performance.getEntriesByType("navigation");
  const files = performance.getEntriesByType("resource").filter((each) => each.startTime < page.loadEventStart);
  done({
    bytes: page.transferSize + files.reduce((sum, each) => sum + each.transferSize, 0),
    requests: 1 + files.length,
    first_byte: page.responseStart - page.requestStart,
    first_paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
    largest_paint: list.getEntries().at(-1).startTime,
    nodes: document.querySelectorAll("*").length,
  });
}).observe({ type: "largest-contentful-paint", buffered: true }))
"""
# When the event is at the browser, and when the line of a run is in the page.
HEARD: Final = """
(after) => {
  const now = () => performance.timeOrigin + performance.now();
  window.heard = {};
  window.drawn = {};
  new EventSource(`/api/v1/events?after=${after}`).addEventListener("run", (event) => {
    window.heard[JSON.parse(event.data).run_id] ??= now();
  });
  new MutationObserver(() => {
    for (const each of document.querySelectorAll("tr[id^=run-]")) window.drawn[each.id.slice(4)] ??= now();
  }).observe(document.getElementById("main"), { subtree: true, childList: true });
}
"""


class Seen(msgspec.Struct, frozen=True):
    """One page, loaded by a browser that had nothing of it; times in milliseconds since the navigation began."""

    bytes: float
    requests: float
    first_byte: float
    first_paint: float
    largest_paint: float
    nodes: float


class Stand:
    """A server, somebody who is signed in, and pages to look at."""

    def __init__(self, browser: Browser, server: Process, folder: Path) -> None:
        self.browser = browser
        self.server = server
        self.house = House(folder)
        self.house.url = self.url = address(server)
        self.cookies = self.house.sign_in("ada")
        self.pages: dict[str, str] = {}

    @contextmanager
    def context(self, url: str = "") -> Iterator[BrowserContext]:
        """A browser that has seen nothing, signed in."""
        at = url or self.url
        context = self.browser.new_context(base_url=at, viewport={"width": 1280, "height": 800})
        context.add_cookies([{"name": name, "value": value, "url": at} for name, value in self.cookies.items()])
        yield context
        context.close()


def run() -> list[Figure]:
    """Pages, changes, a log."""
    with tempfile.TemporaryDirectory() as name, browsers() as browser:
        folder = Path(name)
        words = ("-m", "deltaci", "server", "--data", name, "--host", "127.0.0.1", "--port", "0")
        with started(*words, log=folder / "server.log") as server:
            stand = Stand(browser, server, folder)
            try:
                _fill(stand)
                figures = [*_pages(stand), *_changes(stand)]
                command = ("-m", "deltaci", "runner", "--server", stand.url, "--work", str(folder / "work"))
                token = registration_token(folder, "writer", "default")
                with started(*command, env={"DELTACI_TOKEN": token}, log=folder / "runner.log"):
                    figures += _log(stand)
            finally:
                stand.house.close()
    return figures


def _fill(stand: Stand) -> None:
    """Runs that wait for a worker, of every size."""
    house = stand.house
    for n in range(RUNS):
        house.start(
            task("build", runs_on=NOBODY), title=f"Change number {n} of many", project="shop", branch=f"topic-{n % 7}"
        )
    stand.pages["/sign-in"] = "sign in"
    stand.pages["/runs"] = "runs, a page of them"
    for count in JOBS:
        needs = ([f"job-{n // 4 - 1}"] if n >= 4 else [] for n in range(count))
        jobs = [task(f"job-{n}", needs=each, runs_on=NOBODY) for n, each in enumerate(needs)]
        stand.pages[f"/runs/{house.start(*jobs, title=f'{count} jobs')}"] = f"run of {count:,} jobs"
    log_progress(f"there are {RUNS + len(JOBS)} runs, of up to {max(JOBS):,} jobs")


# -- pages


def _pages(stand: Stand) -> list[Figure]:
    recorded = _recorded(stand)
    figures = []
    with started("-m", "bench.recorded") as bare:
        bare.send(recorded)
        url = address(bare)
        empty = _seen(stand, "/empty", url)
        for path, name in stand.pages.items():
            ours, limit = _seen(stand, path), _seen(stand, path, url)
            costs, least = _cost(stand, path, stand.server, stand.url), _cost(stand, path, bare, url)
            log_progress(
                f"{name}: {ours.bytes / 1e3:.1f} kB, {ours.requests:.0f} requests, first byte {ours.first_byte:.1f}, "
                f"first paint {ours.first_paint:.0f}, server {costs * 1e3:.1f} ms"
            )
            figures += [
                Figure(f"{name}: first view", ours.bytes / 1e3, "kB"),
                Figure(f"{name}: requests", ours.requests, ""),
                Figure(f"{name}: nodes", ours.nodes, ""),
                *_times(name, ours, limit, empty),
                Figure(f"{name}: CPU of the server", costs * 1e3, "ms", _against(costs, written=least)),
            ]
    return figures


def _times(name: str, ours: Seen, limit: Seen, empty: Seen) -> list[Figure]:
    first = _against(ours.first_paint, written=limit.first_paint, empty=empty.first_paint)
    largest = _against(ours.largest_paint, written=limit.largest_paint, empty=empty.largest_paint)
    return [
        Figure(f"{name}: first byte", ours.first_byte, "ms", _against(ours.first_byte, written=limit.first_byte)),
        Figure(f"{name}: first contentful paint", ours.first_paint, "ms", first),
        Figure(f"{name}: largest contentful paint", ours.largest_paint, "ms", largest),
    ]


def _against(ours: float, **others: float) -> dict[str, float]:
    """How many times as much as each; nothing where one is too small to be measured."""
    return {NAMES[name]: ours / each for name, each in others.items() if each > 0}


def _seen(stand: Stand, path: str, url: str = "") -> Seen:
    """The median of a few looks, each by a browser without anything in its cache."""
    all: list[Seen] = []
    for _ in range(ROUNDS):
        with stand.context(url) as context:
            page = context.new_page()
            page.goto(path, wait_until="load")
            all.append(msgspec.convert(page.evaluate(SEEN), Seen, strict=False))
    return Seen(*(median(getattr(each, name) for each in all) for name in Seen.__struct_fields__))


def _recorded(stand: Stand) -> dict[str, Any]:
    """Every answer that these pages need, as bytes."""
    kept: dict[str, Any] = {"/empty": ([("content-type", "text/html")], b64encode(EMPTY.encode()).decode())}
    with httpx.Client(base_url=stand.url, cookies=stand.cookies, trust_env=False, timeout=60) as client:
        wanted = list(stand.pages)
        for path in wanted:
            with client.stream("GET", path, headers=AS_A_BROWSER) as answer:
                assert answer.is_success, f"{path}: {answer.status_code}"
                body = b"".join(answer.iter_raw())
            headers = [(name, value) for name, value in answer.headers.items() if name not in ("date", "server")]
            kept[path] = (headers, b64encode(body).decode())
            if path in stand.pages:
                html = gzip.decompress(body) if answer.headers.get("content-encoding") == "gzip" else body
                wanted += [each for each in _named(html.decode()) if each not in wanted]
    return kept


def _named(html: str) -> list[str]:
    """The files that a page names."""
    parts = html.replace('src="', 'href="').split('href="')
    return [part.split('"')[0] for part in parts if part.startswith("/assets/")]


def _cost(stand: Stand, path: str, server: Process, url: str) -> float:
    """Seconds of the processor for one answer, all of it included; asked for until that can be measured."""
    with httpx.Client(base_url=url, cookies=stand.cookies, trust_env=False, timeout=60) as client:
        client.get(path)
        before = server.cpu()
        count, spent = 0, 0.0
        while count < ASKED and spent < ENOUGH_SECONDS:
            client.get(path, headers=AS_A_BROWSER)
            count, spent = count + 1, server.cpu() - before
        return spent / count


# -- what happens, on the screen


def _changes(stand: Stand) -> list[Figure]:
    """On a page to which nothing happened for a while, and on one to which something happens all the time."""
    figures = []
    with stand.context() as context:
        page = context.new_page()
        page.goto("/runs")
        page.locator("#live[data-own-state=live]").wait_for()
        page.evaluate(HEARD, stand.house.ask("GET", "/events?limit=1")["last"])
        for name, pause in (("on a calm page", CALM_SECONDS), ("on a busy page", BUSY_SECONDS)):
            drawn, heard = _delays(stand, page, pause)
            middle, bare = quantile(drawn, 0.5), quantile(heard, 0.5)
            log_progress(
                f"committed to on the screen, {name}: p50 {middle:.0f} ms, longest {drawn[-1]:.0f}; event {bare:.0f}"
            )
            what = f"a change, committed to on the screen, {name}"
            figures.append(Figure(f"{what}, p50", middle, "ms", _against(middle, event=bare)))
            figures.append(Figure(f"{what}, longest", drawn[-1], "ms"))
    return figures


def _delays(stand: Stand, page: Page, pause: float) -> tuple[list[float], list[float]]:
    """Milliseconds from the commit of a run to its line in the page, and to the event at the browser; sorted."""
    drawn: list[float] = []
    heard: list[float] = []
    for n in range(CHANGES):
        page.wait_for_timeout(pause * 1000)
        id = stand.house.start(task("build", runs_on=NOBODY), title=f"On the screen {n}")
        page.wait_for_function("(id) => window.drawn[id] && window.heard[id]", arg=id, timeout=60_000)
        told = stand.house.ask("GET", f"/runs/{id}")["created_at"].replace("Z", "+00:00")
        committed = datetime.fromisoformat(told).timestamp() * 1000
        drawn.append(page.evaluate("(id) => window.drawn[id]", id) - committed)
        heard.append(page.evaluate("(id) => window.heard[id]", id) - committed)
    return sorted(drawn), sorted(heard)


# -- a log


def _log(stand: Stand) -> list[Figure]:
    with stand.context() as context:
        page = context.new_page()
        page.goto("/sign-in")
        idle = watched(page, min(2.0, LOG_SECONDS))
    ours, cost = _streamed(stand, is_ours=True)
    plain, _ = _streamed(stand, is_ours=False)
    for name, found in (("ours", ours), ("one element a line", plain), ("nothing at all", idle)):
        log_progress(
            f"frames, {name}: p50 {found.at(0.5):.1f}, p95 {found.at(0.95):.1f}, p99 {found.at(0.99):.1f}, longest "
            f"{found.at(1):.0f} ms; {found.dropped:.1f} % dropped; {len(found.tasks)} long tasks; "
            f"CPU of the page {found.busy:.0f} ms/s"
        )
    rate = f"a log of {LINES_A_SECOND:,} lines/s"
    figures = []
    for part, word in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"), (1.0, "longest")):
        ratios = _against(ours.at(part), plain=plain.at(part), empty=idle.at(part))
        figures.append(Figure(f"{rate}: frame time, {word}", ours.at(part), "ms", ratios))
    lag, theirs = quantile(ours.lags, 0.5), quantile(plain.lags, 0.5)
    return [
        *figures,
        Figure(f"{rate}: CPU of the page", ours.busy, "ms/s", _against(ours.busy, plain=plain.busy)),
        Figure(f"{rate}: frames dropped", ours.dropped, "%"),
        Figure(f"{rate}: frames dropped, one element a line", plain.dropped, "%"),
        Figure(f"{rate}: frames dropped, an empty page", idle.dropped, "%"),
        Figure(f"{rate}: long tasks", len(ours.tasks) / ours.seconds, "/s"),
        Figure(f"{rate}: long tasks, one element a line", len(plain.tasks) / plain.seconds, "/s"),
        Figure(f"{rate}: written to on the screen, p50", lag, "ms", _against(lag, plain=theirs)),
        Figure(f"{rate}: CPU of the server", cost * 1e3, "ms/s"),
    ]


def _streamed(stand: Stand, *, is_ours: bool) -> tuple[Frames, float]:
    """Frames while a job writes, and what that costs the server a second."""
    go = stand.house.folder / f"go-{is_ours}"
    script = LINES.format(seconds=LOG_SECONDS + 3, part=LINES_A_SECOND // 100)
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    id = stand.house.start(task("write", f"{wait}; {sys.executable} -c '{script}'"), title=f"A log, {is_ours}")
    stand.house.until(id, "RUNNING")
    with stand.context() as context:
        page = context.new_page()
        if is_ours:
            page.goto(f"/runs/{id}/jobs/write")
            page.locator("delta-log .log-state").get_by_text("following").wait_for()
        else:
            page.goto("/sign-in")
            page.evaluate(PLAIN, f"/api/v1/runs/{id}/jobs/write/log?follow=60")
        go.touch()
        _until_written(page)
        before = stand.server.cpu()
        found = watched(page, LOG_SECONDS)
        cost = (stand.server.cpu() - before) / LOG_SECONDS
    stand.house.until(id)
    return found, cost


def _until_written(page: Page) -> None:
    """Until the first lines are on the screen."""
    page.locator(".log-text, .plain-line").filter(has_text="compiling module").first.wait_for(state="attached")
