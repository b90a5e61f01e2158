"""The retry policy of the clients: delays between attempts, and when to give up."""

from __future__ import annotations

import random

import msgspec

from deltaci.client.errors import ApiError, ClientError
from deltaci.core.backoff import Backoff


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """A retry policy. Delays grow from `first_seconds` to `most_seconds`.

    A repeatable request is abandoned after `give_up_seconds` of delays, a stream after `lost_seconds` without a
    response.
    """

    first_seconds: float = 0.2
    most_seconds: float = 10.0
    give_up_seconds: float = 20.0
    lost_seconds: float = 600.0


class RetryDelays:
    """Computes the delay before each retry: about twice the previous one, with jitter."""

    def __init__(self, patience: Patience, give_up_seconds: float) -> None:
        self._patience = patience
        self._give_up = give_up_seconds
        self.reset()

    def allow(self, give_up_seconds: float) -> None:
        """Allow at least this many seconds of delays from now on."""
        self._left += max(0.0, give_up_seconds - self._give_up)
        self._give_up = max(self._give_up, give_up_seconds)

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._backoff = Backoff(self._patience.first_seconds, self._patience.most_seconds)
        self._left = self._give_up

    def after(self, error: ClientError) -> float:
        """Return the delay before the next try, at least `Retry-After`. Raises the error when it is time to give up."""
        pause = self._backoff.next(random.random())
        if isinstance(error, ApiError) and error.retry_after is not None:
            # Never sooner than it says, and a little later than all the others who were told the same.
            pause = error.retry_after + pause * 0.1
        if pause > self._left:
            raise error
        self._left -= pause
        return pause
