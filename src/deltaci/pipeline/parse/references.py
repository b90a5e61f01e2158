"""What the expressions of a file mention: contexts and functions that there are in their places, jobs, steps, axes,
secrets and inputs that the file itself names. All of it is said when the file is read, and not when it runs.

Looks at nodes, like `checks.py`, so that it finds its problems beside all others in one pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.expressions import AVAILABILITY, ExpressionError, check_expression, parse_template
from deltaci.pipeline.expressions import Expression as Tree
from deltaci.pipeline.expressions.references import ANY_KEY, ContextReference, context_references
from deltaci.pipeline.expressions.templates import OPEN, parse_bare_condition
from deltaci.pipeline.model import MAX_ITEMS
from deltaci.pipeline.parse.checks import needs_of
from deltaci.pipeline.parse.nodes import child, items, pairs
from deltaci.pipeline.parse.parse_result import ParseResult, Path, SourceExpression, expression_problem
from deltaci.pipeline.parse.problems import Position, ProblemList, position_within, quote
from deltaci.pipeline.parse.yaml import LIST, OBJECT, TEXT, Node
from deltaci.pipeline.planning.matrix import MatrixError, expand, split_message
from deltaci.pipeline.planning.projects import normalize_folder
from deltaci.protocol.path_patterns import BadPattern, parse_all

MAX_LISTED: Final = 12
JOB_KEYS: Final = frozenset(key.removeprefix("jobs.") for key in AVAILABILITY if key.startswith("jobs."))
ADD_SECRET: Final = "add it to its 'secrets'"
STEP_KEYS: Final = frozenset(key.removeprefix("steps.") for key in AVAILABILITY if key.startswith("steps."))


def availability_key(path: Path) -> str:
    """The name under which `AVAILABILITY` has what may be mentioned at a path of a file; nothing if it is not there."""
    match path:
        case ("jobs", _, "steps", int(), str() as key, *_):
            return f"steps.{key}" if key in STEP_KEYS else ""
        case ("jobs", _, "steps", int()):
            return "steps.run"
        case ("jobs", _, "services", _, "env", *_):
            return "jobs.services.env"
        case ("jobs", _, "allow_failure"):
            return "jobs.continue-on-error"
        case ("jobs", _, str() as key, *_):
            return f"jobs.{key}" if key in JOB_KEYS else ""
        case ("defaults", *_):
            return "jobs.defaults"
        case (str() as key, *_):
            return key if key in AVAILABILITY else ""
        case _:
            return ""


def check_expressions(
    root: Node, expressions: Collection[SourceExpression], source: str, problems: ProblemList
) -> None:
    """Everything that is wrong with the expressions of a file."""
    checker = _Checker(root, source, problems)
    for expression in expressions:
        if problems.is_full:
            return
        checker.check(expression)


class _Names(list[str]):
    """Names of one kind. They are the same in capitals and in small letters."""

    @cached_property
    def _folded(self) -> dict[str, str]:
        return {name.lower(): name for name in self}

    def find(self, name: str) -> str | None:
        """The name as it is written where it is defined."""
        return self._folded.get(name.lower())


NEED_PROPERTIES: Final = _Names(("outputs", "result"))
STEP_PROPERTIES: Final = _Names(("conclusion", "outcome", "outputs"))


class _Scope:
    """What a job of the file names. What is not told by the text alone is None."""

    def __init__(self, job: Node | None) -> None:
        self._job = job

    @cached_property
    def has_steps(self) -> bool:
        """Whether it is for a runner."""
        return child(self._job, "steps") is not None

    @cached_property
    def needs(self) -> _Names:
        """The jobs that it needs."""
        return _Names(need.value for need in needs_of(self._job)) if self._job is not None else _Names()

    @cached_property
    def outputs(self) -> _Names | None:
        """What others can read of it; not known, if it writes a file with whatever it likes."""
        if child(self._job, "output-path") is not None:
            return None
        return _Names(key.raw for key, _ in pairs(child(self._job, "outputs")))

    @cached_property
    def steps(self) -> _Names:
        """The ids of its steps."""
        found = (child(step, "id") for step in items(child(self._job, "steps")))
        return _Names(name.value for name in found if name is not None and name.kind == TEXT)

    @cached_property
    def axes(self) -> _Names | None:
        """The keys of its matrix."""
        matrix = child(child(self._job, "strategy"), "matrix")
        if matrix is None:
            return _Names()
        include = child(matrix, "include")
        if matrix.kind != OBJECT or (include is not None and include.kind != LIST):
            return None
        own = [key.raw for key, _ in pairs(matrix) if key.raw not in ("include", "exclude")]
        more = [key.raw for row in items(include) for key, _ in pairs(row)]
        return _Names(dict.fromkeys([*own, *more]))

    @cached_property
    def secrets(self) -> _Names:
        """The secrets that it gets."""
        return _Names(name.value for name in items(child(self._job, "secrets")) if name.kind == TEXT)


class _Checker:
    def __init__(self, root: Node, source: str, problems: ProblemList) -> None:
        self._problems = problems
        self._source = source
        self._scopes = {key.raw: _Scope(job) for key, job in pairs(child(root, "jobs"))}
        self._names = _Names(self._scopes)
        manual = child(child(root, "on"), "manual")
        self._inputs = _Names(key.raw for key, _ in pairs(child(manual, "inputs")))
        self._lacking: dict[str, str] = {}  # for every secret that all jobs should get, one that does not
        self._read: dict[tuple[str, bool], tuple[Tree, ...]] = {}

    def check(self, expression: SourceExpression) -> None:
        """One text."""
        place = AVAILABILITY.get(availability_key(expression.path))
        if place is None:
            return
        try:
            trees = self._trees(expression)
        except ExpressionError as refused:
            self._problems.add(*expression_problem(self._source, expression.position, expression.text, refused.problem))
            return
        scope = self._scopes.get(str(expression.path[1])) if expression.path[0] == "jobs" else None
        for tree in trees:
            wrong = check_expression(tree, place.contexts, place.functions)
            for problem in wrong:
                self._problems.add(*expression_problem(self._source, expression.position, expression.text, problem))
            for mention in context_references(tree):
                if mention.context in place.contexts:
                    self._look_up(mention, scope, expression)

    def _trees(self, expression: SourceExpression) -> tuple[Tree, ...]:
        key = (expression.text, expression.is_condition)
        if key not in self._read:
            if expression.is_condition:
                found = parse_bare_condition(expression.text)
                self._read[key] = (found,) if found is not None else ()
            else:
                self._read[key] = parse_template(expression.text).expressions
        return self._read[key]

    def _look_up(self, mention: ContextReference, scope: _Scope | None, expression: SourceExpression) -> None:
        if not mention.keys or mention.keys[0] == ANY_KEY:
            return
        for found, expected, near in self._wrong(mention, scope):
            at = position_within(self._source, expression.position, expression.text, mention.column - 1)
            self._problems.add(at, found, expected, near)

    def _wrong(self, mention: ContextReference, scope: _Scope | None) -> Iterator[tuple[str, str, str]]:
        name = mention.keys[0]
        match mention.context:
            case "inputs":
                yield from _unknown("the input", name, self._inputs, "name it under 'on.manual.inputs'")
            case "needs" if scope is not None:
                yield from self._wrong_need(mention, scope)
            case "steps" if scope is not None:
                wrong = list(_unknown("the step", name, scope.steps, "no step of this job has an 'id'"))
                yield from wrong
                if not wrong and len(mention.keys) > 1:
                    yield from _unknown(f"'steps.{name}' with", mention.keys[1], STEP_PROPERTIES, "")
            case "matrix" if scope is not None and scope.axes is not None:
                yield from _unknown("the axis", name, scope.axes, "this job has no matrix")
            case "secrets" if scope is not None:
                if scope.secrets.find(name) is None:
                    near = nearest(name, scope.secrets)
                    yield f"the secret {quote(name)}, which this job does not get", ADD_SECRET, near
            case "secrets":
                if job := self._without(name.lower()):
                    yield f"the secret {quote(name)}, which the job {quote(job)} does not get", ADD_SECRET, ""
            case _:
                return

    def _without(self, secret: str) -> str:
        """A job that does not get a secret, if there is one."""
        if secret not in self._lacking:
            jobs = (name for name, each in self._scopes.items() if each.has_steps and not each.secrets.find(secret))
            self._lacking[secret] = next(jobs, "")
        return self._lacking[secret]

    def _wrong_need(self, mention: ContextReference, scope: _Scope) -> Iterator[tuple[str, str, str]]:
        name, *keys = mention.keys
        found = scope.needs.find(name)
        if found is None:
            near = nearest(name, scope.needs)
            wanted = "add it to its 'needs'" if self._names.find(name) else _one_of(scope.needs, "it needs none")
            yield f"the job {quote(name)}, which this job does not need", "" if near else wanted, near
            return
        outputs = self._scopes[found].outputs if found in self._scopes else None
        match keys:
            case ["outputs", str() as output, *_] if output != ANY_KEY and outputs is not None:
                yield from _unknown("the output", output, outputs, f"{quote(found)} has no 'outputs'")
            case [first, *_] if first != ANY_KEY:
                yield from _unknown(f"'needs.{found}' with", first, NEED_PROPERTIES, "")
            case _:
                return


def _unknown(kind: str, name: str, known: _Names, none: str) -> Iterator[tuple[str, str, str]]:
    if known.find(name) is None:
        near = nearest(name, known)
        yield f"{kind} {quote(name)}, which there is not", "" if near else _one_of(known, none), near


def _one_of(known: Collection[str], none: str) -> str:
    return f"expected one of: {', '.join([*known][:MAX_LISTED])}" if known else none


# -- patterns


def check_patterns(root: Node, source: str, problems: ProblemList) -> None:
    """Patterns of branches, tags and paths that would match nothing that anybody means."""
    on = child(root, "on")
    for event in (child(on, "push"), child(on, "pull_request"), *items(child(on, "schedule"))):
        for name in ("branches", "branches-ignore", "tags", "tags-ignore"):
            check_pattern_list(child(event, name), source, problems, is_branch=True)
        for name in ("paths", "paths-ignore"):
            check_pattern_list(child(event, name), source, problems, is_branch=False)
    for _, job in pairs(child(root, "jobs")):
        check_pattern_list(child(job, "paths"), source, problems, is_branch=False)


def check_pattern_list(node: Node | None, source: str, problems: ProblemList, *, is_branch: bool) -> None:
    """One list of patterns, with the very sign that is wrong."""
    texts = [each for each in items(node) if each.kind == TEXT and each.value]
    if problems.is_full or len(texts) != len(items(node)) or len(texts) > MAX_ITEMS:
        return  # Their number and kinds are the model's.
    try:
        parse_all([each.value for each in texts], is_branch=is_branch)
    except BadPattern as bad:
        wrong = texts[bad.item - 1]
        at = position_within(source, wrong.position, wrong.value, bad.column - 1)
        problems.add(at, f"{bad.found} in the pattern {quote(wrong.value)}", f"expected {bad.expected}")


# -- what the whole shows


def check_pipeline(pipeline: model.Pipeline, places: Mapping[Path, Position], problems: ProblemList) -> bool:
    """What only shows once all of a file is read: whether it is good, after matrices and projects were looked at."""
    found = ParseResult(file=problems.file, pipeline=pipeline, positions=dict(places))
    for name, job in pipeline.jobs.items():
        for where, message, is_warning in _matrix_problems(name, job):
            at = found.position("jobs", name, "strategy", *where)
            problems.add(at, *split_message(message), is_warning=is_warning)
        for position, project in enumerate(job.project):
            if project not in pipeline.projects:
                near = nearest(project, pipeline.projects)
                wanted = "" if near else _one_of(pipeline.projects, "name it under 'projects'")
                problems.add(
                    found.position("jobs", name, "project", position),
                    f"there is no project {quote(project)}",
                    wanted,
                    near,
                )
    for name, each in pipeline.projects.items():
        paths = (("folder", each.folder), *(("depends-on", need) for need in each.depends_on))
        for key, folder in paths:
            try:
                normalize_folder(folder, f"the folder of project {quote(name)}")
            except Refused as refused:
                found_there, _, wanted = str(refused).partition("; ")
                problems.add(found.position("projects", name, key), found_there, wanted)
    return not problems.has_errors


def _matrix_problems(name: str, job: model.Job) -> Iterator[tuple[Path, str, bool]]:
    strategy = job.strategy
    if strategy is None or isinstance(strategy.matrix, str) or OPEN in str(msgspec.to_builtins(strategy)):
        return
    matrix: dict[str, Any] = {key: list(values) for key, values in strategy.matrix.axes.items()}
    for key, rows in (("include", strategy.matrix.include), ("exclude", strategy.matrix.exclude)):
        if rows:
            matrix[key] = list(rows)
    try:
        expansion = expand(name, {"matrix": matrix})
    except MatrixError as bad:
        for problem in bad.problems:
            yield problem.path, problem.message, False
    else:
        for note in expansion.notes:
            yield note.path, note.message, True
