"""Webhooks: `POST /hooks/PROJECT`, `POST /hooks/TENANT/PROJECT`. A forge says that something happened.

In this order: the size, the project and its secret, the signature over the bytes as they came, and only then what they
say. A project that does not exist is answered like a bad signature, and as late. Whatever was heard before, by the
delivery's id or by what it says, has no effect. Every answer is one line of JSON that says what was done, and why.

A change is durable before a delivery is remembered: a server that dies in between hears it once more and makes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.engine.requests import Overloaded
from deltaci.forges import WEBHOOK_PARSERS, delivery_dedupe
from deltaci.forges.projects import ChangeIntake, ForgeProject, ForgeProjects
from deltaci.forges.webhook_event import MAX_DELIVERY, Delivery, IgnoredEvent, WebhookEvent, fingerprint
from deltaci.pipeline.change import Change
from deltaci.protocol.routes import status_of
from deltaci.server.errors import http_error
from deltaci.server.request import MAX_QUOTED_CHARS, Receive, Request, Scope, Send
from deltaci.storage.port import Conflict, Store, is_storable_text

ROOT: Final = "/hooks/"
TENANT: Final = "default"
MAX_BYTES: Final = 5 * 1024 * 1024  # GitHub sends up to 25 MB; what we need is at the beginning of far less.
MAX_HELD_BYTES: Final = (
    256 * 1024 * 1024
)  # Of all bodies that are being read: who sends slowly takes no room of others.
BODY_SECONDS: Final = 30.0  # For all of one body.
REFUSED_AFTER_SECONDS: Final = 0.05  # Nobody who is not known learns from the time why.
MAX_NAME: Final = 200

LOGGER: Final = logging.getLogger(__name__)


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer says."""

    result: str  # accepted, duplicate, ignored, pong, refused
    why: str = ""
    change: str = ""
    event: str = ""
    ref: str = ""
    commit: str = ""
    code: str = ""


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a document says of a delivery."""

    change: str
    delivery: str = ""


class Hooks:
    """The addresses under /hooks/."""

    def __init__(
        self, store: Store, projects: ForgeProjects, intake: ChangeIntake, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._projects = projects
        self._intake = intake
        self._clock = clock
        self._decoy = secrets.token_urlsafe(32)  # For whoever has no secret.
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        more: list[tuple[bytes, bytes]] = []
        try:
            status, said = await self._answer(request)
        except Exception as error:
            path = plain_line(request.path, MAX_QUOTED_CHARS)
            refusal = http_error(error, f"delivery to {path}", ["POST"])
            status = 500 if refusal.code == "internal" else status_of(refusal.code)
            said = _refused(refusal.code, refusal.message)
            more = refusal.raw_headers()
            if refusal.code == "too_large":  # The rest of the body is not read.
                more.append((b"connection", b"close"))
        await _send(send, status, said, more)

    async def _answer(self, request: Request) -> tuple[int, Said]:
        tenant, name = _named(request)
        delivery = await self._read(request)
        began = time.monotonic()
        project = await self._project(tenant, name)
        if not self._is_believed(project, delivery):
            await asyncio.sleep(began + REFUSED_AFTER_SECONDS - time.monotonic())
            raise Refused(
                "bad_credential",
                "there is no such project, or the signature is not made with its webhook secret, or it is too old",
            )
        assert project is not None
        return await self._hear(project, delivery, request)

    async def _read(self, request: Request) -> Delivery:
        """All of the body, if there is room for it."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.chunks(MAX_BYTES):
                    parts.append(part)
                    self._held += len(part)
                    if self._held > MAX_HELD_BYTES:
                        raise Overloaded("too many deliveries are being read")
        except TimeoutError:
            raise Refused("too_slow", f"the body took more than {BODY_SECONDS:.0f} s; deliver it again") from None
        finally:
            self._held -= sum(map(len, parts))
        return Delivery(request.header, b"".join(parts), self._clock())

    async def _project(self, tenant: str, name: str) -> ForgeProject | None:
        if not all(0 < len(each) <= MAX_NAME and is_storable_text(each) for each in (tenant, name)):
            return None
        try:
            return await self._projects.find(tenant, name)
        except Refused as refused:  # Nobody who is not known is told what is wrong with a project.
            LOGGER.warning("project %s cannot be looked up: %s", plain_line(name, MAX_QUOTED_CHARS), refused.message)
            return None

    def _is_believed(self, project: ForgeProject | None, delivery: Delivery) -> bool:
        """Whether it is signed. Who has no secret is looked at all the same, with one that nobody knows."""
        secret = project.webhook_secret if project is not None else ""
        listener = WEBHOOK_PARSERS[project.forge if project is not None else "github"]
        return listener.has_valid_signature(delivery, secret or self._decoy) and bool(secret)

    async def _hear(self, project: ForgeProject, delivery: Delivery, request: Request) -> tuple[int, Said]:
        if not delivery.body:
            raise Refused("bad_request", "there is no body; deliver the event as JSON")
        request.check_is_json()
        listener = WEBHOOK_PARSERS[project.forge]
        heard = listener.parse(delivery)
        if isinstance(heard, IgnoredEvent):
            return (200, Said(result="pong", why=heard.reason)) if heard.is_ping else (202, _ignored(heard.reason))
        change = heard.change
        if not _is_about(project, change):
            return 202, _ignored(
                f"it is about {plain_line(change.repository, MAX_QUOTED_CHARS)!r}, "
                f"and the project about {project.repository!r}"
            )
        if not change.repository:
            change = msgspec.structs.replace(change, repository=project.repository)
        id = plain_line(listener.delivery_id(delivery), MAX_DELIVERY)
        content = _content(project, heard)
        names = [f"{project.name}/{content}"]
        if id:
            names.append(f"{project.name}/id-{fingerprint(project.forge, id)}")
        known = await self._known(project.tenant, names)
        about = {"event": change.event, "ref": plain_line(change.ref, MAX_QUOTED_CHARS), "commit": change.commit}
        if known is not None:
            return 200, Said(result="duplicate", change=known.change, why="it was heard before", **about)
        accepted = await self._intake.accept(project.tenant, project.name, change, content)
        await self._remember(project.tenant, names, Remembered(accepted.id, id))
        if not accepted.is_new:
            return 200, Said(result="duplicate", change=accepted.id, why="it was heard before", **about)
        return 202, Said(result="accepted", change=accepted.id, **about)

    async def _known(self, tenant: str, names: Sequence[str]) -> Remembered | None:
        for name in names:
            if (
                found := await delivery_dedupe.find(self._store, delivery_dedupe.DELIVERY_KIND, tenant, name)
            ) is not None:
                return msgspec.json.decode(found.body, type=Remembered)
        return None

    async def _remember(self, tenant: str, names: Sequence[str], what: Remembered) -> None:
        body = msgspec.json.encode(what)
        for name in names:
            with suppress(Conflict):  # The same was heard twice at once, and it was remembered there.
                await self._store.put_documents(
                    [delivery_dedupe.new_document(delivery_dedupe.DELIVERY_KIND, tenant, name, body)]
                )


def _content(project: ForgeProject, heard: WebhookEvent) -> str:
    """A fingerprint of what happened: the same for the same event, whatever its delivery is called."""
    return fingerprint(project.forge, msgspec.json.encode(heard.change).decode(), heard.occurred_at)


def _is_about(project: ForgeProject, change: Change) -> bool:
    """Whether it happened in the project's repository: one webhook may tell of many.

    A project may know it by a longer path, below which the whole forge is.
    """
    if not change.repository or not project.repository:
        return True
    return f"/{project.repository.casefold()}".endswith(f"/{change.repository.casefold()}")


def _named(request: Request) -> tuple[str, str]:
    """The tenant and the project of the address."""
    parts = request.path.removeprefix(ROOT).split("/")
    if not request.path.startswith(ROOT) or not 1 <= len(parts) <= 2 or not all(parts):
        raise Refused("not_found", f"there is no {request.path[:MAX_QUOTED_CHARS]}; deliver to /hooks/TENANT/PROJECT")
    if request.method != "POST":
        raise Refused("wrong_method", f"deliveries are sent by POST, not by {request.method[:MAX_QUOTED_CHARS]}")
    return (parts[0], parts[1]) if len(parts) == 2 else (TENANT, parts[0])


def _refused(code: str, why: str) -> Said:
    return Said(result="refused", code=code, why=why)


def _ignored(why: str) -> Said:
    return Said(result="ignored", why=why)


async def _send(send: Send, status: int, said: Said, more: list[tuple[bytes, bytes]]) -> None:
    body = msgspec.json.encode(said) + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
