"""What a worker offers, after its first day: docs/spec/workstreams.md for runners that come in again."""

from __future__ import annotations

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import worker
from deltaci.core.worker import UpdateCapabilities
from tests.spec.logs import exported
from tests.spec.scenes import busy, grant
from tests.support.lab import TENANT, Lab, task


def offer(lab: Lab, *labels: str, slots: int | None = None, token_at: int = 0) -> UpdateCapabilities:
    """Return the command that changes the capabilities of w1."""
    return UpdateCapabilities(id="w1", tenant=TENANT, labels=labels, slots=slots, token_at=token_at)


def test_an_invalid_registration_is_refused() -> None:
    """An unknown worker, one of another tenant, one without slots, and one that was removed."""
    lab = Lab()
    nobody = lab.refused(offer(lab))
    lab.register("w1")
    stranger = lab.refused(msgspec.structs.replace(offer(lab), tenant="another"))
    nothing = lab.refused(offer(lab, slots=0))
    lab.do(worker.Shutdown(id="w1"))
    gone = lab.refused(offer(lab))

    assert [each.code for each in (nobody, stranger, nothing, gone)] == [
        "not_found",
        "not_found",
        "bad_request",
        "wrong_state",
    ]
    assert nobody.message == stranger.message


@pytest.mark.proves("WST-KG1", "WST-KG2")
def test_new_labels_and_places_count_from_the_next_assignment_on() -> None:
    """A machine that got a better card must not need a new name."""
    lab = Lab()
    lab.register("w1", labels=("linux",))
    lab.plan(task("a", queue_key="gpu"), task("b"))
    assert lab.refused(grant(lab, "a")).code == "not_eligible"

    lab.after(1).do(offer(lab, "gpu", "linux", slots=2))
    lab.after(1).claim(lab.attempt("a"))
    lab.claim(lab.attempt("b"))

    known = lab.worker_record("w1")
    assert (known.labels, known.max_concurrent_tasks, len(known.tasks)) == (("gpu", "linux"), 2, 2)
    assert [line["metadata"].get("max_concurrent_tasks") for line in exported(lab, "w1")] == [1, 2]
    lab.verified()


@pytest.mark.proves("MOD-10")
def test_the_same_offer_again_changes_nothing() -> None:
    """A runner says it with every renewal."""
    lab = Lab()
    lab.register("w1", slots=3, labels=("linux",))

    assert lab.do(offer(lab, "linux", slots=3)).events == []
    assert lab.do(UpdateCapabilities(id="w1", tenant=TENANT)).events == []


@pytest.mark.proves("WST-KI1")
def test_fewer_places_than_leases_are_as_many_as_leases_until_those_end() -> None:
    """It was restarted with less, and what it held before is not over yet."""
    lab, (first, second) = busy("a", "b", slots=3)

    lab.after(1).do(offer(lab, slots=1))
    assert lab.worker_record("w1").max_concurrent_tasks == 2
    assert lab.refused(grant(lab, "spare")).code == "worker_full"
    lab.complete(first)
    lab.after(1).do(offer(lab, slots=1))

    assert lab.worker_record("w1").max_concurrent_tasks == 1
    lab.complete(second)
    lab.verified()


@pytest.mark.proves("WST-KI1")
def test_the_verifier_finds_a_worker_that_offers_less_than_it_holds() -> None:
    """Otherwise a forged line could make every later one look wrong."""
    lab, _ = busy("a", "b", slots=3)
    lab.after(1).do(offer(lab, slots=2))
    lines = [msgspec.json.decode(raw) for raw in lab.canonical()]
    lines[-1]["metadata"]["max_concurrent_tasks"] = 1

    violations = verify([msgspec.json.encode(line) for line in lines]).violations

    assert [(each.line, each.rule) for each in violations] == [(len(lines), "WST-KI1")]


@pytest.mark.proves("WST-KG5")
def test_an_offer_is_no_answer_to_a_health_check() -> None:
    """A silent worker recovers by the rule for that. Nor is its silence a way in with a token that was used."""
    lab, _ = busy("a")
    lab.after(1).do(worker.MissHealthChecks(id="w1"))
    made = lab.after(1).now
    lab.after(1)

    assert lab.refused(msgspec.structs.replace(offer(lab), tenant="another")).code == "not_found"
    assert lab.do(offer(lab, "gpu", slots=2, token_at=made)).events
    assert lab.refused(offer(lab, "gpu", slots=2, token_at=made)).code == "bad_credential"

    known = lab.worker_record("w1")
    assert (known.state, known.labels, known.max_concurrent_tasks) == (worker.UNRESPONSIVE, ("gpu",), 2)
    lab.verified()


def test_a_token_created_before_the_last_registration_is_refused() -> None:
    """An unused token must become worthless.

    Only times of tokens are compared: their creators need not have the store's clock.
    """
    lab = Lab()
    lab.register("w1")
    before, made = 1_000_000, 2_000_000

    assert [event.trigger for event in lab.do(offer(lab, token_at=made)).events] == ["capabilities_registered"]
    assert lab.refused(offer(lab, token_at=made)).code == "bad_credential"
    assert lab.refused(offer(lab, token_at=before)).code == "bad_credential"
    assert lab.after(5).do(offer(lab, token_at=made + 1)).events
    lab.verified()
