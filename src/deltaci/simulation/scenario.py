"""What a history is made of, drawn from its seed: how large it is, and what goes wrong, when and for how long.

Every seed draws its own mixture, and leaves much of it out: some faults only show when others do not happen.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

HOUR: Final = 3600.0
USUAL_FAULTS: Final = 24.0  # An hour.
BUSY_SECONDS: Final = 600.0  # So long after somebody wanted something it is likely that it is being done.

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


class Wish(msgspec.Struct, frozen=True):
    """Somebody wants something at this moment. Its number names it, whatever else is left out."""

    at: float
    kind: str
    number: int


# How often people do a thing, at most. Every seed leaves half of it out.
HABITS: Final = {
    "plan fails": 0.3,
    "plan is missing": 0.3,
    "plan is late": 0.3,
    "plan is empty": 0.2,
    "run is canceled": 0.6,
    "job is canceled": 0.4,
    "several cancel": 0.6,
    "approval": 0.4,
    "reject": 0.5,
    "nobody decides": 0.4,
    "approval expires": 0.9,
    "race": 0.6,
    "job is validated": 0.4,
    "run is validated": 0.5,
    "invalid": 0.5,
    "nobody validates": 0.3,
    "optional": 0.5,
    "fail fast": 0.5,
    "job fails": 0.4,
    "short": 0.4,
    "labels": 0.5,
    "repeat": 0.5,
    "reuse": 0.4,
    "wrong rev": 0.3,
    "impostor": 0.3,
    "stall": 0.15,
    "silence": 0.15,
    "grow": 0.2,
    "leave": 0.15,
    "program dies": 0.8,
    "rerun": 0.4,
    "superseded": 0.4,
    "several approve": 0.8,
    "started at once": 0.5,
    "comes after": 0.5,
    "family": 0.8,
    "group": 0.6,
    "retries few": 0.5,
    "drain": 0.15,
    "distrust": 0.3,
    "set up anew": 0.3,
    "rules": 0.8,
    "rule fails": 0.4,
}


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
    wishes: tuple[Wish, ...]
    habits: dict[str, float]
    faults: tuple[Fault, ...]
    has_jumps: bool

    @property
    def faults_an_hour(self) -> float:
        """How much goes wrong."""
        return len(self.faults) / self.hours


def drawn(seed: int, hours: float = 6.0, runs_an_hour: float = 2.0, faults_an_hour: float | None = None) -> Mix:
    """The mixture of this seed; a third of them is calm, unless somebody says how many faults there shall be."""
    random = Random(seed)
    # Where clocks jump, little can be said about how long a thing may take: most seeds leave that out.
    has_jumps = random.random() < 0.25
    kinds = [kind for kind in KINDS if random.random() < 0.6 and (has_jumps or "store clock" not in kind)]
    servers, runners = random.choice((1, 2, 2, 2)), random.randint(1, 5)
    usual = USUAL_FAULTS * random.choice((0.2, 0.5, 1.0))
    wishes = _wishes(random, hours, runs_an_hour)
    an_hour = usual if faults_an_hour is None else faults_an_hour
    faults = _faults(random, hours, an_hour, kinds or ["kill runner"], wishes)
    return Mix(
        seed=seed,
        hours=hours,
        servers=servers,
        runners=runners,
        slots=random.choice((1, 1, 2, 3)),
        ttl_seconds=random.choice((20, 60, 60, 120, 120, 120, 300, 300, 300)),
        poll_seconds=random.choice((20.0, 60.0, 600.0, 600.0, 600.0)),
        wait_seconds=60.0 if _seldom(random) else 600.0,
        credential_seconds=900 if _seldom(random) else 6 * 3600,
        wishes=wishes,
        habits={name: most * random.uniform(0.3, 1.0) * random.choice((0, 1)) for name, most in HABITS.items()},
        faults=faults,
        has_jumps=any("store clock" in fault.kind for fault in faults),
    )


def _seldom(random: Random) -> bool:
    """Whether this seed does a thing often that shows little and takes long."""
    return random.random() < 0.15


def _faults(
    random: Random, hours: float, an_hour: float, kinds: list[str], wishes: tuple[Wish, ...]
) -> tuple[Fault, ...]:
    """At any time, and more often soon after somebody wanted something: then there is something to break."""

    def moment() -> float:
        if not wishes or random.random() < 0.4:
            return random.random() * hours * HOUR
        return min(hours * HOUR, random.choice(wishes).at + random.random() * BUSY_SECONDS)

    found = [
        Fault(
            at=moment(),
            kind=random.choice(kinds),
            which=random.randrange(1000),
            seconds=random.choice((5.0, 30.0, 90.0, 200.0, 200.0, 900.0)) * random.random(),
        )
        for _ in range(round(hours * an_hour))
    ]
    return tuple(sorted(found, key=lambda fault: fault.at))


def _wishes(random: Random, hours: float, runs_an_hour: float) -> tuple[Wish, ...]:
    """Mostly runs; attempts without a run, workers that are sent away, and some that come and do nothing."""
    rates = {"run": runs_an_hour}
    for kind, most in (("lone", 1.0), ("drain", 0.5), ("ghost", 0.5)):
        rates[kind] = most * random.random() * random.choice((0, 1))
    found = [
        (random.random() * hours * HOUR, kind)
        for kind, rate in rates.items()
        for _ in range(int(hours * rate + random.random()))
    ]
    return tuple(Wish(at, kind, number) for number, (at, kind) in enumerate(sorted(found)))
