"""Check the expressions of a pipeline file when it is read, before any run.

An expression may use only contexts and functions that are available for its key, and only jobs, steps, axes, secrets
and inputs that the file declares. This module also checks patterns, and the matrices and projects of a pipeline.

Like `checks.py`, this works on nodes, so that its problems are reported together with all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.expressions import AVAILABILITY, Expression, ExpressionError, check_expression, parse_template
from deltaci.pipeline.expressions.references import ANY_KEY, ContextReference, context_references
from deltaci.pipeline.expressions.templates import OPEN, parse_bare_condition
from deltaci.pipeline.model import MAX_ITEMS
from deltaci.pipeline.parse.checks import needs_of
from deltaci.pipeline.parse.parse_result import ParseResult, Path, SourceExpression, expression_problem
from deltaci.pipeline.parse.problems import Position, ProblemList, position_within, quote
from deltaci.pipeline.parse.yaml import LIST, OBJECT, TEXT, Node, child, items, pairs
from deltaci.pipeline.planning.matrix import MatrixError, expand, split_message
from deltaci.pipeline.planning.projects import normalize_folder
from deltaci.protocol.patterns.path_patterns import BadPattern, parse_all

MAX_LISTED: Final = 12
JOB_KEYS: Final = frozenset(key.removeprefix("jobs.") for key in AVAILABILITY if key.startswith("jobs."))
ADD_SECRET: Final = "add it to its 'secrets'"
STEP_KEYS: Final = frozenset(key.removeprefix("steps.") for key in AVAILABILITY if key.startswith("steps."))


def availability_key(path: Path) -> str:
    """Return the key of `AVAILABILITY` for the value at a path of a file, or "" if it may have no expressions."""
    match path:
        case ("jobs", _, "steps", int(), str() as step_key, *_):
            return f"steps.{step_key}" if step_key in STEP_KEYS else ""
        case ("jobs", _, "steps", int()):
            return "steps.run"
        case ("jobs", _, "services", _, "env", *_):
            return "jobs.services.env"
        case ("jobs", _, "allow_failure"):
            return "jobs.continue-on-error"
        case ("jobs", _, str() as step_key, *_):
            return f"jobs.{step_key}" if step_key in JOB_KEYS else ""
        case ("defaults", *_):
            return "jobs.defaults"
        case (str() as step_key, *_):
            return step_key if step_key in AVAILABILITY else ""
        case _:
            return ""


def check_expressions(
    root_node: Node, expressions: Collection[SourceExpression], file_text: str, problems: ProblemList
) -> None:
    """Report invalid expressions of a file, and their references to unknown names."""
    checker = _ExpressionChecker(root_node, file_text, problems)
    for expression in expressions:
        if problems.is_full:
            return
        checker.check(expression)


class _NameList(list[str]):
    """Declared names of one kind, such as the steps of a job, which are found case-insensitively."""

    @cached_property
    def _by_folded_name(self) -> dict[str, str]:
        return {name.lower(): name for name in self}

    def find(self, name: str) -> str | None:
        """Return the declared spelling of a name, or None if it is not declared."""
        return self._by_folded_name.get(name.lower())


NEED_PROPERTIES: Final = _NameList(("outputs", "result"))
STEP_PROPERTIES: Final = _NameList(("conclusion", "outcome", "outputs"))


class _JobScope:
    """The names that the expressions of a job may use. A property is None if the file does not determine its names."""

    def __init__(self, job_node: Node | None) -> None:
        self._job = job_node

    @cached_property
    def has_steps(self) -> bool:
        """Whether the job has steps, so that it runs on a runner."""
        return child(self._job, "steps") is not None

    @cached_property
    def needs(self) -> _NameList:
        """The ids of the jobs that the job needs."""
        return _NameList(need.value for need in needs_of(self._job)) if self._job is not None else _NameList()

    @cached_property
    def outputs(self) -> _NameList | None:
        """The names of the job's outputs; None if it also has an output file, whose keys are unknown."""
        if child(self._job, "output-path") is not None:
            return None
        return _NameList(key_node.raw for key_node, _ in pairs(child(self._job, "outputs")))

    @cached_property
    def steps(self) -> _NameList:
        """The ids of the steps."""
        id_nodes = (child(step_node, "id") for step_node in items(child(self._job, "steps")))
        return _NameList(id_node.value for id_node in id_nodes if id_node is not None and id_node.kind == TEXT)

    @cached_property
    def axes(self) -> _NameList | None:
        """The axes of the matrix and further keys of `include_node`; None if an expression computes them."""
        matrix = child(child(self._job, "strategy"), "matrix")
        if matrix is None:
            return _NameList()
        include_node = child(matrix, "include")
        if matrix.kind != OBJECT or (include_node is not None and include_node.kind != LIST):
            return None
        axes = [key_node.raw for key_node, _ in pairs(matrix) if key_node.raw not in ("include", "exclude")]
        added_keys = [key_node.raw for combination in items(include_node) for key_node, _ in pairs(combination)]
        return _NameList(dict.fromkeys([*axes, *added_keys]))

    @cached_property
    def secrets(self) -> _NameList:
        """The names of the secrets that the job gets."""
        return _NameList(name_node.value for name_node in items(child(self._job, "secrets")) if name_node.kind == TEXT)


class _ExpressionChecker:
    def __init__(self, root_node: Node, file_text: str, problems: ProblemList) -> None:
        self._problems = problems
        self._file_text = file_text
        self._scopes = {key_node.raw: _JobScope(job_node) for key_node, job_node in pairs(child(root_node, "jobs"))}
        self._job_names = _NameList(self._scopes)
        manual = child(child(root_node, "on"), "manual")
        self._inputs = _NameList(key_node.raw for key_node, _ in pairs(child(manual, "inputs")))
        self._jobs_without_secret: dict[str, str] = {}  # secret -> a job that does not get it, or an empty string
        self._parsed: dict[tuple[str, bool], tuple[Expression, ...]] = {}

    def check(self, source_expression: SourceExpression) -> None:
        """Report the problems of one text with expressions."""
        available = AVAILABILITY.get(availability_key(source_expression.path))
        if available is None:
            return
        position, value_text, path = source_expression.position, source_expression.text, source_expression.path
        try:
            expressions = self._parse_expression(source_expression)
        except ExpressionError as error:
            self._problems.add(*expression_problem(self._file_text, position, value_text, error.problem))
            return
        scope = self._scopes.get(str(path[1])) if path[0] == "jobs" else None
        for expression in expressions:
            for problem in check_expression(expression, available.contexts, available.functions):
                self._problems.add(*expression_problem(self._file_text, position, value_text, problem))
            for reference in context_references(expression):
                if reference.context in available.contexts:
                    self._check_reference(reference, scope, source_expression)

    def _parse_expression(self, source_expression: SourceExpression) -> tuple[Expression, ...]:
        cache_key = (source_expression.text, source_expression.is_condition)
        if cache_key not in self._parsed:
            if source_expression.is_condition:
                condition = parse_bare_condition(source_expression.text)
                self._parsed[cache_key] = (condition,) if condition is not None else ()
            else:
                self._parsed[cache_key] = parse_template(source_expression.text).expressions
        return self._parsed[cache_key]

    def _check_reference(
        self, reference: ContextReference, scope: _JobScope | None, source_expression: SourceExpression
    ) -> None:
        if not reference.keys or reference.keys[0] == ANY_KEY:
            return
        for actual, expected, suggestion in self._reference_problems(reference, scope):
            position = position_within(
                self._file_text, source_expression.position, source_expression.text, reference.column - 1
            )
            self._problems.add(position, actual, expected, suggestion)

    def _reference_problems(
        self, reference: ContextReference, scope: _JobScope | None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield `found`, `expected` and `nearest` of a problem for each unknown name in a reference."""
        name = reference.keys[0]
        match reference.context:
            case "inputs":
                yield from _check_name("the input", name, self._inputs, "declare it under 'on.manual.inputs'")
            case "needs" if scope is not None:
                yield from self._need_problems(reference, scope)
            case "steps" if scope is not None:
                step_problems = list(_check_name("the step", name, scope.steps, "no step of this job has an 'id'"))
                yield from step_problems
                if not step_problems and len(reference.keys) > 1:
                    yield from _check_name(f"'steps.{name}' with", reference.keys[1], STEP_PROPERTIES, "")
            case "matrix" if scope is not None and scope.axes is not None:
                yield from _check_name("the axis", name, scope.axes, "this job has no matrix")
            case "secrets" if scope is not None:
                if scope.secrets.find(name) is None:
                    suggestion = nearest(name, scope.secrets)
                    yield f"the secret {quote(name)}, which this job does not get", ADD_SECRET, suggestion
            case "secrets":
                if job_id := self._job_without_secret(name.lower()):
                    yield f"the secret {quote(name)}, which the job {quote(job_id)} does not get", ADD_SECRET, ""
            case _:
                return

    def _job_without_secret(self, secret_name: str) -> str:
        """Return the id of a job with steps that does not get a secret, or an empty string if all get it."""
        if secret_name not in self._jobs_without_secret:
            job_ids = (
                job_id
                for job_id, scope in self._scopes.items()
                if scope.has_steps and not scope.secrets.find(secret_name)
            )
            self._jobs_without_secret[secret_name] = next(job_ids, "")
        return self._jobs_without_secret[secret_name]

    def _need_problems(self, reference: ContextReference, scope: _JobScope) -> Iterator[tuple[str, str, str]]:
        """Like `_reference_problems`, for a reference to the context `needs`."""
        need_name, *property_keys = reference.keys
        need = scope.needs.find(need_name)
        if need is None:
            suggestion = nearest(need_name, scope.needs)
            expected = (
                "add it to its 'needs'" if self._job_names.find(need_name) else _one_of(scope.needs, "it needs none")
            )
            message = f"the job {quote(need_name)}, which this job does not need"
            yield message, "" if suggestion else expected, suggestion
            return
        output_names = self._scopes[need].outputs if need in self._scopes else None
        match property_keys:
            case ["outputs", str() as output_name, *_] if output_name != ANY_KEY and output_names is not None:
                yield from _check_name("the output", output_name, output_names, f"{quote(need)} has no 'outputs'")
            case [property, *_] if property != ANY_KEY:
                yield from _check_name(f"'needs.{need}' with", property, NEED_PROPERTIES, "")
            case _:
                return


def _check_name(kind: str, name: str, declared: _NameList, hint_if_empty: str) -> Iterator[tuple[str, str, str]]:
    """Yield `found`, `expected` and `nearest` of a problem if a name is not declared."""
    if declared.find(name) is None:
        suggestion = nearest(name, declared)
        expected = "" if suggestion else _one_of(declared, hint_if_empty)
        yield f"{kind} {quote(name)}, which does not exist", expected, suggestion


def _one_of(names: Collection[str], hint_if_empty: str) -> str:
    return f"expected one of: {', '.join([*names][:MAX_LISTED])}" if names else hint_if_empty


# -- patterns


def check_patterns(root_node: Node, file_text: str, problems: ProblemList) -> None:
    """Report invalid patterns of branches, tags and paths in the events and jobs of a file."""
    on = child(root_node, "on")
    for event_node in (child(on, "push"), child(on, "pull_request"), *items(child(on, "schedule"))):
        for key_name in ("branches", "branches-ignore", "tags", "tags-ignore"):
            check_pattern_list(child(event_node, key_name), file_text, problems, is_branch=True)
        for key_name in ("paths", "paths-ignore"):
            check_pattern_list(child(event_node, key_name), file_text, problems, is_branch=False)
    for _, job_node in pairs(child(root_node, "jobs")):
        check_pattern_list(child(job_node, "paths"), file_text, problems, is_branch=False)


def check_pattern_list(node: Node | None, file_text: str, problems: ProblemList, *, is_branch: bool) -> None:
    """Report the first invalid pattern of a list, at the position of its invalid character."""
    text_nodes = [item for item in items(node) if item.kind == TEXT and item.value]
    if problems.is_full or len(text_nodes) != len(items(node)) or len(text_nodes) > MAX_ITEMS:
        return  # The reader reports wrong kinds and numbers of items.
    try:
        parse_all([text_node.value for text_node in text_nodes], is_branch=is_branch)
    except BadPattern as error:
        invalid_node = text_nodes[error.item - 1]
        position = position_within(file_text, invalid_node.position, invalid_node.value, error.column - 1)
        problems.add(
            position, f"{error.found} in the pattern {quote(invalid_node.value)}", f"expected {error.expected}"
        )


# -- the whole pipeline


def check_pipeline(pipeline: model.Pipeline, positions: Mapping[Path, Position], problems: ProblemList) -> bool:
    """Report problems of the matrices and projects of a pipeline without other errors. Return whether it has none."""
    parse_result = ParseResult(file=problems.file, pipeline=pipeline, positions=dict(positions))
    for job_id, job in pipeline.jobs.items():
        for path, message, is_warning in _matrix_problems(job_id, job):
            position = parse_result.position("jobs", job_id, "strategy", *path)
            problems.add(position, *split_message(message), is_warning=is_warning)
        for project_index, project_name in enumerate(job.project):
            if project_name not in pipeline.projects:
                suggestion = nearest(project_name, pipeline.projects)
                expected = "" if suggestion else _one_of(pipeline.projects, "declare it under 'projects'")
                problems.add(
                    parse_result.position("jobs", job_id, "project", project_index),
                    f"there is no project {quote(project_name)}",
                    expected,
                    suggestion,
                )
    for job_id, project in pipeline.projects.items():
        folders = (("folder", project.folder), *(("depends-on", dependency) for dependency in project.depends_on))
        for key, folder in folders:
            try:
                normalize_folder(folder, f"the folder of project {quote(job_id)}")
            except Refused as refused:
                message, _, expected = str(refused).partition("; ")
                problems.add(parse_result.position("projects", job_id, key), message, expected)
    return not problems.has_errors


def _matrix_problems(job_id: str, job: model.Job) -> Iterator[tuple[Path, str, bool]]:
    """Yield path, message and whether it is a warning, for each problem of a matrix. Skip one with expressions."""
    strategy = job.strategy
    if strategy is None or isinstance(strategy.matrix, str) or OPEN in str(msgspec.to_builtins(strategy)):
        return
    matrix: dict[str, Any] = {matrix_key: list(values) for matrix_key, values in strategy.matrix.axes.items()}
    for matrix_key, combinations in (("include", strategy.matrix.include), ("exclude", strategy.matrix.exclude)):
        if combinations:
            matrix[matrix_key] = list(combinations)
    try:
        expansion = expand(job_id, {"matrix": matrix})
    except MatrixError as error:
        for problem in error.problems:
            yield problem.path, problem.message, False
    else:
        for note in expansion.notes:
            yield note.path, note.message, True
