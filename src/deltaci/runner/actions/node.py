"""`uses: setup-node`: a Node that is there, first on the job's PATH."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, known, lines
from deltaci.runner.actions.tools import choose, look, places, read_file
from deltaci.runner.workspace.safe_fs import write_file

INPUTS: Final = (
    *("node-version", "node-version-file", "cache", "cache-dependency-path", "architecture", "check-latest", "token"),
    *("registry-url", "scope", "always-auth", "mirror", "mirror-token", "package-manager-cache"),
)
NEWEST: Final = frozenset({"", "*", "node", "latest", "current", "lts", "lts/*", "lts/-0", "stable"})
# Names of long-term versions are older than the numbers that they stand for.
NAMED: Final = {"argon": "4", "boron": "6", "carbon": "8", "dubnium": "10", "erbium": "12", "fermium": "14"} | {
    "gallium": "16",
    "hydrogen": "18",
    "iron": "20",
    "jod": "22",
    "krypton": "24",
}


async def setup(job: JobContext, inputs: dict[str, str]) -> dict[str, str]:
    """Find the version that is wanted."""
    known(inputs, INPUTS)
    there = await look(job, ("node", "nodejs"), places(_everywhere(), Path.home()), "--version")
    chosen = choose("Node", _wanted(job, inputs), there)
    if inputs.get("cache", "").strip():
        job.log.write_line("setup-node: 'cache' is not done here; use a step 'cache', or 'caches' of the job")
    job.paths = [str(PurePosixPath(chosen.path).parent), *job.paths]
    if registry := inputs.get("registry-url", "").strip():
        job.set_env = {**job.set_env, "NPM_CONFIG_USERCONFIG": _registry(job, registry, inputs.get("scope", ""))}
    job.log.write_line(f"Node {chosen.told}: {chosen.path}")
    return {"node-version": f"v{chosen.told}", "cache-hit": "false"}


def _everywhere() -> list[str]:
    roots = [
        (os.environ.get("NVM_DIR", ""), "versions/node/*/bin/node"),
        (os.environ.get("VOLTA_HOME", ""), "tools/image/node/*/bin/node"),
        (os.environ.get("FNM_DIR", ""), "node-versions/*/installation/bin/node"),
    ]
    return [
        *(f"{shlex.quote(root)}/{rest}" for root, rest in roots if root.startswith("/")),
        "~/.nvm/versions/node/*/bin/node",
        "~/.volta/tools/image/node/*/bin/node",
        "~/.local/share/fnm/node-versions/*/installation/bin/node",
        "~/.fnm/node-versions/*/installation/bin/node",
        "/opt/hostedtoolcache/node/*/*/bin/node",
        "/usr/local/n/versions/node/*/bin/node",
    ]


def _wanted(job: JobContext, inputs: dict[str, str]) -> str:
    wanted = inputs.get("node-version", "").strip()
    file = inputs.get("node-version-file", "").strip()
    if not wanted and file:
        wanted = version_in(file, read_file(job, file))
    return plain(wanted)


def plain(wanted: str) -> str:
    """A word for a version as numbers; the newest that is there for those that mean the newest."""
    lowered = wanted.strip().lower()
    if lowered in NEWEST:
        return "*"
    if lowered.startswith("lts/"):
        return NAMED.get(lowered.removeprefix("lts/"), lowered)
    return lowered


def version_in(name: str, text: str) -> str:
    """The version that a file names."""
    if name.endswith("package.json"):
        try:
            read: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused("bad_spec", f"the file {name[:80]!r} is no JSON: {error}") from None
        for key, inner in (("volta", "node"), ("engines", "node")):
            part = read.get(key) if isinstance(read, dict) else None
            told = part.get(inner) if isinstance(part, dict) else None
            if isinstance(told, str):
                return told
        return ""
    if name.endswith(".tool-versions"):
        return next((line.split()[1] for line in lines(text) if line.split()[0] in ("nodejs", "node")), "")
    return next((line for line in lines(text) if not line.startswith("#")), "")


def _registry(job: JobContext, url: str, scope: str) -> str:
    """A configuration of npm that reads the token from a variable when it is used."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise Refused("bad_spec", f"the input 'registry-url' is {url[:80]!r}; say an address with https")
    where = f"//{parts.netloc}{parts.path if parts.path.endswith('/') else parts.path + '/'}"
    prefix = f"{scope if scope.startswith('@') else '@' + scope}:" if scope.strip() else ""
    text = f"{where}:_authToken=${{NODE_AUTH_TOKEN}}\n{prefix}registry={url}\n"
    return str(write_file(job.layout.root, f"{job.layout.relative(job.layout.temp)}/.npmrc", text, mode=0o644))
