"""Which repositories, refs and commits of a job spec a runner may fetch.

A job spec may name any repository that its author can read. The server's rules (`deltaci.git.url_policy`) are stricter,
because the server lends its own network to every author; a runner has the protocols that its operator allows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from deltaci.core.errors import Refused
from deltaci.git.command import GitRemote
from deltaci.git.repository import is_commit, is_ref

PROTOCOLS: Final = ("http", "https", "ssh", "git")
PROTOCOLS_VARIABLE: Final = "DELTACI_GIT_PROTOCOLS"  # E.g. `https,file` allows only these two; `file` is for local use.
KNOWN_PROTOCOLS: Final = (*PROTOCOLS, "file")
_SCP_URL: Final = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*:(?!:|//)[^\s-]\S*")


def allowed_protocols() -> tuple[str, ...]:
    """Return the protocols that git may use on this runner: `PROTOCOLS`, or those in the environment variable.

    Names in the variable that are not in `KNOWN_PROTOCOLS` are ignored.
    """
    setting = os.environ.get(PROTOCOLS_VARIABLE)
    if setting is None:
        return PROTOCOLS
    return tuple(
        protocol
        for protocol in (protocol_name.strip() for protocol_name in setting.split(","))
        if protocol in KNOWN_PROTOCOLS
    )


def url_scheme(url: str) -> str:
    """Return the protocol of a URL; empty if it is not one of the known protocols."""
    if url.startswith("/"):
        return "file"
    scheme = url.partition("://")[0]
    if "://" in url:
        return scheme if scheme in KNOWN_PROTOCOLS else ""
    return "ssh" if _SCP_URL.fullmatch(url) else ""


def check_url(url: str, protocols: Sequence[str]) -> str:
    """Return the URL. Raise `Refused` if git may not use it, without showing a password in it."""
    if not url.isprintable() or url.startswith("-") or len(url) > 2000:
        raise Refused("bad_spec", "the URL of the repository is not valid")
    scheme = url_scheme(url)
    redacted_url = url.rpartition("@")[2] if "@" in url else url
    if not scheme or scheme not in protocols:
        raise Refused(
            "bad_spec",
            f"the repository {redacted_url[:200]!r} cannot be fetched by this runner; allowed: {', '.join(protocols)}"
            + (f"; set {PROTOCOLS_VARIABLE}=file for the runner on your own machine" if scheme == "file" else ""),
        )
    if "://" in url:
        try:
            url_parts = urlsplit(url)
            password, host = url_parts.password, url_parts.hostname or ""
        except ValueError:
            raise Refused("bad_spec", f"the repository {redacted_url[:200]!r} has no valid URL") from None
        if password is not None:
            raise Refused("bad_spec", f"the repository {redacted_url[:200]!r} has a password in its URL; use a secret")
        if host.startswith("-") or (url_parts.username or "").startswith("-") or (scheme != "file" and not host):
            raise Refused("bad_spec", f"the repository {redacted_url[:200]!r} has no valid host")
    return url


def check_ref(ref: str) -> str:
    """Return the ref. Raise `Refused` if it is not the full name of a branch or tag."""
    if not is_ref(ref):
        raise Refused("bad_spec", f"{ref[:80]!r} is not the full name of a branch or tag, such as refs/heads/main")
    return ref


def check_commit(commit: str) -> str:
    """Return the commit id. Raise `Refused` if it is not a full one."""
    if not is_commit(commit):
        raise Refused("bad_spec", f"{commit[:80]!r} is not the full name of a commit; give all 40 digits")
    return commit


def make_remote(url: str, protocols: tuple[str, ...], credential: str = "", key_file: str = "") -> GitRemote:
    """Return the repository with its credentials. Raise `Refused` if the runner must not use the URL."""
    return GitRemote(
        url=check_url(url, protocols),
        protocol=url_scheme(url),
        protocols=protocols,
        credential=credential,
        key_file=key_file,
    )
