"""The forms in which a secret may appear in a log: the secret, its lines, and the encodings of common tools.

A form is a sequence of bytes that reveals the secret wherever it occurs; parts of a line are not forms. White space
around a secret is ignored: files end with a newline, and tools drop or double it.
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
# Lines of a multi-line secret are masked alone from this length on: shorter ones ("data:", "true,") occur everywhere.
MIN_LINE_CHARACTERS: Final = 6
# The line lengths of PEM and of `base64` and MIME.
_BASE64_COLUMNS: Final = (64, 76)
_URL_SAFE: Final = ("", "/", "!*'()", "/:@")  # The characters that various libraries do not quote.
_SHELL_PLAIN: Final = re.compile(r"([^A-Za-z0-9_@%+=:,./-])")
_SHELL_ASCII: Final = re.compile(r"([^A-Za-z0-9_@%+=:,./\-\x80-\U0010ffff])")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_SHELL_DOUBLE: Final = re.compile(r'([\\"$`])')
_HEX: Final = re.compile(r"%[0-9A-F]{2}")


def is_too_short(secret: str) -> bool:
    """Return whether a secret is so short that masking it would make logs unreadable and protect nothing."""
    return len(secret.strip()) < MIN_SECRET_CHARACTERS


def secret_forms(secret: str) -> frozenset[bytes]:
    """Return all byte sequences that reveal a secret; none if the secret is too short."""
    if is_too_short(secret):
        return frozenset()
    stripped_secret = secret.strip()
    lines = stripped_secret.splitlines()
    whole_values = {stripped_secret, "\n".join(lines), "\r\n".join(lines)} if len(lines) > 1 else {stripped_secret}
    line_values = {line.strip() for line in lines} if len(lines) > 1 else set()
    plain_values = whole_values | {line for line in line_values if len(line) >= MIN_LINE_CHARACTERS}
    return frozenset(form for value in plain_values for form in _encoded_forms(value) if form)


def _encoded_forms(value: str) -> Iterator[bytes]:
    """Yield each form of one text: its bytes and their encodings."""
    raw = _encode(value)
    yield raw
    yield from _base64_forms(raw)
    for encoded_text in (
        *_url_forms(raw),
        *_json_forms(value),
        *_shell_forms(value),
        *_html_forms(value),
        raw.hex(),
        raw.hex().upper(),
    ):
        yield _encode(encoded_text)


def _encode(text: str) -> bytes:
    """Return the text as UTF-8. Bytes that were decoded with surrogate escapes (PEP 383) become the original bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yield the base64 encodings of the bytes, as a part of any longer input.

    The bytes may begin at three offsets in a group. Characters that depend on neighbouring bytes are left out.
    """
    for shift in range(3):
        encoded_bytes = base64.b64encode(b"\0" * shift + raw)
        stable_start = (shift * 8 + 5) // 6
        stable_end = (shift + len(raw)) * 8 // 6
        stable_part = encoded_bytes[stable_start:stable_end]
        yield stable_part
        yield stable_part.translate(bytes.maketrans(b"+/", b"-_"))
        if shift == 0:  # Broken into lines: the breaks are known only if the secret comes first.
            for columns in _BASE64_COLUMNS:
                lines = [stable_part[offset : offset + columns] for offset in range(0, len(stable_part), columns)]
                yield from (line for line in lines if len(line) >= MIN_LINE_CHARACTERS)


def _url_forms(raw: bytes) -> Iterator[str]:
    """Yield the percent-encodings of various libraries, with upper and lower case digits."""
    quoted_texts = [quote(raw, safe=safe) for safe in _URL_SAFE] + [quote_plus(raw, safe=safe) for safe in _URL_SAFE]
    for quoted_text in quoted_texts:
        yield quoted_text
        yield _HEX.sub(lambda match: match[0].lower(), quoted_text)


def _json_forms(value: str) -> Iterator[str]:
    """Yield the texts inside the quotes of a JSON string, as various encoders write them."""
    for is_ascii in (True, False):
        json_text = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield json_text
        yield json_text.replace("/", "\\/")
        # As encoders write it that make JSON safe in HTML, such as Go's.
        yield json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        yield json.dumps(json_text, ensure_ascii=is_ascii)[1:-1]  # A JSON string within JSON, as in structured logs.


def _shell_forms(value: str) -> Iterator[str]:
    """Yield the texts inside shell quotes: of `shlex`, `set -x`, `printf %q`, double quotes, and $'…'."""
    yield shlex.quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", "'\\''")
    yield _SHELL_PLAIN.sub(r"\\\1", value)
    yield _SHELL_ASCII.sub(r"\\\1", value)
    yield _SHELL_DOUBLE.sub(r"\\\1", value)
    dollar_quoted = (
        value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    yield dollar_quoted
    yield _NOT_ASCII.sub(lambda match: "".join(f"\\{byte:03o}" for byte in _encode(match[0])), dollar_quoted)


def _html_forms(value: str) -> Iterator[str]:
    """Yield the escapings of HTML and XML, as in test reports."""
    yield html.escape(value, quote=False)
    escaped_text = html.escape(value)
    yield escaped_text
    yield escaped_text.replace("&#x27;", "&#39;")
    yield escaped_text.replace("&#x27;", "&apos;")
