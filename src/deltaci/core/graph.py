"""Dependencies between the jobs of a plan. Progress is kept by counters, so no step ever scans a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltaci.core.errors import Refused


def dependents(needs: Mapping[str, Sequence[str]], verb: str = "needs") -> dict[str, tuple[str, ...]]:
    """For every job, who waits for it. Refuses a name that is not in the plan, and a dependency named twice."""
    found: dict[str, list[str]] = {name: [] for name in needs}
    for name, wanted in needs.items():
        for other in wanted:
            if other not in found:
                raise Refused(
                    "bad_request", f"job {name!r} {verb} {other!r}, which is not in the plan; add it or remove the need"
                )
            found[other].append(name)
        if len(set(wanted)) != len(wanted):
            raise Refused("bad_request", f"job {name!r} names a dependency twice: {', '.join(wanted)}; name each once")
    return {name: tuple(waiting) for name, waiting in found.items()}


def check_acyclic(needs: Mapping[str, Sequence[str]]) -> None:
    """Refuse a plan that can never finish, and name the cycle."""
    cycle = find_cycle(needs)
    if cycle:
        raise Refused("dependency_cycle", f"jobs wait for each other: {' → '.join(cycle)}; remove one of these needs")


def find_cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """A cycle as the path of needs that closes on itself, or nothing. Linear in the plan, without recursion."""
    open_, done = set[str](), set[str]()
    for root in needs:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, is_leaving = stack.pop()
            if is_leaving:
                open_.discard(name)
                done.add(name)
                path.pop()
            elif name in open_:
                return [*path[path.index(name) :], name]
            elif name not in done:
                open_.add(name)
                path.append(name)
                stack.append((name, True))
                stack.extend((other, False) for other in needs[name])
    return []


def chain(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The strict order of a template without dependencies: everyone waits for the one before."""
    return {name: tuple(names[position - 1 : position]) if position else () for position, name in enumerate(names)}
