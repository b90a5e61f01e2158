"""Shell completion of ids and names. Asks the server for at most one second; offers nothing if that fails."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from deltaci.client.blocking import Client

SECONDS: Final = 1.0
MOST: Final = 50
# The shell reads these words again: nothing that means something to it is ever offered.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]*")


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the newest runs."""
    return _offered(ctx, incomplete, lambda client: (run.id for run in client.runs(limit=MOST).runs))


def complete_workstream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the newest workstreams."""
    return _offered(ctx, incomplete, lambda client: (each.id for each in client.workstreams(limit=MOST).workstreams))


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the newest runs, or after a slash the names of the run's jobs."""
    run_id, slash, _ = incomplete.partition("/")
    if not slash:
        return complete_run(ctx, incomplete)
    return _offered(
        ctx, incomplete, lambda client: (f"{run_id}/{job.name}" for job in client.jobs(run_id, limit=MOST).jobs)
    )


def complete_template(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of templates."""
    return _offered(ctx, incomplete, lambda client: (each.name for each in client.templates(limit=MOST).templates))


def complete_project(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of projects."""
    return _offered(ctx, incomplete, lambda client: (each.name for each in client.projects(limit=MOST).projects))


def complete_worker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workers."""
    return _offered(ctx, incomplete, lambda client: (each.name for each in client.workers(limit=MOST).workers))


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of API keys."""
    return _offered(ctx, incomplete, lambda client: (each.id for each in client.keys(limit=MOST).keys))


def _offered(ctx: typer.Context, incomplete: str, read: Callable[[Client], Iterable[str]]) -> list[str]:
    try:
        with _bounded(SECONDS):
            from deltaci.cli.session import quick_client

            with quick_client(ctx.params, SECONDS) as client:
                return [each for each in read(client) if each.startswith(incomplete) and _HARMLESS.fullmatch(each)]
    except Exception:
        return []  # Whoever presses Tab has not asked for an error.


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if the context takes longer than these seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
