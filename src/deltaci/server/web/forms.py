"""Forms that keep the input and show API errors at the field they are about.

The API validates the input. Fields have the names of the API, so that its errors can be assigned to them. Secret values
are never rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from deltaci.server.errors import http_error
from deltaci.server.web.components import hidden, nothing, top
from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    button,
    div,
    form,
    input_,
    join,
    label,
    option,
    p,
    select,
    span,
    tag,
    textarea,
)
from deltaci.server.web.page_request import NEEDS, HtmlPage, PageRequest

STYLES: Final = ("forms.css",)
MODULES: Final = ("forms.js",)
NAME: Final = "letters, digits and _ . -, starting with a letter, a digit or _"
REFUSED: Final = 422
BROKEN: Final = 500
_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`")
_PATTERN: Final = re.compile(r"Expected `str` matching regex '.*'", re.DOTALL)

T = TypeVar("T")


class FormProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An error response of the API. `path` is the field it names, such as `policies.poll_seconds`, or empty."""

    code: str
    message: str
    path: str = ""


async def asked(visit: PageRequest, id: str, kind: type[T], /, **more: Any) -> T | FormProblem:
    """What the API answers, or why it does not; also for an internal error, for that must not lose what was typed."""
    try:
        return await visit.ask(id, kind, **more)
    except Exception as error:
        code, message, _ = http_error(error, visit.request.id)
        found = _PATH.search(message)
        if found is None:
            return FormProblem(code=code, message=message)
        return FormProblem(code=code, message=_PATH.sub("", message), path=found[1])


class Form:
    """The fields of a form with their values and the problem of one of them."""

    def __init__(
        self,
        values: Mapping[str, str],
        problem: FormProblem | None = None,
        at: str = "",
        *,
        not_done: str = "Not saved",
    ) -> None:
        self._values = values
        self._problem = problem
        self._at = at
        self._not_done = not_done
        self._titles: dict[str, str] = {}

    @property
    def status(self) -> int:
        """What the page is sent with."""
        if self._problem is None:
            return 200
        return BROKEN if self._problem.code == "internal" else REFUSED

    def value(self, name: str) -> str:
        """What a field holds."""
        return self._values.get(name, "")

    # -- fields

    def text(
        self, name: str, title: str, *, help: Child = None, expects: str = "", options: Sequence[str] = (), **more: Any
    ) -> Markup:
        """One line. `expects` is said when the API only says that it does not fit; `options` are offered."""
        offered = tag("datalist", *(option(value=each) for each in options), id=f"{name}-options") if options else None
        control = input_(
            value=self.value(name),
            list=f"{name}-options" if options else None,
            **{"type": "text", **more, **self._about(name, title, help)},
        )
        return self._field(name, title, join([control, offered]), help, expects)

    def name(self, help: Child) -> Markup:
        """What something is called."""
        return self.text("name", "Name", help=help, expects=NAME, required=True, maxlength=100, autocomplete="off")

    def area(
        self,
        name: str,
        title: str,
        *,
        help: Child = None,
        expects: str = "",
        place: tuple[int, int] | None = None,
        **more: Any,
    ) -> Markup:
        """Many lines. `place` is the line and the column of what is wrong, for the script that goes there."""
        at = {"data_line": place[0], "data_column": place[1]} if place is not None and self._at == name else {}
        # A browser drops a first empty line: one of ours goes, and not what was typed.
        control = textarea(
            "\n", self.value(name), **{"spellcheck": "false", **at, **more, **self._about(name, title, help)}
        )
        return self._field(name, title, control, help, expects)

    def sealed(self, name: str, title: str, *, help: Child = None) -> Markup:
        """Many lines that nobody should see: they are never written back, whatever was wrong."""
        about = {**self._about(name, title, help), "autocomplete": "off", "spellcheck": "false", "class_": "sealed"}
        shows = label(
            input_(type="checkbox", class_="shows", autocomplete="off"), " Show it while I type", class_="check"
        )
        return self._field(name, title, join([textarea(**about, rows=3), shows]), help, "")

    def choice(
        self, name: str, title: str, options: Sequence[tuple[str, str]], *, help: Child = None, **more: Any
    ) -> Markup:
        """One of several: (what is sent, what people read)."""
        chosen = self.value(name)
        shown = [option(told, value=value, selected=value == chosen) for value, told in options]
        return self._field(name, title, select(*shown, **self._about(name, title, help), **more), help, "")

    def check(self, name: str, title: str, *, help: Child = None) -> Markup:
        """Yes or no."""
        box = input_(type="checkbox", value="on", checked=self.value(name) == "on", **self._about(name, title, help))
        return div(
            label(box, span(title), class_="check"),
            span(help, id=f"{name}-help", class_="help") if help else None,
            self._wrong(name, ""),
            class_="field",
        )

    def _about(self, name: str, title: str, help: Child) -> dict[str, Any]:
        """What every control says of itself."""
        self._titles[name] = title
        is_wrong = self._at == name and self._problem is not None
        told = [f"{name}-problem"] * is_wrong + [f"{name}-help"] * bool(help)
        about = {"id": name, "name": name, "aria_describedby": " ".join(told) or None}
        return {**about, "aria_invalid": "true", "autofocus": True} if is_wrong else about

    def _field(self, name: str, title: str, control: Child, help: Child, expects: str) -> Markup:
        return div(
            label(title, for_=name),
            self._wrong(name, expects),
            control,
            span(help, id=f"{name}-help", class_="help") if help else None,
            class_="field wrong" if self._at == name and self._problem else "field",
        )

    def _wrong(self, name: str, expects: str) -> Markup | None:
        if self._problem is None or self._at != name:
            return None
        message = self._problem.message
        if expects and _PATTERN.search(message):
            message = f"{self.value(name)[:80]!r} is not valid here; expected {expects}"
        return p(message, id=f"{name}-problem", class_="wrong-text")

    # -- the whole

    def page(
        self,
        visit: PageRequest,
        title: str,
        *fields: Child,
        here: str,
        to: str,
        submit: str,
        back: str = "",
        under: Child = None,
        values: Mapping[str, str] | None = None,
        more: Child = None,
    ) -> HtmlPage:
        """The page of it: what is wrong, with `more` about that, the fields, and the way on, and back to the list.

        `values` are sent as well, without being shown."""
        body = form(
            hidden(visit, **(values or {})),
            self._summary(more),
            *fields,
            div(button(submit, type="submit", class_="primary"), a("Cancel", href=back or here), class_="actions"),
            method="post",
            action=to,
            class_="form stack",
            novalidate=True,
            id="form",
        )
        return HtmlPage(
            title=title,
            here=here,
            status=self.status,
            styles=STYLES,
            modules=MODULES,
            body=join([top(title, under=under), body]),
        )

    def _summary(self, more: Child) -> Markup | None:
        if self._problem is None:
            return None
        title = self._titles.get(self._at)
        said: Child = self._problem.message
        if title is not None:
            said = ["look at ", a(title, href=f"#{self._at}"), "."]
        return div(p(self._not_done, ": ", said), more, class_="said bad", role="alert")


def needed(visit: PageRequest, id: str, title: str, here: str) -> HtmlPage | None:
    """What somebody sees who may not do this; None for who may."""
    if visit.may(id):
        return None
    has = ", ".join(sorted(visit.who.scopes)) or "none"
    return HtmlPage(
        title=title,
        here=here,
        status=403,
        body=join(
            [
                top(title),
                nothing(
                    f"This needs the scope {NEEDS[id]}; the key you are signed in with has {has}.",
                    f"Ask an administrator of {visit.who.tenant} for a key with this scope.",
                ),
            ]
        ),
    )


def way(visit: PageRequest, id: str, title: str, href: str, *, is_primary: bool = False) -> Markup:
    """A link that looks like a button, to where something can be done; who may not is told so."""
    if visit.may(id):
        return a(title, href=href, class_="button primary" if is_primary else "button")
    needs = f"needs the scope {NEEDS[id]}"
    return span(title, span(f" {needs}", class_="hidden"), class_="button off", title=needs)


def copied(id: str, title: str, value: str) -> Markup:
    """A line that is there to be copied."""
    return div(
        label(title, for_=id),
        div(
            input_(id=id, value=value, readonly=True, class_="mono", spellcheck="false", autocomplete="off"),
            button("Copy", span(f" {title}", class_="hidden"), type="button", data_copy=id),
            class_="copied",
        ),
        class_="field",
    )
