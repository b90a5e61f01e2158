"""Workstreams from their creation to the merge, through a real server, a real runner and a real repository.

The physical limit is the same git work and the same commands in a plain loop: a worktree, the tasks, a commit of what
one of them wrote, a merge, a push. Plain jobs show what the trees, the joining and the merging cost beside a job.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

from bench.databases import log_progress
from bench.figures import Figure
from bench.sites import CORES, PROJECT, Site, site
from tests.support.upstream import Upstream, git

STREAMS = 100
TASKS = 10
SLOTS: Final = 2 * CORES
OVER: Final = ("completed", "failed", "cancelled")
ENDED: Final = ("SUCCESS", "FAILED", "TIMEOUT", "CANCELED", "REPORTED")


def run() -> list[Figure]:
    """All workstreams at once, then as many plain jobs, then the loop."""
    with tempfile.TemporaryDirectory() as folder, site(Path(folder), SLOTS) as place:
        log_progress(f"{STREAMS} workstreams of {TASKS} tasks each, {SLOTS} slots")
        streams = _workstreams(place)
        log_progress(f"{STREAMS} runs of {TASKS} plain jobs each")
        plain = _plain(place)
    with tempfile.TemporaryDirectory() as folder:
        log_progress("the same git work and commands in a plain loop")
        bare = _bare(Path(folder))
    return _figures(streams, plain, bare)


class Measured:
    """What all workstreams together took, in seconds: each from its creation to its end, and of the processor."""

    def __init__(self, seconds: float, lives: list[float], server: float, runner: float) -> None:
        self.seconds = seconds
        self.lives = sorted(lives)
        self.server = server
        self.runner = runner


def _figures(streams: Measured, plain: float, bare: float) -> list[Figure]:
    tasks = STREAMS * TASKS
    rate = tasks / streams.seconds
    lives = streams.lives
    loop, jobs, took = "a plain loop of git and sh", "plain jobs", "the time it took"
    return [
        Figure(
            f"{STREAMS} workstreams of {TASKS} no-op tasks, created to merged",
            streams.seconds,
            "s",
            {loop: streams.seconds / bare, jobs: streams.seconds / plain},
        ),
        Figure("tasks", rate, "tasks/s", {loop: rate / (tasks / bare), jobs: rate / (tasks / plain)}),
        Figure("workstreams", STREAMS / streams.seconds, "workstreams/s", {loop: bare / streams.seconds}),
        Figure("a workstream among all, created to completed, p50", lives[len(lives) // 2], "s"),
        Figure("the same, p99", lives[len(lives) * 99 // 100], "s"),
        Figure("CPU of the server and its git, for each task", streams.server / tasks * 1e3, "ms"),
        Figure("CPU of the runner, its git and its tasks, for each task", streams.runner / tasks * 1e3, "ms"),
        Figure("CPU seconds of the server", streams.server, "s", {took: streams.server / streams.seconds}),
        Figure("CPU seconds of the runner", streams.runner, "s", {took: streams.runner / streams.seconds}),
        Figure(f"as many plain jobs, {TASKS} a run", tasks / plain, "jobs/s"),
        Figure("the plain loop", tasks / bare, "tasks/s"),
    ]


def spec(name: str) -> dict[str, Any]:
    """Tasks that do nothing, but for the last: it writes a file, so that there is something to merge."""
    tasks = [{"name": f"task-{number}", "run": "true", "executor": "process"} for number in range(TASKS - 1)]
    tasks.append({"name": "write", "run": f"echo hello > {name}.txt", "executor": "process"})
    return {"workstream": name, "project": PROJECT, "tasks": tasks}


def _workstreams(place: Site) -> Measured:
    place.ask("POST", "/workstreams", {"spec": spec("warm")})
    place.wait("/workstreams", "workstreams", "state", OVER, 1)
    before = place.cpu()
    for number in range(STREAMS):
        place.ask("POST", "/workstreams", {"spec": spec(f"stream-{number}")})
    found = place.wait("/workstreams", "workstreams", "state", OVER, STREAMS + 1)
    after = place.cpu()
    assert all(each["state"] == "completed" for each in found), [each for each in found if each["state"] != "completed"]
    files = git(place.upstream.bare, "ls-tree", "--name-only", "main").split("\n")
    assert sum(name.startswith("stream-") for name in files) == STREAMS, files
    times = [(_moment(each["created_at"]), _moment(each["ended_at"])) for each in found if each["name"] != "warm"]
    return Measured(_span(times), [end - start for start, end in times], after[0] - before[0], after[1] - before[1])


def _span(times: list[tuple[float, float]]) -> float:
    """Seconds from the first beginning to the last end, by the server's own clock: how often we ask does not matter."""
    return max(end for _, end in times) - min(start for start, _ in times)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _plain(place: Site) -> float:
    """As many jobs, as many in each run, without a repository."""
    jobs = [{"name": f"job-{number}", "work": {"steps": ["true"], "executor": "process"}} for number in range(TASKS)]
    known = len(place.all("/runs", "runs"))
    for _ in range(STREAMS):
        place.ask("POST", "/runs", {"plan": {"jobs": jobs}})
    found = place.wait("/runs", "runs", "state", ENDED, known + STREAMS)[:STREAMS]
    assert all(each["conclusion"] == "SUCCESS" for each in found), found
    return _span([(_moment(each["created_at"]), _moment(each["updated_at"])) for each in found])


def _bare(folder: Path) -> float:
    """The loop: as many at once as the runner has slots, merges one after the other."""
    upstream = Upstream(folder)
    mirror = folder / "mirror.git"
    git(folder, "clone", "-q", "--bare", str(upstream.bare), str(mirror))
    merging = Lock()
    adding = Lock()  # Two of git at once stumble over each other's half-written worktrees.

    def one(number: int) -> None:
        name = f"stream-{number}"
        tree = folder / name
        with adding:
            git(mirror, "worktree", "add", "-q", "-b", f"ws/{name}", str(tree), "main")
        for _ in range(TASKS - 1):
            subprocess.run(["sh", "-c", "true"], cwd=tree, check=True)
        subprocess.run(["sh", "-c", f"echo hello > {name}.txt"], cwd=tree, check=True)
        git(tree, "add", "--all")
        git(tree, "commit", "-q", "-m", name)
        head = git(tree, "rev-parse", "HEAD")
        with merging:
            merge(mirror, upstream.bare, head, name)
        git(mirror, "worktree", "remove", "--force", str(tree))

    began = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(one, range(STREAMS)))
    seconds = time.perf_counter() - began
    files = git(upstream.bare, "ls-tree", "--name-only", "main").split("\n")
    assert sum(name.startswith("stream-") for name in files) == STREAMS, files
    return seconds


def merge(mirror: Path, bare: Path, head: str, message: str) -> None:
    """Merge a commit to main of the bare repository, without a work tree."""
    main = git(mirror, "rev-parse", "main")
    tree = git(mirror, "merge-tree", "--write-tree", main, head)
    commit = git(mirror, "commit-tree", tree, "-p", main, "-p", head, "-m", message)
    git(mirror, "push", "-q", str(bare), f"{commit}:refs/heads/main")
    git(mirror, "update-ref", "refs/heads/main", commit)
