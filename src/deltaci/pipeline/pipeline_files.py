"""Which pipelines a repository has, told by the names of its files: its own, else GitHub's, else what is discovered."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from deltaci.pipeline import github
from deltaci.pipeline.detect import discovered
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.reader import parse_pipeline

MAX_FILES: Final = 200
DISCOVERED: Final = "discovered"  # In place of a file's name, where there is none.

Kind = Literal["own", "github", "discovered"]
ReadFile = Callable[[str], bytes | None]

# The first kind that a repository has is the one that counts.
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("own", re.compile(r"\.deltaci\.ya?ml|\.deltaci/[^/]+\.ya?ml")),
    ("github", re.compile(r"\.github/workflows/[^/]+\.ya?ml")),
)


class PipelineFile(Struct, frozen=True, kw_only=True):
    """One pipeline of a repository as it was read. A workflow of GitHub's may use secrets that it only mentions."""

    kind: Kind
    result: ParseResult
    text: str = ""

    @property
    def grants_mentioned_secrets(self) -> bool:
        """Whether a secret need only be mentioned."""
        return self.kind == "github"


def pipeline_files(paths: Collection[str]) -> tuple[str, ...]:
    """The names of those that count, sorted; none when all is to be discovered."""
    for _, pattern in _KINDS:
        found = sorted(path for path in paths if pattern.fullmatch(path))
        if found:
            return tuple(found[:MAX_FILES])
    return ()


def read_file(path: str, content: bytes, paths: Collection[str], read_other: ReadFile) -> PipelineFile:
    """Read one pipeline file, told by where it stands; one that stands elsewhere is taken for one of ours."""
    kind: Kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "own")
    text = content.decode("utf-8", "replace")
    if kind == "github":
        return PipelineFile(
            kind=kind, result=github.parse_workflow(content, path, _Texts(paths, read_other)), text=text
        )
    return PipelineFile(kind=kind, result=parse_pipeline(content, path), text=text)


def discover(paths: Collection[str], read_other: ReadFile) -> PipelineFile:
    """What a repository without any is built and tested by. Refused when nothing is sure enough."""

    def text_of(path: str) -> str | None:
        content = read_other(path)
        return None if content is None else content.decode("utf-8", "replace")

    return PipelineFile(kind="discovered", result=ParseResult(file=DISCOVERED, pipeline=discovered(paths, text_of)))


class _Texts(Mapping[str, str]):
    """Other files of the repository, each read when it is asked for."""

    def __init__(self, paths: Collection[str], read_other: ReadFile) -> None:
        self._paths = frozenset(paths)
        self._read = read_other

    def __getitem__(self, path: str) -> str:
        content = self._read(path) if path in self._paths else None
        if content is None:
            raise KeyError(path)
        return content.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
