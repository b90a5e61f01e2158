"""All live streams of events of one server: each event is written out once, whoever follows it.

The server's one reader of the log tells what happened. Every run and every tenant that somebody follows has a channel
with its latest events; who follows has only a place in the log. From there a reader takes what the channel still
knows, and what is older from the store, at its own pace. So one that is slow costs nobody anything, and no event is
missed, doubled or out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final

from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.events import RUN, Event, to_json_line
from deltaci.engine.requests import Overloaded
from deltaci.storage.port import Store

PAGE: Final = 500  # Of the store, for one who is behind.
READERS: Final = 8  # So many are behind and read at the same time; the others wait for their turn.
PIECE_BYTES: Final = 64 * 1024  # So much is sent at once, and kept for one who does not take it.
MAX_PIECES: Final = 8
TICK_SECONDS: Final = 0.25
MAX_REMEMBERED_BYTES: Final = 16 * 1024 * 1024
MAX_STREAMS: Final = 10_000
MAX_OF_TENANT: Final = MAX_STREAMS // 2
_OVERHEAD_BYTES: Final = 200  # Of a frame that is remembered, besides its text.


class Frame:
    """One event as it is sent. Two channels may have the same one."""

    __slots__ = ("entity_id", "is_change", "is_last", "seq", "text")

    def __init__(self, event: Event) -> None:
        self.seq = event.seq
        self.text = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.entity.encode(), to_json_line(event))
        self.entity_id = event.entity_id
        self.is_change = event.from_ != event.to
        # After it the run does not change any more.
        self.is_last = event.entity == RUN and event.to in run.TERMINAL


class Channel:
    """The latest events of a run or of a tenant: every one that comes after `since`. Empty when nobody follows it."""

    __slots__ = ("_frames", "_pieces", "key", "since", "subscriptions")

    def __init__(self, key: tuple[str, str], since: int | None) -> None:
        self.key = key
        self.since = since  # None: as nothing was heard yet, nobody knows.
        self.subscriptions: dict[Subscription, None] = {}
        self._frames: deque[Frame] = deque()
        self._pieces: dict[int, Piece] = {}

    def add(self, frame: Frame) -> None:
        """The next one."""
        self._frames.append(frame)
        self._pieces.clear()

    def drop_first(self) -> None:
        """Forget the oldest one, if it is not forgotten yet."""
        if self._frames:
            self.since = self._frames.popleft().seq

    def forget(self, until: int) -> None:
        """Forget all, up to there."""
        self._frames.clear()
        self._pieces.clear()
        self.since = until

    def after(self, seq: int) -> list[Frame]:
        """What comes after, at most a piece of it. Those who are up to date look only at what is new."""
        found: list[Frame] = []
        for frame in reversed(self._frames):
            if frame.seq <= seq:
                break
            found.append(frame)
        found.reverse()
        size = 0
        for count, frame in enumerate(found, 1):
            size += len(frame.text)
            if size >= PIECE_BYTES:
                return found[:count]
        return found

    def piece(self, seq: int) -> Piece:
        """The same as one text. Those who are up to date are all at the same place: it is put together once."""
        found = self._pieces.get(seq)
        if found is None:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.clear()
            found = self._pieces[seq] = Piece(self.after(seq), seq)
        return found

    def forget_pieces(self) -> None:
        """Whoever comes late puts its own together."""
        self._pieces.clear()

    @property
    def newest(self) -> int:
        """The last of which it knows."""
        return self._frames[-1].seq if self._frames else self.since or 0


class Piece:
    """Some frames as one text, and where it ends."""

    __slots__ = ("has_last", "seq", "text")

    def __init__(self, frames: Sequence[Frame], after: int) -> None:
        self.text = b"".join([frame.text for frame in frames])
        self.seq = frames[-1].seq if frames else after
        self.has_last = any(frame.is_last for frame in frames)


class Subscription:
    """One reader: where it is, and how it is woken when there may be more."""

    def __init__(self, streams: Streams, channel: Channel, after: int) -> None:
        self.seq = after
        self.has_last = False  # Whether the event was taken after which the run does not change any more.
        self.due_at = inf  # By the loop's clock: woken then anyway, or a little later.
        self._streams = streams
        self._channel = channel
        self._is_rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake it. Who does not wait now will not wait next time."""
        self._is_rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Until there may be more, or it is due."""
        if not self._is_rung:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._is_rung = False

    def take_new(self) -> bytes | None:
        """What is new, for one who is up to date; None for others, who have to `take`."""
        since = self._channel.since
        if since is None or self.seq < since:
            return None
        piece = self._channel.piece(self.seq)
        self.seq = piece.seq
        self.has_last = self.has_last or piece.has_last
        return piece.text

    @property
    def is_closed(self) -> bool:
        """Whether the server is about to end."""
        return self._streams.is_closed

    async def take(self) -> list[Frame]:
        """What comes next, as much as there is at once; nothing when all was taken."""
        while True:
            since = await self._streams.known_since(self._channel)
            if self.seq >= since:
                found = self._channel.after(self.seq)
            else:
                found, is_all = await self._read()
                # All that there was when it was read: so nothing is left of what the channel does not know.
                if is_all and self.seq < since:
                    self.seq = since
                if not found and not is_all:
                    continue
            if found:
                self.seq = max(self.seq, found[-1].seq)
                self.has_last = self.has_last or any(frame.is_last for frame in found)
            elif self.seq < (self._channel.since or 0):
                continue  # Meanwhile the channel forgot something that was not taken.
            return found

    async def skip(self) -> None:
        """Take nothing of what there was until now."""
        self.seq = max(self.seq, await self._streams.known_since(self._channel))

    async def skip_all(self) -> bool:
        """Take nothing of all that happened until now; whether there was anything. It costs the same for any number."""
        await self._streams.known_since(self._channel)
        newest = self._channel.newest
        is_news, self.seq = newest > self.seq, max(newest, self.seq)
        return is_news

    async def read_rest(self) -> list[Frame]:
        """A page of what is in the store and not in the channel yet; nothing when all was taken."""
        found, _ = await self._read()
        return found

    async def _read(self) -> tuple[list[Frame], bool]:
        """A page of what comes next in the store, and whether that was all."""
        tenant, run_id = self._channel.key
        page = await self._streams.read(self.seq, run_id)
        if page:
            self.seq = page[-1].seq
        return [Frame(event) for event in page if event.tenant == tenant], len(page) < PAGE


class Streams:
    """Hears of everything that happens, and lets many follow what is theirs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.channels: dict[tuple[str, str], Channel] = {}
        self._seen: int | None = None
        self._remembered: deque[tuple[Channel, int]] = deque()
        self._bytes = 0
        self._counts: dict[str, int] = {}
        self.count = 0
        self._turns = asyncio.Semaphore(READERS)
        self._ticking: asyncio.TimerHandle | None = None
        self.is_closed = False

    def hear(self, events: Sequence[Event]) -> None:
        """What happened, as the log has it: a page that follows on the one before."""
        if self._seen is not None and events[0].seq != self._seen + 1:
            for channel in self.channels.values():
                channel.forget(events[0].seq - 1)  # Who knows what came in between? The store does.
        changed: dict[Channel, None] = {}
        for event in events:
            of_run = self.channels.get((event.tenant, event.run_id)) if event.run_id else None
            of_tenant = self.channels.get((event.tenant, ""))
            if of_run is None and of_tenant is None:
                continue
            frame = Frame(event)
            for each in (of_run, of_tenant):
                if each is not None:
                    self._remember(each, frame)
                    changed[each] = None
        self._seen = events[-1].seq
        for channel in changed:
            for subscription in channel.subscriptions:
                subscription.ring()

    def close(self) -> None:
        """The server is about to end: every stream ends now, and whoever follows goes on at another server."""
        self.is_closed = True
        for channel in self.channels.values():
            for subscription in channel.subscriptions:
                subscription.ring()

    @contextmanager
    def subscribed(self, tenant: str, after: int, run_id: str = "") -> Iterator[Subscription]:
        """Follow a run, or all that the tenant has, from behind this seq on."""
        key = (tenant, run_id)
        channel = self.channels.get(key)
        if channel is None:
            channel = self.channels[key] = Channel(key, self._seen)
        subscription = Subscription(self, channel, after)
        channel.subscriptions[subscription] = None
        self.count += 1
        self._counts[tenant] = self._counts.get(tenant, 0) + 1
        if self._ticking is None:
            self._tick()
        try:
            yield subscription
        finally:
            self.count -= 1
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]
            del channel.subscriptions[subscription]
            if not channel.subscriptions:
                del self.channels[key]
                channel.forget(0)

    def check_room(self, tenant: str) -> None:
        """Refuse one stream more than this server serves."""
        if self.is_closed:
            raise Overloaded("the server is about to stop; connect again")
        if self.count >= MAX_STREAMS or self._counts.get(tenant, 0) >= MAX_OF_TENANT:
            raise Overloaded(
                f"{self.count} streams are open here, {self._counts.get(tenant, 0)} of them of this tenant; "
                "close one, or try again later"
            )

    async def check_exists(self, seq: int) -> None:
        """Refuse a place in the log to which the log never came: who waits there would wait for long."""
        if seq > (self._seen or 0) and seq > (last := await self._store.last_seq()):
            raise Refused("bad_request", f"there is no event {seq} yet, the newest is {last}; begin with one of these")

    async def known_since(self, channel: Channel) -> int:
        """From where on the channel has everything. What is committed from now on will be heard."""
        if channel.since is None:
            last = await self._store.last_seq()
            if channel.since is None:
                channel.since = last
        return channel.since

    async def read(self, after: int, run_id: str) -> list[Event]:
        """A page of the log."""
        async with self._turns:
            return await self._store.events(after, PAGE, run_id=run_id)

    def _tick(self) -> None:
        """Wake those who are due. One clock for all of them: most are woken by something else, again and again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for channel in self.channels.values():
            channel.forget_pieces()
            for subscription in channel.subscriptions:
                if subscription.due_at <= now:
                    subscription.ring()
        self._ticking = loop.call_later(TICK_SECONDS, self._tick) if self.count else None

    def _remember(self, channel: Channel, frame: Frame) -> None:
        """Of all that is remembered, the oldest is forgotten first."""
        channel.add(frame)
        size = len(frame.text) + _OVERHEAD_BYTES
        self._remembered.append((channel, size))
        self._bytes += size
        while self._bytes > MAX_REMEMBERED_BYTES:
            oldest, size = self._remembered.popleft()
            self._bytes -= size
            oldest.drop_first()
