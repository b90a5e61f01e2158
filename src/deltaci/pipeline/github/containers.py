"""`container` and `services` of a job: images, and of their options those that say when a service is ready."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.github.converter import Desk, items, keyed, listed, made
from deltaci.pipeline.github.keys import keys
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import LIST, NUMBER, OBJECT, TEXT, Node

HEALTH: Final = "--health-cmd"
TIMING: Final = ("--health-interval", "--health-timeout", "--health-retries", "--health-start-period")
TIMING_OTHER: Final = ("--health-start-interval",)
SCHEME: Final = "docker://"
MAX_WORDS: Final = 200
_WORD: Final = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""", re.DOTALL)
_PIECE: Final = re.compile(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\\"']+)""", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}(:[0-9]{1,5})?")


class Container(NamedTuple):
    """The image of a job, and the variables of its container."""

    image: Node | None
    env: Node | None


def container(node: Node, desk: Desk) -> Container:
    """Where the steps of a job run."""
    if node.kind != OBJECT:
        image = desk.text(node, "jobs.image", "container")
        return Container(_image(image), None)
    found = keys(node, "'container'", desk)
    if "image" not in found:
        desk.outside(node.at, "'container' without 'image'", "expected the image")
        return Container(None, None)
    image = desk.text(found["image"][1], "jobs.image", "image")
    return Container(_image(image), found["env"][1] if "env" in found else None)


def _image(node: Node | None) -> Node | None:
    if node is None or not node.value.strip():
        return None  # On GitHub as well: without an image there is no container.
    return made(node.at, node.value.strip().removeprefix(SCHEME))


def services(node: Node, desk: Desk) -> Node | None:
    """Containers that run beside a job."""
    if node.kind != OBJECT:
        desk.outside(node.at, f"{node.described()} as 'services'", "expected names, each with an image")
        return None
    told = [(name, service) for name, each in node.value if (service := _service(name, each, desk)) is not None]
    return Node(OBJECT, node.at, told)


def _service(name: Node, node: Node, desk: Desk) -> Node | None:
    if node.kind != OBJECT:
        image = _image(desk.text(node, "jobs.services", "image"))
        return keyed(node.at, {"image": image}) if image is not None else None
    found = keys(node, "a service", desk)
    image = _image(desk.text(found["image"][1], "jobs.services", "image")) if "image" in found else None
    if image is None:
        if "image" not in found:
            desk.outside(name.at, f"the service {shown(name.written)} without 'image'", "expected the image")
        return None
    told: dict[str, Node | None] = {"image": image}
    if "env" in found:
        told["env"] = variables(found["env"][1], "jobs.services.env", desk)
    if "ports" in found:
        ports = [_port(each, desk) for each in items(found["ports"][1])]
        told["ports"] = listed(found["ports"][1].at, [port for port in ports if port is not None])
    if "command" in found:
        told["command"] = desk.text(found["command"][1], "jobs.services", "command")
    if "options" in found:
        told["health"] = _health(found["options"][1], desk)
    return keyed(node.at, told)


def variables(node: Node, place: str, desk: Desk) -> Node | None:
    """Names with texts, numbers or truths."""
    if node.kind != OBJECT:
        desk.outside(
            node.at, f"{node.described()} as 'env'", "expected names, each with a text, a number, true or false"
        )
        return None
    told = [(key, value) for key, each in node.value if (value := desk.scalar(each, place, key.written)) is not None]
    return Node(OBJECT, node.at, told)


def _port(node: Node, desk: Desk) -> Node | None:
    if node.kind == NUMBER and isinstance(node.value, int):
        return Node(NUMBER, node.at, node.value, str(node.value))
    if node.kind == TEXT:
        plain = node.value.strip().removesuffix("/tcp")
        if _PORT.fullmatch(plain):
            return made(node.at, plain)
    desk.outside(node.at, f"{node.described()} as a port", "expected a TCP port, e.g. 5432 or '5432:5432'")
    return None


def _health(node: Node, desk: Desk) -> Node | None:
    if node.kind == LIST:
        desk.outside(node.at, "a list as 'options'", "expected a text")
        return None
    text = desk.text(node, "jobs.services", "options")
    if text is None:
        return None
    health: Node | None = None
    words = split(text.value)
    if words is None:
        desk.outside(node.at, "options with a quote that never ends, or too many of them", "close the quote")
        return None
    position = 0
    while position < len(words):
        name, has_value, value = words[position].partition("=")
        position += 1
        if name not in (HEALTH, *TIMING, *TIMING_OTHER, "--no-healthcheck"):
            told = "of the options only those about health: --health-cmd and its times"
            desk.outside(node.at, f"the option {shown(name)} of a service", told)
            return None
        if not has_value and name != "--no-healthcheck":
            value = words[position] if position < len(words) else ""
            position += 1
        if name == HEALTH and value:
            health = made(node.at, value)
    return health


def split(text: str) -> list[str] | None:
    """The words of a command line, without their quotes; None if a quote never ends."""
    words: list[str] = []
    end = 0
    while found := _WORD.match(text, end):
        pieces = []
        for escaped, double, single, plain in _PIECE.findall(found[1]):
            pieces.append(escaped or (re.sub(r'\\(["\\$`])', r"\1", double) if double else "") or single or plain)
        words.append("".join(pieces))
        end = found.end()
        if len(words) > MAX_WORDS:
            return None
    return words if not text[end:].strip() else None
