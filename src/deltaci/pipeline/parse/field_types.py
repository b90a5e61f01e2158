"""Types of single values in pipeline files: names, labels, patterns and times, with their limits and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

MAX_LINE: Final = 2000


def doc(description: str, **extra: Any) -> Meta:
    """Return the annotation with the description of a key, for the reference table and the JSON schema."""
    return Meta(description=description, extra=extra or None)


def text_format(
    description: str, pattern: str = "", max_length: int = MAX_LINE, min_length: int = 1, **extra: Any
) -> Meta:
    """Return the annotation that limits a text.

    `description` describes a valid text in messages. `pattern` must match the whole text.
    """
    return Meta(
        min_length=min_length, max_length=max_length, pattern=f"^(?:{pattern})$(?!\\n)" if pattern else None,
        extra={"what": description, **extra},
    )  # fmt: skip


Pattern = Annotated[str, text_format("a pattern of paths, e.g. 'src/**'", r"[^\x00-\x1f\x7f]+")]
RefPattern = Annotated[str, text_format("a pattern of names, e.g. 'release/*'", r"[^\x00-\x1f\x7f]+")]
JobId = Annotated[
    str,
    text_format(
        "a name of letters, digits, '_' and '-', that begins with a letter or '_'", "[A-Za-z_][A-Za-z0-9_-]*", 100
    ),
]
Word = JobId
Variable = Annotated[
    str,
    text_format("a name of letters, digits and '_', that does not begin with a digit", "[A-Za-z_][A-Za-z0-9_]*", 200),
]
EnvName = Annotated[
    str,
    text_format(
        "a name of letters, digits, '_', '-' and '.', that does not begin with a digit", "[A-Za-z_][A-Za-z0-9_.-]*", 200
    ),
]
SecretName = Annotated[str, text_format("the name of a secret: letters, digits and '_'", "[A-Za-z_][A-Za-z0-9_]*", 200)]
Label = Annotated[str, text_format("a label without commas", r"[!-+\--~][ -+\--~]*", expressions=True)]
Role = Annotated[str, text_format("a role's name", r"[!-~]+", 100)]
Cron = Annotated[
    str,
    text_format(
        "five fields: minute hour day month weekday, e.g. '0 3 * * 1-5'",
        r"[0-9A-Za-z*,/-]+( +[0-9A-Za-z*,/-]+){4}",
        200,
    ),
]
TimeZone = Annotated[
    str,
    text_format("the name of a time zone, e.g. 'Europe/Berlin'", r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}", 64),
]
Folder = Annotated[str, text_format("a folder of the repository, e.g. 'libs/ui'", r"[^\x00-\x1f\x7f\\]+", 255)]
