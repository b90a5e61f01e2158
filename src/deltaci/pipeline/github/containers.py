"""Converts `container`, `services` and `env`. Of the container options, only those about health are supported."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.github.converter import Converter, list_node, object_node, text_node
from deltaci.pipeline.github.keys import read_entries
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import LIST, NUMBER, OBJECT, TEXT, Node, items

HEALTH_COMMAND: Final = "--health-cmd"
HEALTH_TIMING: Final = ("--health-interval", "--health-timeout", "--health-retries", "--health-start-period")
OTHER_HEALTH_OPTIONS: Final = ("--health-start-interval",)
DOCKER_SCHEME: Final = "docker://"
MAX_OPTION_WORDS: Final = 200
_SHELL_WORD: Final = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""", re.DOTALL)
_WORD_PART: Final = re.compile(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\\"']+)""", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}(:[0-9]{1,5})?")


class JobContainer(NamedTuple):
    """The converted image of a job, and the unconverted `env` of its container. None if absent."""

    image: Node | None
    env: Node | None


def convert_container(node: Node, converter: Converter) -> JobContainer:
    """Convert the image of a job's `container`, which is a name or an object."""
    if node.kind != OBJECT:
        image = converter.convert_text(node, "jobs.image", "container")
        return JobContainer(_convert_image(image), None)
    entries = read_entries(node, "'container'", converter)
    if "image" not in entries:
        converter.report_unsupported(node.position, "'container' without 'image'", "expected the image")
        return JobContainer(None, None)
    image = converter.convert_text(entries["image"].value, "jobs.image", "image")
    return JobContainer(_convert_image(image), entries["env"].value if "env" in entries else None)


def _convert_image(node: Node | None) -> Node | None:
    """Return the image name without `docker://`, or None if it is empty."""
    if node is None or not node.value.strip():
        return None  # As on GitHub: with an empty image there is no container.
    return text_node(node.position, node.value.strip().removeprefix(DOCKER_SCHEME))


def convert_services(node: Node, converter: Converter) -> Node | None:
    """Convert `services` of a job; report unsupported services and leave them out.

    Report a problem and return None if it is no object.
    """
    if node.kind != OBJECT:
        converter.report_unsupported(
            node.position, f"{node.describe()} as 'services'", "expected names, each with an image"
        )
        return None
    converted_services = [
        (name_node, service)
        for name_node, service_node in node.value
        if (service := _convert_service(name_node, service_node, converter)) is not None
    ]
    return Node(OBJECT, node.position, converted_services)


def _convert_service(name_node: Node, node: Node, converter: Converter) -> Node | None:
    if node.kind != OBJECT:
        image = _convert_image(converter.convert_text(node, "jobs.services", "image"))
        return object_node(node.position, {"image": image}) if image is not None else None
    entries = read_entries(node, "a service", converter)
    image = (
        _convert_image(converter.convert_text(entries["image"].value, "jobs.services", "image"))
        if "image" in entries
        else None
    )
    if image is None:
        if "image" not in entries:
            converter.report_unsupported(
                name_node.position, f"the service {quote(name_node.raw)} without 'image'", "expected the image"
            )
        return None
    nodes_by_key: dict[str, Node | None] = {"image": image}
    if "env" in entries:
        nodes_by_key["env"] = convert_env(entries["env"].value, "jobs.services.env", converter)
    if "ports" in entries:
        ports = [_convert_port(port_node, converter) for port_node in items(entries["ports"].value)]
        nodes_by_key["ports"] = list_node(entries["ports"].value.position, [port for port in ports if port is not None])
    if "command" in entries:
        nodes_by_key["command"] = converter.convert_text(entries["command"].value, "jobs.services", "command")
    if "options" in entries:
        nodes_by_key["health"] = _convert_health_options(entries["options"].value, converter)
    return object_node(node.position, nodes_by_key)


def convert_env(node: Node, availability_key: str, converter: Converter) -> Node | None:
    """Convert an object of environment variables. Report a problem and return None if it is no object."""
    if node.kind != OBJECT:
        converter.report_unsupported(
            node.position, f"{node.describe()} as 'env'", "expected names, each with a text, a number, true or false"
        )
        return None
    converted_variables = [
        (key_node, converted_value)
        for key_node, value_node in node.value
        if (converted_value := converter.convert_scalar(value_node, availability_key, key_node.raw)) is not None
    ]
    return Node(OBJECT, node.position, converted_variables)


def _convert_port(node: Node, converter: Converter) -> Node | None:
    if node.kind == NUMBER and isinstance(node.value, int):
        return Node(NUMBER, node.position, node.value, str(node.value))
    if node.kind == TEXT:
        port = node.value.strip().removesuffix("/tcp")
        if _PORT.fullmatch(port):
            return text_node(node.position, port)
    converter.report_unsupported(
        node.position, f"{node.describe()} as a port", "expected a TCP port, e.g. 5432 or '5432:5432'"
    )
    return None


def _convert_health_options(node: Node, converter: Converter) -> Node | None:
    """Return the command of `--health-cmd` in the options of a service, or None. Report unsupported options."""
    if node.kind == LIST:
        converter.report_unsupported(node.position, "a list as 'options'", "expected a text")
        return None
    options_text = converter.convert_text(node, "jobs.services", "options")
    if options_text is None:
        return None
    command_node: Node | None = None
    option_words = split_command_line(options_text.value)
    if option_words is None:
        converter.report_unsupported(
            node.position, "options with an unterminated quote, or too many options", "close the quote"
        )
        return None
    word_index = 0
    while word_index < len(option_words):
        option, has_value, option_value = option_words[word_index].partition("=")
        word_index += 1
        if option not in (HEALTH_COMMAND, *HEALTH_TIMING, *OTHER_HEALTH_OPTIONS, "--no-healthcheck"):
            reason = "only health options are supported: --health-cmd and its timing"
            converter.report_unsupported(node.position, f"the option {quote(option)} of a service", reason)
            return None
        if not has_value and option != "--no-healthcheck":
            option_value = option_words[word_index] if word_index < len(option_words) else ""
            word_index += 1
        if option == HEALTH_COMMAND and option_value:
            command_node = text_node(node.position, option_value)
    return command_node


def split_command_line(text: str) -> list[str] | None:
    """Split a command line into words without quotes, like a shell.

    Return None if a quote is open or it is too long.
    """
    words: list[str] = []
    word_end = 0
    while word_match := _SHELL_WORD.match(text, word_end):
        word_parts = []
        for escaped, double_quoted, single_quoted, unquoted in _WORD_PART.findall(word_match[1]):
            word_parts.append(
                escaped
                or (re.sub(r'\\(["\\$`])', r"\1", double_quoted) if double_quoted else "")
                or single_quoted
                or unquoted
            )
        words.append("".join(word_parts))
        word_end = word_match.end()
        if len(words) > MAX_OPTION_WORDS:
            return None
    return words if not text[word_end:].strip() else None
