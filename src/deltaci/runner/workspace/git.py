"""Run the git program so that only its arguments decide its behaviour.

It reads no configuration of the machine or a user, runs no hooks or helpers, asks no questions, and uses only allowed
protocols. A credential is passed by environment variables, not by arguments, and is sent only to its own host.
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
PROTOCOLS_VARIABLE: Final = "DELTACI_GIT_PROTOCOLS"  # E.g. `https,file` allows only these two; `file` is for local use.
KNOWN_PROTOCOLS: Final = (*PROTOCOLS, "file")
MAX_ERROR_BYTES: Final = 16 * 1024
MAX_OUTPUT_BYTES: Final = 4 * 1024**2
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CONFIG: Final = {
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
_VARIABLES: Final = (
    "PATH",
    "SSH_AUTH_SOCK",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTPS_PROXY",
    "NO_PROXY",
    "TMPDIR",
)
_SSH_COMMAND: Final = "ssh -oBatchMode=yes -oStrictHostKeyChecking=accept-new -oConnectTimeout=30"
_SCP_URL: Final = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.-]*:(?!:|//)[^\s-]\S*")


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A repository and the credentials to read it. `key_file` contains a private ssh key."""

    url: str
    protocols: tuple[str, ...]
    credential: str = ""
    key_file: str = ""

    @property
    def scheme(self) -> str:
        return url_scheme(self.url)


def allowed_protocols() -> tuple[str, ...]:
    """Return the protocols that this runner may use."""
    setting = os.environ.get(PROTOCOLS_VARIABLE)
    if setting is None:
        return PROTOCOLS
    return tuple(protocol for protocol in (name.strip() for name in setting.split(",")) if protocol in KNOWN_PROTOCOLS)


def url_scheme(url: str) -> str:
    """Return the protocol of a URL; empty if it is not one of the known protocols."""
    if url.startswith("/"):
        return "file"
    scheme = url.partition("://")[0]
    if "://" in url:
        return scheme if scheme in KNOWN_PROTOCOLS else ""
    return "ssh" if _SCP_URL.fullmatch(url) else ""


def check_url(url: str, protocols: Sequence[str]) -> str:
    """Return the URL if git may use it. A `Refused` error does not show what may be a password in it."""
    if not url.isprintable() or url.startswith("-") or len(url) > 2000:
        raise Refused("bad_spec", "the URL of the repository is not valid")
    scheme = url_scheme(url)
    redacted = url.rpartition("@")[2] if "@" in url else url
    if not scheme or scheme not in protocols:
        raise Refused(
            "bad_spec",
            f"the repository {redacted[:200]!r} cannot be fetched by this runner; allowed: {', '.join(protocols)}"
            + (f"; set {PROTOCOLS_VARIABLE}=file for the runner on your own machine" if scheme == "file" else ""),
        )
    if "://" in url:
        try:
            parts = urlsplit(url)
            password, host = parts.password, parts.hostname or ""
        except ValueError:
            raise Refused("bad_spec", f"the repository {redacted[:200]!r} has no valid URL") from None
        if password is not None:
            raise Refused("bad_spec", f"the repository {redacted[:200]!r} has a password in its URL; use a secret")
        if host.startswith("-") or (parts.username or "").startswith("-") or (scheme != "file" and not host):
            raise Refused("bad_spec", f"the repository {redacted[:200]!r} has no valid host")
    return url


def check_ref(ref: str) -> str:
    """Return the full name of a branch or tag. Raises `Refused` if it is not valid."""
    parts = ref.split("/")
    is_invalid = (
        not ref.startswith("refs/")
        or len(parts) < 3
        or len(ref) > 1000
        or not ref.isprintable()
        or any(sequence in ref for sequence in ("..", "@{", "\\", " ", "~", "^", ":", "?", "*", "["))
        or any(not part or part.startswith((".", "-")) or part.endswith((".lock", ".")) for part in parts)
    )
    if is_invalid:
        raise Refused("bad_spec", f"{ref[:80]!r} is not the full name of a branch or tag, such as refs/heads/main")
    return ref


def check_commit(commit: str) -> str:
    """Return the full commit id. Raises `Refused` if it is not valid."""
    if not COMMIT.fullmatch(commit):
        raise Refused("bad_spec", f"{commit[:80]!r} is not the full name of a commit; give all 40 digits")
    return commit


def auth_header(credential: str) -> str:
    """Return the HTTP header for a token or `user:password`."""
    user = credential if ":" in credential else f"x-access-token:{credential}"
    return "Authorization: Basic " + base64.b64encode(user.encode()).decode()


def environment(remote: Remote | None, home: Path) -> dict[str, str]:
    """Return the whole environment of git."""
    config = dict(_CONFIG)
    protocols = remote.protocols if remote is not None else ("file",)
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    ssh = _SSH_COMMAND
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
    """Run git and return its output. A cancelled or timed-out call is killed with all of its child processes."""
    try:
        result = await process.run(
            ("git", *arguments),
            env={**environment(remote, home or folder), **(env or {})},
            cwd=folder,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_bytes,
            max_error_bytes=MAX_ERROR_BYTES,
            discard_excess=True,
        )
    except OSError as error:
        raise GitFailed(f"git does not start: {error.strerror}; install it on the runner's machine") from error
    except process.ProcessTimeoutError:
        raise GitFailed(f"git {arguments[0]} took more than {timeout_seconds:.0f} s") from None
    if result.exit_code:
        raise GitFailed(
            _summarize_error(result.stderr.decode("utf-8", "replace"))
            or f"git {arguments[0]} ended with {result.exit_code}"
        )
    return result.stdout.decode("utf-8", "surrogateescape")


def _summarize_error(stderr: str) -> str:
    """Return the important lines of an error output as one line."""
    lines = [line.strip() for line in stderr.replace("\r", "\n").splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))] or lines
    return "; ".join(messages[-4:])[:1000]
