"""Run the git program: without prompts, with bounded time, output, memory and file size.

Git runs no hook, reads no configuration of the machine and uses only the protocols that the given remote allows.
Credentials are passed in the environment, never in the arguments, which other users of the machine can see. Only
`run_in_user_repository` differs: it runs git as the user would, with the user's configuration.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import msgspec

from deltaci import process
from deltaci.core.errors import Refused
from deltaci.git.url_policy import HTTP, HTTPS, SSH, ResolvedHost

FETCH_SECONDS: Final = 300.0
MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024
MAX_PACK_BYTES: Final = 8 * 1024**3  # The limit for one fetch.
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ERROR_LINES: Final = 4
MAX_ERROR_CHARS: Final = 1000
MAX_CONCURRENT: Final = 4

SETTINGS: Final = {
    "advice.detachedHead": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.quotePath": "false",
    "credential.helper": "",
    "credential.interactive": "never",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "init.defaultBranch": "main",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "safe.directory": "*",
    "transfer.advertiseSID": "false",
}
TOKEN_USER: Final = "x-access-token"  # The user name that forges expect beside a token.
CREDENTIAL_HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$DELTACI_USER" "$DELTACI_PASSWORD"; }; f'
)


class GitProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How git runs: its environment variables and configuration, and limits of time, file size and concurrency.

    A limit of 0 does not apply.
    """

    variables: tuple[str, ...]  # The only variables of this process's environment that git sees.
    settings: dict[str, str] = {}
    command_seconds: float
    fetch_seconds: float
    max_file_bytes: int = 0
    max_concurrent: int = 0


# The server fetches addresses that users enter: it follows no redirect and lends them no proxy, ssh key or ssh setting.
SERVER: Final = GitProfile(
    variables=("PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    settings={
        "fetch.unpackLimit": "1",  # Always store a pack, so that size limits apply to the whole fetch.
        "http.followRedirects": "false",
    },
    command_seconds=60.0,
    fetch_seconds=FETCH_SECONDS,
    max_file_bytes=MAX_PACK_BYTES,
    max_concurrent=MAX_CONCURRENT,
)
# A runner works for its operator: it uses the proxies and the ssh settings of its account.
RUNNER: Final = GitProfile(
    variables=(
        *SERVER.variables,
        *("SSH_AUTH_SOCK", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "TMPDIR"),
    ),
    command_seconds=600.0,
    fetch_seconds=1800.0,
)


class GitFailed(Exception):
    """Git failed, or its result cannot be used. The message says why. `is_transient`: a later try may succeed."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class GitRemote(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a repository: its URL, the allowed protocols, the IP addresses of its host, and its credential.

    Git may use only these `protocols`, also for submodules. With `resolved`, git connects to exactly these IP
    addresses. Without a `known_hosts_file`, ssh uses the settings, keys and known hosts of the account.
    """

    url: str
    protocol: str
    protocols: tuple[str, ...]
    resolved: ResolvedHost | None = None
    credential: str = ""
    key_file: str = ""
    known_hosts_file: str = ""


class Git:
    """Runs git with the environment, settings and limits of a profile."""

    def __init__(self, profile: GitProfile = SERVER) -> None:
        self.profile = profile
        self._slots = asyncio.Semaphore(profile.max_concurrent) if profile.max_concurrent else nullcontext()

    async def run(
        self,
        args: Sequence[str],
        *,
        git_dir: Path | None = None,
        folder: Path | str = "/",
        env: Mapping[str, str] | None = None,
        remote: GitRemote | None = None,
        timeout_seconds: float = 0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        input: bytes | BinaryIO = b"",
        max_memory_bytes: int = 0,
    ) -> bytes:
        """Return the output of git. Raise `GitFailed` if it fails, takes too long or prints too much.

        Git runs in `folder`, with `env` in addition to its own environment. The default time limit is that of the
        profile. An `input` file is read from its current position. `max_memory_bytes` bounds git's address space; 0
        does not. A cancelled or timed-out call is killed with all of its child processes.
        """
        program_result = await self._execute(
            args,
            git_dir=git_dir,
            folder=folder,
            env={**environment(self.profile, remote), **(env or {})},
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
            input=input,
            max_memory_bytes=max_memory_bytes,
        )
        if program_result.exit_code:
            raise _failure(args[0], program_result)
        return program_result.stdout

    async def run_with_exit_code(
        self, args: Sequence[str], *, git_dir: Path, exit_codes: Sequence[int]
    ) -> tuple[int, bytes]:
        """Return git's exit code and its output. Raise `GitFailed` for an exit code not in `exit_codes`."""
        program_result = await self._execute(args, git_dir=git_dir, env=environment(self.profile, None))
        if program_result.exit_code not in exit_codes:
            raise _failure(args[0], program_result)
        return program_result.exit_code, program_result.stdout

    async def succeeds(self, args: Sequence[str], *, git_dir: Path) -> bool:
        """Return True for exit code 0 and False for 1. Raise `GitFailed` for any other."""
        return (await self.run_with_exit_code(args, git_dir=git_dir, exit_codes=(0, 1)))[0] == 0

    async def _execute(
        self,
        args: Sequence[str],
        *,
        git_dir: Path | None,
        env: Mapping[str, str],
        folder: Path | str = "/",
        timeout_seconds: float = 0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        input: bytes | BinaryIO = b"",
        max_memory_bytes: int = 0,
    ) -> process.ProcessResult:
        """Run git with limits and return its result.

        Raise `GitFailed` if it does not start, takes too long or prints too much.
        """
        argv = ["git", *(["--git-dir", str(git_dir)] if git_dir is not None else []), *args]
        limit_by_option = {"f": self.profile.max_file_bytes // 512, "v": max_memory_bytes // 1024}
        ulimit_commands = [
            f"ulimit -{ulimit_option} {limit} && " for ulimit_option, limit in limit_by_option.items() if limit
        ]
        if ulimit_commands:  # A shell limits the size of files and its memory, and then replaces itself by git.
            argv = ["sh", "-c", f'{"".join(ulimit_commands)}exec "$@"', "git", *argv]
        timeout_seconds = timeout_seconds or self.profile.command_seconds
        try:
            async with self._slots:
                program_result = await process.run(
                    argv,
                    env=env,
                    cwd=folder,
                    timeout_seconds=timeout_seconds,
                    max_output_bytes=max_output_bytes,
                    max_error_bytes=MAX_ERROR_BYTES,
                    input=input,
                )
        except OSError as error:
            raise GitFailed(f"git does not start: {error.strerror}; install it on this machine") from error
        except process.ProcessTimeoutError:
            raise GitFailed(f"git {args[0]} took longer than {timeout_seconds:.0f} s", is_transient=True) from None
        if program_result.is_truncated:
            raise GitFailed(f"git printed more than {max_output_bytes:,} bytes, which is the limit for this command")
        return program_result


def run_in_user_repository(
    args: Sequence[str],
    folder: Path,
    timeout_seconds: float,
    env: Mapping[str, str] | None = None,
    input: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder of the user. Return its exit code and output.

    Git reads the user's configuration, but no `GIT_` variables, which a hook sets for its own repository. Raises
    `OSError` if git cannot be started, and `Refused` if it does not end in time.
    """
    inherited_variables = {variable: value for variable, value in os.environ.items() if not variable.startswith("GIT_")}
    fixed_variables = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["git", *args],
            env={**inherited_variables, **fixed_variables, **(env or {})},
            cwd=folder,
            input=input,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused("unreadable", f"git {args[0]} did not end within {timeout_seconds:.0f} s") from None


def environment(profile: GitProfile, remote: GitRemote | None) -> dict[str, str]:
    """Return all environment variables of a git process, including git settings and those to reach `remote`."""
    env = {setting_name: os.environ[setting_name] for setting_name in profile.variables if setting_name in os.environ}
    env |= {
        **{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull},
        **{"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "false", "SSH_ASKPASS": "false", "GIT_OPTIONAL_LOCKS": "0"},
        **{"GIT_ATTR_NOSYSTEM": "1", "GIT_PROTOCOL_FROM_USER": "0", "LC_ALL": "C", "HOME": "/nonexistent"},
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(remote.protocols) if remote is not None else "file",
    }
    value_by_setting = SETTINGS | profile.settings
    if remote is not None:
        value_by_setting |= _remote_settings(remote, env)
    env["GIT_CONFIG_COUNT"] = str(len(value_by_setting))
    for setting_index, (setting_name, value) in enumerate(value_by_setting.items()):
        env[f"GIT_CONFIG_KEY_{setting_index}"], env[f"GIT_CONFIG_VALUE_{setting_index}"] = setting_name, value
    return env


def _remote_settings(remote: GitRemote, env: dict[str, str]) -> Mapping[str, str]:
    """Return the git settings for one remote. Also adds the environment variables for it to `env`."""
    if remote.protocol == SSH:
        env["GIT_SSH_COMMAND"] = shlex.join(["ssh", *_ssh_options(remote)])
        env["GIT_SSH_VARIANT"] = "ssh"
        if not remote.known_hosts_file and "HOME" in os.environ:
            env["HOME"] = os.environ["HOME"]
        return {}
    value_by_setting = {}
    resolved_host = remote.resolved
    if resolved_host is not None and resolved_host.ips != (resolved_host.host,):
        joined_ips = ",".join(f"[{ip}]" if ":" in ip else ip for ip in resolved_host.ips)
        value_by_setting["http.curloptResolve"] = f"{resolved_host.host}:{resolved_host.port}:{joined_ips}"
    if remote.credential and remote.protocol in (HTTP, HTTPS):
        user_or_token, separator, password = remote.credential.strip().partition(":")
        env["DELTACI_USER"], env["DELTACI_PASSWORD"] = (
            (user_or_token, password) if separator else (TOKEN_USER, user_or_token)
        )
        # Only for this host: a submodule or a redirect may lead to another one.
        host = urlsplit(remote.url).netloc.rpartition("@")[2]
        value_by_setting[f"credential.{remote.protocol}://{host}.helper"] = CREDENTIAL_HELPER
    return value_by_setting


def _ssh_options(remote: GitRemote) -> list[str]:
    options = ["-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oConnectTimeout=20"]
    if remote.known_hosts_file:
        options += ["-F", os.devnull, f"-oUserKnownHostsFile={remote.known_hosts_file}"]
        options += ["-oClearAllForwardings=yes", "-oPermitLocalCommand=no"]
    if remote.resolved is not None:
        options += [f"-oHostName={remote.resolved.ips[0]}", f"-oHostKeyAlias={remote.resolved.host}"]
    if remote.key_file:
        options += ["-oIdentitiesOnly=yes", "-i", remote.key_file]
    return options


def _failure(command: str, result: process.ProcessResult) -> GitFailed:
    """Return the exception for a failed command, with its last error lines without control characters."""
    stderr = result.stderr.decode("utf-8", "replace").replace("\r", "\n")
    stderr_lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error_lines = [
        line for line in stderr_lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))
    ] or stderr_lines
    message = "; ".join("".join(filter(str.isprintable, line)) for line in error_lines[-MAX_ERROR_LINES:])
    return GitFailed(
        f"git {command} failed: {message[:MAX_ERROR_CHARS] or f'exit code {result.exit_code}'}",
        is_transient=command in ("fetch", "ls-remote", "push"),
    )
