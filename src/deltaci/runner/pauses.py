"""How long to wait before something is tried again: longer each time, and not as long as everybody else."""

from __future__ import annotations

import random


class Pauses:
    """Each is about twice as long as the one before, up to `most` seconds.

    After an outage a whole fleet would otherwise come back at the same moment, again and again.
    """

    def __init__(self, first: float, most: float) -> None:
        self._first = self._next = first
        self._most = most

    def next(self) -> float:
        """So many seconds now."""
        pause, self._next = self._next, min(self._most, self._next * 2)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It went well: begin anew."""
        self._next = self._first
