"""What schemathesis cannot know from a document: leases that are live, tokens that are good, and our patience.

It is loaded by schemathesis itself (`SCHEMATHESIS_HOOKS`). A value is only ever put in place of another one that fits
the same schema, so what is wrong with a request stays wrong.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import schemathesis
from schemathesis.core import NotSet
from schemathesis.transport.serialization import Binary

from deltaci.api.openapi import PATH
from deltaci.core.errors import Refused
from deltaci.core.ids import lease_ref
from deltaci.protocol.messages import LeaseRequest
from deltaci.protocol.routes import LEASE_HEADER, MAX_LEASE_CHARS, OFFSET_HEADER, SHA256_HEADER
from deltaci.runner.client import RunnerClient
from deltaci.storage.blobs.keys import artifact_key
from tests.fuzz.prey import RUNNER, Prey

Case = schemathesis.Case[Any]

WAIT_SECONDS: Final = 0.02
FRESH: Final = 0.2  # How often a new lease is taken: the old one may be over.
LIVE: Final = 0.85  # How often a real one is put in place of one that was made up.


class Insider:
    """Knows the server from inside."""

    def __init__(self) -> None:
        self._prey = Prey(Path(os.environ["FUZZ_FOLDER"]))
        self._url = os.environ["FUZZ_URL"]
        self._credential = os.environ["FUZZ_CREDENTIAL"]
        self._random = random.Random(int(os.environ["FUZZ_SEED"]))
        self._held = ""

    def improve(self, case: Case) -> None:
        """Let it get further than a stranger would."""
        is_live = self._random.random() < LIVE
        if case.operation.path.endswith("/leave") and isinstance(case.body, dict) and "runner_id" in case.body:
            case.body = {**case.body, "runner_id": "nobody"}  # The others still need it.
            is_live = False
        if isinstance(case.body, dict | list):
            case.body = self._body(case.body, is_live)
        self._headers(case, is_live)

    def _body(self, body: Any, is_live: bool) -> Any:
        if isinstance(body, list):
            return [self._body(each, is_live) if isinstance(each, dict) else each for each in body]
        found = dict(body)
        wait = found.get("wait_seconds")
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= 600:
            found["wait_seconds"] = min(wait, WAIT_SECONDS)
        if isinstance(found.get("slots"), int | float) and 1 <= found["slots"] <= 1000:
            found["slots"] = min(found["slots"], 2)  # There is not work without end.
        if is_live:
            self._enliven(found)
        if (
            isinstance(found.get("job_id"), str)
            and 0 < len(found["job_id"]) <= 500
            and (attempt := _attempt_of(found.get("lease_id")))
        ):
            found["job_id"] = attempt
        return found

    def _enliven(self, found: dict[str, Any]) -> None:
        if found.get("attempts") and self._random.random() < LIVE:
            found["attempts"] = []
        if _fits(found.get("runner_id"), 200):
            found["runner_id"] = RUNNER
        if _fits(found.get("lease_id"), MAX_LEASE_CHARS):
            found["lease_id"] = self._lease()
        if _fits(found.get("token"), 16_000):
            found["token"] = self._prey.token()

    def _headers(self, case: Case, is_live: bool) -> None:
        if is_live and _fits(case.headers.get(LEASE_HEADER), MAX_LEASE_CHARS):
            case.headers[LEASE_HEADER] = self._lease()
            if "attempt" in case.path_parameters:
                case.path_parameters["attempt"] = _attempt_of(case.headers[LEASE_HEADER])
        path = case.path_parameters.get("path")
        if isinstance(path, str) and re.fullmatch(PATH, unquote(path)) and not _is_path(unquote(path)):
            case.path_parameters["path"] = "out/file"  # Too many bytes for its characters: no schema can say that.
        offset = str(case.headers.get(OFFSET_HEADER, ""))
        if is_live and offset.isascii() and offset.isdecimal() and len(offset) < 15:
            case.headers[OFFSET_HEADER] = "0"
        if _is_digest(case.headers.get(SHA256_HEADER)):
            case.headers[SHA256_HEADER] = sha256(_sent(case.body)).hexdigest()

    def _lease(self) -> str:
        if not self._held or self._random.random() < FRESH:
            with self._client() as client:
                for granted in client.lease(LeaseRequest(runner_id=RUNNER)):
                    self._held = granted.lease_id
        return self._held

    @contextmanager
    def _client(self) -> Iterator[RunnerClient]:
        client = RunnerClient(self._url, self._credential)
        try:
            yield client
        finally:
            client.close()


def _fits(value: object, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and value.isascii() and value.isprintable()


def _attempt_of(lease_id: object) -> str:
    try:
        return lease_ref(str(lease_id)).attempt_id
    except Refused:
        return ""


def _is_path(path: str) -> bool:
    try:
        artifact_key("default", "q", 1, path)
    except Refused:
        return False
    return True


def _sent(body: object) -> bytes:
    """As it goes over the wire."""
    if isinstance(body, Binary):
        return body.data
    if isinstance(body, NotSet):
        return b""
    return body if isinstance(body, bytes) else str(body).encode()


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdefABCDEF" for c in value)


_insider = Insider()


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Before every request."""
    _insider.improve(case)
