"""The forms in which a secret turns up in a log: itself, its lines, and what common tools make of it.

Pure. A form is bytes that, wherever they stand, give the secret away; nothing here guesses at partial secrets. White
space around a secret is not part of it: files end with a newline, and tools drop or double it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

MIN_SECRET_CHARACTERS: Final = 4
# Parts of a multi-line secret are masked alone from this length on: shorter ones ("data:", "true,") are everywhere.
MIN_LINE_CHARACTERS: Final = 6
# Where `base64`, MIME and PEM break their lines.
_COLUMNS: Final = (64, 76)
_URL_SAFE: Final = ("", "/", "!*'()", "/:@")
_SHELL_PLAIN: Final = re.compile(r"([^A-Za-z0-9_@%+=:,./-])")
_SHELL_ASCII: Final = re.compile(r"([^A-Za-z0-9_@%+=:,./\-\x80-\U0010ffff])")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_SHELL_DOUBLE: Final = re.compile(r'([\\"$`])')
_HEX: Final = re.compile(r"%[0-9A-F]{2}")


def core_of(secret: str) -> str:
    """The secret without the white space around it."""
    return secret.strip()


def is_too_short(secret: str) -> bool:
    """Whether masking it would hide half of every log and protect nothing."""
    return len(core_of(secret)) < MIN_SECRET_CHARACTERS


def secret_forms(secret: str) -> frozenset[bytes]:
    """Every form of one secret. Empty for one that is too short."""
    if is_too_short(secret):
        return frozenset()
    core = core_of(secret)
    lines = core.splitlines()
    wholes = {core, "\n".join(lines), "\r\n".join(lines)} if len(lines) > 1 else {core}
    parts = {line.strip() for line in lines} if len(lines) > 1 else set()
    values = wholes | {part for part in parts if len(part) >= MIN_LINE_CHARACTERS}
    return frozenset(form for value in values for form in _forms(value) if form)


def _forms(value: str) -> Iterator[bytes]:
    raw = _bytes(value)
    yield raw
    yield from _base64(raw)
    for text in (*_url(raw), *_json(value), *_shell(value), *_html(value), raw.hex(), raw.hex().upper()):
        yield _bytes(text)


def _bytes(text: str) -> bytes:
    """UTF-8; what a process got as odd bytes (PEP 383) becomes these bytes again."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _base64(raw: bytes) -> Iterator[bytes]:
    """At each of the three places in a group of bytes; only the characters that no neighbour has a part in."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        first = (shift * 8 + 5) // 6
        last = (shift + len(raw)) * 8 // 6
        whole = encoded[first:last]
        yield whole
        yield whole.translate(bytes.maketrans(b"+/", b"-_"))
        if shift == 0:  # Broken into lines, which is only foreseeable where the secret comes first.
            for columns in _COLUMNS:
                lines = [whole[at : at + columns] for at in range(0, len(whole), columns)]
                yield from (line for line in lines if len(line) >= MIN_LINE_CHARACTERS)


def _url(raw: bytes) -> Iterator[str]:
    quoted = [quote(raw, safe=safe) for safe in _URL_SAFE] + [quote_plus(raw, safe=safe) for safe in _URL_SAFE]
    for text in quoted:
        yield text
        yield _HEX.sub(lambda found: found[0].lower(), text)


def _json(value: str) -> Iterator[str]:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield text
        yield text.replace("/", "\\/")
        # What Go and others write, so that the text may stand in a page.
        yield text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        yield json.dumps(text, ensure_ascii=is_ascii)[1:-1]  # JSON in JSON, as in webhooks and structured logs.


def _shell(value: str) -> Iterator[str]:
    """As `shlex` and `set -x` show it, as `printf %q` in any language, inside double quotes, and as $'…'."""
    yield shlex.quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", "'\\''")
    yield _SHELL_PLAIN.sub(r"\\\1", value)
    yield _SHELL_ASCII.sub(r"\\\1", value)
    yield _SHELL_DOUBLE.sub(r"\\\1", value)
    dollar = (
        value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    yield dollar
    yield _NOT_ASCII.sub(lambda found: "".join(f"\\{byte:03o}" for byte in _bytes(found[0])), dollar)


def _html(value: str) -> Iterator[str]:
    """As pages, XML and test reports show it."""
    yield html.escape(value, quote=False)
    quoted = html.escape(value)
    yield quoted
    yield quoted.replace("&#x27;", "&#39;")
    yield quoted.replace("&#x27;", "&apos;")
