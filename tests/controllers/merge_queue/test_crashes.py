"""A server that is killed at any step of a merge, and started again: it ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.budget import IS_THOROUGH, budget

ROOT: Final = Path(__file__).parents[3]
MEMORY: Final = Path("/dev/shm")
MAX_SECONDS: Final = 500
EVERY: Final = budget(10, 2)  # Steps from one kill to the next.
FIRST: Final = (1, 2) if IS_THOROUGH else (1,)  # With each of these as the first, so that all of them have their turn.


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that is possible: a process that is killed loses nothing that it wrote, on no disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


def played(folder: Path, story: str, first: int) -> list[dict[str, Any]]:
    """What the driver says of every kill."""
    words = [sys.executable, "-m", "tests.controllers.merge_queue.driver", str(folder), story, str(first), str(EVERY)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=MAX_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize(("story", "merged"), [("moving", {"one"}), ("bad", {"one"})])
def test_killed_at_any_step_it_ends_the_same(
    folder: Path, story: str, merged: set[str], first: int, record_property: Callable[[str, object], None]
) -> None:
    """The base is where it was before, or after, and never in between; history, trees and outcomes are the same."""
    *killed, whole = played(folder, story, first)

    assert not whole["is_killed"]
    assert len(killed) >= 50 // EVERY
    assert {id for id, told in whole["told"].items() if told[0]} == merged
    assert whole["fsck"] == ""
    trees = {line.split(" ")[0] for line in whole["history"]}
    for each in killed:
        said = f"killed at step {each['at']}"
        assert each["is_killed"], said
        assert each["between"] in trees, f"{said}: the base is at something in between"
        for name in ("history", "told", "refs", "fsck"):
            assert each[name] == whole[name], f"{said}: another {name}"
    record_property(
        "figure", f"merge queue, {story} {first}/{EVERY}: killed at {len(killed)} steps, the same end each time"
    )
