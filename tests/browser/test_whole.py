"""A page is whole from its first paint on; one that a part of did not reach makes itself whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.browsing import Person
from tests.browser.house import House

# Everything that a page asks for as it comes: what it names, and what that imports.
PARTS: Final = ("page.js", "live.js", "morph.js", "style.css")
PAUSE: Final = 200_000  # Longer than the longest.


def _documents(page: Page) -> list[str]:
    """The pages that it loads from now on."""
    found: list[str] = []
    page.on("request", lambda each: found.append(each.url) if each.is_navigation_request() else None)
    return found


def _lose(page: Page, name: str, times: int) -> None:
    """A part does not come, so often. Whether it could be had may be asked."""
    left = [times]

    def answer(route: Route) -> None:
        if left[0] and route.request.resource_type != "fetch":
            left[0] -= 1
            route.abort()
        else:
            route.continue_()

    page.route(re.compile(rf"/assets/\w+/{re.escape(name)}$"), answer)


def _pass_time(page: Page, is_over: Callable[[], bool]) -> None:
    """Move the page's clock until the condition holds. The answer to a request may set the next timer."""
    for _ in range(2000):
        if is_over():
            return
        page.clock.run_for(PAUSE)
    raise AssertionError("nothing happened, however much time passed")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_did_not_come_is_had_anew(ada: Person, name: str) -> None:
    """As when a network changes: browsers then break off whatever they are loading."""
    page = ada.page
    documents = _documents(page)
    _lose(page, name, 1)

    ada.go("/runs")

    page.wait_for_function("() => performance.getEntriesByType('navigation')[0].type === 'reload'")
    expect(page.locator("#live")).to_have_attribute("data-own-state", "live")
    assert len(documents) == 2
    assert page.evaluate("sessionStorage.length") == 0
    assert all("ERR_FAILED" in complaint for complaint in ada.complaints), ada.complaints


def test_a_part_of_another_version_is_not_waited_for(ada: Person) -> None:
    """The server was replaced between a page and its parts, and the new one has no such part, but other pages."""
    page = ada.page
    answers = iter([404, 404])  # To the page, and to whether it could be had.
    page.route(
        re.compile(r"/page\.js$"),
        lambda route: route.fulfill(status=status) if (status := next(answers, 0)) else route.continue_(),
    )

    ada.go("/runs")

    expect(page.locator("#live")).to_have_attribute("data-own-state", "live")
    assert next(answers, None) is None


def test_a_server_that_goes_away_behind_a_page_is_waited_for(visitor: Callable[..., Person], tmp_path: Path) -> None:
    """It wrote the page and none of its parts, and nobody's browser says that it cannot be reached."""
    house = House(tmp_path).open(slots=0)
    try:
        person = visitor(of=house).let_in(house.key("ada"))
        page = person.page
        asked: list[str] = []

        def answer(route: Route) -> None:
            if not asked:
                house.kill_server()
            asked.append(route.request.url)
            route.continue_()

        page.route(re.compile("/assets/"), answer)
        page.goto("/runs", wait_until="commit")
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        house.start_server()

        expect(page.locator("#live")).to_have_attribute("data-own-state", "live")
        assert all("ERR_" in complaint for complaint in person.complaints), person.complaints
    finally:
        house.close()


def test_what_somebody_writes_is_not_lost_for_a_part(visitor: Callable[..., Person]) -> None:
    """A form works without any script; the page is whole when it is next loaded."""
    person = visitor()
    page = person.page
    page.clock.install(time=0)
    page.clock.pause_at(1)  # From here on time passes only by `run_for`: not before something is written.
    documents = _documents(page)
    answers: list[str] = []
    page.on("response", lambda response: answers.append(response.url) if "page.js" in response.url else None)
    _lose(page, "page.js", 1)
    person.go("/sign-in")
    page.get_by_label("API key").fill("half a key")

    _pass_time(page, lambda: len(answers) >= 2)
    assert len(documents) == 1
    expect(page.get_by_label("API key")).to_have_value("half a key")

    page.get_by_label("API key").fill("")
    _pass_time(page, lambda: len(documents) >= 2)
    assert len(documents) == 2


def test_a_part_that_never_comes_is_asked_for_less_and_less_often(ada: Person) -> None:
    """Something between us and the browser keeps it from us: a page that can still be read must not flicker."""
    page = ada.page
    page.clock.install(time=0)
    page.clock.pause_at(1)  # From here on time passes only by `run_for`.
    documents = _documents(page)
    _lose(page, "page.js", 1000)
    ada.go("/runs")

    loaded, shortest = [], (250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000)
    for least in shortest:
        loaded.append(len(documents))
        page.clock.run_for(least - 1)
        assert len(documents) == loaded[-1]
        with page.expect_navigation():
            page.clock.run_for(3 * least)
        page.wait_for_load_state()
        expect(page.locator("#live")).to_be_hidden()  # It does not say what it does not know.

    assert loaded == [*range(1, len(shortest) + 1)]


def test_a_theme_holds_for_all_pages(ada: Person) -> None:
    """From the first paint on, whatever the system has."""
    background = "getComputedStyle(document.documentElement).backgroundColor"
    page = ada.go("/runs")
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)

    page.locator("#account summary").click()
    page.get_by_role("button", name="Switch light or dark theme").click()

    dark = page.evaluate(background)
    assert dark != light
    other = ada.new_page()
    other.emulate_media(color_scheme="light")
    other.route(re.compile(r"/assets/\w+/.*\.js$"), lambda route: route.abort())
    other.goto("/queue")
    assert other.evaluate(background) == dark  # No script came but the one that stands in the page itself.
    other.close()

    page.get_by_role("button", name="Switch light or dark theme").click()
    assert page.evaluate(background) == light
