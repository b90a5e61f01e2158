"""A cache with a time to live, so that a busy caller does not cause a query of the store for each request."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """A cache whose values expire after `ttl_seconds`. Once it has `max_entries`, the next `put` empties it first."""

    def __init__(self, ttl_seconds: float, max_entries: int, clock: Callable[[], float]) -> None:
        self._ttl_seconds = ttl_seconds
        self._max_entries = max_entries
        self._clock = clock
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """Return the cached value, or None if there is none or it has expired."""
        expiry_and_value = self._entries.get(key)
        return expiry_and_value[1] if expiry_and_value is not None and expiry_and_value[0] > self._clock() else None

    def put(self, key: K, value: V) -> V:
        """Cache a value and return it."""
        if len(self._entries) >= self._max_entries:
            self._entries.clear()
        self._entries[key] = (self._clock() + self._ttl_seconds, value)
        return value

    def update(self, key: K, change_value: Callable[[V], V]) -> None:
        """Replace the cached value of a key, if there is one, by `change_value(value)`.

        It expires at the same time as before.
        """
        if (expiry_and_value := self._entries.get(key)) is not None:
            self._entries[key] = (expiry_and_value[0], change_value(expiry_and_value[1]))

    def discard(self, key: K) -> None:
        """Remove the value of a key, so that the next reader reads it from the store."""
        self._entries.pop(key, None)
