"""What `/api/v1` answers about logs besides the logs themselves."""

from __future__ import annotations

from typing import Annotated

from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import doc


class LogSection(ResponseSchema, frozen=True, kw_only=True):
    """A step's place in a log. Lines count from 1, and include those that only lay out the log."""

    index: Annotated[int, doc("of the step; what the runner does itself has large ones")]
    name: str
    first_line: Annotated[int, doc("the line that says that it begins")]
    last_line: Annotated[int | None, doc("its last line; it says that it ended, if it has seconds. Absent: not over")]
    is_over: bool
    exit_code: int | None
    seconds: float | None


class LogIndex(ResponseSchema, frozen=True, kw_only=True):
    """Where the lines and the steps of a log are, so that any part of it can be found and read by its bytes."""

    lease: Annotated[int, doc("the number of the lease that it is the log of; 0: there was none yet")]
    size: Annotated[int, doc("bytes")]
    lines: Annotated[int, doc("the last one may have no end yet")]
    newlines: int
    block_bytes: int
    first_block: Annotated[int, doc("the block that was asked for")]
    blocks: Annotated[list[int], doc("how many newlines are before each block of so many bytes, from that one on")]
    has_header: Annotated[bool, doc("whether its first line only lays out the log")]
    sections: Annotated[list[LogSection], doc("steps, in order")]
    is_open: Annotated[bool, doc("whether more may come")]
