"""What a history is made of, drawn from its seed: how large it is, and what goes wrong, when and for how long.

Every seed draws its own mixture, and leaves much of it out: some faults only show when others do not happen.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

HOUR: Final = 3600.0

KINDS: Final = (
    "kill server",
    "kill server before commit",
    "kill server after commit",
    "connection breaks before commit",
    "connection breaks after commit",
    "database away",
    "database slow",
    "hints lost",
    "kill runner",
    "crash machine",
    "kill keeper",
    "hang runner",
    "freeze machine",
    "runner leaves",
    "runner clock",
    "freeze server",
    "cut requests",
    "cut answers",
    "cut both",
    "loss",
    "doubling",
    "delay",
    "store clock back",
    "store clock forward",
    "liar",
)


class Fault(msgspec.Struct, frozen=True):
    """Something goes wrong at this moment, with this one, for so long."""

    at: float
    kind: str
    which: int
    seconds: float


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """One seed's world."""

    seed: int
    hours: float
    servers: int
    runners: int
    slots: int
    ttl_seconds: int
    poll_seconds: float
    wait_seconds: float
    credential_seconds: int
    runs: tuple[float, ...]
    faults: tuple[Fault, ...]
    has_jumps: bool

    @property
    def faults_an_hour(self) -> float:
        """How much goes wrong."""
        return len(self.faults) / self.hours


def drawn(seed: int, hours: float = 6.0, runs_an_hour: float = 2.0, faults_an_hour: float = 24.0) -> Mix:
    """The mixture of this seed."""
    random = Random(seed)
    kinds = [kind for kind in KINDS if random.random() < 0.6] or ["kill runner"]
    servers, runners = random.choice((1, 2, 2, 2)), random.randint(2, 5)
    faults = sorted(
        (
            Fault(
                at=random.random() * hours * HOUR,
                kind=random.choice(kinds),
                which=random.randrange(1000),
                seconds=random.choice((5.0, 30.0, 90.0, 200.0, 900.0)) * random.random(),
            )
            for _ in range(round(hours * faults_an_hour))
        ),
        key=lambda fault: fault.at,
    )
    return Mix(
        seed=seed,
        hours=hours,
        servers=servers,
        runners=runners,
        slots=random.choice((1, 1, 2)),
        ttl_seconds=random.choice((60, 120, 300)),
        poll_seconds=random.choice((60.0, 200.0, 600.0)),
        wait_seconds=random.choice((60.0, 300.0, 600.0)),
        credential_seconds=random.choice((900, 6 * 3600)),
        runs=tuple(sorted(random.random() * hours * HOUR for _ in range(round(hours * runs_an_hour)))),
        faults=tuple(faults),
        has_jumps=any("clock" in fault.kind for fault in faults),
    )
