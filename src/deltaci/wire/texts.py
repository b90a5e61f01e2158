"""Texts that come from a job, made safe to be shown and analysed: a job may write whatever it likes.

Terminals obey escape sequences, and some characters turn a line around or hide it. None of that gets further than here.
Markup stays what it is, a text: whoever puts it on a page must escape it there.
"""

from __future__ import annotations

import re
from typing import Final

# ESC [ … letter; ESC ] … BEL or ESC \\; ESC and one more. Also their one-byte forms, and those that are cut off.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b.?"
)
_UNSHOWN: Final = "\N{REPLACEMENT CHARACTER}"


def plain(text: str, most: int) -> str:
    """One line that a terminal or a page shows as it is: no escapes, nothing that cannot be printed, not too long."""
    text = text[: 4 * most]  # What is escaped does not count, but has an end too.
    text = _ESCAPES.sub("", text).replace("\t", " ").strip("\r\n")
    text = " ".join(text.splitlines()) if not text.isprintable() else text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else _UNSHOWN for c in text)
    return text[:most]
