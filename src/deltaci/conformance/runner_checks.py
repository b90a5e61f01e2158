"""From what was observed to verdicts: pure, a transcript in, findings out.

Each check looks at one rule in one scenario. It fails a runner only for something that was seen, and passes it only
when the scenario really came to the point where the rule could have been broken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from statistics import median
from typing import Any, Final

import msgspec

from deltaci.conformance.results import CheckResult, Finding, combine, failed, not_shown, passed
from deltaci.conformance.scenarios import (
    CANCEL_SECONDS,
    EXIT_CODE,
    SHORT_CREDENTIAL_SECONDS,
    STOP_SECONDS,
    WORD,
)
from deltaci.conformance.scripted_job import INTERVAL_SECONDS
from deltaci.conformance.transcript import Entry, Transcript

SLACK_SECONDS: Final = 0.3  # What was on its way already is no breach.
LATEST: Final = 1.5  # The usual gap between two heartbeats, in intervals.
LONGEST: Final = 5.0  # Any gap: with the recommended defaults six would cost the lease.
SOONEST: Final = 0.4

Judge = Callable[[Transcript], Finding]


def _never_began(t: Transcript, job: str) -> Finding | None:
    """Why nothing can be said about a job that did not run."""
    if t.words(job):
        return None
    if not t.heard("lease"):
        return not_shown("the runner never asked for a lease")
    if t.first("granted", job) is None:
        return not_shown(f"the runner never asked for the lease of job {job!r}")
    return not_shown(f"job {job!r} was granted at {_at(t.first('granted', job))}, but none of its steps ran")


def lease_first(job: str) -> Judge:
    """PRO-C1: nothing runs before its lease is active."""

    def check_runner(t: Transcript) -> Finding:
        if not t.heard("lease"):
            exits = [f"{each.note} at {_at(each)}" for each in t.find("exited")] or ["it was still there"]
            return failed(f"expected a request for a lease; none came in {t.entries[-1].at:.1f} s ({exits[0]})")
        if (unknown := _never_began(t, job)) is not None:
            return unknown
        if not t.heard("AckLease", job):
            return not_shown("it sent no AckLease (see PRO-C2), so its lease was never active")
        began, active = t.find("job", job)[0], t.answered("AckLease", "HeartbeatAck", job)
        if not active:
            return failed(f"its first step ran at {_at(began)}, although AckLease was never accepted")
        if began.at < active[0].at:
            return failed(
                f"expected no step before AckLease was answered at {_at(active[0])}; the first ran at {_at(began)}"
            )
        return passed(f"AckLease was accepted at {_at(active[0])}, the first step ran at {_at(began)}")

    return check_runner


def acknowledged(t: Transcript) -> Finding:
    """PRO-C2: it says that it took the lease."""
    granted, acks = t.first("granted", "life"), t.heard("AckLease", "life")
    if granted is None:
        return not_shown("the runner never asked for a lease")
    if not acks and t.heard("refused"):
        return not_shown("what it sent had to be refused (see PRO-M11)")
    if not acks:
        return failed(f"expected AckLease after the grant at {_at(granted)}; there was none")
    return passed(f"AckLease came {acks[0].at - granted.at:.2f} s after the grant")


def heartbeats(t: Transcript) -> Finding:
    """PRO-C3: at the interval that it was given, for as long as the job runs."""
    if (unknown := _never_began(t, "life")) is not None:
        return unknown
    start = (t.answered("AckLease", "HeartbeatAck", "life") or t.find("job", "life"))[0].at
    ends = [each.at for each in t.entries if each.job == "life" and (each.what == "nobody" or each.type == "Complete")]
    end = max(ends, default=t.entries[-1].at)
    beats = [each.at for each in t.heard("Heartbeat", "life") if each.at <= end]
    wanted = f"expected a heartbeat every {INTERVAL_SECONDS} s"
    if not beats:
        return failed(f"{wanted}; there was none from {start:.2f} s to {end:.2f} s")
    gaps = [after - before for before, after in zip([start, *beats], beats, strict=False)]
    usual, longest = median(gaps), max([*gaps, end - beats[-1]])
    said = f"{len(beats)} came in {end - start:.1f} s, usually after {usual:.2f} s, at most after {longest:.2f} s"
    is_well = SOONEST <= usual / INTERVAL_SECONDS <= LATEST and longest <= LONGEST * INTERVAL_SECONDS
    return passed(said) if is_well else failed(f"{wanted}; {said}")


def log_kept(t: Transcript) -> Finding:
    """PRO-C4: the log arrived, all of it, and the completion refers to it."""
    completes = t.heard("Complete", "life")
    if not completes:
        return _never_began(t, "life") or not_shown("there was no Complete that could refer to a log")
    lines = ("first line", "second line", "third line")
    missing = [line for line in lines if line not in t.logs.get("life", "")]
    if missing:
        size = len(t.logs.get("life", ""))
        return failed(f"expected every line of the job in its log; {missing[0]!r} is not in the {size} bytes that came")
    kinds = [str(each.get("type")) for each in completes[0].body.get("artifacts", [])]
    if "log" not in kinds:
        return failed(f"expected an artifact of type 'log' in Complete; it names {', '.join(kinds) or 'none'}")
    return passed(f"{len(t.logs['life'])} bytes of log came, and Complete at {_at(completes[0])} refers to them")


def one_end(job: str) -> Judge:
    """PRO-C5: one result; the same words again only while nobody answered."""

    def check_runner(t: Transcript) -> Finding:
        completes = t.heard("Complete", job)
        if not completes:
            if (unknown := _never_began(t, job)) is not None:
                return unknown
            if not t.find("nobody", job):
                return not_shown(f"job {job!r} never ended")
            return failed(f"expected one Complete after the job ended at {_at(t.find('nobody', job)[-1])}; none came")
        words = [_words(each) for each in completes]
        if any(each != words[0] for each in words):
            other = next(index for index, each in enumerate(words) if each != words[0])
            fields = sorted(name for name in words[0] | words[other] if words[0].get(name) != words[other].get(name))
            at = _at(completes[other])
            return failed(f"expected one Complete; another one at {at} differs in {', '.join(fields)}")
        answers = t.answered("Complete", "CompleteAck", job)
        late = [each for each in completes if answers and each.at > answers[0].at]
        if late:
            return failed(f"expected no more after CompleteAck at {_at(answers[0])}; it came again at {_at(late[0])}")
        repeats = f", sent {len(completes)} times until it was answered" if len(completes) > 1 else ""
        return passed(f"one Complete at {_at(completes[0])}{repeats}")

    return check_runner


def canceled(t: Transcript) -> Finding:
    """PRO-C6: it stops everything, in time, and only then says so."""
    if (unknown := _never_began(t, "canceled")) is not None:
        return unknown
    told = [each for each in t.answered("Heartbeat", "HeartbeatAck", "canceled") if each.body.get("deadline")]
    if not told:
        return not_shown("no heartbeat came whose answer could carry the cancel (see PRO-C3)")
    asked = f"it was told at {_at(told[0])} to stop within {CANCEL_SECONDS} s"
    acks = t.heard("CancelAck", "canceled")
    if not acks:
        gone = t.find("nobody", "canceled")
        state = f"nothing of the job ran any more at {_at(gone[-1])}" if gone else "the job went on"
        return failed(f"{asked}; expected CancelAck, none came, and {state}")
    if t.is_running("canceled", acks[0]):
        return failed(f"{asked}; CancelAck came at {_at(acks[0])} while processes of the job still ran")
    if acks[0].at > told[0].at + CANCEL_SECONDS + SLACK_SECONDS:
        return failed(f"{asked}; CancelAck came at {_at(acks[0])}, too late")
    gone_at = _at(t.find("nobody", "canceled")[-1])
    return passed(f"{asked}; nothing of the job ran any more at {gone_at}, and CancelAck came at {_at(acks[0])}")


def obeys_stale(t: Transcript) -> Finding:
    """PRO-C7: it stops the job and says nothing more under that lease."""
    if (unknown := _never_began(t, "stale")) is not None:
        return unknown
    told = t.answered("Heartbeat", "StaleLease", "stale")
    if not told:
        return not_shown("no heartbeat came that could be answered with StaleLease (see PRO-C3)")
    asked = f"StaleLease was the answer at {_at(told[0])}"
    gone = t.find("nobody", "stale")
    if not gone or gone[0].at > told[0].at + STOP_SECONDS:
        return failed(f"{asked}; expected the job to be stopped, it still ran {STOP_SECONDS:.0f} s later")
    for type, slack in (("Complete", 0.0), ("Heartbeat", SLACK_SECONDS)):
        after = [each for each in t.heard(type, "stale") if each.at > told[0].at + slack]
        if after:
            return failed(f"{asked}; expected no {type} any more, one came at {_at(after[0])}")
    return passed(f"{asked}; nothing of the job ran any more at {_at(gone[0])}, and nothing more was said")


def no_lease_no_work(t: Transcript) -> Finding:
    """PRO-H1: a lease that is not accepted is not worked on."""
    granted = t.first("granted", "refused")
    if granted is None:
        return not_shown("the runner never asked for a lease")
    refused = t.answered("AckLease", "StaleLease", "refused")
    if not refused:
        return not_shown("it sent no AckLease that could be refused (see PRO-C2)")
    ran = t.find("job", "refused")
    if ran:
        return failed(f"AckLease was answered with StaleLease at {_at(refused[0])}; the job ran at {_at(ran[0])}")
    later = [each for each in t.entries if each.at > refused[0].at and each.type == "lease"]
    if not later:
        return not_shown("after a StaleLease in answer to AckLease the runner asked for nothing more")
    return passed(f"AckLease was answered with StaleLease at {_at(refused[0])}, and the job did not run")


def works_once(t: Transcript) -> Finding:
    """PRO-H1: a lease that is delivered again gives no second right to run."""
    if (unknown := _never_began(t, "doubled")) is not None:
        return unknown
    ran = t.find("job", "doubled")
    if len(ran) > 1:
        return failed(f"one lease was delivered more than once; its job ran at {' and '.join(map(_at, ran))}")
    if len(t.find("granted", "doubled")) < 3:
        return not_shown("the runner did not ask again, so the lease could not be delivered again")
    return passed(f"a lease that was delivered three times was worked on once, at {_at(ran[0])}")


def no_late_result(job: str) -> Judge:
    """PRO-H2: when the lease is over by its own clock, it keeps its result to itself."""

    def check_runner(t: Transcript) -> Finding:
        if (unknown := _never_began(t, job)) is not None:
            return unknown
        renewed = t.answered("AckLease", "HeartbeatAck", job) + t.answered("Heartbeat", "HeartbeatAck", job)
        if not renewed:
            return not_shown("its lease was never renewed, so it was not known when it ends")
        end = max(each.at for each in renewed) + float(t.find("granted", job)[0].body["ttl"])
        if t.entries[-1].at <= end:
            return not_shown("the scenario ended before the lease")
        late = [each for each in t.heard("Complete", job) if each.at > end + SLACK_SECONDS]
        if late:
            return failed(f"its lease ended at {end:.2f} s without a renewal; it sent Complete at {_at(late[0])}")
        return passed(f"its lease ended at {end:.2f} s without a renewal, and no Complete came after that")

    return check_runner


def silent_after_end(t: Transcript) -> Finding:
    """PRO-Q8: no heartbeat for what is over."""
    answers = t.answered("Complete", "CompleteAck", "life")
    if not answers:
        return not_shown("there was no Complete to acknowledge (see PRO-C5)")
    late = [each for each in t.heard("Heartbeat", "life") if each.at > answers[0].at + SLACK_SECONDS]
    if late:
        return failed(f"CompleteAck was sent at {_at(answers[0])}; a heartbeat came at {_at(late[0])}")
    return passed(f"no heartbeat in the {t.entries[-1].at - answers[0].at:.1f} s after CompleteAck")


def keeps_secrets(t: Transcript) -> Finding:
    """PRO-X2: nothing that it prints, uploads or reports contains a secret."""
    if not t.heard("lease"):
        return not_shown("the runner never asked for a lease")
    reports = [each.body for each in t.entries if each.what == "heard"]
    told = [value for body in reports for name, value in body.items() if name != "lease_id"]
    places = {
        "what the runner prints": t.output,
        "the address of a request": "\n".join(t.targets),
        "its messages": msgspec.json.encode(told).decode(),
        **{f"the log of job {job!r}": log for job, log in t.logs.items()},
    }
    for place, text in places.items():
        found = [kind for secret, kind in t.secrets.items() if secret in text]
        if found:
            return failed(f"scenario {t.scenario}: expected no secret in {place}; a {found[0]} is there")
    return passed("none in what it prints, uploads and reports, also when a job prints its environment")


def tells_truth(t: Transcript) -> Finding:
    """PRO-U2: a success is told as one."""
    completes = t.heard("Complete", "life")
    if not completes:
        return _never_began(t, "life") or not_shown("there was no Complete")
    expected = ["one", "two", f"three {WORD}"]
    if t.words("life") != expected:
        return failed(f"expected the steps {expected} in this order; {t.words('life')} ran")
    result = (completes[0].body.get("status"), completes[0].body.get("exit_code"))
    if result != ("SUCCEEDED", 0):
        return failed(f"all steps succeeded; expected SUCCEEDED and 0, Complete says {result[0]} and {result[1]}")
    return passed("three steps ran in order, and Complete says SUCCEEDED and 0")


def tells_failure(t: Transcript) -> Finding:
    """PRO-U2: a failure is told as one, and is the end."""
    completes = t.heard("Complete", "failing")
    if not completes:
        return _never_began(t, "failing") or not_shown("there was no Complete of the job that fails")
    if t.words("failing") != ["one", "two"]:
        return failed(f"expected no step after the one that failed; {t.words('failing')} ran")
    result = (completes[0].body.get("status"), completes[0].body.get("exit_code"))
    if result != ("FAILED", EXIT_CODE):
        return failed(f"a step exited with {EXIT_CODE}; expected FAILED and that code, Complete says {result}")
    return passed(f"a step exited with {EXIT_CODE}, no other ran after it, and Complete says FAILED and {EXIT_CODE}")


def follows_reference(t: Transcript) -> Finding:
    """PRO-Q2: a specification that is not in the lease is fetched."""
    granted = t.first("granted", "referred")
    if granted is None:
        return not_shown("the runner did not ask for a third job")
    if not t.heard("specs", "referred"):
        return failed(f"a lease with job_spec_ref was granted at {_at(granted)}; the specification was never fetched")
    if not t.words("referred"):
        return failed(f"the specification was fetched at {_at(t.heard('specs', 'referred')[0])}, but no step ran")
    return passed(f"fetched at {_at(t.heard('specs', 'referred')[0])}, ran at {_at(t.find('job', 'referred')[0])}")


def survives(t: Transcript) -> Finding:
    """PRO-F4: a server that is away for a moment costs nothing."""
    if t.first("granted", "lost") is None:
        return not_shown("the runner never asked for a lease")
    kinds = ("AckLease", "Heartbeat", "Complete")
    for type in kinds:
        tried = len(t.heard(type, "lost"))
        if not [each for each in t.find("answered", "lost", type) if each.answer not in ("cut", "overloaded")]:
            return failed(
                f"an answer was lost, then came 503; expected {type} once more after that, heard {tried} in all"
            )
    if not t.answered("Complete", "CompleteAck", "lost"):
        return failed("after lost answers and 503s its result was not accepted any more")
    times = ", ".join(f"{type} {len(t.heard(type, 'lost'))} times" for type in kinds)
    return passed(f"with lost answers and 503s it said {times}, and its result was accepted")


def well_formed(t: Transcript) -> Finding:
    """PRO-M11: every message has the protocol's fields, and says who speaks."""
    if not t.heard("lease"):
        return not_shown("the runner never asked for a lease")
    refused = t.heard("refused")
    if refused:
        return failed(f"scenario {t.scenario}: a request at {_at(refused[0])} had to be refused: {refused[0].note}")
    return passed("nothing that it sent had to be refused")


def renews(t: Transcript) -> Finding:
    """PRO-X3: it proves who it is with a credential that is good."""
    late = t.heard("expired")
    if late:
        return failed(
            f"its credential was good for {SHORT_CREDENTIAL_SECONDS} s; it still used it {late[0].note} s after that"
        )
    renewals = t.heard("renew")
    if not renewals:
        return not_shown("nothing came after its first credential had ended")
    return passed(f"a credential for {SHORT_CREDENTIAL_SECONDS} s was renewed at {_at(renewals[0])}")


class RunnerCheck(msgspec.Struct, frozen=True):
    """A line of the checklist: a rule, and what shows it in which scenario."""

    id: str
    title: str
    judges: dict[str, Judge]
    shown_by: tuple[str, ...] = ()  # The scenarios that must be played for it; none: all that it is judged in.


_EVERYWHERE: Final = ("life", "cancel", "lost-answers", "silence", "late-result", "stale", "same-twice", "no-lease")
_SOME: Final = ("life", "cancel", "stale")

RUNNER_CHECKS: Final = (
    RunnerCheck("PRO-C1", "obtains a lease before execution", {"life": lease_first("life")}),
    RunnerCheck("PRO-C2", "sends AckLease", {"life": acknowledged}),
    RunnerCheck("PRO-C3", "heartbeats at the configured interval", {"life": heartbeats}),
    RunnerCheck("PRO-C4", "uploads logs and references them in completion", {"life": log_kept}),
    RunnerCheck(
        "PRO-C5", "sends Complete exactly once per lease", {"life": one_end("life"), "lost-answers": one_end("lost")}
    ),
    RunnerCheck("PRO-C6", "supports cancellation: stops, then CancelAck", {"cancel": canceled}),
    RunnerCheck("PRO-C7", "stops work on StaleLease", {"stale": obeys_stale}),
    RunnerCheck("PRO-H1", "no lease, no execution", {"no-lease": no_lease_no_work, "same-twice": works_once}),
    RunnerCheck(
        "PRO-H2",
        "no Complete after its lease expired",
        {"silence": no_late_result("silent"), "late-result": no_late_result("late")},
    ),
    RunnerCheck("PRO-Q2", "fetches a specification that is referred to", {"no-lease": follows_reference}),
    RunnerCheck("PRO-Q8", "is silent after CompleteAck", {"life": silent_after_end}),
    RunnerCheck(
        "PRO-U2", "runs steps in order and reports exit codes truly", {"life": tells_truth, "no-lease": tells_failure}
    ),
    RunnerCheck("PRO-F4", "survives lost answers and a server that is away", {"lost-answers": survives}),
    RunnerCheck(
        "PRO-M11", "sends the protocol's messages, in its own name", dict.fromkeys(_EVERYWHERE, well_formed), _SOME
    ),
    RunnerCheck(
        "PRO-X2", "never exposes lease_id, cancel_token or credential", dict.fromkeys(_EVERYWHERE, keeps_secrets), _SOME
    ),
    RunnerCheck("PRO-X3", "renews its credential in time", {"life": renews}),
)


def check_runner(transcripts: Mapping[str, Transcript], only: Collection[str] = ()) -> list[CheckResult]:
    """The whole checklist, or the items that are asked for."""
    return [_judged(check, transcripts) for check in RUNNER_CHECKS if not only or check.id in only]


def _judged(check: RunnerCheck, transcripts: Mapping[str, Transcript]) -> CheckResult:
    found = {name: look(transcripts[name]) for name, look in check.judges.items() if name in transcripts}
    if len(check.judges) > 1 and not check.shown_by:  # Each tells its own story, with its own clock.
        found = {name: Finding(each.verdict, f"{name}: {each.evidence}") for name, each in found.items()}
    return combine(check.id, check.title, found.values())


def scenarios_for(only: Collection[str]) -> set[str]:
    """The scenarios that show these items; all, when none is named."""
    if not only:
        return set(_EVERYWHERE)
    return {name for check in RUNNER_CHECKS if check.id in only for name in check.shown_by or check.judges}


def _words(complete: Entry) -> dict[str, Any]:
    """What was said, without the number that a runner may give its messages."""
    return {name: value for name, value in complete.body.items() if name != "sequence_no"}


def _at(entry: Entry | None) -> str:
    return f"{entry.at:.2f} s" if entry is not None else "no time"
