"""Commands that work on the database of a server that does not run: their changes are events in its log, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from deltaci.engine import event_loop
from deltaci.engine.engine import Engine
from deltaci.git.mirrors import FOLDER
from deltaci.storage import open_store
from deltaci.storage.port import Store

DATABASE: Final = "deltaci.db"

StoreOption = Annotated[
    str, typer.Option("--store", help="The store of the server, if none runs here.  [default: sqlite:DATA/deltaci.db]")
]

T = TypeVar("T")


def embedded_store(data: Path, url: str) -> Store:
    """Return the store with this URL, else the SQLite file in the data folder.

    Raises `ValueError` if a server has used the folder and there is no such file: then its store is elsewhere.
    """
    if url:
        return open_store(url)
    if (data / FOLDER).is_dir() and not (data / DATABASE).exists():
        raise ValueError(f"there is no {data / DATABASE}; start the server, or name its store with --store")
    return open_store(f"sqlite:{data / DATABASE}")


def run_embedded(store: Store, work: Callable[[Engine, Store], Awaitable[T]]) -> T:
    """Start an engine over the store, return the result of `work`, and stop the engine."""

    async def main() -> T:
        engine = Engine(store)
        await store.open()
        try:
            await engine.start()
            return await work(engine, store)
        finally:
            await engine.stop()
            await store.close()

    return event_loop.run(main())
