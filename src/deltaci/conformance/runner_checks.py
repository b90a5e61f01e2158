"""The checklist for runners: pure functions from a transcript to a finding.

Each function checks one rule in one scenario. It fails a runner only for something that was observed, and passes it
only if the scenario reached a situation in which the rule could have been broken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from statistics import median
from typing import Any, Final

import msgspec

from deltaci.conformance.results import CheckResult, Finding, combine, failed, not_shown, passed
from deltaci.conformance.scenarios import (
    CANCEL_SECONDS,
    ENV_VALUE,
    EXIT_CODE,
    SHORT_CREDENTIAL_SECONDS,
    STOP_SECONDS,
)
from deltaci.conformance.scripted_job import INTERVAL_SECONDS
from deltaci.conformance.transcript import Entry, Transcript

SLACK_SECONDS: Final = 0.3  # Tolerance for messages that were already on their way.
MAX_MEDIAN_GAP: Final = 1.5  # Upper bound of the median gap between heartbeats, in intervals.
MAX_GAP: Final = 5.0  # Upper bound of any gap: with the default TTL of six intervals the lease would expire.
MIN_MEDIAN_GAP: Final = 0.4  # Lower bound of the median gap, in intervals.

CheckFunction = Callable[[Transcript], Finding]


def _find_reason_not_started(transcript: Transcript, job_name: str) -> Finding | None:
    """Return a finding with the reason why no step of the job ran, so that it cannot be judged; None if one ran."""
    if transcript.markers(job_name):
        return None
    if not transcript.received("lease"):
        return not_shown("the runner never asked for a lease")
    if transcript.first("granted", job_name) is None:
        return not_shown(f"the runner never asked for the lease of job {job_name!r}")
    return not_shown(
        f"job {job_name!r} was granted at {_time_of(transcript.first('granted', job_name))}, but none of its steps ran"
    )


def lease_first(job_name: str) -> CheckFunction:
    """Return a check of PRO-C1 for this job: no step runs before its lease is active."""

    def check_lease_first(transcript: Transcript) -> Finding:
        if not transcript.received("lease"):
            exit_texts = [f"{entry.note} at {_time_of(entry)}" for entry in transcript.find("exited")] or [
                "it was still running"
            ]
            return failed(
                f"expected a request for a lease; none came in {transcript.entries[-1].at:.1f} s ({exit_texts[0]})"
            )
        if (not_started_finding := _find_reason_not_started(transcript, job_name)) is not None:
            return not_started_finding
        if not transcript.received("AckLease", job_name):
            return not_shown("it sent no AckLease (see PRO-C2), so its lease was never active")
        first_step_entry = transcript.find("job", job_name)[0]
        accepted_acks = transcript.answered("AckLease", "HeartbeatAck", job_name)
        if not accepted_acks:
            return failed(f"its first step ran at {_time_of(first_step_entry)}, although AckLease was never accepted")
        if first_step_entry.at < accepted_acks[0].at:
            answered_at, started_at = _time_of(accepted_acks[0]), _time_of(first_step_entry)
            return failed(
                f"expected no step before AckLease was answered at {answered_at}; the first ran at {started_at}"
            )
        return passed(
            f"AckLease was accepted at {_time_of(accepted_acks[0])}, the first step ran at {_time_of(first_step_entry)}"
        )

    return check_lease_first


def acknowledged(transcript: Transcript) -> Finding:
    """Check PRO-C2: the runner sends AckLease for the granted lease."""
    grant, acks = transcript.first("granted", "life"), transcript.received("AckLease", "life")
    if grant is None:
        return not_shown("the runner never asked for a lease")
    if not acks and transcript.received("refused"):
        return not_shown("its messages had to be refused (see PRO-M11)")
    if not acks:
        return failed(f"expected AckLease after the grant at {_time_of(grant)}; there was none")
    return passed(f"AckLease came {acks[0].at - grant.at:.2f} s after the grant")


def heartbeats(transcript: Transcript) -> Finding:
    """Check PRO-C3: heartbeats come at the granted interval as long as the job runs."""
    if (not_started_finding := _find_reason_not_started(transcript, "life")) is not None:
        return not_started_finding
    first_at = (transcript.answered("AckLease", "HeartbeatAck", "life") or transcript.find("job", "life"))[0].at
    end_entries = [*transcript.process_exits("life"), *transcript.received("Complete", "life")]
    end_entries += transcript.find("answered", "life", "Complete")
    last_at = max((entry.at for entry in end_entries), default=transcript.entries[-1].at)
    heartbeat_times = [entry.at for entry in transcript.received("Heartbeat", "life") if entry.at <= last_at]
    expected_text = f"expected a heartbeat every {INTERVAL_SECONDS} s"
    if not heartbeat_times:
        return failed(f"{expected_text}; there was none from {first_at:.2f} s to {last_at:.2f} s")
    gaps = [
        following - preceding
        for preceding, following in zip([first_at, *heartbeat_times], heartbeat_times, strict=False)
    ]
    median_gap, longest_gap = median(gaps), max([*gaps, last_at - heartbeat_times[-1]])
    heartbeat_count, total_seconds = len(heartbeat_times), last_at - first_at
    observed_text = (
        f"{heartbeat_count} came in {total_seconds:.1f} s, "
        f"usually after {median_gap:.2f} s, at most after {longest_gap:.2f} s"
    )
    is_regular = (
        MIN_MEDIAN_GAP <= median_gap / INTERVAL_SECONDS <= MAX_MEDIAN_GAP and longest_gap <= MAX_GAP * INTERVAL_SECONDS
    )
    return passed(observed_text) if is_regular else failed(f"{expected_text}; {observed_text}")


def log_uploaded(transcript: Transcript) -> Finding:
    """Check PRO-C4: the uploaded log has every line that the job printed, and Complete lists it as an artifact."""
    completes = transcript.received("Complete", "life")
    if not completes:
        return _find_reason_not_started(transcript, "life") or not_shown(
            "there was no Complete that could refer to a log"
        )
    expected_lines = ("first line", "second line", "third line")
    missing_lines = [line for line in expected_lines if line not in transcript.logs.get("life", "")]
    if missing_lines:
        log_size = len(transcript.logs.get("life", ""))
        return failed(
            f"expected every line of the job in its log; {missing_lines[0]!r} is not in the {log_size} bytes that came"
        )
    artifact_types = [str(artifact.get("type")) for artifact in completes[0].body.get("artifacts", [])]
    if "log" not in artifact_types:
        return failed(f"expected an artifact of type 'log' in Complete; it names {', '.join(artifact_types) or 'none'}")
    return passed(
        f"{len(transcript.logs['life'])} bytes of log came, and Complete at {_time_of(completes[0])} refers to them"
    )


def one_result(job_name: str) -> CheckFunction:
    """Return a check of PRO-C5 for this job: one result is sent, and repeated only until it is answered."""

    def check_one_result(transcript: Transcript) -> Finding:
        completes = transcript.received("Complete", job_name)
        if not completes:
            if (not_started_finding := _find_reason_not_started(transcript, job_name)) is not None:
                return not_started_finding
            if not transcript.process_exits(job_name):
                return not_shown(f"job {job_name!r} never ended")
            return failed(
                "expected one Complete after the job ended at "
                f"{_time_of(transcript.process_exits(job_name)[-1])}; none came"
            )
        bodies = [_without_sequence_no(complete) for complete in completes]
        if any(body != bodies[0] for body in bodies):
            differing_index = next(differing_index for differing_index, body in enumerate(bodies) if body != bodies[0])
            first_body, differing_body = bodies[0], bodies[differing_index]
            differing_fields = sorted(
                field_name
                for field_name in first_body | differing_body
                if first_body.get(field_name) != differing_body.get(field_name)
            )
            sent_at = _time_of(completes[differing_index])
            return failed(f"expected one Complete; another one at {sent_at} differs in {', '.join(differing_fields)}")
        answers = transcript.answered("Complete", "CompleteAck", job_name)
        late_messages = [complete for complete in completes if answers and complete.at > answers[0].at]
        if late_messages:
            repeated_at = _time_of(late_messages[0])
            return failed(
                f"expected no more after CompleteAck at {_time_of(answers[0])}; it came again at {repeated_at}"
            )
        repeats_text = f", sent {len(completes)} times until it was answered" if len(completes) > 1 else ""
        return passed(f"one Complete at {_time_of(completes[0])}{repeats_text}")

    return check_one_result


def canceled(transcript: Transcript) -> Finding:
    """Check PRO-C6: the runner stops all processes within the deadline, and only then sends CancelAck."""
    if (not_started_finding := _find_reason_not_started(transcript, "canceled")) is not None:
        return not_started_finding
    answers = transcript.answered("Heartbeat", "HeartbeatAck", "canceled")
    cancel_requests = [answer for answer in answers if answer.body.get("deadline")]
    if not cancel_requests:
        return not_shown("no heartbeat came whose answer could carry the cancel (see PRO-C3)")
    context = f"it was told at {_time_of(cancel_requests[0])} to stop within {CANCEL_SECONDS} s"
    acks = transcript.received("CancelAck", "canceled")
    if not acks:
        exits = transcript.process_exits("canceled")
        actual_text = f"nothing of the job ran any more at {_time_of(exits[-1])}" if exits else "the job went on"
        return failed(f"{context}; expected CancelAck, none came, and {actual_text}")
    if transcript.is_running("canceled", acks[0]):
        return failed(f"{context}; CancelAck came at {_time_of(acks[0])} while processes of the job still ran")
    if acks[0].at > cancel_requests[0].at + CANCEL_SECONDS + SLACK_SECONDS:
        return failed(f"{context}; CancelAck came at {_time_of(acks[0])}, too late")
    exited_at = _time_of(transcript.process_exits("canceled")[-1])
    return passed(
        f"{context}; nothing of the job ran any more at {exited_at}, and CancelAck came at {_time_of(acks[0])}"
    )


def obeys_stale(transcript: Transcript) -> Finding:
    """Check PRO-C7: after the answer StaleLease the runner stops the job and sends nothing more for it."""
    if (not_started_finding := _find_reason_not_started(transcript, "stale")) is not None:
        return not_started_finding
    answers = transcript.answered("Heartbeat", "StaleLease", "stale")
    if not answers:
        return not_shown("no heartbeat came that could be answered with StaleLease (see PRO-C3)")
    context = f"StaleLease was the answer at {_time_of(answers[0])}"
    exits = transcript.process_exits("stale")
    if not exits or exits[0].at > answers[0].at + STOP_SECONDS:
        return failed(f"{context}; expected the job to be stopped, it still ran {STOP_SECONDS:.0f} s later")
    for message_type, slack_seconds in (("Complete", 0.0), ("Heartbeat", SLACK_SECONDS)):
        later_messages = [
            entry for entry in transcript.received(message_type, "stale") if entry.at > answers[0].at + slack_seconds
        ]
        if later_messages:
            return failed(f"{context}; expected no {message_type} any more, one came at {_time_of(later_messages[0])}")
    return passed(f"{context}; nothing of the job ran any more at {_time_of(exits[0])}, and nothing more was sent")


def no_lease_no_work(transcript: Transcript) -> Finding:
    """Check PRO-H1: the runner does not execute a job whose AckLease was refused."""
    grant = transcript.first("granted", "refused")
    if grant is None:
        return not_shown("the runner never asked for a lease")
    refusals = transcript.answered("AckLease", "StaleLease", "refused")
    if not refusals:
        return not_shown("it sent no AckLease that could be refused (see PRO-C2)")
    marker_entries = transcript.find("job", "refused")
    if marker_entries:
        return failed(
            f"AckLease was answered with StaleLease at {_time_of(refusals[0])}; "
            f"the job ran at {_time_of(marker_entries[0])}"
        )
    later_requests = [entry for entry in transcript.entries if entry.at > refusals[0].at and entry.type == "lease"]
    if not later_requests:
        return not_shown("after a StaleLease in answer to AckLease the runner asked for nothing more")
    return passed(f"AckLease was answered with StaleLease at {_time_of(refusals[0])}, and the job did not run")


def executes_once(transcript: Transcript) -> Finding:
    """Check PRO-H1: a lease that is delivered repeatedly is executed once."""
    if (not_started_finding := _find_reason_not_started(transcript, "doubled")) is not None:
        return not_started_finding
    marker_entries = transcript.find("job", "doubled")
    if len(marker_entries) > 1:
        times_text = " and ".join(map(_time_of, marker_entries))
        return failed(f"one lease was delivered more than once; its job ran at {times_text}")
    if len(transcript.find("granted", "doubled")) < 3:
        return not_shown("the runner did not ask again, so the lease could not be delivered again")
    return passed(f"a lease that was delivered three times was worked on once, at {_time_of(marker_entries[0])}")


def no_late_result(job_name: str) -> CheckFunction:
    """Return a check of PRO-H2 for this job: no result is sent after the lease expired by the runner's clock."""

    def check_no_late_result(transcript: Transcript) -> Finding:
        if (not_started_finding := _find_reason_not_started(transcript, job_name)) is not None:
            return not_started_finding
        renewals = transcript.answered("AckLease", "HeartbeatAck", job_name) + transcript.answered(
            "Heartbeat", "HeartbeatAck", job_name
        )
        if not renewals:
            return not_shown("its lease was never renewed, so its end is unknown")
        lease_end = max(entry.at for entry in renewals) + float(transcript.find("granted", job_name)[0].body["ttl"])
        if transcript.entries[-1].at <= lease_end:
            return not_shown("the scenario ended before the lease")
        late_messages = [
            entry for entry in transcript.received("Complete", job_name) if entry.at > lease_end + SLACK_SECONDS
        ]
        if late_messages:
            sent_at = _time_of(late_messages[0])
            return failed(f"its lease ended at {lease_end:.2f} s without a renewal; it sent Complete at {sent_at}")
        return passed(f"its lease ended at {lease_end:.2f} s without a renewal, and no Complete came after that")

    return check_no_late_result


def silent_after_end(transcript: Transcript) -> Finding:
    """Check PRO-Q8: no heartbeat follows CompleteAck."""
    answers = transcript.answered("Complete", "CompleteAck", "life")
    if not answers:
        return not_shown("there was no Complete to acknowledge (see PRO-C5)")
    late_messages = [
        entry for entry in transcript.received("Heartbeat", "life") if entry.at > answers[0].at + SLACK_SECONDS
    ]
    if late_messages:
        return failed(
            f"CompleteAck was sent at {_time_of(answers[0])}; a heartbeat came at {_time_of(late_messages[0])}"
        )
    return passed(f"no heartbeat in the {transcript.entries[-1].at - answers[0].at:.1f} s after CompleteAck")


def keeps_secrets(transcript: Transcript) -> Finding:
    """Check PRO-X2: nothing that the runner prints, uploads or reports contains a secret."""
    if not transcript.received("lease"):
        return not_shown("the runner never asked for a lease")
    bodies = [entry.body for entry in transcript.find("heard")]
    reported_values = [
        field_value for body in bodies for field_name, field_value in body.items() if field_name != "lease_id"
    ]
    text_by_source = {
        "what the runner prints": transcript.output,
        "the address of a request": "\n".join(transcript.targets),
        "its messages": msgspec.json.encode(reported_values).decode(),
        **{f"the log of job {job_name!r}": log for job_name, log in transcript.logs.items()},
    }
    for source_name, source_text in text_by_source.items():
        leaked_kinds = [secret_kind for secret, secret_kind in transcript.secrets.items() if secret in source_text]
        if leaked_kinds:
            return failed(
                f"scenario {transcript.scenario}: expected no secret in {source_name}; a {leaked_kinds[0]} is there"
            )
    return passed("none in what it prints, uploads and reports, also when a job prints its environment")


def reports_success(transcript: Transcript) -> Finding:
    """Check PRO-U2: when all steps succeed, Complete has the status SUCCEEDED and exit code 0."""
    completes = transcript.received("Complete", "life")
    if not completes:
        return _find_reason_not_started(transcript, "life") or not_shown("there was no Complete")
    expected_markers = ["one", "two", f"three {ENV_VALUE}"]
    if transcript.markers("life") != expected_markers:
        return failed(f"expected the steps {expected_markers} in this order; {transcript.markers('life')} ran")
    result_pair = (completes[0].body.get("status"), completes[0].body.get("exit_code"))
    if result_pair != ("SUCCEEDED", 0):
        return failed(
            f"all steps succeeded; expected SUCCEEDED and 0, Complete says {result_pair[0]} and {result_pair[1]}"
        )
    return passed("three steps ran in order, and Complete says SUCCEEDED and 0")


def reports_failure(transcript: Transcript) -> Finding:
    """Check PRO-U2: when a step fails, Complete has FAILED and its exit code, and no later step runs."""
    completes = transcript.received("Complete", "failing")
    if not completes:
        return _find_reason_not_started(transcript, "failing") or not_shown(
            "there was no Complete of the job that fails"
        )
    if transcript.markers("failing") != ["one", "two"]:
        return failed(f"expected no step after the one that failed; {transcript.markers('failing')} ran")
    result_pair = (completes[0].body.get("status"), completes[0].body.get("exit_code"))
    if result_pair != ("FAILED", EXIT_CODE):
        return failed(f"a step exited with {EXIT_CODE}; expected FAILED and that code, Complete says {result_pair}")
    return passed(f"a step exited with {EXIT_CODE}, no other ran after it, and Complete says FAILED and {EXIT_CODE}")


def fetches_spec(transcript: Transcript) -> Finding:
    """Check PRO-Q2: the runner fetches the job specification if the lease only has a reference to it."""
    grant = transcript.first("granted", "referred")
    if grant is None:
        return not_shown("the runner did not ask for a third job")
    fetches = transcript.received("specs", "referred")
    if not fetches:
        return failed(
            f"a lease with job_spec_ref was granted at {_time_of(grant)}; the specification was never fetched"
        )
    if not transcript.markers("referred"):
        return failed(f"the specification was fetched at {_time_of(fetches[0])}, but no step ran")
    return passed(f"fetched at {_time_of(fetches[0])}, ran at {_time_of(transcript.find('job', 'referred')[0])}")


def survives_lost_answers(transcript: Transcript) -> Finding:
    """Check PRO-F4: the runner repeats its messages after lost answers and 503, until its result is accepted."""
    if transcript.first("granted", "lost") is None:
        return not_shown("the runner never asked for a lease")
    message_types = ("AckLease", "Heartbeat", "Complete")
    for message_type in message_types:
        message_count = len(transcript.received(message_type, "lost"))
        if all(entry.answer in ("cut", "overloaded") for entry in transcript.find("answered", "lost", message_type)):
            return failed(
                f"an answer was lost, then came 503; expected {message_type} once more after that, "
                f"received {message_count} in all"
            )
    if not transcript.answered("Complete", "CompleteAck", "lost"):
        return failed("after lost answers and 503s its result was not accepted")
    counts_text = ", ".join(
        f"{message_type} {len(transcript.received(message_type, 'lost'))} times" for message_type in message_types
    )
    return passed(f"with lost answers and 503s it sent {counts_text}, and its result was accepted")


def well_formed(transcript: Transcript) -> Finding:
    """Check PRO-M11: the server had to refuse none of the runner's requests as malformed or sent with another's id."""
    if not transcript.received("lease"):
        return not_shown("the runner never asked for a lease")
    requests = transcript.received("refused")
    if requests:
        return failed(
            f"scenario {transcript.scenario}: a request at {_time_of(requests[0])} had to be refused: "
            f"{requests[0].note}"
        )
    return passed("none of its requests had to be refused")


def renews_credential(transcript: Transcript) -> Finding:
    """Check PRO-X3: the runner renews its credential before it expires."""
    late_requests = transcript.received("expired")
    if late_requests:
        seconds_late = late_requests[0].note
        return failed(
            f"its credential was good for {SHORT_CREDENTIAL_SECONDS} s; it still used it {seconds_late} s after that"
        )
    renewals = transcript.received("renew")
    if not renewals:
        return not_shown("nothing came after its first credential had ended")
    return passed(f"a credential for {SHORT_CREDENTIAL_SECONDS} s was renewed at {_time_of(renewals[0])}")


class RunnerCheck(msgspec.Struct, frozen=True):
    """An item of the checklist: a rule, and the check function for each scenario in which it is checked."""

    id: str
    title: str
    functions: dict[str, CheckFunction]
    required_scenarios: tuple[str, ...] = ()  # The scenarios to run for this item; empty: those of `functions`.


_ALL_SCENARIOS: Final = ("life", "cancel", "lost-answers", "silence", "late-result", "stale", "same-twice", "no-lease")
_TYPICAL_SCENARIOS: Final = ("life", "cancel", "stale")

RUNNER_CHECKS: Final = (
    RunnerCheck("PRO-C1", "obtains a lease before execution", {"life": lease_first("life")}),
    RunnerCheck("PRO-C2", "sends AckLease", {"life": acknowledged}),
    RunnerCheck("PRO-C3", "heartbeats at the configured interval", {"life": heartbeats}),
    RunnerCheck("PRO-C4", "uploads logs and references them in completion", {"life": log_uploaded}),
    RunnerCheck(
        "PRO-C5",
        "sends Complete exactly once per lease",
        {"life": one_result("life"), "lost-answers": one_result("lost")},
    ),
    RunnerCheck("PRO-C6", "supports cancellation: stops, then CancelAck", {"cancel": canceled}),
    RunnerCheck("PRO-C7", "stops work on StaleLease", {"stale": obeys_stale}),
    RunnerCheck("PRO-H1", "no lease, no execution", {"no-lease": no_lease_no_work, "same-twice": executes_once}),
    RunnerCheck(
        "PRO-H2",
        "no Complete after its lease expired",
        {"silence": no_late_result("silent"), "late-result": no_late_result("late")},
    ),
    RunnerCheck("PRO-Q2", "fetches a specification that is referred to", {"no-lease": fetches_spec}),
    RunnerCheck("PRO-Q8", "is silent after CompleteAck", {"life": silent_after_end}),
    RunnerCheck(
        "PRO-U2",
        "runs steps in order and reports exit codes truly",
        {"life": reports_success, "no-lease": reports_failure},
    ),
    RunnerCheck("PRO-F4", "survives lost answers and a server that is away", {"lost-answers": survives_lost_answers}),
    RunnerCheck(
        "PRO-M11",
        "sends the protocol's messages, in its own name",
        dict.fromkeys(_ALL_SCENARIOS, well_formed),
        _TYPICAL_SCENARIOS,
    ),
    RunnerCheck(
        "PRO-X2",
        "never exposes lease_id, cancel_token or credential",
        dict.fromkeys(_ALL_SCENARIOS, keeps_secrets),
        _TYPICAL_SCENARIOS,
    ),
    RunnerCheck("PRO-X3", "renews its credential in time", {"life": renews_credential}),
)


def check_runner(transcript_by_scenario: Mapping[str, Transcript], only_ids: Collection[str] = ()) -> list[CheckResult]:
    """Return the result of every item of the checklist; of those with an id in `only_ids`, if it is not empty."""
    return [
        _check_rule(check, transcript_by_scenario) for check in RUNNER_CHECKS if not only_ids or check.id in only_ids
    ]


def _check_rule(check: RunnerCheck, transcript_by_scenario: Mapping[str, Transcript]) -> CheckResult:
    """Return the result of one item from the findings of its scenarios."""
    findings = {
        scenario_name: check_function(transcript_by_scenario[scenario_name])
        for scenario_name, check_function in check.functions.items()
        if scenario_name in transcript_by_scenario
    }
    if len(check.functions) > 1 and not check.required_scenarios:  # Each scenario has its own times.
        findings = {
            scenario_name: Finding(finding.verdict, f"{scenario_name}: {finding.evidence}")
            for scenario_name, finding in findings.items()
        }
    return combine(check.id, check.title, findings.values())


def scenarios_for(only_ids: Collection[str]) -> set[str]:
    """Return the names of the scenarios to run for the items in `only_ids`; of all scenarios if it is empty."""
    if not only_ids:
        return set(_ALL_SCENARIOS)
    return {
        scenario_name
        for check in RUNNER_CHECKS
        if check.id in only_ids
        for scenario_name in check.required_scenarios or check.functions
    }


def _without_sequence_no(complete: Entry) -> dict[str, Any]:
    return {field_name: field_value for field_name, field_value in complete.body.items() if field_name != "sequence_no"}


def _time_of(entry: Entry | None) -> str:
    """Return the time of an entry as text, in seconds since the start of the scenario."""
    return f"{entry.at:.2f} s" if entry is not None else "no time"
