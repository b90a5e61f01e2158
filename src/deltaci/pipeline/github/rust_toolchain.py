"""Converts the third-party action dtolnay/rust-toolchain to the rustup commands that it consists of."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.github.converter import Converter, object_node, text_node
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import NULL, OBJECT, Node

TOOLCHAIN: Final = "dtolnay/rust-toolchain"
TOOLCHAIN_INPUTS: Final = {
    "toolchain": "TOOLCHAIN", "components": "COMPONENTS", "targets": "TARGETS", "target": "TARGETS"
}  # fmt: skip
TOOLCHAIN_SCRIPT: Final = """\
arguments=()
for each in ${COMPONENTS//,/ }; do arguments+=(--component "$each"); done
for each in ${TARGETS//,/ }; do arguments+=(--target "$each"); done
rustup toolchain install "$TOOLCHAIN" --profile minimal --no-self-update "${arguments[@]}"
rustup default "$TOOLCHAIN"
echo "name=$TOOLCHAIN" >> "$GITHUB_OUTPUT"
echo "cachekey=$(rustc "+$TOOLCHAIN" --version --verbose | sha256sum | cut -c 1-12)" >> "$GITHUB_OUTPUT"
if [ -z "${CARGO_INCREMENTAL+set}" ]; then echo CARGO_INCREMENTAL=0 >> "$GITHUB_ENV"; fi
"""
# Versions of the action that name a toolchain; a commit hash does not.
_CHANNEL: Final = re.compile(r"(stable|beta|nightly)(-[0-9]{4}-[0-9]{2}-[0-9]{2})?|[0-9]+\.[0-9]+(\.[0-9]+)?")


class ShellCommand(NamedTuple):
    """A shell script and the environment variables that it reads."""

    run: Node
    env: dict[str, Node]


def is_rust_toolchain(uses: Node) -> bool:
    return isinstance(uses.value, str) and uses.value.partition("@")[0].strip().lower() == TOOLCHAIN


def convert_rust_toolchain(uses: Node, with_node: Node | None, converter: Converter) -> ShellCommand | None:
    """Convert a step that uses the action to a shell script. Report a problem and return None if it is unsupported.

    The version of the action is the name of the toolchain, unless the input `toolchain` is given.
    """
    env: dict[str, Node] = {"COMPONENTS": text_node(uses.position, ""), "TARGETS": text_node(uses.position, "")}
    if with_node is not None and with_node.kind not in (OBJECT, NULL):
        converter.report_unsupported(
            with_node.position, f"{with_node.describe()} as 'with'", "expected names with values"
        )
        return None
    for key_node, value_node in with_node.value if with_node is not None and with_node.kind == OBJECT else ():
        variable = TOOLCHAIN_INPUTS.get(key_node.raw.lower())
        text_value = converter.convert_text(value_node, "steps.with", key_node.raw)
        if variable is None:
            converter.report_unsupported(
                key_node.position, f"{quote(key_node.raw)} of {TOOLCHAIN}", f"expected {', '.join(TOOLCHAIN_INPUTS)}"
            )
        elif text_value is not None:
            env[variable] = text_value
    toolchain_name = uses.value.partition("@")[2].strip()
    if "TOOLCHAIN" not in env and _CHANNEL.fullmatch(toolchain_name):
        env["TOOLCHAIN"] = text_node(uses.position, toolchain_name)
    toolchain = env.get("TOOLCHAIN")
    if toolchain is None or (" " in toolchain.value.strip() and "${{" not in toolchain.value):
        converter.report_unsupported(
            uses.position, f"{TOOLCHAIN} without a toolchain that rustup knows", "set 'toolchain', e.g. stable"
        )
        return None
    converter.warn(uses.position, f"{TOOLCHAIN} runs rustup here", "rustup must be installed where the job runs")
    return ShellCommand(text_node(uses.position, TOOLCHAIN_SCRIPT), env)


def command_keys(command: ShellCommand, step_env: Node | None) -> dict[str, Node | None]:
    """Return the keys of a step that runs the script, with the environment of the original step added."""
    env = {
        **({key_node.raw: value_node for key_node, value_node in step_env.value} if step_env is not None else {}),
        **command.env,
    }
    return {
        "run": command.run,
        "shell": text_node(command.run.position, "bash"),
        "env": object_node(command.run.position, dict(env)),
    }
