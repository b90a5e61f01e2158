"""A whole workflow file: as a pipeline, if all of it stays inside the subset; else every reason, job by job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from deltaci.core.graph import find_cycle
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.github.composite_actions import Actions
from deltaci.pipeline.github.containers import variables
from deltaci.pipeline.github.converter import Desk, made
from deltaci.pipeline.github.events import events
from deltaci.pipeline.github.jobs import Keys, concurrency, job, needs, run_defaults
from deltaci.pipeline.github.keys import keys
from deltaci.pipeline.parse.parse_result import Expression, Found, Path
from deltaci.pipeline.parse.problems import Place, Problem, Problems, shown
from deltaci.pipeline.parse.reader import Part, read_part
from deltaci.pipeline.parse.yaml import LIST, OBJECT, TEXT, Node, NotYaml, decoded, read_yaml

FOLDER: Final = ".github/workflows"
_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
RUN_MINUTES: Final = 35 * 24 * 60  # How long a run may take on GitHub.


class Workflow(Found, frozen=True, kw_only=True):
    """What a workflow says. `pipeline` is there only if all of it is inside.

    `inside` has the jobs that can run here, with all that they need: for whoever asks for one of them by name.
    `outside` says for every other job why not. Notes are the problems that are warnings.
    """

    jobs: tuple[str, ...] = ()
    inside: model.Pipeline | None = None
    outside: dict[str, tuple[Problem, ...]] = msgspec.field(default_factory=dict)

    @property
    def notes(self) -> tuple[Problem, ...]:
        """What has no effect here, or is read as GitHub does though it was probably not meant."""
        return tuple(problem for problem in self.problems if problem.is_warning)


def is_workflow(path: str) -> bool:
    """Whether GitHub would take the file for a workflow."""
    folder, _, name = path.replace("\\", "/").rpartition("/")
    is_there = folder == FOLDER or folder.endswith(f"/{FOLDER}")
    return is_there and name.endswith((".yml", ".yaml"))


def read(content: str | bytes, file: str, files: Mapping[str, str] | None = None) -> Workflow:
    """Read a workflow; `files` are other files of the repository, for actions that it has itself."""
    problems = Problems(file)
    try:
        text = decoded(content, problems) if isinstance(content, bytes) else content
        root = read_yaml(text, problems)
    except NotYaml:
        source = content if isinstance(content, str) else content.decode("utf-8", "replace")
        return Workflow(file=file, pipeline=None, problems=problems.in_order(), source=source)
    return _Reading(file, text, root, problems, {} if files is None else files).result()


class _Reading:
    """One workflow while it is read: the file as a whole, then job by job."""

    def __init__(self, file: str, text: str, root: Node, problems: Problems, files: Mapping[str, str]) -> None:
        self.file, self.text, self.actions = file, text, Actions(files)
        self.desk = Desk(file, text)
        self.desk.problems = problems
        self.places: dict[Path, Place] = {(): root.at}
        self.expressions: list[Expression] = []
        self.jobs: dict[str, model.Job] = {}
        self.outside: dict[str, tuple[Problem, ...]] = {}
        self.desks: dict[str, Desk] = {}
        self.found: Keys = keys(root, "the workflow", self.desk)
        self.defaults: Keys = run_defaults(self.found["defaults"][1], self.desk) if "defaults" in self.found else {}
        if root.kind == OBJECT:
            for name in ("on", "jobs"):
                if name not in self.found:
                    self.desk.outside(root.at, f"a workflow without {shown(name)}", f"expected {shown(name)}")

    def result(self) -> Workflow:
        """Everything at once."""
        whole = self._whole()
        named = self._named_jobs()
        graph = self._graph(named)
        for key, node in named:
            self._job(key, node)
        self._spread(graph)
        inside = None
        if whole is not None and self.jobs and not self.desk.problems.is_bad:
            inside = msgspec.structs.replace(whole, jobs=self.jobs)
        everything = [*self.desk.problems.in_order()]
        everything += [problem for desk in self.desks.values() for problem in desk.problems.in_order()]
        return Workflow(
            file=self.file,
            pipeline=inside if not self.outside else None,
            problems=tuple(sorted(set(everything))),
            expressions=tuple(self.expressions),
            places=self.places,
            source=self.text,
            jobs=tuple(key.written for key, _ in named),
            inside=inside,
            outside=self.outside,
        )

    def _whole(self) -> model.Pipeline | None:
        """All but the jobs."""
        desk, found = self.desk, self.found
        told: dict[str, tuple[Node, Any]] = {}
        if "on" in found:
            told["on"] = (events(*found["on"], desk), model.On)
        if "env" in found and (env := variables(found["env"][1], "env", desk)) is not None:
            told["env"] = (env, model.Env)
        if "concurrency" in found:
            group = concurrency(found["concurrency"][1], "concurrency", desk)
            if group is not None:
                told["concurrency"] = (group, model.Concurrency)
        if "name" in found and (name := desk.line(found["name"][1], "run-name", "name")) is not None:
            told["name"] = (made(name.at, name.value), model.Line)
        values: dict[str, Any] = {}
        for name_, (node, type_) in told.items():
            values[name_] = self._read(node, type_, (name_,), desk)
        if desk.problems.is_bad:
            return None
        placeholder = {"job": model.Job()}
        return model.Pipeline(**values, jobs=placeholder, timeout_minutes=RUN_MINUTES)

    def _read(self, node: Node, type_: Any, path: Path, desk: Desk) -> Any:
        part: Part = read_part(node, type_, path, desk.problems)
        self.places.update(part.places)
        self.expressions += part.expressions
        return part.value

    def _named_jobs(self) -> list[tuple[Node, Node]]:
        if "jobs" not in self.found:
            return []
        key, jobs = self.found["jobs"]
        self.places["jobs",] = jobs.at
        if jobs.kind != OBJECT or not jobs.value:
            self.desk.outside(key.at, f"{jobs.described()} as 'jobs'", "expected at least one job")
            return []
        if len(jobs.value) > model.MAX_JOBS:
            self.desk.outside(key.at, f"{len(jobs.value):,} jobs", f"expected at most {model.MAX_JOBS:,}")
        named = list(jobs.value)[: model.MAX_JOBS]
        for name, _ in named:
            if not _ID.fullmatch(name.written):
                told = "expected letters, digits, '_' and '-', and at the beginning a letter or '_'"
                self.desk.outside(name.at, f"the job {shown(name.written)}", told)
        return named

    def _job(self, key: Node, node: Node) -> None:
        desk = self.desks[key.written] = Desk(self.file, self.text)
        told = job(key, node, self.defaults, desk, self.actions)
        names = [*dict.fromkeys([*self.desk.secrets, *desk.secrets])]
        if names:
            listed = Node(LIST, key.at, [made(key.at, name) for name in names])
            told.value.append((made(key.at, "secrets"), listed))
        read = None
        if not desk.problems.is_bad:
            read = self._read(told, model.Job, ("jobs", key.written), desk)
        if isinstance(read, model.Job):
            self.jobs[key.written] = read
        else:
            self.outside[key.written] = _bad(desk)

    # -- which job needs which

    def _graph(self, named: list[tuple[Node, Node]]) -> dict[str, dict[str, Node]]:
        ids = [key.written for key, _ in named]
        graph: dict[str, dict[str, Node]] = {name: {} for name in ids}
        for key, node in named:
            wanted = next((value for name, value in _pairs(node) if name.written == "needs"), None)
            for need in needs(wanted, Desk(self.file, self.text)).value if wanted is not None else ():
                known = {name.lower(): name for name in ids}.get(need.value.lower())
                if known is None or known == key.written:
                    near = nearest(need.value, ids) if known is None else ""
                    self.desk.outside(need.at, f"there is no other job {shown(need.value)} to need", "", near)
                elif need.kind == TEXT:
                    graph[key.written][known] = need
        if cycle := find_cycle({name: list(wanted) for name, wanted in graph.items()}):
            at = graph[cycle[-2]][cycle[-1]].at
            self.desk.outside(
                at, f"jobs that wait for each other: {' → '.join(cycle[:12])}", "remove one of these needs"
            )
        return graph

    def _spread(self, graph: dict[str, dict[str, Node]]) -> None:
        """Whatever needs a job that is outside cannot run either."""
        is_changed = True
        while is_changed:
            is_changed = False
            for name in [*self.jobs]:
                for need, node in graph[name].items():
                    if need in self.outside:
                        desk = self.desks[name]
                        desk.outside(node.at, f"it needs {shown(need)}, which is outside", "see the reasons there")
                        self.outside[name] = _bad(desk)
                        self.jobs.pop(name, None)
                        is_changed = True


def _pairs(node: Node) -> list[tuple[Node, Node]]:
    return node.value if node.kind == OBJECT else []


def _bad(desk: Desk) -> tuple[Problem, ...]:
    return tuple(problem for problem in desk.problems.in_order() if not problem.is_warning)
