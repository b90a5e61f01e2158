"""Which jobs a change can affect, with the reason for each. Unsure means run.

A job is left out only when the diff is known, no changed file matches its paths, none is in a folder that its
projects depend on, none affects everything, and no kept job takes what it leaves behind. The order of jobs, projects
and changed files never matters; the order of the patterns of one job does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deltaci.core import graph
from deltaci.core.errors import Refused
from deltaci.pipeline.planning.projects import DependencyPath, DependencySearch, Project, Projects, ancestors
from deltaci.protocol.path_patterns import BadPattern, Pattern, parse_all
from deltaci.protocol.pattern_automaton import Automaton

MAX_CHANGED: Final = 100_000  # files; a diff with more is not looked at
MAX_WORK: Final = 100_000_000_000  # characters of paths × places in patterns
MAX_SHOWN: Final = 200  # characters of a path in a sentence
MAX_LINKS: Final = 6  # of a chain in a sentence

# What affects every job unless the pipeline says otherwise: itself, what decides how files are checked out, and the
# lock files of the whole repository.
ALWAYS: Final = (
    ".deltaci/**",
    ".deltaci.yml",
    ".deltaci.yaml",
    ".gitattributes",
    ".gitmodules",
    "*.lock",
    "*.lockb",
    "*.lockfile",
    "*-lock.json",
    "*-lock.yaml",
    "npm-shrinkwrap.json",
    "packages.lock.json",
    "go.sum",
    "go.work.sum",
)

# Every code that a choice may carry, and what it means. Programs depend on these words.
CODES: Final[Mapping[str, str]] = {
    "diff_unknown": "kept: it is not known what changed",
    "affects_all": "kept: a file changed that affects every job; `path` and `pattern` say which",
    "no_paths": "kept: the job names no paths, so every change concerns it",
    "path_matches": "kept: a changed file matches its paths; `path` and `pattern` say which",
    "project_changed": "kept: a file in its project changed",
    "dependency_changed": "kept: a file changed in a folder that its project depends on; `chain` leads there",
    "needed": "kept: a kept job takes what this one leaves behind",
    "no_match": "left out: no changed file concerns it",
}


class SelectableJob(Struct, frozen=True, kw_only=True):
    """What the selection must know of a job. What is not said counts as if it could matter."""

    name: str
    paths: tuple[str, ...] = ()
    projects: tuple[str, ...] | None = None  # names; when nothing is said, those in whose folders its paths begin
    needs: tuple[str, ...] = ()
    consumes: tuple[str, ...] | None = None  # the needs whose outputs or artifacts it uses; nothing said: not known
    has_outputs: bool = True  # whether it leaves outputs or artifacts behind
    downloads_from: tuple[str, ...] = ()  # jobs behind its needs whose artifacts it takes as well


class Choice(Struct, frozen=True, kw_only=True):
    """What becomes of one job, and why."""

    job: str
    is_kept: bool
    code: str
    reason: str
    path: str = ""  # the first changed file, in the order of their names, that decided
    pattern: str = ""
    chain: tuple[str, ...] = ()  # from its project to the folder with the change; or the jobs that need it
    needs: tuple[str, ...] = ()  # what it waits for now: for a need that is left out, what that one would wait for


def select(
    jobs: Iterable[SelectableJob],
    changed: Collection[str] | None,
    *,
    projects: Iterable[Project] = (),
    always: Sequence[str] = ALWAYS,
    unknown_because: str = "",
) -> tuple[Choice, ...]:
    """Choose for every job, sorted by their names; `changed` is None when the diff is not known.

    A renamed file must be given with both of its names. A path that ends with a slash says that everything below it
    may have changed, as with a submodule. Raises Refused when the jobs or projects make no sense.
    """
    plan = _Plan(jobs, Projects(projects), always)
    if changed is None:
        return plan.all_kept("diff_unknown", _unknown(unknown_because))
    if len(changed) > MAX_CHANGED:
        return plan.all_kept("diff_unknown", _unknown(f"more than {MAX_CHANGED:,} files changed"))
    paths = sorted(set(changed))
    for path in paths:
        if not _is_path(path):
            return plan.all_kept("diff_unknown", _unknown(f"{_shown(path)} is no path in a repository"))
    if sum(len(path) + 1 for path in paths) * plan.size > MAX_WORK:
        return plan.all_kept("diff_unknown", _unknown("there is too much to compare"))
    return plan.choose(paths)


class _Plan:
    """The jobs, with everything compiled that changes are compared with."""

    def __init__(self, jobs: Iterable[SelectableJob], projects: Projects, always: Sequence[str]) -> None:
        known = sorted(jobs, key=lambda job: job.name)
        self._jobs = {job.name: job for job in known}
        for one, following in pairwise(known):
            if one.name == following.name:
                raise Refused("bad_spec", f"job {one.name!r} is there twice; give each its own name")
        self._projects = projects
        self._needs = {job.name: job.needs for job in self._jobs.values()}
        graph.dependents(self._needs)
        graph.check_acyclic(self._needs)
        self._starts = {}
        self._numbers: dict[str, int] = {}  # of patterns; the same one in many jobs is compared once
        self._patterns: list[Pattern] = []
        self._owners: list[list[tuple[str | None, int]]] = []  # of each pattern: whose it is, and its place there
        self._lists: dict[str | None, tuple[Pattern, ...]] = {}
        self._add(None, "the paths that affect everything", always)
        for job in self._jobs.values():
            self._check(job)
            self._add(job.name, f"job {job.name!r}", job.paths)
            self._starts[job.name] = self._starts_of(job)
        self._automaton = Automaton([pattern.steps for pattern in self._patterns])
        self.size = self._automaton.size + sum(map(len, self._owners))

    def _check(self, job: SelectableJob) -> None:
        if foreign := sorted(set(job.consumes or ()) - set(job.needs)):
            raise Refused("bad_spec", f"job {job.name!r} takes from {foreign[0]!r}; name that one in its needs as well")
        for name in job.projects or ():
            if name not in self._projects.folders:
                raise Refused("bad_spec", f"job {job.name!r} is of project {name!r}, which is not declared; declare it")

    def _add(self, owner: str | None, whose: str, texts: Sequence[str]) -> None:
        try:
            self._lists[owner] = parse_all(texts)
        except BadPattern as bad:
            raise Refused("bad_spec", f"{whose}: pattern {bad.item}, {bad}") from bad
        for place, pattern in enumerate(self._lists[owner]):
            number = self._numbers.setdefault(pattern.text.removeprefix("!"), len(self._patterns))
            if number == len(self._patterns):
                self._patterns.append(pattern)
                self._owners.append([])
            self._owners[number].append((owner, place))

    def _starts_of(self, job: SelectableJob) -> tuple[str, ...]:
        """The folders of the projects that this job is about."""
        if job.projects is not None:
            return tuple(sorted({self._projects.folders[name] for name in job.projects}))
        folders = {pattern.folder for pattern in self._lists[job.name] if not pattern.is_negative and pattern.folder}
        return tuple(sorted({start for folder in folders for start in self._projects.of_folder(folder)}))

    def all_kept(self, code: str, reason: str, path: str = "", pattern: str = "") -> tuple[Choice, ...]:
        """Everything runs, for one reason."""
        return tuple(
            Choice(
                job=name,
                is_kept=True,
                code=code,
                reason=reason,
                path=path,
                pattern=pattern,
                needs=tuple(sorted(job.needs)),
            )
            for name, job in self._jobs.items()
        )

    def choose(self, paths: Sequence[str]) -> tuple[Choice, ...]:
        """Compare all with these changed paths, which are sorted."""
        decided = self._compare(paths)
        if everything := decided.get(None):
            path, pattern = everything
            reason = f"{_shown(path)} changed, which affects every job ({pattern})"
            return self.all_kept("affects_all", reason, path, pattern)
        first = _first_in(self._projects.watched, paths)
        ways = self._projects.ways(first)
        kept: dict[str, Choice] = {}
        for name, job in self._jobs.items():
            choice = self._own_reason(job, decided.get(name), ways, first)
            if choice is not None:
                kept[name] = choice
        self._keep_needed(kept)
        waits = self._remaining_needs(kept)
        return tuple(self._choice(name, kept, waits, has_changes=bool(paths)) for name in self._jobs)

    def _compare(self, paths: Sequence[str]) -> dict[str | None, tuple[str, str]]:
        """For every job (and for nobody: for all) the first path that matches, and the pattern that decided."""
        decided: dict[str | None, tuple[str, str]] = {}
        seen: set[tuple[int, ...]] = set()  # what matched before: it can only decide the same again
        here, at_folder = "", self._automaton.walk("")
        for path in paths:
            folder = path[: path.rfind("/", 0, -1) + 1]
            if folder != here:
                here, at_folder = folder, self._automaton.walk(folder)
            at_end = self._automaton.walk(path[len(folder) :].rstrip("/"), at_folder)
            if at_end.matches not in seen:
                seen.add(at_end.matches)
                self._decide(at_end.matches, path, decided)
            if path.endswith("/"):
                possible = self._automaton.possible(self._automaton.walk("/", at_end))
                self._decide(possible, path, decided, is_sure=False)
        return decided

    def _decide(
        self, hits: Iterable[int], path: str, decided: dict[str | None, tuple[str, str]], *, is_sure: bool = True
    ) -> None:
        last: dict[str | None, int] = {}
        for number in hits:
            for owner, place in self._owners[number]:
                # What only may match takes nothing away.
                if owner not in decided and (is_sure or not self._lists[owner][place].is_negative):
                    last[owner] = max(place, last.get(owner, -1))
        for owner, place in last.items():
            pattern = self._lists[owner][place]
            if not pattern.is_negative:
                decided[owner] = (path, pattern.text)

    def _own_reason(
        self, job: SelectableJob, match: tuple[str, str] | None, ways: DependencySearch, first: Mapping[str, str]
    ) -> Choice | None:
        """Why this job is kept for its own sake, if it is."""
        if not job.paths and not job.projects:
            return Choice(
                job=job.name, is_kept=True, code="no_paths", reason="it names no paths: every change concerns it"
            )
        if match is not None:
            path, pattern = match
            reason = f"{_shown(path)} changed, which matches {pattern}"
            return Choice(job=job.name, is_kept=True, code="path_matches", reason=reason, path=path, pattern=pattern)
        way = ways.find(self._starts[job.name], is_counted=job.projects is not None)
        if way is None:
            return None
        path = first[way.end]
        return Choice(
            job=job.name,
            is_kept=True,
            code="dependency_changed" if way.links else "project_changed",
            reason=self._told(way, path),
            path=path,
            chain=tuple(self._projects.shown(folder) for folder in (way.start, *(link.folder for link in way.links))),
        )

    def _told(self, way: DependencyPath, path: str) -> str:
        """A way as a sentence: web depends on libs/ui, where libs/ui/button.ts changed."""
        start = self._projects.shown(way.start)
        if not way.links:
            return f"{_shown(path)} changed, in project {start}"
        steps = [f"{link.kind} {self._projects.shown(link.folder)}" for link in way.links]
        if len(steps) > MAX_LINKS:
            between = len(steps) - MAX_LINKS
            steps = [*steps[: MAX_LINKS - 1], f"leads over {between} more to one that {steps[-1]}"]
        return f"{start} {', which '.join(steps)}, where {_shown(path)} changed"

    def _keep_needed(self, kept: dict[str, Choice]) -> None:
        """A kept job that takes what another leaves behind keeps that one, and so on."""
        takers: dict[str, set[str]] = {}
        front = list(kept)
        for name in front:  # grows while it is read
            job = self._jobs[name]
            taken = [
                need
                for need in job.needs
                if (need in job.consumes if job.consumes is not None else self._jobs[need].has_outputs)
            ]
            for need in (*taken, *job.downloads_from):
                if need not in kept and need not in takers:
                    front.append(need)
                takers.setdefault(need, set()).add(name)
        for need, by in takers.items():
            if need not in kept:
                taker = min(by)
                may = "takes" if self._jobs[taker].consumes is not None else "may take"
                reason = f"needed by {taker}, which {may} what it leaves behind"
                kept[need] = Choice(job=need, is_kept=True, code="needed", reason=reason, chain=(taker,))

    def _remaining_needs(self, kept: Collection[str]) -> dict[str, frozenset[str]]:
        """What every job waits for when those that are left out count as done: whatever they would wait for."""
        remaining: dict[str, frozenset[str]] = {}
        waiting = graph.dependents(self._needs)
        counts = {name: len(needs) for name, needs in self._needs.items()}
        ready = [name for name, count in counts.items() if not count]
        for name in ready:  # grows while it is read
            remaining[name] = frozenset().union(
                *({need} if need in kept else remaining[need] for need in self._needs[name])
            )
            for other in waiting[name]:
                counts[other] -= 1
                if not counts[other]:
                    ready.append(other)
        return remaining

    def _choice(
        self, name: str, kept: Mapping[str, Choice], waits: Mapping[str, frozenset[str]], *, has_changes: bool
    ) -> Choice:
        choice = kept.get(name)
        if choice is None:
            return Choice(job=name, is_kept=False, code="no_match", reason=self._left_out(name, has_changes))
        return replace(choice, needs=tuple(sorted(waits[name])))

    def _left_out(self, name: str, has_changes: bool) -> str:
        if not has_changes:
            return "no file changed"
        starts = self._starts[name]
        if not starts:
            return "no changed file matches its paths"
        projects = ", ".join(self._projects.shown(start) for start in starts)
        paths = "matches its paths or " if self._jobs[name].paths else ""
        return f"no changed file {paths}is in what its projects depend on ({projects})"


def _first_in(folders: Iterable[str], paths: Sequence[str]) -> dict[str, str]:
    """For each of these folders in which something changed, the first changed path."""
    wanted = set(folders)
    found: dict[str, str] = {}
    whole = {path[:-1]: path for path in reversed(paths) if path.endswith("/")}
    seen: set[str] = set()
    for path in paths if wanted else ():
        bare = path.rstrip("/")
        if bare in wanted:
            found.setdefault(bare, path)
        for folder in ancestors(bare):
            if folder in seen:
                break
            seen.add(folder)
            if folder in wanted:
                found.setdefault(folder, path)
    for folder in wanted if whole else ():
        for around in ancestors(folder):
            if around in whole and whole[around] < found.get(folder, "\U0010ffff"):
                found[folder] = whole[around]
    return found


def _is_path(path: str) -> bool:
    bare = path[:-1] if path.endswith("/") else path
    return bool(bare) and not any(name in ("", ".", "..") for name in bare.split("/"))


def _unknown(because: str) -> str:
    return f"the diff is not known{f' ({because})' if because else ''}, so everything runs"


def _shown(path: str) -> str:
    """A path in a sentence: on one line, and not longer than people read."""
    short = path if len(path) <= MAX_SHOWN else f"{path[: MAX_SHOWN - 1]}…"
    return short if short.isprintable() and short else repr(short)
