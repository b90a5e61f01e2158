"""Pages stay true, whatever happens to the network, the server and whoever looks, and are cheap when nothing does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest
from playwright.sync_api import APIResponse, Page, Response, Route, expect

from deltaci.server.web.live import APART_SECONDS
from tests.browser.browsing import Person
from tests.browser.house import House, task
from tests.support.plain_http import NO_TLS

# Streams are counted, and whether anybody looks can be told.
WATCHED: Final = """
window.streams = [];
window.EventSource = class extends EventSource {
  constructor(...all) { super(...all); window.streams.push(this); }
};
window.show = (isShown) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => !isShown });
  document.dispatchEvent(new Event("visibilitychange"));
};
"""
OPEN: Final = "window.streams.filter((each) => each.readyState === EventSource.OPEN).length"
NONE_LEFT: Final = "window.streams.every((each) => each.readyState === EventSource.CLOSED)"


@pytest.fixture
def watched(visitor: Callable[..., Person], house: House) -> Person:
    """Somebody whose streams are counted."""
    person = visitor()
    person.context.add_init_script(WATCHED)
    return person.let_in(house.key("ada"))


def _live(page: Page) -> None:
    """Until it hears of what happens."""
    page.wait_for_function(f"() => {OPEN} === 1")
    expect(page.locator("#live")).to_have_attribute("data-own-state", "live")


def _looks(page: Page) -> list[Response]:
    """The answers to the looks that it takes from now on."""
    found: list[Response] = []
    page.on("response", lambda answer: found.append(answer) if "delta-live" in answer.request.headers else None)
    return found


def test_an_idle_page_costs_nothing(watched: Person) -> None:
    """The first look already knows what it has: there is no second copy of a page that did not change."""
    page = watched.page
    looks = _looks(page)
    with page.expect_response(lambda answer: "delta-live" in answer.request.headers):
        watched.go("/runs?q=nobody-has-a-run-of-this-name")
    _live(page)

    assert {look.status for look in looks} == {304}
    assert looks[0].request.sizes()["responseBodySize"] == 0
    watched.check(is_accessible=False)


def test_a_hidden_page_holds_no_connection_and_catches_up(watched: Person, house: House) -> None:
    """Nobody sees it, so nobody has to know; whoever comes back sees what is so. It is the same with pages that a
    browser keeps for the way back."""
    page = watched.go("/runs")
    _live(page)

    for n, (leave, come_back) in enumerate(
        (
            ("window.show(false)", "window.show(true)"),
            (
                "dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))",
                "dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))",
            ),
        )
    ):
        page.evaluate(leave)
        assert page.evaluate(NONE_LEFT)
        run = house.start(task("a"), title=f"While nobody looked, {n}")
        house.until(run)
        assert page.locator(f"#run-{run}").count() == 0

        page.evaluate(come_back)
        expect(page.locator(f"#run-{run}").get_by_text("succeeded")).to_be_visible()
        _live(page)


def test_eight_tabs_side_by_side_all_stay_true(watched: Person, house: House) -> None:
    """A browser has six connections to a server. All of these are seen, so not all may hold one."""
    pages = [watched.page, *(watched.new_page() for _ in range(7))]
    for page in pages:
        page.goto("/runs")

    run = house.start(task("a"), title="Seen in eight tabs")

    for page in pages:
        expect(page.locator(f"#run-{run}").get_by_text("succeeded")).to_be_visible()
        expect(page.locator("#live")).to_have_attribute("data-own-state", "live")
    assert sum(page.evaluate("window.streams.some((each) => each.readyState !== 2)") for page in pages) <= 3
    # One goes, another one takes its seat.
    first = next(page for page in pages if page.evaluate(f"{OPEN} === 1"))
    waiting = [page for page in pages if page.evaluate("window.streams.length === 0")]
    assert waiting
    first.close()
    expect(waiting[0].locator(f"#run-{run}")).to_be_visible()
    watched.check(is_accessible=False)


def test_an_older_answer_never_writes_over_a_newer_one(watched: Person, house: House) -> None:
    """A slow network holds a look back: there is no second one before it is there, and afterwards there is."""
    page = watched.go("/runs")
    _live(page)
    held: list[tuple[Route, APIResponse]] = []
    looks = 0

    def hold(route: Route) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/runs", hold)
    with page.expect_request(lambda request: "delta-live" in request.headers):
        run = house.start(task("a"), title="Behind a slow network")
    house.until(run)
    with page.expect_event("console", lambda message: message.text == "four hints later"):
        page.evaluate("setTimeout(() => console.log('four hints later'), 1000)")
    assert looks == 1

    route, answer = held[0]
    route.fulfill(response=answer)

    expect(page.locator(f"#run-{run}").get_by_text("succeeded")).to_be_visible()


def test_who_is_offline_is_told_so_and_comes_back(watched: Person, house: House) -> None:
    """Nothing of the page is lost meanwhile."""
    page = watched.go("/runs")
    _live(page)

    watched.context.set_offline(True)
    expect(page.locator("#live")).to_have_text("reconnecting")
    run = house.start(task("a"), title="While offline")
    house.until(run)
    watched.context.set_offline(False)

    expect(page.locator(f"#run-{run}").get_by_text("succeeded")).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")


def test_a_server_that_restarts_is_waited_for(visitor: Callable[..., Person], tmp_path: Path) -> None:
    """The page stays as it is, says that it is not live, and goes on by itself."""
    house = House(tmp_path).open(slots=0)
    try:
        person = visitor(of=house).let_in(house.key("ada"))
        page = person.go("/runs")
        page.evaluate("window.seen = 'the same page'")
        expect(page.locator("#live")).to_have_attribute("data-own-state", "live")

        house.kill_server()
        expect(page.locator("#live")).to_have_text("reconnecting")
        house.start_server()

        run = house.start(task("a"), title="After the restart")
        expect(page.locator(f"#run-{run}")).to_be_visible()
        expect(page.locator("#live")).to_have_text("live")
        assert page.evaluate("window.seen") == "the same page"
        assert all("ERR_" in complaint for complaint in person.complaints), person.complaints
    finally:
        house.close()


def test_a_page_that_is_refused_asks_less_and_less_often(watched: Person) -> None:
    """A thousand of them must not come back in one moment, nor again and again: every pause is a random part of one
    that grows."""
    page = watched.page
    page.clock.install()
    page.route(re.compile(r"/live(\?|$)"), lambda route: route.fulfill(status=503, body=""))
    page.route("**/runs", lambda route: route.abort() if "delta-live" in route.request.headers else route.continue_())
    page.goto("/runs")

    tries = []
    for _ in range(40):
        page.clock.run_for(2000)
        page.wait_for_function(f"() => {NONE_LEFT}")
        tries.append(page.evaluate("window.streams.length"))

    # In 80 s: parts of 2, 4, 8, 8, 8 … seconds.
    assert 8 <= tries[-1] <= 45, tries
    assert any(tries[n] == tries[n + 1] for n in range(len(tries) - 1)), tries
    expect(page.locator("#live")).to_have_text("reconnecting")


def test_who_is_signed_out_elsewhere_is_asked_to_sign_in(watched: Person) -> None:
    """And comes back to the page afterwards."""
    page = watched.go("/runs?status=FAILED")
    _live(page)
    other = watched.new_page()
    other.goto("/runs")
    other.locator("#account summary").click()
    other.get_by_role("button", name="Sign out").click()
    other.wait_for_url("**/sign-in")

    page.evaluate("window.show(false); window.show(true)")

    page.wait_for_url("**/sign-in?to=*")
    assert "FAILED" in page.url


def test_a_new_version_is_loaded_but_not_over_what_somebody_writes(watched: Person) -> None:
    """Scripts of one version must not work on pages of another."""
    page = watched.go("/runs")
    _live(page)
    page.evaluate("window.seen = 'the same page'")
    page.evaluate("""() => {
      const form = document.createElement("form");
      form.setAttribute("method", "post");
      form.append(Object.assign(document.createElement("textarea"), { id: "note" }));
      document.body.append(form);
    }""")
    page.locator("#note").fill("half a letter")
    is_updated = True

    def answer(route: Route) -> None:
        nonlocal is_updated
        is_look = "delta-live" in route.request.headers
        is_updated = is_updated and is_look
        if not is_updated:
            route.continue_()
            return
        headers = {name: value for name, value in route.request.headers.items() if name != "if-none-match"}
        text = route.fetch(headers=headers).text()
        route.fulfill(content_type="text/html", body=re.sub('data-key="[0-9a-f]+"', 'data-key="new"', text, count=1))

    page.route("**/runs", answer)
    page.evaluate("window.show(false); window.show(true)")
    expect(page.locator("#live")).to_contain_text("out of date")
    expect(page.locator("#note")).to_have_value("half a letter")
    assert page.evaluate("window.seen") == "the same page"

    page.locator("#note").fill("")
    with page.expect_navigation():
        page.evaluate("window.show(false); window.show(true)")
    assert page.evaluate("window.seen ?? 'another page'") == "another page"


def test_what_no_hint_is_given_of_is_found_by_a_slow_look(watched: Person) -> None:
    """Not all that a page shows is in the log of events; looks come every 15 s or so, and not in step."""
    page = watched.page
    page.clock.install()
    page.goto("/runs")
    _live(page)
    looks = _looks(page)

    with page.expect_response(lambda answer: "delta-live" in answer.request.headers):
        page.clock.run_for(19_000)

    assert looks


def test_a_page_whose_form_is_on_its_way_does_not_look_at_what_the_form_removes(watched: Person, house: House) -> None:
    """The template is gone and the answer is not there yet: the page stays as it is. If none ever comes, it goes on."""
    house.ask("PUT", "/templates/web-leaving", {"plan": {"jobs": [task("a")]}}, token=house.key("ada"))
    page = watched.page
    page.clock.install()
    watched.go("/templates/web-leaving")
    _live(page)
    looks = _looks(page)
    page.evaluate("addEventListener('submit', (event) => event.preventDefault())")  # As long as it takes, or longer.

    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    assert page.evaluate(NONE_LEFT)
    house.ask("DELETE", "/templates/web-leaving", token=house.key("ada"))
    page.clock.run_for(4_000)
    assert looks == []

    with page.expect_response(lambda answer: "delta-live" in answer.request.headers) as look:
        page.clock.run_for(8_000)
    assert look.value.status == 404


@contextmanager
def _signed_in(house: House) -> Iterator[httpx.Client]:
    """Somebody without a browser."""
    with httpx.Client(verify=NO_TLS, base_url=house.url, trust_env=False, timeout=60) as client:
        answer = client.post("/sign-in", data={"key": house.key("ada")}, headers={"Origin": house.url})
        assert answer.status_code == 303
        yield client


def test_hints_are_small_and_few_however_much_happens(house: House) -> None:
    """Six runs of five jobs are hundreds of events; hints come every quarter of a second at the most."""
    with _signed_in(house) as client:
        with client.stream("GET", "/live", timeout=httpx.Timeout(60, read=10)) as stream:
            began = time.monotonic()
            runs = [house.start(*(task(f"j{n}") for n in range(5)), title="Much happens") for _ in range(6)]
            for run in runs:
                house.until(run)
            heard = b""
            with suppress(httpx.ReadTimeout):  # Nothing more happens.
                for part in stream.iter_raw():
                    heard += part
            took = time.monotonic() - began
        events = sum(len(house.ask("GET", f"/runs/{run}/events?limit=1000")["events"]) for run in runs)
        hints = heard.count(b"event: changed\n")
        assert events > 300
        assert 2 <= hints <= took / APART_SECONDS + 3
        assert len(heard) <= 30 * (hints + took / 15 + 1)


def test_a_stream_is_only_for_what_somebody_may_see(house: House) -> None:
    """A run that is not there, or of somebody else, has no hints."""
    with _signed_in(house) as client:
        assert client.get("/live", params={"run": "r-nobody"}).status_code == 404
    with httpx.Client(verify=NO_TLS, base_url=house.url, trust_env=False) as stranger:
        assert stranger.get("/live").status_code == 303
