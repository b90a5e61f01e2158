"""The runner checks as pure functions of a transcript. No process is started."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.conformance.results import FAIL, NOT_SHOWN, PASS, Finding, combine, failed, is_compliant, not_shown, passed
from deltaci.conformance.runner_checks import RUNNER_CHECKS, check_runner, scenarios_for
from deltaci.conformance.scenarios import ENV_VALUE, SCENARIOS
from deltaci.conformance.transcript import Entry, Transcript

COMPLETE = {"status": "SUCCEEDED", "exit_code": 0, "artifacts": [{"type": "log", "uri": "log:1"}]}


def entry(at: float, kind: str, job: str = "life", **fields: object) -> Entry:
    """Return an entry of a transcript."""
    return msgspec.convert({"at": at, "what": kind, "job": job, **fields}, Entry)


def life() -> list[Entry]:
    """Return the observations of a conforming runner in the scenario `life`."""
    heartbeats = [
        observation
        for at in (2.0, 3.0, 4.0, 5.0)
        for observation in (
            entry(at, "heard", type="Heartbeat"),
            entry(at, "answered", type="Heartbeat", answer="HeartbeatAck"),
        )
    ]
    return [
        entry(0.3, "heard", "", type="lease"),
        entry(0.3, "granted", body={"ttl": 20}),
        entry(0.4, "heard", type="AckLease"),
        entry(1.0, "answered", type="AckLease", answer="HeartbeatAck"),
        entry(1.1, "job", note="one"),
        entry(1.2, "job", note="two"),
        *heartbeats,
        entry(5.1, "job", note=f"three {ENV_VALUE}"),
        entry(5.2, "nobody"),
        entry(5.3, "heard", type="Complete", body=COMPLETE),
        entry(5.3, "answered", type="Complete", answer="CompleteAck"),
        entry(7.9, "ended", ""),
    ]


def verdict(rule: str, entries: list[Entry], scenario: str = "life", **fields: Any) -> tuple[str, str]:
    """Return the verdict and the evidence for one rule."""
    options: dict[str, Any] = {"logs": {"life": "first line\nsecond line\nthird line\n"}, **fields}
    transcript = Transcript(scenario=scenario, entries=sorted(entries, key=lambda entry: entry.at), **options)
    [item] = check_runner({scenario: transcript}, [rule])
    return item.verdict, item.evidence


@pytest.mark.parametrize(
    "rule", [check.id for check in RUNNER_CHECKS if "life" in check.functions and check.id != "PRO-X3"]
)
def test_a_conforming_runner_passes(rule: str) -> None:
    """Every rule of the scenario passes."""
    assert verdict(rule, life())[0] == PASS


def test_nothing_is_passed_when_nothing_happened() -> None:
    """An empty transcript only fails the rule that the runner requests a lease."""
    ended = [entry(1.0, "ended", "")]
    empty = {scenario.name: Transcript(scenario=scenario.name, entries=ended) for scenario in SCENARIOS}

    assert {item.verdict for item in check_runner(empty)} == {FAIL, NOT_SHOWN}
    assert [item.id for item in check_runner(empty) if item.verdict == FAIL] == ["PRO-C1"]


def test_a_step_before_the_lease_is_active_fails() -> None:
    """Even if it is early by a tenth of a second."""
    early = [entry(0.9, "job", note="one") if observed.note == "one" else observed for observed in life()]

    assert verdict("PRO-C1", early) == (
        FAIL,
        "expected no step before AckLease was answered at 1.00 s; the first ran at 0.90 s",
    )


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((2.0, 3.0, 4.0, 5.0), PASS),
        ((2.0, 3.0, 4.9, 5.2), PASS),  # A single late one, as on a busy machine.
        ((2.9, 4.9), FAIL),
        ((1.2, 1.4, 1.6, 1.8, 2.0, 2.2), FAIL),
        ((), FAIL),
    ],
)
def test_heartbeats_come_neither_too_rarely_nor_too_often(times: tuple[float, ...], expected: str) -> None:
    """The median gap is judged; a single late heartbeat does not fail the rule."""
    others = [observed for observed in life() if observed.type != "Heartbeat"]

    assert verdict("PRO-C3", [*others, *(entry(at, "heard", type="Heartbeat") for at in times)])[0] == expected


def test_the_same_result_again_is_a_repeat_only_until_it_is_answered() -> None:
    """A repeat is needed after a lost answer and wrong after an answer. `sequence_no` may differ."""
    before = entry(5.25, "heard", type="Complete", body={**COMPLETE, "sequence_no": 1})
    after = entry(5.4, "heard", type="Complete", body=COMPLETE)
    other = entry(5.25, "heard", type="Complete", body={**COMPLETE, "summary": "fine"})

    assert verdict("PRO-C5", [*life(), before]) == (
        PASS,
        "life: one Complete at 5.25 s, sent 2 times until it was answered",
    )
    assert verdict("PRO-C5", [*life(), after])[0] == FAIL
    assert "differs in summary" in verdict("PRO-C5", [*life(), other])[1]


def test_a_heartbeat_that_was_already_sent_does_not_fail() -> None:
    """A runner cannot recall a message from the network."""
    assert verdict("PRO-Q8", [*life(), entry(5.4, "heard", type="Heartbeat")])[0] == PASS
    assert verdict("PRO-Q8", [*life(), entry(6.3, "heard", type="Heartbeat")])[0] == FAIL


@pytest.mark.parametrize("source", ["output", "logs", "targets"])
def test_a_secret_is_found_in_every_source(source: str) -> None:
    """The runner's output, the log of a job, and the path of a request are searched."""
    texts: dict[str, Any] = {"output": "x s3cret y", "logs": {"life": "s3cret"}, "targets": ["GET /log?lease=s3cret"]}

    found, evidence = verdict("PRO-X2", life(), secrets={"s3cret": "lease_id"}, **{source: texts[source]})

    assert found == FAIL
    assert "a lease_id is there" in evidence


def canceled(*more: Entry) -> list[Entry]:
    """Return the observations of a job that is canceled at 2 s with a deadline of 7 s."""
    return [
        entry(0.3, "heard", "", type="lease"),
        entry(0.3, "granted", "canceled"),
        entry(0.5, "job", "canceled", note="one"),
        entry(2.0, "answered", "canceled", type="Heartbeat", answer="HeartbeatAck", body={"deadline": 7}),
        *more,
        entry(12.0, "ended", ""),
    ]


@pytest.mark.parametrize(
    ("exited", "acked", "expected"),
    [(2.5, 2.6, PASS), (2.7, 2.6, FAIL), (None, 2.6, FAIL), (9.5, 9.6, FAIL), (2.5, None, FAIL)],
)
def test_a_cancel_is_acknowledged_in_time_and_after_all_processes_ended(
    exited: float | None, acked: float | None, expected: str
) -> None:
    """An acknowledgement may be neither too early nor too late."""
    exits = [entry(exited, "nobody", "canceled")] if exited else []
    acks = [entry(acked, "heard", "canceled", type="CancelAck")] if acked else []

    assert verdict("PRO-C6", canceled(*exits, *acks), "cancel")[0] == expected


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], NOT_SHOWN),
        ([not_shown("a"), passed("b")], PASS),
        ([passed("a"), failed("b"), not_shown("c")], FAIL),
    ],
)
def test_one_failure_fails_the_item(findings: list[Finding], expected: str) -> None:
    """Otherwise one pass is enough."""
    assert combine("PRO-C1", "title", findings).verdict == expected


def test_passes_with_gaps_comply_and_gaps_alone_do_not() -> None:
    """The exit code of the command depends on this."""
    good, gap = combine("a", "", [passed("")]), combine("b", "", [])

    assert is_compliant([good, gap])
    assert not is_compliant([gap])
    assert not is_compliant([good, combine("c", "", [failed("")])])


def test_every_scenario_shows_something_and_every_check_has_a_scenario() -> None:
    """No scenario runs and no check is listed without effect."""
    names = {scenario.name for scenario in SCENARIOS}

    assert scenarios_for([]) == names
    assert {name for check in RUNNER_CHECKS for name in check.functions} == names
    assert scenarios_for(["PRO-C7"]) == {"stale"}
