"""The matrix of a job, filled in and expanded, with a name for every job of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.expressions import Value
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.parse.parse_result import Path
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.planning import contexts
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.pipeline.planning.job_names import unique_names
from deltaci.pipeline.planning.matrix import Expansion, MatrixError, expand, split_message


class MatrixJob(Struct, frozen=True, kw_only=True):
    """One job of the run."""

    name: str
    values: dict[str, Any] = {}
    strategy: dict[str, Any] = {}
    is_fail_fast: bool = False
    max_parallel: int | None = None


class MatrixExpander:
    """All matrices of a file, and which of their combinations are wanted."""

    def __init__(
        self,
        pipeline: model.Pipeline,
        known: Mapping[str, Any],
        filling: Interpolator,
        only: Collection[str] = (),
        wanted: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._known = known
        self._filling = filling
        self._only = only
        self._wanted = wanted or {}
        self._values: dict[str, set[str]] = {}  # of every axis that is asked for, what there is

    def grow(self, name: str) -> list[MatrixJob]:
        """The jobs that one becomes; none, if none of them is wanted or something is wrong."""
        expansion = self._expansion(name)
        if expansion is None:
            return []
        found = []
        total = len(expansion.combinations)
        for index, (each, combination) in enumerate(
            zip(unique_names(expansion.combinations), expansion.combinations, strict=True)
        ):
            strategy = contexts.strategy_context(
                index, total, is_fail_fast=expansion.is_fail_fast, max_parallel=expansion.max_parallel
            )
            if self._is_wanted(name, each, combination.values):
                found.append(
                    MatrixJob(
                        name=each,
                        values=combination.values,
                        strategy=strategy,
                        is_fail_fast=expansion.is_fail_fast,
                        max_parallel=expansion.max_parallel,
                    )
                )
        return found

    def finish(self) -> None:
        """Refuse what was asked for and is nowhere."""
        for key, texts in self._wanted.items():
            there = self._values.get(key, set())
            for text in sorted(set(texts) - there):
                known = f"there are: {', '.join(sorted(there)[:12])}" if there else "no matrix has this axis"
                near = nearest(text, there)
                found = f"there is no combination with {key}={quote(text)[1:-1]}"
                self._filling.report(("jobs",), found, "" if near else known, near)

    def _is_wanted(self, id: str, name: str, values: Mapping[str, Value]) -> bool:
        mine = {each for each in self._only if each.partition(" (")[0] == id and each != id}
        if mine and id not in self._only and name not in mine:
            return False
        is_wanted = True
        for key, texts in self._wanted.items():
            if key in values:
                self._values.setdefault(key, set()).add(to_text(values[key]))
                is_wanted = is_wanted and to_text(values[key]) in texts
        return is_wanted

    def _expansion(self, name: str) -> Expansion | None:
        strategy = self._pipeline.jobs[name].strategy
        path: Path = ("jobs", name, "strategy")
        before = len(self._filling.problems)
        raw = self._raw(strategy, path) if strategy is not None else None
        if len(self._filling.problems) > before:
            return None
        try:
            expansion = expand(name, raw)
        except MatrixError as bad:
            for problem in bad.problems:
                self._filling.report((*path, *problem.path), *split_message(problem.message))
            return None
        for note in expansion.notes:
            self._filling.report((*path, *note.path), *split_message(note.message), is_warning=True)
        return expansion

    def _raw(self, strategy: model.Strategy, path: Path) -> dict[str, Any]:
        filled, known = self._filling.value, self._known
        raw: dict[str, Any] = {}
        matrix = strategy.matrix
        if isinstance(matrix, str):
            raw["matrix"] = filled((*path, "matrix"), matrix, known)
        else:
            at = (*path, "matrix")
            axes: dict[str, Any] = {name: self._values_of((*at, name), axis) for name, axis in matrix.axes.items()}
            for key, rows in (("include", matrix.include), ("exclude", matrix.exclude)):
                if rows:
                    axes[key] = self._rows((*at, key), rows)
            raw["matrix"] = axes
        raw["fail-fast"] = self._filling.boolean((*path, "fail-fast"), strategy.fail_fast, known)
        if strategy.max_parallel is not None:
            most = self._filling.number((*path, "max-parallel"), strategy.max_parallel, known, most=model.MAX_JOBS)
            raw["max-parallel"] = int(most) if most == int(most) else most
        return raw

    def _values_of(self, path: Path, axis: tuple[Any, ...] | str) -> Any:
        if isinstance(axis, str):
            return self._filling.value(path, axis, self._known)
        return [self._filling.value((*path, number), value, self._known) for number, value in enumerate(axis)]

    def _rows(self, path: Path, rows: Any) -> Any:
        if isinstance(rows, str):
            return self._filling.value(path, rows, self._known)
        return [
            {key: self._filling.value((*path, number, key), value, self._known) for key, value in row.items()}
            for number, row in enumerate(rows)
        ]
