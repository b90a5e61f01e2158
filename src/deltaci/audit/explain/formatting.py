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
    """Return untrusted text as one printable line without terminal escapes, cut to `max_chars`."""
    text = text[: 4 * max_chars]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in ESCAPES.sub("", text))
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def quoted(text: object) -> str:
    """Return untrusted text as one line in quotation marks; empty if the value is no text or an empty one."""
    line = one_line(text, MAX_QUOTE_CHARS) if isinstance(text, str) else ""
    return f"“{line}”" if line else ""


def colon_quote(text: object) -> str:
    """Return `: “TEXT”` to append to a sentence, or an empty string if there is no text."""
    quoted_text = quoted(text)
    return f": {quoted_text}" if quoted_text else ""


def duration(microseconds: int) -> str:
    """Return a duration in its two largest units, such as `1 h 5 min`."""
    seconds = -(-max(0, microseconds) // SECOND)
    if seconds < 60:
        return f"{seconds} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit_texts: list[str] = []
    for unit_name, unit_seconds in units:
        unit_count, seconds = divmod(seconds, unit_seconds)
        if unit_count:
            unit_texts.append(f"{unit_count} {unit_name}")
        elif unit_texts:
            break
    return " ".join(unit_texts[:2])


def moment(at: int) -> str:
    """Return an instant as text in UTC, to the second. Instants after the year 9999 become its last second."""
    return f"{rfc3339(min(at, MAX_INSTANT))[:19].replace('T', ' ')} UTC"


def when(at: int, now: int) -> str:
    """Return an instant as text, with the time until then, such as `2026-01-31 12:00:00 UTC (in 5 min)`."""
    return f"{moment(at)} ({f'in {duration(at - now)}' if at > now else 'now'})"


def count(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural if needed: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def times(number: int) -> str:
    """Return how often something happened, as text: `once`, `twice` or `N times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(names: Sequence[str], max_names: int = MAX_LISTED) -> str:
    """Return the names joined with commas and "and".

    After the first `max_names`, only the number of the others is given.
    """
    listed_names = [one_line(name) for name in names[:max_names]]
    if len(names) > max_names:
        listed_names.append(f"{len(names) - max_names} more")
    return (
        " and ".join(listed_names)
        if len(listed_names) < 3
        else f"{', '.join(listed_names[:-1])} and {listed_names[-1]}"
    )


def actor_name(actor: str, *, is_first: bool = False) -> str:
    """Return an event's actor as people know it: a name, `worker ID` or `Delta CI`.

    With `is_first`, it starts a sentence.
    """
    actor_kind, _, name = actor.partition(":")
    if actor_kind == USER:
        return one_line(name) or ("A person" if is_first else "a person")
    if actor_kind == RUNNER and name:
        return f"{'Worker' if is_first else 'worker'} {one_line(name)}"
    return "Delta CI"


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
