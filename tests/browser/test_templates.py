"""Templates: written as JSON with mistakes shown at their line, started by a form made of what they ask."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.browsing import Person
from tests.browser.forming import HOSTILE, expected, is_text, refused, said
from tests.browser.house import House, task

INPUTS: dict[str, Any] = {
    "env": {"description": "where to", "choices": ["staging", "production"], "default": "staging"},
    "version": {"description": f"e.g. 1.2.3 {HOSTILE}", "required": True},
    "note": {"default": "as always"},
}


def _put(house: House, name: str, **fields: Any) -> Any:
    body = {"plan": {"jobs": [task("deploy", 'echo "$INPUT_ENV"')]}, "inputs": INPUTS, **fields}
    return house.ask("PUT", f"/templates/{name}", body, token=house.key("ada"))


def _edit(page: Page, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


def test_a_template_is_written_and_mistakes_are_shown_at_their_line(ada: Person) -> None:
    """Not JSON, a field that is not known, a job that needs nobody: each with its line, and nothing is lost."""
    page = ada.go("/templates")
    page.get_by_role("link", name="New template").click()
    ada.check()
    ada.check_fits()
    _edit(page, "Name", "web.written")
    _edit(page, "Description", HOSTILE)
    _edit(page, "Plan", '{\n  "jobs": [\n    {"name": "a" "work": {}}\n  ]\n}')
    page.get_by_role("button", name="Save the template").click()
    plan = refused(ada, "Plan", "line 3, column 18")
    assert page.evaluate("document.activeElement.selectionStart") == len('{\n  "jobs": [\n')

    plan.fill('{\n  "jobs": [\n    {"name": "a", "work": {"steps": ["true"]}},\n    {"name": "b", "wrok": {}}\n  ]\n}')
    page.get_by_role("button", name="Save the template").click()
    plan = refused(ada, "Plan", "line 4, column 5, jobs[1]: ")
    expect(page.locator("#plan-problem")).to_contain_text("did you mean 'work'?")
    ada.check()

    plan.fill('{\n"jobs": [\n{"name": "a", "work": {"steps": ["true"]}},\n{"name": "b", "needs": ["c"]}]}')
    page.get_by_role("button", name="Save the template").click()
    plan = refused(ada, "Plan", "'b'")
    _edit(page, "Inputs", '{"env": {"choices": "all"}}')
    plan.fill('{"jobs": [{"name": "a", "work": {"steps": ["true"]}}]}')
    page.get_by_role("button", name="Save the template").click()
    refused(ada, "Inputs", "Expected `array`").fill("{}")
    _edit(page, "Name", "no name")
    page.get_by_role("button", name="Save the template").click()
    refused(ada, "Name", "letters, digits").fill("web.written")
    expect(page.get_by_label("Description")).to_have_value(HOSTILE)
    page.get_by_role("button", name="Save the template").click()

    said(page, "Version 1 of web.written was saved.")
    is_text(page, page.locator("main .text"))
    expect(page.get_by_text("This template has no inputs.")).to_be_visible()
    ada.go("/templates")
    is_text(page, page.locator("#template-web\\.written"))
    ada.check()
    ada.check_fits()


def test_a_run_is_started_by_what_the_template_asks_and_only_once(ada: Person, house: House) -> None:
    """Required, default and choices as they are; a form that is sent twice makes one run."""
    _put(house, "web-start")
    page = ada.go("/templates/web-start")
    page.get_by_role("link", name="Start a run").click()
    expect(page.get_by_label("env")).to_have_value("staging")
    ada.go("/templates/web-start/start?input.env=production")
    expect(page.get_by_label("env")).to_have_value("production")
    page.get_by_label("env").select_option("staging")
    expect(page.get_by_label("note")).to_have_value("as always")
    is_text(page, page.locator("[id='input.version-help']"))
    page.get_by_label("env").select_option("production")
    page.get_by_label("note").fill("")
    page.get_by_text("Title, project, branch, labels").click()
    page.get_by_label("Title").fill("By the form")
    ada.check()
    ada.check_fits()
    page.get_by_role("button", name="Start run").click()
    refused(ada, "version (required)", "needs the input 'version'").fill("1.2.3")
    expect(page.get_by_label("env")).to_have_value("production")

    form = {each: page.locator(f"#form input[name={each}]").input_value() for each in ("csrf", "once", "version")}
    page.get_by_label("version (required)").press("Enter")
    page.wait_for_url("**/runs/r*")
    run = page.url.rpartition("/")[2]
    asked: dict[str, str | float | bool] = {
        **form,
        "input.version": "1.2.3",
        "input.env": "production",
        "input.note": "",
        "title": "By the form",
    }
    again = page.request.post("/templates/web-start/start", form=asked, headers={"Origin": house.url}, max_redirects=0)

    assert again.headers["location"] == f"/runs/{run}"
    found = house.ask("GET", "/runs?template=web-start")["runs"]
    assert [each["id"] for each in found] == [run]
    assert found[0]["inputs"] == {"env": "production", "version": "1.2.3", "note": ""}
    assert found[0]["title"] == "By the form"
    other = page.request.post(
        "/templates/web-start/start",
        form={**asked, "input.version": "2"},
        headers={"Origin": house.url},
        max_redirects=0,
    )
    assert other.status == 422
    assert f"already started run {run}" in other.text()
    assert form["once"] not in other.text()


def test_a_template_shows_what_waits_for_what_and_the_way_to_its_runs(ada: Person, house: House) -> None:
    """Jobs of which none says what it needs go one after the other; the runs are those of this template alone."""
    _put(house, "web-order", plan={"jobs": [task("build"), task("test"), task("ship")]}, inputs={})
    run = house.ask("POST", "/runs", {"template": "web-order"}, token=house.key("ada"))["id"]
    other = house.start(task("web-order-in-name-only"), title="web-order")
    page = ada.go("/templates/web-order")
    expect(page.get_by_role("row").filter(has_text="ship").first).to_contain_text("test")

    page.get_by_role("link", name="All runs").click()

    expect(page.locator(f"#run-{run}")).to_be_visible()
    expect(page.locator(f"#run-{other}")).to_have_count(0)
    expect(page.get_by_label("Template")).to_have_value("web-order")


def test_versions_are_kept_and_who_is_slower_is_told(ada: Person, house: House) -> None:
    """Somebody else saved meanwhile: refused, with the way to look at theirs; what was typed is still there."""
    _put(house, "web-versions", description="the first")
    page = ada.go("/templates/web-versions/edit")
    mine = json.dumps({"jobs": [task("mine")]})
    _edit(page, "Plan", mine)
    _edit(page, "Description", "mine")
    _put(house, "web-versions", description="the second, of somebody else")
    page.get_by_role("button", name="Save a new version").click()

    expect(page.get_by_role("alert")).to_contain_text("is at version 2, not 1")
    expect(page.get_by_role("alert")).to_contain_text("ada saved version 2")
    expected(ada, 422)
    expect(page.get_by_label("Plan", exact=True)).to_have_value(mine)
    expect(page.get_by_role("link", name="Show version 2")).to_be_visible()
    ada.check()
    page.get_by_role("button", name="Save a new version").click()
    said(page, "Version 3 of web-versions was saved.")

    page.get_by_role("link", name="Version 1", exact=True).click()
    expect(page.get_by_text("the newest is version 3")).to_be_visible()
    expect(page.locator("main .text")).to_have_text("the first")
    ada.check()
    ada.check_fits()
    page.get_by_role("link", name="Edit from this version").click()
    expect(page.get_by_label("Description")).to_have_value("the first")
    page.get_by_role("button", name="Save a new version").click()
    said(page, "Version 4")

    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    said(page, "The template web-versions was removed.")
    expect(page.locator("#template-web-versions")).to_have_count(0)
    ada.check(is_accessible=False)
