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
    """What the variable DELTACI_SERVER says; else the server whose folder this is; else one on this machine."""
    return os.environ.get(SERVER_VARIABLE, "").strip() or announced_url(data) or DEFAULT_URL


def announced_url(data: Path) -> str:
    """Where the server of this folder says that it is; empty if it says nothing."""
    try:
        with (data / URL_FILE).open(encoding="utf-8") as file:
            return file.read(MAX_URL_CHARS).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def is_at_home(url: str, data: Path) -> bool:
    """Whether this is the server of that folder, or at least on this machine."""
    url = checked_url(url)
    return url == announced_url(data).rstrip("/") or is_this_machine(urlsplit(url).hostname or "")


def checked_url(url: str) -> str:
    """The address of a server, without what would lead elsewhere; raises a ValueError otherwise."""
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
    """A key as it can be sent; raises a ValueError, without the key in it, otherwise."""
    key = key.strip()
    if not (key.isascii() and key.isprintable() and " " not in key and len(key) <= MAX_KEY_CHARS):
        raise ValueError("not an API key: expected one line of printable ASCII characters without spaces")
    return key


def key_in(path: Path) -> str:
    """The key in this file."""
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
    """Whether the name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
