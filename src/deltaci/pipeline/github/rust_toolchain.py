"""Actions of others that are nothing but a few commands, and frequent: the commands themselves take their place."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.github.converter import Desk, keyed, made
from deltaci.pipeline.parse.problems import shown
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
# The name of a version says which toolchain is meant; a commit says nothing.
_CHANNEL: Final = re.compile(r"(stable|beta|nightly)(-[0-9]{4}-[0-9]{2}-[0-9]{2})?|[0-9]+\.[0-9]+(\.[0-9]+)?")


class Command(NamedTuple):
    """A command, and the variables that it reads."""

    run: Node
    env: dict[str, Node]


def is_toolchain(uses: Node) -> bool:
    """Whether it sets up Rust."""
    return isinstance(uses.value, str) and uses.value.partition("@")[0].strip().lower() == TOOLCHAIN


def toolchain(uses: Node, given: Node | None, desk: Desk) -> Command | None:
    """Rust, by rustup; the version of the action is that of Rust, unless an input says otherwise."""
    env: dict[str, Node] = {"COMPONENTS": made(uses.at, ""), "TARGETS": made(uses.at, "")}
    if given is not None and given.kind not in (OBJECT, NULL):
        desk.outside(given.at, f"{given.described()} as 'with'", "expected names with values")
        return None
    for key, value in given.value if given is not None and given.kind == OBJECT else ():
        name = TOOLCHAIN_INPUTS.get(key.written.lower())
        text = desk.text(value, "steps.with", key.written)
        if name is None:
            desk.outside(key.at, f"{shown(key.written)} of {TOOLCHAIN}", f"expected {', '.join(TOOLCHAIN_INPUTS)}")
        elif text is not None:
            env[name] = text
    version = uses.value.partition("@")[2].strip()
    if "TOOLCHAIN" not in env and _CHANNEL.fullmatch(version):
        env["TOOLCHAIN"] = made(uses.at, version)
    wanted = env.get("TOOLCHAIN")
    if wanted is None or (" " in wanted.value.strip() and "${{" not in wanted.value):
        desk.outside(uses.at, f"{TOOLCHAIN} without a toolchain that rustup knows", "say 'toolchain', e.g. stable")
        return None
    desk.note(uses.at, f"{TOOLCHAIN} is the command rustup here", "it must be installed where the job runs")
    return Command(made(uses.at, TOOLCHAIN_SCRIPT), env)


def as_keys(command: Command, own: Node | None) -> dict[str, Node | None]:
    """The command as keys of a step, with the variables that the step has itself."""
    env = {**({key.written: value for key, value in own.value} if own is not None else {}), **command.env}
    return {"run": command.run, "shell": made(command.run.at, "bash"), "env": keyed(command.run.at, dict(env))}
