"""Effects: the input and output that an operation requests.

The operations in `operations.py` are generators that yield effects and receive their results. Each client has a loop
that performs them, blocking or not. So every operation is written once and can be tested without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from deltaci.client.calls import Call

T = TypeVar("T")


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. `body` is empty while it is still being streamed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SendRequest(msgspec.Struct, frozen=True):
    """Send a request once and read the whole response. Returns an `HttpResponse` or raises `Unreachable`."""

    call: Call[Any]


class SendWithRetry(msgspec.Struct, frozen=True):
    """Send a request, with retries if that is safe. Returns the decoded body or raises `ApiError` or `Unreachable`."""

    call: Call[Any]


class OpenStream(msgspec.Struct, frozen=True):
    """Send a request once and stream its response. Returns an `HttpResponse` and closes the previous stream.

    The connection counts as lost after `silence_seconds` without data.
    """

    call: Call[Any]
    silence_seconds: float


class ReadChunk(msgspec.Struct, frozen=True):
    """Return the next bytes of the open stream, or None at its end. Raises `Unreachable` if the connection breaks."""


class Sleep(msgspec.Struct, frozen=True):
    """Wait for this many seconds."""

    seconds: float


class GetRetryPolicy(msgspec.Struct, frozen=True):
    """Return the client's retry policy, a `Patience`."""


class EmitItem(msgspec.Struct, Generic[T], frozen=True):
    """Pass an item to the caller of a streaming operation."""

    item: T


Effect = SendRequest | SendWithRetry | OpenStream | ReadChunk | Sleep | GetRetryPolicy
Operation = Generator[Effect, Any, T]  # In the end it gives a T.
StreamOperation = Generator[Effect | EmitItem[T], Any, None]  # On the way it gives any number of T.


class OperationDriver(Generic[T]):
    """Advances an operation from effect to effect. Performs no effect itself."""

    def __init__(self, operation: Generator[Any, Any, T]) -> None:
        self._talk = operation
        self._move: Callable[[], Any] = partial(next, operation)
        self.result: T | None = None

    def step(self) -> Any:
        """Return the next effect to perform, or None at the end of the operation."""
        try:
            return self._move()
        except StopIteration as end:
            self.result = end.value
            return None

    def give(self, result: Any) -> None:
        """Set the result of the last effect."""
        self._move = partial(self._talk.send, result)

    def fail(self, error: Exception) -> None:
        """Raise the error of the last effect inside the operation, which decides how to go on."""
        self._move = partial(self._talk.throw, error)
