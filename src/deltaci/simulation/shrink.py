"""A shorter history that breaks the same promise: with fewer faults, fewer wishes, fewer machines, in less time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from deltaci.core.events import Event
from deltaci.simulation.history import EPOCH, History, World
from deltaci.simulation.scenario import HOUR, Mix

MOST_TRIES: Final = 400
SHOWN_EVENTS: Final = 20

T = TypeVar("T")


class Shrinker:
    """Leaves things out as long as the same promise is broken."""

    def __init__(self, mix: Mix, history: History, tries: int = MOST_TRIES) -> None:
        self.mix = mix
        self.history = history
        self._left = tries

    def run(self) -> Mix:
        """The smallest mixture that was found."""
        self._shorten()
        size = -1
        while size != _size(self.mix) and self._left > 0:
            size = _size(self.mix)
            self._drop("faults")
            self._drop("wishes")
            self._simplify()
            self._shorten()
        return self.mix

    def _is_broken(self, **fields: Any) -> bool:
        """Whether the promise is still broken with this left out; then it stays left out."""
        if self._left <= 0:
            return False
        self._left -= 1
        mix = msgspec.structs.replace(self.mix, **fields)
        history = World(mix).run()
        if history.invariant != self.history.invariant:
            return False
        self.mix, self.history = mix, history
        return True

    def _shorten(self) -> None:
        """Nothing matters that happens after the promise was broken."""
        for hours in (self.history.hours + 0.01, self.mix.hours / 2, self.mix.hours * 0.8):
            if hours < self.mix.hours:
                faults = tuple(each for each in self.mix.faults if each.at <= hours * HOUR)
                wishes = tuple(each for each in self.mix.wishes if each.at <= hours * HOUR)
                self._is_broken(hours=hours, faults=faults, wishes=wishes)

    def _drop(self, name: str) -> None:
        """Leave out parts of this list: first all, then halves, at last one by one."""
        size = len(getattr(self.mix, name))
        while size >= 1:
            for kept in _without(lambda: getattr(self.mix, name), size):
                self._is_broken(**{name: kept})
            size //= 2

    def _simplify(self) -> None:
        for name in ("servers", "runners", "slots"):
            while (count := getattr(self.mix, name)) > 1 and self._is_broken(**{name: count - 1}):
                pass
        if any(self.mix.habits.values()) and self._is_broken(habits=dict.fromkeys(self.mix.habits, 0.0)):
            return
        for name, rate in list(self.mix.habits.items()):
            if rate:
                self._is_broken(habits={**self.mix.habits, name: 0.0})


def _without(now: Callable[[], tuple[T, ...]], size: int) -> Iterator[tuple[T, ...]]:
    """The list without one part of this size after the other; it may become shorter meanwhile."""
    start = 0
    while start < len(now()):
        before = now()
        yield before[:start] + before[start + size :]
        if now() is before:
            start += size


def _size(mix: Mix) -> int:
    return len(mix.faults) + len(mix.wishes) + mix.servers + mix.runners + sum(map(bool, mix.habits.values()))


def in_words(mix: Mix, log: Sequence[Event]) -> list[str]:
    """What is left of the mixture, and how it ends."""
    lines = [f"{mix.servers} servers, {mix.runners} runners with {mix.slots} places, {mix.hours:.2f} h; then:"]
    happens = [(each.at, f"{each.kind} ({each.which}, {each.seconds:.1f} s)") for each in mix.faults]
    happens += [(each.at, f"somebody wants: {each.kind} {each.number}") for each in mix.wishes]
    lines += [f"  {_clock(at)}  {words}" for at, words in sorted(happens)]
    habits = ", ".join(f"{name} {rate:.2f}" for name, rate in mix.habits.items() if rate)
    lines.append(f"  habits: {habits or 'none'}")
    lines.append("the last events:")
    for event in log[-SHOWN_EVENTS:]:
        step = f"{event.from_ or '(birth)'} → {event.to}"
        lines.append(
            f"  {_clock(event.at / 1e6 - EPOCH)}  #{event.seq} {event.entity} {event.entity_id}: {step} "
            f"({event.trigger} by {event.actor})"
        )
    return lines


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02}:{seconds % 60:06.3f}"
