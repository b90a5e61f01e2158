"""Decorators that turn the functions of `calls.py`, `operations.py` and `logs.py` into typed client methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from deltaci.client.calls import Call
from deltaci.client.effects import Operation, StreamOperation
from deltaci.client.operations import ask

P = ParamSpec("P")
T = TypeVar("T")


class BlockingRunner(Protocol):
    """A client whose methods block: it performs calls and operations."""

    def finish(self, operation: Operation[T]) -> T:
        """Perform an operation and return its result."""

    def stream(self, operation: StreamOperation[T]) -> Iterator[T]:
        """Perform an operation and yield its items."""


class AsyncRunner(Protocol):
    """A client whose methods are coroutines: it performs calls and operations."""

    async def finish(self, operation: Operation[T]) -> T:
        """Perform an operation and return its result."""

    def stream(self, operation: StreamOperation[T]) -> AsyncIterator[T]:
        """Perform an operation and yield its items."""


def call_method(make: Callable[P, Call[T]]) -> Callable[Concatenate[BlockingRunner, P], T]:
    """Return a method that sends one call."""

    @wraps(make)
    def method(self: BlockingRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.finish(ask(make(*args, **kwargs)))

    return method


def operation_method(make: Callable[P, Operation[T]]) -> Callable[Concatenate[BlockingRunner, P], T]:
    """Return a method that performs an operation."""

    @wraps(make)
    def method(self: BlockingRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.finish(make(*args, **kwargs))

    return method


def stream_method(make: Callable[P, StreamOperation[T]]) -> Callable[Concatenate[BlockingRunner, P], Iterator[T]]:
    """Return a method that yields the items of an operation."""

    @wraps(make)
    def method(self: BlockingRunner, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.stream(make(*args, **kwargs))

    return method


def async_call_method(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncRunner, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that sends one call."""

    @wraps(make)
    async def method(self: AsyncRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.finish(ask(make(*args, **kwargs)))

    return method


def async_operation_method(
    make: Callable[P, Operation[T]],
) -> Callable[Concatenate[AsyncRunner, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that performs an operation."""

    @wraps(make)
    async def method(self: AsyncRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.finish(make(*args, **kwargs))

    return method


def async_stream_method(
    make: Callable[P, StreamOperation[T]],
) -> Callable[Concatenate[AsyncRunner, P], AsyncIterator[T]]:
    """Return a method that yields the items of an operation asynchronously."""

    @wraps(make)
    def method(self: AsyncRunner, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.stream(make(*args, **kwargs))

    return method
