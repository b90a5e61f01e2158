"""The tasks of a workstream as an SVG graph, each to the right of its dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.api.schemas.workstreams import WorkstreamTask
from deltaci.server.web.components import stroke, tone, words
from deltaci.server.web.markup import Markup, a, div, svg, tag
from deltaci.server.web.views.run.graph import NAME_WIDTH, PAD, SAID_WIDTH, cut
from deltaci.server.web.views.run.graph_layout import HEIGHT, WIDTH, GraphNode, drawn

MAX_DRAWN: Final = 60  # More are no picture any more.


def graph(tasks: Sequence[WorkstreamTask]) -> Markup:
    """All of these tasks, each a link to its line in the table, which says the same and more."""
    numbers = {each.name: at for at, each in enumerate(tasks)}
    places = drawn(tuple(GraphNode(tuple(numbers[need] for need in each.needs)) for each in tasks))
    width, height = round(places.width) + 2 * PAD, round(places.height) + 2 * PAD
    picture = svg(
        *(tag("path", d=each.path, class_="edge") for each in places.lines),
        *(tag("circle", cx=x, cy=y, r=3, class_="meet") for x, y in places.meets.values()),
        *(_node(each, *places.jobs[at]) for at, each in enumerate(tasks)),
        viewbox=f"{-PAD} {-PAD} {width} {height}",
        width=width,
        height=height,
        role="group",
        aria_label="Tasks, each after its dependencies",
    )
    return div(picture, class_="ws-graph", id="graph")


def _node(task: WorkstreamTask, x: float, y: float) -> Markup:
    word = words(task.state or "not planned")
    may_fail = "" if task.is_critical else ", not critical"
    how = tone(task.state)
    return a(
        tag("title", task.name),
        tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=8),
        tag("g", tag("path", d=stroke(how), class_=f"sign {how}"), transform="translate(11 7)"),
        tag("text", cut(task.name, NAME_WIDTH), x=34, y=19, class_="name"),
        tag("text", cut(f"{word}{may_fail}", SAID_WIDTH), x=34, y=36, class_="said-small"),
        id=f"node-{task.name}",
        href=f"#task-{task.name}",
        transform=f"translate({x:.1f} {y:.1f})",
        class_=f"node {how}{'' if task.is_critical else ' may-fail'}",
        aria_label=f"{task.name}: {word}{may_fail}",
    )
