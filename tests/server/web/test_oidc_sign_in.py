"""People who sign in by an issuer: what must be so before anybody is let in, as whom, and for how long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from deltaci.cli.app import app
from deltaci.core.errors import Refused
from deltaci.server.web.auth.oidc_grants import SECRET_VARIABLE, GrantRule, GroupGrants, OidcSettings, settings_in
from deltaci.server.web.auth.oidc_sign_in import BACK, OidcSignIn
from deltaci.server.web.auth.recorded_grants import record_grants
from tests.contract.backends import Backend, in_memory, on_loop
from tests.server.web.pages import PagesSite, Reader, pages, said
from tests.support.login_issuer import CLIENT, SECRET, PeopleIssuer, people_issuer, settings_file
from tests.support.oidc_issuer import CONFIGURATION

ADA: dict[str, Any] = {"sub": "1", "email": "ada@example.org", "email_verified": True, "groups": ["dev", "others"]}
GRANTS = ("dev=default:run:", "lead=default:approve,run:release", "lead=team:admin:", "*=lobby:read:")


@pytest.fixture
def issuer() -> Iterator[PeopleIssuer]:
    """An issuer that knows Ada."""
    with people_issuer() as issuer:
        issuer.people["ada"] = ADA
        yield issuer


def trusting(tmp_path: Path, issuer: PeopleIssuer, *grants: str, **more: str) -> OidcSignIn:
    """The server's side of it."""
    return OidcSignIn.of(settings_file(tmp_path, issuer, *(grants or GRANTS), **more), "")


async def begun(reader: Reader, to: str = "") -> dict[str, str]:
    """What the issuer is asked when somebody begins."""
    answer = await reader.get(f"/sign-in/oidc{to and f'?to={to}'}")
    assert answer.status_code == 303, said(answer)
    where = urlsplit(answer.headers["location"])
    return {name: values[-1] for name, values in parse_qs(where.query).items()}


async def came_back(reader: Reader, issuer: PeopleIssuer, user: str = "ada", to: str = "") -> httpx.Response:
    """The whole way, as a browser goes it."""
    back = urlsplit(issuer.let_in(user, await begun(reader, to)))
    return await reader.get(f"{back.path}?{back.query}")


def person(site: PagesSite, page: httpx.Response) -> str:
    """Who a page says that somebody is, and where."""
    start = page.text.index("Signed in as")
    return page.text[start : page.text.index("</p>", start)].replace("<strong>", "").replace("</strong>", "")


@on_loop
async def test_the_issuers_word_opens_the_tenants_of_ones_groups(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """And the page that was wanted; the cookie of the way there is gone."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer, name="Example SSO")) as site:
        reader = site.reader()
        door = await reader.get("/sign-in?to=/runs%3Fq%3Dx")
        assert "Continue with Example SSO" in door.text
        assert 'href="/sign-in/oidc?to=%2Fruns%3Fq%3Dx"' in door.text

        answer = await came_back(reader, issuer, to="/runs%3Fq%3Dx")

        assert answer.status_code == 303, said(answer)
        assert answer.headers["location"] == "/runs?q=x"
        gone, session = answer.headers.get_list("set-cookie")
        assert gone == "deltaci_oidc=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
        assert session.startswith("deltaci_session=")
        page = await reader.get("/runs")
        assert person(site, page) == "Signed in as ada@example.org to default"
        assert "Scopes: read, run" in page.text
        assert 'value="lobby"' in page.text
        assert 'value="team"' not in page.text
        me = (await reader.http.get("/api/v1/me")).json()
        assert (me["person"], me["tenant"], me["scopes"]) == ("ada@example.org", "default", ["read", "run"])
        await reader.send("/tenant", tenant="lobby")
        assert "Scopes: read<" in (await reader.get("/runs")).text


@on_loop
async def test_it_ends_after_twelve_hours_or_when_the_grant_does(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """Signing in to something else does not make it last longer."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        reader = site.reader()
        await came_back(reader, issuer)
        cookie = reader.cookie()
        site.later(11 * 3600)
        await reader.sign_in(await site.key(tenant="other"))
        await reader.get("/runs")
        await reader.send("/tenant", tenant="default")
        assert (await reader.get("/runs")).status_code == 200
        site.later(3601)
        assert "Your session has expired" in said(await reader.get("/runs"))

    for sign_in, why in (
        (trusting(tmp_path, issuer, "lead=default:run:"), "no longer give you access to 'default'"),
        (trusting(tmp_path, issuer, *GRANTS, person_claim="sub"), "now trusts a different issuer"),
        (None, "no longer trusts an issuer"),
    ):
        async with pages(tmp_path, sign_in=sign_in) as site:
            reader = site.reader()
            reader.set_cookie(cookie)
            assert why in said(await reader.get("/runs"))


@on_loop
async def test_who_is_in_no_group_of_ours_is_told_so(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """It is not a matter of the password, and somebody can help."""
    issuer.people["eve"] = {**ADA, "email": "eve@example.org", "groups": ["sales"]}
    issuer.people["odd"] = {**ADA, "email": "odd@example.org", "groups": {"dev": True}}
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer, "dev=default:run:")) as site:
        for user in ("eve", "odd"):
            reader = site.reader()
            answer = await came_back(reader, issuer, user)
            assert answer.headers["location"] == "/sign-in"
            assert f"You are {user}@example.org, but none of your groups has access here" in said(answer)
            assert reader.cookie() == ""


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"nonce": "x" * 32}, "not made for this browser"),
    ({"nonce": None}, "not made for this browser"),
    ({"aud": "somebody else"}, "expected it for 'delta ci'"),
    ({"aud": [CLIENT, "somebody else"]}, "expected it for 'delta ci'"),
    ({"aud": [CLIENT, "somebody else"], "azp": "somebody else"}, "expected it for 'delta ci'"),
    ({"azp": "somebody else"}, "expected it for 'delta ci'"),
    ({"aud": None}, "expected it for 'delta ci'"),
    ({"iss": "https://elsewhere.example.org"}, "this server trusts"),
    ({"exp": time.time() - 1_000_000}, "too old"),
    ({"exp": None}, "exp is"),
    ({"iat": time.time() + 1_000_000}, "from the future"),
    ({"email_verified": False}, "email is not verified"),
    ({"email_verified": "true"}, "email is not verified"),
    ({"email_verified": None}, "email is not verified"),
    ({"email": None}, "choose another person_claim"),
    ({"email": "<x-probe>"}, "choose another person_claim"),
    ({"email": "a b"}, "choose another person_claim"),
    ({"email": "a" * 101}, "choose another person_claim"),
    ({"email": ["ada@example.org"]}, "choose another person_claim"),
)


@on_loop
async def test_a_token_that_is_not_about_this_sign_in_lets_nobody_in(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """Signed by the right issuer is not enough. What it was is said, as text."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        for claims, why in WRONG:
            issuer.token_claims = claims
            reader = site.reader()

            answer = await came_back(reader, issuer)

            assert answer.headers["location"] == "/sign-in", claims
            assert why in said(answer)
            assert reader.cookie() == ""
            assert "<x-probe>" not in (await reader.get("/sign-in")).text


@on_loop
async def test_two_audiences_are_good_if_it_was_made_for_us(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """As some issuers write it."""
    issuer.token_claims = {"aud": [CLIENT, "account"], "azp": CLIENT}
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        assert (await came_back(site.reader(), issuer)).headers["location"] == "/runs"


@on_loop
async def test_an_answer_that_this_browser_did_not_ask_for_is_refused(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """Nobody is signed in as somebody else by a link, and the issuer is not bothered with it."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        ada, mallory = site.reader(), site.reader()
        hers = urlsplit(issuer.let_in("ada", await begun(mallory)))
        code = parse_qs(hers.query)["code"][0]

        for query, why in (
            (hers.query, "did not start this sign-in"),
            (f"code={code}", "did not start this sign-in"),
            ("error=x", "did not start this sign-in"),
        ):
            assert why in said(await ada.get(f"{BACK}?{query}"))
        for query in (hers.query, f"code={code}", f"code={code}&state=", "error=x&state=y"):
            await begun(ada)
            assert "belongs to a different sign-in" in said(await ada.get(f"{BACK}?{query}"))
        assert issuer.exchanged == 0
        assert ada.cookie() == ""

        mine = urlsplit(issuer.let_in("ada", await begun(ada)))
        for changed, why in (
            (mine.query.replace("iss=", "no="), "of the issuer"),
            (mine.query.replace("iss=http", "iss=https"), "of the issuer"),
            (mine.query.replace("code=", "no="), "sent no code"),
        ):
            await begun(ada)
            ada.http.cookies.clear()
            state = await begun(ada)
            query = changed.replace(parse_qs(mine.query)["state"][0], state["state"])
            assert why in said(await ada.get(f"{BACK}?{query}"))
        assert issuer.exchanged == 0
        late = urlsplit(issuer.let_in("ada", await begun(ada)))
        site.later(601)
        assert "or it has expired" in said(await ada.get(f"{BACK}?{late.query}"))


@on_loop
async def test_a_code_is_good_once_and_for_its_own_browser(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """A stolen one fails at the issuer, for the verifier is another one."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        ada, mallory = site.reader(), site.reader()
        stolen = parse_qs(urlsplit(issuer.let_in("ada", await begun(ada))).query)["code"][0]
        state = (await begun(mallory))["state"]

        answer = await mallory.get(f"{BACK}?code={stolen}&state={state}&iss={issuer.url}")

        assert "did not accept the code: 'invalid_grant'" in said(answer)
        back = urlsplit(issuer.let_in("ada", await begun(ada)))
        assert (await ada.get(f"{BACK}?{back.query}")).headers["location"] == "/runs"
        assert "did not start" in said(await ada.get(f"{BACK}?{back.query}"))


@on_loop
async def test_what_the_issuer_refuses_is_said_and_a_key_still_works(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """Somebody who said no, a client that it does not know, one that is away."""
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        reader = site.reader()
        assert "refused the sign-in: 'access_denied'" in said(await came_back(reader, issuer, "nobody"))
        issuer.secret = "another one"
        assert "did not accept the code: 'invalid_client'" in said(await came_back(reader, issuer))
        assert (await reader.sign_in(await site.key())).status_code == 303

    issuer.answers[CONFIGURATION] = (500, {}, b"")
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        answer = await site.reader().get("/sign-in/oidc")
        assert answer.headers["location"] == "/sign-in"
        assert "127.0.0.1 cannot be reached now; try again, or sign in with an API key." in said(answer)


@pytest.mark.parametrize(
    "about",
    [
        {"authorization_endpoint": "http://example.org/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://example.org/token"},
        {"token_endpoint": None},
        {"issuer": "https://elsewhere.example.org"},
    ],
)
@on_loop
async def test_an_issuer_cannot_send_anybody_anywhere(
    tmp_path: Path, issuer: PeopleIssuer, about: dict[str, Any]
) -> None:
    """Only over TLS, or on this machine."""
    issuer.about = about
    async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
        reader = site.reader()
        answer = await reader.get("/sign-in/oidc")
        if "token_endpoint" in about:
            answer = await came_back(reader, issuer)
        assert answer.headers["location"] == "/sign-in"
        assert "cannot be reached now" in said(answer)


@on_loop
async def test_a_client_shows_its_secret_as_the_issuer_wants_it(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """In a header, in the form, or it has none."""
    for way, secret in (("client_secret_post", SECRET), ("client_secret_basic", SECRET), ("none", "")):
        issuer.way, issuer.secret = way, secret
        async with pages(tmp_path, sign_in=trusting(tmp_path, issuer)) as site:
            assert (await came_back(site.reader(), issuer)).headers["location"] == "/runs", way


@on_loop
async def test_the_issuer_sends_people_back_to_the_public_address(tmp_path: Path, issuer: PeopleIssuer) -> None:
    """One that a request names proves nothing, unless it is this machine's."""
    file = settings_file(tmp_path, issuer, *GRANTS)
    public = "https://ci.example.org"
    async with pages(tmp_path, sign_in=OidcSignIn.of(file, public), public_url=public) as site:
        reader = site.reader()
        assert 'href="https://ci.example.org/sign-in/oidc"' in (await reader.get("/sign-in")).text
        answer = await reader.get("/sign-in/oidc")
        assert f"redirect_uri=https%3A%2F%2Fci.example.org{BACK.replace('/', '%2F')}&" in answer.headers["location"]
        assert answer.headers["set-cookie"].startswith("__Host-deltaci_oidc=")
        assert answer.headers["set-cookie"].endswith("; Max-Age=600; HttpOnly; SameSite=Lax; Secure")
    async with pages(tmp_path, sign_in=OidcSignIn.of(file, "")) as site:
        answer = await site.reader().get("/sign-in/oidc", Host="evil.example.org")
        assert (answer.status_code, "--public-url https://" in answer.text) == (403, True)


@on_loop
async def test_without_an_issuer_there_is_no_such_door(tmp_path: Path) -> None:
    """Nothing is offered that does not work."""
    async with pages(tmp_path) as site:
        reader = site.reader()
        assert "/sign-in/oidc" not in (await reader.get("/sign-in")).text
        for path in ("/sign-in/oidc", BACK):
            assert (await reader.get(path)).status_code == 404


# -- the file


GOOD = f"""
issuer = "https://login.example.org"
client_id = {json.dumps(CLIENT)}
[[grant]]
group = "dev"
tenant = "default"
scopes = ["run"]
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing required field `issuer`"),
        ("issuer =", "Invalid value"),
        (GOOD.replace("https://", "http://"), "expected https://HOST"),
        (GOOD.replace("[[grant]]", "[grant]"), "Expected `array`"),
        (GOOD.partition("[[grant]]")[0], "missing required field `grant`"),
        (GOOD.replace('"run"', '"rum"'), "Invalid enum value 'rum'"),
        (GOOD.replace('["run"]', "[]"), "length >= 1"),
        (GOOD.replace('"default"', '"ä"'), "is not a tenant name"),
        (GOOD.replace("group =", "groups ="), "unknown field `groups`"),
        (GOOD.replace("client_id", "scopes = ['email']\nclient_id"), "'openid' must be one of them"),
        (GOOD.replace("client_id", "colour = 'blue'\nclient_id"), "unknown field `colour`"),
        (
            GOOD.replace("client_id", "client_secret_file = 'empty'\nclient_id"),
            "is empty; expected the client secret",
        ),
        (GOOD.replace("client_id", "client_secret_file = 'none'\nclient_id"), "No such file"),
    ],
)
def test_nonsense_is_refused_at_the_start(tmp_path: Path, text: str, why: str) -> None:
    """With the file's name, before anybody stands at the door."""
    (tmp_path / "oidc.toml").write_text(text)
    (tmp_path / "empty").write_text("\n")

    with pytest.raises((ValueError, OSError), match=str(tmp_path)) as caught:
        settings_in(tmp_path / "oidc.toml")
    assert why in str(caught.value)


def test_a_server_with_such_a_file_does_not_start(tmp_path: Path) -> None:
    """And says why, in one line."""
    (tmp_path / "bad.toml").write_text("grant = 1")
    (tmp_path / "good.toml").write_text(GOOD)
    for words, why in (
        (("bad.toml",), "see docs/web.md for the format"),
        (("good.toml", "--public-url", "http://ci.example.org"), "requires https://"),
        (("none.toml",), "No such file"),
    ):
        asked = ["server", "--data", str(tmp_path), "--web-oidc", str(tmp_path / words[0]), *words[1:]]
        shown = CliRunner().invoke(app, asked)
        assert shown.exit_code == 1
        assert shown.stderr.startswith("deltaci server: ")
        assert why in shown.stderr
        assert len(shown.stderr.splitlines()) == 1


def test_the_secret_is_in_a_file_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never among the words of a command, which everybody on the machine can read."""
    file = tmp_path / "oidc.toml"
    file.write_text(GOOD)
    assert settings_in(file)[1] == ""
    monkeypatch.setenv(SECRET_VARIABLE, "of the environment")
    assert settings_in(file)[1] == "of the environment"
    (tmp_path / "secret").write_text("of the file\n")
    file.write_text(f'client_secret_file = "secret"\n{GOOD}')
    assert settings_in(file)[1] == "of the file"


def test_groups_add_up() -> None:
    """What several give is given; what nobody gives is not; a path leads to groups, too."""
    rules = (
        GrantRule(group="cn=dev,ou=x", tenant="a", scopes=("run",), roles=("qa",)),
        GrantRule(group="lead", tenant="a", scopes=("approve",), roles=("release", "qa")),
        GrantRule(group="root", tenant="b", scopes=("admin",)),
    )
    grants = GroupGrants(OidcSettings(issuer="https://x", client_id="y", grant=rules, groups_claim="/realm/roles"))
    claims = {"realm": {"roles": ["lead", "cn=dev,ou=x", "sales", 7]}, "groups": ["root"]}

    [grant] = grants.granted(claims, "ada", 1)
    who = grants.caller(grant)

    assert grant.groups == ("cn=dev,ou=x", "lead")
    assert (who.tenant, who.person, who.roles) == ("a", "ada", ("qa", "release"))
    assert sorted(who.scopes) == ["approve", "read", "run"]
    assert not who.is_operator
    assert grants.granted({"realm": {"roles": "root"}}, "ada", 1)[0].tenant == "b"
    assert grants.granted({"realm": "root"}, "ada", 1) == []
    with pytest.raises(Refused, match="different issuer"):
        GroupGrants(OidcSettings(issuer="https://z", client_id="y", grant=rules)).caller(grant)


@in_memory
@on_loop
async def test_a_change_of_the_grants_is_an_event_of_each_tenant_it_affects(backend: Backend) -> None:
    """Roles are granted in a file, too; the server that reads it records what has changed."""

    def grants(*rules: GrantRule) -> dict[str, list[GrantRule]]:
        return GroupGrants(OidcSettings(issuer="https://x", client_id="y", grant=rules)).by_tenant

    dev = GrantRule(group="dev", tenant="us", scopes=("run",), roles=("release",))
    ops, lead = GrantRule(group="ops", tenant="them", scopes=("admin",)), replace(dev, roles=("release", "lead"))
    async with backend.server() as server:
        for read in (grants(dev, ops), grants(dev, ops), grants(lead)):
            await record_grants(server.engine, server.store, "https://x", read)

        events = [(event.trigger, event.tenant, event.actor) for event in await server.verified()]
        assert events == [
            ("created", "us", "orchestrator"),
            ("created", "them", "orchestrator"),
            ("deleted", "them", "orchestrator"),
            ("updated", "us", "orchestrator"),
        ]
        changed = (await server.log())[-1].metadata
        before, after = (changed[side]["grants"][0]["roles"] for side in ("before", "after"))
        assert (before, after) == (["release"], ["release", "lead"])
