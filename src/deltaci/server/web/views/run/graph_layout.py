"""Lay out the jobs of a run as a layered graph, each job to the right of its dependencies. Pure.

The layer of a job is the length of the longest path to it. Edges that others imply are left out, many-to-many edges
meet in one point, and an edge across several layers gets a lane in each of them, so that edges run between jobs and not
behind them. The order within a layer follows the barycentre of the neighbours, with the jobs of one matrix kept
together; then each job moves as close to its neighbours as the order allows. The cost is about that of sorting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

WIDTH: Final = 208.0  # Of a job.
HEIGHT: Final = 46.0
GAP_X: Final = 56.0
GAP_Y: Final = 14.0
LANE: Final = 14.0  # What a line needs where it passes a column.
SWEEPS: Final = 4
MAX_LANES: Final = 2000
BUS_FROM: Final = 10  # So many lines at one job go along one line.
MEET_FROM: Final = 9  # So many lines between the same jobs meet in a point.


class GraphNode(msgspec.Struct, frozen=True):
    """A job to draw: its dependencies, the jobs that only order it (`after`), and its matrix."""

    needs: tuple[int, ...]
    after: tuple[int, ...] = ()
    family: str = ""


class GraphEdge(msgspec.Struct, frozen=True):
    """An edge and the points on its path. Nodes are jobs by index, followed by meeting points.

    `is_after`: the target waits for the end of the source, not for its success.
    """

    source: int
    target: int
    points: tuple[tuple[float, float], ...]
    path: str
    is_after: bool = False


class GraphLayout(msgspec.Struct, frozen=True):
    """The position of every job (left, top), the edges, and the meeting points by number."""

    width: float
    height: float
    jobs: list[tuple[float, float]]
    lines: list[GraphEdge]
    meets: dict[int, tuple[float, float]]


@lru_cache(maxsize=32)
def drawn(jobs: tuple[GraphNode, ...]) -> GraphLayout:
    """All of them. Those that wait for nobody and nobody waits for stand in rows below.

    A run's plan does not change while people look at it, so what was drawn last is remembered."""
    edges = _reduced(jobs)
    tied = {i for i in range(len(jobs)) if edges.needs[i] or edges.after[i]}
    tied |= {other for some in (*edges.needs, *edges.after) for other in some}
    layered = _LayerAssignment(jobs, edges, [i for i in range(len(jobs)) if i in tied])
    places, lines, meets = layered.placed()
    bottom = max((y for _, y in places.values()), default=-HEIGHT - GAP_Y) + HEIGHT
    alone = [i for i in range(len(jobs)) if i not in tied]
    columns = max(4, layered.columns) if len(alone) > 4 else max(1, len(alone))
    for at, i in enumerate(alone):
        row, column = divmod(at, columns)
        places[i] = (column * (WIDTH + GAP_X / 2), bottom + GAP_Y + row * (HEIGHT + GAP_Y))
    return GraphLayout(
        width=max((x for x, _ in places.values()), default=0.0) + WIDTH,
        height=max((y for _, y in places.values()), default=0.0) + HEIGHT,
        jobs=[places[i] for i in range(len(jobs))],
        lines=lines,
        meets=meets,
    )


# -- edges


class _Edges(msgspec.Struct):
    """The reduced edges and the layer of each job."""

    needs: list[Sequence[int]]
    after: list[Sequence[int]]
    layers: list[int]


class _ReducedNode(msgspec.Struct, frozen=True):
    """The edges of a job without those that others imply, its ancestors as a bit set, and its layer."""

    needs: tuple[int, ...]
    after: tuple[int, ...]
    needed: int = 0  # By needs alone.
    before: int = 0
    layer: int = 0


def _reduced(jobs: Sequence[GraphNode]) -> _Edges:
    """The edges without those that others imply. A need is implied by needs alone."""
    found = [_ReducedNode((), ())] * len(jobs)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], _ReducedNode] = {}
    for i in in_order([each.needs + each.after for each in jobs]):
        wanted = (jobs[i].needs, jobs[i].after)
        if wanted not in known:  # Many jobs wait for the same.
            known[wanted] = _kept(*wanted, found)
        found[i] = known[wanted]
    return _Edges([each.needs for each in found], [each.after for each in found], [each.layer for each in found])


def _kept(needs: tuple[int, ...], after: tuple[int, ...], found: Sequence[_ReducedNode]) -> _ReducedNode:
    far_needed = far_before = near_needed = near_after = 0
    for other in needs:
        far_needed |= found[other].needed
        far_before |= found[other].before
        near_needed |= 1 << other
    for other in after:
        far_before |= found[other].before
        near_after |= 1 << other
    return _ReducedNode(
        tuple(other for other in dict.fromkeys(needs) if not far_needed >> other & 1),
        tuple(other for other in dict.fromkeys(after) if not (far_before | near_needed) >> other & 1),
        far_needed | near_needed,
        far_before | near_needed | near_after,
        max((found[other].layer + 2 for other in (*needs, *after)), default=0),
    )


def in_order(before: Sequence[Sequence[int]]) -> list[int]:
    """Everyone behind all that come before it, otherwise as they were. Those in a circle are left out."""
    waiting = [len(some) for some in before]
    behind: list[list[int]] = [[] for _ in before]
    for i, some in enumerate(before):
        for other in some:
            behind[other].append(i)
    order = [i for i, count in enumerate(waiting) if not count]
    for i in order:
        for other in behind[i]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order


# -- places


class _LayerAssignment:
    """Jobs in even layers, meeting points in odd layers, and lanes for edges that pass an even layer."""

    def __init__(self, jobs: Sequence[GraphNode], edges: _Edges, tied: Sequence[int]) -> None:
        self._jobs = jobs
        self._layer: dict[int, int] = {i: edges.layers[i] for i in tied}
        self._next = len(jobs)
        self._left: dict[int, list[int]] = {i: [] for i in self._layer}
        self._right: dict[int, list[int]] = {i: [] for i in self._layer}
        self._lanes: dict[tuple[int, int], int] = {}
        self._meets: set[int] = set()
        self._edges: list[tuple[int, int, bool, list[int]]] = []
        for source, target, is_after in self._met(edges.needs, edges.after):
            self._edges.append((source, target, is_after, self._tie(source, target)))
        self.columns = max(self._layer.values(), default=-2) // 2 + 1

    def _met(self, needs: list[Sequence[int]], after: list[Sequence[int]]) -> list[tuple[int, int, bool]]:
        """The edges; where many need the same many, by way of one point."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for i in self._layer:
            alike.setdefault(tuple(sorted(needs[i])), []).append(i)
        edges = [(other, i, True) for i in self._layer for other in after[i]]
        for sources, targets in alike.items():
            if len(sources) < 2 or len(targets) < 2 or len(sources) * len(targets) < MEET_FROM:
                edges += [(source, target, False) for target in targets for source in sources]
                continue
            point = self._new(min(self._layer[target] for target in targets) - 1)
            self._meets.add(point)
            edges += [(source, point, False) for source in sources]
            edges += [(point, target, False) for target in targets]
        return edges

    def _new(self, layer: int) -> int:
        thing, self._next = self._next, self._next + 1
        self._layer[thing], self._left[thing], self._right[thing] = layer, [], []
        return thing

    def _tie(self, source: int, target: int) -> list[int]:
        """The lanes of an edge; edges of one source share them."""
        lanes: list[int] = []
        at = source
        first = self._layer[source] // 2 * 2 + 2
        for layer in range(first, self._layer[target], 2):
            lane = self._lanes.get((source, layer))
            if lane is None:
                if len(self._lanes) >= MAX_LANES:
                    continue
                lane = self._lanes[source, layer] = self._new(layer)
                self._join(at, lane)
            lanes.append(lane)
            at = lane
        self._join(at, target)
        return lanes

    def _join(self, left: int, right: int) -> None:
        self._right[left].append(right)
        self._left[right].append(left)

    def placed(self) -> tuple[dict[int, tuple[float, float]], list[GraphEdge], dict[int, tuple[float, float]]]:
        """The jobs' places, the lines, the points where they meet."""
        layers: dict[int, list[int]] = {}
        for thing, layer in self._layer.items():
            layers.setdefault(layer, []).append(thing)
        rising = [layers[layer] for layer in sorted(layers)]
        self._ordered(rising)
        middle = self._spread(rising)
        top = min((middle[i] - self._size(i) / 2 for i in middle), default=0.0)
        middle = {i: y - top for i, y in middle.items()}
        lines = [
            self._line(source, target, tuple(self._way(source, target, lanes, middle)), is_after=is_after)
            for source, target, is_after, lanes in self._edges
        ]
        places = {i: (self._x(i), middle[i] - HEIGHT / 2) for i in self._layer if i < len(self._jobs)}
        return places, lines, {i: (self._x(i), middle[i]) for i in self._meets}

    def _line(self, source: int, target: int, points: tuple[tuple[float, float], ...], *, is_after: bool) -> GraphEdge:
        bend = None
        if len(points) == 2 and len(self._right[source]) >= BUS_FROM:
            bend = 0.35
        elif len(points) == 2 and len(self._left[target]) >= BUS_FROM:
            bend = 0.65
        way = curve(points) if bend is None else elbow(points[0], points[1], bend)
        return GraphEdge(source, target, points, way, is_after)

    def _ordered(self, layers: list[list[int]]) -> None:
        at = {thing: float(n) for layer in layers for n, thing in enumerate(layer)}
        for sweep in range(SWEEPS):
            is_forward = sweep % 2 == 0
            near = self._left if is_forward else self._right
            for layer in layers if is_forward else reversed(layers):
                wish = {i: _mean([at[other] for other in near[i]], at[i]) for i in layer}
                kin = self._kin(layer, wish)
                layer.sort(key=lambda i: (kin[i], wish[i], i))
                for n, thing in enumerate(layer):
                    at[thing] = float(n)

    def _kin(self, layer: list[int], wish: Mapping[int, float]) -> dict[int, tuple[float, str]]:
        """What keeps jobs of one matrix together: where they would stand on average."""
        families: dict[str, list[float]] = {}
        names = {i: self._jobs[i].family if i < len(self._jobs) else "" for i in layer}
        for i in layer:
            families.setdefault(names[i], []).append(wish[i])
        means = {name: _mean(some, 0.0) for name, some in families.items()}
        return {i: (means[names[i]], names[i]) if names[i] else (wish[i], "") for i in layer}

    def _spread(self, layers: list[list[int]]) -> dict[int, float]:
        """The middle of everything, from top to bottom."""
        middle: dict[int, float] = {}
        for layer in layers:
            top = 0.0
            for i in layer:
                middle[i] = top + self._size(i) / 2
                top += self._size(i) + GAP_Y
        for near, order in ((self._left, layers), (self._right, layers[::-1]), (self._left, layers)):
            for layer in order:
                wish = [_mean([middle[other] for other in near[i]], middle[i]) for i in layer]
                sizes = [self._size(i) for i in layer]
                for i, y in zip(layer, apart(wish, sizes), strict=True):
                    middle[i] = y
        return middle

    def _size(self, thing: int) -> float:
        return HEIGHT if thing < len(self._jobs) else LANE

    def _x(self, thing: int) -> float:
        column, odd = divmod(self._layer[thing], 2)
        return column * (WIDTH + GAP_X) + (WIDTH + GAP_X * 0.6 if odd else 0.0)

    def _way(
        self, source: int, target: int, lanes: list[int], middle: Mapping[int, float]
    ) -> list[tuple[float, float]]:
        points = [(self._x(source) + (0.0 if source in self._meets else WIDTH), middle[source])]
        for lane in lanes:
            points += [(self._x(lane), middle[lane]), (self._x(lane) + WIDTH, middle[lane])]
        return [*points, (self._x(target), middle[target])]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def apart(wish: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """As near to the wishes as can be (least squares), in this order, without touching each other."""
    offset: list[float] = []
    so_far = 0.0
    for n, size in enumerate(sizes):
        so_far += size / 2 + (sizes[n - 1] / 2 + GAP_Y if n else 0.0)
        offset.append(so_far)
    # Neighbours that want to be where the other one is become a block that stands where they want to be on average.
    blocks: list[tuple[float, int]] = []
    for wanted, moved in zip(wish, offset, strict=True):
        total, count = wanted - moved, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, others = blocks.pop()
            total, count = total + more, count + others
        blocks.append((total, count))
    starts = [total / count for total, count in blocks for _ in range(count)]
    return [start + moved for start, moved in zip(starts, offset, strict=True)]


def curve(points: Sequence[tuple[float, float]]) -> str:
    """Through these points, from left to right: bent between columns, straight across them."""
    (x, y), *others = points
    parts = [f"M{short(x)} {short(y)}"]
    for to_x, to_y in others:
        if to_y == y:
            parts.append(f"H{short(to_x)}")
        else:
            middle = short((x + to_x) / 2)
            parts.append(f"C{middle} {short(y)} {middle} {short(to_y)} {short(to_x)} {short(to_y)}")
        x, y = to_x, to_y
    return "".join(parts)


def elbow(start: tuple[float, float], end: tuple[float, float], bend: float) -> str:
    """With corners, along a line that it shares with all others from there: a hundred curves would be a wall."""
    (x, y), (to_x, to_y) = start, end
    at = x + (to_x - x) * bend
    far = abs(to_y - y)
    if far < 1:
        return curve((start, (to_x, y)))
    r = min(6.0, far / 2)
    down = r if to_y > y else -r
    return (
        f"M{short(x)} {short(y)}H{short(at - r)}Q{short(at)} {short(y)} {short(at)} {short(y + down)}"
        f"V{short(to_y - down)}Q{short(at)} {short(to_y)} {short(at + r)} {short(to_y)}H{short(to_x)}"
    )


def short(value: float) -> str:
    """A number of a drawing: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")
