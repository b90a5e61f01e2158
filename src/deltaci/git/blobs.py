"""Read many files of a commit with two git commands: `cat-file --batch-check`, then `cat-file --batch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MAX_READ_BYTES: Final = 32 * 1024 * 1024  # The limit for all files of one call.


def format_request(commit: str, paths: Iterable[str]) -> bytes:
    """Return the input of both commands for these paths, which must not contain a line feed."""
    return "".join(f"{commit}:{path}\n" for path in paths).encode("utf-8", "surrogateescape")


def parse_sizes(paths: Iterable[str], git_output: bytes, max_bytes: int) -> dict[str, int]:
    """Parse the output of `--batch-check`. Return the sizes of the files by path.

    Leaves out missing files, those larger than `max_bytes`, and those that would exceed `MAX_READ_BYTES` in total.
    """
    size_by_path: dict[str, int] = {}
    remaining_bytes = MAX_READ_BYTES
    for path, output_line in zip(paths, git_output.decode("utf-8", "replace").split("\n"), strict=False):
        object_type, _, size_text = output_line.partition(" ")[2].rpartition(" ")
        if object_type == "blob" and size_text.isdecimal() and int(size_text) <= min(max_bytes, remaining_bytes):
            size_by_path[path] = int(size_text)
            remaining_bytes -= int(size_text)
    return size_by_path


def parse_contents(size_by_path: Mapping[str, int], git_output: bytes) -> dict[str, bytes]:
    """Parse the output of `--batch`, requested for the paths in `size_by_path`. Return the contents by path."""
    content_by_path: dict[str, bytes] = {}
    position = 0
    for path, size in size_by_path.items():
        position = git_output.index(b"\n", position) + 1  # A header line precedes each content.
        content_by_path[path] = git_output[position : position + size]
        position += size + 1
    return content_by_path
