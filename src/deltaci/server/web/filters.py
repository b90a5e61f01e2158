"""Filter forms. They send GET requests, so that the address of a filtered page can be shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from deltaci.server.web.markup import Child, Markup, button, div, form, input_, label, option, select, tag

ANY: Final = ("", "any")
MAX_OFFERED: Final = 200


def search(value: str, placeholder: str) -> Markup:
    """Words to look for; the key `/` goes there."""
    words = input_(id="q", name="q", type="search", value=value, placeholder=placeholder, data_key="/", maxlength=200)
    return div(label("Search", for_="q"), words, class_="field grow")


def box(name: str, title: str, value: str, *, known: Iterable[str] = (), key: str = "") -> Markup:
    """A field for a text; `known` are offered while somebody writes."""
    offered = [option(value=each) for each in known]
    return div(
        label(title, for_=name),
        input_(
            id=name,
            name=name,
            value=value,
            list=f"{name}-known" if offered else None,
            autocomplete="off",
            data_key=key or None,
        ),
        tag("datalist", *offered, id=f"{name}-known") if offered else None,
        class_="field small",
    )


def choice(name: str, title: str, entries: Iterable[tuple[str, str]], chosen: str) -> Markup:
    """One of several: each is a value and what people call it."""
    options = [option(said, value=value, selected=value == chosen) for value, said in entries]
    return div(label(title, for_=name), select(*options, id=name, name=name), class_="field small")


def filters(
    *fields: Child, to: str, keeps: Mapping[str, str] | None = None, beside: Child = None, title: str = ""
) -> Markup:
    """The whole form. `keeps` is what the address says besides and should go on saying, unless it is empty."""
    return form(
        *(input_(type="hidden", name=name, value=value) for name, value in (keeps or {}).items() if value),
        *fields,
        button("Filter", type="submit"),
        beside,
        method="get",
        action=to,
        class_="filters",
        role="search",
        aria_label=title or None,
        id="filters",
    )
