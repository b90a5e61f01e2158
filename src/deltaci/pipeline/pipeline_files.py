"""Find and parse the pipelines of a repository: its Delta CI files, else its GitHub workflows, else a detected one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from deltaci.pipeline import github
from deltaci.pipeline.detect import detect_pipeline
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.reader import parse_pipeline

MAX_FILES: Final = 200
DISCOVERED: Final = "discovered"  # The file name of a detected pipeline.

Kind = Literal["own", "github", "discovered"]
ReadFile = Callable[[str], bytes | None]

# Only the files of the first kind that a repository has are used.
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("own", re.compile(r"\.deltaci\.ya?ml|\.deltaci/[^/]+\.ya?ml")),
    ("github", re.compile(r"\.github/workflows/[^/]+\.ya?ml")),
)


class PipelineFile(Struct, frozen=True, kw_only=True):
    """A parsed pipeline file of a repository, or a detected pipeline. `text` is the content of the file."""

    kind: Kind
    result: ParseResult
    text: str = ""

    @property
    def grants_mentioned_secrets(self) -> bool:
        """Whether jobs get each secret that their expressions reference, without declaring it, as on GitHub."""
        return self.kind == "github"


def pipeline_files(paths: Collection[str]) -> tuple[str, ...]:
    """Return the paths of the Delta CI files or, if there are none, of the GitHub workflows; sorted, at most 200."""
    for _, pattern in _KINDS:
        files = sorted(path for path in paths if pattern.fullmatch(path))
        if files:
            return tuple(files[:MAX_FILES])
    return ()


def read_file(path: str, content: bytes, paths: Collection[str], read_other: ReadFile) -> PipelineFile:
    """Parse a pipeline file. The path decides on its kind; a file at any other path is parsed as a Delta CI file.

    `paths` are all files of the repository, and `read_other` reads one of them.
    """
    kind: Kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "own")
    text = content.decode("utf-8", "replace")
    if kind == "github":
        return PipelineFile(
            kind=kind, result=github.parse_workflow(content, path, _FileTexts(paths, read_other)), text=text
        )
    return PipelineFile(kind=kind, result=parse_pipeline(content, path), text=text)


def discover(paths: Collection[str], read_other: ReadFile) -> PipelineFile:
    """Detect a pipeline from the files of a repository. Raise `Refused` if no job can be detected with certainty."""

    def read_text(path: str) -> str | None:
        content = read_other(path)
        return None if content is None else content.decode("utf-8", "replace")

    return PipelineFile(
        kind="discovered", result=ParseResult(file=DISCOVERED, pipeline=detect_pipeline(paths, read_text))
    )


class _FileTexts(Mapping[str, str]):
    """The texts of the files of the repository by path, read on access."""

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
