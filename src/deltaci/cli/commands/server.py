"""`deltaci server` and `deltaci token`: run a server, and create registration tokens."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from pathlib import Path
from typing import Annotated

import typer

from deltaci.app import (
    BLOBS_FOLDER,
    KEY_FILE,
    HttpListener,
    Server,
    reduce_garbage_collection,
    write_url_file,
)
from deltaci.cli.commands.failures import rules_in
from deltaci.cli.embedded import StoreOption as EmbeddedStoreOption
from deltaci.cli.embedded import embedded_store, run_embedded
from deltaci.cli.nats import NatsCredentialsOption, NatsOption, bus_address
from deltaci.cli.session import patient_client, person, reported
from deltaci.client.server_address import announced_url
from deltaci.core import lease
from deltaci.core.events import USER
from deltaci.engine import event_loop
from deltaci.fleet.health import HEALTH_SECONDS, MAX_SILENT_SECONDS, HealthLimits
from deltaci.git.url_policy import ALLOWABLE, UrlPolicy
from deltaci.server.auth.credentials import Signer, is_runner_name, is_tenant_name, load_server_key
from deltaci.server.auth.registration_tokens import RegistrationTokens
from deltaci.server.runner_api.registration import RunnerTokenIssuer
from deltaci.server.tls import server_context
from deltaci.server.web.auth.oidc_sign_in import OidcSignIn
from deltaci.storage import open_store
from deltaci.storage.blobs import open_blob_store
from deltaci.storage.port import Unavailable

app = typer.Typer(add_completion=False)

StoreOption = Annotated[str, typer.Option("--store", help="The store for records: sqlite:PATH or postgresql://…")]
DataOption = Annotated[Path, typer.Option("--data", help="The folder for logs and the server key.")]
BlobsOption = Annotated[
    str, typer.Option("--blobs", help="The store for artifacts and caches: a folder or s3://…  [default: DATA/blobs]")
]
ClientCertOption = Annotated[
    bool, typer.Option("--require-client-cert", help="Reject connections without a client certificate.")
]
OidcIssuerOption = Annotated[str, typer.Option(help="An OIDC issuer whose tokens are accepted for registration.")]
OidcTenantOption = Annotated[str, typer.Option(help="The claim that names the tenant. Default: the tenant 'default'.")]
OidcCaOption = Annotated[
    Path | None, typer.Option(help="A CA file for the certificate of the issuer, if it is not public.")
]
PublicUrlOption = Annotated[
    str, typer.Option(help="The public URL of this server, for links in statuses and for OIDC redirects.")
]
AllowForgeOption = Annotated[
    list[str] | None,
    typer.Option(help="HOST or HOST:PORT of a forge in a private network, or without TLS; may be repeated."),
]
WebOidcOption = Annotated[Path | None, typer.Option(help="A file that configures sign-in by OIDC; see docs/web.md.")]

AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Repositories to allow besides https and ssh to public hosts: {', '.join(ALLOWABLE)}; may be repeated.",
        autocompletion=lambda: list(ALLOWABLE),
    ),
]
FailureRulesOption = Annotated[
    Path | None, typer.Option(help="A file of rules that classify failures; see docs/failures.md.")
]
NoTransitionsOption = Annotated[
    bool, typer.Option("--no-transitions", help="Do not write transitions to DATA/transitions.jsonl.")
]
ClientCaOption = Annotated[
    Path | None,
    typer.Option(
        help="A CA file (PEM) for client certificates of runners. They contain the URI deltaci:TENANT/RUNNER."
    ),
]

LeaseTtlOption = Annotated[
    int, typer.Option(min=2, max=86400, help="Seconds without a heartbeat after which a lease expires.")
]
HealthOption = Annotated[
    int,
    typer.Option(min=1, max=3600, help="Seconds between health checks; a busy runner that misses 3 gets no new jobs."),
]
MaxSilentOption = Annotated[
    int, typer.Option(min=1, max=7 * 86400, help="Seconds without a heartbeat after which a runner counts as gone.")
]


@app.command("server")
def server_command(
    store: StoreOption = "sqlite:.state/deltaci.db",
    data: DataOption = Path(".state"),
    blobs: BlobsOption = "",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8080,
    lease_ttl: LeaseTtlOption = lease.TTL_SECONDS,
    health_seconds: HealthOption = HEALTH_SECONDS,
    max_silent_seconds: MaxSilentOption = MAX_SILENT_SECONDS,
    failure_rules: FailureRulesOption = None,
    nats: NatsOption = "",
    nats_credentials: NatsCredentialsOption = "",
    tls_cert: Annotated[Path | None, typer.Option(help="The TLS certificate (PEM). Enables HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The private key of the certificate (PEM, no password).")] = None,
    client_ca: ClientCaOption = None,
    require_client_cert: ClientCertOption = False,
    allow_repositories: AllowOption = None,
    oidc_issuer: OidcIssuerOption = "",
    oidc_audience: Annotated[str, typer.Option(help="The required audience (aud) of tokens.")] = "",
    oidc_tenant_claim: OidcTenantOption = "",
    oidc_runner_claim: Annotated[
        str, typer.Option(help="The claim that names the runner; a path begins with a slash: /kubernetes.io/pod/name.")
    ] = "sub",
    oidc_ca: OidcCaOption = None,
    public_url: PublicUrlOption = "",
    web_oidc: WebOidcOption = None,
    allow_forge: AllowForgeOption = None,
    no_transitions: NoTransitionsOption = False,
) -> None:
    """Run a server. Several servers can share one PostgreSQL database. Stops on Ctrl-C after open requests have ended.

    Runners register with a token from 'deltaci token', a client certificate or an OIDC token: see docs/runners.md.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # What forges are told is in the documents, not here.
    try:
        data.mkdir(parents=True, exist_ok=True)
        bus = bus_address(nats, nats_credentials)
        kept = open_blob_store(blobs or str(data / BLOBS_FOLDER))
        tls = _tls(tls_cert, tls_key, client_ca, require_client_cert=require_client_cert)
        issuer = _issuer(oidc_issuer, oidc_audience, oidc_tenant_claim, oidc_runner_claim, oidc_ca)
        service = Server(
            open_store(store),
            data,
            ttl_seconds=lease_ttl,
            blobs=kept,
            nats=bus,
            issuer=issuer,
            allowed_forges=allow_forge or (),
            public_url=public_url,
            failure_rules=rules_in(failure_rules) if failure_rules is not None else (),
            url_policy=_url_policy(allow_repositories or []),
            has_transitions=not no_transitions,
            health=HealthLimits(health_seconds=health_seconds, max_silent_seconds=max_silent_seconds),
            sign_in=OidcSignIn.of(web_oidc, public_url) if web_oidc is not None else None,
        )
        event_loop.run(_serve(service, data, host, port, tls))
    except (Unavailable, ValueError, OSError) as error:
        typer.echo(f"deltaci server: {error}", err=True)
        raise typer.Exit(1) from None


def _url_policy(allowed: list[str]) -> UrlPolicy:
    if unknown := sorted(set(allowed) - set(ALLOWABLE)):
        raise ValueError(f"--allow-repositories takes {', '.join(ALLOWABLE)}, not {unknown[0]!r}")
    return UrlPolicy(frozenset(allowed))


def _tls(
    cert: Path | None, key: Path | None, client_ca: Path | None, *, require_client_cert: bool
) -> ssl.SSLContext | None:
    if cert is not None and key is not None:
        return server_context(cert, key, client_ca, require_client_cert=require_client_cert)
    if cert is not None or key is not None or client_ca is not None or require_client_cert:
        raise ValueError("TLS needs a certificate and a key; give both --tls-cert FILE and --tls-key FILE")
    return None


def _issuer(url: str, audience: str, tenant_claim: str, runner_claim: str, ca: Path | None) -> RunnerTokenIssuer | None:
    if not url:
        return None
    from deltaci.server.auth.oidc import OidcIssuer

    return OidcIssuer(url, audience, tenant_claim=tenant_claim, runner_claim=runner_claim, ca=ca)


async def _serve(service: Server, data: Path, host: str, port: int, tls: ssl.SSLContext | None) -> None:
    async with service:
        listener = HttpListener(service, host, port, tls)
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, listener.stop)
        reduce_garbage_collection()
        address = write_url_file(data, listener.url)
        print(f"deltaci server: listening on {listener.url}", flush=True)
        try:
            await listener.serve()
        finally:
            address.unlink(missing_ok=True)


@app.command("token")
def token_command(
    runner: Annotated[str, typer.Argument(help="The name of the runner that may register with the token.")],
    tenant: Annotated[str, typer.Option(help="The tenant of the runner.")] = "default",
    data: DataOption = Path(".state"),
    hours: Annotated[int, typer.Option(min=1, max=24 * 30, help="Lifetime of the token.")] = 24,
    again: Annotated[
        bool, typer.Option("--again", help="Allow a runner that lost its credential or was removed to register again.")
    ] = False,
    store: EmbeddedStoreOption = "",
) -> None:
    """Create a single-use registration token for a runner. Run this where the data of the server is."""
    if not is_runner_name(runner):
        typer.echo("deltaci token: give a name of 1 to 100 printable ASCII characters without a slash", err=True)
        raise typer.Exit(2)
    if not is_tenant_name(tenant):
        typer.echo("deltaci token: give a tenant of 1 to 200 printable ASCII characters", err=True)
        raise typer.Exit(2)
    if announced_url(data):
        with reported("token"), patient_client({"data": data, "tenant": tenant}) as client:
            print(client.worker_token(runner, again=again, expires_seconds=hours * 3600).token)
        return
    try:
        database = embedded_store(data, store)
        signer = Signer(load_server_key(data / KEY_FILE), time.time)
        token, _ = run_embedded(
            database,
            lambda engine, opened: RegistrationTokens(engine, opened, signer).issue(
                tenant, runner, hours * 3600, again=again, actor=f"{USER}:{person()}"
            ),
        )
    except (Unavailable, OSError, ValueError) as error:
        typer.echo(f"deltaci token: {error}", err=True)
        raise typer.Exit(1) from None
    print(token)
