"""Read the pipeline files of a commit from the mirror of its repository."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from deltaci.core.errors import Refused
from deltaci.git.mirrors import Mirror, regular_files
from deltaci.pipeline.repository import (
    DISCOVERED,
    MAX_FILE_BYTES,
    PipelineFile,
    parse_pipelines,
    paths_to_read,
    pipeline_files,
)


async def pipelines_at(
    mirror: Mirror, commit: str, only: str = "", listed: Mapping[str, str] | None = None
) -> list[PipelineFile]:
    """Return the pipeline files of a commit by name: its own, else GitHub's, else a discovered one.

    With `only`, one file. `listed` is the result of `mirror.list_contents`, if it is known.
    """
    paths = regular_files(await mirror.list_contents(commit) if listed is None else listed)
    if only not in ("", DISCOVERED, *paths):
        return []
    files = pipeline_files(paths) if not only else () if only == DISCOVERED else (only,)
    contents = await mirror.read_files(commit, paths_to_read(paths, files), MAX_FILE_BYTES)
    try:
        return await asyncio.to_thread(parse_pipelines, paths, files, contents)
    except Refused:
        return []
