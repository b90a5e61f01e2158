"""A tree becomes like another one, and whoever uses it does not notice: the algorithm alone, in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browsing import Person
from tests.browser.trees import pairs

BUILD = """
window.build = (tree, ids = {}) => {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, children] = tree;
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (made.id) ids[made.id] = made;
  made.append(...children.map((each) => window.build(each, ids)));
  return made;
};
window.ready = import(document.querySelector('link[href$="morph.js"]').href).then(({ morph }) => {
  window.morph = (from, to) => morph(from, to);
  window.show = (tree) => {
    document.getElementById("stage")?.remove();
    const stage = document.createElement("div");
    stage.id = "stage";
    stage.append(window.build(tree));
    document.body.append(stage);
  };
  window.become = (tree) => window.morph(document.getElementById("stage").firstChild, window.build(tree));
});
"""

# What is wrong after all of them; the elements with ids that are in both must be the same ones, not copies.
ALL = """
(text) => JSON.parse(text).flatMap(([before, after], at) => {
  const wrong = (what) => [{ at, what, before, after }];
  const were = {}, wanted = {};
  const from = window.build(before, were);
  document.body.append(from);
  try {
    window.morph(from, window.build(after, wanted));
  } catch (error) {
    return wrong(String(error));
  } finally {
    from.remove();
  }
  if (!from.isEqualNode(window.build(after))) return wrong("not equal");
  const known = [...from.querySelectorAll("[id]")].filter((each) => {
    const was = were[each.id]; // Only one of another kind cannot be the same.
    return was && was !== each && was.localName === each.localName;
  });
  return known.length ? wrong(`made anew: ${known.map((each) => each.id)}`) : [];
})
"""


@pytest.fixture
def stage(visitor: Callable[..., Person]) -> Iterator[Page]:
    """A page of ours, with the algorithm at hand."""
    person = visitor()
    page = person.go("/sign-in")
    page.evaluate(BUILD)
    page.evaluate("window.ready")
    yield page
    assert person.complaints == []


def test_every_tree_becomes_the_other_one(stage: Page) -> None:
    """Whatever is moved, removed, added or written over; and what has an id is moved, not made anew."""
    # As one text: it is read much faster than as a value of many parts.
    wrong = stage.evaluate(ALL, json.dumps(pairs(seed=1, count=3000)))

    assert wrong == []


def _row(id: str, *inside: Any) -> list[Any]:
    return ["li", {"id": id}, [["input", {"id": f"in-{id}", "value": id}, []], *inside]]


def test_focus_selection_and_what_was_typed_move_with_their_line(stage: Page) -> None:
    """Lines are sorted anew above and below somebody who writes."""
    stage.evaluate("(tree) => window.show(tree)", ["ul", {}, [_row("a"), _row("b"), _row("c")]])
    stage.locator("#in-c").fill("half typed")
    stage.evaluate("document.getElementById('in-c').setSelectionRange(2, 6)")
    stage.evaluate("window.line = document.getElementById('c')")

    stage.evaluate("(tree) => window.become(tree)", ["ul", {}, [_row("c"), _row("new"), _row("b")]])

    expect(stage.locator("#in-c")).to_be_focused()
    expect(stage.locator("#in-c")).to_have_value("half typed")
    assert stage.evaluate("[window.line === document.getElementById('c'), line.firstChild.selectionStart]") == [True, 2]
    assert stage.evaluate("[...document.querySelectorAll('#stage li')].map((each) => each.id)") == ["c", "new", "b"]


def test_a_line_that_goes_to_another_list_is_the_same_line(stage: Page) -> None:
    """As on a board: whoever has the focus on it keeps it, in both directions."""
    there = ["div", {}, [["ul", {"id": "left"}, [_row("a")]], ["ul", {"id": "right"}, [_row("b")]]]]
    moved = ["div", {}, [["ul", {"id": "left"}, [_row("b")]], ["p", {}, []], ["ul", {"id": "right"}, [_row("a")]]]]
    stage.evaluate("(tree) => window.show(tree)", there)
    for id in ("a", "b"):
        stage.locator(f"#in-{id}").focus()
        stage.evaluate("(id) => { window.line = document.getElementById(id) }", id)

        stage.evaluate("(tree) => window.become(tree)", moved if id == "a" else there)

        expect(stage.locator(f"#in-{id}")).to_be_focused()
        assert stage.evaluate("(id) => window.line === document.getElementById(id)", id)


def _parts(word: str, **changed: Any) -> list[Any]:
    details = ["details", {"id": "details", **changed}, [["summary", {}, ["more"]], ["p", {}, [word]]]]
    dialog = ["dialog", {"id": "dialog"}, [["p", {}, [word]]]]
    box = ["textarea", {"id": "box", "rows": "2", "class": word}, ["x\n" * 200]]
    choice = ["select", {"id": "choice"}, [["option", {"value": v}, [f"{v} {word}"]] for v in ("a", "b", "c")]]
    tick = ["input", {"id": "tick", "type": "checkbox", "class": word}, []]
    kept = ["div", {"id": "kept", "data-keep": "", "class": word}, [f"server {word}"]]
    own = ["p", {"id": "own", "data-owner": word} if word == "one" else {"id": "own"}, [word]]
    return ["main", {}, [["p", {}, [word]], details, dialog, box, choice, tick, kept, own]]


def test_what_people_and_scripts_did_stays(stage: Page) -> None:
    """What is open stays open, what was closed closed; a scroll, a choice, a tick; what a script owns."""
    stage.evaluate("(tree) => window.show(tree)", _parts("one", open=""))
    stage.evaluate("""() => {
      const by = (id) => document.getElementById(id);
      by("details").open = false;
      by("dialog").showModal();
      by("box").scrollTop = 300;
      by("choice").value = "c";
      by("tick").checked = true;
      by("kept").firstChild.nodeValue = "a script's";
      by("own").dataset.ownSize = "7";
    }""")

    stage.evaluate("(tree) => window.become(tree)", _parts("two", open=""))

    found = stage.evaluate("""() => {
      const by = (id) => document.getElementById(id);
      return [by("details").open, by("dialog").matches(":modal"), by("choice").value, by("tick").checked,
        by("kept").textContent, by("kept").className, by("own").dataset.ownSize, by("own").dataset.owner ?? "",
        by("box").scrollTop];
    }""")
    assert found == [False, True, "c", True, "a script's", "two", "7", "", 300]
    assert stage.locator("#dialog p").text_content() == "two"
    assert stage.evaluate("document.getElementById('choice').options[2].text") == "c two"


def _fields(word: str) -> list[Any]:
    options = [["option", {"selected": ""} if each == word else {}, [each]] for each in ("a", "b")]
    text = ["input", {"id": "text", "value": word}, []]
    tick = ["input", {"id": "tick", "type": "checkbox", **({"checked": ""} if word == "b" else {})}, []]
    return ["form", {}, [text, ["textarea", {"id": "long"}, [word]], ["select", {"id": "choice"}, options], tick]]


def test_a_field_that_nobody_touched_says_what_the_server_says(stage: Page) -> None:
    """Only what was changed by hand is kept."""
    stage.evaluate("(tree) => window.show(tree)", _fields("a"))

    stage.evaluate("(tree) => window.become(tree)", _fields("b"))

    expect(stage.locator("#text")).to_have_value("b")
    expect(stage.locator("#long")).to_have_value("b")
    expect(stage.locator("#choice")).to_have_value("b")
    expect(stage.locator("#tick")).to_be_checked()


def test_thousands_of_changes_leave_nothing_behind(stage: Page) -> None:
    """A page may be looked at for days: what is gone can be forgotten."""
    left = stage.evaluate("""async () => {
      const rows = (n) => Array.from({ length: 20 }, (_, at) =>
        ["li", { id: `r${(n + at) % 97}` }, [`${n}`, ["b", {}, ["x"]]]]);
      window.show(["ul", {}, rows(0)]);
      const gone = [];
      for (let n = 1; n <= 3000; n++) {
        if (n % 100 === 0) gone.push(new WeakRef(document.querySelector("#stage li")));
        window.become(["ul", {}, rows(n)]);
      }
      return [document.querySelectorAll("#stage li").length, gone.length];
    }""")

    assert left == [20, 30]
    client = stage.context.new_cdp_session(stage)
    client.send("HeapProfiler.collectGarbage")
    counts = client.send("Memory.getDOMCounters")
    client.detach()
    assert counts["nodes"] < 2000, counts
