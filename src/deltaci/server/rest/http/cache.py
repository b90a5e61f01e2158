"""What was read is remembered for a while, so that a busy caller does not cost a look at the store each time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values for so many seconds, and for so many names; beyond that all are forgotten, and read again."""

    def __init__(self, seconds: float, most: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._known: dict[K, tuple[float, V]] = {}

    def get(self, name: K) -> V | None:
        """What is known of it, if that is young enough."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] > self._clock() else None

    def put(self, name: K, value: V) -> V:
        """From now on."""
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[name] = (self._clock() + self._seconds, value)
        return value

    def change(self, name: K, by: Callable[[V], V]) -> None:
        """Change what is known, which grows no younger by it."""
        if (known := self._known.get(name)) is not None:
            self._known[name] = (known[0], by(known[1]))

    def forget(self, name: K) -> None:
        """Read it again next time."""
        self._known.pop(name, None)
