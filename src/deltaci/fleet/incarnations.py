"""The lives of workers: one that is gone stays gone, and its machine comes back as a new record under the same name.

Which life is the latest is found by a number that is kept beside the records, and by a look behind it: so a crash
between the two leaves nothing wrong. Who was removed by a person stays out until somebody makes a new token for it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.core.ids import incarnation_id
from deltaci.core.worker import Worker, is_over, may_return
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.storage.documents import TypedDocuments
from deltaci.storage.port import Store

KIND: Final = "life"
MAX_BEHIND: Final = 100  # Lives that began and were not counted, because somebody was killed in between.


class Count(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a name: its latest life, and when somebody removed it, if they did."""

    number: int = 1
    removed_at: int = 0
    removed_by: str = ""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The latest life of a name. `worker` is None while there was none."""

    name: str
    number: int
    worker: Worker | None
    removed_at: int = 0

    @property
    def id(self) -> str:
        """Of its record."""
        return incarnation_id(self.name, self.number)

    @property
    def next_id(self) -> str:
        """Of the life after it."""
        return incarnation_id(self.name, self.number + 1)

    @property
    def is_over(self) -> bool:
        """Whether there was one, and it is over."""
        return self.worker is not None and is_over(self.worker)

    @property
    def may_return(self) -> bool:
        """Whether its machine may come back without a new token."""
        return self.worker is not None and may_return(self.worker) and not self.removed_at

    def is_newer(self, made_at: int, *, again: bool) -> bool:
        """Whether a token that was made then lets it come back: made after it was gone, or at least after it came in.

        Who went by itself may use one for those who lost their credential, whenever that was made.
        """
        if self.worker is None:
            return True
        gone_at = self.removed_at or self.worker.updated_at
        return made_at > (self.worker.token_at if again and self.may_return else gone_at)


class Lives:
    """Finds the latest life of a name, and counts the next one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts = TypedDocuments(store, KIND, Count)

    async def latest(self, tenant: str, name: str) -> Life:
        """The latest life of this tenant's worker. Another tenant's of the same name is none."""
        kept = await self._counts.find(tenant, name) or Count()
        number, found = kept.number, await self._find(tenant, incarnation_id(name, kept.number))
        for _ in range(MAX_BEHIND):
            if found is None or not is_over(found):
                break
            behind = await self._find(tenant, incarnation_id(name, number + 1))
            if behind is None:
                break
            number, found = number + 1, behind
        removed_at = kept.removed_at if number == kept.number else 0
        return Life(name=name, number=number, worker=found, removed_at=removed_at)

    async def _find(self, tenant: str, id: str) -> Worker | None:
        record = await self._store.find(id)
        if (unread := unreadable_refusal(record)) is not None:
            raise unread
        return record if isinstance(record, Worker) and record.tenant == tenant else None

    async def began(self, tenant: str, life: Life) -> None:
        """The life after this one has begun. Safe to repeat, by whoever."""
        number = life.number + 1

        def counted(kept: Count | None) -> Count | None:
            return Count(number=number) if kept is None or kept.number < number else None

        await self._counts.update(tenant, life.name, counted)

    async def removed(self, tenant: str, life: Life, by: str, at: int) -> None:
        """Somebody removed it: it stays out until there is a new token."""

        def marked(kept: Count | None) -> Count | None:
            if kept is not None and (kept.number > life.number or (kept.number == life.number and kept.removed_at)):
                return None
            return Count(number=life.number, removed_at=at, removed_by=by)

        await self._counts.update(tenant, life.name, marked)
