"""Many patterns walked at once, one character after the other: never back, whatever the patterns.

All patterns together are one automaton, and each place in them is one bit of a number; a step is a few operations
on numbers. Which places are reached after a text is kept, so that the next text that begins alike goes there by
looking up. What is kept is bounded, and starts anew when it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

# What is kept at most, by what it costs in memory: about 60 MB.
MAX_KEPT_BYTES: Final = 60_000_000
STATE_BYTES: Final = 500  # besides its places
WAY_BYTES: Final = 100
MAX_MASKS: Final = 1_000


class Characters(NamedTuple):
    """A set of characters: these, and those in the ranges; or all others. A range never takes in a slash."""

    signs: str
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def has(self, sign: str) -> bool:
        """Whether this character is in the set."""
        is_listed = sign in self.signs or (sign != "/" and any(low <= sign <= high for low, high in self.ranges))
        return is_listed != self.is_negated


@lru_cache(maxsize=4_096)
def only(sign: str) -> Characters:
    """The set of this one character."""
    return Characters(sign)


class Step(NamedTuple):
    """One place of a pattern: what leads on to the next, what stays here, and how many places may be skipped."""

    moves_on: Characters | None
    stays_on: Characters | None = None
    may_skip: int = 0


@dataclass(slots=True, eq=False)
class State:
    """Where all patterns stand after some text."""

    places: int
    hits: tuple[int, ...]  # the patterns that match the text, by their numbers
    follows: dict[str, State] = field(default_factory=dict)


class Automaton:
    """Patterns, each a sequence of steps."""

    def __init__(self, patterns: Sequence[Sequence[Step]]) -> None:
        self.size = sum(len(pattern) + 1 for pattern in patterns)
        moves: dict[Characters, list[int]] = {}
        stays: dict[Characters, list[int]] = {}
        skips: dict[int, list[int]] = {1: [], 2: []}
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}  # the place behind the last step → the number of its pattern
        place = 0
        for number, pattern in enumerate(patterns):
            self._starts.append(place)
            for step in pattern:
                if step.moves_on is not None:
                    moves.setdefault(step.moves_on, []).append(place)
                if step.stays_on is not None:
                    stays.setdefault(step.stays_on, []).append(place)
                if step.may_skip:
                    skips[step.may_skip].append(place)
                place += 1
            self._ends[place] = number
            place += 1
        self._moves = {characters: self._bits(places) for characters, places in moves.items()}
        self._stays = {characters: self._bits(places) for characters, places in stays.items()}
        self._skip_one, self._skip_two = self._bits(skips[1]), self._bits(skips[2])
        self._end_bits = self._bits(self._ends)
        self._masks: dict[str, tuple[int, int]] = {}
        self._known: dict[int, State] = {}
        self._kept_bytes = 0
        self._first = self._state(self._skipped(self._bits(self._starts)))

    def walk(self, text: str, state: State | None = None) -> State:
        """Where the patterns stand after this text, from the beginning or from a state that was answered before."""
        state = state or self._first
        for sign in text:
            following = state.follows.get(sign)
            if following is None:
                following = self._next(state, sign)
            state = following
        return state

    def possible(self, state: State) -> tuple[int, ...]:
        """The patterns that match this text, or could match it if it went on."""
        return tuple(
            number
            for start, (end, number) in zip(self._starts, self._ends.items(), strict=True)
            if (state.places >> start) & ((1 << (end - start + 1)) - 1)
        )

    def _next(self, state: State, sign: str) -> State:
        masks = self._masks.get(sign)
        if masks is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            masks = self._masks[sign] = (_having(self._moves, sign), _having(self._stays, sign))
        moves, stays = masks
        places = self._skipped(((state.places & moves) << 1) | (state.places & stays))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._forget()
        following = self._known.get(places) or self._state(places)
        state.follows[sign] = following
        self._kept_bytes += WAY_BYTES
        return following

    def _forget(self) -> None:
        """Start anew. The ways go too: a state that somebody still holds must not keep all others alive."""
        for state in self._known.values():
            state.follows.clear()
        self._known = {self._first.places: self._first}
        self._kept_bytes = 0

    def _skipped(self, places: int) -> int:
        """Also the places that are reached without a character."""
        one, two = self._skip_one, self._skip_two
        while True:
            # The carry of an addition runs through all neighbours that may be skipped, however many there are.
            more = places | (((places & one) + one) ^ one)
            more |= (more & two) << 2
            if more == places:
                return places
            places = more

    def _state(self, places: int) -> State:
        ended = places & self._end_bits
        hits = []
        while ended:
            lowest = ended & -ended
            hits.append(self._ends[lowest.bit_length() - 1])
            ended ^= lowest
        state = self._known[places] = State(places, tuple(hits))
        self._kept_bytes += STATE_BYTES + self.size // 8
        return state

    def _bits(self, places: Iterable[int]) -> int:
        bits = bytearray(self.size // 8 + 1)
        for place in places:
            bits[place // 8] |= 1 << (place % 8)
        return int.from_bytes(bits, "little")


def _having(places: dict[Characters, int], sign: str) -> int:
    found = 0
    for characters, bits in places.items():
        if characters.has(sign):
            found |= bits
    return found
