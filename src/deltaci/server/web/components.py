"""HTML components that many pages share: status icons, times, tables, tabs, action buttons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from deltaci.server.web.markup import (
    Child,
    Markup,
    a,
    button,
    dialog,
    div,
    form,
    h1,
    h2,
    input_,
    join,
    label,
    nav,
    p,
    span,
    svg,
    table,
    tag,
    tbody,
    td,
    textarea,
    th,
    thead,
    time,
    tr,
)
from deltaci.server.web.page_request import NEEDS, PageRequest

# Each has a shape besides its colour. All words of all vocabularies that pages show, in lower case.
TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("succeeded", "success", "completed", "done", "good", "merged", "active"), "good"),
    **dict.fromkeys(("passed", "handled"), "good"),
    **dict.fromkeys(("failed", "timeout", "plan_failed", "lost", "dead", "blocked", "put_aside", "unhealthy"), "bad"),
    **dict.fromkeys(("error", "timed_out", "expired", "stalled", "bad"), "bad"),
    **dict.fromkeys(("running", "planning", "validating", "busy", "leased", "claimed", "starting", "merging"), "busy"),
    **dict.fromkeys(("executing", "building", "testing", "landing", "granted", "uploading"), "busy"),
    **dict.fromkeys(("waiting_approval", "waiting", "drained", "quarantined", "draining", "retrying", "stale"), "held"),
    **dict.fromkeys(("canceled", "cancelled", "cancel_requested", "skipped", "shutdown", "revoked"), "gone"),
    **{"silent": "bad", "leaving": "held", "gone": "gone"},
}
SAYS_NOTHING: Final = ("", "success", "reported", "created")  # States that add nothing to their status.
_SIGNS: Final = {
    "good": "M3.5 8.5l3 3 6-7",
    "bad": "M4.5 4.5l7 7m0-7l-7 7",
    "busy": "M8 2.5a5.5 5.5 0 1 1-5.5 5.5",
    "held": "M6 4v8m4-8v8",
    "gone": "M3.5 8h9",
    "idle": "M8 2.5a5.5 5.5 0 1 0 .01 0M8 5v3.4l2.2 1.3",
}
_LOGO: Final = "M8 1.5L15 14H1z"


def path(*parts: object) -> str:
    """An address of ours, each part as one segment: `path("runs", run.id)`."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def tone(word: str) -> str:
    """How a state or status feels: good, bad, busy, held, gone, or idle for what has not begun."""
    return TONES.get(word.lower(), "idle")


def sign(word: str) -> Markup:
    """The sign of a state, for eyes only: the word must stand beside it."""
    how = tone(word)
    return svg(
        tag("path", d=_SIGNS[how]), class_=f"sign {how}", viewbox="0 0 16 16", aria_hidden="true", focusable="false"
    )


def stroke(how: str) -> str:
    """The sign of a tone as a path in a box of 16 by 16, for what is drawn."""
    return _SIGNS[how]


def badge(status: str, state: str = "") -> Markup:
    """Sign and word; and the exact state, if it says more."""
    word = words(status)
    more = words(state) if state.lower() not in (*SAYS_NOTHING, status.lower()) else ""
    return span(sign(status), word, span(f" · {more}", class_="more") if more else None, class_=f"badge {tone(status)}")


def words(name: str) -> str:
    """`WAITING_APPROVAL` as people say it."""
    return name.replace("_", " ").lower()


def logo() -> Markup:
    """The sign of the house."""
    return svg(tag("path", d=_LOGO), class_="logo", viewbox="0 0 16 16", aria_hidden="true", focusable="false")


def stop_unconfirmed(until: datetime | None) -> Child:
    """Return a warning that the process of something that was ended may run until then; None without a time."""
    return span("not confirmed by the runner: its process may run until ", when(until)) if until else None


# -- times: the server writes them whole, a script makes them shorter and keeps them true


def when(at: datetime | None, *, absent: str = "–") -> Markup:
    """A moment: "3 min ago" once the script has seen it."""
    if at is None:
        return span(absent, class_="quiet")
    utc = at.astimezone(UTC)
    return time(f"{utc:%Y-%m-%d %H:%M:%S} UTC", datetime=utc.isoformat().replace("+00:00", "Z"), data_ago=True)


def lasted(start: datetime | None, end: datetime | None) -> Markup:
    """How long it took; one without an end goes on counting."""
    if start is None:
        return span("–", class_="quiet")
    if end is None:
        utc = start.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return span("…", data_since=utc, class_="number")
    return span(seconds_text((end - start).total_seconds()), class_="number")


def seconds_text(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 4 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


# -- how pages are laid out


def top(title: Child, *beside: Child, under: Child = None) -> Markup:
    """The head of a page: its title, what can be done, and a line below."""
    return div(
        div(h1(title), div(*beside, class_="actions") if any(beside) else None, class_="top-line"),
        div(under, class_="under") if under else None,
        class_="top",
    )


def card(title: str, *children: Child, id: str = "") -> Markup:
    """A part of a page with a heading."""
    name = id or title.lower().replace(" ", "-")
    return tag(
        "section", h2(title, id=f"{name}-title"), *children, id=name, class_="card", aria_labelledby=f"{name}-title"
    )


def rows(
    headings: Sequence[str], lines: Iterable[Sequence[Child]], *, caption: str, keys: Sequence[str] = ()
) -> Markup:
    """A table. The first cell of a line names it; on a narrow screen each line becomes a block of its own.

    `keys` are ids for the lines, so that a page that is drawn anew moves lines instead of writing them over."""
    body = [
        tr(
            th(line[0], scope="row", data_name=headings[0]),
            *(td(cell, data_name=name) for name, cell in zip(headings[1:], line[1:], strict=True)),
            id=keys[at] if keys else None,
        )
        for at, line in enumerate(lines)
    ]
    return div(
        table(
            tag("caption", caption, class_="hidden"),
            thead(tr(*(th(name or span("actions", class_="hidden"), scope="col") for name in headings))),
            tbody(*body),
        ),
        class_="table",
    )


def nothing(*says: Child) -> Markup:
    """What stands where nothing is."""
    return div(*(p(each) for each in says), class_="nothing")


def tabs(entries: Sequence[tuple[str, str, str]], here: str) -> Markup:
    """Links to the parts of a page: (id, name, address). They are addresses, so that they can be sent to others."""
    return nav(
        *(a(name, href=address, aria_current="page" if id == here else None) for id, name, address in entries),
        class_="tabs",
        aria_label="Sections of this page",
    )


# -- forms


def hidden(visit: PageRequest, **values: str) -> Markup:
    """What a form sends besides what people see; every form needs it."""
    fields = [input_(type="hidden", name=name, value=value) for name, value in values.items()]
    return Markup("".join([input_(type="hidden", name="csrf", value=visit.csrf), *fields]))


def field(name: str, title: str, *control: Child, help: Child = None) -> Markup:
    """A label, the control with this id, and a line of help; give the control `aria_describedby="NAME-help"` then."""
    return div(
        label(title, for_=name),
        *control,
        span(help, id=f"{name}-help", class_="help") if help else None,
        class_="field",
    )


def action(
    visit: PageRequest,
    id: str,
    title: str,
    *,
    route: str,
    to: str,
    asks: Child,
    values: Mapping[str, str] | None = None,
    reason: str = "",
    is_dangerous: bool = False,
    is_primary: bool = False,
    key: str = "",
) -> Markup:
    """A button that asks before it does something.

    `route` is what the API calls it: somebody who may not do it is told so instead. `to` is where the form goes,
    `asks` what the question is; `reason` is the name of a field for a comment, if there should be one."""
    if not visit.may(route):
        needs = f"needs the scope {NEEDS[route]}"
        return span(title, span(f" {needs}", class_="hidden"), class_="button off", title=needs)
    looks = "danger" if is_dangerous else "primary" if is_primary else None
    opens = button(
        title,
        type="button",
        class_=looks,
        id=id,
        command="show-modal",
        commandfor=f"{id}-dialog",
        aria_haspopup="dialog",
        data_key=key or None,
    )
    comment = textarea(id=f"{id}-reason", name=reason, rows=2, maxlength=2000)
    content = form(
        hidden(visit, **(values or {})),
        h2(title, id=f"{id}-title"),
        div(asks),
        field(f"{id}-reason", "Reason (optional)", comment) if reason else None,
        div(
            button("Not now", type="button", command="close", commandfor=f"{id}-dialog"),
            button(title, type="submit", class_=looks or "primary"),
            class_="actions",
        ),
        method="post",
        action=to,
        class_="stack",
    )
    return join([opens, dialog(content, id=f"{id}-dialog", aria_labelledby=f"{id}-title")])
