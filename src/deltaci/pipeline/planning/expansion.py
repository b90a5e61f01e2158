"""Evaluate and expand the matrices of jobs, and select the requested combinations."""

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
    """One job of the run: one combination of a matrix, or the only instance of a job without a matrix."""

    name: str
    values: dict[str, Any] = {}
    strategy: dict[str, Any] = {}
    is_fail_fast: bool = False
    max_parallel: int | None = None


class MatrixExpander:
    """Expands the jobs of a file into their matrix combinations.

    If they are not empty, `requested_jobs` (ids and names of jobs) and `requested_values` (values by axis) restrict the
    combinations.
    """

    def __init__(
        self,
        pipeline: model.Pipeline,
        context_values: Mapping[str, Any],
        interpolator: Interpolator,
        requested_jobs: Collection[str] = (),
        requested_values: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._context_values = context_values
        self._interpolator = interpolator
        self._requested_jobs = requested_jobs
        self._requested_values = requested_values or {}
        self._existing_values: dict[str, set[str]] = {}  # requested axis -> the values that occur in a matrix

    def expand(self, job_id: str) -> list[MatrixJob]:
        """Return the requested jobs for the job of the file with this id.

        Report problems of its matrix and return none.
        """
        expansion = self._expand_strategy(job_id)
        if expansion is None:
            return []
        matrix_jobs = []
        combination_count = len(expansion.combinations)
        for index, (job_name, combination) in enumerate(
            zip(unique_names(expansion.combinations), expansion.combinations, strict=True)
        ):
            strategy_values = contexts.strategy_context(
                index, combination_count, is_fail_fast=expansion.is_fail_fast, max_parallel=expansion.max_parallel
            )
            if self._is_requested(job_id, job_name, combination.values):
                matrix_jobs.append(
                    MatrixJob(
                        name=job_name,
                        values=combination.values,
                        strategy=strategy_values,
                        is_fail_fast=expansion.is_fail_fast,
                        max_parallel=expansion.max_parallel,
                    )
                )
        return matrix_jobs

    def check_requested_values(self) -> None:
        """Report each requested axis value that occurs in no matrix. To be called after all jobs are expanded."""
        for axis, requested_values in self._requested_values.items():
            existing_values = self._existing_values.get(axis, set())
            for value_text in sorted(set(requested_values) - existing_values):
                expected = (
                    f"expected one of: {', '.join(sorted(existing_values)[:12])}"
                    if existing_values
                    else "no matrix has this axis"
                )
                suggestion = nearest(value_text, existing_values)
                message = f"there is no combination with {axis}={quote(value_text)[1:-1]}"
                self._interpolator.report(("jobs",), message, "" if suggestion else expected, suggestion)

    def _is_requested(self, job_id: str, job_name: str, values: Mapping[str, Value]) -> bool:
        """Return whether `only` and the requested axis values select the job of one combination.

        Record the values of the requested axes for `check_requested_values`.
        """
        requested_names = {
            requested_name
            for requested_name in self._requested_jobs
            if requested_name.partition(" (")[0] == job_id and requested_name != job_id
        }
        if requested_names and job_id not in self._requested_jobs and job_name not in requested_names:
            return False
        is_requested = True
        for axis, requested_values in self._requested_values.items():
            if axis in values:
                self._existing_values.setdefault(axis, set()).add(to_text(values[axis]))
                is_requested = is_requested and to_text(values[axis]) in requested_values
        return is_requested

    def _expand_strategy(self, job_id: str) -> Expansion | None:
        """Return the expanded strategy of a job. Report problems and return None if it is invalid."""
        strategy = self._pipeline.jobs[job_id].strategy
        path: Path = ("jobs", job_id, "strategy")
        problem_count = len(self._interpolator.problems)
        resolved = self._evaluate_strategy(strategy, path) if strategy is not None else None
        if len(self._interpolator.problems) > problem_count:
            return None
        try:
            expansion = expand(job_id, resolved)
        except MatrixError as error:
            for problem in error.problems:
                self._interpolator.report((*path, *problem.path), *split_message(problem.message))
            return None
        for note in expansion.notes:
            self._interpolator.report((*path, *note.path), *split_message(note.message), is_warning=True)
        return expansion

    def _evaluate_strategy(self, strategy: model.Strategy, path: Path) -> dict[str, Any]:
        """Return a strategy as plain values with all expressions evaluated. Report problems of the expressions."""
        evaluate, context_values = self._interpolator.value, self._context_values
        resolved: dict[str, Any] = {}
        matrix = strategy.matrix
        if isinstance(matrix, str):
            resolved["matrix"] = evaluate((*path, "matrix"), matrix, context_values)
        else:
            matrix_path = (*path, "matrix")
            axes: dict[str, Any] = {
                name: self._evaluate_axis((*matrix_path, name), axis) for name, axis in matrix.axes.items()
            }
            for matrix_key, rows in (("include", matrix.include), ("exclude", matrix.exclude)):
                if rows:
                    axes[matrix_key] = self._evaluate_rows((*matrix_path, matrix_key), rows)
            resolved["matrix"] = axes
        resolved["fail-fast"] = self._interpolator.boolean((*path, "fail-fast"), strategy.fail_fast, context_values)
        if strategy.max_parallel is not None:
            max_parallel = self._interpolator.number(
                (*path, "max-parallel"), strategy.max_parallel, context_values, maximum=model.MAX_JOBS
            )
            resolved["max-parallel"] = int(max_parallel) if max_parallel == int(max_parallel) else max_parallel
        return resolved

    def _evaluate_axis(self, path: Path, axis: tuple[Any, ...] | str) -> Any:
        if isinstance(axis, str):
            return self._interpolator.value(path, axis, self._context_values)
        return [
            self._interpolator.value((*path, index), value, self._context_values) for index, value in enumerate(axis)
        ]

    def _evaluate_rows(self, path: Path, combinations: Any) -> Any:
        if isinstance(combinations, str):
            return self._interpolator.value(path, combinations, self._context_values)
        return [
            {
                key: self._interpolator.value((*path, index, key), value, self._context_values)
                for key, value in combination.items()
            }
            for index, combination in enumerate(combinations)
        ]
