"""Workstreams over one base: good ones of each kind, and each kind of trouble, planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

# What the base must never become, whoever is merged: nothing broken, and at most one who is the only one.
CHECK: Final = """\
#!/bin/sh
if grep -rqs BROKEN parts; then echo "something is broken: $(grep -rl BROKEN parts)"; exit 1; fi
if [ "$(ls parts 2>/dev/null | grep -c '^only-')" -gt 1 ]; then echo "there are two of the only one"; exit 1; fi
"""
FILES: Final[dict[str, str | None]] = {"check.sh": CHECK, "shared.txt": "one\ntwo\nthree\n", "parts/zero.txt": "zero\n"}
RULE: Final = {"name": "the whole is sound", "run": "sh check.sh"}


class Planted(NamedTuple):
    """A workstream, and what must come of it: whether it is merged, and what it adds to the base."""

    name: str
    spec: dict[str, Any]
    is_good: bool
    adds: tuple[str, ...] = ()
    says: str = ""  # what its failure must name


def task(name: str, *run: str, **more: Any) -> dict[str, Any]:
    """A task of these commands, tried again at once where it is tried again."""
    return {"name": name, "run": list(run), **more}


def stream(name: str, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A workstream of these tasks."""
    return {"workstream": name, "project": "shop", "base": "main", "tasks": list(tasks), "validation": [RULE], **more}


def _part(name: str, text: str = "good") -> str:
    return f"mkdir -p parts && echo {text} > parts/{name}.txt"


def plain(name: str, **more: Any) -> Planted:
    """Two tasks, one after the other, in the same tree."""
    tasks = (
        task("write", _part(name), post_execution=[{"files": [f"parts/{name}.txt"]}]),
        task("look", f'grep -q good parts/{name}.txt && test -z "$(git status --porcelain)"', needs=["write"]),
    )
    return Planted(name, stream(name, *tasks, **more), True, (f"parts/{name}.txt",))


def own(name: str) -> Planted:
    """Three tasks side by side, each in a tree of its own, and one that finds what all did."""
    tasks = [task(f"make-{n}", _part(f"{name}-{n}"), worktree="own") for n in range(3)]
    found = " && ".join(f"test -e parts/{name}-{n}.txt" for n in range(3))
    tasks.append(task("all", found, needs=[each["name"] for each in tasks]))
    return Planted(name, stream(name, *tasks), True, tuple(f"parts/{name}-{n}.txt" for n in range(3)))


def flaky(name: str, marks: Path) -> Planted:
    """Its first attempt leaves half of its work behind, and dies of the network."""
    mark = marks / name
    dies = f"echo half > parts/{name}.half; echo 'Connection reset by peer' >&2; exit 1"
    tasks = (
        task(
            "write",
            f"mkdir -p parts; test -e {mark} || {{ touch {mark}; {dies}; }}; {_part(name)}",
            retry={"max_attempts": 3, "delay-seconds": 0},
            executor="process",  # Its mark is outside of every sandbox.
        ),
    )
    return Planted(name, stream(name, *tasks), True, (f"parts/{name}.txt",))


def rival(name: str, line: str) -> Planted:
    """Changes a line that another one changes too: whoever comes first is merged."""
    tasks = (task("edit", f"sed -i 's/two/{line}/' shared.txt"),)
    return Planted(name, stream(name, *tasks), False, ("shared.txt",), "shared.txt")


def planted(marks: Path) -> list[Planted]:
    """All of them, in the order in which they are created."""
    may_fail = task("extra", "exit 1", critical=False)
    lenient = plain("lenient")
    lenient.spec["tasks"].append(may_fail)
    bad = stream("bad", task("write", _part("bad", "BROKEN")))
    only = {n: stream(f"only-{n}", task("write", _part(f"only-{n}"))) for n in ("a", "b")}
    crash = stream("crash", task("write", _part("crash")), task("fail", "exit 3", needs=["write"]))
    stray = stream(
        "stray", task("write", _part("stray"), "echo x > outside.txt", post_execution=[{"within": ["parts/**"]}])
    )
    low = stream(
        "low",
        task(
            "measure",
            _part("low"),
            'echo \'{"totals": {"percent_covered": 71.5}}\' > /tmp/cov-$$.json; mv /tmp/cov-$$.json coverage.json',
            post_execution=[
                {"name": "coverage", "number": {"report": "coverage.json", "at": "totals.percent_covered", "min": 80}}
            ],
        ),
    )
    return [
        plain("alpha"),
        rival("rival-a", "TWO"),
        Planted("bad", bad, False, ("parts/bad.txt",), "the whole is sound"),
        plain("beta"),
        flaky("gamma", marks),
        Planted("only-a", only["a"], True, ("parts/only-a.txt",)),
        rival("rival-b", "zwei"),
        own("epsilon"),
        Planted("crash", crash, False, ("parts/crash.txt",), "exit"),
        plain("zeta", merge="squash"),
        Planted("only-b", only["b"], False, ("parts/only-b.txt",), "the whole is sound"),
        Planted("stray", stray, False, ("parts/stray.txt",), "outside.txt"),
        plain("iota", merge="fast-forward"),
        lenient,
        Planted("low", low, False, ("parts/low.txt",), "71.5"),
    ]
