"""Projects: added, changed by two at once, started by hand; what happened in them and why no run came."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.browsing import PATIENCE_MS, Person
from tests.browser.forming import HOSTILE, expected, is_text, refused, said
from tests.browser.house import House, task
from tests.forges.payloads import SECRET, github, github_push
from tests.support.plain_http import NO_TLS
from tests.support.upstream import ZEROS, Upstream, git

PIPELINE = """\
on: {push: {branches: [main]}, manual: {}}
jobs:
  build:
    steps: ['true']
"""


class Place(NamedTuple):
    """A server that may clone folders, and a repository."""

    house: House
    upstream: Upstream

    def add(self, name: str, **fields: object) -> None:
        """Tell the server of the repository under this name."""
        self.house.ask("PUT", f"/projects/{name}", {"url": self.upstream.url, **fields})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """It has no runner: whether a run comes is all that matters here."""
    folder = tmp_path_factory.mktemp("repositories")
    house = House(folder, "--allow-repositories", "file")
    try:
        yield Place(house.open(slots=0), Upstream(folder / "upstream", {".deltaci.yml": PIPELINE}))
    finally:
        house.close()


@pytest.fixture
def ada(visitor: Callable[..., Person], place: Place) -> Person:
    """Somebody who may do everything, there."""
    return visitor(place.house).let_in(place.house.key("ada"))


def test_a_project_is_added_and_says_how_it_hears_of_pushes(ada: Person, place: Place) -> None:
    """What is wrong is said at its field; what was typed stays; then the address for the forge stands there."""
    place.house.ask("PUT", "/secrets/SHOP_HOOK", {"value": "hook-hook"})
    place.add("taken")
    page = ada.go("/projects")
    page.get_by_role("link", name="New project").click()
    ada.check()
    ada.check_fits()
    page.get_by_label("Description").fill(HOSTILE)
    page.get_by_label("Forge", exact=True).select_option("github")
    page.get_by_label("Webhook secret").fill("SHOP_HOOK")
    page.get_by_label("Secret for reporting").fill("GH_TOKEN")
    assert page.locator("datalist option[value=SHOP_HOOK]").count() == 3
    adds = page.get_by_role("button", name="Add the project")
    for label, wrong, says, right in (
        ("Name", "not a name", "is not a valid name; expected letters", "taken"),
        ("Address", "gopher://example.org/x", "expected one that begins with https", "https://example.org/a/b.git"),
        ("Name", "taken", "a project 'taken' already exists", "web-shop"),
        ("Secret for cloning", "a b", "the name of a secret", ""),
        ("Poll interval (seconds)", "often", "Expected `int`", "0"),
        ("Forge API URL", "ftp://x", "must start with https://", ""),
    ):
        page.get_by_label(label, exact=True).fill(wrong)
        adds.click()
        refused(ada, label, says).fill(right)
    page.evaluate("scrollTo(0, 0)")  # What is under the head of the page is not all to be seen.
    ada.check()
    expect(page.get_by_label("Description")).to_have_value(HOSTILE)
    adds.click()

    said(page, "The project web-shop was added.")
    is_text(page, page.locator("main .text"))
    expect(page.get_by_label("Webhook address")).to_have_value(f"{place.house.url}/hooks/default/web-shop")
    expect(page.locator("#hears")).to_contain_text("Signed with the secret SHOP_HOOK.")
    expect(page.locator("#settings")).to_contain_text("GH_TOKEN is not set")
    ada.check()
    ada.check_fits()
    page.get_by_role("link", name="Set the secret").click()
    expect(page.get_by_label("Name")).to_have_value("GH_TOKEN")
    ada.go("/projects")
    is_text(page, page.locator("#project-web-shop"))
    ada.check()
    ada.check_fits()


def test_of_two_who_change_a_project_the_slower_is_told_and_loses_nothing(
    ada: Person, visitor: Callable[..., Person], place: Place
) -> None:
    """Where theirs differs is shown; saving once more is then a decision."""
    place.add("both", description="as it was")
    page = ada.go("/projects/both")
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Description").fill("what ada wants")
    grace = visitor(place.house).let_in(place.house.key("grace"))
    theirs = grace.go("/projects/both/edit")
    theirs.get_by_label("Main branch").fill("trunk")
    theirs.get_by_label("Start scheduled runs").uncheck()
    theirs.get_by_role("button", name="Save").click()
    said(theirs, "The project both was saved.")
    expect(theirs.locator("#settings")).to_contain_text("ignored")

    page.get_by_role("button", name="Save").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("is at version 2, not 1")
    expect(alert.locator("tr", has_text="Main branch")).to_contain_text("trunk")
    expect(page.get_by_label("Description")).to_have_value("what ada wants")
    expected(ada, 422)
    ada.check()
    ada.check_fits()
    assert place.house.ask("GET", "/projects/both")["description"] == "as it was"
    page.get_by_label("Main branch").fill("trunk")
    page.get_by_role("button", name="Save").click()
    said(page, "The project both was saved.")
    kept = place.house.ask("GET", "/projects/both")
    assert (kept["description"], kept["default_branch"], kept["version"]) == ("what ada wants", "trunk", 3)

    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("dialog")).to_contain_text("removes both")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    said(page, "The project both was removed.")
    expect(page.locator("#project-both")).to_have_count(0)
    ada.check(is_accessible=False)


def test_a_run_of_a_branch_is_started_by_hand(ada: Person, place: Place) -> None:
    """A branch that is not there, or half a commit, is said at its field."""
    place.add("by-hand")
    page = ada.go("/projects/by-hand")
    expect(page.get_by_text("This project has no runs yet.")).to_be_visible()
    expect(page.get_by_label("Command")).to_have_value("deltaci project hook by-hand --repository /srv/git/by-hand.git")
    page.get_by_role("link", name="Run now").click()
    ada.check()
    ada.check_fits()
    page.get_by_label("Branch or tag").fill("nowhere")
    page.get_by_role("button", name="Start run").click()
    refused(ada, "Branch or tag", "has no branch or tag 'nowhere'").fill("main")
    page.get_by_label("Commit").fill("abc")
    page.get_by_role("button", name="Start run").click()
    refused(ada, "Commit", "not a full commit id").fill("")
    page.get_by_label("Inputs").fill("no name=x")
    page.get_by_role("button", name="Start run").click()
    refused(ada, "Inputs", "lines like name=value").fill("")
    page.get_by_label("Title").fill("By hand")
    page.get_by_label("Title").press("Enter")

    page.wait_for_url("**/runs/r*")
    run = place.house.ask("GET", f"/runs/{page.url.rpartition('/')[2]}")
    assert (run["project"], run["branch"], run["commit"]) == (
        "by-hand",
        "main",
        git(place.upstream.bare, "rev-parse", "main"),
    )
    ada.go("/projects/by-hand")
    expect(page.locator("#runs").get_by_role("link", name="By hand")).to_be_visible()


def test_changes_appear_with_their_runs_or_with_why_none_came(ada: Person, place: Place) -> None:
    """On the page of the project, by themselves; and among all changes."""
    place.add("heard")
    page = ada.go("/projects/heard")
    page.evaluate("window.seen = 'the same page'")
    head = place.upstream.push({"a.txt": "d"}, HOSTILE)
    pushed = {"delivery": "delivery-1", "pusher": "bob"}
    refs = [
        {"ref": "refs/heads/main", "before": place.upstream.first, "after": head},
        {"ref": "refs/heads/gone", "before": place.upstream.first, "after": ZEROS},
    ]
    place.house.ask("POST", "/projects/heard/pushes", {**pushed, "refs": refs})

    changes = page.locator("#changes")
    expect(changes.locator("tr", has_text="gone")).to_contain_text("the branch or tag was deleted")
    made = changes.locator("tr").filter(has=page.get_by_role("link", name=".deltaci.yml"))
    expect(made).to_contain_text("handled")
    is_text(page, made)
    assert page.evaluate("window.seen") == "the same page"
    ada.check()
    ada.check_fits()

    ada.go("/changes")
    page.get_by_label("Project").fill("heard")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    ada.check()
    ada.check_fits()
    ada.go("/changes?project=nobody")
    expect(page.get_by_text("No change in nobody yet.")).to_be_visible()
    ada.go("/projects")
    expect(page.locator("#project-heard")).to_contain_text("no run: the branch or tag was deleted")


def test_a_delivery_that_could_not_be_handled_is_handled_again_by_a_button(ada: Person, place: Place) -> None:
    """The log shows each delivery with its answer, and the run as soon as there is one."""
    place.house.ask("PUT", "/secrets/LOG_HOOK", {"value": SECRET})
    place.add("logged", forge="github", webhook_secret="LOG_HOOK")
    commit = place.upstream.commit({"a.txt": "not pushed yet"}, HOSTILE)
    repository = {"id": 1, "full_name": "upstream/shop", "default_branch": "main"}
    events = [
        github("ping", {"zen": "Design for failure."}, delivery="d-1"),
        github("push", github_push(after=commit, repository=repository), delivery="d-2"),
    ]
    for event in events:
        url = f"{place.house.url}/hooks/logged"
        httpx.post(url, content=event.body, headers=event.headers, verify=NO_TLS, trust_env=False).raise_for_status()

    page = ada.go("/projects/logged")
    page.get_by_role("link", name="Webhook deliveries").click()
    delivery = page.locator("tbody tr", has_text="id d-2")
    expect(delivery).to_contain_text("the repository has no commit")
    expect(page.locator("tbody tr", has_text="id d-1")).to_contain_text("pong")
    ada.check()
    ada.check_fits()
    git(place.upstream.tree, "push", "-q", "--force", "origin", "HEAD:main")
    delivery.get_by_role("button", name="Handle again").click()
    page.locator("dialog[open]").get_by_role("button", name="Handle again").click()
    expect(delivery).to_contain_text("1 of 1 pipeline files started a run")
    expect(delivery.get_by_role("link")).to_have_count(1)
    ada.check()


def test_who_may_only_read_sees_all_and_can_change_nothing(visitor: Callable[..., Person], place: Place) -> None:
    """Buttons are there and say what they need; no form is."""
    place.add("looked-at", webhook_secret="ANY_HOOK")
    reader = visitor(place.house).let_in(place.house.key("reader", "read"))
    page = reader.go("/projects/looked-at")
    for name, scope in (("Run now", "run"), ("Edit", "admin"), ("Remove", "admin")):
        expect(page.locator(".button.off", has_text=name)).to_have_attribute("title", f"needs the scope {scope}")
    assert page.locator("main form").count() == 0
    expect(page.locator("#hears")).to_contain_text("ANY_HOOK")
    expect(page.get_by_text("is not set")).to_have_count(0)
    reader.check()
    for path in ("/projects", "/templates", "/failure-rules", "/flaky", "/changes"):
        reader.go(path)
        assert page.locator("main form[method=post]").count() == 0
    reader.check(is_accessible=False)


def test_what_is_empty_says_what_to_do(visitor: Callable[..., Person], place: Place) -> None:
    """A tenant in which nothing was done yet."""
    eva = visitor(place.house).let_in(place.house.key("eva", tenant="new tenant"))
    for path, says in (
        ("/projects", "There is no project yet."),
        ("/changes", "No change in any repository yet."),
        ("/flaky", "No flaky tests or jobs are known."),
        ("/templates", "There is no template yet."),
        ("/secrets", "There is no secret yet."),
    ):
        page = eva.go(path)
        expect(page.get_by_text(says)).to_be_visible()
        eva.check()
        eva.check_fits()


def test_failure_rules_are_read_in_order_and_changed(ada: Person, place: Place) -> None:
    """What is wrong is said with its line, and nothing is lost; the tenant's own are asked first."""
    page = ada.go("/failure-rules")
    expect(page.get_by_role("row", name="always")).to_contain_text("built in")
    page.get_by_role("link", name="Edit your rules").click()
    page.get_by_label("Your rules").fill("rules:\n  - name: mine\n    class: NOBODY\n    exit_codes: [42]\n")
    page.get_by_role("button", name="Save").click()
    text = refused(ada, "Your rules", "line 3:12")
    ada.check()
    ada.check_fits()
    place.house.ask("PUT", "/failure-rules", {"text": "rules: []"})
    text.fill("rules:\n  - name: mine\n    class: INFRA\n    exit_codes: [42]\n")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("saved version 1 in the meantime")
    expected(ada, 422)
    expect(text).to_have_value(re.compile("name: mine"))
    ada.check()
    page.get_by_role("button", name="Save").click()

    said(page, "The rules were saved.")
    expect(page.locator("tbody tr").first).to_contain_text("mine")
    expect(page.locator("tbody tr").first).to_contain_text("it exits with 42")
    ada.check()
    ada.check_fits()


def test_what_is_known_to_be_flaky_is_shown(visitor: Callable[..., Person], house: House) -> None:
    """A job that failed and succeeded on the same commit."""
    name, mark = "wobbly (linux)", house.folder / "wobbly"
    for _ in range(2):
        job = task(name, f"test -e {mark}")
        house.until(house.start(job, project="shaky", commit="c" * 40))
        mark.touch()
    ada = visitor().let_in(house.key("ada"))
    page = ada.go("/flaky")

    line = page.locator("tr", has_text=name)
    expect(line).to_contain_text("1 time, last", timeout=PATIENCE_MS)
    ada.check()
    ada.check_fits()
