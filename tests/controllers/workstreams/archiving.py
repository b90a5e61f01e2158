"""A process that archives a workstream and ends in the middle of it: at each thing that it does to the disk, once.

    python -m tests.controllers.workstreams.archiving FOLDER

Prints how many of these moments there are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from deltaci.controllers.workstreams import files
from deltaci.controllers.workstreams.archive import archive, place
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.memory import MemoryStore
from tests.controllers.workstreams.streams import ID, completed, entry, merged, stored

WATCHED = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate"})
MAX_MOMENTS = 500
CRASHED = 7


def names(folder: Path) -> list[str]:
    """What an archive has in it."""
    return sorted(path.name for path in place(folder, ID).iterdir())


def interrupted(store: MemoryStore, folder: Path, moment: int) -> bool:
    """Archive it in a process that ends at this moment. Whether it got so far."""
    child = os.fork()
    if child == 0:
        left = moment

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if event in WATCHED and str(folder) in str(args[0]):
                left -= 1
                if left < 0:
                    os._exit(CRASHED)

        sys.addaudithook(hook)
        asyncio.run(archive(store, LogStore(folder / "logs"), merged(), folder))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, CRASHED), code
    return code == CRASHED


def check(store: MemoryStore, folder: Path, expected: list[str]) -> int:
    """Whatever the moment, the archive is whole or not there, and whoever comes next has it whole."""
    for moment in range(MAX_MOMENTS):
        here = folder / f"at-{moment}"
        files.validating(here, merged(), entry(merged()), ["a"])
        is_ended = interrupted(store, here, moment)
        if place(here, ID).exists():
            assert names(here) == expected, (moment, names(here))
        asyncio.run(archive(store, LogStore(here / "logs"), merged(), here))
        assert names(here) == expected, (moment, names(here))
        assert [path.name for path in (here / "archive").iterdir()] == [ID], moment
        assert not files.place(here, ID).exists(), moment
        if not is_ended:
            return moment
    raise AssertionError("it never came to its end")


def main(folder: Path) -> None:
    """All moments."""
    store = asyncio.run(stored(completed()))
    whole = folder / "whole"
    files.validating(whole, merged(), entry(merged()), ["a"])
    asyncio.run(archive(store, LogStore(whole / "logs"), merged(), whole))
    print(check(store, folder, names(whole)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
