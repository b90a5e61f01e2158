"""Converts `shell`. Commands use the same shell options as on GitHub, so that they fail in the same cases."""

from __future__ import annotations

from typing import Final

from deltaci.core.text import nearest
from deltaci.pipeline.github.converter import Converter, text_node
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import Node

NAMED_SHELLS: Final = ("bash", "sh", "python", "pwsh")  # the runner knows these names, as GitHub's runner does
POWERSHELL: Final = "pwsh"
WINDOWS_SHELLS: Final = ("powershell", "cmd")
DEFAULT_SHELL: Final = "bash -e {0}"
CONTAINER_SHELL: Final = "sh -e {0}"
WINDOWS_DEFAULT_SHELL: Final = "pwsh"


def convert_shell(node: Node, converter: Converter, availability_key: str = "steps.run") -> Node | None:
    """Convert the name of a shell or a shell command with `{0}`. Report a problem and return None if unsupported."""
    shell_text = converter.convert_text(node, availability_key, "shell")
    if shell_text is None or "${{" in shell_text.value:
        return shell_text
    shell_name = shell_text.value.strip()
    if shell_name == POWERSHELL:
        converter.warn(node.position, "the shell 'pwsh'", "PowerShell must be installed where the job runs")
    if shell_name in NAMED_SHELLS:
        return text_node(shell_text.position, shell_name)
    if shell_name.split(" ")[0].lower() in WINDOWS_SHELLS:
        converter.report_unsupported(
            node.position,
            f"the shell {quote(shell_name)}",
            "Windows shells are not supported: expected bash, sh or python",
        )
        return None
    if "{0}" not in shell_name:
        nearest_word = nearest(shell_name, NAMED_SHELLS)
        converter.report_unsupported(
            node.position,
            f"the shell {quote(shell_name)}",
            f"expected {', '.join(NAMED_SHELLS)}, or a command with {{0}}",
            nearest_word,
        )
        return None
    return text_node(shell_text.position, shell_name)
