"""Secrets: they go in and never come out, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.browsing import Person
from tests.browser.forming import refused, said
from tests.browser.house import House

VALUE = "-----BEGIN KEY-----\nline-two-of-it\n-----END KEY-----"


def test_a_secret_goes_in_reaches_its_job_and_never_comes_out(ada: Person, house: House) -> None:
    """With the ends of lines that a key has; in no page and no answer afterwards."""
    page = ada.go("/secrets")
    page.get_by_role("link", name="New secret").click()
    page.get_by_label("Name").fill("WEB_KEY")
    page.get_by_label("Value").fill(VALUE + "\n")
    ada.check()
    ada.check_fits()
    page.get_by_role("button", name="Save the secret").click()

    said(page, "The secret WEB_KEY was set. For all jobs.")
    steps = ['printf %s "$WEB_KEY" | sha256sum']
    run = house.start({"name": "use", "work": {"steps": steps, "secrets": ["WEB_KEY"], "executor": "process"}})
    house.until(run, "SUCCEEDED")
    assert sha256(VALUE.encode()).hexdigest() in house.ask("GET", f"/runs/{run}/jobs/use/log").decode()
    for address in ("/secrets", "/new/secret?name=WEB_KEY", "/new/project"):
        assert "line-two-of-it" not in ada.go(address).content(), address
    assert "line-two-of-it" not in str(house.ask("GET", "/secrets?limit=200"))
    ada.check(is_accessible=False)


def test_secrets_are_listed_by_scope_replaced_and_removed(ada: Person, house: House) -> None:
    """Each with whom it is for; removing asks, and says which of those of one name it is."""
    for scope in ({}, {"project": "shop"}, {"project": "shop", "branch": "release/*"}):
        house.ask("PUT", "/secrets/SCOPED", {"value": "first-value", **scope})
    page = ada.go("/secrets")
    lines = page.locator("tr", has_text="SCOPED")
    expect(lines).to_have_count(3)
    expect(lines.nth(0)).to_contain_text("all jobs")
    expect(lines.nth(2)).to_contain_text("shop on release/*")
    ada.check()
    ada.check_fits()

    lines.nth(2).get_by_role("link", name="Replace").click()
    expect(page.get_by_label("Branches")).to_have_value("release/*")
    expect(page.get_by_label("Value")).to_have_value("")
    page.get_by_label("Value").fill("second-value")
    page.get_by_role("button", name="Save the secret").click()
    said(page, "was replaced (version 2). Project shop, branches release/*.")

    lines.nth(1).get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Project shop")
    dialog.get_by_role("button", name="Remove").click()
    said(page, "The secret SCOPED was removed. Project shop.")
    left = [secret for secret in house.ask("GET", "/secrets?limit=200")["secrets"] if secret["name"] == "SCOPED"]
    assert [(each["project"], each["branch"], each["version"]) for each in left] == [
        ("", "", 1),
        ("shop", "release/*", 2),
    ]
    ada.check(is_accessible=False)


def test_what_is_wrong_elsewhere_does_not_send_the_value_back(ada: Person) -> None:
    """All else that was typed is still there."""
    page = ada.go("/new/secret")
    page.get_by_label("Name").fill("not a name")
    page.get_by_label("Value").fill("never-sent-back")
    page.get_by_label("Project").fill("shop")
    page.get_by_role("button", name="Save the secret").click()
    refused(ada, "Name", "letters, digits").fill("GOOD")
    assert "never-sent-back" not in page.content()
    expect(page.get_by_label("Value")).to_have_value("")
    expect(page.get_by_role("alert")).to_contain_text("Enter the value again")
    ada.check()

    page.get_by_role("button", name="Save the secret").click()
    refused(ada, "Value", "4 to 65,536").fill("never-sent-back")
    page.get_by_label("Branches").fill("[")
    page.get_by_role("button", name="Save the secret").click()
    refused(ada, "Branches", "pattern")
    expect(page.get_by_label("Project")).to_have_value("shop")
    assert "never-sent-back" not in page.content()


def test_a_server_that_cannot_keep_secrets_says_why(
    visitor: Callable[..., Person], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not installed, and the command that installs it."""
    shadow = tmp_path / "shadow" / "cryptography"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ModuleNotFoundError('it is not here')\n")
    monkeypatch.setenv("PYTHONPATH", f"{shadow.parent}:{Path(__file__).parents[2] / 'src'}")
    house = House(tmp_path, is_forked=False)
    try:
        house.open(slots=0)
        ada = visitor(house).let_in(house.key("ada"))
        page = ada.go("/new/secret")
        page.get_by_label("Name").fill("TOKEN")
        page.get_by_label("Value").fill("never-sent-back")
        page.get_by_role("button", name="Save the secret").click()

        expect(page.get_by_role("alert")).to_contain_text("pip install 'deltaci[secrets]'")
        expect(page.get_by_label("Name")).to_have_value("TOKEN")
        assert "never-sent-back" not in page.content()
    finally:
        house.close()
