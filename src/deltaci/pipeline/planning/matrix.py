"""strategy.matrix: one job becomes many, one for each combination of values.

The rules are GitHub's: axes in their order, `exclude` before `include`; an entry of `include` extends every original
combination whose values it does not change, or else is a combination of its own. Values keep their types: the text
`3.10` is never the number 3.1. What GitHub ignores in silence is a problem or a note here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import product
from math import isfinite, prod
from typing import Final, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct

from deltaci.core.errors import InvariantBroken

MAX_COMBINATIONS: Final = 256
MAX_PRODUCT: Final = 1_024  # combinations before `exclude`
MAX_ENTRIES: Final = 256  # of `include`, and of `exclude`
MAX_DEPTH: Final = 8  # of objects and lists in a value
MAX_PARTS: Final = 10_000  # of all values together
MAX_NAME: Final = 100  # characters of a job's name
MAX_EXACT_INTEGER: Final = 2**53  # up to here every whole number is a float too
HASH_DIGITS: Final = 6  # digits that tell names apart, at least

Value: TypeAlias = "str | int | float | bool | Mapping[str, Value] | Sequence[Value] | None"
Entry: TypeAlias = Mapping[str, Value]

_AXIS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_HALF: Final = re.compile("[\ud800-\udfff]")


class MatrixProblem(Struct, frozen=True):
    """What is wrong with a matrix, and where: the keys and positions (from zero on) that lead there."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        """The place as people write it: matrix.include[2].os."""
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"{place.removeprefix('.')}: {self.message}"


class MatrixError(Exception):
    """A matrix that cannot be expanded, with all of its problems."""

    def __init__(self, problems: Sequence[MatrixProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class Combination(Struct, frozen=True):
    """One job of a matrix."""

    name: str  # of the job, distinct from all others of the matrix
    values: dict[str, Value]


class Expansion(Struct, frozen=True, kw_only=True):
    """All jobs of a strategy, in order."""

    combinations: tuple[Combination, ...]
    is_fail_fast: bool = True
    max_parallel: int | None = None
    notes: tuple[MatrixProblem, ...] = ()  # what has no effect, and probably should have


def expand(job: str, strategy: object) -> Expansion:
    """The jobs of a strategy as it stands in a pipeline file, after its expressions; raises BadMatrix.

    Without a matrix it is the one job, with no values.
    """
    problems: list[MatrixProblem] = []
    if strategy is None:
        strategy = {}
    if not _is_mapping(strategy):
        raise MatrixError(
            [MatrixProblem(("strategy",), f"found {_kind(strategy)}; expected matrix, fail-fast, max-parallel")]
        )
    for key in strategy:
        if key not in ("matrix", "fail-fast", "max-parallel"):
            problems.append(MatrixProblem((key,), "is not known; expected matrix, fail-fast or max-parallel"))
    is_fail_fast = strategy.get("fail-fast", True)
    if not isinstance(is_fail_fast, bool):
        problems.append(MatrixProblem(("fail-fast",), f"found {_kind(is_fail_fast)}; expected true or false"))
    parallel = strategy.get("max-parallel")
    if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
        problems.append(
            MatrixProblem(("max-parallel",), f"found {_shown(parallel)}; expected a whole number from 1 on")
        )
    combinations: tuple[Combination, ...] = (Combination(job, {}),)
    notes: tuple[MatrixProblem, ...] = ()
    if "matrix" in strategy:
        matrix = _Matrix(strategy["matrix"], problems)
        if not problems:
            combinations = matrix.combinations(job)
            notes = tuple(matrix.notes)
    if problems:
        raise MatrixError(problems)
    return Expansion(
        combinations=combinations,
        is_fail_fast=bool(is_fail_fast),
        max_parallel=parallel if isinstance(parallel, int) else None,
        notes=notes,
    )


class _Matrix:
    """A matrix that was looked at: every problem that can be seen without expanding it is in `problems`."""

    def __init__(self, raw: object, problems: list[MatrixProblem]) -> None:
        self._problems = problems
        self._parts = 0
        self.notes: list[MatrixProblem] = []
        self._axes: dict[str, tuple[Value, ...]] = {}
        self._include: tuple[Entry, ...] = ()
        self._exclude: tuple[Entry, ...] = ()
        if not _is_mapping(raw):
            self._refuse((), f"found {_kind(raw)}; expected axes, each a list of values")
            return
        for name, values in raw.items():
            if name not in ("include", "exclude"):
                self._read_axis(name, values)
        self._include = self._entries("include", raw.get("include"))
        self._exclude = self._entries("exclude", raw.get("exclude"))
        if not self._axes and not self._include and not problems:
            self._refuse((), "is empty; give it an axis with values, or combinations in include; or take it out")
        for position, entry in enumerate(self._exclude):
            for key in entry:
                if key not in self._axes:
                    self._refuse(("exclude", position, key), f"is no axis; expected {_either(self._axes)}")
        if (size := prod(map(len, self._axes.values()))) > MAX_PRODUCT:
            self._refuse((), f"has {size} combinations before exclude; at most {MAX_PRODUCT}")

    def _refuse(self, where: tuple[str | int, ...], message: str) -> None:
        self._problems.append(MatrixProblem(("matrix", *where), message))

    def _read_axis(self, name: str, values: object) -> None:
        if not _AXIS.fullmatch(name):
            self._refuse((name,), "is no name of an axis; expected letters, digits, '_' and '-', as in matrix.NAME")
        elif not _is_list(values):
            self._refuse((name,), f"found {_kind(values)}; expected a list of values")
        elif not values:
            self._refuse((name,), "has no values, so that there would be no job at all; expected one at least")
        elif len(values) > MAX_PRODUCT:
            self._refuse((name,), f"has {len(values)} values; at most {MAX_COMBINATIONS} combinations")
        elif self._are_values((name,), enumerate(values)):
            first: dict[str, int] = {}
            for position, value in enumerate(values):
                earlier = first.setdefault(_canonical(value), position)
                if earlier != position:
                    self._refuse((name, position), f"is {_shown(value)} again, as in [{earlier}]; name each value once")
            self._axes[name] = tuple(values)

    def _are_values(self, where: tuple[str | int, ...], found: Iterator[tuple[str | int, object]]) -> bool:
        is_fine = True
        for key, value in found:
            parts, problem = _looked_at(value, MAX_PARTS - self._parts)
            self._parts += parts
            if problem:
                self._refuse((*where, key), problem)
                is_fine = False
        return is_fine

    def _entries(self, kind: str, raw: object) -> tuple[Entry, ...]:
        if raw is None:
            return ()
        if not _is_list(raw):
            self._refuse((kind,), f"found {_kind(raw)}; expected a list of combinations")
            return ()
        if len(raw) > MAX_ENTRIES:
            self._refuse((kind,), f"has {len(raw)} entries; at most {MAX_ENTRIES}")
            return ()
        found: list[Entry] = []
        for position, entry in enumerate(raw):
            if not _is_mapping(entry):
                self._refuse((kind, position), f"found {_kind(entry)}; expected names with values")
            elif not entry:
                self._refuse((kind, position), "is empty; expected names with values")
            elif bad := next((key for key in entry if not _AXIS.fullmatch(key)), None):
                self._refuse((kind, position, bad), "is no name; expected letters, digits, '_' and '-'")
            elif self._are_values((kind, position), iter(entry.items())):
                found.append(entry)
        return tuple(found)

    def combinations(self, job: str) -> tuple[Combination, ...]:
        """All combinations, named; what only shows here is a problem too."""
        fitting = _Fitting(self._axes)
        originals = self._originals(fitting)
        extended, added = self._included(fitting, originals)
        labels = [fitting.values(original) for original in originals]
        whole = [{**label, **more} for label, more in zip(labels, extended, strict=True)]
        whole += [dict(entry) for _, entry in added]
        if not whole:
            self._refuse(("exclude",), "leaves out every combination, so that there would be no job at all")
        if len(whole) > MAX_COMBINATIONS:
            self._refuse((), f"has {len(whole)} combinations; at most {MAX_COMBINATIONS}")
        self._find_repeats(added)
        if self._problems:
            return ()
        # As on GitHub, what an entry adds to a combination is no part of the name.
        names = _names(job, [*labels, *(entry for _, entry in added)], whole)
        return tuple(Combination(name, values) for name, values in zip(names, whole, strict=True))

    def _originals(self, fitting: _Fitting) -> list[tuple[int, ...]]:
        """The combinations of the axes that are not excluded, as positions of their values."""
        excluded = []
        for position, entry in enumerate(self._exclude):
            wanted = fitting.positions(entry)
            excluded.append(wanted)
            for key, value in entry.items():
                if not wanted[key]:
                    values = ", ".join(map(_shown, self._axes[key][:5]))
                    said = f"{_shown(value)} is no value of {key} ({values}), so this entry leaves out nothing"
                    self.notes.append(MatrixProblem(("matrix", "exclude", position, key), said))
        return [one for one in fitting.all() if not any(fitting.is_in(one, wanted) for wanted in excluded)]

    def _included(
        self, fitting: _Fitting, originals: Sequence[tuple[int, ...]]
    ) -> tuple[list[dict[str, Value]], list[tuple[int, Entry]]]:
        """What is added to each original combination, and the entries that stand for themselves."""
        extended: list[dict[str, Value]] = [{} for _ in originals]
        added: list[tuple[int, Entry]] = []
        for position, entry in enumerate(self._include):
            wanted = fitting.positions(entry)
            more = {key: value for key, value in entry.items() if key not in self._axes}
            extends = [number for number, original in enumerate(originals) if fitting.is_in(original, wanted)]
            for number in extends:
                extended[number].update(more)
            if not extends:
                added.append((position, entry))
            elif not more:
                said = "is a combination that is there anyway, so this entry adds nothing"
                self.notes.append(MatrixProblem(("matrix", "include", position), said))
        return extended, added

    def _find_repeats(self, added: Sequence[tuple[int, Entry]]) -> None:
        """Entries that stand for themselves differ from all combinations of the axes, but maybe not from each other."""
        first: dict[str, int] = {}
        for position, entry in added:
            earlier = first.setdefault(_canonical(entry), position)
            if earlier != position:
                self._refuse(("include", position), f"is the same as include[{earlier}]; take one of them out")


class _Fitting:
    """Which values of the axes an entry means. Every value is compared once for an entry, whatever the product."""

    def __init__(self, axes: Mapping[str, tuple[Value, ...]]) -> None:
        self._axes = axes
        self._places = {name: place for place, name in enumerate(axes)}

    def all(self) -> Iterator[tuple[int, ...]]:
        """All combinations, as positions of their values; none where there are no axes."""
        return product(*(range(len(values)) for values in self._axes.values())) if self._axes else iter(())

    def values(self, combination: tuple[int, ...]) -> dict[str, Value]:
        """The values at these positions."""
        return {name: values[at] for (name, values), at in zip(self._axes.items(), combination, strict=True)}

    def positions(self, entry: Entry) -> dict[str, set[int]]:
        """For every axis that the entry names, the values that fit."""
        return {
            key: {position for position, value in enumerate(self._axes[key]) if _fits(wanted, value)}
            for key, wanted in entry.items()
            if key in self._axes
        }

    def is_in(self, combination: tuple[int, ...], wanted: Mapping[str, set[int]]) -> bool:
        """Whether a combination has only values that are wanted."""
        return all(combination[self._places[key]] in positions for key, positions in wanted.items())


def _fits(wanted: Value, value: Value) -> bool:
    """Whether a value has all that is wanted: of an object, the keys that are named; of anything else, all."""
    if _is_mapping(wanted):
        return _is_mapping(value) and all(key in value and _fits(each, value[key]) for key, each in wanted.items())
    return _canonical(wanted) == _canonical(value)


def _canonical(value: Value) -> str:
    """The same text for the same value and no other: 1 and 1.0 are one number, the text 1 and true are others."""
    return msgspec.json.encode(_plain(value), order="deterministic").decode()


def _plain(value: Value) -> object:
    if _is_mapping(value):
        return {key: _plain(each) for key, each in value.items()}
    if _is_list(value):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT_INTEGER:
        return int(value)
    return value


def _looked_at(value: object, room: int) -> tuple[int, str]:
    """How many parts a value has, and what keeps it from being one. Walks without recursion: it may be deep."""
    todo, parts = [(value, 0)], 0
    while todo:
        part, depth = todo.pop()
        parts += 1
        if depth > MAX_DEPTH:
            return parts, f"is more than {MAX_DEPTH} levels deep"
        if parts > room:
            return parts, f"is too much: all values of a matrix together have at most {MAX_PARTS} parts"
        if _is_mapping(part):
            todo += [(each, depth + 1) for pair in part.items() for each in pair]
        elif _is_list(part):
            todo += [(each, depth + 1) for each in part]
        elif problem := _problem_of(part):
            return parts, problem
    return parts, ""


def _problem_of(part: object) -> str:
    if isinstance(part, float) and not isfinite(part):
        return f"found {part}; expected a number that is finite"
    if isinstance(part, int) and not -(2**63) <= part < 2**63:
        return "found a number that is too large; write it as text"
    if isinstance(part, str) and _HALF.search(part):
        return "found half of a character; expected text"
    if part is not None and not isinstance(part, str | int | float):
        return f"found {_kind(part)}; expected text, a number, true or false, a list or names with values"
    return ""


# --- Names -----------------------------------------------------------------------------------------


def _names(job: str, labels: Sequence[Entry], whole: Sequence[Entry]) -> list[str]:
    """`job (3.11, linux)`: never too long, and all distinct. A mark follows only from the combination itself."""
    plain = [_named(job, label) for label in labels]
    marks = [sha256(_canonical(values).encode()).hexdigest() for values in whole]
    counts = Counter(plain)
    for digits in range(HASH_DIGITS, 65):
        names = [
            _marked(name, mark[:digits]) if len(name) > MAX_NAME or counts[name] > 1 else name
            for name, mark in zip(plain, marks, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    raise InvariantBroken("two combinations have the same mark, but repeats were refused before")


def _named(job: str, label: Entry) -> str:
    said = [text for value in label.values() for text in _leaves(value) if text]
    return f"{job} ({', '.join(said)})" if said else job


def _marked(name: str, mark: str) -> str:
    tail = f" #{mark}"
    room = MAX_NAME - len(tail)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + tail


def _leaves(value: Value) -> Iterator[str]:
    if _is_mapping(value):
        for each in value.values():
            yield from _leaves(each)
    elif _is_list(value):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, str):
        yield " ".join("".join(sign if sign.isprintable() else " " for sign in value).split())
    elif value is not None:
        yield _canonical(value)


# --- Words -----------------------------------------------------------------------------------------


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Value]]:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_list(value: object) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, list | tuple)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "names with values" if _is_mapping(value) else "names that are no text"
    return "a list" if _is_list(value) else f"the {_sort(value)} {str(value)[:50]}"


def _shown(value: object) -> str:
    """A value with its type, where it could be taken for another: '3.10' (text)."""
    return f"{str(value)[:50]!r} (text)" if isinstance(value, str) else _kind(value)


def _sort(value: object) -> str:
    return "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else type(value).__name__


def _either(names: Mapping[str, object]) -> str:
    return " or ".join(names) or "an axis, and there is none"


def split_message(message: str) -> tuple[str, str]:
    """The message of a problem in two: what was found, and what is expected."""
    found, _, expected = message.partition("; ")
    return found.removeprefix("found ") if found.startswith("found ") else f"something that {found}", expected
