"""Signing in, by a key, a link and an issuer; tenants; and what keeps others out, in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, Request, expect

from deltaci.server.web import routes
from deltaci.server.web.assets import FIRST
from tests.browser.browsing import PATIENCE_MS, Person
from tests.browser.house import TENANT, House, task
from tests.support.login_issuer import PeopleIssuer, people_issuer, settings_file

OTHER: Final = "other"
EVIL: Final = "http://evil.test"
LISTEN: Final = """
window.broken = [];
addEventListener("securitypolicyviolation", (event) => window.broken.push(event.violatedDirective, event.blockedURI));
"""

Visitor = Callable[..., Person]


def menu(page: Page) -> None:
    """Open the account's."""
    page.locator("#account > summary").click()


def enter(page: Page, key: str) -> None:
    """Show a key at the door."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


# -- keys


def test_the_door_opens_by_keyboard_alone_and_leads_to_what_was_wanted(visitor: Visitor, house: House) -> None:
    """A wrong key is said to be wrong; what was pasted can be looked at; nothing of it is in the page."""
    person = visitor()
    page = person.page
    page.goto("/runs?status=FAILED")
    expect(page).to_have_url(re.compile(r"/sign-in\?to="))
    expect(page.get_by_label("API key")).to_be_focused()
    person.check()
    person.check_fits()

    key = house.key("ada")
    page.keyboard.type(key[:-2] + ("yy" if key.endswith("xx") else "xx"))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("API key")).to_have_attribute("type", "text")
    expect(page.get_by_role("button", name="Hide")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is no API key of this server.")
    expect(page.get_by_text("deltaci key create you --scope run")).to_be_visible()
    assert house.key("ada")[:-2] not in page.content()
    person.complaints.clear()  # The browser mentions every 401.
    person.check()
    person.check_fits()

    page.keyboard.type(house.key("ada"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{house.url}/runs?status=FAILED")
    person.check(is_accessible=False)


def test_a_link_of_the_operator_opens_the_door_by_itself(visitor: Visitor, house: House) -> None:
    """`deltaci web` prints it. What follows # is neither sent nor kept; a link that anybody could make does nothing."""
    asked = [sys.executable, "-m", "deltaci", "web", "--print", "--data", str(house.folder), "--server", house.url]
    link = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    person = visitor()
    sent: list[str] = []
    person.page.on("request", lambda request: sent.append(request.url))

    person.page.goto(link)

    expect(person.page).to_have_url(f"{house.url}/runs")
    expect(person.page.locator("#account")).to_contain_text(TENANT)
    assert [each for each in sent if "token" in each.partition("#")[0]] == []
    person.page.go_back()
    assert "token" not in person.page.url
    person.check(is_accessible=False)

    stranger = visitor()
    stranger.page.goto(f"/sign-in#token={house.key('mallory')}")
    expect(stranger.page.get_by_role("button", name="Show")).to_be_visible()
    expect(stranger.page.get_by_label("API key")).to_have_value("")


def test_everything_at_the_door_works_without_scripts(visitor: Visitor, house: House) -> None:
    """Signing in, to two tenants, switching, and out."""
    page = visitor(java_script_enabled=False).page
    page.goto("/sign-in")
    expect(page.get_by_role("button", name="Show")).to_be_hidden()
    enter(page, house.key("ada"))
    page.goto("/sign-in")
    enter(page, house.key("ada", tenant=OTHER))
    expect(page.locator("#account summary")).to_contain_text(OTHER)

    menu(page)
    page.get_by_role("button", name=TENANT, exact=True).click()
    expect(page.get_by_text(f"You are now viewing {TENANT}.")).to_be_visible()
    expect(page.locator("#account summary")).to_contain_text(TENANT)
    menu(page)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    page.goto("/runs")
    expect(page).to_have_url(f"{house.url}/sign-in?to=%2Fruns")


def test_a_page_that_is_looked_at_ends_with_its_key(visitor: Visitor, house: House) -> None:
    """Without a reload, and it says why."""
    made = house.ask("POST", "/keys", {"person": "temp", "scopes": ["read"]})
    person = visitor().sign_in(made["token"])
    expect(person.page.locator("#live-word")).to_have_text("live")

    house.ask("POST", f"/keys/{made['id']}/revoke")

    expect(person.page).to_have_url(re.compile(r"/sign-in\?to=%2Fruns"), timeout=PATIENCE_MS)
    expect(person.page.get_by_role("alert")).to_have_text("The API key was revoked.")


# -- tenants


def test_a_tab_that_was_left_behind_notices_the_switch(visitor: Visitor, house: House) -> None:
    """It shows the other tenant, all of it, and says so; a form of before does nothing."""
    ours = house.start(task("a"), title="Only of the default tenant")
    person = visitor().sign_in(house.key("ada"))
    page = person.page
    page.goto("/sign-in")
    enter(page, house.key("ada", tenant=OTHER))
    menu(page)
    page.get_by_role("button", name=TENANT, exact=True).click()
    expect(page.locator(f"#run-{ours}")).to_be_visible()
    form = person.new_page()
    form.goto("/new/key")
    form.get_by_label("Person").fill("left.behind")
    left = person.new_page()
    left.goto("/runs")
    expect(left.locator(f"#run-{ours}")).to_be_visible()

    menu(page)
    page.get_by_role("button", name=OTHER, exact=True).click()

    expect(left.locator("#account summary")).to_contain_text(OTHER)
    expect(left.locator(f"#run-{ours}")).to_have_count(0)
    form.get_by_role("button", name=re.compile("Create")).click()
    expect(form.get_by_role("alert")).to_contain_text(f"this browser now shows '{OTHER}'")
    for tenant in (TENANT, OTHER):
        keys = house.ask("GET", "/keys?limit=200", token=house.key("ada", tenant=tenant))["keys"]
        assert "left.behind" not in [key["person"] for key in keys]
    left.goto(f"/runs/{ours}")
    expect(left.get_by_text(f"another tenant than '{OTHER}'")).to_be_visible()
    person.page = left
    person.complaints.clear()  # The browser mentions every 404.
    person.check()
    person.check_fits()


# -- an issuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[PeopleIssuer]:
    """One with people."""
    with people_issuer() as issuer:
        ada = {"email": "ada@example.org", "email_verified": True, "groups": ["dev", "lead"]}
        issuer.people = {"ada": ada, "eve": {**ada, "email": "eve@example.org", "groups": []}}
        yield issuer


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, issuer: PeopleIssuer) -> Iterator[House]:
    """A server that trusts it."""
    folder: Path = tmp_path_factory.mktemp("trusting")
    grants = ("dev=default:run:", "lead=release:approve:lead")
    file = settings_file(folder, issuer, *grants, name="Example SSO")
    house = House(folder, "--web-oidc", str(file)).open(slots=0)
    yield house
    house.close()


def test_people_sign_in_at_their_issuer(visitor: Visitor, trusting: House) -> None:
    """There, back, where they wanted to go, with all that their groups give them; and out again."""
    person = visitor(trusting)
    page = person.page
    page.goto("/templates?x=1")
    link = page.get_by_role("link", name="Continue with Example SSO")
    person.check()
    person.check_fits()
    link.click()
    expect(page.get_by_role("heading", name="Example SSO")).to_be_visible()
    page.get_by_label("Name").fill("ada")
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{trusting.url}/templates?x=1")
    expect(page.locator("#account summary")).to_contain_text("ada@example.org")
    expect(page.locator("#account summary")).to_contain_text("default")
    menu(page)
    page.get_by_role("button", name="release", exact=True).click()
    expect(page.get_by_text("You are now viewing release.")).to_be_visible()
    menu(page)
    expect(page.get_by_text("Scopes: approve, read")).to_be_visible()
    person.check()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    person.check(is_accessible=False)


def test_who_is_granted_nothing_is_told_so(visitor: Visitor, trusting: House) -> None:
    """And who was not let in by the issuer, too; a key still opens the door."""
    person = visitor(trusting)
    page = person.page
    for user, why in (("eve", "You are eve@example.org, but none of your groups"), ("nobody", "'access_denied'")):
        page.goto("/sign-in/oidc")
        page.get_by_label("Name").fill(user)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text(why)
        expect(page).to_have_url(f"{trusting.url}/sign-in")
    person.check()
    person.sign_in(trusting.key("bob", "read"))
    expect(page.locator("#account summary")).to_contain_text("bob")


# -- safety


def test_no_page_breaks_the_policy_or_asks_anybody_else(ada: Person, house: House) -> None:
    """Every page that the table knows: nothing inline, nothing from elsewhere."""
    run = house.start(task("build"), title="For the policy")
    house.until(run)
    house.ask("PUT", "/templates/policy", {"plan": {"jobs": [task("a")]}}, token=house.key())
    known = {"run": run, "job": "build", "template": "policy", "version": "1"}
    elsewhere: list[str] = []

    def look(request: Request) -> None:
        if not request.url.startswith(house.url):
            elsewhere.append(request.url)

    page = ada.page
    page.on("request", look)
    page.add_init_script(LISTEN)
    seen = 0
    for route in routes.PAGES:
        names = re.findall(r"{(\w+)}", route.path)
        if route.get is None or route.path in ("/", "/live") or "." in route.path or set(names) - set(known):
            continue
        answer = page.goto(route.path.format(**known))
        assert answer is not None
        assert answer.status == 200, route.path
        page.wait_for_load_state()
        assert page.evaluate("window.broken") == [], route.path
        text = answer.text().replace(f"<script>{FIRST}</script>", "", 1)
        assert not re.search(r"<style|<script>|<[^>]*\s(?:style|on[a-z]+)=", text), route.path
        seen += 1
    assert seen >= 10
    assert elsewhere == []
    ada.check(is_accessible=False)


def test_another_site_can_neither_act_nor_frame_nor_read(ada: Person, house: House) -> None:
    """Its forms are refused, its frames stay empty, and it learns nothing from the API."""
    page = ada.new_page()
    attack = f"""<!doctype html><title>evil</title>
    <form method="post" action="{house.url}/sign-out"><input name="csrf" value="x"></form>
    <iframe src="{house.url}/runs" name="framed"></iframe>"""
    page.context.route(f"{EVIL}/**", lambda route: route.fulfill(body=attack, content_type="text/html"))
    page.goto(f"{EVIL}/")
    read = """async (url) => { try { return await (await fetch(url, {credentials: "include"})).text(); }
    catch { return "kept out"; } }"""
    assert page.evaluate(read, f"{house.url}/api/v1/runs") == "kept out"
    assert "deltaci" not in (page.frame("framed").evaluate("document.documentElement.innerText") or "").lower()  # type: ignore[union-attr]

    page.evaluate("document.forms[0].submit()")

    expect(page.get_by_text("another site sent the form")).to_be_visible()
    page.close()
    ada.complaints.clear()  # The browser says what it refused.
    ada.go("/runs")
    expect(ada.page.locator("#account summary")).to_contain_text("ada")
    # A link from there to here is a link like any other.
    follows = ada.new_page()
    follows.goto(f"{EVIL}/")
    follows.evaluate("(url) => { location.href = url; }", f"{house.url}/runs")
    expect(follows.locator("#account summary")).to_contain_text("ada")


def test_pages_that_say_why_there_is_none(ada: Person) -> None:
    """They say what to do, and keep nobody out."""
    for path, says in (("/nowhere", "There is no page '/nowhere'."), ("/runs/run-0", "There is no")):
        ada.page.goto(path)
        expect(ada.page.get_by_text(says).first).to_be_visible()
        expect(ada.page.get_by_text("What to do:")).to_be_visible()
        ada.complaints.clear()  # The browser mentions every 404.
        ada.check()
        ada.check_fits()
