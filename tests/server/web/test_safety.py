"""What another site, a forged cookie and a strange request get from the web interface: nothing."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from deltaci.server.web import live
from deltaci.server.web.app import POLICY, SAFE
from deltaci.server.web.assets import FIRST, FIRST_SOURCE, Assets
from deltaci.server.web.auth.revoked_sessions import ENDING, PLACE, RevokedSessions
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import on_loop
from tests.server.web.pages import WAIT_SECONDS, PagesSite, pages, probing, said

CROSS: dict[str, dict[str, str]] = {
    "cross-site": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example.org"},
    "another name of the same site": {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
    "cross-site with our origin": {"Sec-Fetch-Site": "cross-site", "Origin": "HERE"},
    "a foreign origin": {"Origin": "https://evil.example.org"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "origin null": {"Origin": "null"},
    "an origin that is none": {"Origin": "http://["},
    "nothing said": {},
    "only a referer": {"Referer": "HERE/runs"},
}


def test_the_policy_is_as_strict_as_it_can_be() -> None:
    """Whoever changes it must change it here too."""
    assert FIRST_SOURCE in POLICY
    assert POLICY.replace(f" {FIRST_SOURCE}", "") == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types page"
    )


def test_what_stands_in_a_page_itself_is_named_by_what_it_is() -> None:
    """By its digest, which browsers check. Nothing in it may end it early, for then it would be another."""
    assert FIRST_SOURCE.startswith("'sha256-")
    assert not any(each in FIRST.lower() for each in ("</script", "<!--"))


@on_loop
async def test_every_kind_of_answer_carries_what_keeps_browsers_safe(tmp_path: Path) -> None:
    """Pages, redirects, files, refusals, accidents."""
    with probing():
        async with pages(tmp_path) as site:
            reader = await site.signed_in()
            style = Assets().address("style.css")
            for path, status in (
                *(("/runs", 200), ("/", 303), ("/sign-in", 200), (style, 200), ("/assets/x/none.css", 404)),
                *(("/nowhere", 404), ("/sign-out", 405), ("/probe?break=1", 500)),
                *(("/favicon.ico", 200), ("/robots.txt", 200)),
            ):
                answer = await reader.get(path)

                assert answer.status_code == status, path
                assert {name: answer.headers.get(name) for name in SAFE} == SAFE
                assert answer.text.count("<script>") == answer.text.count(f"<script>{FIRST}</script>")
                assert " style=" not in answer.text
                assert " onclick=" not in answer.text
                if answer.headers.get("content-type", "").startswith("text/html"):
                    assert answer.headers["cache-control"] == "no-store"


# -- forms that others send


@on_loop
async def test_a_form_that_another_site_sent_does_nothing(tmp_path: Path) -> None:
    """Even with a token that is good: a browser says who began it."""
    with probing() as probe:
        async with pages(tmp_path) as site:
            reader = await site.signed_in()
            await reader.sign_in(await site.key(tenant="team"))
            await reader.get("/runs")
            before = reader.cookie()
            for name, headers in CROSS.items():
                told = {key: value.replace("HERE", site.url) for key, value in headers.items()}
                for path in ("/probe", "/tenant", "/sign-out", "/sign-in"):
                    fields = {"csrf": reader.csrf, "tenant": "default", "key": await site.key("read")}
                    answer = await reader.post(path, fields, told)

                    assert answer.status_code in (303, 403), name
                    assert "another site sent the form" in (said(answer) or answer.text), name
                    assert reader.cookie() == before
            assert probe.done == []
            assert (await reader.get("/runs")).status_code == 200


@on_loop
async def test_a_form_without_the_sessions_token_does_nothing(tmp_path: Path) -> None:
    """None, somebody else's, an older one's, two of them, half of one."""
    with probing() as probe:
        async with pages(tmp_path) as site:
            ada, bob = await site.signed_in(), await site.signed_in(person="bob")
            for fields in ({"x": "y"}, {"csrf": ""}, {"csrf": bob.csrf}, {"csrf": ada.csrf[:-1]}, {"csrf": "é"}):
                for path in ("/probe", "/tenant", "/sign-out"):
                    answer = await ada.post(path, {"tenant": "default", **fields})
                    assert answer.status_code == 403
                    assert "belongs to another session; reload the page" in answer.text
            twice = f"csrf={ada.csrf}&csrf={ada.csrf}"
            headers = {"Origin": site.url, "Content-Type": "application/x-www-form-urlencoded"}
            assert (await ada.http.post("/probe", content=twice, headers=headers)).status_code == 403
            old = ada.csrf
            await ada.sign_in(await site.key())
            assert (await ada.post("/probe", {"csrf": old})).status_code == 403
            assert probe.done == []

            await ada.get("/runs")
            for site_word in ("same-origin", "none"):
                assert (await ada.post("/probe", {"csrf": ada.csrf}, {"Sec-Fetch-Site": site_word})).status_code == 303
            assert probe.done == ["default", "default"]


@on_loop
async def test_a_form_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Another kind of content, too many fields, too much of it, what is no UTF-8."""
    with probing() as probe:
        async with pages(tmp_path) as site:
            reader = await site.signed_in()
            encoded = "application/x-www-form-urlencoded"
            for content, kind, status in (
                (json.dumps({"csrf": reader.csrf}).encode(), "application/json", 400),
                (json.dumps({"csrf": reader.csrf}).encode(), "text/plain", 400),
                (f"csrf={reader.csrf}&".encode() + b"a=b&" * 1001, encoded, 400),
                (f"csrf={reader.csrf}&a=".encode() + b"x" * 1024 * 1024, encoded, 413),
                (f"csrf={reader.csrf}&a=".encode() + b"\xff", encoded, 400),
            ):
                headers = {"Origin": site.url, "Content-Type": kind}
                answer = await reader.http.post("/probe", content=content, headers=headers)
                assert answer.status_code == status, answer.text
                assert "What to do: " in answer.text
            assert probe.done == []


# -- cookies


@on_loop
async def test_a_cookie_that_is_not_ours_is_no_session(tmp_path: Path) -> None:
    """Forged, cut, longer, of another use, of an earlier version: all the same as none."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in()
        good = reader.cookie()
        body, seal = good.split(".")
        sessions = site.service.control_plane.web._sessions
        admin = urlsafe_b64encode(b'{"id":"x","grants":[{"t":"default","p":"root","o":true,"e":9e18}]}').decode()
        for value in (
            *(body, f"{body}.", f".{seal}", f"{body}.{seal[:-4]}", f"{body}.{seal}.{seal}", f"{body[:-4]}.{seal}"),
            *(f"{admin}.{seal}", f"{admin}.", "x" * 60_000, "%00", "a.b", "=.=", '""'),
            sessions.sealed("oidc", b'{"id":"x","grants":[],"current":0,"expires_at":9999999999}'),
            sessions.sealed("session", b'{"id":"x","grants":[],"current":0,"expires_at":9999999999}'),
            sessions.sealed(
                "session", b'{"id":"x","grants":[{"t":"default","p":"ada"}],"current":-1,"expires_at":9e9}'
            ),
            sessions.sealed("session", b'{"some": "older version"}'),
            sessions.sealed("session", b"no JSON"),
        ):
            reader.http.cookies.clear()
            answer = await reader.http.get("/runs", headers={"Cookie": f"a=b; deltaci_session={value}; c=d"})
            assert answer.status_code == 303, value[:100]
            assert answer.headers["location"] == "/sign-in?to=%2Fruns"
        again = await reader.http.get("/runs", headers={"Cookie": f"a=b; deltaci_session={good};"})
        assert again.status_code == 200
        site.later(7 * 24 * 3600)
        assert (await reader.http.get("/runs", headers={"Cookie": f"deltaci_session={good}"})).status_code == 303


@on_loop
async def test_behind_tls_cookies_are_for_tls_alone(tmp_path: Path) -> None:
    """A proxy ends it before us; no neighbour under the same domain can plant one."""
    async with pages(tmp_path, public_url="https://ci.example.org") as site:
        reader = site.reader()
        headers = {"Origin": "https://ci.example.org", "Host": "inside:8080"}
        answer = await reader.post("/sign-in", {"key": await site.key()}, headers)

        [cookie] = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-deltaci_session=")
        assert cookie.endswith("; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax; Secure")
        value = cookie.partition("=")[2].partition(";")[0]
        for name, status in (("__Host-deltaci_session", 200), ("deltaci_session", 303)):
            assert (await reader.http.get("/runs", headers={"Cookie": f"{name}={value}"})).status_code == status
        bad = await reader.http.get("/runs", headers={"Cookie": f"__Host-deltaci_session={value[:-3]}"})
        assert bad.headers["location"] == "/sign-in?to=%2Fruns"


@on_loop
async def test_endings_are_dropped_when_they_say_nothing_any_more() -> None:
    """Nobody has to sweep up behind us."""
    store, now = MemoryStore(), 1000.0
    await store.open()
    endings = RevokedSessions(store, lambda: now, time.monotonic)

    for number in range(20):
        await endings.end(f"{number:02}", 1500)
        await endings.end(f"{number:02}", 1500)
    assert await endings.is_ended("07")
    assert not await endings.is_ended("77")
    now = 1501.0
    await endings.end("!", 9999)

    assert [document.name for document in await store.list_documents(ENDING, PLACE)] == ["!"]
    await store.close()


# -- what a page may ask the API


@on_loop
async def test_the_api_takes_a_session_for_reading_only(tmp_path: Path) -> None:
    """A page of ours reads; whatever changes something needs a key, and so no other site can do it."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in()
        run = {"plan": {"jobs": [{"name": "a", "work": {"steps": ["true"]}}]}}
        for headers in ({}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": site.url}):
            assert (await reader.http.post("/api/v1/runs", json=run, headers=headers)).status_code == 401
            assert (await reader.http.put("/api/v1/templates/t", json=run, headers=headers)).status_code == 401
            assert (await reader.http.delete("/api/v1/templates/t", headers=headers)).status_code == 401
        for site_word, status in (("same-origin", 200), ("none", 200), ("cross-site", 401), ("same-site", 401)):
            answer = await reader.http.get("/api/v1/runs", headers={"Sec-Fetch-Site": site_word})
            assert answer.status_code == status
            assert "access-control-allow-origin" not in answer.headers
        empty = await reader.http.get("/api/v1/runs", headers={"Authorization": "Bearer x"})
        assert empty.status_code == 401  # Who shows a key is who the key says.
        assert (await site.api("GET", "/runs"))["runs"] == []
        assert (await site.reader().http.get("/api/v1/runs")).status_code == 401


@on_loop
async def test_a_live_page_ends_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it is told something all the time."""
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.05)
    async with pages(tmp_path) as site:
        key = await site.key()
        reader = site.reader()
        await reader.sign_in(key)
        async with asyncio.timeout(WAIT_SECONDS), reader.http.stream("GET", "/live") as hints:
            lines = hints.aiter_lines()
            while await anext(lines) != "event: changed":
                pass
            await site.revoke(key)
            async for _ in lines:
                pass
        again = await reader.get("/live")
        assert again.headers["location"].startswith("/sign-in")


# -- strange requests


@on_loop
async def test_methods_that_a_page_does_not_take(tmp_path: Path) -> None:
    """Each is told what it does take."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in()
        for method, path, allow in (
            *((method, "/runs", "GET, HEAD") for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")),
            *(("POST", "/runs", "GET, HEAD"), ("POST", "/live", "GET, HEAD"), ("HEAD", "/live", "GET, HEAD")),
            *(("PUT", "/sign-in", "GET, HEAD, POST"), ("GET", "/sign-out", "POST"), ("GET", "/tenant", "POST")),
            *(("POST", "/robots.txt", "GET, HEAD"), ("DELETE", Assets().address("style.css"), "GET, HEAD")),
        ):
            content = {"data": {"csrf": reader.csrf}} if method == "POST" else {}
            answer = await reader.http.request(method, path, headers={"Origin": site.url}, **content)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["allow"]) == (405, allow), (method, path)
        head, get = await reader.http.head("/runs"), await reader.http.get("/runs")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]


async def _raw(site: PagesSite, target: bytes, *more: bytes) -> bytes:
    """One request as it stands; the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    lines = (b"GET " + target + b" HTTP/1.1", b"Host: x", b"Accept: text/html", b"Connection: close", *more, b"", b"")
    writer.write(b"\r\n".join(lines))
    async with asyncio.timeout(WAIT_SECONDS):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@on_loop
async def test_strange_addresses_are_no_accident(tmp_path: Path) -> None:
    """Slashes in disguise, dots, nulls, what is no UTF-8, and far too much of anything."""
    async with pages(tmp_path) as site:
        cookie = f"Cookie: deltaci_session={(await site.signed_in()).cookie()}".encode()
        for target in (
            *(b"/runs/%2e%2e/keys", b"/runs%2f..%2fkeys", b"/runs/../../etc/passwd", b"/runs/%00", b"/%00"),
            *(b"/runs/a%2Fb%2Fc%2Fd", b"/runs//", b"//runs", b"/runs/", b"/runs/%ff%fe", b"/assets/../app.py"),
            *(b"/assets/x/..%2f..%2fapp.py", b"/assets/", b"/" + b"a/" * 5000, b"/runs/" + b"x" * 30_000),
            *(b"/runs?" + b"a=b&" * 5000, b"/runs?q=%00&cursor=%ff", b"/runs?status=<x-probe>", b"/sign-in?to=%00"),
            *(b"/live?run=%00", b"/live?run=" + b"x" * 5000),
        ):
            answer = await _raw(site, target, cookie)
            status = int(answer.split()[1])
            assert status < 500, (target[:50], answer[:200])
            assert status != 200 or b"/runs?" in target or b"/sign-in?" in target, target[:50]
            assert b"<x-probe>" not in answer
        huge = await _raw(site, b"/runs", b"Cookie: " + b"a=b; " * 10_000)
        assert huge.split()[1] in (b"303", b"431")


@on_loop
async def test_nothing_that_is_said_or_led_to_becomes_a_header_or_markup(tmp_path: Path) -> None:
    """A message is text, wherever it comes from; an address has no second line."""
    with probing():
        async with pages(tmp_path) as site:
            reader = await site.signed_in()
            evil = '<x-probe a="\'">\r\nSet-Cookie: evil=1; é\x00 ;,'
            answer = await reader.send("/probe", said=evil, to="/probe\r\nSet-Cookie: evil=2é")

            assert answer.headers["location"] == "/probe%0D%0ASet-Cookie:%20evil=2%C3%A9"
            assert "evil" not in reader.http.cookies
            shown = await reader.get("/probe")
            assert "&lt;x-probe a=&quot;&#39;&quot;&gt;" in shown.text
            assert "<x-probe" not in shown.text
            assert "Max-Age=0" in shown.headers["set-cookie"]
            assert "x-probe" not in (await reader.get("/probe")).text  # It is said once.
            await reader.send("/probe", said="\U0001d54f" * 600)
            assert 3000 < len(reader.cookie("deltaci_said")) < 4000
            assert "\U0001d54f" * 300 in (await reader.get("/probe")).text
            headers = {"Cookie": f"deltaci_session={reader.cookie()}; deltaci_said=%3Cx-probe%3E{'a' * 9000}"}
            planted = await reader.http.get("/probe", headers=headers)
            assert "&lt;x-probe&gt;aaa" in planted.text
            assert "a" * 600 not in planted.text


# -- pages that say why there is none


@on_loop
async def test_a_page_that_is_not_there_is_one_for_people_and_a_problem_for_programs(tmp_path: Path) -> None:
    """Who is before a browser must not get JSON, nor a runner a page."""
    async with pages(tmp_path) as site:
        page = await site.reader().get("/nowhere")
        program = await site.reader().http.get("/nowhere")
        runner = await site.reader().get("/runner/v1/nowhere")

        assert (page.status_code, "it does not exist" in page.text.lower()) == (404, True)
        assert "What to do: " in page.text
        assert (program.status_code, program.json()["code"]) == (404, "not_found")
        assert runner.status_code in (401, 404)
        assert runner.headers["content-type"] == "application/json"


@on_loop
async def test_an_accident_says_where_to_look_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of the request is in the log; what happened is only there."""
    with probing():
        async with pages(tmp_path) as site:
            reader = await site.signed_in()
            answer = await reader.get("/probe?break=1")

            assert answer.status_code == 500
            assert "an accident of the test" not in answer.text
            assert answer.headers["delta-request-id"] in answer.text
            assert "an accident of the test" in caplog.text
            assert f"request {answer.headers['delta-request-id']}" in caplog.text
            assert 'class="main-nav"' in answer.text


@on_loop
async def test_what_one_may_not_do_is_said(tmp_path: Path) -> None:
    """A reader at the door of what needs more."""
    async with pages(tmp_path) as site:
        reader = await site.signed_in("runner")
        answer = await reader.get("/runs")

        assert answer.status_code == 403
        assert "This needs the scope &#39;read&#39;; the key has runner." in answer.text
        icon = await reader.http.get("/favicon.ico")
        assert icon.headers["content-type"] == "image/svg+xml"
        assert (await reader.http.get("/robots.txt")).text == "User-agent: *\nDisallow: /\n"
