"""What people call a run, a job and an attempt: `RUN`, `RUN/JOB`, `RUN/JOB.N`."""

from __future__ import annotations

import msgspec


class Name(msgspec.Struct, frozen=True):
    """The parts of a name: `job` is empty for a run, `index` 0 for a run and a job."""

    run: str
    job: str = ""
    index: int = 0


def readings(text: str) -> tuple[Name, ...]:
    """What the text may name, the likelier first: jobs may have a dot in their name, so `R/py3.11` has two readings."""
    run, slash, rest = text.partition("/")
    if not run or (slash and not rest) or "/" in rest:
        raise ValueError(f"{text!r} is not a valid name; expected RUN, RUN/JOB or RUN/JOB.N")
    if not rest:
        return (Name(run),)
    job, dot, number = rest.rpartition(".")
    if job and dot and number.isascii() and number.isdecimal() and 0 < int(number) <= 10_000:
        return (Name(run, job, int(number)), Name(run, rest))
    return (Name(run, rest),)
