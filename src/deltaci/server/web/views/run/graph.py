"""The jobs of a run as an SVG graph, coloured by status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from functools import lru_cache
from typing import Final
from unicodedata import east_asian_width

from deltaci.api.schemas.records import Job
from deltaci.server.web.components import path, stroke
from deltaci.server.web.markup import Markup, a, button, div, svg, tag
from deltaci.server.web.views.run.graph_layout import HEIGHT, WIDTH, GraphEdge, GraphLayout, GraphNode, drawn, short
from deltaci.server.web.views.run.job_status import JobStatusLabel, is_blocked, look, took

PAD: Final = 6  # Around everything, so that outlines are not cut off.
NAME_WIDTH: Final = 23  # In letters of a usual width.
SAID_WIDTH: Final = 27
# Approvals are no boxes: people must be seen at a glance.
_GATE: Final = f"M14 .5H{WIDTH - 14:.0f}L{WIDTH - 0.5} {HEIGHT / 2}L{WIDTH - 14:.0f} {HEIGHT - 0.5}H14L.5 {HEIGHT / 2}Z"
_SHAPES: Final = {
    False: tag("rect", x=0.5, y=0.5, width=short(WIDTH - 1), height=short(HEIGHT - 1), rx=8, class_="shape"),
    True: tag("path", d=_GATE, class_="shape"),
}
# Each in a group of its own: what turns has no other transformation.
_SIGNS: Final = {
    feels: tag("g", tag("path", d=stroke(feels), class_=f"sign {feels}"), transform="translate(11 7)")
    for feels in ("good", "bad", "busy", "held", "gone", "idle")
}


def graph(run_id: str, jobs: Sequence[Job]) -> Markup:
    """All of these jobs. Read aloud it is a group of links; the table of jobs says the same and more."""
    numbers = {each.name: at for at, each in enumerate(jobs)}
    places = drawn(tuple(_wanted(each, numbers) for each in jobs))
    looks = [look(each) for each in jobs]
    width, height = round(places.width) + 2 * PAD, round(places.height) + 2 * PAD
    picture = svg(
        tag("g", *_lines(places, jobs, looks), class_="edges"),
        *(
            tag("circle", cx=short(x), cy=short(y), r=3, class_="meet", data_node=at)
            for at, (x, y) in places.meets.items()
        ),
        *(_node(run_id, at, jobs[at], looks[at], *places.jobs[at]) for at in range(len(jobs))),
        viewbox=f"{-PAD} {-PAD} {width} {height}",
        width=width,
        height=height,
        id="graph-picture",
        role="group",
        aria_label="Jobs, each after its dependencies",
    )
    return div(
        button("Fit to page", type="button", id="graph-fit", data_key="z", data_keep=True),
        div(
            picture,
            id="graph-box",
            class_="graph",
            tabindex="0",
            role="region",
            aria_label="Graph of the jobs. Press Enter to enter, arrow keys to move between jobs, Escape to leave.",
        ),
        class_="graph-around",
    )


def _wanted(job: Job, numbers: dict[str, int]) -> GraphNode:
    return GraphNode(
        tuple(numbers[name] for name in job.needs if name in numbers),
        tuple(numbers[name] for name in job.after if name in numbers),
        job.family,
    )


def _lines(places: GraphLayout, jobs: Sequence[Job], looks: Sequence[JobStatusLabel]) -> list[Markup]:
    """The lines; what led from a failure to what it kept from running is drawn last, above all others."""
    spoiled = {at for at, each in enumerate(looks) if each.tone == "bad" or is_blocked(jobs[at])}
    blocked = {at for at, each in enumerate(jobs) if is_blocked(each)}
    into = {line.target for line in places.lines if line.source in spoiled}
    onward = {line.source for line in places.lines if line.target in blocked}

    def is_bad(line: GraphEdge) -> bool:
        begins = line.source in spoiled or (line.source in places.meets and line.source in into)
        ends = line.target in blocked or (line.target in places.meets and line.target in onward)
        return begins and ends and not line.is_after

    found = [(is_bad(line), line) for line in places.lines]
    return [_line(line, is_bad=bad) for bad, line in sorted(found, key=lambda each: each[0])]


def _line(line: GraphEdge, *, is_bad: bool) -> Markup:
    classes = " ".join(("edge", *(["after"] if line.is_after else []), *(["bad"] if is_bad else [])))
    return tag("path", d=line.path, class_=classes, data_from=line.source, data_to=line.target)


def _node(run_id: str, at: int, job: Job, seen: JobStatusLabel, x: float, y: float) -> Markup:
    lasts = took(job)
    since = job.started_at if job.completed_at is None and seen.tone == "busy" else None
    word = cut(seen.word, SAID_WIDTH)
    if lasts:
        said = tag("text", f"{word} · {lasts}", x=34, y=36, class_="said-small")
    elif since is not None:
        counted = tag("tspan", "…", data_since=since.astimezone(UTC).isoformat().replace("+00:00", "Z"))
        said = tag("text", f"{word} · ", counted, x=34, y=36, class_="said-small")
    else:
        said = tag("text", word, x=34, y=36, class_="said-small")
    is_gate, name = job.approval is not None, cut(job.name, NAME_WIDTH)
    return a(
        tag("title", job.name) if name != job.name else None,
        _SHAPES[is_gate],
        _SIGNS[seen.tone],
        tag("text", name, x=34, y=19, class_="name"),
        said,
        id=f"node-{at}",
        href=path("runs", run_id, "jobs", job.name),
        transform=f"translate({short(x)} {short(y)})",
        class_=f"node {seen.tone}{' gate' if is_gate else ''}",
        tabindex="-1",
        aria_label=f"{job.name}: {seen.word}{f', {lasts}' if lasts else ''}",
        data_node=at,
    )


@lru_cache(maxsize=4096)
def cut(text: str, width: int) -> str:
    """So much of a text as fits, with its end: jobs of a matrix differ there."""
    if sum(_width(each) for each in text) <= width:
        return text
    tail = text[-8:]
    while sum(_width(each) for each in tail) > width // 2:
        tail = tail[1:]
    room = width - 1 - sum(_width(each) for each in tail)
    head = ""
    for each in text:
        room -= _width(each)
        if room < 0:
            break
        head += each
    return f"{head.rstrip()}…{tail}"


def _width(letter: str) -> int:
    return 2 if east_asian_width(letter) in "WF" else 1
