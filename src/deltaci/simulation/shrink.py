"""Shrinks a scenario that breaks an invariant: fewer faults, actions, machines and hours, but the same invariant
broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from deltaci.core.events import Event
from deltaci.simulation.history import EPOCH, History, Simulation
from deltaci.simulation.scenario import HOUR, Scenario

MAX_TRIES: Final = 400
LAST_EVENTS: Final = 20

T = TypeVar("T")


class Shrinker:
    """Removes parts of a scenario that are not needed to break the same invariant."""

    def __init__(self, scenario: Scenario, history: History, max_tries: int = MAX_TRIES) -> None:
        self.scenario = scenario
        self.history = history
        self._tries_left = max_tries

    def run(self) -> Scenario:
        """Shrink the scenario until nothing more can be removed or no tries are left. Return the result."""
        self._shorten()
        previous_size = -1
        while previous_size != _size(self.scenario) and self._tries_left > 0:
            previous_size = _size(self.scenario)
            self._drop("faults")
            self._drop("actions")
            self._simplify()
            self._shorten()
        return self.scenario

    def _try_change(self, **fields: Any) -> bool:
        """Play the scenario with these fields changed. Keep the change if the same invariant is broken.

        Return whether the change was kept.
        """
        if self._tries_left <= 0:
            return False
        self._tries_left -= 1
        scenario = msgspec.structs.replace(self.scenario, **fields)
        history = Simulation(scenario).run()
        if history.invariant != self.history.invariant:
            return False
        self.scenario, self.history = scenario, history
        return True

    def _shorten(self) -> None:
        """Try to end the scenario earlier: right after the violation, at half of its hours, and at 80 % of them."""
        for hours in (self.history.hours + 0.01, self.scenario.hours / 2, self.scenario.hours * 0.8):
            if hours < self.scenario.hours:
                faults = tuple(fault for fault in self.scenario.faults if fault.at <= hours * HOUR)
                actions = tuple(action for action in self.scenario.actions if action.at <= hours * HOUR)
                self._try_change(hours=hours, faults=faults, actions=actions)

    def _drop(self, field_name: str) -> None:
        """Try to leave out elements of this field, a tuple: first all, then halves, finally single ones."""
        part_size = len(getattr(self.scenario, field_name))
        while part_size >= 1:
            for elements in _without(lambda: getattr(self.scenario, field_name), part_size):
                self._try_change(**{field_name: elements})
            part_size //= 2

    def _simplify(self) -> None:
        """Try fewer servers, runners and slots, and no random behaviours."""
        for field_name in ("servers", "runners", "slots"):
            while (present_count := getattr(self.scenario, field_name)) > 1 and self._try_change(
                **{field_name: present_count - 1}
            ):
                pass
        if any(self.scenario.probabilities.values()) and self._try_change(
            probabilities=dict.fromkeys(self.scenario.probabilities, 0.0)
        ):
            return
        for field_name, probability in list(self.scenario.probabilities.items()):
            if probability:
                self._try_change(probabilities={**self.scenario.probabilities, field_name: 0.0})


def _without(get_elements: Callable[[], tuple[T, ...]], part_size: int) -> Iterator[tuple[T, ...]]:
    """Yield the current tuple without one part of this size, for each part in turn.

    The tuple is read again before each step, because the caller may have replaced it by the shorter one.
    """
    part_start = 0
    while part_start < len(get_elements()):
        elements = get_elements()
        yield elements[:part_start] + elements[part_start + part_size :]
        if get_elements() is elements:
            part_start += part_size


def _size(scenario: Scenario) -> int:
    """Return how many parts of a scenario could still be removed."""
    return (
        len(scenario.faults)
        + len(scenario.actions)
        + scenario.servers
        + scenario.runners
        + sum(map(bool, scenario.probabilities.values()))
    )


def describe(scenario: Scenario, log: Sequence[Event]) -> list[str]:
    """Return lines that list the size, faults, actions and last events of a scenario."""
    description_lines = [
        f"{scenario.servers} servers, {scenario.runners} runners with {scenario.slots} slots, {scenario.hours:.2f} h:"
    ]
    timed_texts = [(fault.at, f"{fault.kind} ({fault.target}, {fault.seconds:.1f} s)") for fault in scenario.faults]
    timed_texts += [(action.at, f"user action: {action.kind} {action.number}") for action in scenario.actions]
    description_lines += [f"  {_format_time(virtual_time)}  {text}" for virtual_time, text in sorted(timed_texts)]
    behaviours_text = ", ".join(f"{behaviour} {rate:.2f}" for behaviour, rate in scenario.probabilities.items() if rate)
    description_lines.append(f"  behaviours: {behaviours_text or 'none'}")
    description_lines.append("the last events:")
    for event in log[-LAST_EVENTS:]:
        state_change = f"{event.from_ or '(created)'} → {event.to}"
        description_lines.append(
            f"  {_format_time(event.at / 1e6 - EPOCH)}  #{event.seq} {event.entity} {event.entity_id}: {state_change} "
            f"({event.trigger} by {event.actor})"
        )
    return description_lines


def _format_time(seconds: float) -> str:
    """Return virtual time as `h:mm:ss.mmm`."""
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02}:{seconds % 60:06.3f}"
