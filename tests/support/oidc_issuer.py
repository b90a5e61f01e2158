"""A small OIDC issuer: a real HTTP server with real keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

AUDIENCE: Final = "https://ci.example.org"
CONFIGURATION: Final = "/.well-known/openid-configuration"

T = TypeVar("T", bound="TinyIssuer")
Key = ECKey | OKPKey | RSAKey


def made(kind: str, kid: str) -> Key:
    """A new key for this algorithm."""
    parameters: Any = {"kid": kid, "use": "sig", "alg": kind}
    if kind.startswith(("RS", "PS")):
        return RSAKey.generate_key(2048, parameters)
    if kind.startswith("ES"):
        return ECKey.generate_key({"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[kind], parameters)
    return OKPKey.generate_key("Ed25519", parameters)


class TinyIssuer:
    """Publishes `keys`, signs tokens with them, and counts requests. `answers` overrides the response of a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: dict[str, Key] = {"k1": made("ES256", "k1")}
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        about: Any = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if path == "/keys":
            about = {"keys": [key.as_dict(private=False) for key in self.keys.values()]}
        elif path != CONFIGURATION:
            return 404, {}, b"{}"
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()

    def posted(self, path: str, body: bytes, authorization: str) -> tuple[int, dict[str, str], bytes]:
        """Return the response to a POST request; this issuer has none."""
        return 404, {}, b"{}"

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a valid token with these changes; None leaves a claim out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "build-1", "iat": now, "nbf": now, "exp": now + 600}
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, kid: str = "k1", *, header: dict[str, Any] | None = None, key: Any = None, **changed: Any) -> str:
        """A token, signed."""
        signing = key or self.keys[kid]
        alg = str((header or {}).get("alg") or signing.as_dict(private=False).get("alg", "ES256"))
        headers = {"kid": kid, **(header or {}), "alg": alg}
        claims = changed.pop("claims", None) or self.claims(**changed)
        signed: str = jwt.encode({k: v for k, v in headers.items() if v is not None}, claims, signing, algorithms=[alg])
        return signed


@contextmanager
def tiny_issuer() -> Iterator[TinyIssuer]:
    """One that answers until the end of the block."""
    with issuing(TinyIssuer) as issuer:
        yield issuer


@contextmanager
def issuing(kind: Callable[[str], T]) -> Iterator[T]:
    """An issuer of this kind, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Any of its pages."""
            self._answer(*issuer.answer(self.path))

        def do_POST(self) -> None:
            """Any of its forms."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(*issuer.posted(self.path, body, self.headers.get("Authorization", "")))

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = kind(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
