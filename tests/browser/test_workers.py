"""The fleet: who comes and goes, what people do with it, how a runner is let in. Each case has workers of its own."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.browsing import PATIENCE_MS, Person
from tests.browser.house import PATIENCE_SECONDS, House, task

SOON: Final = PATIENCE_MS  # A runner has to start first.


@contextmanager
def runner(house: House, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A runner that is gone behind the case."""
    process = house.start_runner(name, *words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def line(page: Page, name: str) -> Locator:
    """A worker in the list."""
    return page.locator(f"#worker-{name}")


def state(page: Page, name: str, word: str) -> None:
    """Wait until the list says so of this worker."""
    expect(line(page, name).locator(".badge")).to_have_text(word, timeout=SOON)


def do(page: Page, button: str) -> Locator:
    """Press the button that asks, and give its dialog."""
    page.get_by_role("button", name=button).click()
    return page.get_by_role("dialog")


def test_a_worker_comes_and_goes_without_a_reload(ada: Person, house: House) -> None:
    """Its line is there as soon as it is, and leads on; when it left, it is among those that are gone."""
    page = ada.go("/workers")
    page.evaluate("window.seen = 'the same page'")

    with runner(house, "comes-1", "--slots", "3", "--labels", "linux,comes"):
        state(page, "comes-1", "ready")
        expect(line(page, "comes-1")).to_contain_text("0 of 3")
        expect(line(page, "comes-1").locator(".label")).to_have_text(["linux", "comes"])
        expect(line(page, "comes-1")).to_contain_text("just now")
        ada.check()
        ada.check_fits()

    expect(line(page, "comes-1")).to_have_count(0, timeout=SOON)
    assert page.evaluate("window.seen") == "the same page"
    page.get_by_role("link", name="Gone").click()
    expect(line(page, "comes-1")).to_contain_text("It left by itself.")
    ada.check()
    ada.check_fits()


def test_what_a_worker_does_is_seen_and_leads_there(ada: Person, house: House) -> None:
    """In the list and on its page; when the job is over, both say so by themselves."""
    go, other = house.folder / "does.go", ada.new_page()
    with runner(house, "does-1", "--labels", "does"):
        run = house.start(task("work", _until(go), runs_on=["does"]), title="Something <b>long</b>")
        page = ada.go("/workers?label=does")
        state(page, "does-1", "busy")
        other.goto("/workers/does-1")

        expect(line(page, "does-1").get_by_role("link", name="work")).to_have_attribute(
            "href", f"/runs/{run}/jobs/work"
        )
        expect(line(page, "does-1")).to_contain_text(re.compile(r"work of Something <b>long</b> \d"))
        expect(other.locator("#does").get_by_role("link", name="Something <b>long</b>")).to_be_visible()
        expect(other.locator("#about")).to_contain_text("1 of 1 in use")
        ada.page = other
        ada.check()
        ada.check_fits()
        go.touch()

        state(page, "does-1", "ready")
        expect(other.locator("#does")).to_contain_text("No jobs at the moment.")
        expect(other.locator("#worker-state")).to_have_text("ready")


def test_drained_here_explained_there_and_resumed(ada: Person, house: House, visitor: Callable[..., Person]) -> None:
    """Somebody else sees in the queue why a job waits, and sees it go once the worker is resumed."""
    bob = visitor().let_in(house.key("bob", "run"))
    with runner(house, "drain-1", "--labels", "drain"):
        page = ada.go("/workers?q=drain-1")
        state(page, "drain-1", "ready")
        dialog = do(page, "Drain")
        expect(dialog).to_contain_text("takes no new ones until somebody resumes it")
        ada.check()
        dialog.get_by_label("Reason").fill("a new disk, <i>soon</i>")
        dialog.get_by_role("button", name="Drain").click()

        expect(page.locator("#said")).to_contain_text("drain-1 takes no new jobs.")
        assert page.url.endswith("/workers?q=drain-1")
        state(page, "drain-1", "drained")
        expect(line(page, "drain-1")).to_contain_text("“a new disk, <i>soon</i>”")
        expect(line(page, "drain-1").get_by_role("button", name="Drain")).to_have_count(0)

        queue = bob.go("/queue?label=drain")
        run = house.start(task("patient", runs_on=["drain"]))
        waits = queue.locator("table", has_text="Waiting jobs")
        expect(waits).to_contain_text("worker drain-1 matches, but is drained since", timeout=SOON)
        expect(queue.locator("#reasons").get_by_role("link", name="Worker drain-1")).to_be_visible()

        page = ada.go("/workers/drain-1")
        expect(page.locator("#notice")).to_contain_text("It is drained")
        ada.check()
        do(page, "Resume").get_by_role("button", name="Resume").click()
        expect(page.locator("#said")).to_contain_text("drain-1 takes jobs again.")
        assert house.until(run)["status"] == "SUCCEEDED"
        expect(queue.get_by_text("No waiting job matches.")).to_be_visible(timeout=SOON)
        bob.check()


def test_a_removed_worker_goes_and_stays_out(ada: Person, house: House) -> None:
    """Nothing happens to it before somebody is sure; its runner ends."""
    process = house.start_runner("remove-1")
    page = ada.go("/workers?q=remove-1")
    state(page, "remove-1", "ready")

    do(page, "Remove").get_by_role("button", name="Not now").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    state(page, "remove-1", "ready")
    page.get_by_role("link", name="remove-1").click()
    do(page, "Remove").get_by_role("button", name="Remove").click()

    expect(page.locator("#said")).to_contain_text("remove-1 shuts down")
    expect(page.locator("#worker-state")).to_have_text("gone", timeout=SOON)
    expect(page.locator("#notice")).to_contain_text("Somebody removed it.")
    for button in ("Drain", "Resume", "Remove"):
        expect(page.get_by_role("button", name=button)).to_have_count(0)
    assert process.wait(PATIENCE_SECONDS) == 3
    ada.check()
    ada.check_fits()


def test_a_worker_that_dies_is_silent_and_then_gone(tmp_path: Path, visitor: Callable[..., Person]) -> None:
    """Nobody says so but the silence; whoever looks sees it without a reload."""
    here = House(tmp_path, "--health-seconds", "1", "--max-silent-seconds", "20", "--lease-ttl", "5")
    here.open(slots=0)
    try:
        process = here.start_runner("dies-1")
        here.start(task("endless", _until(tmp_path / "never")), title="Endless")
        page = visitor(here).let_in(here.key("ada")).go("/workers")
        state(page, "dies-1", "busy")
        page.evaluate("window.seen = 'the same page'")

        process.kill()
        process.wait()

        state(page, "dies-1", "silent")
        expect(page.locator("#count-silent")).to_contain_text("1")
        expect(page.get_by_text("There are no workers")).to_be_visible(timeout=2 * SOON)
        assert page.evaluate("window.seen") == "the same page"
        page.get_by_role("link", name="Gone").click()
        expect(line(page, "dies-1")).to_contain_text("It sent no heartbeat for too long.")
    finally:
        (tmp_path / "never").touch()
        here.close()


def test_a_runner_is_let_in_with_a_token_that_is_shown_once(ada: Person, house: House) -> None:
    """The command is the one to run: it is run, word by word. Whoever looks again sees a form."""
    page = ada.go("/workers")
    page.get_by_role("link", name="Add a runner").click()
    ada.check()
    ada.check_fits()
    page.get_by_label("Name of the runner").fill("let in-1")
    page.get_by_label("Labels").fill("let, in")
    page.get_by_label("Slots").fill("2")
    page.get_by_role("button", name="Create token").click()

    command = page.get_by_role("textbox", name="The same on one line").input_value()
    token = page.get_by_role("textbox", name="Token only").input_value()
    assert shlex.split(page.locator("pre").inner_text().replace("\\\n", "")) == shlex.split(command)
    ada.check()
    ada.check_fits()
    page.reload()
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    assert token not in page.content()

    told, *words = shlex.split(command)
    assert told == f"DELTACI_TOKEN={token}"
    assert words == ["deltaci", "runner", "--server", house.url, "--slots", "2", "--labels", "let,in"]
    process = house.begin(*words[1:], "--work", str(house.folder / "added"), name="added", DELTACI_TOKEN=token)
    ada.go("/workers?label=let")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=SOON)
    expect(page.locator("tbody tr")).to_contain_text("0 of 2")
    page.get_by_role("link", name="let in-1").click()
    expect(page.locator("#worker-state")).to_have_text("ready")
    page.get_by_role("link", name="New token").click()
    expect(page.get_by_label("Name of the runner")).to_have_value("let in-1")
    expect(page.get_by_label("Replace the credential of a registered runner")).to_be_checked()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_SECONDS)


def test_a_token_is_refused_with_what_was_typed(ada: Person) -> None:
    """Nothing of it is lost, and the message says what to change."""
    page = ada.go("/runners/new")
    page.get_by_label("Name of the runner").fill("no/slash")
    page.get_by_label("Labels").fill("gpu")
    page.get_by_role("button", name="Create token").click()

    expect(page.get_by_role("alert")).to_contain_text("No token was created: look at Name of the runner.")
    expect(page.locator("#name-problem")).to_contain_text("'no/slash' is not valid here; expected 1 to 100 characters")
    expect(page.get_by_label("Name of the runner")).to_have_value("no/slash")
    expect(page.get_by_label("Labels")).to_have_value("gpu")
    page.get_by_label("Name of the runner").fill("no-slash")
    page.get_by_label("Slots").fill("many")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("#slots-problem")).to_contain_text("'many' is not a number of slots; expected 1 to 1000")
    assert "dci_" not in page.content()
    ada.complaints = [complaint for complaint in ada.complaints if "422" not in complaint]
    ada.check()


def test_who_may_only_look_is_told_what_is_missing(house: House, visitor: Callable[..., Person]) -> None:
    """What can be done is there to see, and says which scope it needs."""
    eve = visitor().let_in(house.key("eve", "read"))
    page = eve.go("/workers")
    expect(line(page, "r1")).to_be_visible(timeout=SOON)

    expect(page.get_by_text("Add a runner needs the scope runner")).to_be_visible()
    expect(line(page, "r1").get_by_text("Drain needs the scope runner")).to_be_visible()
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    eve.check()
    answer = page.goto("/runners/new")
    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_text("This needs the scope runner; the key you are signed in with has read.")).to_be_visible()
    eve.complaints = [complaint for complaint in eve.complaints if "403" not in complaint]
    eve.check()


def test_filters_leave_only_what_fits_and_nobody_is_an_answer(
    ada: Person, house: House, visitor: Callable[..., Person]
) -> None:
    """By text, label and state, in the address; the numbers on top are filters too."""
    with runner(house, "filter-1", "--labels", "filter-a"), runner(house, "filter-2", "--labels", "filter-b"):
        page = ada.go("/workers")
        state(page, "filter-1", "ready")
        state(page, "filter-2", "ready")

        page.get_by_label("Search").fill("FILTER-")
        page.get_by_label("Label").select_option("filter-b")
        page.get_by_role("button", name="Filter").click()
        expect(line(page, "filter-2")).to_be_visible()
        expect(line(page, "filter-1")).to_have_count(0)
        assert "label=filter-b" in page.url

        page = ada.go("/workers?q=filter-1")
        page.locator("#count-drained a").click()
        expect(page.get_by_text("No worker matches.")).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_label("Search")).to_be_focused()

    lonely = visitor().let_in(house.key("lone", tenant="lonely"))
    page = lonely.go("/workers")
    expect(page.get_by_text("There are no workers")).to_be_visible()
    lonely.check()
    page.goto("/workers?gone=1")
    expect(page.get_by_text("No worker is gone")).to_be_visible()
    lonely.check()
    answer = page.goto("/workers/nobody")
    assert answer is not None
    assert answer.status == 404


@pytest.mark.parametrize("verb", ["drain", "resume", "remove"])
def test_a_form_without_its_mark_does_nothing(ada: Person, house: House, verb: str) -> None:
    """Another site cannot send it."""
    ada.go("/workers")

    answer = ada.context.request.post(f"{house.url}/workers/r1/{verb}", form={"csrf": "x"}, max_redirects=0)

    assert answer.status in (303, 403)
    assert house.ask("GET", "/workers/r1")["hold"] == ""


def _until(path: Path) -> str:
    """A step that goes on until there is this file."""
    return f"while [ ! -e {shlex.quote(str(path))} ]; do sleep 0.1; done"
