"""How a job's commands are run, contained, stopped and proved gone."""

from __future__ import annotations

from deltaci.core.errors import Refused
from deltaci.runner.executors.cell import SHELL, Cell, CellFailed, Executor, Exit
from deltaci.runner.executors.container import ContainerExecutor
from deltaci.runner.executors.process import ProcessExecutor
from deltaci.runner.executors.sandbox import SandboxExecutor

__all__ = ["SHELL", "Cell", "CellFailed", "Executor", "Exit", "available", "choose"]


def all_of_them() -> dict[str, Executor]:
    """Every executor that there is, the strictest first."""
    every: tuple[Executor, ...] = (ContainerExecutor(), SandboxExecutor(), ProcessExecutor())
    return {executor.name: executor for executor in every}


def available() -> dict[str, str]:
    """By name, why it cannot be used here; empty when it can."""
    return {name: executor.why_not() for name, executor in all_of_them().items()}


def choose(wanted: str | None, image: str = "") -> Executor:
    """The best executor for a job. One that was asked for is never replaced by another."""
    every = all_of_them()
    if wanted is not None and wanted not in every:
        raise Refused("no_executor", f"there is no executor {wanted!r}; ask for one of {', '.join(every)}")
    if image and wanted not in (None, "container"):
        raise Refused(
            "no_executor",
            f"the job asks for the image {image!r} and for the executor {wanted!r}, which has no images; "
            "leave one of them out",
        )
    if wanted == "container" and not image:
        raise Refused("no_executor", "the job asks for the executor 'container' but for no image; name one")
    names = [wanted] if wanted else ["container"] if image else ["sandbox", "process"]
    reasons = {name: every[name].why_not() for name in names}
    for name in names:
        if not reasons[name]:
            return every[name]
    found = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    usable = ", ".join(name for name in every if name not in reasons and not every[name].why_not()) or "none"
    raise Refused(
        "no_executor",
        f"the job needs {' or '.join(names)}, which this runner cannot give ({found}); it could give: {usable}. "
        "Set it up here, or send the job to another runner",
    )
