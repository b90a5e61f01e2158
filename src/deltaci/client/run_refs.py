"""Parse references to a run, a job or an attempt: `RUN`, `RUN/JOB`, `RUN/JOB.N`."""

from __future__ import annotations

import msgspec


class RunRef(msgspec.Struct, frozen=True):
    """A parsed reference. `job` is empty for a run; `index` is 0 for a run and a job."""

    run: str
    job: str = ""
    index: int = 0


def parse_refs(text: str) -> tuple[RunRef, ...]:
    """Return the possible readings of a reference, the likelier first.

    `R/py3.11` has two: the dot may be part of the job's name or separate the index of an attempt.
    """
    run, slash, rest = text.partition("/")
    if not run or (slash and not rest) or "/" in rest:
        raise ValueError(f"{text!r} is not a valid name; expected RUN, RUN/JOB or RUN/JOB.N")
    if not rest:
        return (RunRef(run),)
    job, dot, number = rest.rpartition(".")
    if job and dot and number.isascii() and number.isdecimal() and 0 < int(number) <= 10_000:
        return (RunRef(run, job, int(number)), RunRef(run, rest))
    return (RunRef(run, rest),)
