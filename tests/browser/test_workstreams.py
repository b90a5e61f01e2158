"""Workstreams: the board, one of them, a new one and the merge queues, with a real repository, server and runner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browsing import Person
from tests.browser.house import House
from tests.browser.scene import WORKSTREAM
from tests.support.upstream import Upstream, git


class Shop:
    """A house with a project whose repository is real; each base is somebody's own."""

    def __init__(self, folder: Path) -> None:
        self.house = House(folder / "house", "--allow-repositories", "file")
        self.house.folder.mkdir()
        self.upstream = Upstream(folder / "up")
        self.house.open(slots=0)
        self.house.start_runner("r1", "--slots", "6", DELTACI_GIT_PROTOCOLS="file")
        self.house.ask("PUT", "/projects/shop", {"url": self.upstream.url, "default_branch": "main"})

    def base(self, name: str) -> str:
        """A branch to merge to, for one case alone."""
        git(self.upstream.bare, "branch", name, self.upstream.first)
        return name

    def file(self, name: str) -> Path:
        """A file that something waits for, until it is there."""
        return self.house.folder / f"{name}.go"

    def create(self, text: str, person: str = "ada", **fields: Any) -> str:
        """Start a workstream; its id."""
        body = {"file": text, "project": "shop", **fields}
        return str(self.house.ask("POST", "/workstreams", body, token=self.house.key(person))["id"])

    def show(self, branch: str, path: str) -> str:
        """A file of the repository."""
        return git(self.upstream.bare, "show", f"{branch}:{path}")


def one(name: str, run: str = "", title: str = "", more: str = "") -> str:
    """The file of a workstream with two tasks."""
    return WORKSTREAM.format(name=name, title=title or name, run=run or f"echo {name} > {name}.txt") + more


def queued(name: str, check: str, method: str) -> str:
    """The file of a workstream with one task, and a rule that is looked at before it is merged."""
    tasks = f"tasks: [{{name: write, run: echo {name} > {name}.txt}}]"
    return (
        f"workstream: {name}\nexecutor: process\n{tasks}\nvalidation: {{name: look, run: '{check}'}}\nmerge: {method}\n"
    )


def waits(file: Path) -> str:
    """A command that ends once this file is there."""
    return f"while [ ! -e {file} ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One for all cases of this module."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.house.close()


@pytest.fixture
def ada(visitor: Callable[..., Person], shop: Shop) -> Person:
    """Somebody who may do everything."""
    return visitor(shop.house).let_in(shop.house.key("ada"))


def column(page: Page, state: str) -> Any:
    """A column of the board."""
    return page.locator(f"#column-{state}")


# -- what is refused


def test_typing_mistakes_are_shown_where_they_are_and_nothing_is_lost(ada: Person, shop: Shop) -> None:
    """Line and column beside what was typed, and a project that there is not; then it is started, once."""
    page = ada.go("/workstreams/new")
    ada.check(has_contrast=True)
    ada.check_fits()
    text = one("typed", title="Typed by hand").replace("needs: write", "neds: write")
    page.get_by_label("Workstream file").fill(text)
    page.get_by_label("Base").fill(shop.base("typed"))
    page.get_by_role("button", name="Start").click()

    expect(page.locator("#problems")).to_contain_text("did you mean 'needs'?")
    expect(page.get_by_label("Workstream file")).to_have_value(text)
    expect(page.get_by_label("Base")).to_have_value("typed")
    ada.complaints.clear()  # That the answer was 422 is what was wanted.
    page.get_by_role("link", name="Line 8, column 5").click()
    assert page.evaluate("getSelection().toString()") == "neds: write"
    ada.check()
    ada.check_fits()

    page.get_by_label("Workstream file").fill(text.replace("neds", "needs") + "project: shpo\n")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("shpo")
    ada.complaints.clear()
    page.get_by_label("Project").select_option("shop")
    page.get_by_role("button", name="Start").dblclick()

    expect(page.get_by_role("heading", name="Typed by hand", level=1)).to_be_visible()
    found = shop.house.ask("GET", "/workstreams")["workstreams"]
    assert [each["base"] for each in found].count("typed") == 1


def test_a_form_that_was_sent_and_changed_says_so(ada: Person, shop: Shop) -> None:
    """Whoever goes back and changes the text is asked before there are two."""
    page = ada.go("/workstreams/new")
    page.get_by_label("Base").fill(shop.base("again"))
    draft = page.locator("[name=draft]").input_value()
    page.get_by_label("Workstream file").fill(one("again", title="First text"))
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="First text")).to_be_visible()

    page = ada.go("/workstreams/new")
    page.locator("[name=draft]").evaluate("(field, key) => { field.value = key; }", draft)
    page.get_by_label("Base").fill("again")
    page.get_by_label("Workstream file").fill(one("again", title="Second text"))
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("already started a workstream")
    ada.complaints.clear()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Second text")).to_be_visible()
    ada.check(is_accessible=False)


def test_who_may_only_read_is_told_so(visitor: Callable[..., Person], shop: Shop) -> None:
    """No way to a new one on the board, an explanation where one leads there, and no way to stop one."""
    id = shop.create(one("looked-at", waits(shop.file("looked-at"))), base=shop.base("looked-at"))
    bob = visitor(shop.house).let_in(shop.house.key("bob", "read"))

    page = bob.go("/workstreams")
    expect(page.locator(f"#ws-{id}")).to_be_visible()
    expect(page.get_by_role("link", name="New workstream")).to_have_count(0)
    page = bob.go(f"/workstreams/{id}")
    expect(page.get_by_text("needs the scope run")).to_be_attached()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    bob.check()
    page = bob.go("/workstreams/new")
    expect(page.get_by_text("needs the scope run")).to_be_visible()
    expect(page.get_by_role("textbox")).to_have_count(0)
    bob.check()
    shop.file("looked-at").touch()


# -- what is seen


def test_a_card_moves_to_completed_by_itself(ada: Person, shop: Shop) -> None:
    """Without a reload, with the focus where it was, and then the base has it."""
    base = shop.base("moves")
    page = ada.go("/workstreams")
    page.evaluate("window.seen = 'the same page'")
    id = shop.create(one("moves", f"{waits(shop.file('moves'))}; echo moved > moves.txt"), base=base)

    card = column(page, "executing").locator(f"#ws-{id}")
    expect(card).to_contain_text("0 of 2 tasks")
    expect(card).to_contain_text("runs write")
    expect(card).to_contain_text("moves")
    card.get_by_role("link", name="moves").focus()
    ada.check()
    shop.file("moves").touch()

    card = column(page, "completed").locator(f"#ws-{id}")
    expect(card).to_contain_text("2 of 2 tasks")
    expect(card.get_by_role("link", name="moves")).to_be_focused()
    assert page.evaluate("window.seen") == "the same page"
    assert shop.show(base, "moves.txt") == "moved"

    page = ada.go(f"/workstreams/{id}")
    expect(page.locator("#ws-state")).to_contain_text("completed")
    expect(page.locator("#merge")).to_contain_text("merged as")
    expect(page.locator("#merge")).to_contain_text(git(shop.upstream.bare, "rev-parse", base)[:9])
    expect(page.locator("#task-write")).to_contain_text("1 of 1")
    expect(page.locator("#graph").get_by_role("link", name="check: completed")).to_be_visible()
    expect(page.locator("#task-check").get_by_role("link", name="check")).to_have_attribute(
        "href", f"/runs/{id}/jobs/check"
    )
    ada.check()
    ada.check_fits()


def test_a_rule_that_does_not_hold_is_named_on_the_board_and_on_the_page(ada: Person, shop: Shop) -> None:
    """What was found, what was wanted, and where the tree is kept."""
    rule = "    post_execution:\n      - {files: broken.txt, contains: nobody}\n"
    title = "A title that is so long that it cannot be on one line of any card, in several words, " * 2
    id = shop.create(one("broken", title=title) + rule, base=shop.base("broken"))
    shop.house.until(id)

    page = ada.go("/workstreams")
    card = column(page, "failed").locator(f"#ws-{id}")
    expect(card).to_contain_text("check: broken.txt: found none in 'broken.txt', expected a line with 'nobody'")
    ada.check()
    ada.check_fits()
    card.get_by_role("link").click()
    expect(page.locator("#ws-state")).to_contain_text("failed")
    expect(page.locator("#task-check .rule")).to_contain_text("a line with 'nobody'")
    expect(page.locator("#branch")).to_contain_text(f"workstreams/{id}/tree")
    expect(page.locator("#why")).to_contain_text("check")
    ada.check()
    ada.check_fits()


def test_a_conflict_with_the_base_is_said(ada: Person, shop: Shop) -> None:
    """In which files, on the board and on its page."""
    base = shop.base("conflict")
    go = shop.file("conflict")
    id = shop.create(one("conflict", f"echo ours > README; touch conflict.txt; {waits(go)}"), base=base)
    page = ada.go(f"/workstreams/{id}")
    expect(page.locator("#task-write")).to_contain_text("running")
    shop.upstream.switch("conflict", shop.upstream.first)
    shop.upstream.push({"README": "theirs\n"}, branch=base)
    go.touch()

    expect(page.locator("#ws-state")).to_contain_text("failed")
    expect(page.locator("#merge")).to_contain_text("README")
    ada.check()
    page = ada.go("/workstreams?q=conflict")
    expect(column(page, "failed").locator(f"#ws-{id}")).to_contain_text("README")


def test_somebody_stops_one(ada: Person, shop: Shop) -> None:
    """After a question, with a reason; the card is among the cancelled ones."""
    id = shop.create(one("stopped", waits(shop.file("never"))), base=shop.base("stopped"))
    page = ada.go(f"/workstreams/{id}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("Merged changes stay merged")
    ada.check()
    page.get_by_label("Reason (optional)").fill("it was a mistake")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    expect(page.locator("#said").get_by_text("is being canceled")).to_be_visible()
    expect(page.locator("#ws-state")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page = ada.go("/workstreams")
    expect(column(page, "cancelled").locator(f"#ws-{id}")).to_be_visible()


def test_filters_and_keys_of_the_board(ada: Person, shop: Shop) -> None:
    """By text, person and project, in the address; j and k walk; a state by itself is a list."""
    mine = shop.create(one("needle-mine"), base=shop.base("needle-mine"))
    theirs = shop.create(one("needle-theirs"), person="eve", base=shop.base("needle-theirs"))
    shop.house.until(mine)
    shop.house.until(theirs)

    page = ada.go("/workstreams?q=NEEDLE")
    expect(page.locator(f"#ws-{mine}")).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(f"#link-{theirs}")).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(f"#link-{mine}")).to_be_focused()
    page.get_by_label("Person").fill("eve")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(f"#ws-{theirs}")).to_be_visible()
    expect(page.locator(f"#ws-{mine}")).to_have_count(0)
    assert "person=eve" in page.url
    page = ada.go("/workstreams?project=nowhere")
    expect(page.get_by_text("No workstream matches.")).to_be_visible()
    ada.check()
    page = ada.go("/workstreams?state=completed")
    expect(page.locator(f"#ws-{mine}")).to_contain_text("2 of 2 tasks")
    ada.check()
    ada.check_fits()


# -- merge queues


def test_a_batch_is_tested_on_top_of_others_and_split_when_it_is_bad(ada: Person, shop: Shop) -> None:
    """Somebody sees who waits, what stands on what, and how the bad one is found; the base gets the good ones."""
    base, first, good, bad = shop.base("queue"), shop.file("first"), shop.file("good"), shop.file("bad")
    page = ada.go("/merge-queues?project=shop")
    queue = page.locator(f"#queue-shop-{base}")
    # Three methods are three batches, and more are not tested at a time: who comes now waits, and is tested together.
    for method in ("merge", "squash", "fast-forward"):
        shop.create(queued(f"a-{method}", waits(first), method), base=base)
    expect(queue.locator(".batch").get_by_text("testing")).to_have_count(3)
    check = f"if [ -e rotten.txt ]; then {waits(bad)}; exit 1; fi; {waits(good)}"
    fresh, rotten = (shop.create(queued(name, check, "merge"), base=base) for name in ("fresh", "rotten"))
    expect(queue).to_contain_text("2 workstreams without a batch yet")
    expect(queue).to_contain_text("5 waiting")
    expect(queue.locator(".batch").nth(1)).to_contain_text("on top of batch 1")
    expect(page.locator(f"#entry-{fresh}")).to_contain_text("none yet")
    ada.check()
    ada.check_fits()

    first.touch()
    batch = page.locator(f"#batch-shop-{base}-4")
    expect(batch.locator(".members")).to_contain_text("fresh")
    expect(batch.locator(".members")).to_contain_text("rotten")
    page = ada.go(f"/workstreams/{fresh}")
    expect(page.locator("#merge")).to_contain_text("with 1 other")
    expect(page.locator("#merge").get_by_role("link", name="rotten")).to_be_visible()
    expect(page.locator("#merge").get_by_role("link", name=re.compile("^merge-"))).to_be_visible()
    ada.check()
    page.locator("#merge").get_by_role("link", name=re.compile("in the merge queue")).click()
    bad.touch()
    split = page.locator("#split-4")
    expect(split).to_contain_text("Batch 4 failed and was split in two")
    expect(split.get_by_role("link", name="rotten")).to_be_visible()
    ada.check()
    ada.check_fits()

    good.touch()
    expect(queue).to_have_count(0)
    states = [shop.house.until(id)["status"] for id in (fresh, rotten)]
    assert states == ["SUCCEEDED", "FAILED"]
    assert shop.show(base, "fresh.txt") == "fresh"
    page = ada.go(f"/workstreams/{rotten}")
    expect(page.locator("#merge")).to_contain_text("look")


def test_nothing_waits_and_nothing_is_there(visitor: Callable[..., Person], shop: Shop) -> None:
    """Empty pages say what to do next."""
    key = shop.house.key("eve", tenant="empty")
    eve = visitor(shop.house).let_in(key)
    page = eve.go("/workstreams")
    expect(page.get_by_text("There is no workstream yet")).to_be_visible()
    eve.check()
    page = eve.go("/merge-queues")
    expect(page.get_by_text("No workstream waits to be merged")).to_be_visible()
    eve.check()
    eve.check_fits()
    page = eve.go("/workstreams/new")
    expect(page.get_by_text("There is no project yet")).to_be_visible()
    eve.check()
    answer = eve.page.goto("/workstreams/r404")
    assert answer is not None
    assert answer.status == 404
