"""Webhooks: a forge delivers its events to `POST /hooks/PROJECT` or `POST /hooks/TENANT/PROJECT`.

A delivery is checked in this order: the size, the project and its secret, the signature over the raw bytes, and only
then the content. A project that does not exist is answered like a bad signature, after the same time. A delivery whose
id was answered before has no effect, unless its change could not be handled. Every response is one line of JSON with
the result and a reason; those to authenticated deliveries are logged.

A change is stored before its delivery is logged: its id is derived from that of the delivery, so that after a crash in
between the repeated delivery creates no second one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

import msgspec

from deltaci.controllers.repositories.renames import RepositoryRenames
from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.engine.requests import Overloaded
from deltaci.forges import WEBHOOK_PARSERS
from deltaci.forges.deliveries import DeliveryEntry, DeliveryLog
from deltaci.forges.projects import AcceptedChange, ChangeIntake, ForgeProject, ForgeProjects
from deltaci.forges.webhook_event import MAX_DELIVERY, Delivery, IgnoredEvent, WebhookEvent, WebhookParser
from deltaci.protocol.routes import status_of
from deltaci.server.errors import HttpError, http_error
from deltaci.server.request import MAX_QUOTED_CHARS, Receive, Request, Scope, Send
from deltaci.storage.port import Store, is_storable_text

ROOT: Final = "/hooks/"
TENANT: Final = "default"
MAX_BYTES: Final = 25 * 1024 * 1024  # The largest body that GitHub sends; GitLab and Gitea send smaller ones.
MAX_BUFFERED_BYTES: Final = 256 * 1024 * 1024  # The limit for all bodies that are being read.
BODY_SECONDS: Final = 30.0  # The longest time for one body.
REFUSED_AFTER_SECONDS: Final = (
    0.05  # The same for every reason of refusal, so that the response time does not reveal the reason.
)
MAX_NAME: Final = 200
MAX_LOGGED_REASON: Final = 1000
REPEATED: Final = "it was delivered before"

LOGGER: Final = logging.getLogger(__name__)


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of the response to a delivery: the result, its reason (`why`), and the change or an error code.

    `runs` are the runs of a change that was handled before.
    """

    result: str  # accepted, duplicate, ignored, pong, refused
    why: str = ""
    change: str = ""
    runs: tuple[str, ...] = ()
    event: str = ""
    ref: str = ""
    commit: str = ""
    code: str = ""


class WebhookApp:
    """The ASGI application for webhook deliveries under /hooks/."""

    def __init__(
        self,
        store: Store,
        projects: ForgeProjects,
        intake: ChangeIntake,
        renames: RepositoryRenames,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._projects = projects
        self._intake = intake
        self._renames = renames
        self._log = DeliveryLog(store)
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
            reported_error = _http_error(error, request)
            status = 500 if reported_error.code == "internal" else status_of(reported_error.code)
            response = WebhookResponse(result="refused", code=reported_error.code, why=reported_error.message)
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
        return await self._accept_delivery(project, delivery, request)

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

    async def _accept_delivery(
        self, project: ForgeProject, delivery: Delivery, request: Request
    ) -> tuple[int, WebhookResponse]:
        """Answer an authenticated delivery and log the answer."""
        parser = WEBHOOK_PARSERS[project.forge]
        entry = DeliveryEntry(event=plain_line(parser.event_name(delivery), MAX_QUOTED_CHARS))
        try:
            if not delivery.body:
                raise Refused("bad_request", "there is no body; deliver the event as JSON")
            request.check_is_json()
            delivery_id = plain_line(parser.delivery_id(delivery), MAX_DELIVERY)
            entry = msgspec.structs.replace(entry, delivery=delivery_id)
            status, response = await self._answer(project, parser, delivery, delivery_id)
        except (Refused, msgspec.DecodeError, RecursionError) as error:
            refusal = _http_error(error, request)
            entry = msgspec.structs.replace(entry, result="refused", reason=refusal.message[:MAX_LOGGED_REASON])
            await self._log.add(project.tenant, project.name, entry)
            raise
        entry = msgspec.structs.replace(
            entry,
            event=response.event or entry.event,
            ref=response.ref,
            commit=response.commit,
            result=response.result,
            reason=response.why[:MAX_LOGGED_REASON],
            change=response.change,
        )
        await self._log.add(project.tenant, project.name, entry)
        return status, response

    async def _answer(
        self, project: ForgeProject, parser: WebhookParser, delivery: Delivery, delivery_id: str
    ) -> tuple[int, WebhookResponse]:
        """Return the answer to a delivery, after storing the change that it causes."""
        first = await self._log.find(project.tenant, project.name, delivery_id) if delivery_id else None
        if first is not None and not first.change:
            return 200, WebhookResponse(result="duplicate", why=f"{REPEATED}: {first.reason}")
        if first is not None and (repeated := await self._intake.repeat(project.tenant, first.change)) is not None:
            return _repeated_response(repeated, first.event, first.ref, first.commit)
        event = parser.parse(delivery)
        if isinstance(event, IgnoredEvent):
            result = "pong" if event.is_ping else "ignored"
            return (200 if event.is_ping else 202), WebhookResponse(result=result, why=event.reason)
        change = event.change
        if not await self._renames.is_about_project(project, event):
            reason = (
                f"the event is about {plain_line(change.repository, MAX_QUOTED_CHARS)!r}, "
                f"but the project's repository is {project.repository!r}"
            )
            return 202, WebhookResponse(result="ignored", why=reason)
        return await self._accept_event(project, event, delivery_id)

    async def _accept_event(
        self, project: ForgeProject, event: WebhookEvent, delivery_id: str
    ) -> tuple[int, WebhookResponse]:
        change = event.change
        if not change.repository:
            change = msgspec.structs.replace(change, repository=project.repository)
        accepted_change = await self._intake.accept(
            project.tenant, project.name, change, delivery_id, source="webhook", occurred_at=event.occurred_at
        )
        event_name, ref = f"{change.event} {change.action}".strip(), plain_line(change.ref, MAX_QUOTED_CHARS)
        if not accepted_change.is_new:
            return _repeated_response(accepted_change, event_name, ref, change.commit)
        return 202, WebhookResponse(
            result="accepted", change=accepted_change.id, event=event_name, ref=ref, commit=change.commit
        )


def _repeated_response(change: AcceptedChange, event: str, ref: str, commit: str) -> tuple[int, WebhookResponse]:
    """Return the answer to a delivery whose change was accepted before."""
    if change.is_failed:
        why = f"it could not be handled before: {change.reason}; it is handled again"
        return 202, WebhookResponse(result="accepted", change=change.id, why=why, event=event, ref=ref, commit=commit)
    why = f"{REPEATED}: {change.reason}" if change.reason else REPEATED
    return 200, WebhookResponse(
        result="duplicate", change=change.id, runs=change.runs, why=why, event=event, ref=ref, commit=commit
    )


def _http_error(error: Exception, request: Request) -> HttpError:
    return http_error(error, f"delivery to {plain_line(request.path, MAX_QUOTED_CHARS)}", ["POST"])


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
