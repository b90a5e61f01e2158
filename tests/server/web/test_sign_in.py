"""Signing in and out of the web interface, and to several tenants, without a browser."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import urlencode

from deltaci.app import registration_token
from tests.contract.backends import on_loop
from tests.server.web.pages import pages, probing, said

ELSEWHERE = (
    "https://evil.example.org/",
    "//evil.example.org/runs",
    "/\\evil.example.org/runs",
    "/runs\\..\\..",
    "\\/evil.example.org",
    "/runs\r\nSet-Cookie: a=b",
    "/\t/evil.example.org",
    "javascript:alert(1)",
    "runs",
    "/sign-in",
    "/sign-out",
    "/tenant",
    "/live",
    "/nowhere",
    "http://[",
    "//[",
)


@on_loop
async def test_what_is_wrong_with_a_key_is_said_and_the_key_is_not(tmp_path: Path) -> None:
    """Nobody is left to guess, and nothing that was typed comes back."""
    async with pages(tmp_path) as site:
        reader = site.reader()
        good, revoked, old = [await site.key("run") for _ in range(2)] + [await site.key("run", expires_seconds=1)]
        await site.revoke(revoked)
        wrong = good[:-3] + ("AAA" if not good.endswith("AAA") else "BBB")
        site.later(2)

        for key, why in (
            (wrong, "That is no API key of this server."),
            (f"dck_{'0' * 16}_{'x' * 43}", "That is no API key of this server."),
            (revoked, "The API key was revoked."),
            (old, "The API key has expired."),
            ("", "The key field is empty"),
            ("  ", "The key field is empty"),
            ("x" * 5000, "Not an API key"),
            ("schlüssel", "Not an API key"),
            ("two words", "Not an API key"),
            ("<x-probe>", "That is no API key"),
            (registration_token(tmp_path, "w1", "default"), "Not an operator token"),
            ("dci_x.y", "Not an operator token"),
            ("dci_x", "Not an operator token"),
        ):
            answer = await reader.sign_in(key)

            assert answer.status_code == 401
            assert why in said(answer), key
            assert not key.strip() or key not in answer.text
            assert reader.cookie() == ""
        assert (await reader.get("/runs")).headers["location"] == "/sign-in?to=%2Fruns"


@on_loop
async def test_a_good_key_opens_the_page_that_was_wanted(tmp_path: Path) -> None:
    """Somebody who follows a link from a chat signs in and is there."""
    async with pages(tmp_path) as site:
        reader = site.reader()
        first = await reader.get("/runs?q=a%20b&status=FAILED")
        assert first.headers["location"] == "/sign-in?to=%2Fruns%3Fq%3Da%2520b%26status%3DFAILED"
        assert 'value="/runs?q=a%20b&amp;status=FAILED"' in (await reader.get(first.headers["location"])).text

        answer = await reader.sign_in(f" {await site.key()}\n", to="/runs?q=a%20b&status=FAILED")

        assert answer.status_code == 303
        assert answer.headers["location"] == "/runs?q=a%20b&status=FAILED"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("deltaci_session=")
        assert cookie.endswith("; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax")
        assert "<strong>ada</strong> to <strong>default</strong>" in (await reader.get("/runs")).text


@on_loop
async def test_nobody_is_led_elsewhere(tmp_path: Path) -> None:
    """A link to our door must not end at somebody else's page."""
    async with pages(tmp_path) as site:
        key = await site.key()
        for to in ELSEWHERE:
            reader = site.reader()

            page = await reader.get(f"/sign-in?{urlencode({'to': to})}")
            answer = await reader.sign_in(key, to=to)

            assert 'name="to" value=""' in page.text, to
            assert answer.headers["location"] == "/runs"
            assert len(answer.headers.get_list("set-cookie")) == 1


@on_loop
async def test_the_operator_comes_in_with_a_token_or_with_a_link(tmp_path: Path) -> None:
    """The token lasts as long as it says; a link is good for minutes, and for nothing but this."""
    async with pages(tmp_path) as site:
        signer = site.service.signer
        link, stale = signer.sign("enter", "grace", "team", 600), signer.sign("enter", "grace", "team", -1)

        by_token, by_link = site.reader(), site.reader()
        assert (await by_token.sign_in(site.operator())).status_code == 303
        assert (await by_link.sign_in(link)).status_code == 303
        assert "<strong>root</strong> to <strong>default</strong>" in (await by_token.get("/runs")).text
        assert "<strong>grace</strong> to <strong>team</strong>" in (await by_link.get("/runs")).text

        assert "The link has expired; run 'deltaci web' to get a new one." in said(await site.reader().sign_in(stale))
        refused = await by_link.http.get("/api/v1/me", headers={"Authorization": f"Bearer {link}"})
        assert refused.status_code == 401
        assert "'enter'" in refused.json()["message"]

        site.later(3601)
        assert (await by_token.get("/runs")).headers["location"] == "/sign-in?to=%2Fruns"
        assert (await by_link.get("/runs")).status_code == 200
        site.later(12 * 3600)
        assert "Your session has expired" in said(await by_link.get("/runs"))


@on_loop
async def test_who_signs_out_is_out_everywhere(tmp_path: Path) -> None:
    """A copy of the cookie is worth nothing from then on, at any server; nobody else is signed out."""
    async with pages(tmp_path) as site:
        ada, bob, copy = await site.signed_in(), await site.signed_in(person="bob"), site.reader()
        copy.set_cookie(ada.cookie())
        assert (await copy.get("/runs")).status_code == 200

        answer = await ada.send("/sign-out")

        assert answer.headers["location"] == "/sign-in"
        assert "deltaci_session=; Path=/; Max-Age=0" in answer.headers["set-cookie"]
        assert ada.cookie() == ""
        stale = await copy.get("/runs")
        assert stale.headers["location"] == "/sign-in?to=%2Fruns"
        assert "signed out" in said(stale)
        assert (await copy.http.get("/api/v1/me")).status_code == 401
        assert (await bob.get("/runs")).status_code == 200
        assert (await ada.send("/sign-out")).headers["location"] == "/sign-in"  # Once more does no harm.


@on_loop
async def test_a_session_has_a_new_name_after_signing_in(tmp_path: Path) -> None:
    """Who planted a cookie in somebody's browser knows nothing of what they sign in to, and the old one is over."""
    async with pages(tmp_path) as site:
        mallory = await site.signed_in(tenant="hers", person="mallory")
        planted = mallory.cookie()
        ada = site.reader()
        ada.set_cookie(planted)

        await ada.sign_in(await site.key())
        await ada.get("/runs")

        assert ada.cookie() != planted
        mallory.set_cookie(planted)
        assert (await mallory.get("/runs")).status_code == 303
        assert ada.csrf != mallory.csrf


@on_loop
async def test_a_revoked_key_ends_what_it_began_and_nothing_else(tmp_path: Path) -> None:
    """The next request says why; what the browser is signed in to besides is offered."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in(tenant="other")
        key = await site.key("run")
        await reader.sign_in(key)
        assert "to <strong>default</strong>" in (await reader.get("/runs")).text

        await site.revoke(key)
        answer = await reader.get("/runs?q=x")

        assert answer.headers["location"] == "/sign-in?to=%2Fruns%3Fq%3Dx"
        assert said(answer) == "!The API key was revoked."
        door = await reader.get(answer.headers["location"])
        assert "The API key was revoked." in said(door)
        assert "other as ada" in door.text
        moved = await reader.send("/tenant", tenant="other", to="/runs?q=x")
        assert moved.headers["location"] == "/runs?q=x"
        assert "to <strong>other</strong>" in (await reader.get("/runs")).text


# -- tenants


@on_loop
async def test_one_browser_looks_at_one_tenant_at_a_time(tmp_path: Path) -> None:
    """Signing in to another one adds it; every page says where one is."""
    async with pages(tmp_path) as site:
        run = (await site.api("POST", "/runs", {"plan": {"jobs": [_job()]}, "title": "of team"}, "team"))["id"]
        reader = await site.signed_in(tenant="team")
        await reader.sign_in(await site.key("read"))

        assert "of team" not in (await reader.get("/runs")).text
        assert (await reader.http.get(f"/api/v1/runs/{run}")).status_code == 404
        lost = await reader.get(f"/runs/{run}/nowhere")
        assert (lost.status_code, "another tenant than &#39;default&#39;" in lost.text) == (404, True)

        answer = await reader.post(
            "/tenant",
            {"csrf": reader.csrf, "tenant": "team"},
            {"Origin": site.url, "Referer": f"{site.url}/queue?x=1"},
        )
        assert answer.headers["location"] == "/queue"
        assert said(answer) == "You are now viewing team."
        assert "of team" in (await reader.get("/runs")).text
        assert 'data-tenant="team"' in (await reader.get("/runs")).text
        assert (await reader.http.get(f"/api/v1/runs/{run}")).status_code == 200


@on_loop
async def test_a_tenant_that_nobody_showed_a_key_for_stays_closed(tmp_path: Path) -> None:
    """However its name is sent."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in()
        for tenant in ("team", "", "default ", "1", "__proto__", "x" * 5000):
            answer = await reader.send("/tenant", tenant=tenant)
            assert (answer.status_code, "not signed in to" in answer.text) == (403, True)
        assert 'data-tenant="default"' in (await reader.get("/runs")).text
        assert (await site.reader().post("/tenant", {"tenant": "default"})).status_code == 401


@on_loop
async def test_a_form_of_one_tenant_does_nothing_in_another(tmp_path: Path) -> None:
    """Two tabs: one switched, and the other, which shows the old tenant, sends its form."""
    with probing() as probe:
        async with pages(tmp_path) as site:
            reader = await site.signed_in(tenant="team")
            await reader.sign_in(await site.key())
            await reader.get("/runs")
            of_default = reader.csrf
            await reader.send("/tenant", tenant="team")
            await reader.get("/runs")
            assert reader.csrf != of_default

            answer = await reader.post(
                "/probe", {"csrf": of_default}, {"Origin": site.url, "Referer": f"{site.url}/runs?q=1"}
            )

            assert answer.headers["location"] == "/runs?q=1"
            assert "the form belongs to the tenant 'default', but this browser now shows 'team'" in said(answer)
            assert probe.done == []
            assert (await reader.send("/probe")).status_code == 303
            assert probe.done == ["team"]


@on_loop
async def test_more_tenants_than_a_cookie_holds_leave_the_oldest_out(tmp_path: Path) -> None:
    """A browser throws away what is too large without a word; we do not come to that."""
    async with pages(tmp_path) as site:
        reader = site.reader()
        for number in range(30):
            tenant = f"{number:03}-{secrets.token_hex(60)}"
            assert (await reader.sign_in(await site.key("read", tenant=tenant))).status_code == 303
            assert len(reader.cookie()) < 4000
            assert f'data-tenant="{tenant}"' in (await reader.get("/runs")).text
        door = (await reader.get("/sign-in")).text
        assert "029-" in door
        assert "000-" not in door


def _job() -> dict[str, object]:
    return {"name": "a", "work": {"steps": ["true"]}, "runs_on": ["nobody"]}


@on_loop
async def test_the_old_address_of_the_page_that_adds_a_runner_redirects_permanently(tmp_path: Path) -> None:
    """A bookmark keeps working, with its query; a form that is still open in a browser is sent to the new address."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in(person="ada")

        read = await reader.get("/let-in?name=w1&again=1")
        sent = await reader.post("/let-in", {"csrf": reader.csrf})

        assert (read.status_code, read.headers["location"]) == (308, "/runners/new?name=w1&again=1")
        assert (sent.status_code, sent.headers["location"]) == (308, "/runners/new")
        assert (await reader.get("/runners/new")).status_code == 200
