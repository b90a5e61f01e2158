"""Match many patterns at once in time linear in the text, without backtracking.

All patterns form one nondeterministic automaton. Each position in a pattern is one bit of an integer, so that advancing
by a character is a few integer operations. Reached sets of positions are cached as states of a deterministic automaton
with their transitions, so that texts with a common prefix are matched by table look-ups. The cache has a size limit and
is cleared when it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

# Size limit of the cache: about 60 MB.
MAX_CACHED_BYTES: Final = 60_000_000
STATE_BYTES: Final = 500  # Without its positions.
TRANSITION_BYTES: Final = 100
MAX_MASKS: Final = 1_000


class CharacterSet(NamedTuple):
    """A set of characters: the listed ones and the ranges, or all others. A range never contains a slash."""

    characters: str
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def contains(self, character: str) -> bool:
        """Return whether the set contains this character."""
        is_listed = character in self.characters or (
            character != "/" and any(low <= character <= high for low, high in self.ranges)
        )
        return is_listed != self.is_negated


@lru_cache(maxsize=4_096)
def single_character(character: str) -> CharacterSet:
    """Return the set with only this character."""
    return CharacterSet(character)


class Step(NamedTuple):
    """One position of a pattern: which characters advance to the next position, and which ones stay at this one.

    `skip_count` positions, from this one on, can be skipped without a character.
    """

    advances_on: CharacterSet | None
    repeats_on: CharacterSet | None = None
    skip_count: int = 0


@dataclass(slots=True, eq=False)
class State:
    """The positions that all patterns have reached after some text."""

    positions: int
    matches: tuple[int, ...]  # The indices of the patterns that match the text.
    successors: dict[str, State] = field(default_factory=dict)


class Automaton:
    """A finite automaton that matches a list of patterns, each a sequence of steps."""

    def __init__(self, patterns: Sequence[Sequence[Step]]) -> None:
        self.size = sum(len(pattern) + 1 for pattern in patterns)
        advancing_positions: dict[CharacterSet, list[int]] = {}
        repeating_positions: dict[CharacterSet, list[int]] = {}
        positions_by_skip_count: dict[int, list[int]] = {1: [], 2: []}
        self._start_positions: list[int] = []
        self._index_by_end: dict[int, int] = {}  # From the position after the last step to the index of the pattern.
        position = 0
        for index, pattern in enumerate(patterns):
            self._start_positions.append(position)
            for step in pattern:
                if step.advances_on is not None:
                    advancing_positions.setdefault(step.advances_on, []).append(position)
                if step.repeats_on is not None:
                    repeating_positions.setdefault(step.repeats_on, []).append(position)
                if step.skip_count:
                    positions_by_skip_count[step.skip_count].append(position)
                position += 1
            self._index_by_end[position] = index
            position += 1
        self._advancing_bits = {
            characters: self._bits(positions) for characters, positions in advancing_positions.items()
        }
        self._repeating_bits = {
            characters: self._bits(positions) for characters, positions in repeating_positions.items()
        }
        self._skip_one, self._skip_two = self._bits(positions_by_skip_count[1]), self._bits(positions_by_skip_count[2])
        self._end_bits = self._bits(self._index_by_end)
        self._masks: dict[str, tuple[int, int]] = {}
        self._states: dict[int, State] = {}
        self._cached_bytes = 0
        self._initial_state = self._add_state(self._with_skips(self._bits(self._start_positions)))

    def walk(self, text: str, state: State | None = None) -> State:
        """Return the state after this text, starting at the beginning or at a state that `walk` returned."""
        state = state or self._initial_state
        for character in text:
            successor = state.successors.get(character)
            if successor is None:
                successor = self._advance(state, character)
            state = successor
        return state

    def possible(self, state: State) -> tuple[int, ...]:
        """Return the indices of the patterns that match the text of this state, or can match a longer text."""
        return tuple(
            index
            for start_position, (end_position, index) in zip(
                self._start_positions, self._index_by_end.items(), strict=True
            )
            if (state.positions >> start_position) & ((1 << (end_position - start_position + 1)) - 1)
        )

    def _advance(self, state: State, character: str) -> State:
        """Return the state that this character leads to from a state, and cache the transition."""
        masks = self._masks.get(character)
        if masks is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            masks = self._masks[character] = (
                _mask_for(self._advancing_bits, character),
                _mask_for(self._repeating_bits, character),
            )
        advancing_mask, repeating_mask = masks
        positions = self._with_skips(((state.positions & advancing_mask) << 1) | (state.positions & repeating_mask))
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._clear_cache()
        successor = self._states.get(positions) or self._add_state(positions)
        state.successors[character] = successor
        self._cached_bytes += TRANSITION_BYTES
        return successor

    def _clear_cache(self) -> None:
        """Remove all states from the cache, except the initial one, and all transitions between them.

        A state that a caller still has must not keep the others in memory.
        """
        for state in self._states.values():
            state.successors.clear()
        self._states = {self._initial_state.positions: self._initial_state}
        self._cached_bytes = 0

    def _with_skips(self, positions: int) -> int:
        """Return these positions and all that are reached from them without a character."""
        skip_one, skip_two = self._skip_one, self._skip_two
        while True:
            # The carry of an addition passes through any number of adjacent positions that can be skipped.
            reached = positions | (((positions & skip_one) + skip_one) ^ skip_one)
            reached |= (reached & skip_two) << 2
            if reached == positions:
                return positions
            positions = reached

    def _add_state(self, positions: int) -> State:
        """Create the state for these positions, add it to the cache and return it."""
        end_positions = positions & self._end_bits
        matches = []
        while end_positions:
            lowest = end_positions & -end_positions
            matches.append(self._index_by_end[lowest.bit_length() - 1])
            end_positions ^= lowest
        state = self._states[positions] = State(positions, tuple(matches))
        self._cached_bytes += STATE_BYTES + self.size // 8
        return state

    def _bits(self, positions: Iterable[int]) -> int:
        """Return an integer in which the bits of these positions are set."""
        packed_bits = bytearray(self.size // 8 + 1)
        for position in positions:
            packed_bits[position // 8] |= 1 << (position % 8)
        return int.from_bytes(packed_bits, "little")


def _mask_for(positions_by_set: dict[CharacterSet, int], character: str) -> int:
    """Return the positions, as bits, of all character sets that contain this character."""
    mask = 0
    for characters, bits in positions_by_set.items():
        if characters.contains(character):
            mask |= bits
    return mask
