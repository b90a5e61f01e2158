"""Run the commands of jobs isolated from the runner, limit their resources, and end all of their processes.

An executor makes one `Cell` per job: a container, a bubblewrap sandbox, or plain processes below a supervisor. May
import `core`, `protocol` and `workspace`. Start with `cell.py` (the interfaces), then `supervised_cell.py`.
"""

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
    """All executors of this runner and the zygote that they share. Must be closed."""

    def __init__(self, defaults: Sequence[str] = DEFAULT_EXECUTORS) -> None:
        self._defaults = list(defaults)  # For a job that requests none: the first usable one.
        self._zygote = Zygote()
        executors: tuple[Executor, ...] = (
            ContainerExecutor(self._zygote),
            SandboxExecutor(),
            ProcessExecutor(self._zygote),
        )
        self._executors = {executor.name: executor for executor in executors}  # In order of isolation.
        cgroups.remove_stale()  # Of runners that were killed.

    def choose(self, requested_name: str | None, image: str = "") -> Executor:
        """Return the requested executor, `container` if there is an image, else the first usable default.

        Raises `Refused` if it cannot be used here. A requested executor is never replaced by another one.
        """
        executors = self._executors
        if requested_name is not None and requested_name not in executors:
            raise Refused(
                "no_executor", f"there is no executor {requested_name!r}; expected one of {', '.join(executors)}"
            )
        if image and requested_name not in (None, "container"):
            raise Refused(
                "no_executor",
                f"the job requests the image {image!r} and the executor {requested_name!r}, which cannot run images; "
                "leave one of them out",
            )
        if requested_name == "container" and not image:
            raise Refused("no_executor", "the job requests the executor 'container' but no image; name one")
        executor_names = [requested_name] if requested_name else ["container"] if image else self._defaults
        reasons = {executor_name: executors[executor_name].unavailable_reason() for executor_name in executor_names}
        for executor_name in executor_names:
            if not reasons[executor_name]:
                return executors[executor_name]
        listed_reasons = "; ".join(f"{executor_name}: {reason}" for executor_name, reason in reasons.items())
        usable_names = (
            ", ".join(
                executor_name
                for executor_name in executors
                if executor_name not in reasons and not executors[executor_name].unavailable_reason()
            )
            or "none"
        )
        raise Refused(
            "no_executor",
            f"the job needs {' or '.join(executor_names)}, which this runner cannot provide ({listed_reasons}); "
            f"it can provide: {usable_names}. Set it up here, or send the job to another runner",
        )

    async def close(self) -> None:
        """Stop the zygote. All cells must be closed before."""
        await self._zygote.close()
