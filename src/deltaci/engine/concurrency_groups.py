"""Concurrency groups, of which at most one attempt may have a lease: which ones a batch may grant from."""

from __future__ import annotations

from deltaci.core.attempt import Attempt
from deltaci.storage.port import LockGroup, Transaction


class ConcurrencyGroups:
    """Remembers, during one batch, which groups are free.

    A group whose lease ends in this batch counts as held until the commit, which then wakes the waiting workers.
    """

    def __init__(self) -> None:
        self._is_free: dict[tuple[str, str], bool] = {}

    def try_lock(self, attempt: Attempt, now: int) -> Transaction[bool]:
        """Return whether the attempt's group is free.

        If it is, the store locks it, so that no other transaction gets it until this one ends.
        """
        group_key = (attempt.tenant, attempt.group)
        if group_key not in self._is_free:
            self._is_free[group_key] = not (yield LockGroup(*group_key, now))
        return self._is_free[group_key]

    def mark_held(self, attempt: Attempt) -> None:
        """Record that the attempt's group is held, because this batch granted a lease of the attempt."""
        self._is_free[attempt.tenant, attempt.group] = False

    def held_groups(self, tenant: str) -> tuple[str, ...] | None:
        """Return the tenant's groups that this batch knows to be held, or None if there are none."""
        locked_group_names = tuple(
            group for (group_tenant, group), is_free in self._is_free.items() if group_tenant == tenant and not is_free
        )
        return locked_group_names or None
