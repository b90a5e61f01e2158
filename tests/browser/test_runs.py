"""The list of runs: live, filtered, searched."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.browsing import Person
from tests.browser.house import House, task


def test_a_run_appears_and_turns_green_without_a_reload(ada: Person, house: House) -> None:
    """Somebody who looks at the list sees what others start."""
    page = ada.go("/runs")
    page.evaluate("window.seen = 'the same page'")

    run = house.start(task("build"), title="Appears by itself")

    line = page.locator(f"#run-{run}")
    expect(line.get_by_text("succeeded")).to_be_visible()
    expect(line.get_by_role("link", name="Appears by itself")).to_be_visible()
    assert page.evaluate("window.seen") == "the same page"
    ada.check()


@pytest.mark.parametrize(("filter", "value"), [("project", "shop"), ("branch", "main"), ("person", "bob")])
def test_filters_leave_only_what_fits(ada: Person, house: House, filter: str, value: str) -> None:
    """Each by itself; the address says it, so that it can be sent to others."""
    fits = house.start(task("a"), title=f"fits {filter}", **_of(filter, value))
    other = house.start(task("a"), title=f"other {filter}", **_of(filter, "other"))

    page = ada.go("/runs")
    page.get_by_label(filter.capitalize()).fill(value)
    page.get_by_role("button", name="Filter").click()

    expect(page.locator(f"#run-{fits}")).to_be_visible()
    expect(page.locator(f"#run-{other}")).to_have_count(0)
    assert f"{filter}={value}" in page.url


def _of(filter: str, value: str) -> dict[str, str]:
    return {filter: value}


def test_the_status_filter_and_the_search(ada: Person, house: House) -> None:
    """Both at once; what does not fit says so."""
    run = house.start(task("a"), title="a needle of status")
    house.until(run)

    page = ada.go("/runs?q=NEEDLE+of&status=SUCCEEDED")
    expect(page.locator(f"#run-{run}")).to_be_visible()

    page.get_by_label("Status").select_option("FAILED")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text(re.compile("No run matches"))).to_be_visible()
    ada.check()


def test_the_list_fits_every_screen(ada: Person, house: House) -> None:
    """360 px to 4K, by keys alone, with nothing that keeps anybody out."""
    run = house.start(task("a"), title="A title that is so long that it cannot be on one line of a telephone, " * 2)
    page = ada.go("/runs")
    page.locator(f"#run-{run}").wait_for()

    ada.check_fits()
    page.keyboard.press("j")
    expect(page.locator("tbody th a").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    ada.check()
