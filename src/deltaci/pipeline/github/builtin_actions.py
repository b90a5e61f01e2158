"""The actions that the runner implements itself, and which of their inputs are supported."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.core.text import nearest
from deltaci.pipeline.expressions import ExpressionError, parse_template
from deltaci.pipeline.github.converter import Converter, text_node
from deltaci.pipeline.github.keys import MAX_LISTED, KeyRule, ignored, supported, unsupported
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import NULL, OBJECT, Node

ONLY_FASTER: Final = "it only affects speed"
ONLY_OUTPUT: Final = "it only affects the output"
RUNNER_CREDENTIAL: Final = "the runner fetches with its own credential"
SERVER_RETENTION: Final = "the retention of artifacts is set on the server"


class BuiltinAction(NamedTuple):
    """The name of the builtin step that implements an action, and the rule for each input of the action."""

    uses: str
    inputs: dict[str, KeyRule]
    required_inputs: tuple[str, ...] = ()


_CACHE: Final = {
    "path": supported(),
    "key": supported(),
    "restore-keys": supported(),
    "enableCrossOsArchive": ignored("a cache belongs to one operating system"),
    "upload-chunk-size": ignored(ONLY_FASTER),
    "save-always": ignored("a cache is saved when the job succeeded"),
    "fail-on-cache-miss": supported(),
    "lookup-only": supported(),
}
_SETUP: Final = {
    "architecture": unsupported("it depends on the runner: choose a runner by its labels"),
    "cache": ignored(ONLY_FASTER),
    "cache-dependency-path": ignored(ONLY_FASTER),
    "check-latest": ignored("the newest version that the runner can find is used"),
    "token": ignored("the runner downloads nothing from the forge"),
}
ACTIONS: Final[dict[str, BuiltinAction]] = {
    "actions/checkout": BuiltinAction(
        "checkout",
        {
            "fetch-depth": supported(),
            "path": supported(),
            "submodules": supported(),
            "fetch-tags": supported(),
            "ref": supported("of this repository; expressions for the commit of the change have no effect"),
            "repository": supported("only this repository, as `${{ github.repository }}`"),
            "lfs": unsupported("fetch the files in a step: git lfs pull"),
            "allow-unsafe-pr-checkout": ignored("code from forks never gets secrets here"),
            "clean": ignored("the workspace is always clean"),
            "filter": ignored(ONLY_FASTER),
            "persist-credentials": ignored("a job never gets the credential"),
            "set-safe-directory": ignored("the workspace belongs to the job"),
            "show-progress": ignored(ONLY_OUTPUT),
            "sparse-checkout": ignored("all files are checked out"),
            "sparse-checkout-cone-mode": ignored("all files are checked out"),
            "ssh-key": ignored(RUNNER_CREDENTIAL),
            "ssh-known-hosts": ignored(RUNNER_CREDENTIAL),
            "ssh-strict": ignored(RUNNER_CREDENTIAL),
            "ssh-user": ignored(RUNNER_CREDENTIAL),
            "token": ignored(RUNNER_CREDENTIAL),
            "github-server-url": unsupported("only this repository can be checked out"),
        },
    ),
    "actions/cache": BuiltinAction("cache", _CACHE, required_inputs=("path", "key")),
    "actions/upload-artifact": BuiltinAction(
        "upload-artifact",
        {
            "name": supported(),
            "path": supported(),
            "if-no-files-found": supported(),
            "overwrite": supported(),
            "include-hidden-files": supported(),
            "compression-level": ignored(ONLY_FASTER),
            "retention-days": ignored(SERVER_RETENTION),
            "archive": unsupported("an artifact is always a set of files"),
        },
        required_inputs=("path",),
    ),
    "actions/download-artifact": BuiltinAction(
        "download-artifact",
        {
            "name": supported(),
            "path": supported(),
            "pattern": supported(),
            "merge-multiple": supported(),
            "artifact-ids": unsupported("an artifact is found by its name"),
            "digest-mismatch": ignored("a damaged artifact is always refused"),
            "github-token": unsupported("only artifacts of the same run are available"),
            "repository": unsupported("only artifacts of the same run are available"),
            "run-id": unsupported("only artifacts of the same run are available"),
            "skip-decompress": unsupported("an artifact is always a set of files"),
        },
    ),
    "actions/setup-python": BuiltinAction(
        "setup-python",
        {
            "python-version": supported(),
            "python-version-file": supported(),
            "allow-prereleases": supported(),
            **_SETUP,
            "freethreaded": unsupported("it is not supported"),
            "pip-install": unsupported("write it as a command: pip install …"),
            "pip-version": unsupported("write it as a command: pip install pip==…"),
            "update-environment": unsupported("the version that is set up always comes first in PATH"),
        },
    ),
    "actions/setup-node": BuiltinAction(
        "setup-node",
        {
            "node-version": supported(),
            "node-version-file": supported(),
            **_SETUP,
            "always-auth": ignored("it has no effect on GitHub either"),
            "package-manager-cache": ignored(ONLY_FASTER),
            "registry-url": unsupported("it writes credentials for npm: write .npmrc in a step"),
            "scope": unsupported("it writes credentials for npm: write .npmrc in a step"),
            "mirror": unsupported("the runner decides where Node is downloaded from"),
            "mirror-token": unsupported("the runner decides where Node is downloaded from"),
        },
    ),
}
# Inputs with these values are accepted silently: they are the default on GitHub or here.
DEFAULT_INPUTS: Final = {
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
# Expressions for the commit that a run is about.
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
_SINGLE_EXPRESSION: Final = re.compile(r"^\s*\$\{\{(.*)\}\}\s*$", re.DOTALL)


# Actions that only affect speed or only observe: a job does the same without them.
IGNORED_ACTIONS: Final = {
    "swatinem/rust-cache": "it only caches build results",
    "step-security/harden-runner": "it only monitors jobs on GitHub's own machines",
}


class BuiltinStep(NamedTuple):
    """The keys `uses` and `with` of a step that runs a builtin action."""

    uses: Node
    with_: Node


def convert_builtin_action(uses: Node, with_node: Node | None, converter: Converter) -> BuiltinStep | None:
    """Convert `uses` and `with` of a step to those of the builtin step for the action, of any version.

    Report a problem and return None if the action is unsupported.
    """
    action_name = uses.value.partition("@")[0].strip()
    action = ACTIONS.get(action_name.lower())
    if action is None:
        converter.report_unsupported(
            uses.position, f"the action {quote(action_name)}", _unsupported_reason(uses.value, action_name)
        )
        return None
    if "@" not in uses.value:
        converter.report_unsupported(
            uses.position, f"the action {quote(uses.value)} without a version", f"write it as {action_name}@v4"
        )
        return None
    if with_node is not None and with_node.kind not in (OBJECT, NULL):
        converter.report_unsupported(
            with_node.position, f"{with_node.describe()} as 'with'", "expected names with values"
        )
        return None
    entry_by_input: dict[str, tuple[Node, Node]] = {}
    for key_node, value_node in with_node.value if with_node is not None and with_node.kind == OBJECT else ():
        _convert_input(action, action_name, key_node, value_node, entry_by_input, converter)
    for required_input in action.required_inputs:
        if required_input not in entry_by_input:
            converter.report_unsupported(
                uses.position, f"{action_name} without {quote(required_input)}", "GitHub's action needs it as well"
            )
    position = with_node.position if with_node is not None else uses.position
    return BuiltinStep(text_node(uses.position, action.uses), Node(OBJECT, position, [*entry_by_input.values()]))


def _convert_input(
    action: BuiltinAction,
    action_name: str,
    key_node: Node,
    value_node: Node,
    entry_by_input: dict[str, tuple[Node, Node]],
    converter: Converter,
) -> None:
    """Add an input of an action to `entry_by_input` if it is supported and has an effect, else report it."""
    scalar = converter.convert_scalar(value_node, "steps.with", key_node.raw)
    if scalar is None:
        return
    names_by_lower = {input_name.lower(): input_name for input_name in action.inputs}
    input_name = names_by_lower.get(key_node.raw.lower(), key_node.raw)
    rule = action.inputs.get(input_name)
    if rule is None:
        nearest_word = nearest(key_node.raw, action.inputs)
        listed_names = ", ".join([*action.inputs][:MAX_LISTED])
        message = f"{quote(key_node.raw)}, which {action_name} does not have"
        converter.report_unsupported(
            key_node.position, message, "" if nearest_word else f"expected one of: {listed_names}", nearest_word
        )
    elif (input_name, scalar.raw.strip().lower()) in DEFAULT_INPUTS or (rule.kind == "unsupported" and not scalar.raw):
        return
    elif rule.kind == "ignored":
        converter.warn(key_node.position, f"{quote(key_node.raw)} of {action_name} has no effect here", rule.reason)
    elif rule.kind == "unsupported":
        converter.report_unsupported(key_node.position, f"{quote(key_node.raw)} of {action_name}", rule.reason)
    elif input_name not in ("ref", "repository") or _selects_other_commit(input_name, scalar, converter):
        entry_by_input[input_name] = (text_node(key_node.position, input_name), scalar)
        if action.uses == "cache":
            _check_cache_input(input_name, scalar, converter)


def _check_cache_input(input_name: str, value_node: Node, converter: Converter) -> None:
    """Report commas in the key of a cache and patterns in its paths. Expressions in these texts are not checked."""
    try:
        plain_text = "".join(
            template_part for template_part in parse_template(value_node.raw).parts if isinstance(template_part, str)
        )
    except ExpressionError:
        return  # Reported already.
    if input_name in ("key", "restore-keys") and "," in plain_text:
        converter.report_unsupported(
            value_node.position, f"a comma in {quote(input_name)} of a cache", "use another character"
        )
    for cached_path in plain_text.splitlines() if input_name == "path" else ():
        if any(character in cached_path for character in "*?[") and not cached_path.strip().startswith("!"):
            message = f"{quote(cached_path.strip())} of a cache, which is a pattern"
            converter.warn(value_node.position, message, "matching files are not cached: name the folder")


def _selects_other_commit(input_name: str, value_node: Node, converter: Converter) -> bool:
    """Return whether the input `ref` names another commit than that of the change, so that the checkout needs it.

    Return False for the input `repository`. Report a repository other than this one, and inputs without effect.
    """
    expression_match = _SINGLE_EXPRESSION.match(value_node.raw)
    ref_source = re.sub(r"\s+", "", expression_match[1]) if expression_match else ""
    if not value_node.raw.strip():
        return False
    if input_name == "ref" and ref_source in SAME_COMMIT:
        converter.warn(
            value_node.position,
            "'ref' has no effect here",
            "the commit of the change is checked out, never a merge of it",
        )
    elif input_name == "repository" and ref_source in SAME_REPOSITORY:
        converter.warn(value_node.position, "'repository' has no effect here", "it is this repository")
    elif input_name == "repository":
        message = f"a checkout of another repository, {quote(value_node.raw)}"
        converter.report_unsupported(value_node.position, message, "clone it in a step, with git")
    return input_name == "ref" and ref_source not in SAME_COMMIT


def _unsupported_reason(action_reference: str, action_name: str) -> str:
    if action_reference.startswith("docker://"):
        return "actions that are container images are not supported"
    if action_name.lower().startswith("actions/cache/"):
        return "of actions/cache only the combined action is supported"
    return "only some of GitHub's own actions are supported: use a command"
