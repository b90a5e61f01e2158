"""Texts that come from a job, made safe to be shown and analysed: a job may write whatever it likes.

Terminals obey escape sequences, and some characters turn a line around or hide it. None of that gets further than here.
Markup stays what it is, a text: whoever puts it on a page must escape it there.
"""

from __future__ import annotations

from typing import Final

from deltaci.core.escapes import ESCAPES

_UNSHOWN: Final = "\N{REPLACEMENT CHARACTER}"


def plain(text: str, most: int) -> str:
    """One line that a terminal or a page shows as it is: no escapes, nothing that cannot be printed, not too long."""
    text = text[: 4 * most]  # What is escaped does not count, but has an end too.
    text = ESCAPES.sub("", text).replace("\t", " ").strip("\r\n")
    text = " ".join(text.splitlines()) if not text.isprintable() else text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else _UNSHOWN for c in text)
    return text[:most]


def size(count: int) -> str:
    """Bytes as people say them: `512 B`, `1.5 KiB`, `3.2 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
