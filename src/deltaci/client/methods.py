"""Turns what is described in `calls.py`, `talks.py` and `logs.py` into methods, of both clients, with their types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from deltaci.client.calls import Call
from deltaci.client.steps import Stream, Talk
from deltaci.client.talks import ask

P = ParamSpec("P")
T = TypeVar("T")


class Waits(Protocol):
    """A client that waits."""

    def finish(self, talk: Talk[T]) -> T:
        """Perform a talk; what it gives in the end."""

    def stream(self, talk: Stream[T]) -> Iterator[T]:
        """Perform a talk; what it gives on the way."""


class Awaits(Protocol):
    """A client for programs that use asyncio."""

    async def finish(self, talk: Talk[T]) -> T:
        """Perform a talk; what it gives in the end."""

    def stream(self, talk: Stream[T]) -> AsyncIterator[T]:
        """Perform a talk; what it gives on the way."""


def asked(make: Callable[P, Call[T]]) -> Callable[Concatenate[Waits, P], T]:
    """A method that makes one call."""

    @wraps(make)
    def method(self: Waits, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.finish(ask(make(*args, **kwargs)))

    return method


def finished(make: Callable[P, Talk[T]]) -> Callable[Concatenate[Waits, P], T]:
    """A method that gives the end of a talk."""

    @wraps(make)
    def method(self: Waits, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.finish(make(*args, **kwargs))

    return method


def streamed(make: Callable[P, Stream[T]]) -> Callable[Concatenate[Waits, P], Iterator[T]]:
    """A method that gives what a talk gives on the way."""

    @wraps(make)
    def method(self: Waits, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.stream(make(*args, **kwargs))

    return method


def aasked(make: Callable[P, Call[T]]) -> Callable[Concatenate[Awaits, P], Coroutine[Any, Any, T]]:
    """The same as `asked`, to be awaited."""

    @wraps(make)
    async def method(self: Awaits, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.finish(ask(make(*args, **kwargs)))

    return method


def afinished(make: Callable[P, Talk[T]]) -> Callable[Concatenate[Awaits, P], Coroutine[Any, Any, T]]:
    """The same as `finished`, to be awaited."""

    @wraps(make)
    async def method(self: Awaits, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.finish(make(*args, **kwargs))

    return method


def astreamed(make: Callable[P, Stream[T]]) -> Callable[Concatenate[Awaits, P], AsyncIterator[T]]:
    """The same as `streamed`, for `async for`."""

    @wraps(make)
    def method(self: Awaits, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self.stream(make(*args, **kwargs))

    return method
