"""API keys: made once, shown once, revoked for good."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.browsing import Person
from tests.browser.forming import expected, refused, said
from tests.browser.house import House


def test_a_key_is_shown_once_and_lets_its_person_in(ada: Person, house: House) -> None:
    """In the answer to the form and nowhere else: not in any page later, and looking again makes no other key."""
    page = ada.go("/keys")
    page.get_by_role("link", name="New key").click()
    page.get_by_label("Person").fill("deploy-bot")
    page.get_by_label("run –").check()
    page.get_by_label("Roles").fill("release, qa")
    page.get_by_label("Expires").select_option(label="in 7 days")
    page.get_by_label("Description").fill("starts deployments")
    ada.check()
    ada.check_fits()
    with page.expect_response("**/new/key") as answered:
        page.get_by_role("button", name="Create the key").click()

    token = page.get_by_label("API key", exact=True).input_value()
    assert answered.value.headers["cache-control"] == "no-store"
    me = house.ask("GET", "/me", token=token)
    assert (me["person"], me["scopes"], me["roles"]) == ("deploy-bot", ["read", "run"], ["release", "qa"])
    expect(page.get_by_label("For the command line")).to_have_value(re.compile(f"DELTACI_KEY={re.escape(token)}$"))
    ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy API key").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token
    ada.check()
    ada.check_fits()

    page.reload()
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
    secret = token.split("_", 2)[2]  # The secret itself may contain "_".
    assert len(secret) > 30
    assert secret not in page.content()
    assert secret not in str(house.ask("GET", "/keys?limit=200"))
    lines = page.locator("tr", has_text="deploy-bot")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("in 7 days")
    ada.check()


def test_what_makes_no_key_loses_nothing(ada: Person) -> None:
    """A wrong name, no scope, a wrong role: each at its field."""
    page = ada.go("/new/key")
    page.get_by_label("Description").fill("kept <b>")
    page.get_by_label("Person").fill("not a person")
    page.get_by_role("button", name="Create the key").click()
    refused(ada, "Person", "letters, digits").fill("grace")

    page.get_by_label("read –").uncheck()
    page.get_by_role("button", name="Create the key").click()
    expect(page.locator("#scopes-problem")).to_contain_text("at least one")
    expect(page.get_by_label("read –")).to_be_focused()
    expected(ada, 422)
    ada.check(has_contrast=True)

    page.get_by_label("approve –").check()
    page.get_by_label("Roles").fill("ré")
    page.get_by_label("Roles").press("Enter")
    refused(ada, "Roles", "role names separated by spaces")
    expect(page.get_by_label("Description")).to_have_value("kept <b>")
    expect(page.get_by_label("Person")).to_have_value("grace")
    expect(page.get_by_label("approve –")).to_be_checked()
    ada.check()


def test_a_revoked_key_lets_nobody_in_and_ones_own_ends_the_visit(visitor: Callable[..., Person], house: House) -> None:
    """Who revokes the key that they are signed in with is told before, and has to sign in again."""
    own = house.key("lin", "admin")
    made = house.ask("POST", "/keys", {"person": "eve", "scopes": ["read"]})
    lin = visitor().sign_in(own)
    page = lin.go("/keys")

    page.locator(f"#key-{made['id']}").get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(made["id"])
    expect(dialog).not_to_contain_text("signed out")
    lin.check(has_contrast=True)
    dialog.get_by_role("button", name="Not now").click()
    page.locator(f"#revoke-{made['id']}").click()
    dialog.get_by_role("button", name="Revoke").click()
    said(page, f"The key {made['id']} of eve was revoked.")
    expect(page.locator(f"#key-{made['id']}")).to_contain_text("revoked")
    expect(page.locator(f"#key-{made['id']}").get_by_role("button", name="Revoke")).to_have_count(0)
    lin.check()
    lin.check_fits()

    mine = own.split("_")[1]
    page.locator(f"#revoke-{mine}").click()
    expect(dialog).to_contain_text("will be signed out")
    dialog.get_by_role("button", name="Revoke").click()
    page.wait_for_url("**/sign-in*")
    expect(page.get_by_text("revoked")).to_be_visible()


def test_who_may_not_is_told_what_is_needed(visitor: Callable[..., Person], house: House) -> None:
    """A page without a form, that says which scope is missing and whom to ask."""
    reader = visitor().let_in(house.key("reader", "read"))
    for path in ("/keys", "/new/key", "/secrets", "/new/secret", "/new/project", "/new/template"):
        answer = reader.page.goto(path)
        assert answer is not None
        assert answer.status == 403
        expect(reader.page.get_by_text("This needs the scope admin")).to_be_visible()
        assert reader.page.locator("main form").count() == 0
    expected(reader, 403)
    reader.check()
