"""What waits and why, what is under way, and both without a reload."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.browsing import PATIENCE_MS, Person
from tests.browser.house import House, gate, task

SOON: Final = PATIENCE_MS


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house with one runner that does one thing at a time: so it is known what waits."""
    house = House(tmp_path_factory.mktemp("small")).open(slots=1)
    yield house
    house.close()


def until(path: Path) -> str:
    """A step that goes on until there is this file."""
    return f"while [ ! -e {shlex.quote(str(path))} ]; do sleep 0.1; done"


def waits(page: Page, id: str) -> Locator:
    """One that waits, by its id: of an attempt, a job or a run."""
    return page.locator(f'[id="waits-{quote(id, safe="")}"]')


def reason(page: Page, id: str) -> Locator:
    """What some of them wait for."""
    return page.locator(f'[id="reason-{quote(id, safe="")}"]')


def test_each_kind_of_reason_is_told_and_goes_away(small: House, visitor: Callable[..., Person]) -> None:
    """Busy, a label that nobody has, a group, people, other jobs: with links, numbers, and without a reload."""
    ada = visitor(small).let_in(small.key("ada"))
    go = small.folder / "kinds.go"
    page = ada.go("/queue")
    expect(page.get_by_text("The queue is empty and no job is running.")).to_be_visible()
    ada.check()
    page.evaluate("window.seen = 'the same page'")

    first = small.start(task("holds", until(go), group="deploy"), title="The <i>first</i>", project="shop")
    expect(page.locator("#under-way").get_by_role("link", name="holds")).to_be_visible(timeout=SOON)
    expect(page.locator("#under-way").get_by_role("link", name="r1")).to_have_attribute("href", "/workers/r1")
    expect(page.get_by_text("The queue is empty: every ready job has started.")).to_be_visible()

    second = small.start(
        task("busy", priority=7),
        task("grouped", group="deploy", needs=[]),
        *(task(f"gpu-{n}", runs_on=["gpu", "large"], needs=[], allow_failure=True) for n in range(2)),
        gate("people", [], role="ops"),
        task("after", needs=["busy", "people"]),
        title="Waits for much",
        project="app",
    )
    expect(waits(page, f"{second}/busy.1")).to_contain_text("the only matching worker is busy", timeout=SOON)
    expect(waits(page, f"{second}/busy.1")).to_contain_text("7")
    expect(waits(page, f"{second}/grouped.1")).to_contain_text(
        "waits for group deploy, which job holds of run", ignore_case=True
    )
    expect(waits(page, f"{second}/gpu-0.1")).to_contain_text("lacks gpu and large")
    expect(waits(page, f"{second}/people")).to_contain_text("approval by a person with the role ops")
    expect(waits(page, f"{second}/after")).to_contain_text("Waits for busy and people.")
    expect(reason(page, "no_fitting_worker:gpu,large").locator(".how-many")).to_have_text("2")
    expect(reason(page, "no_fitting_worker:gpu,large")).to_contain_text(
        "wait for a worker with the labels gpu and large"
    )
    link = reason(page, "waiting_for_group:deploy").get_by_role("link", name="Job holds")
    expect(link).to_have_attribute("href", f"/runs/{first}/jobs/holds")
    expect(page.locator("#waiting-count")).to_have_text("6 waiting")
    expect(page.locator("#under-way")).to_contain_text("The <i>first</i>")
    assert page.evaluate("window.seen") == "the same page"
    ada.check()
    ada.check_fits()

    reason(page, "no_fitting_worker:gpu,large").get_by_role("link", name="show").click()
    expect(page.locator("#waiting-count")).to_have_text("2 waiting (filtered)")
    expect(waits(page, f"{second}/busy.1")).to_have_count(0)
    ada.check()
    page.get_by_role("link", name="show all").first.click()
    expect(waits(page, f"{second}/busy.1")).to_be_visible()

    page.evaluate("window.seen = 'once more'")
    go.touch()
    small.ask("POST", f"/runs/{second}/approve", {}, token=small.key("olga", "approve", roles=("ops",)))
    expect(waits(page, f"{second}/people")).to_have_count(0, timeout=SOON)
    expect(waits(page, f"{second}/after")).to_have_count(0, timeout=SOON)
    # The optional jobs, which no worker can run, end with the last required one.
    expect(page.get_by_text("The queue is empty and no job is running.")).to_be_visible(timeout=SOON)
    assert page.evaluate("window.seen") == "once more"


def test_a_time_that_must_come_is_told(small: House, visitor: Callable[..., Person]) -> None:
    """What failed and is tried again later says when; so does what is not heard of yet."""
    ada = visitor(small).let_in(small.key("ada"))
    again = {"max_attempts": 2, "base_delay_seconds": 3000}
    run = small.start(task("later", "echo fatal: No space left on device; exit 1", retry=again), title="Again")

    page = ada.go("/queue?reason=retry_scheduled")
    line = waits(page, f"{run}/later")
    expect(line).to_contain_text("Waits for a retry: attempt 2 of 2 starts at", timeout=SOON)
    expect(line).to_contain_text(re.compile(r"ready in \d+ (min|hr)"))
    expect(line).not_to_contain_text("(in ")
    ada.check()
    small.ask("POST", f"/runs/{run}/cancel", {})
    expect(page.get_by_text("No waiting job matches.")).to_be_visible(timeout=SOON)


def test_filters_and_pages(ada: Person, house: House) -> None:
    """By label and project, in the address; a long queue goes on on the next page."""
    jobs = [task(f"long-{n:02}", runs_on=["nobody-at-all"], needs=[]) for n in range(55)]
    run = house.start(*jobs, title="A very long " + "queue " * 20, project="long-project")
    house.start(task("short", runs_on=["nobody-too"]), project="short-project")

    page = ada.go("/queue")
    page.get_by_label("Label").fill("nobody-at-all")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#waiting-count")).to_have_text("55 waiting (filtered)")
    expect(waits(page, f"{run}/long-00.1")).to_be_visible()
    expect(page.get_by_role("link", name="short")).to_have_count(0)
    assert "label=nobody-at-all" in page.url
    ada.check_fits()
    page.get_by_role("link", name="more").click()
    expect(waits(page, f"{run}/long-54.1")).to_be_visible()
    expect(waits(page, f"{run}/long-00.1")).to_have_count(0)
    page.get_by_role("link", name="first").click()
    expect(waits(page, f"{run}/long-00.1")).to_be_visible()

    ada.go("/queue?project=short-project")
    expect(page.locator("#waiting-count")).to_have_text("1 waiting (filtered)")
    ada.go("/queue?label=none-of-these")
    expect(page.get_by_text("No waiting job matches.")).to_be_visible()
    expect(page.get_by_role("link", name="The whole queue")).to_have_attribute("href", "/queue")
    ada.go("/queue")
    page.keyboard.press("j")
    expect(page.locator("tbody th a").first).to_be_focused()
    ada.check()
    house.ask("POST", f"/runs/{run}/cancel", {})


def test_who_may_only_look_sees_it_and_others_see_nothing(house: House, visitor: Callable[..., Person]) -> None:
    """A reader of the tenant; and somebody of another one."""
    run = house.start(task("secret", runs_on=["nobody-ever"]), title="A secret of the tenant")
    eve, stranger = visitor().let_in(house.key("eve", "read")), visitor().let_in(house.key("x", tenant="lonely"))

    page = eve.go("/queue?label=nobody-ever")
    expect(waits(page, f"{run}/secret.1")).to_contain_text("A secret of the tenant")
    eve.check()
    other = stranger.go("/queue")
    expect(other.get_by_text("The queue is empty and no job is running.")).to_be_visible()
    assert "secret" not in other.locator("main").inner_text()
    stranger.check_fits()
