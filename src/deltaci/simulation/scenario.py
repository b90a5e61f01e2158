"""The scenario of a seed: the size of the deployment, what users do, and which faults happen, when and for how long.

Every seed leaves out many kinds of actions and faults: some mistakes show only when others do not happen.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

HOUR: Final = 3600.0
FAULTS_AN_HOUR: Final = 24.0
BUSY_SECONDS: Final = 600.0  # A run is probably still active for so long after its start.

FAULT_KINDS: Final = (
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
    """A fault that begins at the time `at` and lasts for some seconds.

    The server or runner that it hits is chosen by `target`, an arbitrary number.
    """

    at: float
    kind: str
    target: int = msgspec.field(name="which")
    seconds: float


class UserAction(msgspec.Struct, frozen=True):
    """An action of users at the time `at`.

    The randomness of the action depends on its number, so that leaving out other actions changes little.
    """

    at: float
    kind: str
    number: int


# The highest probability of each behaviour. Every seed leaves half of them out.
MAX_PROBABILITIES: Final = {
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


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines one history. Times are in seconds of virtual time.

    Scenarios are stored as JSON; `name=` keeps the stored names of fields.
    """

    seed: int
    hours: float
    servers: int
    runners: int
    slots: int
    ttl_seconds: int
    poll_seconds: float
    wait_seconds: float
    credential_seconds: int
    actions: tuple[UserAction, ...] = msgspec.field(name="wishes")
    probabilities: dict[str, float] = msgspec.field(name="habits")
    faults: tuple[Fault, ...]
    has_clock_jumps: bool = msgspec.field(name="has_jumps")

    @property
    def faults_an_hour(self) -> float:
        return len(self.faults) / self.hours


def draw_scenario(
    seed: int, hours: float = 6.0, runs_an_hour: float = 2.0, faults_an_hour: float | None = None
) -> Scenario:
    """Draw the scenario of this seed. `faults_an_hour` replaces the random rate of faults."""
    random = Random(seed)
    # Delays cannot be checked while the store's clock jumps, so most seeds leave jumps out.
    has_clock_jumps = random.random() < 0.25
    fault_kinds = [
        fault_kind
        for fault_kind in FAULT_KINDS
        if random.random() < 0.6 and (has_clock_jumps or "store clock" not in fault_kind)
    ]
    server_count, runner_count = random.choice((1, 2, 2, 2)), random.randint(1, 5)
    random_fault_rate = FAULTS_AN_HOUR * random.choice((0.2, 0.5, 1.0))
    actions = _draw_actions(random, hours, runs_an_hour)
    fault_rate = random_fault_rate if faults_an_hour is None else faults_an_hour
    faults = _draw_faults(random, hours, fault_rate, fault_kinds or ["kill runner"], actions)
    return Scenario(
        seed=seed,
        hours=hours,
        servers=server_count,
        runners=runner_count,
        slots=random.choice((1, 1, 2, 3)),
        ttl_seconds=random.choice((20, 60, 60, 120, 120, 120, 300, 300, 300)),
        poll_seconds=random.choice((20.0, 60.0, 600.0, 600.0, 600.0)),
        wait_seconds=60.0 if _is_rare_seed(random) else 600.0,
        credential_seconds=900 if _is_rare_seed(random) else 6 * 3600,
        actions=actions,
        probabilities={
            behaviour: max_probability * random.uniform(0.3, 1.0) * random.choice((0, 1))
            for behaviour, max_probability in MAX_PROBABILITIES.items()
        },
        faults=faults,
        has_clock_jumps=any("store clock" in fault.kind for fault in faults),
    )


def _is_rare_seed(random: Random) -> bool:
    """Draw whether this is one of the few seeds with a setting that is slow to simulate and rarely finds a mistake."""
    return random.random() < 0.15


def _draw_faults(
    random: Random, hours: float, faults_an_hour: float, kinds: list[str], actions: tuple[UserAction, ...]
) -> tuple[Fault, ...]:
    """Draw faults over the whole time, but more of them soon after a user's action, when there is work to disturb."""

    def draw_time() -> float:
        if not actions or random.random() < 0.4:
            return random.random() * hours * HOUR
        return min(hours * HOUR, random.choice(actions).at + random.random() * BUSY_SECONDS)

    faults = [
        Fault(
            at=draw_time(),
            kind=random.choice(kinds),
            target=random.randrange(1000),
            seconds=random.choice((5.0, 30.0, 90.0, 200.0, 200.0, 900.0)) * random.random(),
        )
        for _ in range(round(hours * faults_an_hour))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _draw_actions(random: Random, hours: float, runs_an_hour: float) -> tuple[UserAction, ...]:
    """Draw actions: mostly runs; also attempts without a run, shutdowns of workers, and workers that never poll."""
    rate_by_kind = {"run": runs_an_hour}
    for action_kind, max_rate in (("lone", 1.0), ("drain", 0.5), ("ghost", 0.5)):
        rate_by_kind[action_kind] = max_rate * random.random() * random.choice((0, 1))
    timed_kinds = [
        (random.random() * hours * HOUR, action_kind)
        for action_kind, rate in rate_by_kind.items()
        for _ in range(int(hours * rate + random.random()))
    ]
    return tuple(
        UserAction(action_time, action_kind, action_index)
        for action_index, (action_time, action_kind) in enumerate(sorted(timed_kinds))
    )
