"""`uses: setup-node`: puts an installed version of Node first on the job's PATH."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, check_inputs, non_empty_lines
from deltaci.runner.actions.tools import choose_tool, expand_home, find_tools, read_version_file
from deltaci.runner.workspace.safe_fs import write_file

INPUTS: Final = (
    *("node-version", "node-version-file", "cache", "cache-dependency-path", "architecture", "check-latest", "token"),
    *("registry-url", "scope", "always-auth", "mirror", "mirror-token", "package-manager-cache"),
)
NEWEST: Final = frozenset({"", "*", "node", "latest", "current", "lts", "lts/*", "lts/-0", "stable"})
# The names of long-term support versions, as in `lts/iron`.
LTS_NAMES: Final = {"argon": "4", "boron": "6", "carbon": "8", "dubnium": "10", "erbium": "12", "fermium": "14"} | {
    "gallium": "16",
    "hydrogen": "18",
    "iron": "20",
    "jod": "22",
    "krypton": "24",
}


async def setup(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Find the requested version of Node and put its folder first on the PATH. Return the step's outputs."""
    check_inputs(value_by_input, INPUTS)
    path_patterns = expand_home(_patterns(), Path.home())
    installed_tools = await find_tools(job, ("node", "nodejs"), path_patterns, "--version")
    tool = choose_tool("Node", _version_spec(job, value_by_input), installed_tools)
    if value_by_input.get("cache", "").strip():
        job.log.write_line("setup-node: 'cache' is ignored; use a step 'cache', or 'caches' of the job")
    job.paths = [str(PurePosixPath(tool.path).parent), *job.paths]
    if registry_url := value_by_input.get("registry-url", "").strip():
        npmrc = _write_npmrc(job, registry_url, value_by_input.get("scope", ""))
        job.set_env = {**job.set_env, "NPM_CONFIG_USERCONFIG": npmrc}
    job.log.write_line(f"Node {tool.version_text}: {tool.path}")
    return {"node-version": f"v{tool.version_text}", "cache-hit": "false"}


def _patterns() -> list[str]:
    """Return glob patterns of the paths at which version managers install Node."""
    roots = [
        (os.environ.get("NVM_DIR", ""), "versions/node/*/bin/node"),
        (os.environ.get("VOLTA_HOME", ""), "tools/image/node/*/bin/node"),
        (os.environ.get("FNM_DIR", ""), "node-versions/*/installation/bin/node"),
    ]
    return [
        *(
            f"{shlex.quote(root_folder)}/{path_suffix}"
            for root_folder, path_suffix in roots
            if root_folder.startswith("/")
        ),
        "~/.nvm/versions/node/*/bin/node",
        "~/.volta/tools/image/node/*/bin/node",
        "~/.local/share/fnm/node-versions/*/installation/bin/node",
        "~/.fnm/node-versions/*/installation/bin/node",
        "/opt/hostedtoolcache/node/*/*/bin/node",
        "/usr/local/n/versions/node/*/bin/node",
    ]


def _version_spec(job: JobContext, value_by_input: dict[str, str]) -> str:
    """Return the version that the inputs, or the file they name, request."""
    version_spec = value_by_input.get("node-version", "").strip()
    file_path = value_by_input.get("node-version-file", "").strip()
    if not version_spec and file_path:
        version_spec = parse_version_file(file_path, read_version_file(job, file_path))
    return normalize_version_spec(version_spec)


def normalize_version_spec(version_spec: str) -> str:
    """Return a version spec with names of versions replaced by numbers, and names of the newest version by `*`."""
    lowered_spec = version_spec.strip().lower()
    if lowered_spec in NEWEST:
        return "*"
    if lowered_spec.startswith("lts/"):
        return LTS_NAMES.get(lowered_spec.removeprefix("lts/"), lowered_spec)
    return lowered_spec


def parse_version_file(file_name: str, text: str) -> str:
    """Return the version that a file such as `.nvmrc` or `package.json` requests; empty if there is none."""
    if file_name.endswith("package.json"):
        try:
            package: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused("bad_spec", f"the file {file_name[:80]!r} is not JSON: {error}") from None
        for section_name, field_name in (("volta", "node"), ("engines", "node")):
            section = package.get(section_name) if isinstance(package, dict) else None
            version_spec = section.get(field_name) if isinstance(section, dict) else None
            if isinstance(version_spec, str):
                return version_spec
        return ""
    if file_name.endswith(".tool-versions"):
        return next((line.split()[1] for line in non_empty_lines(text) if line.split()[0] in ("nodejs", "node")), "")
    return next((line for line in non_empty_lines(text) if not line.startswith("#")), "")


def _write_npmrc(job: JobContext, registry_url: str, package_scope: str) -> str:
    """Write npm's configuration for a registry and return its path. It lets npm read the token from NODE_AUTH_TOKEN."""
    url_parts = urlsplit(registry_url)
    if (
        url_parts.scheme not in ("http", "https")
        or not url_parts.hostname
        or not registry_url.isprintable()
        or " " in registry_url
    ):
        raise Refused("bad_spec", f"the input 'registry-url' is {registry_url[:80]!r}; expected a URL with https")
    registry_path = f"//{url_parts.netloc}{url_parts.path if url_parts.path.endswith('/') else url_parts.path + '/'}"
    scope_prefix = (
        f"{package_scope if package_scope.startswith('@') else '@' + package_scope}:" if package_scope.strip() else ""
    )
    npmrc_text = f"{registry_path}:_authToken=${{NODE_AUTH_TOKEN}}\n{scope_prefix}registry={registry_url}\n"
    return str(write_file(job.layout.root, f"{job.layout.relative(job.layout.temp)}/.npmrc", npmrc_text, mode=0o644))
