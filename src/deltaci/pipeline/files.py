"""Which pipelines a repository has, told by the names of its files: its own, else GitHub's, else what is discovered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from deltaci.pipeline.reader import Found, read

MAX_FILES: Final = 200

Kind = Literal["own", "github", "discovered"]

# The first kind that a repository has is the one that counts.
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("own", re.compile(r"\.deltaci\.ya?ml|\.deltaci/[^/]+\.ya?ml")),
    ("github", re.compile(r"\.github/workflows/[^/]+\.ya?ml")),
)


class Files(NamedTuple):
    """The pipeline files of one kind; of a repository without any, none."""

    kind: Kind
    paths: tuple[str, ...]


def pipeline_files(paths: Iterable[str]) -> Files:
    """Those that count, sorted by name."""
    known = list(paths)
    for kind, pattern in _KINDS:
        found = sorted(path for path in known if pattern.fullmatch(path))
        if found:
            return Files(kind, tuple(found[:MAX_FILES]))
    return Files("discovered", ())


def kind_of(path: str) -> Kind:
    """What a file is, told by where it stands; one that stands elsewhere is taken for one of ours."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "own")


def read_pipeline(kind: Kind, path: str, content: bytes) -> Found:
    """Read a pipeline file of this kind."""
    return read(content, path)
