"""How times, names and texts of others are written in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.core.events import RUNNER, USER
from deltaci.core.instants import SECOND, rfc3339
from deltaci.core.text import ESCAPES

MAX_NAME_CHARS: Final = 120
MAX_QUOTE_CHARS: Final = 200
MAX_LISTED: Final = 3
LAST: Final = 253_402_300_799 * SECOND  # 9999-12-31T23:59:59Z


def shown(text: str, most: int = MAX_NAME_CHARS) -> str:
    """The text of somebody else on one line: no escapes, nothing that cannot be printed, cut where it is too long."""
    text = text[: 4 * most]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in ESCAPES.sub("", text))
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(text: object) -> str:
    """What somebody said, between quotation marks; nothing, if nothing was said."""
    said = shown(text, MAX_QUOTE_CHARS) if isinstance(text, str) else ""
    return f"“{said}”" if said else ""


def saying(text: object) -> str:
    """A colon and what was said, to go on after a sentence."""
    said = quoted(text)
    return f": {said}" if said else ""


def duration(microseconds: int) -> str:
    """A length of time in its two largest units."""
    seconds = -(-max(0, microseconds) // SECOND)
    if seconds < 60:
        return f"{seconds} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:2])


def moment(at: int) -> str:
    """An instant, to the second, in UTC. What is later than the last year with four digits is said to be at its end."""
    return f"{rfc3339(min(at, LAST))[:19].replace('T', ' ')} UTC"


def when(at: int, now: int) -> str:
    """An instant, and how long it is until then."""
    return f"{moment(at)} ({f'in {duration(at - now)}' if at > now else 'now'})"


def count(number: int, thing: str) -> str:
    """So many of a thing: `1 job`, `2 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}{'es' if thing.endswith('s') else 's'}"


def times(number: int) -> str:
    """How often."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(names: Sequence[str], most: int = MAX_LISTED) -> str:
    """Names in a row: the first few, and how many more there are."""
    some = [shown(name) for name in names[:most]]
    if len(names) > most:
        some.append(f"{len(names) - most} more")
    return " and ".join(some) if len(some) < 3 else f"{', '.join(some[:-1])} and {some[-1]}"


def person(actor: str, *, is_first: bool = False) -> str:
    """Who did it, as people call them. The first word of a sentence is large, a name stays as it is."""
    kind, _, name = actor.partition(":")
    if kind == USER:
        return shown(name) or ("A person" if is_first else "a person")
    if kind == RUNNER and name:
        return f"{'Worker' if is_first else 'worker'} {shown(name)}"
    return "Delta CI"


def capital(text: str) -> str:
    """The text with a large first letter."""
    return text[:1].upper() + text[1:]
