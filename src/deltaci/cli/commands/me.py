"""`deltaci whoami` and `deltaci tenant`: show the current identity; show and set quotas."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import Quotas
from deltaci.cli.output import TableOutput, ago, facts, show
from deltaci.cli.session import CommandSession, SharedOptionsGroup, command
from deltaci.core.text import format_size

app = typer.Typer(add_completion=False)
tenant_app = typer.Typer(
    name="tenant", add_completion=False, cls=SharedOptionsGroup, help="Show and set the quotas of a tenant."
)
app.add_typer(tenant_app)


@command(app, "whoami")
def whoami_command(session: CommandSession) -> None:
    """Show your identity on the server and your permissions.

    Example:

      deltaci whoami
    """
    me = session.client.me()
    if session.is_json:
        session.print_json(me)
        return
    show(
        facts(
            (
                ("person", me.person),
                ("tenant", me.tenant),
                ("may", ", ".join(me.scopes) + (", operator" if me.is_operator else "")),
                ("roles", ", ".join(me.roles)),
                ("key", me.key_id or "none: signed with the server key"),
                ("until", ago(me.expires_at)),
                ("server", session.client.url),
            )
        )
    )


@command(tenant_app, "show")
def show_command(session: CommandSession) -> None:
    """Show the quotas of your tenant and its current usage.

    Example:

      deltaci tenant show
    """
    _show(session, session.client.tenant())


@command(tenant_app, "set-quotas")
def set_quotas_command(
    session: CommandSession,
    name: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")],
    running_jobs: Annotated[int, typer.Option(min=0, help="Maximum number of running jobs; 0: unlimited.")] = 0,
    queued_runs: Annotated[int, typer.Option(min=0, help="Maximum number of queued runs; 0: unlimited.")] = 0,
    storage_bytes: Annotated[int, typer.Option(min=0, help="Maximum size of artifacts and caches; 0: unlimited.")] = 0,
    requests_per_second: Annotated[int, typer.Option(min=0, help="Maximum request rate per server; 0: unlimited.")] = 0,
) -> None:
    """Set the quotas of a tenant; quotas that are not given become unlimited. Only for operators of the server.

    Example:

      deltaci tenant set-quotas acme --running-jobs 50 --queued-runs 1000
    """
    quotas = Quotas(
        running_jobs=running_jobs,
        queued_runs=queued_runs,
        storage_bytes=storage_bytes,
        requests_per_second=requests_per_second,
    )
    _show(session, session.client.set_quotas(name, quotas))


def _show(session: CommandSession, found: api.Tenant) -> None:
    if session.is_json:
        # A quota that is not set is 0, and a program should not have to know that.
        session.print_json({**msgspec.structs.asdict(found), "quotas": msgspec.structs.asdict(found.quotas)})
        return
    quotas, usage = found.quotas, found.usage
    rows = TableOutput(f"OF {found.name}", "#USED", "#LIMIT")
    rows.add("running jobs", usage.running_jobs, quotas.running_jobs or "any")
    rows.add("queued runs", usage.queued_runs, quotas.queued_runs or "any")
    rows.add(
        "storage",
        format_size(usage.storage_bytes),
        format_size(quotas.storage_bytes) if quotas.storage_bytes else "any",
    )
    rows.add("requests a second", "", quotas.requests_per_second or "any")
    rows.print("")
