"""Which jobs of a file are part of a run: by their conditions, by what changed, and by what was asked for; and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from deltaci.core import graph
from deltaci.core.errors import Refused
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.expressions import ExpressionError
from deltaci.pipeline.expressions.references import ANY_KEY, ContextReference, context_references
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.validation_rules import evaluated_texts
from deltaci.pipeline.planning import conditions
from deltaci.pipeline.planning.conditions import SKIPPED_NEED, ConditionResult
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.pipeline.planning.plan import ExcludedJob
from deltaci.pipeline.planning.projects import Project
from deltaci.pipeline.planning.select import ALWAYS, Choice, SelectableJob, select

CONDITION: Final = "condition"
NEED_EXCLUDED: Final = "need_left_out"
NOT_REQUESTED: Final = "not_asked_for"
REQUESTED: Final = "asked_for"
# Codes of a plan beside those of the selection, and what they mean. Programs depend on these words.
CODES: Final[Mapping[str, str]] = {
    REQUESTED: "kept: it was named by hand",
    CONDITION: "left out: its `if` is false",
    NEED_EXCLUDED: "left out: a job that it needs is left out by its `if`",
    NOT_REQUESTED: "left out: other jobs were named by hand",
}


class SelectedJob(Struct, frozen=True, kw_only=True):
    """A job of the run."""

    id: str
    choice: Choice
    verdict: ConditionResult
    left_out: frozenset[str] = frozenset()  # its needs, by id, that are no part of the run


class JobFilter:
    """The jobs of one file; what becomes of each is decided once, in an order in which needs come first."""

    def __init__(self, pipeline: model.Pipeline, known: Mapping[str, Any], filling: Interpolator) -> None:
        self._jobs = pipeline.jobs
        self._projects = pipeline.projects
        self._known = known
        self._filling = filling
        self._needs = {name: tuple(need.job for need in job.needs) for name, job in self._jobs.items()}
        self._optional = {name: {need.job for need in job.needs if need.optional} for name, job in self._jobs.items()}
        self.order = topological_order(self._needs)
        self.left_out: dict[str, ExcludedJob] = {}
        self._verdicts: dict[str, ConditionResult] = {}

    def choose(
        self, changed: Collection[str] | None, unknown_because: str, file: str, only: Collection[str]
    ) -> list[SelectedJob]:
        """Every job that is kept, needs first. What is left out is in `left_out`."""
        if only and not self._keep_only(only):
            return []
        for name in self.order:  # First what no diff can change: its takers then keep nothing.
            if name not in self.left_out:
                self._judge(name, is_final=False)
        inside = [name for name in self.order if name not in self.left_out]
        choices = self._asked_for(inside, only) if only else self._select(inside, changed, unknown_because, file)
        for name in inside:
            if name in choices and not choices[name].is_kept:
                self._leave_out(name, choices[name].code, choices[name].reason)
        for name in inside:
            if name not in self.left_out:
                self._judge(name, is_final=True)
        return [
            SelectedJob(
                id=name,
                choice=choices[name],
                verdict=self._verdicts[name],
                left_out=frozenset(need for need in self._needs[name] if need in self.left_out),
            )
            for name in inside
            if name not in self.left_out and name in choices
        ]

    def _leave_out(self, name: str, code: str, reason: str) -> None:
        self.left_out[name] = ExcludedJob(name=name, job=name, code=code, reason=reason)

    # -- conditions

    def _judge(self, name: str, *, is_final: bool) -> None:
        """Leave a job out whose condition is false. Before it is final, what is kept is not known of every need."""
        gone = [need for need in self._needs[name] if need in self.left_out]
        skipped = [need for need in gone if self.left_out[need].code in (CONDITION, NEED_EXCLUDED)]
        skipped = [need for need in skipped if need not in self._optional[name]]
        remaining = [need for need in self._needs[name] if need not in self.left_out]
        known, status = dict(self._known), dict[str, bool]()
        if not remaining:
            known["needs"] = dict.fromkeys(gone, SKIPPED_NEED)
            status = {"success": not skipped, "failure": False, "cancelled": False}
        elif skipped:
            status = {"success": False}
        written = self._jobs[name].if_
        try:
            verdict = conditions.decide_condition(
                self._filling.condition(written), known, skipped=gone, status=status, whole=self._filling.budget
            )
        except ExpressionError as refused:
            self._filling.report_expression(("jobs", name, "if"), written or "", refused.problem)
            verdict = conditions.ALWAYS
        if skipped and not verdict.asks_status:
            need = skipped[0]
            self._leave_out(name, NEED_EXCLUDED, f"it needs {need}, which is left out")
        elif verdict.holds is False:
            self._leave_out(name, CONDITION, verdict.reason)
        elif is_final:
            self._verdicts[name] = verdict

    # -- what changed

    def _select(
        self, inside: list[str], changed: Collection[str] | None, unknown_because: str, file: str
    ) -> dict[str, Choice]:
        projects = [
            Project(name=name, path=each.folder, needs=each.depends_on) for name, each in self._projects.items()
        ]
        try:
            choices = select(
                [self._selectable(name, set(inside)) for name in inside],
                changed,
                projects=projects,
                always=(*ALWAYS, *([_escaped(file)] if "." in file else [])),  # Not what was discovered.
                unknown_because=unknown_because,
            )
        except Refused as refused:
            self._filling.report(("jobs",), str(refused))
            return {}
        return {choice.job: choice for choice in choices}

    def _selectable(self, name: str, inside: set[str]) -> SelectableJob:
        job = self._jobs[name]
        needs = tuple(need for need in self._needs[name] if need in inside)
        takes, reaches = _takes(self._mentions(name, job), needs), set[str]()
        if downloads_artifacts(job):
            behind = transitive_needs(name, self._needs)
            reaches = {each for each in behind & inside if uploads_artifacts(self._jobs[each])} - set(needs)
            takes |= {need for need in needs if uploads_artifacts(self._jobs[need])}
        return SelectableJob(
            name=name,
            paths=job.paths or (),
            projects=job.project or (() if job.paths and not self._projects else None),
            needs=needs,
            consumes=tuple(sorted(takes)),
            has_outputs=bool(job.outputs or job.output_path or uploads_artifacts(job)),
            downloads_from=tuple(sorted(reaches)),
        )

    def _mentions(self, name: str, job: model.Job) -> Iterable[ContextReference]:
        for text in _texts(job):
            yield from self._filling.references(("jobs", name), text)
        for condition in (job.if_, *(step.if_ for step in job.steps or ())):
            try:
                expression = self._filling.condition(condition)
            except ExpressionError:  # It is told where it is decided.
                continue
            if expression is not None:
                yield from context_references(expression)

    # -- what was asked for

    def _keep_only(self, only: Collection[str]) -> bool:
        """Leave out all that was not named and that nothing named needs."""
        wanted = {_id_of(name, self._jobs) for name in only}
        for name in sorted(wanted - set(self._jobs)):
            near = nearest(name, self._jobs)
            known = f"there are: {', '.join([*self._jobs][:12])}"
            self._filling.report(("jobs",), f"there is no job {quote(name)}", "" if near else known, near)
        if not wanted <= set(self._jobs):
            return False
        inside = wanted.union(*(transitive_needs(name, self._needs) for name in wanted))
        for name in self.order:
            if name not in inside:
                self._leave_out(name, NOT_REQUESTED, f"only {', '.join(sorted(wanted))} was asked for")
        return True

    def _asked_for(self, inside: Iterable[str], only: Collection[str]) -> dict[str, Choice]:
        wanted = {_id_of(name, self._jobs) for name in only}
        found = {}
        for name in inside:
            needs = tuple(sorted(need for need in self._needs[name] if need not in self.left_out))
            if name in wanted:
                told: dict[str, Any] = {"code": REQUESTED, "reason": "it was asked for"}
            else:
                taker = min(each for each in wanted if name in transitive_needs(each, self._needs))
                told = {"code": "needed", "reason": f"needed by {taker}, which was asked for", "chain": (taker,)}
            found[name] = Choice(job=name, is_kept=True, needs=needs, **told)
        return found


def topological_order(needs: Mapping[str, Collection[str]]) -> list[str]:
    """All names, needs first; those that could begin at the same time by name, whatever order they are given in."""
    known = {name: tuple(each) for name, each in needs.items()}
    waiting = graph.dependents(known)
    graph.check_acyclic(known)
    open_needs = {name: len(each) for name, each in known.items()}
    levels = {name: 0 for name, count in open_needs.items() if not count}
    free = list(levels)
    for name in free:  # grows while it is read
        for other in waiting[name]:
            levels[other] = max(levels.get(other, 0), levels[name] + 1)
            open_needs[other] -= 1
            if not open_needs[other]:
                free.append(other)
    return sorted(levels, key=lambda name: (levels[name], name))


def transitive_needs(name: str, needs: Mapping[str, Collection[str]]) -> set[str]:
    """Everything that a job needs, and that these need, and so on."""
    found: set[str] = set()
    front = [name]
    while front:
        for need in needs[front.pop()]:
            if need not in found:
                found.add(need)
                front.append(need)
    return found


def uploads_artifacts(job: model.Job) -> bool:
    """Whether it leaves artifacts behind."""
    return bool(job.artifacts) or any(step.uses == "upload-artifact" for step in job.steps or ())


def downloads_artifacts(job: model.Job) -> bool:
    """Whether it takes artifacts of others."""
    return any(step.uses == "download-artifact" for step in job.steps or ())


def _takes(mentioned: Iterable[ContextReference], needs: Collection[str]) -> set[str]:
    """The needs whose outputs are mentioned."""
    taken: set[str] = set()
    folded = {need.lower(): need for need in needs}
    for mention in mentioned:
        if mention.context != "needs":
            continue
        match mention.keys:
            case (_, "result", *_):
                continue
            case (first, *_) if first != ANY_KEY:
                taken |= {folded[first.lower()]} if first.lower() in folded else set()
            case _:
                taken |= set(needs)
    return taken


def _texts(job: model.Job) -> Iterable[str]:
    for step in job.steps or ():
        yield from (step.run or "", step.name, step.shell or "", step.working_directory or "")
        yield from (value for value in (*step.env.values(), *step.with_.values()) if isinstance(value, str))
    yield from job.outputs.values()
    yield from (value for value in job.env.values() if isinstance(value, str))
    for service in job.services.values():
        yield from (value for value in (service.image, *service.env.values()) if isinstance(value, str))
    yield from (artifact.path for artifact in job.artifacts)
    for cache in job.caches:
        yield from (cache.key, *cache.paths)
    for rule in job.validate:
        yield from evaluated_texts(rule)


def _id_of(name: str, jobs: Mapping[str, model.Job]) -> str:
    """The job of a name such as `test (3.12)`."""
    return name if name in jobs else name.partition(" (")[0]


def _escaped(file: str) -> str:
    return "".join(f"\\{char}" if char in "*?+[]{}\\!" else char for char in file)
