"""The machines and the views of docs/spec/model.md: the whole tables, proved by exploring them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from deltaci.audit.projections import VIEWS
from deltaci.audit.verify import verify
from deltaci.core import attempt, job, lease, resource, run, worker
from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.events import (
    ACTOR_KINDS,
    ATTEMPT,
    JOB,
    LEASE,
    ORCHESTRATOR,
    REPORTER,
    RESOURCE,
    RUN,
    RUNNER,
    USER,
    WORKER,
    Event,
)
from deltaci.core.failures import Facts, classify
from deltaci.core.ids import LeaseRef
from deltaci.core.machine import ABSENT, Command, Implies, Machine, Record, Rule, Target, Transition, no_change
from deltaci.core.status.view import SAME, Change, Extension, Step, View
from tests.support.lab import Lab

PAGE: Final = Path(__file__).parents[2] / "docs" / "spec" / "model.md"
MACHINES: Final[dict[str, Machine[Any]]] = {
    RUN: run.MACHINE,
    JOB: job.MACHINE,
    ATTEMPT: attempt.MACHINE,
    LEASE: lease.MACHINE,
    WORKER: worker.MACHINE,
    RESOURCE: resource.MACHINE,
}
ACTORS: Final = {ORCHESTRATOR: "orchestrator", REPORTER: "reporter", RUNNER: "worker:w1", USER: "user:ada"}

# The table of machines, copied by hand from the page. `A, B > C > D, E` reads as on the page.
TRANSITIONS: Final = {
    RUN: (
        "CREATED > PLANNING > QUEUED > RUNNING > VALIDATING > SUCCESS",
        "PLANNING > PLAN_FAILED > FAILED",
        "RUNNING > WAITING_APPROVAL > RUNNING",
        "RUNNING, VALIDATING > FAILED, TIMEOUT",
        "WAITING_APPROVAL > FAILED",
        "QUEUED, RUNNING, WAITING_APPROVAL, VALIDATING > CANCEL_REQUESTED > CANCELED",
        "SUCCESS, FAILED, CANCELED, TIMEOUT > REPORTED",
    ),
    JOB: (
        "PENDING > QUEUED > RUNNING > VALIDATING > SUCCEEDED, FAILED",
        "RUNNING > RETRYING > QUEUED",
        "RUNNING > FAILED",
        "PENDING > WAITING_APPROVAL > SUCCEEDED, FAILED",
        "PENDING, QUEUED, RUNNING, VALIDATING, RETRYING, WAITING_APPROVAL > CANCELED",
    ),
    ATTEMPT: (
        "CREATED > QUEUED > LEASED > STARTING > RUNNING > UPLOADING > SUCCEEDED, FAILED",
        "LEASED, STARTING, RUNNING, UPLOADING > STALE > QUEUED, LEASED, FAILED",
        "RUNNING, UPLOADING > TIMED_OUT",
        "QUEUED, LEASED, STARTING, RUNNING, UPLOADING, STALE > CANCEL_REQUESTED > CANCELED",
    ),
    LEASE: ("GRANTED > ACTIVE > COMPLETED, CANCELED, EXPIRED, REVOKED", "GRANTED > EXPIRED, REVOKED"),
    WORKER: (
        "INITIALIZING > IDLE > BUSY > IDLE",
        "BUSY > UNRESPONSIVE > IDLE, SHUTDOWN",
        "IDLE, BUSY > SHUTDOWN",
    ),
    RESOURCE: ("PRESENT > DELETED > PRESENT",),
}
TERMINAL: Final = {
    RUN: {"REPORTED"},
    JOB: {"SUCCEEDED", "FAILED", "CANCELED"},
    ATTEMPT: {"SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELED"},
    LEASE: {"COMPLETED", "CANCELED", "EXPIRED", "REVOKED"},
    WORKER: {"SHUTDOWN"},
    RESOURCE: set(),
}


def chains(*rows: str) -> set[tuple[str, str]]:
    """Every transition that the rows name."""
    found = set[tuple[str, str]]()
    for row in rows:
        groups = [group.split(", ") for group in row.split(" > ")]
        for sources, targets in pairwise(groups):
            found |= {(source, target) for source in sources for target in targets}
    return found


def explore(view: View) -> tuple[set[tuple[str, str | None]], set[Extension], list[Step]]:
    """Every (our state, what was shown) that can be reached, the extensions used, and the steps that are illegal."""
    machine = MACHINES[view.entity]
    is_born = any(rule.source == ABSENT for rule in machine.rules)
    todo: deque[tuple[str, str | None]] = deque([(ABSENT if is_born else machine.initial, None)])
    seen, used, illegal = set(todo), set[Extension](), list[Step]()
    while todo:
        state, shown = todo.popleft()
        for rule, to, kind in _moves(machine, state):
            steps, now = view.project_change(shown, Change(state or None, to.state, to.trigger, ACTORS[kind]))
            for step in steps:
                allowed = view.allows(step)
                if allowed is None:
                    illegal.append(step)
                elif isinstance(allowed, Extension):
                    used.add(allowed)
            assert not any(a.target != b.source for a, b in pairwise(steps)), rule
            if (to.state, now) not in seen:
                seen.add((to.state, now))
                todo.append((to.state, now))
    return seen, used, illegal


def _moves(machine: Machine[Any], state: str) -> Iterator[tuple[Rule, Target, str]]:
    for rule in machine.rules:
        if rule.source == state:
            for to in rule.targets:
                for kind in sorted(rule.command.by):
                    yield rule, to, kind


def extension_table() -> dict[str, set[tuple[str, str]]]:
    """The page's table of extensions, read from the page: for each view, the steps in its document's words."""
    rows = re.findall(r"^\| (\d{3} \w+) \| (.+?) \| .+? \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shows = {view.name: view.state_map for view in VIEWS}
    found = dict[str, set[tuple[str, str]]]()
    for name, cell in rows:
        steps = found.setdefault(name, set())
        plain = [tuple(step.split(" → ")) for step in re.findall(r"`(\w+ → \w+)`", cell)]
        lists = [
            (source, target)
            for sources, target in re.findall(r"((?:`\w+`(?:, )?)+) → `(\w+)`", cell)
            for source in re.findall(r"\w+", sources)
        ]
        # The page speaks of our state where the document knows only what it is shown as.
        steps |= {(shows[name].get(source, source), target) for source, target in (*plain, *lists)}
    return found


SAMPLES: Final[dict[str, Any]] = {
    "attempt_id": "a1",
    "body": {},
    "error": "no plan",
    "failure": classify(Facts(exit_code=1)),
    "fingerprint": "f" * 32,
    "group": "g",
    "is_passed": True,
    "is_success": True,
    "jobs": 1,
    "kind": "key",
    "lease": LeaseRef("x", 1, "f" * 32),
    "name": "k1",
    "reason": "why",
    "tenant": "t1",
    "worker_id": "w1",
}


def command(kind: type[Command], actor: str) -> Command:
    """Return a command of this kind with valid fields."""
    needed = {field.name for field in msgspec.structs.fields(kind) if field.required} - {"id"}
    return kind(id="x", actor=actor, **{name: SAMPLES[name] for name in needed})


# -- the engine refuses tables that make no sense


class Push(Command, frozen=True, kw_only=True):
    """An order of the tests' own machine."""


class Pull(Command, frozen=True, kw_only=True):
    """Another."""


def _to_b(_record: Any, _command: Any, _at: int) -> Transition:
    return "B", {}, {}


def _astray(_record: Any, _command: Any, _at: int) -> Transition:
    return "C", {}, {}


PUSH: Final = Rule("A", Push, (Target("B", "pushed"),), _to_b, ORCHESTRATOR, "a test")


def test_two_rules_for_one_state_and_command_are_refused_when_the_machine_is_built() -> None:
    """Otherwise the order of the table would decide silently."""
    with pytest.raises(InvariantBroken, match="two rules for Push in A"):
        Machine("m", PUSH, Rule("A", Push, (Target("C", "pushed"),), no_change, ORCHESTRATOR, "a test"), initial="A")


def test_two_implied_steps_for_one_state_and_command_are_refused_when_the_machine_is_built() -> None:
    """What a command implies must be as certain as what it does."""
    twice = [Implies("A", Pull, Push, "once"), Implies("A", Pull, Push, "twice")]

    with pytest.raises(InvariantBroken, match="two rules for Pull in A"):
        Machine("m", PUSH, *twice, initial="A")


def test_an_implied_step_without_a_rule_is_refused_when_the_machine_is_built() -> None:
    """Otherwise the error would only appear when the step is taken."""
    with pytest.raises(InvariantBroken, match="implies a step without a rule"):
        Machine("m", PUSH, Implies("B", Pull, Push, "a test"), initial="A")


def test_a_rule_that_lands_outside_its_targets_is_our_bug() -> None:
    """The drawn and verified table must be the one that is run."""
    machine: Machine[Record] = Machine(
        "m", Rule("A", Push, (Target("B", "pushed"),), _astray, ORCHESTRATOR, "a test"), initial="A"
    )

    with pytest.raises(InvariantBroken, match="led to C, outside its targets"):
        machine.step(Record(id="x", state="A"), Push(id="x"), 0, [])


@pytest.mark.proves("MOD-10")
def test_a_rule_without_targets_accepts_a_repeat_and_can_lead_nowhere() -> None:
    """That it appends no event can be read from the table; a function that says otherwise is our bug."""
    repeat = Rule("B", Push, (), no_change, ORCHESTRATOR, "a repeat is no error")
    machine: Machine[Record] = Machine("m", PUSH, repeat, initial="A")
    wrong: Machine[Record] = Machine("m", PUSH, msgspec.structs.replace(repeat, handler=_to_b), initial="A")
    pushed, events = Record(id="x", state="B"), list[Event]()

    assert machine.step(pushed, Push(id="x"), 0, events) is pushed
    with pytest.raises(InvariantBroken, match="led to B, outside its targets"):
        wrong.step(pushed, Push(id="x"), 0, events)

    assert events == []
    assert machine.terminal == {"B"}


# -- the six machines


@pytest.mark.proves("MOD-V3")
@pytest.mark.parametrize("name", MACHINES)
def test_every_pair_of_state_and_command_has_a_rule_or_is_refused(name: str) -> None:
    """No pair may be left to chance: what the table does not know changes nothing and says why."""
    machine, refused = MACHINES[name], 0

    for state in (ABSENT, *machine.states):
        for kind in machine.commands:
            if machine.rule(state, kind) or machine.implied_step(state, kind):
                continue
            refused += 1
            with pytest.raises(Refused) as refusal:
                machine.step(Record(id="x", state=state), command(kind, ACTORS[min(kind.by)]), 0, [])
            assert refusal.value.code == "wrong_state"
            assert (state or "no record") in refusal.value.message

    assert refused


@pytest.mark.parametrize("name", MACHINES)
def test_every_command_is_refused_to_actors_that_do_not_own_it(name: str) -> None:
    """Each transition has its owner; no other actor may cause it, in any state."""
    machine = MACHINES[name]

    for rule in machine.rules:
        for kind in set(ACTOR_KINDS) - rule.command.by:
            with pytest.raises(Refused) as refusal:
                machine.step(Record(id="x", state=rule.source), command(rule.command, ACTORS[kind]), 0, [])
            assert refusal.value.code == "wrong_actor"


@pytest.mark.proves("MOD-V3")
@pytest.mark.parametrize("name", MACHINES)
def test_the_machine_has_exactly_the_transitions_of_the_page(name: str) -> None:
    """Readers must be able to rely on the page, in both directions."""
    machine = MACHINES[name]
    births = {to.state for rule, to in machine.edges() if rule.source == ABSENT}

    edges = {(rule.source, to.state) for rule, to in machine.edges() if rule.source != ABSENT}

    assert edges == chains(*TRANSITIONS[name])
    assert births == (set() if name == ATTEMPT else {machine.initial})
    assert machine.terminal == TERMINAL[name]


@pytest.mark.proves("MOD-V3")
@pytest.mark.parametrize("name", MACHINES)
def test_every_state_can_be_reached(name: str) -> None:
    """An unreachable state would be a promise that is never kept."""
    machine = MACHINES[name]
    reached = {machine.initial}

    for _ in machine.states:
        reached |= {to.state for rule, to in machine.edges() if rule.source in reached}

    assert reached == set(machine.states)


@pytest.mark.proves("MOD-9")
@pytest.mark.parametrize("name", MACHINES)
def test_no_rule_leaves_a_terminal_state_and_a_run_that_is_over_only_gets_reported(name: str) -> None:
    """An outcome that can change is no outcome."""
    over = {"SUCCESS", "FAILED", "CANCELED", "TIMEOUT"} if name == RUN else TERMINAL[name]

    leaving = {(rule.source, to.state) for rule, to in MACHINES[name].edges() if rule.source in over | TERMINAL[name]}
    changing = [rule for rule in MACHINES[name].rules if rule.source in TERMINAL[name] and rule.targets]

    assert leaving == ({(state, "REPORTED") for state in over} if name == RUN else set())
    assert changing == []


@pytest.mark.proves("MOD-3")
@pytest.mark.parametrize("name", [RUN, ATTEMPT])
def test_a_requested_cancel_has_one_exit(name: str) -> None:
    """Cancel wins once requested: nothing else may come out of it."""
    exits = {to.state for rule, to in MACHINES[name].edges() if rule.source == "CANCEL_REQUESTED"}

    assert exits == {"CANCELED"}


# -- the views


@pytest.mark.proves("MOD-V1")
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_every_step_of_every_machine_is_allowed_by_the_view(view: View) -> None:
    """Explores our state together with what was last shown, for every rule and every actor that it allows."""
    seen, _, illegal = explore(view)

    assert illegal == []
    assert {state for state, _ in seen} - {ABSENT} == set(MACHINES[view.entity].states)


@pytest.mark.proves("MOD-V1")
def test_the_verifier_names_a_step_that_a_view_does_not_allow() -> None:
    """The proof about all logs is worth little if one log that breaks it goes through."""
    lab = Lab()
    lab.enqueue()
    lab.claim(lab.queued())
    lines = [msgspec.json.decode(line) for line in lab.canonical()]
    lines[1]["to"] = "UPLOADING"

    report = verify([msgspec.json.encode(line) for line in lines])

    assert "MOD-V1" in {violation.rule for violation in report.violations}


@pytest.mark.proves("MOD-V2", "MOD-V3")
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_extensions_are_exactly_the_table_of_the_page(view: View) -> None:
    """An extension that the page does not tell is a hole in a document; one that no step uses is a lie."""
    told = extension_table().get(view.name, set())

    listed = [(extension.source, extension.target) for extension in view.extensions]
    used = {(extension.source, extension.target) for extension in explore(view)[1]}

    assert len(listed) == len(set(listed))
    assert set(listed) == told
    assert used == told
    assert all(extension.demanded_by for extension in view.extensions)


@pytest.mark.proves("MOD-V2")
def test_the_table_of_the_page_was_really_read() -> None:
    """A test that compares with an empty table proves nothing."""
    table = extension_table()

    assert {name: len(steps) for name, steps in table.items() if steps} == {
        "000 attempt": 4,
        "002 step": 1,
        "003 task": 4,
        "003 workstream": 2,
    }
    assert {name for name, steps in table.items() if not steps} == {"000 run", "002 run", "004 job"}


@pytest.mark.proves("MOD-V2")
@pytest.mark.parametrize(
    ("view", "left_out"),
    [(view, extension) for view in VIEWS for extension in view.extensions],
    ids=lambda value: value.name if isinstance(value, View) else f"{value.source}-{value.target}",
)
def test_no_extension_can_be_left_out(view: View, left_out: Extension) -> None:
    """Each extension bends a document; one that is not needed must not stay."""
    rest = tuple(extension for extension in view.extensions if extension is not left_out)
    smaller = msgspec.structs.replace(view, extensions=rest)

    _, _, illegal = explore(smaller)

    assert {(step.source, step.target) for step in illegal} == {(left_out.source, left_out.target)}


@pytest.mark.proves("MOD-V2")
@pytest.mark.parametrize(
    ("name", "state", "shown"),
    [
        ("000 run", run.WAITING_APPROVAL, "RUNNING"),
        ("000 run", run.VALIDATING, "RUNNING"),
        ("000 attempt", attempt.STALE, "QUEUED"),
        ("002 run", run.PLAN_FAILED, "RUNNING"),
        ("002 run", run.CANCEL_REQUESTED, SAME),
        ("003 workstream", run.CANCEL_REQUESTED, SAME),
    ],
)
def test_a_state_that_a_document_does_not_know_is_shown_as_the_page_says(name: str, state: str, shown: str) -> None:
    """Where a view needs no extension it is because it shows the state as another."""
    view = next(view for view in VIEWS if view.name == name)

    assert view.state_map[state] == shown


def test_every_kind_of_record_has_a_view() -> None:
    """A machine without a view would not be proved. No document knows resources."""
    assert {view.entity for view in VIEWS} == set(MACHINES) - {RESOURCE}
