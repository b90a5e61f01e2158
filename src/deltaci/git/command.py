"""Run the git program: without prompts, with bounded time, output, memory and file size.

Git reads no configuration of the machine, runs no hook, follows no redirect and uses only the protocol of the given
remote. Credentials are passed in the environment, never in the arguments, which other users of the machine can see.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deltaci import process
from deltaci.git.url_policy import FILE, SSH, Address, ResolvedHost

FETCH_SECONDS: Final = 300.0
COMMAND_SECONDS: Final = 60.0
MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024
MAX_PACK_BYTES: Final = 8 * 1024**3  # Of one fetch.
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ERROR_CHARS: Final = 500
MAX_CONCURRENT: Final = 4

SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "credential.interactive": "never",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # Always store a pack, so that size limits apply to the whole fetch.
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "transfer.advertiseSID": "false",
}
# The operator's settings for certificates; git sees no other variable of the server's environment.
INHERITED_VARIABLES: Final = ("PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR")
TOKEN_USER: Final = "x-access-token"  # The user name that forges expect beside a token.
CREDENTIAL_HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$DELTACI_USER" "$DELTACI_PASSWORD"; }; f'
)


class GitFailed(Exception):
    """Git failed; the message contains its error lines. `is_transient`: the same command may succeed later."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class GitRemote(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a repository: its URL, the IP addresses of its host, and the credential for it."""

    address: Address
    resolved: ResolvedHost | None = None
    credential: str = ""
    key_file: str = ""
    known_hosts_file: str = ""


class Git:
    """Run git, at most `max_concurrent` processes at a time."""

    def __init__(self, max_concurrent: int = MAX_CONCURRENT) -> None:
        self._slots = asyncio.Semaphore(max_concurrent)

    async def run(
        self,
        args: Sequence[str],
        *,
        git_dir: Path | None = None,
        remote: GitRemote | None = None,
        timeout_seconds: float = COMMAND_SECONDS,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        input: bytes | BinaryIO = b"",
        max_memory_bytes: int = 0,
    ) -> bytes:
        """Return the output of git. Raise `GitFailed` if it fails, takes too long or prints too much.

        An `input` file is read from its current position. `max_memory_bytes` bounds git's address space; 0 does not.
        """
        async with self._slots:
            code, stdout, stderr = await self._execute(
                args, git_dir, remote, timeout_seconds, max_output_bytes, input, max_memory_bytes
            )
        if code:
            raise _failure(args[0], code, stderr)
        return stdout

    async def run_with_exit_code(
        self, args: Sequence[str], *, git_dir: Path, exit_codes: Sequence[int], input: bytes = b""
    ) -> tuple[int, bytes]:
        """Return git's exit code and its output. Raise `GitFailed` for an exit code not in `exit_codes`."""
        async with self._slots:
            code, stdout, stderr = await self._execute(args, git_dir, None, COMMAND_SECONDS, MAX_OUTPUT_BYTES, input)
        if code not in exit_codes:
            raise _failure(args[0], code, stderr)
        return code, stdout

    async def succeeds(self, args: Sequence[str], *, git_dir: Path) -> bool:
        """Return True for exit code 0 and False for 1. Raise `GitFailed` for any other."""
        return (await self.run_with_exit_code(args, git_dir=git_dir, exit_codes=(0, 1)))[0] == 0

    async def _execute(
        self,
        args: Sequence[str],
        git_dir: Path | None,
        remote: GitRemote | None,
        timeout_seconds: float,
        max_output_bytes: int,
        input: bytes | BinaryIO = b"",
        max_memory_bytes: int = 0,
    ) -> tuple[int, bytes, bytes]:
        git_dir_args = ["--git-dir", str(git_dir)] if git_dir is not None else []
        # A shell limits the size of files and its memory, and then replaces itself by git.
        limits = f"ulimit -f {MAX_PACK_BYTES // 512}" + (
            f" && ulimit -v {max_memory_bytes // 1024}" if max_memory_bytes else ""
        )
        argv = ["sh", "-c", f'{limits}; exec git "$@"', "git", *git_dir_args, *args]
        try:
            result = await process.run(
                argv,
                env=environment(remote),
                cwd="/",
                timeout_seconds=timeout_seconds,
                max_output_bytes=max_output_bytes,
                max_error_bytes=MAX_ERROR_BYTES,
                input=input,
            )
        except process.ProcessTimeoutError:
            raise GitFailed(f"git {args[0]} took longer than {timeout_seconds:.0f} s", is_transient=True) from None
        if result.is_truncated:
            raise GitFailed(f"git printed more than {max_output_bytes:,} bytes, which is the limit for this command")
        return result.exit_code, result.stdout, result.stderr


def environment(remote: GitRemote | None) -> dict[str, str]:
    """Return the complete environment of a git process."""
    env = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    env |= {
        **{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull},
        **{"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "false", "SSH_ASKPASS": "false", "GIT_OPTIONAL_LOCKS": "0"},
        **{"GIT_ATTR_NOSYSTEM": "1", "GIT_PROTOCOL_FROM_USER": "0", "LC_ALL": "C", "HOME": "/nonexistent"},
        "GIT_ALLOW_PROTOCOL": remote.address.protocol if remote is not None else "",
    }
    settings = dict(SETTINGS)
    if remote is not None:
        settings |= _remote_settings(remote, env)
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = name, value
    return env


def _remote_settings(remote: GitRemote, env: dict[str, str]) -> Mapping[str, str]:
    """Return the git settings for one remote, and add its variables to `env`."""
    address, resolved = remote.address, remote.resolved
    if address.protocol == FILE:
        return {"safe.directory": "*"}  # The operator allowed local folders, no matter which user owns them.
    if address.protocol == SSH:
        options = ["-F", os.devnull, "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oConnectTimeout=20"]
        options += [f"-oUserKnownHostsFile={remote.known_hosts_file}"]
        options += ["-oClearAllForwardings=yes", "-oPermitLocalCommand=no"]
        if resolved is not None:
            options += [f"-oHostName={resolved.ips[0]}", f"-oHostKeyAlias={resolved.host}"]
        if remote.key_file:
            options += ["-oIdentitiesOnly=yes", "-i", remote.key_file]
        env["GIT_SSH_COMMAND"] = " ".join(["ssh", *map(_shell_quoted, options)])
        env["GIT_SSH_VARIANT"] = "ssh"
        return {}
    settings = {}
    if resolved is not None and resolved.ips != (resolved.host,):
        ips = ",".join(f"[{ip}]" if ":" in ip else ip for ip in resolved.ips)
        settings["http.curloptResolve"] = f"{resolved.host}:{resolved.port}:{ips}"
    if remote.credential:
        user, colon, password = remote.credential.strip().partition(":")
        env["DELTACI_USER"], env["DELTACI_PASSWORD"] = (user, password) if colon else (TOKEN_USER, user)
        settings["credential.helper"] = CREDENTIAL_HELPER
    return settings


def _shell_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _failure(command: str, code: int, stderr: bytes) -> GitFailed:
    """Return the exception for a failed command, with its first error lines without control characters."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    error_lines = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))] or lines
    message = "; ".join("".join(char for char in line if char.isprintable()) for line in error_lines[:4])
    return GitFailed(
        f"git {command} failed: {message[:MAX_ERROR_CHARS] or f'exit code {code}'}",
        is_transient=command in ("fetch", "ls-remote", "push"),
    )
