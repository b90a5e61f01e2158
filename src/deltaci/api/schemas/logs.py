"""Response types of `/api/v1` for the index of a log."""

from __future__ import annotations

from typing import Annotated

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import doc


class LogSection(ResponseSchema, frozen=True, kw_only=True):
    """The part of a log that one step wrote. Lines count from 1 and include markers."""

    index: Annotated[int, doc("the index of the step; steps of the runner itself have large ones")]
    name: str
    first_line: Annotated[int, doc("the line of its begin marker")]
    last_line: Annotated[
        int | None, doc("its last line, which is its end marker if `seconds` is set; absent: not finished")
    ]
    is_over: bool
    exit_code: int | None
    seconds: float | None


class LogIndex(ResponseSchema, frozen=True, kw_only=True):
    """The steps of a log, and the number of newlines before each block, to read any line by a byte range."""

    lease: Annotated[int, doc("the number of the lease whose log it is; 0: none yet")]
    size: Annotated[int, doc("size in bytes")]
    lines: Annotated[int, doc("number of lines; the last one may be incomplete")]
    newlines: int
    block_bytes: int
    first_block: Annotated[int, doc("the requested block")]
    blocks: Annotated[
        list[int], doc("the number of newlines before each block of `block_bytes`, from `first_block` on")
    ]
    has_header: Annotated[bool, doc("whether its first line is the header")]
    sections: Annotated[list[LogSection], doc("steps, in order")]
    is_open: Annotated[bool, doc("whether more may be appended")]
