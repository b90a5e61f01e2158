"""Webhooks: a forge delivers its events to `POST /hooks/PROJECT` or `POST /hooks/TENANT/PROJECT`.

A delivery is checked in this order: the size, the project and its secret, the signature over the raw bytes, and only
then the content. A project that does not exist is answered like a bad signature, after the same time. A delivery that
was processed before, by its id or its content, has no effect. Every response is one line of JSON with the result and a
reason.

A change is stored before its delivery is recorded: after a crash in between, the repeated delivery finds the change and
creates no second one.
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
MAX_BYTES: Final = 25 * 1024 * 1024  # The largest body that GitHub sends; GitLab and Gitea send smaller ones.
MAX_BUFFERED_BYTES: Final = 256 * 1024 * 1024  # The limit for all bodies that are being read.
BODY_SECONDS: Final = 30.0  # The longest time for one body.
REFUSED_AFTER_SECONDS: Final = (
    0.05  # The same for every reason of refusal, so that the response time does not reveal the reason.
)
MAX_NAME: Final = 200

LOGGER: Final = logging.getLogger(__name__)


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of the response to a delivery: the result, its reason (`why`), and the change's id or an error code."""

    result: str  # accepted, duplicate, ignored, pong, refused
    why: str = ""
    change: str = ""
    event: str = ""
    ref: str = ""
    commit: str = ""
    code: str = ""


class DeliveryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored record of a processed delivery: the id of its change, and the forge's id of the delivery."""

    change: str
    delivery: str = ""


class WebhookApp:
    """The ASGI application for webhook deliveries under /hooks/."""

    def __init__(
        self, store: Store, projects: ForgeProjects, intake: ChangeIntake, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._projects = projects
        self._intake = intake
        self._clock = clock
        self._decoy_secret = secrets.token_urlsafe(32)  # Checked in place of a missing secret.
        self._buffered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one delivery and send the response. An exception becomes an error response."""
        request = Request(scope, receive)
        headers: list[tuple[bytes, bytes]] = []
        try:
            status, response = await self._respond(request)
        except Exception as error:
            quoted_path = plain_line(request.path, MAX_QUOTED_CHARS)
            reported_error = http_error(error, f"delivery to {quoted_path}", ["POST"])
            status = 500 if reported_error.code == "internal" else status_of(reported_error.code)
            response = _refused_response(reported_error.code, reported_error.message)
            headers = reported_error.raw_headers()
            if reported_error.code == "too_large":  # The rest of the body is not read.
                headers.append((b"connection", b"close"))
        await _send_response(send, status, response, headers)

    async def _respond(self, request: Request) -> tuple[int, WebhookResponse]:
        tenant, project_name = _parse_path(request)
        delivery = await self._read_delivery(request)
        began_at = time.monotonic()
        project = await self._find_project(tenant, project_name)
        if not self._has_valid_signature(project, delivery):
            await asyncio.sleep(began_at + REFUSED_AFTER_SECONDS - time.monotonic())
            raise Refused(
                "bad_credential",
                "there is no such project, or the signature is not made with its webhook secret, or it is too old",
            )
        assert project is not None
        return await self._accept_event(project, delivery, request)

    async def _read_delivery(self, request: Request) -> Delivery:
        """Read the request's body and return the delivery.

        Raises `Overloaded` if all bodies that are being read exceed `MAX_BUFFERED_BYTES`, and `Refused` if one takes
        too long.
        """
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.chunks(MAX_BYTES):
                    chunks.append(chunk)
                    self._buffered_bytes += len(chunk)
                    if self._buffered_bytes > MAX_BUFFERED_BYTES:
                        raise Overloaded("too many deliveries are being read")
        except TimeoutError:
            raise Refused("too_slow", f"the body took more than {BODY_SECONDS:.0f} s; deliver it again") from None
        finally:
            self._buffered_bytes -= sum(map(len, chunks))
        return Delivery(request.header, b"".join(chunks), self._clock())

    async def _find_project(self, tenant: str, project_name: str) -> ForgeProject | None:
        if not all(
            0 < len(path_part) <= MAX_NAME and is_storable_text(path_part) for path_part in (tenant, project_name)
        ):
            return None
        try:
            return await self._projects.find(tenant, project_name)
        except Refused as refused:  # Logged only: an unauthenticated caller must not learn it.
            LOGGER.warning("cannot read project %s: %s", plain_line(project_name, MAX_QUOTED_CHARS), refused.message)
            return None

    def _has_valid_signature(self, project: ForgeProject | None, delivery: Delivery) -> bool:
        """Return whether the delivery is signed with the project's webhook secret.

        Without a project or a secret, return False, but verify against a random secret first, to take as long.
        """
        secret = project.webhook_secret if project is not None else ""
        parser = WEBHOOK_PARSERS[project.forge if project is not None else "github"]
        return parser.has_valid_signature(delivery, secret or self._decoy_secret) and bool(secret)

    async def _accept_event(
        self, project: ForgeProject, delivery: Delivery, request: Request
    ) -> tuple[int, WebhookResponse]:
        if not delivery.body:
            raise Refused("bad_request", "there is no body; deliver the event as JSON")
        request.check_is_json()
        parser = WEBHOOK_PARSERS[project.forge]
        event = parser.parse(delivery)
        if isinstance(event, IgnoredEvent):
            return (
                (200, WebhookResponse(result="pong", why=event.reason))
                if event.is_ping
                else (202, _ignored_response(event.reason))
            )
        change = event.change
        if not _is_about_repository(project, change):
            return 202, _ignored_response(
                f"the event is about {plain_line(change.repository, MAX_QUOTED_CHARS)!r}, "
                f"but the project's repository is {project.repository!r}"
            )
        if not change.repository:
            change = msgspec.structs.replace(change, repository=project.repository)
        delivery_id = plain_line(parser.delivery_id(delivery), MAX_DELIVERY)
        event_fingerprint = _event_fingerprint(project, event)
        record_names = [f"{project.name}/{event_fingerprint}"]
        if delivery_id:
            record_names.append(f"{project.name}/id-{fingerprint(project.forge, delivery_id)}")
        duplicate = await self._find_duplicate(project.tenant, record_names)
        change_fields = {
            "event": change.event,
            "ref": plain_line(change.ref, MAX_QUOTED_CHARS),
            "commit": change.commit,
        }
        if duplicate is not None:
            return 200, WebhookResponse(
                result="duplicate", change=duplicate.change, why="it was delivered before", **change_fields
            )
        accepted_change = await self._intake.accept(project.tenant, project.name, change, event_fingerprint)
        await self._record_delivery(project.tenant, record_names, DeliveryRecord(accepted_change.id, delivery_id))
        if not accepted_change.is_new:
            return 200, WebhookResponse(
                result="duplicate", change=accepted_change.id, why="it was delivered before", **change_fields
            )
        return 202, WebhookResponse(result="accepted", change=accepted_change.id, **change_fields)

    async def _find_duplicate(self, tenant: str, record_names: Sequence[str]) -> DeliveryRecord | None:
        for record_name in record_names:
            if (
                document := await delivery_dedupe.find(self._store, delivery_dedupe.DELIVERY_KIND, tenant, record_name)
            ) is not None:
                return msgspec.json.decode(document.body, type=DeliveryRecord)
        return None

    async def _record_delivery(self, tenant: str, record_names: Sequence[str], record: DeliveryRecord) -> None:
        body = msgspec.json.encode(record)
        for record_name in record_names:
            with suppress(Conflict):  # The same delivery is being recorded by another request.
                await self._store.put_documents(
                    [delivery_dedupe.new_document(delivery_dedupe.DELIVERY_KIND, tenant, record_name, body)]
                )


def _event_fingerprint(project: ForgeProject, event: WebhookEvent) -> str:
    """Return a hash of the forge, the change and its time: the same for a repeated delivery with another id."""
    return fingerprint(project.forge, msgspec.json.encode(event.change).decode(), event.occurred_at)


def _is_about_repository(project: ForgeProject, change: Change) -> bool:
    """Return whether the event belongs to the project's repository: one webhook may serve many repositories.

    The project may name the repository by a longer path, if the forge is served below a path prefix.
    """
    if not change.repository or not project.repository:
        return True
    return f"/{project.repository.casefold()}".endswith(f"/{change.repository.casefold()}")


def _parse_path(request: Request) -> tuple[str, str]:
    """Return the tenant and the project in the path of a delivery; the default tenant if the path names none.

    Raises `Refused` for any other path or method.
    """
    segments = request.path.removeprefix(ROOT).split("/")
    if not request.path.startswith(ROOT) or not 1 <= len(segments) <= 2 or not all(segments):
        raise Refused("not_found", f"there is no {request.path[:MAX_QUOTED_CHARS]}; deliver to /hooks/TENANT/PROJECT")
    if request.method != "POST":
        raise Refused("wrong_method", f"deliveries are sent by POST, not by {request.method[:MAX_QUOTED_CHARS]}")
    return (segments[0], segments[1]) if len(segments) == 2 else (TENANT, segments[0])


def _refused_response(code: str, reason: str) -> WebhookResponse:
    return WebhookResponse(result="refused", code=code, why=reason)


def _ignored_response(reason: str) -> WebhookResponse:
    return WebhookResponse(result="ignored", why=reason)


async def _send_response(
    send: Send, status: int, response: WebhookResponse, extra_headers: list[tuple[bytes, bytes]]
) -> None:
    body = msgspec.json.encode(response) + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *extra_headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
