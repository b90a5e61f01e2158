"""Read the pipeline files of a commit from the mirror of its repository."""

from __future__ import annotations

import asyncio

from deltaci.core.errors import Refused
from deltaci.git.mirrors import Mirror
from deltaci.pipeline.repository import (
    DISCOVERED,
    MAX_FILE_BYTES,
    PipelineFile,
    parse_pipelines,
    paths_to_read,
    pipeline_files,
)


async def pipelines_at(mirror: Mirror, commit: str, only: str = "") -> list[PipelineFile]:
    """Return the pipeline files of a commit by name: its own, else GitHub's, else a discovered one.

    With `only`, one file.
    """
    paths = await mirror.list_files(commit)
    if only not in ("", DISCOVERED, *paths):
        return []
    files = pipeline_files(paths) if not only else () if only == DISCOVERED else (only,)
    contents = await mirror.read_files(commit, paths_to_read(paths, files), MAX_FILE_BYTES)
    try:
        return await asyncio.to_thread(parse_pipelines, paths, files, contents)
    except Refused:
        return []
