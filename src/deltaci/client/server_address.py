"""Default server URL and API key, and their validation."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

SERVER_VARIABLE: Final = "DELTACI_SERVER"
KEY_VARIABLE: Final = "DELTACI_KEY"
DATA_FOLDER: Final = Path(".state")
URL_FILE: Final = "server.url"  # Written by a server that runs, into its folder.
DEFAULT_URL: Final = "http://127.0.0.1:8080"
MAX_KEY_CHARS: Final = 4000
MAX_URL_CHARS: Final = 2000


def server_url(data: Path = DATA_FOLDER) -> str:
    """Return DELTACI_SERVER, else the URL of the server of this data folder, else the default URL on this machine."""
    return os.environ.get(SERVER_VARIABLE, "").strip() or announced_url(data) or DEFAULT_URL


def announced_url(data: Path) -> str:
    """Return the URL that the server of a data folder has written there, or an empty string."""
    try:
        with (data / URL_FILE).open(encoding="utf-8") as file:
            return file.read(MAX_URL_CHARS).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def is_at_home(url: str, data: Path) -> bool:
    """Return whether the URL is that of the server of this data folder, or of a server on this machine."""
    url = checked_url(url)
    return url == announced_url(data).rstrip("/") or is_this_machine(urlsplit(url).hostname or "")


def checked_url(url: str) -> str:
    """Return a valid server URL without a trailing slash. Raises `ValueError` for any other."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    else:
        is_good = is_good and not (parts.query or parts.fragment or parts.username) and url.isprintable()
    if not is_good or " " in url:
        raise ValueError(f"{url!r} is not a server URL; expected e.g. {DEFAULT_URL}")
    return url.rstrip("/")


def checked_key(key: str) -> str:
    """Return a key that can be sent in a header. Raises `ValueError`, whose message does not contain the key."""
    key = key.strip()
    if not (key.isascii() and key.isprintable() and " " not in key and len(key) <= MAX_KEY_CHARS):
        raise ValueError("not an API key: expected one line of printable ASCII characters without spaces")
    return key


def key_in(path: Path) -> str:
    """Return the key in a file."""
    with path.open("rb") as file:
        read = file.read(MAX_KEY_CHARS + 2)
    try:
        key = checked_key(read.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        raise ValueError(f"{path} contains no API key: expected one line of printable ASCII characters") from None
    if not key:
        raise ValueError(f"{path} is empty; expected an API key in it")
    return key


def is_this_machine(host: str) -> bool:
    """Return whether the host is a name or an address of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
