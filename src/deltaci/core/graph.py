"""Dependencies between the jobs of a plan. At run time counters track them, so that no step scans a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltaci.core.errors import Refused


def dependents(needs_by_name: Mapping[str, Sequence[str]], verb: str = "needs") -> dict[str, tuple[str, ...]]:
    """Return, for each job, the jobs that need it. Refuse a name that is not in the plan, and a dependency named twice.

    `verb` is used in the message of a refusal.
    """
    dependents_by_name: dict[str, list[str]] = {name: [] for name in needs_by_name}
    for name, needed_names in needs_by_name.items():
        for need in needed_names:
            if need not in dependents_by_name:
                raise Refused(
                    "bad_request",
                    f"job {name!r} {verb} {need!r}, which is not in the plan; add it or remove the need",
                )
            dependents_by_name[need].append(name)
        if len(set(needed_names)) != len(needed_names):
            raise Refused(
                "bad_request", f"job {name!r} names a dependency twice: {', '.join(needed_names)}; name each once"
            )
    return {name: tuple(dependent_names) for name, dependent_names in dependents_by_name.items()}


def check_acyclic(needs_by_name: Mapping[str, Sequence[str]]) -> None:
    """Refuse a plan with a dependency cycle; the message names the jobs of the cycle."""
    cycle = find_cycle(needs_by_name)
    if cycle:
        raise Refused("dependency_cycle", f"jobs wait for each other: {' → '.join(cycle)}; remove one of these needs")


def find_cycle(needs_by_name: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names along a dependency cycle, with the first name repeated at the end; empty if there is none.

    Uses no recursion and takes time linear in the size of the plan.
    """
    names_on_path, finished_names = set[str](), set[str]()
    for start_name in needs_by_name:
        current_path: list[str] = []
        stack: list[tuple[str, bool]] = [(start_name, False)]
        while stack:
            name, is_leaving = stack.pop()
            if is_leaving:
                names_on_path.discard(name)
                finished_names.add(name)
                current_path.pop()
            elif name in names_on_path:
                return [*current_path[current_path.index(name) :], name]
            elif name not in finished_names:
                names_on_path.add(name)
                current_path.append(name)
                stack.append((name, True))
                stack.extend((need, False) for need in needs_by_name[name])
    return []


def chain(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return dependencies that put the names in sequence: each needs the one before it, the first none."""
    return {
        name: tuple(names[name_index - 1 : name_index]) if name_index else () for name_index, name in enumerate(names)
    }
