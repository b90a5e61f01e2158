"""Select the jobs that a change can affect, with a reason for each job. In case of doubt, a job runs.

A job is left out only if the changed paths are known, no changed path matches its paths, is in a folder that its
projects depend on, or affects everything, and no kept job consumes its outputs or artifacts. The order of jobs,
projects and changed files never matters; the order of the patterns of one job does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deltaci.core import graph
from deltaci.core.errors import Refused
from deltaci.pipeline.planning.projects import DependencyPath, DependencySearch, Project, Projects, ancestors
from deltaci.protocol.patterns.path_patterns import BadPattern, Pattern, parse_all
from deltaci.protocol.patterns.pattern_automaton import Automaton

MAX_CHANGED: Final = 100_000  # files; more are treated as an unknown diff
MAX_WORK: Final = 100_000_000_000  # characters of all paths, times the size of the automaton
MAX_PATH_CHARS: Final = 200  # characters of a path in a reason
MAX_LINKS: Final = 6  # of a dependency path in a reason

# Patterns of paths that affect every job unless the caller passes others: the pipeline files, the settings that decide
# how files are checked out, and the lock files of the whole repository.
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

# All codes of a choice, and their meanings. The codes are part of the API.
CODES: Final[Mapping[str, str]] = {
    "diff_unknown": "kept: the changed files are not known",
    "affects_all": "kept: a file changed that affects every job; `path` and `pattern` say which",
    "no_paths": "kept: the job names no paths, so every change affects it",
    "path_matches": "kept: a changed file matches its paths; `path` and `pattern` say which",
    "project_changed": "kept: a file in its project changed",
    "dependency_changed": "kept: a file changed in a folder that its project depends on; `chain` has the dependencies",
    "needed": "kept: a kept job uses its outputs or artifacts",
    "no_match": "left out: no changed file affects it",
}


SUBMODULE_MODE: Final = "160000 "  # the beginning of the content id of a submodule

# What a group of files has in common: the patterns that match them, the patterns that may match below them, and the
# watched folders that contain them.
_FileGroupKey = tuple[tuple[int, ...], tuple[int, ...], frozenset[str]]


class _FileGroup:
    """Files that affect the same jobs, with the hash of their paths and contents."""

    def __init__(self, jobs: tuple[str, ...]) -> None:
        self.jobs = jobs
        self.hash = sha256()


class SelectableJob(Struct, frozen=True, kw_only=True):
    """The properties of a job that the selection depends on. With the defaults, a job is kept in case of doubt."""

    name: str
    paths: tuple[str, ...] = ()
    projects: tuple[str, ...] | None = None  # names; None: those that contain the fixed folders of its paths
    needs: tuple[str, ...] = ()
    consumes: tuple[str, ...] | None = None  # the needs whose outputs or artifacts it uses; None: unknown
    has_outputs: bool = True  # whether it has outputs or artifacts
    downloads_from: tuple[str, ...] = ()  # indirect needs whose artifacts it uses as well


class Choice(Struct, frozen=True, kw_only=True):
    """The decision whether one job is kept or left out, and the reason."""

    job: str
    is_kept: bool
    code: str
    reason: str
    path: str = ""  # the changed file because of which it is kept: the first by name
    pattern: str = ""
    chain: tuple[str, ...] = ()  # labels from its project to the changed folder; or the job that needs it
    needs: tuple[str, ...] = ()  # its needs that are kept; a need that is left out is replaced by its own needs


def select(
    jobs: Iterable[SelectableJob],
    changed: Collection[str] | None,
    *,
    projects: Iterable[Project] = (),
    always: Sequence[str] = ALWAYS,
    unknown_because: str = "",
) -> tuple[Choice, ...]:
    """Return a choice for each job, sorted by name. `changed` is None if the changed paths are unknown.

    `always` are patterns of paths that affect every job. A renamed file must be in `changed` with both names. A path
    that ends with a slash says that everything below it may have changed, as for a submodule. Raise `Refused` if the
    jobs or projects are inconsistent.
    """
    return JobSelection(jobs, projects, always).select(changed, unknown_because)


class JobSelection:
    """The jobs, with their patterns compiled into one automaton. Raise `Refused` if they are inconsistent.

    Each pattern has owners: the names of the jobs that list it, or None for a pattern that affects every job.
    """

    def __init__(
        self, jobs: Iterable[SelectableJob], projects: Iterable[Project] = (), always: Sequence[str] = ALWAYS
    ) -> None:
        sorted_jobs = sorted(jobs, key=lambda job: job.name)
        self._jobs = {job.name: job for job in sorted_jobs}
        for job, other_job in pairwise(sorted_jobs):
            if job.name == other_job.name:
                raise Refused("bad_spec", f"job {job.name!r} is declared twice; give each its own name")
        self._projects = Projects(projects)
        self._needs_by_job = {job.name: job.needs for job in self._jobs.values()}
        graph.dependents(self._needs_by_job)
        graph.check_acyclic(self._needs_by_job)
        self._start_folders = {}
        self._pattern_numbers: dict[str, int] = {}  # pattern text -> number; a pattern of many jobs is compiled once
        self._patterns: list[Pattern] = []
        self._owners: list[list[tuple[str | None, int]]] = []  # pattern number -> owners, with its index in their lists
        self._patterns_by_owner: dict[str | None, tuple[Pattern, ...]] = {}
        self._add_patterns(None, "the paths that affect everything", always)
        for job in self._jobs.values():
            self._check_job(job)
            self._add_patterns(job.name, f"job {job.name!r}", job.paths)
            self._start_folders[job.name] = self._start_folders_of(job)
        self._automaton = Automaton([pattern.steps for pattern in self._patterns])
        self._size = self._automaton.size + sum(map(len, self._owners))

    def select(self, changed: Collection[str] | None, unknown_because: str = "") -> tuple[Choice, ...]:
        """Return a choice for each job, as the function `select` does."""
        if changed is None:
            return self._keep_all("diff_unknown", _unknown_diff(unknown_because))
        if len(changed) > MAX_CHANGED:
            return self._keep_all("diff_unknown", _unknown_diff(f"more than {MAX_CHANGED:,} files changed"))
        sorted_paths = sorted(set(changed))
        for path in sorted_paths:
            if not _is_path(path):
                return self._keep_all("diff_unknown", _unknown_diff(f"{_display(path)} is not a path in a repository"))
        if self._is_too_much(sorted_paths):
            return self._keep_all("diff_unknown", _unknown_diff("there is too much to compare"))
        return self._choose(sorted_paths)

    def _is_too_much(self, paths: Iterable[str]) -> bool:
        return sum(len(path) + 1 for path in paths) * self._size > MAX_WORK

    def digest_files(self, contents: Mapping[str, str]) -> dict[str, str]:
        """Return for each job a hash of the paths and contents of all files of which a change affects the job.

        `contents` has the content id of each file of a commit, such as `100644 blob 3b18e5…`. Jobs that name neither
        paths nor projects are affected by every file. Return no hashes if there is too much to compare.
        """
        if self._is_too_much(contents):
            return {}
        groups: dict[_FileGroupKey, _FileGroup] = {}
        watched = frozenset(self._projects.watched)
        reachable_folders = self._reachable_folders()
        current_folder, folder_state = "", self._automaton.walk("")
        watched_folders = watched & {""}
        for path in sorted(contents):
            folder = path[: path.rfind("/") + 1]
            if folder != current_folder:
                current_folder, folder_state = folder, self._automaton.walk(folder)
                watched_folders = watched.intersection(ancestors(path))
            path_state = self._automaton.walk(path[len(folder) :], folder_state)
            folders, possible_matches = watched_folders, tuple[int, ...]()
            if path in watched:
                folders |= {path}
            if contents[path].startswith(SUBMODULE_MODE):
                folders |= {inner for inner in watched if inner.startswith(f"{path}/")}
                possible_matches = self._automaton.possible(self._automaton.walk("/", path_state))
            key = (path_state.matches, possible_matches, folders)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _FileGroup(self._affected_jobs(key, reachable_folders))
            if group.jobs:
                group.hash.update(f"{path}\0{contents[path]}\0".encode(errors="surrogateescape"))
        digests_by_job: dict[str, list[bytes]] = {job_name: [] for job_name in self._jobs}
        for group in groups.values():
            for job_name in group.jobs:
                digests_by_job[job_name].append(group.hash.digest())
        return {name: sha256(b"".join(sorted(digests))).hexdigest() for name, digests in digests_by_job.items()}

    def _reachable_folders(self) -> dict[str, frozenset[str]]:
        """Return for each job the folders of projects in which a change affects the job."""
        return {
            job_name: self._projects.reachable(self._start_folders[job_name], includes_start=job.projects is not None)
            for job_name, job in self._jobs.items()
        }

    def _affected_jobs(self, key: _FileGroupKey, reachable_folders: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
        """Return the names of the jobs that a change of a file of this group affects."""
        matches, possible_matches, folders = key
        match_by_owner: dict[str | None, tuple[str, str]] = {}
        self._record_matches(matches, "", match_by_owner)
        self._record_matches(possible_matches, "", match_by_owner, is_certain=False)
        return tuple(
            job_name
            for job_name, job in self._jobs.items()
            if None in match_by_owner
            or job_name in match_by_owner
            or not (job.paths or job.projects)
            or not folders.isdisjoint(reachable_folders[job_name])
        )

    def _check_job(self, job: SelectableJob) -> None:
        """Raise `Refused` if a job consumes outputs of a job that it does not need, or names an undeclared project."""
        if missing := sorted(set(job.consumes or ()) - set(job.needs)):
            raise Refused("bad_spec", f"job {job.name!r} uses outputs of {missing[0]!r}; add it to its needs as well")
        for name in job.projects or ():
            if name not in self._projects.folders:
                raise Refused(
                    "bad_spec", f"job {job.name!r} belongs to project {name!r}, which is not declared; declare it"
                )

    def _add_patterns(self, owner: str | None, label: str, pattern_texts: Sequence[str]) -> None:
        """Parse the patterns of an owner and register them. `label` names the owner in errors."""
        try:
            self._patterns_by_owner[owner] = parse_all(pattern_texts)
        except BadPattern as error:
            raise Refused("bad_spec", f"{label}: pattern {error.item}, {error}") from error
        for index, pattern in enumerate(self._patterns_by_owner[owner]):
            pattern_number = self._pattern_numbers.setdefault(pattern.text.removeprefix("!"), len(self._patterns))
            if pattern_number == len(self._patterns):
                self._patterns.append(pattern)
                self._owners.append([])
            self._owners[pattern_number].append((owner, index))

    def _start_folders_of(self, job: SelectableJob) -> tuple[str, ...]:
        """Return the folders of a job's projects.

        A job that names no projects belongs to those that contain, or are inside, the fixed folders of its patterns.
        """
        if job.projects is not None:
            return tuple(sorted({self._projects.folders[name] for name in job.projects}))
        folders = {
            pattern.folder
            for pattern in self._patterns_by_owner[job.name]
            if not pattern.is_negative and pattern.folder
        }
        return tuple(
            sorted({project_folder for folder in folders for project_folder in self._projects.projects_of(folder)})
        )

    def _keep_all(self, code: str, reason: str, path: str = "", pattern: str = "") -> tuple[Choice, ...]:
        """Return choices that keep every job, all with the same code and reason."""
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

    def _choose(self, paths: Sequence[str]) -> tuple[Choice, ...]:
        """Return a choice for each job. `paths` are the changed paths, sorted."""
        match_by_owner = self._match(paths)
        if match_of_all := match_by_owner.get(None):
            path, pattern = match_of_all
            reason = f"{_display(path)} changed, which affects every job ({pattern})"
            return self._keep_all("affects_all", reason, path, pattern)
        first_changes = _first_changes(self._projects.watched, paths)
        search = self._projects.search(first_changes)
        kept_choices: dict[str, Choice] = {}
        for job_name, job in self._jobs.items():
            choice = self._choose_by_paths(job, match_by_owner.get(job_name), search, first_changes)
            if choice is not None:
                kept_choices[job_name] = choice
        self._keep_needed(kept_choices)
        remaining_needs = self._remaining_needs(kept_choices)
        return tuple(
            self._choose_job(job_name, kept_choices, remaining_needs, has_changes=bool(paths))
            for job_name in self._jobs
        )

    def _match(self, paths: Sequence[str]) -> dict[str | None, tuple[str, str]]:
        """Return for each owner the first path that its patterns match, and the last pattern that matches this path."""
        match_by_owner: dict[str | None, tuple[str, str]] = {}
        decided_matches: set[tuple[int, ...]] = set()  # matches of earlier paths, which decide nothing new
        current_folder, folder_state = "", self._automaton.walk("")
        for path in paths:
            folder = path[: path.rfind("/", 0, -1) + 1]
            if folder != current_folder:
                current_folder, folder_state = folder, self._automaton.walk(folder)
            path_state = self._automaton.walk(path[len(folder) :].rstrip("/"), folder_state)
            if path_state.matches not in decided_matches:
                decided_matches.add(path_state.matches)
                self._record_matches(path_state.matches, path, match_by_owner)
            if path.endswith("/"):
                possible_matches = self._automaton.possible(self._automaton.walk("/", path_state))
                self._record_matches(possible_matches, path, match_by_owner, is_certain=False)
        return match_by_owner

    def _record_matches(
        self,
        pattern_numbers: Iterable[int],
        path: str,
        match_by_owner: dict[str | None, tuple[str, str]],
        *,
        is_certain: bool = True,
    ) -> None:
        """Record the path for each undecided owner whose last matching pattern is not negative.

        With `is_certain` False, the patterns may match a path below `path`.
        """
        last_indices: dict[str | None, int] = {}
        for pattern_number in pattern_numbers:
            for owner, index in self._owners[pattern_number]:
                # A negative pattern that only may match excludes nothing.
                if owner not in match_by_owner and (
                    is_certain or not self._patterns_by_owner[owner][index].is_negative
                ):
                    last_indices[owner] = max(index, last_indices.get(owner, -1))
        for owner, index in last_indices.items():
            pattern = self._patterns_by_owner[owner][index]
            if not pattern.is_negative:
                match_by_owner[owner] = (path, pattern.text)

    def _choose_by_paths(
        self,
        job: SelectableJob,
        match: tuple[str, str] | None,
        search: DependencySearch,
        first_changes: Mapping[str, str],
    ) -> Choice | None:
        """Return a choice to keep a job that the changed paths affect, or None if only other jobs may need it."""
        if not job.paths and not job.projects:
            return Choice(
                job=job.name, is_kept=True, code="no_paths", reason="it names no paths: every change affects it"
            )
        if match is not None:
            path, pattern = match
            reason = f"{_display(path)} changed, which matches {pattern}"
            return Choice(job=job.name, is_kept=True, code="path_matches", reason=reason, path=path, pattern=pattern)
        dependency_path = search.find(self._start_folders[job.name], includes_own_files=job.projects is not None)
        if dependency_path is None:
            return None
        path = first_changes[dependency_path.end]
        return Choice(
            job=job.name,
            is_kept=True,
            code="dependency_changed" if dependency_path.links else "project_changed",
            reason=self._dependency_reason(dependency_path, path),
            path=path,
            chain=tuple(
                self._projects.label(folder)
                for folder in (dependency_path.start, *(link.folder for link in dependency_path.links))
            ),
        )

    def _dependency_reason(self, dependency_path: DependencyPath, path: str) -> str:
        """Return a reason such as: web depends on libs/ui, where libs/ui/button.ts changed."""
        start_label = self._projects.label(dependency_path.start)
        if not dependency_path.links:
            return f"{_display(path)} changed, in project {start_label}"
        link_texts = [f"{link.kind} {self._projects.label(link.folder)}" for link in dependency_path.links]
        if len(link_texts) > MAX_LINKS:
            omitted_count = len(link_texts) - MAX_LINKS
            link_texts = [*link_texts[: MAX_LINKS - 1], f"over {omitted_count} further links {link_texts[-1]}"]
        return f"{start_label} {', which '.join(link_texts)}, where {_display(path)} changed"

    def _keep_needed(self, kept_choices: dict[str, Choice]) -> None:
        """Add to `kept_choices` the jobs whose outputs or artifacts a kept job uses, recursively."""
        dependents_by_job: dict[str, set[str]] = {}
        unvisited_names = list(kept_choices)
        for job_name in unvisited_names:  # grows during the loop
            job = self._jobs[job_name]
            consumed_needs = [
                input_job
                for input_job in job.needs
                if (input_job in job.consumes if job.consumes is not None else self._jobs[input_job].has_outputs)
            ]
            for input_job in (*consumed_needs, *job.downloads_from):
                if input_job not in kept_choices and input_job not in dependents_by_job:
                    unvisited_names.append(input_job)
                dependents_by_job.setdefault(input_job, set()).add(job_name)
        for input_job, dependent_names in dependents_by_job.items():
            if input_job not in kept_choices:
                dependent = min(dependent_names)
                verb = "uses" if self._jobs[dependent].consumes is not None else "may use"
                reason = f"needed by {dependent}, which {verb} its outputs or artifacts"
                kept_choices[input_job] = Choice(
                    job=input_job, is_kept=True, code="needed", reason=reason, chain=(dependent,)
                )

    def _remaining_needs(self, selected_jobs: Collection[str]) -> dict[str, frozenset[str]]:
        """Return for each job the kept jobs that it waits for. A need that is left out is replaced by its own needs."""
        remaining_needs: dict[str, frozenset[str]] = {}
        dependents = graph.dependents(self._needs_by_job)
        open_need_counts = {job_name: len(needs) for job_name, needs in self._needs_by_job.items()}
        ready_names = [job_name for job_name, count in open_need_counts.items() if not count]
        for job_name in ready_names:  # grows during the loop
            remaining_needs[job_name] = frozenset().union(
                *({need} if need in selected_jobs else remaining_needs[need] for need in self._needs_by_job[job_name])
            )
            for dependent in dependents[job_name]:
                open_need_counts[dependent] -= 1
                if not open_need_counts[dependent]:
                    ready_names.append(dependent)
        return remaining_needs

    def _choose_job(
        self,
        name: str,
        kept_choices: Mapping[str, Choice],
        remaining_needs: Mapping[str, frozenset[str]],
        *,
        has_changes: bool,
    ) -> Choice:
        choice = kept_choices.get(name)
        if choice is None:
            return Choice(job=name, is_kept=False, code="no_match", reason=self._no_match_reason(name, has_changes))
        return replace(choice, needs=tuple(sorted(remaining_needs[name])))

    def _no_match_reason(self, name: str, has_changes: bool) -> str:
        """Return the reason why a job is left out."""
        if not has_changes:
            return "no file changed"
        start_folders = self._start_folders[name]
        if not start_folders:
            return "no changed file matches its paths"
        listed_projects = ", ".join(self._projects.label(folder) for folder in start_folders)
        paths_text = "matches its paths or " if self._jobs[name].paths else ""
        return f"no changed file {paths_text}is in a folder that its projects depend on ({listed_projects})"


def _first_changes(folders: Iterable[str], paths: Sequence[str]) -> dict[str, str]:
    """Return, by folder, the first changed path in each folder that has one. `paths` are sorted.

    A path that ends with a slash counts as a change in all folders below it, too.
    """
    watched = set(folders)
    first_changes: dict[str, str] = {}
    path_by_whole_folder = {path[:-1]: path for path in reversed(paths) if path.endswith("/")}
    visited: set[str] = set()
    for path in paths if watched else ():
        bare_path = path.rstrip("/")
        if bare_path in watched:
            first_changes.setdefault(bare_path, path)
        for folder in ancestors(bare_path):
            if folder in visited:
                break
            visited.add(folder)
            if folder in watched:
                first_changes.setdefault(folder, path)
    for folder in watched if path_by_whole_folder else ():
        for ancestor in ancestors(folder):
            if ancestor in path_by_whole_folder and path_by_whole_folder[ancestor] < first_changes.get(
                folder, "\U0010ffff"
            ):
                first_changes[folder] = path_by_whole_folder[ancestor]
    return first_changes


def _is_path(path: str) -> bool:
    """Return whether this can be the path of a file in a repository, or of a folder with a slash at its end."""
    bare_path = path[:-1] if path.endswith("/") else path
    return bool(bare_path) and not any(name in ("", ".", "..") for name in bare_path.split("/"))


def _unknown_diff(cause: str) -> str:
    """Return the reason to keep all jobs if the changed files are unknown because of `cause`, which may be empty."""
    return f"the changed files are not known{f' ({cause})' if cause else ''}, so everything runs"


def _display(path: str) -> str:
    """Return a path for a message: on one line, and shortened if it is long."""
    shortened = path if len(path) <= MAX_PATH_CHARS else f"{path[: MAX_PATH_CHARS - 1]}…"
    return shortened if shortened.isprintable() and shortened else repr(shortened)
