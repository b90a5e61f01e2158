"""How a job's commands are run, contained, stopped and proved gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.sandbox import cgroups
from deltaci.runner.sandbox.bubblewrap import SandboxExecutor
from deltaci.runner.sandbox.cell import SHELL, BindMount, Cell, CellFailed, Executor, Exit
from deltaci.runner.sandbox.container import ContainerExecutor
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.zygote import Zygote

DEFAULT_EXECUTORS: Final = ("sandbox", "process")

__all__ = ["SHELL", "BindMount", "Cell", "CellFailed", "Executor", "Executors", "Exit"]


class Executors:
    """Every executor that there is, and what they share. Close it in the end."""

    def __init__(self, defaults: Sequence[str] = DEFAULT_EXECUTORS) -> None:
        self._defaults = list(defaults)  # For a job that asks for none: the first that works here.
        self._zygote = Zygote()
        executors: tuple[Executor, ...] = (ContainerExecutor(), SandboxExecutor(), ProcessExecutor(self._zygote))
        self._executors = {executor.name: executor for executor in executors}  # The strictest first.
        cgroups.sweep()  # What killed runners left behind.

    def choose(self, wanted: str | None, image: str = "") -> Executor:
        """The best executor for a job. One that was asked for is never replaced by another."""
        executors = self._executors
        if wanted is not None and wanted not in executors:
            raise Refused("no_executor", f"there is no executor {wanted!r}; ask for one of {', '.join(executors)}")
        if image and wanted not in (None, "container"):
            raise Refused(
                "no_executor",
                f"the job asks for the image {image!r} and for the executor {wanted!r}, which has no images; "
                "leave one of them out",
            )
        if wanted == "container" and not image:
            raise Refused("no_executor", "the job asks for the executor 'container' but for no image; name one")
        names = [wanted] if wanted else ["container"] if image else self._defaults
        reasons = {name: executors[name].unavailable_reason() for name in names}
        for name in names:
            if not reasons[name]:
                return executors[name]
        found = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        usable = (
            ", ".join(name for name in executors if name not in reasons and not executors[name].unavailable_reason())
            or "none"
        )
        raise Refused(
            "no_executor",
            f"the job needs {' or '.join(names)}, which this runner cannot give ({found}); it could give: {usable}. "
            "Set it up here, or send the job to another runner",
        )

    async def close(self) -> None:
        """End what they share. The cells must be closed before."""
        await self._zygote.close()
