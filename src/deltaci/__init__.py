"""Delta CI: a self-hosted CI and job orchestrator whose every step can be proved legal.

Programs use the queue as a library, `from deltaci import Queue, AsyncQueue, Worker`, and a server's API with
`from deltaci import Client, AsyncClient`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaci.client import ApiError, AsyncClient, Client, Unreachable
    from deltaci.core.errors import JobCanceled, LeaseLost, Refused, StaleLease
    from deltaci.engine.queue import NewJob
    from deltaci.engine.worker import Task, Worker
    from deltaci.library import AsyncQueue, Queue

__version__ = version("deltaci")
__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncQueue",
    "Client",
    "JobCanceled",
    "LeaseLost",
    "NewJob",
    "Queue",
    "Refused",
    "StaleLease",
    "Task",
    "Unreachable",
    "Worker",
    "__version__",
]

# The module of each name. It is imported when the name is first used, so that the command line starts fast.
_MODULES = {
    "ApiError": "deltaci.client",
    "AsyncClient": "deltaci.client",
    "AsyncQueue": "deltaci.library",
    "Client": "deltaci.client",
    "JobCanceled": "deltaci.core.errors",
    "LeaseLost": "deltaci.core.errors",
    "NewJob": "deltaci.engine.queue",
    "Queue": "deltaci.library",
    "Refused": "deltaci.core.errors",
    "StaleLease": "deltaci.core.errors",
    "Task": "deltaci.engine.worker",
    "Unreachable": "deltaci.client",
    "Worker": "deltaci.engine.worker",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'deltaci' has no attribute {name!r}")
    return getattr(import_module(module), name)
