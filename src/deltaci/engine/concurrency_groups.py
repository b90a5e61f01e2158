"""One of a group at a time: which groups a batch may hand out from. Asked of the store, and never counted."""

from __future__ import annotations

from deltaci.core.attempt import Attempt
from deltaci.storage.port import LockGroup, Transaction


class ConcurrencyGroups:
    """What one batch knows of groups. What it ends itself stays held for it: who waits is told by the commit."""

    def __init__(self) -> None:
        self._is_free: dict[tuple[str, str], bool] = {}

    def clear(self) -> None:
        """Another batch begins."""
        if self._is_free:
            self._is_free.clear()

    def may_give(self, what: Attempt, now: int) -> Transaction[bool]:
        """Whether nobody has the group of this attempt; until the batch is written, it is then nobody else's."""
        name = (what.tenant, what.group)
        if name not in self._is_free:
            self._is_free[name] = not (yield LockGroup(*name, now))
        return self._is_free[name]

    def gave(self, what: Attempt) -> None:
        """This attempt has a lease now, and its group with it."""
        self._is_free[what.tenant, what.group] = False

    def without(self, tenant: str) -> tuple[str, ...] | None:
        """The groups of the tenant that are known to be somebody's; None while nobody met one."""
        found = tuple(group for (of, group), is_free in self._is_free.items() if of == tenant and not is_free)
        return found or None
