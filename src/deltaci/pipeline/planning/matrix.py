"""Expand `strategy.matrix`: one job becomes one job for each combination of values.

The rules are GitHub's: axes in their order, `exclude` before `include`. An entry of `include` extends each original
combination whose values it does not change; if there is none, the entry is a further combination. Values keep their
types: the text `3.10` is never the number 3.1. Entries that GitHub ignores silently are problems or notes here.
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
MAX_ENTRIES: Final = 256  # of `include` and of `exclude` each
MAX_DEPTH: Final = 8  # of nested objects and lists in a value
MAX_PARTS: Final = 10_000  # scalars, lists, objects and keys of all values together
MAX_NAME: Final = 100  # characters of a job's name
MAX_EXACT_INTEGER: Final = 2**53  # up to this every whole number is exact as a float
HASH_DIGITS: Final = 6  # minimum length of the hash that makes a name unique

Value: TypeAlias = "str | int | float | bool | Mapping[str, Value] | Sequence[Value] | None"
Entry: TypeAlias = Mapping[str, Value]

_AXIS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class MatrixProblem(Struct, frozen=True):
    """A problem of a strategy. `path` leads to the value: keys, and list indices from zero."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        """Return the path in dotted form and the message: `matrix.include[2].os: …`."""
        location = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"{location.removeprefix('.')}: {self.message}"


class MatrixError(Exception):
    """A strategy is invalid. `problems` has all reasons."""

    def __init__(self, problems: Sequence[MatrixProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class Combination(Struct, frozen=True):
    """One combination of a matrix: the name and the matrix values of one job."""

    name: str  # of the job, unique within the matrix
    values: dict[str, Value]


class Expansion(Struct, frozen=True, kw_only=True):
    """The result of expanding a strategy: its combinations in order, `fail-fast` and `max-parallel`."""

    combinations: tuple[Combination, ...]
    is_fail_fast: bool = True
    max_parallel: int | None = None
    notes: tuple[MatrixProblem, ...] = ()  # entries without effect, which is probably not intended


def expand(job_id: str, strategy: object) -> Expansion:
    """Return the combinations, `fail-fast` and `max-parallel` of a strategy of plain values without expressions.

    `job_id` is the id of the job, for the names. Without a matrix, there is one combination without values. Raise
    `MatrixError` if the strategy is invalid.
    """
    problems: list[MatrixProblem] = []
    if strategy is None:
        strategy = {}
    if not _is_mapping(strategy):
        message = f"found {_describe(strategy)}; expected matrix, fail-fast, max-parallel"
        raise MatrixError([MatrixProblem(("strategy",), message)])
    for strategy_key in strategy:
        if strategy_key not in ("matrix", "fail-fast", "max-parallel"):
            problems.append(
                MatrixProblem((strategy_key,), "is an unknown key; expected matrix, fail-fast or max-parallel")
            )
    is_fail_fast = strategy.get("fail-fast", True)
    if not isinstance(is_fail_fast, bool):
        problems.append(MatrixProblem(("fail-fast",), f"found {_describe(is_fail_fast)}; expected true or false"))
    max_parallel = strategy.get("max-parallel")
    if max_parallel is not None and (
        isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1
    ):
        message = f"found {_describe_typed(max_parallel)}; expected a whole number of at least 1"
        problems.append(MatrixProblem(("max-parallel",), message))
    combinations: tuple[Combination, ...] = (Combination(job_id, {}),)
    notes: tuple[MatrixProblem, ...] = ()
    if "matrix" in strategy:
        matrix = _Matrix(strategy["matrix"], problems)
        if not problems:
            combinations = matrix.combinations(job_id)
            notes = tuple(matrix.notes)
    if problems:
        raise MatrixError(problems)
    return Expansion(
        combinations=combinations,
        is_fail_fast=bool(is_fail_fast),
        max_parallel=max_parallel if isinstance(max_parallel, int) else None,
        notes=notes,
    )


class _Matrix:
    """A matrix.

    The constructor checks it, and adds to `problems` all problems that can be detected before expansion.
    """

    def __init__(self, raw: object, problems: list[MatrixProblem]) -> None:
        self._problems = problems
        self._part_count = 0
        self.notes: list[MatrixProblem] = []
        self._axes: dict[str, tuple[Value, ...]] = {}
        self._include: tuple[Entry, ...] = ()
        self._exclude: tuple[Entry, ...] = ()
        if not _is_mapping(raw):
            self._report((), f"found {_describe(raw)}; expected axes, each a list of values")
            return
        for axis_name, values in raw.items():
            if axis_name not in ("include", "exclude"):
                self._read_axis(axis_name, values)
        self._include = self._read_entries("include", raw.get("include"))
        self._exclude = self._read_entries("exclude", raw.get("exclude"))
        if not self._axes and not self._include and not problems:
            self._report((), "is empty; add an axis with values, or combinations in include, or remove it")
        for index, entry in enumerate(self._exclude):
            for key in entry:
                if key not in self._axes:
                    self._report(("exclude", index, key), f"is not an axis; expected {_list_axes(self._axes)}")
        if (combination_count := prod(map(len, self._axes.values()))) > MAX_PRODUCT:
            self._report((), f"has {combination_count} combinations before exclude; at most {MAX_PRODUCT}")

    def _report(self, path: tuple[str | int, ...], message: str) -> None:
        self._problems.append(MatrixProblem(("matrix", *path), message))

    def _read_axis(self, axis: str, values: object) -> None:
        """Check an axis and add it to the axes, or report its problems."""
        if not _AXIS.fullmatch(axis):
            self._report((axis,), "is not a valid axis name; expected letters, digits, '_' and '-', as in matrix.NAME")
        elif not _is_list(values):
            self._report((axis,), f"found {_describe(values)}; expected a list of values")
        elif not values:
            self._report((axis,), "has no values, so there would be no jobs; expected at least one")
        elif len(values) > MAX_PRODUCT:
            self._report((axis,), f"has {len(values)} values; at most {MAX_COMBINATIONS} combinations")
        elif self._check_values((axis,), enumerate(values)):
            first_indices: dict[str, int] = {}
            for index, value in enumerate(values):
                first_index = first_indices.setdefault(_canonical(value), index)
                if first_index != index:
                    message = f"is {_describe_typed(value)} again, as in [{first_index}]; list each value once"
                    self._report((axis, index), message)
            self._axes[axis] = tuple(values)

    def _check_values(self, path: tuple[str | int, ...], values: Iterator[tuple[str | int, object]]) -> bool:
        """Report invalid values, given with their keys below `path`. Return whether all are valid."""
        is_valid = True
        for axis_name, value in values:
            part_count, problem = _check_value(value, MAX_PARTS - self._part_count)
            self._part_count += part_count
            if problem:
                self._report((*path, axis_name), problem)
                is_valid = False
        return is_valid

    def _read_entries(self, list_name: str, raw: object) -> tuple[Entry, ...]:
        """Return the valid entries of `include` or `exclude`. Report the others."""
        if raw is None:
            return ()
        if not _is_list(raw):
            self._report((list_name,), f"found {_describe(raw)}; expected a list of combinations")
            return ()
        if len(raw) > MAX_ENTRIES:
            self._report((list_name,), f"has {len(raw)} entries; at most {MAX_ENTRIES}")
            return ()
        entries: list[Entry] = []
        for index, matrix_entry in enumerate(raw):
            if not _is_mapping(matrix_entry):
                self._report((list_name, index), f"found {_describe(matrix_entry)}; expected names with values")
            elif not matrix_entry:
                self._report((list_name, index), "is empty; expected names with values")
            elif invalid_key := next((key for key in matrix_entry if not _AXIS.fullmatch(key)), None):
                message = "is not a valid name; expected letters, digits, '_' and '-'"
                self._report((list_name, index, invalid_key), message)
            elif self._check_values((list_name, index), iter(matrix_entry.items())):
                entries.append(matrix_entry)
        return tuple(entries)

    def combinations(self, job_id: str) -> tuple[Combination, ...]:
        """Return all combinations. Report problems of the expansion, such as duplicates, and return none."""
        matcher = _AxisMatcher(self._axes)
        originals = self._original_combinations(matcher)
        extensions, added_entries = self._apply_include(matcher, originals)
        original_values = [matcher.values(original) for original in originals]
        all_values = [
            {**axis_values, **extension} for axis_values, extension in zip(original_values, extensions, strict=True)
        ]
        all_values += [dict(entry) for _, entry in added_entries]
        if not all_values:
            self._report(("exclude",), "leaves out every combination, so there would be no jobs")
        if len(all_values) > MAX_COMBINATIONS:
            self._report((), f"has {len(all_values)} combinations; at most {MAX_COMBINATIONS}")
        self._report_duplicates(added_entries)
        if self._problems:
            return ()
        # As on GitHub, a name does not contain what an entry adds to a combination.
        names = _unique_names(job_id, [*original_values, *(entry for _, entry in added_entries)], all_values)
        return tuple(Combination(name, values) for name, values in zip(names, all_values, strict=True))

    def _original_combinations(self, matcher: _AxisMatcher) -> list[tuple[int, ...]]:
        """Return the combinations of the axes that no entry of `exclude` matches, as indices of their values."""
        excluded_indices = []
        for entry_index, entry in enumerate(self._exclude):
            indices = matcher.matching_indices(entry)
            excluded_indices.append(indices)
            for axis_name, value in entry.items():
                if not indices[axis_name]:
                    value_list = ", ".join(map(_describe_typed, self._axes[axis_name][:5]))
                    message = (
                        f"{_describe_typed(value)} is not a value of {axis_name} ({value_list}), so it has no effect"
                    )
                    self.notes.append(MatrixProblem(("matrix", "exclude", entry_index, axis_name), message))
        return [
            combination
            for combination in matcher.all()
            if not any(matcher.matches(combination, indices) for indices in excluded_indices)
        ]

    def _apply_include(
        self, matcher: _AxisMatcher, originals: Sequence[tuple[int, ...]]
    ) -> tuple[list[dict[str, Value]], list[tuple[int, Entry]]]:
        """Return the values that `include` adds to each original combination, and the entries that add combinations."""
        extensions: list[dict[str, Value]] = [{} for _ in originals]
        added_entries: list[tuple[int, Entry]] = []
        for entry_index, entry in enumerate(self._include):
            indices = matcher.matching_indices(entry)
            extension = {axis_name: value for axis_name, value in entry.items() if axis_name not in self._axes}
            matching_indices = [
                original_index
                for original_index, original in enumerate(originals)
                if matcher.matches(original, indices)
            ]
            for original_index in matching_indices:
                extensions[original_index].update(extension)
            if not matching_indices:
                added_entries.append((entry_index, entry))
            elif not extension:
                message = "is a combination that already exists, so this entry has no effect"
                self.notes.append(MatrixProblem(("matrix", "include", entry_index), message))
        return extensions, added_entries

    def _report_duplicates(self, added_entries: Sequence[tuple[int, Entry]]) -> None:
        """Report entries of `include` that add the same combination twice.

        `new_combinations` are the entries that are not in the axes, with their indices in `include`.
        """
        first_indices: dict[str, int] = {}
        for index, entry in added_entries:
            first_index = first_indices.setdefault(_canonical(entry), index)
            if first_index != index:
                self._report(("include", index), f"is the same as include[{first_index}]; remove one of them")


class _AxisMatcher:
    """Matches entries of `include` and `exclude` with combinations.

    A combination is a tuple of value indices. Each value is compared once per entry, however many combinations exist.
    """

    def __init__(self, axes: Mapping[str, tuple[Value, ...]]) -> None:
        self._axes = axes
        self._axis_indices = {name: index for index, name in enumerate(axes)}

    def all(self) -> Iterator[tuple[int, ...]]:
        """Yield all combinations of the axes, as indices of their values; none if there are no axes."""
        return product(*(range(len(values)) for values in self._axes.values())) if self._axes else iter(())

    def values(self, combination: tuple[int, ...]) -> dict[str, Value]:
        """Return the values of a combination, by axis."""
        return {name: values[index] for (name, values), index in zip(self._axes.items(), combination, strict=True)}

    def matching_indices(self, entry: Entry) -> dict[str, set[int]]:
        """Return, for each axis that an entry names, the indices of the values that match the entry."""
        return {
            key: {index for index, value in enumerate(self._axes[key]) if _matches(expected, value)}
            for key, expected in entry.items()
            if key in self._axes
        }

    def matches(self, combination: tuple[int, ...], indices: Mapping[str, set[int]]) -> bool:
        """Return whether the values of a combination are among the given indices, for each axis in `indices`."""
        return all(combination[self._axis_indices[axis]] in allowed for axis, allowed in indices.items())


def _matches(expected: Value, value: Value) -> bool:
    """Return whether a value equals `expected`, or is an object that has at least the keys and values of `expected`."""
    if _is_mapping(expected):
        return _is_mapping(value) and all(
            key in value and _matches(expected_inner, value[key]) for key, expected_inner in expected.items()
        )
    return _canonical(expected) == _canonical(value)


def _canonical(value: Value) -> str:
    """Return a text that is the same for equal values only. 1 and 1.0 are equal, but not the text '1' and true."""
    return msgspec.json.encode(_normalize(value), order="deterministic").decode()


def _normalize(value: Value) -> object:
    """Return a copy of a value with floats that are whole numbers as integers."""
    if _is_mapping(value):
        return {key: _normalize(inner_value) for key, inner_value in value.items()}
    if _is_list(value):
        return [_normalize(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT_INTEGER:
        return int(value)
    return value


def _check_value(value: object, remaining_part_count: int) -> tuple[int, str]:
    """Return the number of parts of a value, and its first problem or "".

    Uses no recursion: it may be nested deeply.
    """
    unvisited, part_count = [(value, 0)], 0
    while unvisited:
        part, depth = unvisited.pop()
        part_count += 1
        if depth > MAX_DEPTH:
            return part_count, f"is more than {MAX_DEPTH} levels deep"
        if part_count > remaining_part_count:
            return part_count, f"is too large: all values of a matrix together have at most {MAX_PARTS} parts"
        if _is_mapping(part):
            unvisited += [(child, depth + 1) for pair in part.items() for child in pair]
        elif _is_list(part):
            unvisited += [(child, depth + 1) for child in part]
        elif problem := _scalar_problem(part):
            return part_count, problem
    return part_count, ""


def _scalar_problem(part: object) -> str:
    if isinstance(part, float) and not isfinite(part):
        return f"found {part}; expected a finite number"
    if isinstance(part, int) and not -(2**63) <= part < 2**63:
        return "found a number that is too large; write it as text"
    if isinstance(part, str) and _SURROGATE.search(part):
        return "found half of a surrogate pair; expected text"
    if part is not None and not isinstance(part, str | int | float):
        return f"found {_describe(part)}; expected text, a number, true or false, a list or names with values"
    return ""


# -- names


def _unique_names(job_id: str, named_values: Sequence[Entry], all_values: Sequence[Entry]) -> list[str]:
    """Return a unique name for each combination, such as `job (3.11, linux)`.

    `named_values` are the values that the names contain. A name that is too long or not unique ends with a hash of all
    values of the combination, so that it does not depend on the others.
    """
    plain_names = [_plain_name(job_id, job_values) for job_values in named_values]
    hashes = [sha256(_canonical(values).encode()).hexdigest() for values in all_values]
    count_by_name = Counter(plain_names)
    for hash_length in range(HASH_DIGITS, 65):
        names = [
            _with_hash(name, hash[:hash_length]) if len(name) > MAX_NAME or count_by_name[name] > 1 else name
            for name, hash in zip(plain_names, hashes, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    raise InvariantBroken("two combinations have the same hash, but duplicates were reported before")


def _plain_name(job_id: str, job_values: Entry) -> str:
    value_texts = [value_text for value in job_values.values() for value_text in _scalar_texts(value) if value_text]
    return f"{job_id} ({', '.join(value_texts)})" if value_texts else job_id


def _with_hash(name: str, hash: str) -> str:
    suffix = f" #{hash}"
    max_length = MAX_NAME - len(suffix)
    return (name if len(name) <= max_length else f"{name[: max_length - 1]}…") + suffix


def _scalar_texts(value: Value) -> Iterator[str]:
    """Yield the scalars within a value, except null, as printable texts on one line."""
    if _is_mapping(value):
        for inner_value in value.values():
            yield from _scalar_texts(inner_value)
    elif _is_list(value):
        for item in value:
            yield from _scalar_texts(item)
    elif isinstance(value, str):
        yield " ".join("".join(char if char.isprintable() else " " for char in value).split())
    elif value is not None:
        yield _canonical(value)


# -- messages


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Value]]:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_list(value: object) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, list | tuple)


def _describe(value: object) -> str:
    """Return a description of a value for a message, such as `a list` or `the number 3`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "names with values" if _is_mapping(value) else "names that are not text"
    return "a list" if _is_list(value) else f"the {_type_name(value)} {str(value)[:50]}"


def _describe_typed(value: object) -> str:
    """Like `_describe`, but return a text in quotes with its type: `'3.10' (text)`."""
    return f"{str(value)[:50]!r} (text)" if isinstance(value, str) else _describe(value)


def _type_name(value: object) -> str:
    return "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else type(value).__name__


def _list_axes(values_by_axis: Mapping[str, object]) -> str:
    return " or ".join(values_by_axis) or "an axis, but there is none"


def split_message(message: str) -> tuple[str, str]:
    """Split the message of a problem at its first `; ` into `found` and `expected` for `ProblemList.add`.

    If it does not start with "found ", "something that " is put before it.
    """
    found, _, expected = message.partition("; ")
    return found.removeprefix("found ") if found.startswith("found ") else f"something that {found}", expected
