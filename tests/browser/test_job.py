"""The page of a job: how it is and why, its attempts, what can be done."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.browser.browsing import Person
from tests.browser.house import House, gate, task

LONG = "A job (of a matrix, with a name, that is as long, as a name may be, on linux, py3.12, and more)"


def test_a_job_goes_from_nobody_to_done_before_ones_eyes(ada: Person, house: House) -> None:
    """Without a reload: no worker yet, then a log that is written, then how it ended."""
    go = house.folder / "job-may-go"
    run = house.start(
        task("first", f"while [ ! -e {go} ]; do sleep 0.05; done"),
        task("build", "echo hello"),
        title="Before ones eyes",
    )
    page = ada.go(f"/runs/{run}/jobs/build")
    page.evaluate("window.seen = 'the same page'")

    expect(page.get_by_text("No worker has taken this job yet")).to_be_visible()
    ada.check()
    go.touch()
    expect(page.locator("#job-status")).to_contain_text("succeeded")
    step = page.get_by_role("button", name=re.compile("echo hello.*succeeded"))
    expect(step).to_be_visible()
    step.click()
    expect(page.locator(".log-text", has_text=re.compile("^hello$"))).to_be_visible()
    expect(page.get_by_role("link", name="r1").first).to_have_attribute("href", "/workers/r1")
    assert page.evaluate("window.seen") == "the same page"
    expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)
    page.get_by_text("History").click()
    expect(page.locator("#job-history li").first).to_be_visible()
    ada.check()
    page.get_by_role("link", name="Before ones eyes").click()
    page.wait_for_url(f"**/runs/{run}")


def test_a_job_is_cancelled_with_a_reason(ada: Person, house: House) -> None:
    """After a question; the page says who stopped it and why, and the log stays."""
    never = house.folder / "never"
    run = house.start(task(LONG, f"echo begun; while [ ! -e {never} ]; do sleep 0.05; done"), title="Cancelled")
    page = ada.go(f"/runs/{run}/jobs/{LONG}")
    expect(page.locator(".log-text", has_text=re.compile("^begun$"))).to_be_visible()
    ada.check_fits()

    page.get_by_role("button", name="Cancel the job").first.click()
    page.get_by_label("Reason (optional)").fill("not <b>needed</b>")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()

    expect(page.get_by_text("is being canceled")).to_be_visible()
    expect(page.locator("#job-status")).to_contain_text("canceled")
    expect(page.get_by_text("not <b>needed</b>").first).to_be_visible()
    expect(page.locator(".log-text", has_text=re.compile("^begun$"))).to_be_visible()
    expect(page.locator(".log-state")).to_have_text("complete")
    ada.check()
    ada.check_fits()


def test_who_may_not_cancel_is_told_so(visitor: Callable[..., Person], house: House) -> None:
    """Nobody finds out by being refused."""
    never = house.folder / "never"
    run = house.start(task("build", f"while [ ! -e {never} ]; do sleep 0.05; done"), title="Not by everybody")
    reader = visitor().let_in(house.key("rita", "read"))
    page = reader.go(f"/runs/{run}/jobs/build")

    expect(page.get_by_text("needs the scope run")).to_be_attached()
    expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)
    expect(page.get_by_role("region", name="Log of attempt 1")).to_be_visible()
    reader.check()
    house.ask("POST", f"/runs/{run}/cancel", {})


def test_two_attempts_side_by_side(ada: Person, house: House) -> None:
    """What failed first beside what went well then: facts and logs, in columns where there is room."""
    once = house.folder / "once"
    step = f"if [ ! -e {once} ]; then touch {once}; echo 'curl: Could not resolve host: x'; exit 6; fi; echo well"
    retry = {"max_attempts": 3, "base_delay_seconds": 1}
    run = house.start(task("flaky", step, retry=retry), title="Twice")
    house.until(run)
    page = ada.go(f"/runs/{run}/jobs/flaky")

    expect(page.get_by_role("heading", name="Attempt 2")).to_be_visible()
    page.get_by_role("link", name="Attempt 1").click()
    expect(page.get_by_role("heading", name="Attempt 1")).to_be_visible()
    expect(page.locator(".log-row.selected")).to_contain_text("Could not resolve host")
    ada.check()
    page.get_by_role("link", name="Compare").click()

    first, second = page.locator("#attempt-1"), page.locator("#attempt-2")
    expect(first).to_contain_text("INFRA by the rule network:names, retryable")
    expect(first).to_contain_text("6 in if")
    expect(first.locator(".log-row.selected")).to_contain_text("Could not resolve host")
    expect(second.get_by_role("button", name=re.compile("succeeded"))).to_be_visible()
    (left, top), (other_left, other_top) = place(first), place(second)
    assert top == other_top
    assert left < other_left
    second.get_by_role("button", name=re.compile("succeeded")).click()
    second.locator(".log-number", has_text="4").click()
    assert page.url.endswith("#A2-L4")
    ada.check()
    ada.check_fits()
    page.set_viewport_size({"width": 700, "height": 900})
    (left, top), (other_left, other_top) = place(first), place(second)
    assert top < other_top
    assert left == other_left


def place(of: Locator) -> tuple[float, float]:
    """Where it begins."""
    box = of.bounding_box()
    assert box is not None
    return box["x"], box["y"]


def test_an_approval_shows_its_gate_and_no_log(ada: Person, house: House) -> None:
    """Who must say yes, who did, and where to."""
    run = house.start(task("a"), gate("release", ["a"], approvers=2, role="chief"), title="Waits for two")
    page = ada.go(f"/runs/{run}/jobs/release")

    expect(page.locator("#job-status")).to_contain_text("waiting approval")
    card = page.get_by_role("region", name="Approval")
    expect(card).to_contain_text("2 different people with the role chief")
    expect(card).to_contain_text("0 of 2")
    expect(page.locator("delta-log")).to_have_count(0)
    house.ask(
        "POST", f"/runs/{run}/approve", {"comment": "fine <i>by</i> me"}, token=house.key("bob", roles=("chief",))
    )
    expect(card).to_contain_text("1 of 2")
    expect(card.get_by_role("row", name=re.compile("bob"))).to_contain_text("fine <i>by</i> me")
    ada.check()
    ada.check_fits()


def test_without_scripts_the_last_lines_are_on_the_page(visitor: Callable[..., Person], house: House) -> None:
    """And a link to all of it."""
    run = house.start(task("build", "seq 1 100; printf '\\033[31m<b>red</b>\\033[0m\\n'"), title="Plain")
    house.until(run)
    plain = visitor(java_script_enabled=False).sign_in(house.key("ada"))
    page = plain.go(f"/runs/{run}/jobs/build")

    expect(page.get_by_label("Last lines of the log")).to_contain_text("100\n<b>red</b>")
    expect(page.get_by_label("Last lines of the log")).not_to_contain_text("::step")
    expect(page.get_by_role("link", name="Full log")).to_have_attribute("href", re.compile("/attempts/1/log"))


def test_a_job_that_is_not_there_says_so(ada: Person, house: House) -> None:
    """As every page does."""
    run = house.start(task("build"), title="No such job")

    answer = ada.page.goto(f"/runs/{run}/jobs/no-such-job")

    assert answer is not None
    assert answer.status == 404
    expect(ada.page.get_by_text("there is no job 'no-such-job'")).to_be_visible()
