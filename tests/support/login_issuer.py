"""An OIDC issuer with people: a login page, authorization codes and tokens. It checks the requests of its clients."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from tests.support.oidc_issuer import CONFIGURATION, TinyIssuer, issuing

CLIENT: Final = "delta ci"  # With what must be quoted in a header.
SECRET: Final = "s3cret+/ %"
LOGIN: Final = """<!doctype html><html lang="en"><title>Example SSO</title><link rel="icon" href="data:,">
<h1>Example SSO</h1>
<form method="post" action="/login?{query}"><label>Name <input name="user"></label><button>Log in</button></form>"""


class PeopleIssuer(TinyIssuer):
    """`people` are the claims of each user, `codes` the issued codes; `wrong` changes the responses."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.people: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.token_claims: dict[str, Any] = {}  # What tokens say instead.
        self.about: dict[str, Any] = {}  # What it says of itself instead.
        self.secret = SECRET
        self.way = "client_secret_basic"
        self.has_iss = True
        self.exchanged = 0

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Also a page to log in at."""
        where = urlsplit(path)
        if where.path == "/authorize":
            self.asked.append(where.path)
            return 200, {"Content-Type": "text/html"}, LOGIN.format(query=escape(where.query)).encode()
        if path == CONFIGURATION and path not in self.answers:
            self.asked.append(path)
            return 200, {"Content-Type": "application/json"}, json.dumps(self._described()).encode()
        return super().answer(path)

    def _described(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize?kind=people",
            "token_endpoint": f"{self.url}/token",
            "token_endpoint_auth_methods_supported": [self.way],
            "authorization_response_iss_parameter_supported": self.has_iss,
            **self.about,
        }

    def posted(self, path: str, body: bytes, authorization: str) -> tuple[int, dict[str, str], bytes]:
        """Answer the login form, or a client's request for tokens."""
        where = urlsplit(path)
        form = {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        if where.path == "/login":
            request = {name: values[-1] for name, values in parse_qs(where.query).items()}
            return 303, {"Location": self.let_in(form["user"], request)}, b""
        self.exchanged += 1
        status, answer = self._token(form, authorization)
        return status, {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def let_in(self, user: str, asked: dict[str, str]) -> str:
        """Return the URL for the browser, with a code, or with an error for an unknown user."""
        back: dict[str, str] = {"state": asked["state"], **({"iss": self.url} if self.has_iss else {})}
        if user not in self.people:
            back |= {"error": "access_denied", "error_description": "<x-probe>"}
        else:
            assert asked["kind"] == "people"
            assert asked["response_type"] == "code"
            assert asked["client_id"] == CLIENT
            assert "openid" in asked["scope"].split()
            assert asked["code_challenge_method"] == "S256"
            code = secrets.token_urlsafe(12)
            self.codes[code] = {**asked, "user": user}
            back["code"] = code
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if self.secret:
            given = form.get("client_secret", "")
            if self.way == "client_secret_basic":
                name, _, given = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
                assert (name, given) == (quote(CLIENT, safe=""), quote(self.secret, safe="")) or given
                given = unquote(given)
            if given != self.secret:
                return 401, {"error": "invalid_client"}
        begun = self.codes.pop(form["code"], None)  # Good once.
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if (
            begun is None
            or form["grant_type"] != "authorization_code"
            or begun["redirect_uri"] != form["redirect_uri"]
            or begun["code_challenge"] != challenge
        ):
            return 400, {"error": "invalid_grant"}
        claims = {"aud": CLIENT, "nonce": begun["nonce"], **self.people[begun["user"]], **self.token_claims}
        return 200, {"id_token": self.token(**claims), "access_token": "none of ours", "token_type": "Bearer"}


def people_issuer() -> AbstractContextManager[PeopleIssuer]:
    """One that answers until the end of the block."""
    return issuing(PeopleIssuer)


def settings_file(folder: Path, issuer: PeopleIssuer, *grants: str, **more: str) -> Path:
    """The file for `--web-oidc`, with these grants: GROUP=TENANT:SCOPES:ROLES."""
    (folder / "client.secret").write_text(f"{SECRET}\n")
    lines = [f"issuer = {json.dumps(issuer.url)}", f"client_id = {json.dumps(CLIENT)}"]
    if issuer.secret:
        lines.append('client_secret_file = "client.secret"')
    lines += [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    for grant in grants:
        lines += ["[[grant]]", *_grant(grant)]
    path = folder / "oidc.toml"
    path.write_text("\n".join(lines))
    return path


def _grant(text: str) -> Iterator[str]:
    group, _, rest = text.partition("=")
    tenant, scopes, roles = rest.split(":")
    yield f"group = {json.dumps(group)}"
    yield f"tenant = {json.dumps(tenant)}"
    yield f"scopes = {json.dumps(scopes.split(','))}"
    yield f"roles = {json.dumps(roles.split(',') if roles else [])}"
