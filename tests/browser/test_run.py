"""The page of a run: the graph, the jobs, the times, why, and what can be done. It is true without a reload."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.browsing import Person
from tests.browser.house import House, gate, task
from tests.support.upstream import Upstream

Visitor = Callable[..., Person]


def waits(file: Path) -> str:
    """A step that goes on until somebody writes the file."""
    return f"while [ ! -e {file} ]; do sleep 0.1; done"


def node(page: Page, name: str) -> Locator:
    """The job in the graph."""
    return page.locator(f'#graph-picture .node[aria-label^="{name}: "]')


def line(page: Page, name: str) -> Locator:
    """The job in the table."""
    return page.locator("#jobs tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def bars(page: Page, name: str) -> Locator:
    """The job in the waterfall."""
    return page.locator("#waterfall .fall li").filter(has=page.get_by_role("link", name=name, exact=True))


def confirm(page: Page, button: str) -> None:
    """Press what asks, and answer yes."""
    page.get_by_role("button", name=button, exact=True).first.click()
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[House]:
    """A house of one's own, without a runner."""
    house = House(tmp_path / "house", "--allow-repositories", "file")
    house.folder.mkdir()
    yield house.open(slots=0)
    house.close()


def test_a_run_goes_from_queued_to_green_without_a_reload(quiet: House, visitor: Visitor) -> None:
    """The graph, the table, the waterfall, the reasons and the title: all of it, on the very same page."""
    file = quiet.folder / "go"
    run = quiet.start(task("build", waits(file), needs=[]), task("test", needs=["build"]), title="From queued to green")
    ada = visitor(quiet).let_in(quiet.key("ada"))
    page = ada.go(f"/runs/{run}")
    page.evaluate("window.seen = document.getElementById('graph-picture').seen = 'the same'")
    expect(node(page, "build")).to_have_attribute("aria-label", "build: queued")
    expect(line(page, "build")).to_contain_text(re.compile("waits for a worker|no worker"))
    expect(bars(page, "build").locator("rect.phase.queued")).to_have_count(1)
    expect(page).to_have_title(re.compile("From queued to green · pending"))
    ada.check()

    quiet.start_runner("late", "--slots", "2")
    expect(node(page, "build")).to_have_class(re.compile("busy"))
    expect(line(page, "build")).to_contain_text("running")
    expect(line(page, "build").get_by_role("link", name="late")).to_be_visible()
    expect(line(page, "test")).to_contain_text("waits for build")
    expect(bars(page, "build").locator("rect.phase.running")).to_have_count(1)
    expect(page).to_have_title(re.compile("· running"))
    bar = bars(page, "build").locator("rect.phase").last
    bar.evaluate("bar => { window.wide = parseFloat(bar.getAttribute('width')); }")
    page.wait_for_function("bar => parseFloat(bar.getAttribute('width')) > window.wide", arg=bar.element_handle())
    ada.check()
    ada.check_fits()

    file.touch()
    for name in ("build", "test"):
        expect(node(page, name)).to_have_attribute("aria-label", re.compile(f"{name}: succeeded, [0-9.]+ "))
        expect(line(page, name)).to_contain_text("succeeded")
    expect(page.locator("#run-status")).to_contain_text("succeeded")
    expect(page.locator("#why")).to_contain_text("succeeded")
    expect(page.locator("#waterfall[data-goes-on]")).to_have_count(0)
    expect(bars(page, "test")).to_contain_text("critical path")
    expect(page).to_have_title(re.compile("· succeeded"))
    assert page.evaluate("window.seen + document.getElementById('graph-picture').seen") == "the samethe same"
    ada.check()


def test_who_has_a_wrong_clock_sees_the_right_durations(ada: Person, house: House, tmp_path: Path) -> None:
    """What goes on is counted by the server's clock, as what is over is; also in the waterfall."""
    file = tmp_path / "go"
    run = house.start(task("build", waits(file)), title="Looked at an hour later")
    page = ada.page
    page.clock.install(time=time.time() + 3600)

    ada.go(f"/runs/{run}")

    short = re.compile(r"^[0-9.]+ s$")
    expect(page.locator("#waterfall [data-tick='1']")).to_have_text(short)
    expect(line(page, "build").locator("[data-since]")).to_have_text(short)
    expect(page.locator("time[data-ago]").first).to_have_text(re.compile("just now|sec"))
    file.touch()
    house.until(run)


def test_a_waiting_job_is_approved_in_another_browser(ada: Person, house: House, visitor: Visitor) -> None:
    """By keys alone. Whoever else looks sees it, and the second person whom the gate wants."""
    run = house.start(
        task("build", needs=[]),
        gate("release", ["build"], approvers=2, role="release"),
        task("deploy", needs=["release"]),
        title="Approved by others",
    )
    house.until(run, "WAITING_APPROVAL")
    page = ada.go(f"/runs/{run}")
    page.evaluate("window.seen = 'the same'")
    expect(node(page, "release")).to_have_class(re.compile("held gate"))
    expect(page.locator("#approvals")).to_contain_text("Needs 2 different people with the role release; 0 of 2 so far")
    expect(page.locator("#approvals")).to_contain_text("You cannot approve it: it is decided by people with the role")
    ada.check()
    ada.check_fits()

    bob = visitor().let_in(house.key("bob", "read", "approve", roles=("release",)))
    his = bob.go(f"/runs/{run}")
    his.keyboard.press("a")
    expect(his.get_by_role("dialog")).to_be_visible()
    bob.check()
    his.get_by_role("dialog").get_by_label("Reason (optional)").fill("looks good <b>to me</b>")
    his.keyboard.press("Tab")
    his.keyboard.press("Tab")
    his.keyboard.press("Enter")
    expect(his.locator("#said")).to_contain_text("You approved release. It needs more approvals.")
    expect(his.locator("#approvals")).to_contain_text("You approved it.")

    expect(page.locator("#approvals")).to_contain_text("bob approved")
    expect(page.locator("#approvals")).to_contain_text("looks good <b>to me</b>")
    expect(line(page, "release")).to_contain_text("1 of 2 approved")
    cleo = visitor().let_in(house.key("cleo", "read", "approve", roles=("release",)))
    cleo.go(f"/runs/{run}")
    confirm(cleo.page, "Approve")
    for each in (page, his):
        expect(node(each, "release")).to_have_attribute("aria-label", "release: approved")
        expect(each.locator("#run-status")).to_contain_text("succeeded")
        expect(each.locator("#approvals")).to_have_count(0)
    expect(bars(page, "release").locator("rect.phase.approval")).to_have_count(1)
    assert page.evaluate("window.seen") == "the same"
    assert house.ask("GET", f"/runs/{run}/jobs/release")["approval"]["approvals"][0]["comment"].startswith("looks")


def test_a_rejected_job_shows_what_it_kept_from_running(ada: Person, house: House) -> None:
    """The way from the failure on is red."""
    run = house.start(
        task("build", needs=[]),
        gate("release", ["build"]),
        task("deploy", needs=["release"]),
        task("announce", needs=["deploy"]),
        title="Rejected",
    )
    house.until(run, "WAITING_APPROVAL")
    page = ada.go(f"/runs/{run}")

    page.get_by_role("button", name="Reject").click()
    page.get_by_role("dialog").get_by_label("Reason (optional)").fill("not on a Friday")
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()

    expect(page.locator("#said")).to_contain_text("You rejected release.")
    expect(node(page, "release")).to_have_attribute("aria-label", "release: rejected")
    expect(line(page, "deploy")).to_contain_text("blocked")
    expect(line(page, "announce")).to_contain_text("a job that it needs did not succeed")
    expect(page.locator("#graph-picture .edge.bad")).to_have_count(2)
    expect(page.locator("#run-status")).to_contain_text("failed")
    expect(page.locator("#why")).to_contain_text("not on a Friday")
    ada.check()
    ada.check_fits()


def test_what_was_decided_meanwhile_is_refused_in_red(ada: Person, house: House, visitor: Visitor) -> None:
    """Somebody without scripts looks at what was true before: the page works, and says what happened."""
    run = house.start(gate("release", []), task("deploy", needs=["release"]), title="Decided meanwhile")
    house.until(run, "WAITING_APPROVAL")
    old = visitor(java_script_enabled=False).sign_in(house.key("dan", "read", "approve", "run"))
    page = old.go(f"/runs/{run}")
    house.ask("POST", f"/runs/{run}/reject", {"comment": "no"}, token=house.key("ada"))

    confirm(page, "Approve")

    expect(page.locator("#said .bad")).to_contain_text("is FAILED")
    expect(node(page, "release")).to_have_attribute("aria-label", "release: rejected")
    assert house.ask("GET", f"/runs/{run}")["status"] == "FAILED"


def test_a_run_is_canceled_and_its_job_ends(ada: Person, house: House) -> None:
    """Asked first; whoever says no changes nothing. The reason is kept."""
    run = house.start(task("endless", waits(house.folder / "never")), task("later"), title="Canceled")
    page = ada.go(f"/runs/{run}")
    expect(node(page, "endless")).to_have_class(re.compile("busy"))
    page.keyboard.press("x")
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.keyboard.press("x")
    page.get_by_role("dialog").get_by_label("Reason (optional)").fill("the wrong branch")
    page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()

    expect(page.locator("#said")).to_contain_text("The run is being canceled.")
    expect(node(page, "endless")).to_have_attribute("aria-label", re.compile("endless: canceled"))
    expect(page.locator("#run-status")).to_contain_text("canceled")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    house.until(run, "CANCELED")
    jobs = {job["name"]: job for job in house.ask("GET", f"/runs/{run}")["jobs"]}
    assert {job["state"] for job in jobs.values()} == {"CANCELED"}
    assert jobs["endless"]["tries"][0]["state"] == "CANCELED"
    expect(page.locator("#why")).to_contain_text("the wrong branch")
    ada.check()


def test_one_job_is_canceled_and_the_others_go_on(ada: Person, house: House) -> None:
    """Only that one, and what needs it."""
    file = house.folder / "one-goes-on"
    run = house.start(
        task("stays", waits(file), needs=[]),
        task("goes", waits(house.folder / "never"), needs=[]),
        task("needs it", needs=["goes"]),
        title="One of them",
    )
    page = ada.go(f"/runs/{run}")
    expect(node(page, "goes")).to_have_class(re.compile("busy"))

    line(page, "goes").get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()

    expect(page.locator("#said")).to_contain_text("goes is being canceled.")
    expect(line(page, "goes")).to_contain_text("canceled")
    expect(line(page, "needs it")).to_contain_text("blocked")
    expect(line(page, "stays")).to_contain_text("running")
    file.touch()
    expect(line(page, "stays")).to_contain_text("succeeded")
    expect(line(page, "stays").get_by_role("button")).to_have_count(0)
    ada.check()


def test_a_run_is_repeated_all_of_it_or_what_failed(ada: Person, house: House) -> None:
    """The new run is what one looks at then, and it knows the old one. A second click does nothing more."""
    run = house.start(
        task("good", needs=[]), task("bad", "exit 3", needs=[]), title="Again", labels=["again-and-again"]
    )
    house.until(run)
    page = ada.go(f"/runs/{run}")
    expect(line(page, "bad")).to_contain_text("exit code 3")
    expect(page.locator("#why").get_by_role("link", name="bad")).to_be_visible()

    page.keyboard.press("F")
    page.get_by_role("dialog").get_by_role("button", name="Rerun failed").dblclick()

    page.wait_for_url(lambda url: not url.endswith(run))
    expect(page.locator(".under").get_by_role("link", name=run)).to_be_visible()
    expect(node(page, "bad")).to_be_visible()
    expect(node(page, "good")).to_have_count(0)
    expect(page.locator("#said")).to_contain_text("Started this rerun")

    page.goto(f"/runs/{run}")
    confirm(page, "Rerun all")
    page.wait_for_url(lambda url: not url.endswith(run))
    expect(node(page, "good")).to_be_visible()
    expect(page.locator("#run-status")).to_contain_text("failed")
    assert len(house.ask("GET", "/runs?label=again-and-again")["runs"]) == 3


def test_whoever_may_only_read_is_told_why_there_are_no_buttons(house: House, visitor: Visitor) -> None:
    """And a form that is sent all the same is refused."""
    run = house.start(gate("release", []), task("deploy", needs=["release"]), title="Only to be read")
    house.until(run, "WAITING_APPROVAL")
    rita = visitor().let_in(house.key("rita", "read"))
    page = rita.go(f"/runs/{run}")

    for name, scope in (("Cancel", "run"), ("Approve", "approve"), ("Reject", "approve")):
        off = page.locator(".button.off", has_text=re.compile(f"^{name}"))
        expect(off).to_have_attribute("title", f"needs the scope {scope}")
    expect(page.locator("#main form")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    rita.check()

    said = page.evaluate(
        """async (path) => {
            const csrf = document.querySelector("input[name=csrf]").value;
            const answer = await fetch(path, { method: "POST", body: new URLSearchParams({ csrf }) });
            return answer.text();
        }""",
        f"/runs/{run}/cancel",
    )
    assert 'class="said bad"' in said
    assert house.ask("GET", f"/runs/{run}")["status"] == "WAITING_APPROVAL"


def large(house: House) -> str:
    """A run of many jobs that is over at once: the first one fails."""
    units = [f"unit ({n}, shard-{n % 7}, a-name-that-is-long)" for n in range(96)]
    jobs = [
        task("breaks", "echo it broke >&2; exit 1", needs=[]),
        task("fine", needs=[]),
        *(task(name, needs=["breaks"]) for name in units),
        *(task(f"system-{n}", needs=units[:40]) for n in range(12)),
        gate("release", [f"system-{n}" for n in range(12)]),
        task("report", needs=[], after=["release", "fine"]),
    ]
    return house.start(*jobs, title="A large one")


def test_a_large_graph_is_walked_by_keys_and_seen_whole(ada: Person, house: House) -> None:
    """Enter goes in, to what failed; arrows walk; what leads there and what follows stands out; Escape leaves."""
    run = large(house)
    house.until(run)
    page = ada.go(f"/runs/{run}")
    expect(page.locator("#graph-picture .node")).to_have_count(112)
    expect(page.locator("#graph-picture .edge.bad").first).to_be_attached()
    box = page.get_by_role("region", name="Graph of the jobs")

    box.focus()
    page.keyboard.press("Enter")
    expect(node(page, "breaks")).to_be_focused()
    expect(node(page, "breaks")).to_be_in_viewport()
    expect(node(page, "fine")).not_to_have_attribute("data-own-on", "")
    expect(node(page, "release")).to_have_attribute("data-own-on", "")
    page.keyboard.press("ArrowRight")
    expect(page.locator('#graph-picture .node:focus[aria-label^="unit"]')).to_have_count(1)
    page.keyboard.press("Escape")
    expect(box).to_be_focused()
    expect(page.locator("#graph-picture[data-own-lit]")).to_have_count(0)

    is_whole = "document.getElementById('graph-box').scrollHeight <= document.getElementById('graph-box').clientHeight"
    assert not page.evaluate(is_whole)
    page.keyboard.press("z")
    page.wait_for_function(is_whole)
    ada.check()
    ada.check_fits()
    page.get_by_role("button", name="Full size").click()
    node(page, "breaks").click()
    page.wait_for_url(f"**/runs/{run}/jobs/breaks")


def test_many_jobs_are_chosen_from_and_shown_in_pages(ada: Person, house: House) -> None:
    """By how they are; on a telephone the table is what there is."""
    run = large(house)
    house.until(run)
    page = ada.go(f"/runs/{run}")
    expect(page.locator("#jobs tbody tr")).to_have_count(100)
    expect(page.locator("#waterfall .fall li")).to_have_count(100)

    page.get_by_role("navigation", name="Pages of jobs").get_by_role("link", name="next").click()
    expect(page.locator("#jobs tbody tr")).to_have_count(12)
    page.get_by_role("link", name="1 failed").click()
    expect(page.locator("#jobs tbody tr")).to_have_count(1)
    expect(line(page, "breaks")).to_contain_text("failed")
    page.get_by_role("link", name="all 112").click()
    expect(page.locator("#jobs tbody tr")).to_have_count(100)

    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.locator("#graph-box")).to_be_hidden()
    expect(line(page, "breaks")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="breaks", exact=True).and_(page.locator("tbody a"))).to_be_focused()
    ada.check()


def test_what_a_run_was_made_from_is_text_and_leads_there(ada: Person, house: House) -> None:
    """Title, labels, inputs, template; nothing of it is ever more than text."""
    evil = "<img src=x onerror=alert(1)> " + "long " * 30
    body: Any = {
        "plan": {"jobs": [task("only", allow_failure=True) | {"work": {"steps": ["exit 1"], "executor": "process"}}]},
        "inputs": {"WHERE": {"default": "staging"}},
    }
    house.ask("PUT", "/templates/release-it", body, token=house.key("ada"))
    asked = {"template": "release-it", "inputs": {"WHERE": "<script>1</script>"}, "title": evil, "labels": ["a/b"]}
    run = house.ask("POST", "/runs", {**asked, "project": "shop & co"}, token=house.key("ada"))["id"]
    house.until(run)
    page = ada.go(f"/runs/{run}")

    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("#about")).to_contain_text("<script>1</script>")
    expect(page.locator("#about").get_by_role("link", name="release-it")).to_have_attribute(
        "href", "/templates/release-it"
    )
    expect(line(page, "only")).to_contain_text("failed, allowed")
    expect(page.locator("main img, main script")).to_have_count(0)
    ada.check()
    ada.check_fits()


def test_a_page_outlives_its_server_and_a_plan_that_failed_says_where(
    quiet: House, visitor: Visitor, tmp_path: Path
) -> None:
    """Killed without a word: the page says that it reconnects, and is true again by itself."""
    quiet.start_runner("r1", "--slots", "2")
    file = quiet.folder / "go"
    run = quiet.start(task("build", waits(file), needs=[]), task("test", needs=["build"]), title="Outlives it")
    ada = visitor(quiet).let_in(quiet.key("ada"))
    page = ada.go(f"/runs/{run}")
    page.evaluate("window.seen = 'the same'")
    expect(node(page, "build")).to_have_class(re.compile("busy"))
    expect(page.locator("#live-word")).to_have_text("live")

    quiet.kill_server()
    expect(page.locator("#live-word")).to_have_text("reconnecting")
    file.touch()
    quiet.start_server()

    expect(page.locator("#live-word")).to_have_text("live")
    expect(node(page, "test")).to_have_attribute("aria-label", re.compile("test: succeeded"))
    expect(page.locator("#run-status")).to_contain_text("succeeded")
    assert page.evaluate("window.seen") == "the same"
    ada.complaints.clear()  # That the server was away is told by browsers as an error.

    upstream = Upstream(
        tmp_path / "up", {".deltaci.yml": "on: [push, manual]\njobs:\n  build:\n    stepz: [run: make]\n"}
    )
    quiet.ask("PUT", "/projects/shop", {"url": upstream.url}, token=quiet.key("ada"))
    asked = {"repository": "shop", "branch": "main", "commit": upstream.first}
    failed = quiet.ask("POST", "/runs", asked, token=quiet.key("ada"))["id"]
    page = ada.go(f"/runs/{failed}")
    expect(page.locator("#problems")).to_contain_text(re.compile(r"\.deltaci\.yml:4:5.*stepz"))
    expect(page.locator("#run-status")).to_contain_text("failed")
    expect(page.get_by_role("button", name=re.compile("Rerun"))).to_have_count(0)
    ada.check()
    ada.check_fits()
