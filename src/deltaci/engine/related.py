"""What belongs together: which records a command will need, and which are worth remembering between batches."""

from __future__ import annotations

from collections.abc import Iterable

from deltaci.core.attempt import Attempt
from deltaci.core.events import RUNNER
from deltaci.core.machine import Command, Record


def related_ids(command: Command) -> Iterable[str]:
    """What a command will need, by its id alone: an attempt's job and run, and the worker that speaks."""
    yield command.id
    run_id, separator, rest = command.id.partition("/")
    if separator:
        yield run_id
        yield f"{run_id}/{rest.rpartition('.')[0] or rest}"
        kind, _, name = command.actor.partition(":")
        if kind == RUNNER:
            yield name


def is_queue_attempt(record: Record | None) -> bool:
    """Whether it is an attempt of the plain queue, without a job."""
    return type(record) is Attempt and not record.job_id


def is_cacheable(record: Record | None) -> bool:
    """Whether it is worth remembering: its worker will speak soon, and nobody else is likely to change it."""
    return type(record) is Attempt and not record.job_id and record.lease is not None
