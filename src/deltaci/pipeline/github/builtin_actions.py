"""The actions that a runner does itself, and what they can be told: the rest of the subset as a table."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.core.text import nearest
from deltaci.pipeline.expressions import ExpressionError, parse_template
from deltaci.pipeline.github.converter import Desk, made
from deltaci.pipeline.github.keys import MAX_LISTED, Rule, inside, note, outside
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import NULL, OBJECT, Node

FASTER: Final = "it would only be faster"
SHOWN: Final = "it is only about what is shown"
OWN: Final = "a runner fetches with a credential of its own"
KEPT: Final = "artifacts are kept as long as the server says"


class Action(NamedTuple):
    """A built-in step, and of every input of the action whether it is understood."""

    uses: str
    inputs: dict[str, Rule]
    fixed: tuple[tuple[str, str], ...] = ()  # what the built-in is told beside
    required: tuple[str, ...] = ()


_CACHE: Final = {
    "path": inside(),
    "key": inside(),
    "restore-keys": inside(),
    "enableCrossOsArchive": note("a cache is for one kind of system"),
    "upload-chunk-size": note(FASTER),
    "save-always": note("a cache is saved when the job succeeded"),
    "fail-on-cache-miss": inside(),
    "lookup-only": inside(),
}
_SETUP: Final = {
    "architecture": outside("it is the runner's: choose a runner by its labels"),
    "cache": note(FASTER),
    "cache-dependency-path": note(FASTER),
    "check-latest": note("the newest that the runner can find is taken"),
    "token": note("nothing is fetched from the forge for it"),
}
ACTIONS: Final[dict[str, Action]] = {
    "actions/checkout": Action(
        "checkout",
        {
            "fetch-depth": inside(),
            "path": inside(),
            "submodules": inside(),
            "fetch-tags": inside(),
            "ref": inside("of this repository; what GitHub calls the commit of the change is that commit"),
            "repository": inside("only this one, as `${{ github.repository }}`"),
            "lfs": outside("fetch the files in a step: git lfs pull"),
            "allow-unsafe-pr-checkout": note("what a stranger wrote never gets secrets here"),
            "clean": note("a workspace is always clean"),
            "filter": note(FASTER),
            "persist-credentials": note("a job never gets the credential"),
            "set-safe-directory": note("the workspace belongs to the job"),
            "show-progress": note(SHOWN),
            "sparse-checkout": note("all files are there"),
            "sparse-checkout-cone-mode": note("all files are there"),
            "ssh-key": note(OWN),
            "ssh-known-hosts": note(OWN),
            "ssh-strict": note(OWN),
            "ssh-user": note(OWN),
            "token": note(OWN),
            "github-server-url": outside("only this repository can be checked out"),
        },
    ),
    "actions/cache": Action("cache", _CACHE, required=("path", "key")),
    "actions/upload-artifact": Action(
        "upload-artifact",
        {
            "name": inside(),
            "path": inside(),
            "if-no-files-found": inside(),
            "overwrite": inside(),
            "include-hidden-files": inside(),
            "compression-level": note(FASTER),
            "retention-days": note(KEPT),
            "archive": outside("an artifact is always a set of files"),
        },
        required=("path",),
    ),
    "actions/download-artifact": Action(
        "download-artifact",
        {
            "name": inside(),
            "path": inside(),
            "pattern": inside(),
            "merge-multiple": inside(),
            "artifact-ids": outside("an artifact is found by its name"),
            "digest-mismatch": note("what is not whole is always refused"),
            "github-token": outside("only artifacts of the same run can be had"),
            "repository": outside("only artifacts of the same run can be had"),
            "run-id": outside("only artifacts of the same run can be had"),
            "skip-decompress": outside("an artifact is always a set of files"),
        },
    ),
    "actions/setup-python": Action(
        "setup-python",
        {
            "python-version": inside(),
            "python-version-file": inside(),
            "allow-prereleases": inside(),
            **_SETUP,
            "freethreaded": outside("it is not chosen here"),
            "pip-install": outside("write it as a command: pip install …"),
            "pip-version": outside("write it as a command: pip install pip==…"),
            "update-environment": outside("the version that is set up is always the one that is found first"),
        },
    ),
    "actions/setup-node": Action(
        "setup-node",
        {
            "node-version": inside(),
            "node-version-file": inside(),
            **_SETUP,
            "always-auth": note("it has no effect on GitHub either"),
            "package-manager-cache": note(FASTER),
            "registry-url": outside("it writes credentials for npm: write .npmrc in a step"),
            "scope": outside("it writes credentials for npm: write .npmrc in a step"),
            "mirror": outside("a runner knows where to get it"),
            "mirror-token": outside("a runner knows where to get it"),
        },
    ),
}
# As if it were not there: what GitHub's default says anyway.
HARMLESS: Final = {
    ("architecture", "x64"),
    ("lfs", "false"),
    ("persist-credentials", "false"),
    ("clean", "true"),
    ("check-latest", "false"),
    ("set-safe-directory", "true"),
    ("update-environment", "true"),
    ("freethreaded", "false"),
    ("archive", "true"),
    ("skip-decompress", "false"),
    ("registry-url", "https://registry.npmjs.org"),
    ("registry-url", "https://registry.npmjs.org/"),
}
# The commit that a run is about, in the words of GitHub.
SAME_COMMIT: Final = frozenset(
    {
        *("github.sha", "github.ref", "github.ref_name", "github.head_ref", "github.head_ref||github.ref"),
        *("github.head_ref||github.ref_name", "github.head_ref||github.sha", "github.event.pull_request.head.sha"),
        *("github.event.pull_request.head.ref", "github.event.pull_request.head.sha||github.sha"),
        *("github.event.pull_request.head.sha||github.ref", "github.event.pull_request.head.ref||github.ref"),
        *("github.event.pull_request.head.sha||github.head_ref", "github.event.after", "github.event.head_commit.id"),
        "github.event.pull_request.head.ref||github.ref_name",
    }
)
SAME_REPOSITORY: Final = frozenset({"github.repository", "github.event.pull_request.head.repo.full_name"})
_HOLE: Final = re.compile(r"^\s*\$\{\{(.*)\}\}\s*$", re.DOTALL)


# They change nothing but how long it takes, or watch from outside: without them a job does the same.
DROPPED: Final = {
    "swatinem/rust-cache": "it only keeps what was built, to be faster the next time",
    "step-security/harden-runner": "it only watches what a job does on GitHub's own machines",
}


class BuiltIn(NamedTuple):
    """What a step with `uses` becomes."""

    uses: Node
    with_: Node


def built_in(uses: Node, given: Node | None, desk: Desk) -> BuiltIn | None:
    """The built-in step that an action stands for, at whichever version; None if it was said that there is none."""
    name = uses.value.partition("@")[0].strip()
    action = ACTIONS.get(name.lower())
    if action is None:
        desk.outside(uses.at, f"the action {shown(name)}", _why(uses.value, name))
        return None
    if "@" not in uses.value:
        desk.outside(uses.at, f"the action {shown(uses.value)} without a version", f"write it as {name}@v4")
        return None
    if given is not None and given.kind not in (OBJECT, NULL):
        desk.outside(given.at, f"{given.described()} as 'with'", "expected names with values")
        return None
    told: dict[str, tuple[Node, Node]] = {}
    for key, value in given.value if given is not None and given.kind == OBJECT else ():
        _take(action, name, key, value, told, desk)
    for needed in action.required:
        if needed not in told:
            desk.outside(uses.at, f"{name} without {shown(needed)}", "GitHub's action needs it as well")
    pairs = [*told.values(), *((made(uses.at, key), made(uses.at, value)) for key, value in action.fixed)]
    return BuiltIn(made(uses.at, action.uses), Node(OBJECT, given.at if given is not None else uses.at, pairs))


def _take(action: Action, name: str, key: Node, value: Node, told: dict[str, tuple[Node, Node]], desk: Desk) -> None:
    found = desk.scalar(value, "steps.with", key.written)
    if found is None:
        return
    lowered = {known.lower(): known for known in action.inputs}
    known = lowered.get(key.written.lower(), key.written)
    rule = action.inputs.get(known)
    if rule is None:
        near = nearest(key.written, action.inputs)
        names = ", ".join([*action.inputs][:MAX_LISTED])
        told_ = f"{shown(key.written)}, which {name} does not have"
        desk.outside(key.at, told_, "" if near else f"expected one of: {names}", near)
    elif (known, found.written.strip().lower()) in HARMLESS or (rule.kind == "outside" and not found.written):
        return
    elif rule.kind == "note":
        desk.note(key.at, f"{shown(key.written)} of {name} has no effect here", rule.why)
    elif rule.kind == "outside":
        desk.outside(key.at, f"{shown(key.written)} of {name}", rule.why)
    elif known not in ("ref", "repository") or _other(known, found, desk):
        told[known] = (made(key.at, known), found)
        if action.uses == "cache":
            _check_cache(known, found, desk)


def _check_cache(key: str, value: Node, desk: Desk) -> None:
    """What a cache cannot be told here, as far as it is written in full."""
    try:
        plain = "".join(part for part in parse_template(value.written).parts if isinstance(part, str))
    except ExpressionError:
        return  # It was said.
    if key in ("key", "restore-keys") and "," in plain:
        desk.outside(value.at, f"a comma in {shown(key)} of a cache", "write something else in its place")
    for path in plain.splitlines() if key == "path" else ():
        if any(sign in path for sign in "*?[") and not path.strip().startswith("!"):
            told = f"{shown(path.strip())} of a cache, which is a pattern"
            desk.note(value.at, told, "what it stands for is not kept: name the folder")


def _other(key: str, value: Node, desk: Desk) -> bool:
    """Whether a checkout must be told this: it is of something else than the change. Other repositories are outside."""
    hole = _HOLE.match(value.written)
    inner = re.sub(r"\s+", "", hole[1]) if hole else ""
    if not value.written.strip():
        return False
    if key == "ref" and inner in SAME_COMMIT:
        desk.note(value.at, "'ref' has no effect here", "the commit of the change is checked out, never a merge of it")
    elif key == "repository" and inner in SAME_REPOSITORY:
        desk.note(value.at, "'repository' has no effect here", "it is this one")
    elif key == "repository":
        told = f"a checkout of another repository, {shown(value.written)}"
        desk.outside(value.at, told, "clone it in a step, with git")
    return key == "ref" and inner not in SAME_COMMIT


def _why(uses: str, name: str) -> str:
    if uses.startswith("docker://"):
        return "actions that are images do not run here"
    if name.lower().startswith("actions/cache/"):
        return "only the whole of actions/cache is built in"
    return "only some of GitHub's own actions are built in: write it as a command"
