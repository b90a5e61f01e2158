"""Compares what really runs in the simulation (where, and under which lease) with the event log and the job logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from deltaci.simulation.checker.history_checker import HistoryChecker
from deltaci.simulation.checker.leases import Group
from deltaci.simulation.checker.tracked import Lease, TrackedAttempt
from deltaci.simulation.checker.transitions import LIVE_LEASE_STATES, LogEvent, Violation

REPORTED_OUTCOMES: Final = ("SUCCEEDED", "FAILED", "CANCELED")

Ref = tuple[str, int]  # Attempt id and lease number.


class ExecutionChecker:
    """Records the start and end of every simulated process, and checks the log against them.

    `note` is called with each start and end; `report` with each violation. If the store's clock may jump, a lease can
    end before its runner can know it; the checks that this would break are then skipped.
    """

    def __init__(
        self,
        checker: HistoryChecker,
        note: Callable[[str], None],
        report: Callable[[Violation], None],
        *,
        has_clock_jumps: bool,
    ) -> None:
        self._history = checker
        self._note = note
        self._report = report
        self._has_clock_jumps = has_clock_jumps
        self.executing: dict[str, set[tuple[int, str]]] = {}
        self.exit_codes: dict[Ref, int] = {}
        self.rule_exit_codes: dict[Ref, list[int | None]] = {}  # Exit codes of validation rules.
        self.unreported_ends: dict[Ref, str] = {}  # Ended jobs whose end is not in the log yet, with the worker.
        self._forged: set[Ref] = set()
        self._acknowledged: set[Ref] = set()  # Leases that a runner acknowledged.
        self._logs: dict[Ref, str] = {}

    def is_idle(self) -> bool:
        """Return whether no process runs anywhere."""
        return not any(self.executing.values())

    # -- what the simulated machines do

    def record_start(self, attempt_id: str, lease_number: int, worker_id: str) -> None:
        """Record that a process of the job has started."""
        running_executions = self.executing.setdefault(attempt_id, set())
        if not self._has_clock_jumps:
            self._check_start(attempt_id, lease_number, worker_id, running_executions)
        running_executions.add((lease_number, worker_id))
        self.unreported_ends.pop(
            (attempt_id, lease_number), None
        )  # The job goes on: a validation rule runs after the steps.
        self._note(f"began {attempt_id} {lease_number} {worker_id}")

    def _check_start(
        self, attempt_id: str, lease_number: int, worker_id: str, running_executions: set[tuple[int, str]]
    ) -> None:
        description = f"{attempt_id} begins as lease {lease_number} on {worker_id}"
        if running_executions:
            self._report(Violation("overlap", f"{description} while it already runs as {sorted(running_executions)}"))
        is_forged = (attempt_id, lease_number) in self._forged
        if not is_forged and (other_id := self._executing_in_group_of(attempt_id)):
            self._report(Violation("group-overlap", f"{description} while {other_id} of the same group runs"))
        lease = self._last_lease(attempt_id, lease_number)
        # The runner learns a little later that its lease was revoked by a cancel or a timeout.
        is_owned = (
            lease is not None
            and (attempt_id, lease_number) in self._acknowledged
            and lease.state in (*LIVE_LEASE_STATES, "REVOKED")
        )
        if not is_owned and not is_forged:
            self._report(Violation("unowned", f"{description}, but its lease is {lease}"))

    def _executing_in_group_of(self, attempt_id: str) -> str:
        """Return the id of another attempt of the same group that runs now; empty if there is none.

        An attempt whose result was forged may still run after it freed its group.
        """
        group = self._group_of(attempt_id)
        if group is None:
            return ""
        running_ids = (
            other_attempt_id
            for other_attempt_id, executions in self.executing.items()
            if other_attempt_id != attempt_id
            and any((other_attempt_id, lease_number) not in self._forged for lease_number, _ in executions)
        )
        return next(
            (other_attempt_id for other_attempt_id in running_ids if self._group_of(other_attempt_id) == group), ""
        )

    def _group_of(self, attempt_id: str) -> Group | None:
        attempt = self._history.entities.get(attempt_id)
        return self._history.group_of(attempt) if isinstance(attempt, TrackedAttempt) else None

    def record_end(
        self, attempt_id: str, lease_number: int, worker_id: str, exit_code: int | None, *, is_rule: bool = False
    ) -> None:
        """Record that the process has ended; `exit_code` is None if it was killed."""
        self.executing.get(attempt_id, set()).discard((lease_number, worker_id))
        if is_rule:
            self.rule_exit_codes.setdefault((attempt_id, lease_number), []).append(exit_code)
        if exit_code is not None:
            if not is_rule:
                self.exit_codes[attempt_id, lease_number] = exit_code
            lease = self._last_lease(attempt_id, lease_number)
            is_polling_runner = worker_id in self._history.polling_worker_ids  # Queue clients need not report.
            if is_polling_runner and lease is not None and lease.state in LIVE_LEASE_STATES:
                self.unreported_ends[attempt_id, lease_number] = worker_id
        self._note(f"ended {attempt_id} {lease_number} {exit_code}")

    def record_pause(self, attempt_id: str, lease_number: int, worker_id: str) -> None:
        """Record that the machine of the process was frozen; a frozen process does not count as running.

        When the machine continues, the process starts again for this class `MAX_OVERRUN_SECONDS` later: only then must
        its supervisor have ended it, if its lease is over.
        """
        self.executing.get(attempt_id, set()).discard((lease_number, worker_id))

    def set_log_file(self, attempt_id: str, lease_number: int, log_path: str) -> None:
        """Set the file that the job's output is written to."""
        self._logs[attempt_id, lease_number] = log_path

    def mark_forged(self, attempt_id: str, lease_number: int) -> None:
        """Mark a lease for which a forged message was sent: the outcome in the log may differ from the real one."""
        self._forged.add((attempt_id, lease_number))

    # -- what the log says

    def check_event(self, event: LogEvent) -> None:
        """Check an event of an attempt after the history checker has applied it. Raises `Violation`."""
        attempt = self._history.entities[event.entity_id]
        if not isinstance(attempt, TrackedAttempt) or attempt.lease is None:
            return
        lease = attempt.lease
        if lease.state == "ACTIVE":
            self._acknowledged.add((attempt.id, lease.number))
        if lease.state not in LIVE_LEASE_STATES:
            self.unreported_ends.pop((attempt.id, lease.number), None)
        is_running = (lease.number, lease.worker_id) in self.executing.get(attempt.id, ())
        is_polling_runner = lease.worker_id in self._history.polling_worker_ids  # Queue clients need not stop in time.
        if lease.state == "EXPIRED" and is_running and is_polling_runner and not self._has_clock_jumps:
            description = f"lease {lease.number} of {attempt.id}"
            raise Violation("self-stop", f"{description} has expired, but its job still runs on {lease.worker_id}")
        is_end = event.actor.startswith("worker:") and event.to in REPORTED_OUTCOMES
        if not is_end or (attempt.id, lease.number) in self._forged:
            return
        exit_code = self.exit_codes.get((attempt.id, lease.number))
        if event.to == "SUCCEEDED" and exit_code != 0:
            raise Violation("truth", f"{attempt.id} succeeded, but its process ended with {exit_code}")
        verdict = event.metadata.get("verdict")
        rule_codes = self.rule_exit_codes.get((attempt.id, lease.number), [])
        if event.to == "SUCCEEDED" and (rule_codes or (verdict and verdict["is_passed"])):
            is_passed = bool(rule_codes) and not any(code != 0 for code in rule_codes)
            if verdict is None or verdict["is_passed"] != is_passed:
                raise Violation(
                    "verdict",
                    f"{attempt.id} succeeded with the verdict {verdict}, but its rules ended with {rule_codes}",
                )
        if is_running:
            raise Violation("stopped", f"{attempt.id} was reported {event.to} by {lease.worker_id}, but still runs")

    def check_log(self, attempt_id: str, lease_number: int, offset: int, stored_log: bytes) -> None:
        """Check that uploaded log bytes equal what the job wrote at that offset; skipped if the file is gone."""
        log_path = self._logs.get((attempt_id, lease_number), "")
        if log_path and os.path.exists(log_path):
            with open(log_path, "rb") as log_file:
                log_file.seek(offset)
                if log_file.read(len(stored_log)) != stored_log:
                    description = f"the log of {attempt_id} under lease {lease_number}"
                    self._report(
                        Violation("log-bytes", f"{description} differs at offset {offset} from what the job wrote")
                    )

    def check_reported(self, worker_by_execution: dict[Ref, str]) -> None:
        """Report the ends in `worker_by_execution` that are still not in the log."""
        for (attempt_id, lease_number), worker_id in worker_by_execution.items():
            if (attempt_id, lease_number) in self.unreported_ends:
                self._report(
                    Violation(
                        "told",
                        f"{attempt_id} ended on {worker_id} as lease {lease_number}, but its end was never reported",
                    )
                )

    def _last_lease(self, attempt_id: str, lease_number: int) -> Lease | None:
        """Return this lease if it is the attempt's last one."""
        attempt = self._history.entities.get(attempt_id)
        lease = attempt.lease if isinstance(attempt, TrackedAttempt) else None
        return lease if lease is not None and lease.number == lease_number else None
