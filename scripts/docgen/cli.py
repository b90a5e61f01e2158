"""Writes the list of commands in docs/cli.md, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from deltaci.cli.registry import COMMANDS, loaded
from deltaci.cli.session import EXIT_CODES, shared_options
from scripts.docgen.pages import replace_below_mark

_KINDS: Final = {"int": "N", "int range": "N", "float": "N", "float range": "N", "path": "PATH"}


def page(text: str) -> str:
    """The page with its list of commands as it should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## Exit codes\n"
    yield "| code | meaning |\n|---|---|"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    yield "\n## Options of every command that asks a server\n"
    yield "| option | meaning |\n|---|---|"
    shared = shared_options()
    yield from (_option(each) for each in loaded("whoami").params if each.name in shared)
    yield "\nThe commands below are listed without them."
    yield "\n## Commands"
    panel = ""
    for name, entry in sorted(COMMANDS.items(), key=lambda item: _panels().index(item[1].panel)):
        if entry.panel != panel:
            panel = entry.panel
            yield f"\n### {panel}"
        yield from _command(f"deltaci {name}", loaded(name), shared)


def _panels() -> list[str]:
    return list(dict.fromkeys(entry.panel for entry in COMMANDS.values()))


def _command(called: str, command: Any, shared: frozenset[str]) -> Iterator[str]:
    inside = getattr(command, "commands", {})
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    is_asking = shared <= {each.name for each in command.params}
    left_out = shared if is_asking else frozenset()
    options = [each for each in command.params if each.param_type_name == "option" and each.name not in left_out]
    words = " ".join(_argument(each) for each in arguments)
    yield f"\n#### `{called}{' ' + words if words else ''}`\n"
    yield _help(command.help or "")
    told = [each for each in (*arguments, *options) if each.name != "help"]
    if told and not inside:
        yield "\n| | |\n|---|---|"
        yield from (_option(each) for each in told)
    for name, each in inside.items():
        yield from _command(f"{called} {name}", each, shared)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _help(text: str) -> str:
    """Paragraphs; examples as code."""
    blocks: list[str] = []
    code: list[str] = []
    for block in text.split("\n\n"):
        if block.startswith("  "):
            code.append(block.strip())
        elif block.strip() not in ("Example:", "Examples:"):
            blocks.append(" ".join(block.split()))
    return "\n\n".join([*blocks, *(["```\n" + "\n".join(code) + "\n```"] if code else [])])


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        metavar = "" if parameter.is_flag else " " + (parameter.metavar or _KINDS.get(parameter.type.name, "TEXT"))
        name = ", ".join(parameter.opts) + metavar
    more = f" Default: `{parameter.default}`." if _has_default(parameter) else ""
    told = (parameter.help or "").replace("|", "\\|")
    return f"| `{name}` | {told}{more} |"


def _has_default(parameter: Any) -> bool:
    return (
        parameter.param_type_name == "option" and not parameter.is_flag and parameter.default not in (None, "", [], ())
    )
