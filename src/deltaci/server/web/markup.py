"""Build HTML from Python calls; everything that is not `Markup` is escaped.

    div(strong(job.name), " waits", class_="card", data_run=run.id)

Underscores in names become hyphens (`aria_label`); a trailing underscore avoids Python keywords (`class_`, `for_`). An
attribute that is None or False is omitted, one that is True has no value. Children may be texts, numbers, markup, lists
of them, or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Final

VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "rect", "circle", "path", "line", "use"})
_TEXT: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Markup(str):
    """A string that is already HTML. Only this module and constants of this package create it."""

    __slots__ = ()


Child = Any  # str | int | float | Markup | None | Iterable[Child]; mypy knows no recursive one for keyword arguments.

EMPTY: Final = Markup("")


def text(value: object) -> Markup:
    """As text, whatever it contains."""
    return Markup(str(value).translate(_TEXT))


def join(children: Iterable[Child]) -> Markup:
    """All of them, one behind the other."""
    parts: list[str] = []
    _add(children, parts)
    return Markup("".join(parts))


def tag(element: str, /, *children: Child, **attributes: object) -> Markup:
    """One element."""
    parts = ["<", element]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {_attribute(key)}")
        if value is not True:
            parts.append(f'="{str(value).translate(_TEXT)}"')
    if element in VOID and not children:
        parts.append(">" if element not in _SVG_VOID else "/>")
        return Markup("".join(parts))
    parts.append(">")
    _add(children, parts)
    parts.append(f"</{element}>")
    return Markup("".join(parts))


_SVG_VOID: Final = frozenset({"rect", "circle", "path", "line", "use"})


def _add(children: Iterable[Child], parts: list[str]) -> None:
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(child.translate(_TEXT))
        elif isinstance(child, int | float):
            parts.append(str(child))
        else:
            _add(child, parts)


@lru_cache(maxsize=512)
def _attribute(key: str) -> str:
    return _CAMEL.get(key) or key.rstrip("_").replace("_", "-")


_CAMEL: Final = {"viewbox": "viewBox", "preserve_aspect_ratio": "preserveAspectRatio"}

a = partial(tag, "a")
button = partial(tag, "button")
code = partial(tag, "code")
dd = partial(tag, "dd")
details = partial(tag, "details")
dialog = partial(tag, "dialog")
div = partial(tag, "div")
dl = partial(tag, "dl")
dt = partial(tag, "dt")
fieldset = partial(tag, "fieldset")
form = partial(tag, "form")
h1 = partial(tag, "h1")
h2 = partial(tag, "h2")
h3 = partial(tag, "h3")
header = partial(tag, "header")
input_ = partial(tag, "input")
kbd = partial(tag, "kbd")
label = partial(tag, "label")
legend = partial(tag, "legend")
li = partial(tag, "li")
main = partial(tag, "main")
nav = partial(tag, "nav")
ol = partial(tag, "ol")
option = partial(tag, "option")
p = partial(tag, "p")
pre = partial(tag, "pre")
section = partial(tag, "section")
select = partial(tag, "select")
small = partial(tag, "small")
span = partial(tag, "span")
strong = partial(tag, "strong")
summary = partial(tag, "summary")
svg = partial(tag, "svg")
table = partial(tag, "table")
tbody = partial(tag, "tbody")
td = partial(tag, "td")
textarea = partial(tag, "textarea")
th = partial(tag, "th")
thead = partial(tag, "thead")
time = partial(tag, "time")
tr = partial(tag, "tr")
ul = partial(tag, "ul")
