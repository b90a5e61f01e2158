"""The composition root: `Server` creates all parts of a server and connects them.

A server with the profile "local" is the engine with the runner protocol, as `deltaci run` needs it. The profile "full"
adds a `ControlPlane`: REST API, web pages, webhooks, repositories, workstreams, forges and dispatch over NATS.
`HttpListener` serves the ASGI application `Server.app` on a socket.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self

import uvicorn

from deltaci.api.routes import ROOT as API_ROOT
from deltaci.controllers.flaky import FlakyTestTracker
from deltaci.controllers.reporter import RunReporter
from deltaci.controllers.repositories.controller import RepositoryController
from deltaci.controllers.repositories.renames import RepositoryRenames
from deltaci.controllers.statuses import ForgeAccess
from deltaci.controllers.transitions import TransitionWriter
from deltaci.controllers.workstreams.context import WorkstreamContext
from deltaci.controllers.workstreams.controller import WorkstreamController
from deltaci.controllers.workstreams.records import WorkstreamRecords
from deltaci.core import lease
from deltaci.core.errors import InvariantBroken
from deltaci.core.failures import FailureRule
from deltaci.engine.clock import steady_clock
from deltaci.engine.engine import Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.engine.timers import Timers
from deltaci.fleet.health import HealthLimits
from deltaci.fleet.incarnations import Incarnations
from deltaci.fleet.liveness import Fleet
from deltaci.forges.credentials import CachedForgeProjects
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.reports import ReportBuilder
from deltaci.git.mirrors import ReadSecret
from deltaci.git.url_policy import UrlPolicy
from deltaci.protocol.nats_client import NatsAddress
from deltaci.server.auth.callers import ApiKeys
from deltaci.server.auth.credentials import REGISTRATION_SECONDS, Signer, load_server_key
from deltaci.server.connection import connection_class
from deltaci.server.disk import DiskThreads
from deltaci.server.document_import import import_documents
from deltaci.server.failure_rules import FailureRules
from deltaci.server.follower import Follower
from deltaci.server.rest.http.app import ApiApp
from deltaci.server.rest.http.request import AppState
from deltaci.server.rest.streams.event_streams import EventStreams
from deltaci.server.runner_api.app import RunnerApp
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.job_data import JobResourceHandlers
from deltaci.server.runner_api.message_handlers import MessageHandlers
from deltaci.server.runner_api.nats_dispatch import Dispatcher
from deltaci.server.runner_api.registration import RunnerRegistry, RunnerTokenIssuer
from deltaci.server.runner_api.worktrees import WorktreeHandlers
from deltaci.server.secret_changes import SecretChanges
from deltaci.server.secrets import JobScope, Secrets
from deltaci.server.tenants import Tenants
from deltaci.server.test_reports import TestReports
from deltaci.server.web.app import WebApp
from deltaci.server.web.auth.oidc_sign_in import OidcSignIn
from deltaci.server.web.auth.recorded_grants import record_grants
from deltaci.server.web.auth.revoked_sessions import RevokedSessions
from deltaci.server.web.auth.sessions import SessionManager
from deltaci.server.webhooks import ROOT as HOOKS_ROOT
from deltaci.server.webhooks import WebhookApp
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStore, FolderBlobStore
from deltaci.storage.port import Store

KEY_FILE: Final = "server.key"
URL_FILE: Final = "server.url"
BLOBS_FOLDER: Final = "blobs"
KEEP_ALIVE_SECONDS: Final = 75
UNFINISHED_SECONDS: Final = 24 * 3600  # A partly written blob of this age was left by a server that was killed.
GC_THRESHOLDS: Final = (50_000, 20, 100)  # of the three generations, for `gc.set_threshold`

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def reduce_garbage_collection() -> None:
    """Configure the garbage collector to run rarely in this process, which does nothing but serve requests.

    Each full collection stops the process, for a quarter of a second if ten thousand runners are connected.
    """
    gc.freeze()  # Existing objects live as long as the process: never examine them again.
    gc.set_threshold(*GC_THRESHOLDS)


def registration_token(
    folder: Path, runner_id: str, tenant: str, seconds: float = REGISTRATION_SECONDS, *, again: bool = False
) -> str:
    """Return a signed token with which a runner of this id can register once.

    `seconds` is the lifetime of the token. With `again`, the token is also accepted for a runner that is registered
    already, to replace a credential that its machine has lost.
    """
    signer = Signer(load_server_key(folder / KEY_FILE), time.time)
    return signer.sign("register", runner_id, tenant, seconds, again=again)


def write_url_file(folder: Path, url: str) -> Path:
    """Write the URL to `server.url` in the server's folder, where the command line finds it. Return that path."""
    url_path = folder / URL_FILE
    url_path.write_text(f"{url}\n", encoding="utf-8")
    return url_path


class Server:
    """A server, as an async context manager: entering it starts engine, controllers and HTTP, leaving it stops them.

    `folder` holds the server's key, logs and, without `blobs`, artifacts and caches.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        profile: Literal["full", "local"] = "full",
        ttl_seconds: int = lease.TTL_SECONDS,
        blobs: BlobStore | None = None,
        nats: NatsAddress | None = None,
        issuer: RunnerTokenIssuer | None = None,
        url_policy: UrlPolicy | None = None,
        allowed_forges: Collection[str] = (),
        public_url: str = "",
        failure_rules: Sequence[FailureRule] = (),
        has_transitions: bool = True,
        health: HealthLimits | None = None,
        sign_in: OidcSignIn | None = None,
    ) -> None:
        self.store = store
        self.folder = folder
        self.key = load_server_key(folder / KEY_FILE)
        lease_id_minter = LeaseIdMinter(self.key)
        self.engine = Engine(store, lease_id_minter.mint)
        self.logs = LogStore(folder / "logs")
        self.blobs = blobs if blobs is not None else FolderBlobStore(folder / BLOBS_FOLDER)
        self.signer = Signer(self.key, steady_clock())
        self.secrets = Secrets(self.blobs, self.key)
        self.tenants = Tenants(self.engine, store, self.blobs, time.monotonic)
        self.failure_rules = FailureRules(self.engine, store, time.monotonic, failure_rules)
        self.flaky = FlakyTestTracker(store)
        self.fleet = Fleet(store, self.engine, health)
        self.incarnations = Incarnations(self.engine, store)
        self.message_handlers = MessageHandlers(
            store,
            self.engine,
            ttl_seconds,
            self.tenants.running_limit,
            self.failure_rules.for_tenant,
            self.flaky.of_attempt,
            self.fleet,
        )
        self.control = ControlHub(store, lease_id_minter)
        self._control_plane: ControlPlane | None = None
        if profile == "full":
            self._control_plane = ControlPlane(
                self, nats, url_policy, allowed_forges, public_url, sign_in, has_transitions=has_transitions
            )
        control_plane = self._control_plane
        forges = control_plane.forges if control_plane is not None else None
        self.reporter = RunReporter(store, self.engine, forges)
        self._job_resource_handlers = JobResourceHandlers(
            self.message_handlers, self.blobs, self.secrets, folder / "incoming", quota=self.tenants
        )
        self.app = self._create_app(issuer)
        self._follower = Follower(store)
        for on_events in (self.control.on_events, self.fleet.on_events, self.reporter.on_events, self.flaky.on_events):
            self._follower.subscribe(on_events)
        if control_plane is not None:
            control_plane.subscribe(self._follower, self.reporter)
        self._timers: asyncio.Task[None] | None = None

    def _create_app(self, issuer: RunnerTokenIssuer | None) -> RunnerApp:
        control_plane = self._control_plane
        return RunnerApp(
            self.message_handlers,
            RunnerRegistry(self.engine, self.signer, issuer=issuer, incarnations=self.incarnations),
            self.logs,
            self.control,
            self._job_resource_handlers,
            control_plane.worktrees if control_plane is not None else None,
            self.fleet.heartbeats,
            control_plane.serve if control_plane is not None else None,
        )

    @property
    def control_plane(self) -> ControlPlane:
        """The REST API, web pages, webhooks and controllers, which only a server with the profile "full" has."""
        if self._control_plane is None:
            raise InvariantBroken("a server with the profile 'local' has no control plane")
        return self._control_plane

    async def __aenter__(self) -> Self:
        await self.store.open()
        if isinstance(self.blobs, FolderBlobStore):
            await asyncio.to_thread(self.blobs.sweep, time.time() - UNFINISHED_SECONDS)
        await self.engine.start()
        await import_documents(self.engine, self.store)
        await self._follower.start()
        await self.fleet.start()
        self.control.start()
        self.reporter.start()
        self.flaky.start()
        if self._control_plane is not None:
            await self._control_plane.record_grants(self)
            self._control_plane.start()
        self._timers = asyncio.create_task(Timers(self.engine).run(), name="timers")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timers is not None:
            await cancel_and_wait(self._timers)
        if self._control_plane is not None:
            await self._control_plane.stop()
        await self.reporter.stop()
        await self.flaky.stop()
        await self._follower.stop()
        await self.fleet.stop()
        await self.control.stop()
        await asyncio.to_thread(self._job_resource_handlers.close)
        await self.engine.stop()
        if self._control_plane is not None:
            await self._control_plane.stop_transitions()
        await self.store.close()

    def stop_waiting(self) -> None:
        """Let all long polls and event streams end at once, because the server is about to stop."""
        self.message_handlers.stop_waiting()
        self.control.stop_waiting()
        if self._control_plane is not None:
            self._control_plane.event_streams.close()


class ControlPlane:
    """The parts of a full server besides engine and runner protocol: REST API, web pages, webhooks and controllers."""

    def __init__(
        self,
        server: Server,
        nats: NatsAddress | None,
        url_policy: UrlPolicy | None,
        allowed_forges: Collection[str],
        public_url: str,
        sign_in: OidcSignIn | None,
        *,
        has_transitions: bool,
    ) -> None:
        store, folder = server.store, server.folder
        read_secret = _secret_reader(server.secrets)
        self._dispatcher = Dispatcher(store, nats) if nats is not None else None
        if self._dispatcher is not None:
            server.control.subscribe(self._dispatcher.on_cancel)
        self._disk = DiskThreads("api")
        self.event_streams = EventStreams(store)
        self.repositories = RepositoryController(store, server.engine, folder, read_secret, url_policy)
        forge_projects = CachedForgeProjects(self.repositories.projects.find, read_secret)
        reports = ReportBuilder(store, server.logs, public_url)
        forge_client = ForgeHttpClient(allowed_forges)
        self.forges = ForgeAccess(forge_projects, forge_client, reports)
        self.transitions = TransitionWriter(store, folder) if has_transitions else None
        self.workstreams = self._create_workstreams(server)
        self.worktrees = WorktreeHandlers(
            server.message_handlers,
            store,
            self.repositories,
            server.blobs,
            folder,
            self._disk,
            self.workstreams.merging.bring,
        )
        app_state = self._create_app_state(server)
        self.api = ApiApp(app_state)
        self._sign_in = sign_in
        self.web = self._create_web(server, app_state, public_url, sign_in)
        self._webhooks = WebhookApp(
            store,
            forge_projects,
            self.repositories.changes,
            RepositoryRenames(store, self.repositories.projects, forge_client),
        )

    def _create_workstreams(self, server: Server) -> WorkstreamController:
        context = WorkstreamContext(
            store=server.store,
            engine=server.engine,
            projects=self.repositories.projects,
            mirrors=self.repositories.mirrors,
            blobs=server.blobs,
            logs=server.logs,
            folder=server.folder,
            records=WorkstreamRecords(server.store),
        )
        return WorkstreamController(context, self.repositories.owner)

    def _create_app_state(self, server: Server) -> AppState:
        return AppState(
            store=server.store,
            engine=server.engine,
            logs=server.logs,
            blobs=server.blobs,
            disk=self._disk,
            signer=server.signer,
            keys=ApiKeys(server.engine, server.store, server.signer, time.monotonic),
            tenants=server.tenants,
            streams=self.event_streams,
            secrets=server.secrets,
            secret_changes=SecretChanges(server.engine, server.store, server.secrets, self._disk),
            failure_rules=server.failure_rules,
            flaky=server.flaky,
            test_reports=TestReports(),
            repositories=self.repositories,
            fleet=server.fleet,
            incarnations=server.incarnations,
            workstreams=self.workstreams,
        )

    def _create_web(self, server: Server, app_state: AppState, public_url: str, sign_in: OidcSignIn | None) -> WebApp:
        revoked_sessions = RevokedSessions(server.store, server.signer.now, time.monotonic)
        role_grants = sign_in.grants if sign_in is not None else None
        sessions = SessionManager(server.key, app_state.keys, server.signer.now, revoked_sessions, role_grants)
        return WebApp(app_state, self.api, sessions, public_url, sign_in)

    def subscribe(self, follower: Follower, reporter: RunReporter) -> None:
        """Register the `on_events` method of each part with the follower, which calls it with the events of the log.

        Changes that cannot be handled are passed to the reporter.
        """
        self.repositories.handling.on_failures(reporter.report_change)
        for subscriber in (self._dispatcher, self.event_streams, self.repositories, self.transitions, self.workstreams):
            if subscriber is not None:
                follower.subscribe(subscriber.on_events)

    async def record_grants(self, server: Server) -> None:
        """Record the scopes and roles that the OIDC file grants, if there is one."""
        if self._sign_in is not None:
            grants = self._sign_in.grants
            await record_grants(server.engine, server.store, grants.issuer, grants.by_tenant)

    def start(self) -> None:
        """Start the background tasks of all parts. The engine and the follower must be running."""
        if self.transitions is not None:
            self.transitions.start()
        self.repositories.start()
        self.workstreams.start()
        if self._dispatcher is not None:
            self._dispatcher.start()

    async def stop(self) -> None:
        """Stop all parts except the transition writer. To be called before the engine stops."""
        if self._dispatcher is not None:
            await self._dispatcher.stop()
        await self.workstreams.stop()
        await self.repositories.stop()
        await asyncio.to_thread(self._disk.close)

    async def stop_transitions(self) -> None:
        """Write the last transitions to their file and stop the writer. To be called after the engine has stopped."""
        if self.transitions is not None:
            await self.transitions.stop()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request to the API, a page or a webhook.

        Return False without answering if the path is none of these.
        """
        path: str = scope["path"]
        if f"{path}/".startswith(f"{API_ROOT}/"):
            await self.api(scope, receive, send)
        elif path.startswith(HOOKS_ROOT):
            await self._webhooks(scope, receive, send)
        elif self.web.serves(scope):
            await self.web(scope, receive, send)
        else:
            return False
        return True


def _secret_reader(secrets: Secrets) -> ReadSecret:
    """Return a function that decrypts a secret of a project, for use by the server itself."""
    return lambda tenant, project, name: secrets.decrypt(tenant, [name], JobScope(project))[name]


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers: the caller of `HttpListener` installs its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, instead of installing uvicorn's signal handlers."""
        yield


class HttpListener:
    """A listening socket for a server.

    The socket is bound at once, so that `url` is known and connections wait until `serve` accepts them.
    """

    def __init__(self, server: Server, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_server((host, port))
        # Accepted connections inherit it. Without it, head and body of a response wait for each other for 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(
            server.app,
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
        self._uvicorn = _UvicornServer(config)
        self._server = server

    async def serve(self) -> None:
        """Serve until `stop` is called."""
        await self._uvicorn.serve(sockets=[self.socket])

    def stop(self) -> None:
        """Stop accepting connections, and let `serve` return when the current requests are answered."""
        self._server.stop_waiting()
        self._uvicorn.should_exit = True
