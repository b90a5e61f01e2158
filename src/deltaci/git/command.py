"""Git as a program: told exactly what to do, never asked questions, stopped when it takes too long or too much room.

Nothing of this machine's configuration reaches it, no hook runs, no redirect is followed, and only the protocols that
were allowed are spoken. Credentials travel in its environment, never in its arguments.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deltaci import process
from deltaci.git.url_policy import FILE, SSH, Address, Resolved

FETCH_SECONDS: Final = 300.0
COMMAND_SECONDS: Final = 60.0
MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024
MAX_PACK_BYTES: Final = 8 * 1024**3  # Of one fetch.
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_TOLD: Final = 500
AT_ONCE: Final = 4

SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "credential.interactive": "never",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # Always a pack: limits hold for it as a whole.
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "transfer.advertiseSID": "false",
}
# What an operator may say about certificates; nothing else of the server's environment is handed on.
HANDED_ON: Final = ("PATH", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR")
USER: Final = "x-access-token"  # What forges call whoever shows only a token.
HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$DELTACI_USER" "$DELTACI_PASSWORD"; }; f'
)


class GitFailed(Exception):
    """Git did not do it; the message says what it said. `is_passing`: another time it may go well."""

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a repository: its address, where its host is, and what to show there."""

    address: Address
    resolved: Resolved | None = None
    credential: str = ""
    key_file: str = ""
    known_hosts: str = ""


class Git:
    """Starts git, so many at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)

    async def run(
        self,
        args: Sequence[str],
        *,
        folder: Path | None = None,
        way: Way | None = None,
        seconds: float = COMMAND_SECONDS,
        limit: int = MAX_OUTPUT_BYTES,
        input: bytes | BinaryIO = b"",
        memory: int = 0,
    ) -> bytes:
        """What it prints. Raises `GitFailed` when it fails, takes too long or prints more than the limit.

        A file as its input is read from where it is; `memory` is how many bytes git may use, 0 for all that it likes.
        """
        async with self._turns:
            code, out, err = await self._ended(args, folder, way, seconds, limit, input, memory)
        if code:
            raise _failed(args[0], code, err)
        return out

    async def answer(
        self, args: Sequence[str], *, folder: Path, codes: Sequence[int], input: bytes = b""
    ) -> tuple[int, bytes]:
        """With which of these codes it ended, and what it printed; another code is a failure."""
        async with self._turns:
            code, out, err = await self._ended(args, folder, None, COMMAND_SECONDS, MAX_OUTPUT_BYTES, input)
        if code not in codes:
            raise _failed(args[0], code, err)
        return code, out

    async def succeeds(self, args: Sequence[str], *, folder: Path) -> bool:
        """Whether it says yes: 0; no is 1, and anything else a failure."""
        return (await self.answer(args, folder=folder, codes=(0, 1)))[0] == 0

    async def _ended(
        self,
        args: Sequence[str],
        folder: Path | None,
        way: Way | None,
        seconds: float,
        limit: int,
        input: bytes | BinaryIO = b"",
        memory: int = 0,
    ) -> tuple[int, bytes, bytes]:
        where = ["--git-dir", str(folder)] if folder is not None else []
        # A shell says how large a file, and it itself, may get at most; it becomes git.
        bounds = f"ulimit -f {MAX_PACK_BYTES // 512}" + (f" && ulimit -v {memory // 1024}" if memory else "")
        words = ["sh", "-c", f'{bounds}; exec git "$@"', "git", *where, *args]
        try:
            ended = await process.call(
                words,
                env=environment(way),
                folder="/",
                seconds=seconds,
                most_bytes=limit,
                most_error_bytes=MAX_ERROR_BYTES,
                input=input,
            )
        except process.TookTooLong:
            raise GitFailed(f"git {args[0]} took longer than {seconds:.0f} s", is_passing=True) from None
        if ended.is_cut:
            raise GitFailed(f"there is more than the {limit:,} bytes that are read of one thing")
        return ended.code, ended.out, ended.err


def environment(way: Way | None) -> dict[str, str]:
    """All that git knows."""
    env = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    env |= {
        **{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull},
        **{"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "false", "SSH_ASKPASS": "false", "GIT_OPTIONAL_LOCKS": "0"},
        **{"GIT_ATTR_NOSYSTEM": "1", "GIT_PROTOCOL_FROM_USER": "0", "LC_ALL": "C", "HOME": "/nonexistent"},
        "GIT_ALLOW_PROTOCOL": way.address.protocol if way is not None else "",
    }
    settings = dict(SETTINGS)
    if way is not None:
        settings |= _told(way, env)
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = name, value
    return env


def _told(way: Way, env: dict[str, str]) -> Mapping[str, str]:
    """What must be said about one address."""
    address, found = way.address, way.resolved
    if address.protocol == FILE:
        return {"safe.directory": "*"}  # Whoever started the server allowed folders, whoever owns them.
    if address.protocol == SSH:
        options = ["-F", os.devnull, "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oConnectTimeout=20"]
        options += [f"-oUserKnownHostsFile={way.known_hosts}", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no"]
        if found is not None:
            options += [f"-oHostName={found.ips[0]}", f"-oHostKeyAlias={found.host}"]
        if way.key_file:
            options += ["-oIdentitiesOnly=yes", "-i", way.key_file]
        env["GIT_SSH_COMMAND"] = " ".join(["ssh", *map(_quoted, options)])
        env["GIT_SSH_VARIANT"] = "ssh"
        return {}
    settings = {}
    if found is not None and found.ips != (found.host,):
        ips = ",".join(f"[{ip}]" if ":" in ip else ip for ip in found.ips)
        settings["http.curloptResolve"] = f"{found.host}:{found.port}:{ips}"
    if way.credential:
        user, colon, password = way.credential.strip().partition(":")
        env["DELTACI_USER"], env["DELTACI_PASSWORD"] = (user, password) if colon else (USER, user)
        settings["credential.helper"] = HELPER
    return settings


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _failed(what: str, code: int, err: bytes) -> GitFailed:
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))] or lines
    said = "; ".join("".join(char for char in line if char.isprintable()) for line in told[:4])[:MAX_TOLD]
    return GitFailed(
        f"git {what} failed: {said or f'exit code {code}'}", is_passing=what in ("fetch", "ls-remote", "push")
    )
