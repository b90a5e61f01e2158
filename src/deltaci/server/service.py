"""A whole server: the store, the write path, the timers, and what is reachable from outside."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from deltaci.api.routes import ROOT as API_ROOT
from deltaci.controllers.flaky import FlakyTests
from deltaci.controllers.merge_queue.landing import Landing, Pushing
from deltaci.controllers.reporter import Reporter
from deltaci.controllers.repositories import Repositories
from deltaci.controllers.statuses import Forges
from deltaci.controllers.transitions import LiveTransitions
from deltaci.controllers.workstreams.context import Desk
from deltaci.controllers.workstreams.controller import Streams
from deltaci.controllers.workstreams.records import Workstreams
from deltaci.core import lease
from deltaci.core.failures import FailureRule
from deltaci.engine.clock import steady_clock
from deltaci.engine.engine import Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.timers import Timers
from deltaci.fleet.health import Limits
from deltaci.fleet.incarnations import Lives
from deltaci.fleet.liveness import Fleet
from deltaci.forges.credentials import OpenedProjects
from deltaci.forges.http import Outlet
from deltaci.forges.landing import ForgeLanding
from deltaci.forges.reports import Reports
from deltaci.git.mirrors import ReadSecret
from deltaci.git.url_policy import UrlPolicy
from deltaci.protocol.nats_client import NatsAddress
from deltaci.server.auth.callers import Keys
from deltaci.server.auth.credentials import REGISTRATION_SECONDS, Signer, server_key
from deltaci.server.connection import connection_class
from deltaci.server.disk import Disk
from deltaci.server.failure_rules import FailureRules
from deltaci.server.follower import Follower
from deltaci.server.rest.event_streams import Streams as EventStreams
from deltaci.server.rest.http.app import ApiApp
from deltaci.server.rest.http.request import Parts
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.lease_ids import LeaseIds
from deltaci.server.runner_api.message_handlers import Protocol
from deltaci.server.runner_api.nats_dispatch import Dispatcher
from deltaci.server.runner_api.registration import Issuer, Registry
from deltaci.server.runner_api.uploads import Uploads
from deltaci.server.runner_api.worktrees import Trees
from deltaci.server.secrets import Secrets, Where
from deltaci.server.tenants import Tenants
from deltaci.server.test_reports import TestReports
from deltaci.server.web.app import WebApp
from deltaci.server.web.auth.oidc_sign_in import OidcSignIn
from deltaci.server.web.auth.revoked_sessions import Endings
from deltaci.server.web.auth.sessions import Sessions
from deltaci.server.webhooks import ROOT as HOOKS_ROOT
from deltaci.server.webhooks import Hooks
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStore, FolderBlobStore
from deltaci.storage.port import Store

KEY_FILE: Final = "server.key"
URL_FILE: Final = "server.url"
BLOBS_FOLDER: Final = "blobs"
KEEP_ALIVE_SECONDS: Final = 75
UNFINISHED_SECONDS: Final = 24 * 3600  # Nobody writes one blob for so long.
COLLECT_AFTER: Final = (50_000, 20, 100)

Scope = dict[str, Any]


def collect_seldom() -> None:
    """Look for garbage seldom, for a process that only serves.

    Each look at all that lives stops everybody, and with ten thousand runners that wait it takes a quarter of a second.
    """
    gc.freeze()  # What is here by now stays until the end.
    gc.set_threshold(*COLLECT_AFTER)


def registration_token(
    folder: Path, runner_id: str, tenant: str, seconds: float = REGISTRATION_SECONDS, *, again: bool = False
) -> str:
    """A token with which this runner can register, once; or come in `again`, when it has lost its credential."""
    signer = Signer(server_key(folder / KEY_FILE), time.time)
    return signer.sign("register", runner_id, tenant, seconds, again=again)


def announced(folder: Path, url: str) -> Path:
    """Leave the address where the command line on this machine looks for it."""
    path = folder / URL_FILE
    path.write_text(f"{url}\n", encoding="utf-8")
    return path


def _read_secret(secrets: Secrets) -> ReadSecret:
    """How the server itself opens a secret, for a project that names it."""
    return lambda tenant, project, name: secrets.opened(tenant, [name], Where(project))[name]


class Service:
    """Use it as a context manager; `app` is the ASGI application."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        ttl_seconds: int = lease.TTL_SECONDS,
        blobs: BlobStore | None = None,
        nats: NatsAddress | None = None,
        issuer: Issuer | None = None,
        url_policy: UrlPolicy | None = None,
        allowed_forges: Collection[str] = (),
        public_url: str = "",
        failure_rules: Sequence[FailureRule] = (),
        has_transitions: bool = True,
        health: Limits | None = None,
        sign_in: OidcSignIn | None = None,
    ) -> None:
        self.store = store
        key = server_key(folder / KEY_FILE)
        lease_ids = LeaseIds(key)
        self.engine = Engine(store, lease_ids.mint)
        self.logs = LogStore(folder / "logs")
        self.blobs = blobs if blobs is not None else FolderBlobStore(folder / BLOBS_FOLDER)
        self.signer = signer = Signer(key, steady_clock())
        tenants = Tenants(store, self.blobs, time.monotonic)
        rules_of = FailureRules(store, time.monotonic, failure_rules)
        self.flaky = FlakyTests(store)
        self.fleet = Fleet(store, self.engine, health)
        self.lives = Lives(store)
        self.protocol = Protocol(
            store, self.engine, ttl_seconds, tenants.running_limit, rules_of.of, self.flaky.of_attempt, self.fleet
        )
        self.control = ControlHub(store, lease_ids)
        self._follower = Follower(store)
        self._dispatcher = Dispatcher(store, nats) if nats is not None else None
        if self._dispatcher is not None:
            self.control.add_outlet(self._dispatcher.tell)
        secrets = Secrets(self.blobs, key)
        self._uploads = Uploads(self.protocol, self.blobs, secrets, folder / "incoming", storage=tenants)
        registry = Registry(self.engine, signer, issuer=issuer, lives=self.lives)
        self._disk = Disk("api")
        self.streams = EventStreams(store)
        self.repositories = Repositories(store, self.engine, folder, _read_secret(secrets), url_policy)
        projects = OpenedProjects(self.repositories.projects.find, _read_secret(secrets))
        self._hooks = Hooks(store, projects, self.repositories.changes)
        outlet = Outlet(allowed_forges)
        forges = Forges(projects, outlet, Reports(store, self.logs, public_url))
        self.reporter = Reporter(store, self.engine, forges)
        self.transitions = LiveTransitions(store, folder) if has_transitions else None
        self.workstreams = self._lines_of_work(folder, ForgeLanding(projects, outlet, Pushing()))
        bring = self.workstreams.merging.bring
        trees = Trees(self.protocol, store, self.repositories, self.blobs, folder, self._disk, bring)
        self._runners = RunnerApp(
            self.protocol, registry, self.logs, self.control, self._uploads, trees, self.fleet.hearing
        )
        self._tell_all()
        parts = self._people(tenants, secrets, rules_of)
        self._api = ApiApp(parts)
        self._web = self._pages(key, parts, public_url, sign_in)
        self._timers: asyncio.Task[None] | None = None

    def _tell_all(self) -> None:
        """Whoever wants to know what happens is told, in this order."""
        parts = (self.control, self.fleet, self._dispatcher, self.streams, self.repositories, self.reporter, self.flaky)
        for each in (*parts, self.transitions, self.workstreams):
            if each is not None:
                self._follower.tell(each.hear)

    def _lines_of_work(self, folder: Path, landing: Landing) -> Streams:
        """Workstreams, and the queue in which they are merged."""
        desk = Desk(
            store=self.store,
            engine=self.engine,
            projects=self.repositories.projects,
            mirrors=self.repositories.mirrors,
            blobs=self.blobs,
            logs=self.logs,
            folder=folder,
            records=Workstreams(self.store),
        )
        return Streams(desk, self.repositories.owner, landing)

    def _pages(self, key: bytes, parts: Parts, public_url: str, sign_in: OidcSignIn | None) -> WebApp:
        """What people look at."""
        endings = Endings(self.store, self.signer.now, time.monotonic)
        trusted = sign_in.grants if sign_in is not None else None
        sessions = Sessions(key, parts.keys, self.signer.now, endings, trusted)
        return WebApp(parts, self._api, sessions, public_url, sign_in)

    def _people(self, tenants: Tenants, secrets: Secrets, rules: FailureRules) -> Parts:
        """What people and programs talk to."""
        return Parts(
            store=self.store,
            engine=self.engine,
            logs=self.logs,
            blobs=self.blobs,
            disk=self._disk,
            signer=self.signer,
            keys=Keys(self.store, self.signer, time.monotonic),
            tenants=tenants,
            streams=self.streams,
            secrets=secrets,
            rules=rules,
            flaky=self.flaky,
            reports=TestReports(),
            repositories=self.repositories,
            fleet=self.fleet,
            lives=self.lives,
            workstreams=self.workstreams,
        )

    async def __aenter__(self) -> Service:
        await self.store.open()
        if isinstance(self.blobs, FolderBlobStore):  # What servers that were killed left half-written, long ago.
            await asyncio.to_thread(self.blobs.sweep, time.time() - UNFINISHED_SECONDS)
        await self.engine.start()
        await self._follower.start()
        await self.fleet.start()
        self.control.start()
        self.reporter.start()
        self.flaky.start()
        if self.transitions is not None:
            self.transitions.start()
        self.repositories.start()
        self.workstreams.start()
        if self._dispatcher is not None:
            self._dispatcher.start()
        self._timers = asyncio.create_task(Timers(self.engine).run(), name="timers")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timers is not None:
            await cancel_and_wait(self._timers)
        if self._dispatcher is not None:
            await self._dispatcher.stop()
        await self.workstreams.stop()
        await self.repositories.stop()
        await self.reporter.stop()
        await self.flaky.stop()
        await self._follower.stop()
        await self.fleet.stop()
        await self.control.stop()
        await asyncio.to_thread(self._uploads.close)
        await asyncio.to_thread(self._disk.close)
        await self.engine.stop()
        if self.transitions is not None:
            await self.transitions.stop()  # All is committed by now.
        await self.store.close()

    async def app(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Whatever comes in over HTTP."""
        if scope["type"] == "http":
            if scope["path"].startswith(HOOKS_ROOT):
                await self._hooks(scope, receive, send)
                return
            if f"{scope['path']}/".startswith(f"{API_ROOT}/"):
                await self._api(scope, receive, send)
            elif self._web.serves(scope):
                await self._web(scope, receive, send)
            else:
                await self._runners(scope, receive, send)

    def stop_waiting(self) -> None:
        """The server is about to end: whoever waits for something is answered now."""
        self.protocol.stop_waiting()
        self.control.stop_waiting()
        self.streams.close()


class _Server(uvicorn.Server):
    """Leaves the signals alone: who runs it decides what they mean."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them."""
        yield


class Listener:
    """The socket before the service. It is taken at once, so `url` is known and who comes early only waits."""

    def __init__(self, service: Service, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_server((host, port))
        # Every connection inherits it. Without it, head and body of an answer wait for each other for 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(
            service.app,
            http=connection_class(),
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            interface="asgi3",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=3,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._service = service

    async def serve(self) -> None:
        """Until `stop`."""
        await self._server.serve(sockets=[self.socket])

    def stop(self) -> None:
        """Finish what is under way, and end."""
        self._service.stop_waiting()
        self._server.should_exit = True
