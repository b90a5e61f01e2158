"""What a client does, as values: the talks of `talks.py` yield these, and a shell performs them, blocking or not.

So everything that takes more than one request is told once, and tested without a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from deltaci.client.calls import Call

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """What came back. `body` is empty when it is still to be read."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Send(msgspec.Struct, frozen=True):
    """Send a request once, and read all of its answer. Gives an `Answer`, or raises `Unreachable`."""

    call: Call[Any]


class Ask(msgspec.Struct, frozen=True):
    """Send a request, again where that is safe. Gives what the answer says, or raises `ApiError` or `Unreachable`."""

    call: Call[Any]


class Open(msgspec.Struct, frozen=True):
    """Send a request, once, whose answer is read as it comes. Gives an `Answer`; ends what was open before.

    Who says nothing for `silence_seconds` counts as gone.
    """

    call: Call[Any]
    silence_seconds: float


class Read(msgspec.Struct, frozen=True):
    """Gives the next bytes of what is open, None at its end; raises `Unreachable` when it breaks."""


class Pause(msgspec.Struct, frozen=True):
    """Wait."""

    seconds: float


class Mind(msgspec.Struct, frozen=True):
    """Gives the client's `Patience`."""


class Emit(msgspec.Struct, Generic[T], frozen=True):
    """Give this to whoever listens."""

    item: T


Step = Send | Ask | Open | Read | Pause | Mind
Talk = Generator[Step, Any, T]  # In the end it gives a T.
Stream = Generator[Step | Emit[T], Any, None]  # On the way it gives any number of T.


class Drive(Generic[T]):
    """Moves a talk on from step to step. Performs none of them."""

    def __init__(self, talk: Generator[Any, Any, T]) -> None:
        self._talk = talk
        self._move: Callable[[], Any] = partial(next, talk)
        self.result: T | None = None

    def step(self) -> Any:
        """The next step; None when the talk is at its end."""
        try:
            return self._move()
        except StopIteration as end:
            self.result = end.value
            return None

    def give(self, result: Any) -> None:
        """The step was performed, with this result."""
        self._move = partial(self._talk.send, result)

    def fail(self, error: Exception) -> None:
        """It was not; the talk decides what that means."""
        self._move = partial(self._talk.throw, error)
