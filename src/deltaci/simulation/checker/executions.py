"""What really executes, where and under which lease; compared with what is written and what is said about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from deltaci.simulation.checker.facts import AttemptFacts, Lease
from deltaci.simulation.checker.history_checker import Checker
from deltaci.simulation.checker.law import LIVE, Fact, Violation

ENDS: Final = ("SUCCEEDED", "FAILED", "CANCELED")

Ref = tuple[str, int]  # An attempt, and the number of its lease.


class Truth:
    """Told by machines and programs what they do. `note` is told all of it, `blame` what should not be.

    Where the store's clock jumps, a lease may end while its runner cannot know it: then nobody is blamed for that.
    """

    def __init__(
        self, checker: Checker, note: Callable[[str], None], blame: Callable[[Violation], None], *, has_jumps: bool
    ) -> None:
        self._checker = checker
        self._note = note
        self._blame = blame
        self._has_jumps = has_jumps
        self.executing: dict[str, set[tuple[int, str]]] = {}
        self.results: dict[Ref, int] = {}
        self.judged: dict[Ref, list[int | None]] = {}  # How the commands of rules ended.
        self.untold: dict[Ref, str] = {}  # Jobs that ended, and whose end is not in the log yet.
        self._lies: set[Ref] = set()
        self._taken: set[Ref] = set()  # Leases that were acknowledged.
        self._logs: dict[Ref, str] = {}

    def is_idle(self) -> bool:
        """Whether nothing runs anywhere."""
        return not any(self.executing.values())

    # -- what happens

    def began(self, attempt_id: str, number: int, who: str) -> None:
        """A process of the job runs now."""
        here = self.executing.setdefault(attempt_id, set())
        if not self._has_jumps:
            self._check_begin(attempt_id, number, who, here)
        here.add((number, who))
        self.untold.pop((attempt_id, number), None)  # It was not the end: a rule is looked at.
        self._note(f"began {attempt_id} {number} {who}")

    def _check_begin(self, attempt_id: str, number: int, who: str, here: set[tuple[int, str]]) -> None:
        begins = f"{attempt_id} begins as lease {number} on {who}"
        if here:
            self._blame(Violation("overlap", f"{begins} while it runs as {sorted(here)}"))
        held = self._held(attempt_id, number)
        # That a lease was taken away, by a cancel or a timeout, its runner hears a little later.
        is_owned = held is not None and (attempt_id, number) in self._taken and held.state in (*LIVE, "REVOKED")
        if not is_owned and (attempt_id, number) not in self._lies:
            self._blame(Violation("unowned", f"{begins}, but its lease is {held}"))

    def ended(self, attempt_id: str, number: int, who: str, exit_code: int | None, *, is_rule: bool = False) -> None:
        """None of them does any more. Without an exit code it was killed."""
        self.executing.get(attempt_id, set()).discard((number, who))
        if is_rule:
            self.judged.setdefault((attempt_id, number), []).append(exit_code)
        if exit_code is not None:
            if not is_rule:
                self.results[attempt_id, number] = exit_code
            held = self._held(attempt_id, number)
            if (
                who in self._checker.pollers and held is not None and held.state in LIVE
            ):  # Programs may take their time.
                self.untold[attempt_id, number] = who
        self._note(f"ended {attempt_id} {number} {exit_code}")

    def paused(self, attempt_id: str, number: int, who: str, *, is_paused: bool) -> None:
        """It stands still with its whole machine, and does nothing that another could do too; or goes on with it."""
        if is_paused:
            self.executing.get(attempt_id, set()).discard((number, who))
        else:
            self.began(attempt_id, number, who)

    def writes(self, attempt_id: str, number: int, path: str) -> None:
        """What the job says stands in this file."""
        self._logs[attempt_id, number] = path

    def lied(self, attempt_id: str, number: int) -> None:
        """What is said of this lease from now on need not be true."""
        self._lies.add((attempt_id, number))

    # -- what is said about it

    def see(self, event: Fact) -> None:
        """An event of an attempt was committed, and the checker has seen it. Raises `Violation`."""
        it = self._checker.known[event.entity_id]
        if not isinstance(it, AttemptFacts) or it.lease is None:
            return
        held = it.lease
        if held.state == "ACTIVE":
            self._taken.add((it.id, held.number))
        if held.state not in LIVE:
            self.untold.pop((it.id, held.number), None)
        is_running = (held.number, held.worker_id) in self.executing.get(it.id, ())
        is_runners = held.worker_id in self._checker.pollers  # Programs promise nothing of that kind.
        if held.state == "EXPIRED" and is_running and is_runners and not self._has_jumps:
            of = f"lease {held.number} of {it.id}"
            raise Violation("self-stop", f"{of} has run out, and its job still runs on {held.worker_id}")
        is_end = event.actor.startswith("worker:") and event.to in ENDS
        if not is_end or (it.id, held.number) in self._lies:
            return
        found = self.results.get((it.id, held.number))
        if event.to == "SUCCEEDED" and found != 0:
            raise Violation("truth", f"{it.id} succeeded, but what ran ended with {found}")
        told = event.metadata.get("verdict")
        ran = self.judged.get((it.id, held.number), [])
        if event.to == "SUCCEEDED" and (ran or (told and told["is_passed"])):
            wanted = bool(ran) and not any(code != 0 for code in ran)
            if told is None or told["is_passed"] != wanted:
                raise Violation("verdict", f"{it.id} succeeded with the verdict {told}, but its rules ended with {ran}")
        if is_running:
            raise Violation("stopped", f"{it.id} is {event.to} by the word of {held.worker_id}, and still runs")

    def see_log(self, attempt_id: str, number: int, offset: int, data: bytes) -> None:
        """What arrives of a log is what the job said, at that place; a file that is gone tells nothing."""
        path = self._logs.get((attempt_id, number), "")
        if path and os.path.exists(path):
            with open(path, "rb") as file:
                file.seek(offset)
                if file.read(len(data)) != data:
                    of = f"the log of {attempt_id} under lease {number}"
                    self._blame(Violation("log-bytes", f"{of} has other bytes at {offset} than the job wrote"))

    def check_told(self, were: dict[Ref, str]) -> None:
        """Of these ends, which nobody knew of some time ago, everybody knows by now, in whatever way."""
        for (attempt_id, number), who in were.items():
            if (attempt_id, number) in self.untold:
                self._blame(Violation("told", f"{attempt_id} ended on {who} as lease {number}, and nobody knows it"))

    def _held(self, attempt_id: str, number: int) -> Lease | None:
        """This lease, if it is the last one of the attempt."""
        it = self._checker.known.get(attempt_id)
        held = it.lease if isinstance(it, AttemptFacts) else None
        return held if held is not None and held.number == number else None
