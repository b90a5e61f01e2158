"""The log of a job: all of it stays text, any size stays quick, and it goes on by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Dialog, Locator, Page, expect

from deltaci.core.ids import attempt_id, job_id
from deltaci.runner.log.sections import SectionWriter, new_nonce
from deltaci.storage.blobs.logs import LogStore
from tests.browser.browsing import Person
from tests.browser.house import House, task

NEAR: Final = """([wanted, most]) =>
    Math.abs(Number(document.querySelector(".log-number")?.textContent) - wanted) < most"""
MAX_NODES: Final = 2000
SEARCH_MS: Final = 240_000
BACK_MS: Final = 60_000  # Until a server that was killed is back, and found again.
BIG_BYTES: Final = 100 * 1024 * 1024


def waits(path: Path) -> str:
    """A command that goes on once this file is there."""
    return f"while [ ! -e {path} ]; do sleep 0.05; done"


def finished(house: House, title: str, *steps: str, name: str = "build") -> str:
    """The page of a job that is over."""
    run = house.start(task(name, *steps), title=title)
    house.until(run)
    return f"/runs/{run}/jobs/{name}"


def line(page: Page, text: str) -> Locator:
    """The row that shows this."""
    return page.locator(".log-row", has=page.locator(".log-text", has_text=text))


HOSTILE: Final = (
    r"<img src=/evil onerror=alert(1)><script>alert(2)</script>",
    r"\033]0;a title\007titled \033]8;;http://evil.example/\007a link\033]8;;\007 \033]52;c;ZXZpbA==\007copied",
    r"\033[2J\033[10;10Hmoved \033[6n\033Pq#0\033\\asked",
    r"turned \342\200\256dnuora nul \000 bell \007 zero\342\200\213width",
    r"10%%\r50%%\r100%% done",
    r"\033]0;never ended",
)


def test_whatever_a_job_writes_stays_text(ada: Person, house: House) -> None:
    """No element, no request, no dialog, no link, no title; what would hide or turn text around is seen."""
    writes = "; ".join(f"printf '{each}\\n'" for each in HOSTILE)
    path = finished(house, "Hostile", f"{writes}; exit 1")
    asked: list[str] = []
    dialogs: list[str] = []

    def ask(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    ada.page.on("request", lambda request: asked.append(request.url))
    ada.page.on("dialog", ask)

    page = ada.go(path)

    expect(line(page, "<script>alert(2)</script>")).to_be_visible()
    shown = page.locator(".log-text").all_text_contents()
    at = next(n for n, each in enumerate(shown) if each.startswith("<img"))
    assert shown[at : at + 6] == [
        "<img src=/evil onerror=alert(1)><script>alert(2)</script>",
        "titled a link copied",
        "moved asked",
        "turned U+202Ednuora nul ^@ bell ^G zeroU+200Bwidth",
        "100% done",
        "0;never ended",
    ]
    inside = page.locator("delta-log .log-text")
    assert inside.locator("img, script, a, iframe").count() == 0
    assert inside.locator(".unseen").all_text_contents() == ["U+202E", "^@", "^G", "U+200B"]
    assert dialogs == []
    assert [each for each in asked if "evil" in each] == []
    assert "a title" not in page.title()
    ada.check(has_contrast=True)


def test_colours_are_shown_and_can_be_read(ada: Person, house: House) -> None:
    """Sixteen by classes, others with as much contrast as it takes, from line to line, until the step ends."""
    sixteen = "".join(rf"\033[3{n}mf{n} \033[9{n}mb{n} \033[0m\033[4{n}mon{n}\033[0m " for n in range(8))
    path = finished(
        house,
        "Colours",
        rf"printf '{sixteen}\n'; printf '\033[38;5;16mblack\033[0m \033[38;2;10;10;90mnavy\033[0m "
        r"\033[1;3;4mall three\033[0m \033[7minverse\033[0m \033[2mdim\033[0m \033[31;41mred on red\033[0m\n'; "
        r"printf '\033[32mgreen\nstill green\n'; exit 1",
    )
    page = ada.go(path)

    expect(line(page, "still green").locator("span.fg2")).to_have_text("still green")
    expect(page.locator(".log-text .ansi-bold.ansi-italic.ansi-under")).to_have_text("all three")
    expect(page.locator(".log-text .fg1").first).to_have_text("f1 ")
    worst = page.evaluate(
        """() => {
            const parts = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((each) => Number(each) / 255);
            const light = (text) => {
                const [r, g, b] = parts(text).map((p) => p <= .04045 ? p / 12.92 : ((p + .055) / 1.055) ** 2.4);
                return .2126 * r + .7152 * g + .0722 * b;
            };
            const page = getComputedStyle(document.querySelector("delta-log")).backgroundColor;
            return Math.min(...[...document.querySelectorAll(".log-text span")].map((each) => {
                const style = getComputedStyle(each);
                const below = style.backgroundColor === "rgba(0, 0, 0, 0)" ? page : style.backgroundColor;
                const [low, high] = [light(style.color), light(below)].sort((a, b) => a - b);
                return (high + .05) / (low + .05);
            }));
        }"""
    )
    assert worst >= 4.5
    ada.check(has_contrast=True)


def test_steps_fold(ada: Person, house: House) -> None:
    """What went well is folded, what failed is open; by keys as well, and markers are never seen."""
    steps = (
        "echo the first; echo of two",
        "echo before the end; echo 'fatal: this is why'; echo after; exit 4",
        "echo no",
    )
    page = ada.go(finished(house, "Folding", *steps))

    good = page.get_by_role("button", name=re.compile("echo the first.*succeeded"))
    bad = page.get_by_role("button", name=re.compile("exit 4"))
    expect(good).to_have_attribute("aria-expanded", "false")
    expect(bad).to_have_attribute("aria-expanded", "true")
    expect(line(page, "of two")).to_have_count(0)
    expect(line(page, "this is why")).to_have_class(re.compile("selected"))
    expect(page.locator("delta-log")).not_to_contain_text("::step")

    good.focus()
    page.keyboard.press("Enter")
    expect(line(page, "of two")).to_be_visible()
    expect(good).to_be_focused()
    ada.check()
    page.keyboard.press("z")
    expect(page.locator(".log-step[aria-expanded=true]")).to_have_count(0)
    page.keyboard.press("f")
    expect(line(page, "this is why")).to_have_class(re.compile("selected"))
    expect(bad).to_have_attribute("aria-expanded", "true")
    ada.check_fits()


def test_a_line_has_an_address(ada: Person, house: House) -> None:
    """Click, shift and click, send it to somebody else; or type the number."""
    path = finished(house, "Addresses", "seq 1 5000")
    page = ada.go(f"{path}#L2000")

    expect(page.locator(".log-row.selected .log-number")).to_have_text(["2000"])
    page.locator(".log-number[data-line='2002']").click()
    page.locator(".log-number[data-line='2005']").click(modifiers=["Shift"])
    assert page.url.endswith("#L2003-L2006")

    other = ada.new_page()
    other.goto(page.url)
    expect(other.locator(".log-row.selected .log-number")).to_have_text(["2003", "2004", "2005", "2006"])
    other.keyboard.press("/")
    other.keyboard.type(":4321")
    other.keyboard.press("Enter")
    expect(other.locator(".log-row.selected .log-number")).to_have_text(["4321"])
    assert other.url.endswith("#L4321")
    expect(other.get_by_role("region", name="Log of attempt 1")).to_be_focused()
    assert ada.complaints == []


def test_a_log_is_followed_paused_and_followed_again(ada: Person, house: House) -> None:
    """At the end while nobody scrolls; who scrolls up stays there, whatever comes."""
    gates = [house.folder / f"log-gate-{n}" for n in range(3)]
    steps = "; ".join(
        f"seq {n * 1000 + 1} {n * 1000 + 1000}; printf 'no newline '; {waits(gate)}" for n, gate in enumerate(gates)
    )
    run = house.start(task("talks", f"{steps}; echo the end; exit 3"), title="Followed")
    page = ada.go(f"/runs/{run}/jobs/talks")

    state = page.locator(".log-state")
    expect(line(page, "1000")).to_be_visible()
    expect(state).to_have_text("following")
    gates[0].touch()
    expect(line(page, "2000")).to_be_visible()

    page.get_by_label("Search Log of attempt 1").fill("no end yet")
    expect(page.locator(".log-found")).to_have_text("nothing found")
    page.get_by_label("Search Log of attempt 1").press("Escape")
    page.locator(".log-scroll").hover()
    page.mouse.wheel(0, -100_000)
    expect(state).to_have_text("paused")
    expect(page.locator(".log-text").first).to_contain_text("process executor")
    gates[1].touch()
    expect(page.locator(".log-note")).to_contain_text(re.compile(r"3,00\d lines"))
    expect(page.locator(".log-text").first).to_contain_text("process executor")
    ada.check()

    page.keyboard.press("p")
    expect(line(page, "3000")).to_be_visible()
    expect(state).to_have_text("following")
    page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    page.get_by_role("region", name="Log of attempt 1").focus()
    page.keyboard.press("End")
    expect(state).to_have_text("following")
    gates[2].touch()
    expect(line(page, "the end")).to_be_visible()
    expect(state).to_have_text("complete")
    expect(page.get_by_role("button", name="Follow")).to_be_hidden()
    expect(page.locator("#job-status")).to_contain_text("failed")
    expect(page.get_by_role("button", name="Failure")).to_be_visible()
    ada.check()


def big_log(house: House, run: str, name: str, size: int = BIG_BYTES) -> int:
    """Put a large log in place of what the first attempt of a job wrote; how many lines it has."""
    writer = SectionWriter(new_nonce())
    head = writer.header() + writer.begin(0, "make everything")
    count = (size - len(head)) // 100
    pieces = [head]
    for first in range(0, count, 10_000):
        lines = (
            f"{n:09d} compiling one more module of a large program " for n in range(first, min(count, first + 10_000))
        )
        pieces.append("\n".join(each.ljust(99, ".") for each in lines).encode() + b"\n")
    place = LogStore(house.folder / "logs").path(attempt_id(job_id(run, name), 1), 1)
    place.write_bytes(b"".join(pieces) + writer.end(0, 1, 3.0))
    return count + 3


def nodes(page: Page) -> int:
    """How many elements the page has."""
    return int(page.evaluate("document.querySelectorAll('*').length"))


def test_a_hundred_megabytes_stay_smooth(ada: Person, house: House) -> None:
    """Opened at its end and in its middle, scrolled, searched: only what is seen is fetched, and is an element."""
    path = finished(house, "Large", "exit 1")
    count = big_log(house, path.split("/")[2], "build")
    fetched: list[int] = []
    ada.page.on("response", lambda answer: fetched.append(int(answer.headers.get("content-length", 0))))
    page = ada.go(path)

    expect(page.locator(".log-note")).to_contain_text(f"{count:,} lines, 100.0 MiB")
    expect(line(page, f"{count - 4:09d}")).to_be_visible()
    assert nodes(page) < MAX_NODES
    page.goto("about:blank")
    page.goto(f"{house.url}{path}#L{count // 2}")
    middle = line(page, f"{count // 2 - 3:09d}")
    expect(middle).to_have_class(re.compile("selected"))
    box = page.locator(".log-scroll")
    for share in (0.1, 0.9, 0.5):
        box.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight; }", share)
        page.wait_for_function(NEAR, arg=[share * count, count / 100])
        expect(page.locator(".log-row.unread")).to_have_count(0)
        assert nodes(page) < MAX_NODES
    before = int(page.locator(".log-number").first.inner_text())
    box.hover()
    height = page.locator(".log-row").nth(5).evaluate("(row) => row.getBoundingClientRect().height")
    page.mouse.wheel(0, 10 * height)  # However many lines a pixel of the scroll bar stands for.
    expect(page.locator(".log-number").first).to_have_text(str(before + 10))
    box.focus()
    page.keyboard.press("Home")
    expect(line(page, "000000000")).to_be_visible()
    assert sum(fetched) < 8_000_000, sum(fetched)

    page.keyboard.press("/")
    page.keyboard.type(f"{count - 100:09d} COMPILING")
    page.keyboard.press("Enter")
    hit = line(page, f"{count - 100:09d}").locator("mark")
    expect(hit).to_have_text(f"{count - 100:09d} compiling", timeout=SEARCH_MS)
    expect(page.locator(".log-found")).to_have_text("1 of 1")
    assert nodes(page) < MAX_NODES
    ada.check()


def test_search_goes_from_hit_to_hit(ada: Person, house: House) -> None:
    """Enter and Shift with Enter, around the ends; steps that are folded open; nothing found is said."""
    steps = ("seq 1 300; echo A Needle; seq 301 600", "echo \033[31mnee\033[0mdle; echo '<needle>'; exit 1")
    page = ada.go(finished(house, "Searched", *steps))
    found = page.locator(".log-found")

    page.get_by_label("Search Log of attempt 1").fill("needle")
    expect(found).to_have_text(re.compile(r"^\d of \d+$"))
    total = int((found.text_content() or "").split()[-1])
    seen = []
    for _ in range(total):
        page.get_by_label("Search Log of attempt 1").press("Enter")
        seen.append(page.locator(".log-row.current, .log-head:has(mark)").first.inner_text())
    assert any("A Needle" in each for each in seen)
    expect(found).to_have_text(re.compile(rf"^\d of {total}$"))
    page.get_by_label("Search Log of attempt 1").press("Shift+Enter")
    expect(page.locator("mark").first).to_be_visible()
    ada.check()
    page.get_by_label("Search Log of attempt 1").fill("no such thing")
    expect(found).to_have_text("nothing found")
    page.get_by_label("Search Log of attempt 1").press("Escape")
    expect(found).to_have_text("")


def test_long_lines_are_scrolled_or_wrapped(ada: Person, house: House) -> None:
    """A page never becomes wider; a line of a megabyte costs no more than what is shown of it."""
    long = "head -c 1000000 /dev/zero | tr '\\0' x; echo"
    page = ada.go(
        finished(house, "Long lines", f"seq 1 50; {long}; echo ' behind it'; for i in 1 2 3; do {long}; done; exit 1")
    )

    expect(page.locator(".log-text .unseen").first).to_contain_text("more; see the raw log")
    ada.check_fits()
    page.get_by_role("button", name="Wrap").click()
    expect(page.get_by_role("button", name="Wrap")).to_have_attribute("aria-pressed", "true")
    box = page.locator(".log-scroll")
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    box.focus()
    page.keyboard.press("Home")
    expect(page.locator(".log-text", has_text=re.compile("^1$"))).to_be_in_viewport()
    page.keyboard.press("End")
    expect(page.locator(".log-text .unseen").last).to_be_in_viewport()
    page.set_viewport_size({"width": 640, "height": 1400})  # Lines are twice as high: the end is still the end,
    expect(page.locator(".log-text .unseen").last).to_be_in_viewport()
    page.keyboard.press("PageUp")  # until somebody leaves it.
    expect(page.locator(".log-text .unseen").last).not_to_be_in_viewport()
    ada.check()


def test_who_follows_sees_the_last_line(ada: Person, house: House, tmp_path: Path) -> None:
    """Also when it is not the stream that brings it: here no stream ever comes, and the log is only looked at."""
    gate = tmp_path / "gate"
    run = house.start(task("talks", f"seq 1 500; {waits(gate)}; seq 501 900; exit 1"))
    ada.page.route("**/log?*follow=*", lambda route: route.abort())
    page = ada.go(f"/runs/{run}/jobs/talks")
    expect(line(page, "500")).to_be_visible()

    gate.touch()
    house.until(run)

    expect(page.locator(".log-state")).to_have_text("complete", timeout=BACK_MS)
    expect(line(page, "900")).to_be_visible()
    ada.complaints.clear()  # The browser's own, about the stream.


def test_a_server_that_is_killed_is_missed_and_found_again(visitor: Callable[..., Person], tmp_path: Path) -> None:
    """The log goes on from the byte where it was: no gap, nothing double, without a reload."""
    house = House(tmp_path).open(slots=1)
    try:
        gate, other = tmp_path / "gate", tmp_path / "other"
        ada = visitor(house).let_in(house.key("ada"))
        run = house.start(task("talks", f"seq 1 500; {waits(gate)}; seq 501 900; {waits(other)}; seq 901 1000; exit 1"))
        page = ada.go(f"/runs/{run}/jobs/talks")
        expect(line(page, "500")).to_be_visible()
        page.evaluate("window.seen = 'the same page'")

        house.kill_server()
        expect(page.locator(".log-state")).to_contain_text("away", timeout=BACK_MS)
        gate.touch()
        house.start_server()

        expect(line(page, "900")).to_be_visible(timeout=BACK_MS)
        expect(page.locator(".log-state")).to_have_text("following", timeout=BACK_MS)
        other.touch()
        expect(line(page, "1000")).to_be_visible(timeout=BACK_MS)
        house.until(run)
        expect(page.locator(".log-state")).to_have_text("complete")
        assert page.evaluate("window.seen") == "the same page"
        assert every_line(page) == [str(n) for n in range(1, 1001)]
    finally:
        house.close()


def every_line(page: Page) -> list[str]:
    """All numbers that the log shows, from its first row to its last one."""
    found: dict[int, str] = {}
    page.locator(".log-scroll").focus()
    page.keyboard.press("Home")
    expect(page.locator(".log-text").first).to_contain_text("process executor")
    count = int(page.evaluate("document.querySelector('delta-log').view.source.lines"))
    while True:
        expect(page.locator(".log-row.unread")).to_have_count(0)
        rows: list[list[Any]] = page.locator(".log-row:not(.log-head)").evaluate_all(
            "(rows) => rows.map((row) => [Number(row.children[0].textContent), row.children[1].textContent])"
        )
        found.update((number, text) for number, text in rows)
        if max(found) >= count - 1:
            return [text for _, text in sorted(found.items()) if text.isdecimal()]
        page.keyboard.press("PageDown")
        expect(page.locator(f".log-number[data-line='{max(found)}']")).to_have_count(1)


@pytest.mark.parametrize("link", ["Download", "Raw"])
def test_the_whole_log_can_be_taken_away(ada: Person, house: House, link: str) -> None:
    """The same bytes, as something to save, or as nothing but text."""
    path = finished(house, f"Taken by {link}", "printf '<b>\\000\\377 bytes\\n'")
    page = ada.go(path)
    run = path.split("/")[2]
    wanted = house.ask("GET", f"/runs/{run}/jobs/build/attempts/1/log")
    address = page.get_by_role("link", name=link, exact=True).get_attribute("href") or ""

    answer = page.request.get(address)

    assert answer.body() == wanted
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    if link == "Download":
        assert answer.headers["content-disposition"].startswith('attachment; filename="build-1.log"')
        with page.expect_download() as saved:
            page.get_by_role("link", name=link, exact=True).click()
        assert Path(saved.value.path()).read_bytes() == wanted
