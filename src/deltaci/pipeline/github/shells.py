"""The shells of steps: what GitHub's words for them stand for, so that the same commands fail at the same place."""

from __future__ import annotations

from typing import Final

from deltaci.core.text import nearest
from deltaci.pipeline.github.converter import Desk, made
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import Node

NAMED: Final = ("bash", "sh", "python", "pwsh")  # A runner knows them by their names, as GitHub's does.
INSTALLED: Final = "pwsh"
WINDOWS: Final = ("powershell", "cmd")
DEFAULT: Final = "bash -e {0}"
IN_CONTAINERS: Final = "sh -e {0}"
ON_WINDOWS: Final = "pwsh"


def shell(node: Node, desk: Desk, place: str = "steps.run") -> Node | None:
    """What a `shell` stands for."""
    found = desk.text(node, place, "shell")
    if found is None or "${{" in found.value:
        return found
    word = found.value.strip()
    if word == INSTALLED:
        desk.note(node.at, "the shell 'pwsh'", "PowerShell must be installed where it runs")
    if word in NAMED:
        return made(found.at, word)
    if word.split(" ")[0].lower() in WINDOWS:
        desk.outside(node.at, f"the shell {shown(word)}", "no shell of Windows runs here: expected bash, sh or python")
        return None
    if "{0}" not in word:
        near = nearest(word, NAMED)
        desk.outside(node.at, f"the shell {shown(word)}", f"expected {', '.join(NAMED)}, or a command with {{0}}", near)
        return None
    return made(found.at, word)
