"""The git program, called so that nothing but its arguments decides what it does.

No configuration of the machine or of a user, no hooks, no helpers, no prompts; only the protocols that are allowed. A
credential is told by the environment, never by a command line, and only to the host that it is for.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from deltaci import process
from deltaci.core.errors import Refused
from deltaci.git.command import GitFailed

PROTOCOLS: Final = ("http", "https", "ssh", "git")
PROTOCOLS_VARIABLE: Final = "DELTACI_GIT_PROTOCOLS"  # Say `https,file` to allow only these; `file` is local use.
KNOWN_PROTOCOLS: Final = (*PROTOCOLS, "file")
MAX_SAID_BYTES: Final = 16 * 1024
MAX_OUTPUT_BYTES: Final = 4 * 1024**2
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ALWAYS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "credential.helper": "",
    "safe.directory": "*",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "init.defaultBranch": "main",
    "fetch.recurseSubmodules": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
_NEEDS: Final = ("PATH", "SSH_AUTH_SOCK", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "TMPDIR")
_SSH: Final = "ssh -oBatchMode=yes -oStrictHostKeyChecking=accept-new -oConnectTimeout=30"
_SCP: Final = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*:(?!:|//)[^\s-]\S*")


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A repository, and what it takes to read it. `key_file` has a private key, for ssh."""

    url: str
    protocols: tuple[str, ...]
    credential: str = ""
    key_file: str = ""

    @property
    def scheme(self) -> str:
        """How it is reached."""
        return url_scheme(self.url)


def allowed_protocols() -> tuple[str, ...]:
    """Those that this runner may use."""
    told = os.environ.get(PROTOCOLS_VARIABLE)
    if told is None:
        return PROTOCOLS
    return tuple(each for each in (name.strip() for name in told.split(",")) if each in KNOWN_PROTOCOLS)


def url_scheme(url: str) -> str:
    """The protocol of an address; empty if it is none that git is given here."""
    if url.startswith("/"):
        return "file"
    scheme = url.partition("://")[0]
    if "://" in url:
        return scheme if scheme in KNOWN_PROTOCOLS else ""
    return "ssh" if _SCP.fullmatch(url) else ""


def check_url(url: str, protocols: Sequence[str]) -> str:
    """An address that git may be given. Refused without showing what may be a password in it."""
    if not url.isprintable() or url.startswith("-") or len(url) > 2000:
        raise Refused("bad_spec", "the address of the repository has characters that no address has")
    scheme = url_scheme(url)
    shown = url.rpartition("@")[2] if "@" in url else url
    if not scheme or scheme not in protocols:
        raise Refused(
            "bad_spec",
            f"the repository {shown[:200]!r} cannot be fetched by this runner; it may use {', '.join(protocols)}"
            + (f": say {PROTOCOLS_VARIABLE}=file to the runner of your own machine" if scheme == "file" else ""),
        )
    if "://" in url:
        try:
            parts = urlsplit(url)
            password, host = parts.password, parts.hostname or ""
        except ValueError:
            raise Refused("bad_spec", f"the repository {shown[:200]!r} has no address that can be read") from None
        if password is not None:
            raise Refused("bad_spec", f"the repository {shown[:200]!r} has a password in its address; make it a secret")
        if host.startswith("-") or (parts.username or "").startswith("-") or (scheme != "file" and not host):
            raise Refused("bad_spec", f"the repository {shown[:200]!r} has no host that can be one")
    return url


def check_ref(ref: str) -> str:
    """The whole name of a branch or a tag, or a refusal."""
    parts = ref.split("/")
    is_odd = (
        not ref.startswith("refs/")
        or len(parts) < 3
        or len(ref) > 1000
        or not ref.isprintable()
        or any(each in ref for each in ("..", "@{", "\\", " ", "~", "^", ":", "?", "*", "["))
        or any(not part or part.startswith((".", "-")) or part.endswith((".lock", ".")) for part in parts)
    )
    if is_odd:
        raise Refused("bad_spec", f"{ref[:80]!r} is no name of a branch or tag; say e.g. refs/heads/main")
    return ref


def check_commit(commit: str) -> str:
    """The full name of a commit, or a refusal."""
    if not COMMIT.fullmatch(commit):
        raise Refused("bad_spec", f"{commit[:80]!r} is no full name of a commit; say all 40 digits")
    return commit


def auth_header(credential: str) -> str:
    """How a token, or `user:password`, is shown to a server."""
    user = credential if ":" in credential else f"x-access-token:{credential}"
    return "Authorization: Basic " + base64.b64encode(user.encode()).decode()


def environment(remote: Remote | None, home: Path) -> dict[str, str]:
    """All that git sees of this machine."""
    config = dict(_ALWAYS)
    protocols = remote.protocols if remote is not None else ("file",)
    env = {name: os.environ[name] for name in _NEEDS if name in os.environ}
    ssh = _SSH
    if remote is not None and remote.credential and remote.scheme in ("http", "https"):
        parts = urlsplit(remote.url)
        config[f"http.{parts.scheme}://{parts.netloc.rpartition('@')[2]}/.extraHeader"] = auth_header(remote.credential)
    if remote is not None and remote.key_file:
        ssh += f" -oIdentitiesOnly=yes -i {remote.key_file}"
    else:
        home = Path(os.environ.get("HOME", str(home))) if remote is not None and remote.scheme == "ssh" else home
    for number, (key, value) in enumerate(config.items()):
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
    return env | {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "GIT_CONFIG_COUNT": str(len(config)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "SSH_ASKPASS": "/bin/false",
        "GIT_SSH_COMMAND": ssh,
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


async def git(
    *arguments: str,
    folder: Path,
    timeout_seconds: float,
    remote: Remote | None = None,
    home: Path | None = None,
    env: Mapping[str, str] | None = None,
    max_bytes: int = MAX_OUTPUT_BYTES,
) -> str:
    """Call it; what it wrote. A call that is cancelled or takes too long is killed with all that it started."""
    try:
        ended = await process.run(
            ("git", *arguments),
            env={**environment(remote, home or folder), **(env or {})},
            cwd=folder,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_bytes,
            max_error_bytes=MAX_SAID_BYTES,
            discard_excess=True,
        )
    except OSError as error:
        raise GitFailed(f"git does not start: {error.strerror}; install it where the runner is") from error
    except process.ProcessTimeoutError:
        raise GitFailed(f"git {arguments[0]} took more than {timeout_seconds:.0f} s") from None
    if ended.exit_code:
        raise GitFailed(
            _why(ended.stderr.decode("utf-8", "replace")) or f"git {arguments[0]} ended with {ended.exit_code}"
        )
    return ended.stdout.decode("utf-8", "surrogateescape")


def _why(said: str) -> str:
    """What matters of its complaints, in one line."""
    lines = [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))] or lines
    return "; ".join(told[-4:])[:1000]
