"""Format times, names and untrusted text for use in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.core.events import RUNNER, USER
from deltaci.core.instants import SECOND, rfc3339
from deltaci.core.text import ESCAPES

MAX_NAME_CHARS: Final = 120
MAX_QUOTE_CHARS: Final = 200
MAX_LISTED: Final = 3
MAX_INSTANT: Final = 253_402_300_799 * SECOND  # 9999-12-31T23:59:59Z


def one_line(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return untrusted text on one line: without terminal escapes and unprintable characters, cut to `max_chars`."""
    text = text[: 4 * max_chars]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in ESCAPES.sub("", text))
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def quoted(text: object) -> str:
    """Return untrusted text on one line in quotation marks, or an empty string if there is none."""
    line = one_line(text, MAX_QUOTE_CHARS) if isinstance(text, str) else ""
    return f"“{line}”" if line else ""


def colon_quote(text: object) -> str:
    """Return a colon and the quoted text, to append to a sentence, or an empty string if there is no text."""
    quote = quoted(text)
    return f": {quote}" if quote else ""


def duration(microseconds: int) -> str:
    """Format a duration in its two largest units, such as `1 h 5 min`."""
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
    """Format an instant in UTC, to the second. Instants after the year 9999 are formatted as its last second."""
    return f"{rfc3339(min(at, MAX_INSTANT))[:19].replace('T', ' ')} UTC"


def when(at: int, now: int) -> str:
    """Format an instant and the time until then."""
    return f"{moment(at)} ({f'in {duration(at - now)}' if at > now else 'now'})"


def count(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural if needed: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def times(number: int) -> str:
    """Return `once`, `twice` or `N times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(names: Sequence[str], max_names: int = MAX_LISTED) -> str:
    """Join names with commas and "and". After the first `max_names` only their number is given."""
    parts = [one_line(name) for name in names[:max_names]]
    if len(names) > max_names:
        parts.append(f"{len(names) - max_names} more")
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def actor_name(actor: str, *, is_first: bool = False) -> str:
    """Return an event's actor as people know it. With `is_first` the result can start a sentence."""
    kind, _, name = actor.partition(":")
    if kind == USER:
        return one_line(name) or ("A person" if is_first else "a person")
    if kind == RUNNER and name:
        return f"{'Worker' if is_first else 'worker'} {one_line(name)}"
    return "Delta CI"


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
