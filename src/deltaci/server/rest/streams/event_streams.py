"""Live event streams of one server. Each event is encoded once, for any number of subscribers.

1. The server reads the event log in one place and passes each page of it to `EventStreams.on_events`.
2. Each run or tenant with subscribers has a channel, which buffers its latest events as encoded frames.
3. A subscription is only a position in the log. It reads the next frames from the buffer of its channel, and older ones
   from the store, at its own pace.

So a slow subscriber costs no memory and does not delay others, and no event is missed, repeated or out of order.
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
from deltaci.core.events import RESOURCE, RUN, Event, to_json_line
from deltaci.engine.requests import Overloaded
from deltaci.storage.port import Store

PAGE_SIZE: Final = 500  # Events per query of the store, for a subscription that is behind the buffer.
MAX_READERS: Final = 8  # Concurrent queries of the store by all subscriptions.
CHUNK_BYTES: Final = 64 * 1024  # The size of one write, and the memory used for a client that does not read.
MAX_CHUNKS: Final = 8
TICK_SECONDS: Final = 0.25
MAX_BUFFERED_BYTES: Final = 16 * 1024 * 1024
MAX_STREAMS: Final = 10_000
MAX_STREAMS_PER_TENANT: Final = MAX_STREAMS // 2
ADMINISTRATION: Final = "/"  # In place of a run id: all events of a tenant, also those of resources.
_OVERHEAD_BYTES: Final = 200  # The memory of a buffered frame besides its bytes.


class Frame:
    """An event, encoded for a stream. The channels of its run and of its tenant share it."""

    __slots__ = ("encoded", "entity_id", "is_change", "is_last", "seq")

    def __init__(self, event: Event) -> None:
        self.seq = event.seq
        self.encoded = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.entity.encode(), to_json_line(event))
        self.entity_id = event.entity_id
        self.is_change = event.from_ != event.to
        # The run does not change after this event.
        self.is_last = event.entity == RUN and event.to in run.TERMINAL


class Channel:
    """The buffered events of a run or a tenant: all events after the seq `since`.

    A channel exists only while it has subscriptions.
    """

    __slots__ = ("_chunks", "_frames", "key", "since", "subscriptions")

    def __init__(self, tenant_and_run_id: tuple[str, str], buffered_since: int | None) -> None:
        self.key = tenant_and_run_id
        self.since = buffered_since  # None: unknown, because the server has not read any events yet.
        self.subscriptions: dict[Subscription, None] = {}
        self._frames: deque[Frame] = deque()
        self._chunks: dict[int, Chunk] = {}

    def add(self, frame: Frame) -> None:
        """Buffer the next event."""
        self._frames.append(frame)
        self._chunks.clear()

    def drop_first(self) -> None:
        """Remove the oldest event from the buffer, if there is one."""
        if self._frames:
            self.since = self._frames.popleft().seq

    def clear(self, until_seq: int) -> None:
        """Empty the buffer. Events up to the seq `until_seq` are read from the store from now on."""
        self._frames.clear()
        self._chunks.clear()
        self.since = until_seq

    def after(self, seq: int) -> list[Frame]:
        """Return the buffered events after `seq`, up to the first one with which they exceed CHUNK_BYTES.

        The buffer is searched from its end, so that a subscription that is up to date visits only new events.
        """
        frames: list[Frame] = []
        for frame in reversed(self._frames):
            if frame.seq <= seq:
                break
            frames.append(frame)
        frames.reverse()
        chunk_bytes = 0
        for frame_count, frame in enumerate(frames, 1):
            chunk_bytes += len(frame.encoded)
            if chunk_bytes >= CHUNK_BYTES:
                return frames[:frame_count]
        return frames

    def chunk_after(self, seq: int) -> Chunk:
        """Return the frames of `after(seq)` as one chunk. It is cached for the other subscriptions at this position."""
        chunk = self._chunks.get(seq)
        if chunk is None:
            if len(self._chunks) >= MAX_CHUNKS:
                self._chunks.clear()
            chunk = self._chunks[seq] = Chunk(self.after(seq), seq)
        return chunk

    def drop_chunks(self) -> None:
        """Free the cached chunks."""
        self._chunks.clear()

    @property
    def newest(self) -> int:
        """Return the seq of the last event that the channel knows of."""
        return self._frames[-1].seq if self._frames else self.since or 0


class Chunk:
    """Joined frames, and the seq of the last one."""

    __slots__ = ("encoded", "has_last", "seq")

    def __init__(self, frames: Sequence[Frame], after_seq: int) -> None:
        self.encoded = b"".join([frame.encoded for frame in frames])
        self.seq = frames[-1].seq if frames else after_seq
        self.has_last = any(frame.is_last for frame in frames)


class Subscription:
    """The position of one client in a channel. `wait` suspends the client's task until `wake` is called."""

    def __init__(self, streams: EventStreams, channel: Channel, after_seq: int) -> None:
        self.seq = after_seq
        self.has_last = False  # True after the event that ends the run was returned.
        self.due_at = inf  # Loop time at which `wait` returns even without new events, up to TICK_SECONDS later.
        self._streams = streams
        self._channel = channel
        self._is_woken = False
        self._wake_future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Let `wait` return; if nothing waits now, let the next `wait` return at once."""
        self._is_woken = True
        if self._wake_future is not None and not self._wake_future.done():
            self._wake_future.set_result(None)

    async def wait(self) -> None:
        """Wait until there may be new events, or until `due_at`."""
        if not self._is_woken:
            self._wake_future = asyncio.get_running_loop().create_future()
            try:
                await self._wake_future
            finally:
                self._wake_future = None
        self._is_woken = False

    def next_buffered(self) -> bytes | None:
        """Return the next buffered events, encoded for the stream; empty if there are none.

        Return None if older events must be read from the store first, with `next_frames`.
        """
        buffered_since = self._channel.since
        if buffered_since is None or self.seq < buffered_since:
            return None
        chunk = self._channel.chunk_after(self.seq)
        self.seq = chunk.seq
        self.has_last = self.has_last or chunk.has_last
        return chunk.encoded

    @property
    def is_closed(self) -> bool:
        """Return True if the server is shutting down."""
        return self._streams.is_closed

    async def next_frames(self) -> list[Frame]:
        """Return the next events, from the store or from the buffer; empty if there are none."""
        while True:
            buffered_since = await self._streams.buffered_since(self._channel)
            if self.seq >= buffered_since:
                frames = self._channel.after(self.seq)
            else:
                frames, is_complete = await self._read()
                # The store has no more events up to `since`, so continue with the buffer.
                if is_complete and self.seq < buffered_since:
                    self.seq = buffered_since
                if not frames and not is_complete:
                    continue
            if frames:
                self.seq = max(self.seq, frames[-1].seq)
                self.has_last = self.has_last or any(frame.is_last for frame in frames)
            elif self.seq < (self._channel.since or 0):
                continue  # Meanwhile the channel dropped events that this subscription has not read.
            return frames

    async def skip_unbuffered(self) -> None:
        """Move the position past the events that are only in the store."""
        self.seq = max(self.seq, await self._streams.buffered_since(self._channel))

    async def skip_all(self) -> bool:
        """Move the position past all known events.

        Return True if there were any. The cost does not depend on their number.
        """
        await self._streams.buffered_since(self._channel)
        newest_seq = self._channel.newest
        has_new, self.seq = newest_seq > self.seq, max(newest_seq, self.seq)
        return has_new

    async def read_from_store(self) -> list[Frame]:
        """Return the next page of events from the store, which may have events that the channel does not have yet."""
        frames, _ = await self._read()
        return frames

    async def _read(self) -> tuple[list[Frame], bool]:
        """Return the next page of events from the store, and whether it is the last one."""
        tenant, run_id = self._channel.key
        events = await self._streams.read(self.seq, run_id if run_id != ADMINISTRATION else "")
        if events:
            self.seq = events[-1].seq
        frames = [
            Frame(event)
            for event in events
            if event.tenant == tenant and (event.entity != RESOURCE or run_id == ADMINISTRATION)
        ]
        return frames, len(events) < PAGE_SIZE


class EventStreams:
    """Distributes the events of the log to the subscriptions of this server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.channels: dict[tuple[str, str], Channel] = {}
        self._last_seq: int | None = None
        self._eviction_order: deque[tuple[Channel, int]] = deque()
        self._buffered_bytes = 0
        self._count_by_tenant: dict[str, int] = {}
        self.subscription_count = 0
        self._read_permits = asyncio.Semaphore(MAX_READERS)
        self._ticker: asyncio.TimerHandle | None = None
        self.is_closed = False

    def on_events(self, events: Sequence[Event]) -> None:
        """Buffer a page of the log and wake the subscriptions of its runs and tenants.

        If events are missing since the page before, the channels are emptied, and subscriptions read the missing
        events from the store.
        """
        if self._last_seq is not None and events[0].seq != self._last_seq + 1:
            for channel in self.channels.values():
                channel.clear(events[0].seq - 1)
        changed_channels: dict[Channel, None] = {}
        for event in events:
            run_channel = self.channels.get((event.tenant, event.run_id)) if event.run_id else None
            tenant_channel = self.channels.get((event.tenant, "")) if event.entity != RESOURCE else None
            administration_channel = self.channels.get((event.tenant, ADMINISTRATION))
            if run_channel is None and tenant_channel is None and administration_channel is None:
                continue
            frame = Frame(event)
            for subscribed_channel in (run_channel, tenant_channel, administration_channel):
                if subscribed_channel is not None:
                    self._buffer(subscribed_channel, frame)
                    changed_channels[subscribed_channel] = None
        self._last_seq = events[-1].seq
        for channel in changed_channels:
            for subscription in channel.subscriptions:
                subscription.wake()

    def close(self) -> None:
        """End all streams before the server stops. Their clients connect again, to any server."""
        self.is_closed = True
        for channel in self.channels.values():
            for subscription in channel.subscriptions:
                subscription.wake()

    @contextmanager
    def subscribe(self, tenant: str, after_seq: int, run_id: str = "") -> Iterator[Subscription]:
        """Subscribe to the events after the seq `after_seq`, of a run or, without `run_id`, of a tenant.

        Events of resources are only included if `run_id` is ADMINISTRATION.
        """
        channel_key = (tenant, run_id)
        channel = self.channels.get(channel_key)
        if channel is None:
            channel = self.channels[channel_key] = Channel(channel_key, self._last_seq)
        subscription = Subscription(self, channel, after_seq)
        channel.subscriptions[subscription] = None
        self.subscription_count += 1
        self._count_by_tenant[tenant] = self._count_by_tenant.get(tenant, 0) + 1
        if self._ticker is None:
            self._tick()
        try:
            yield subscription
        finally:
            self.subscription_count -= 1
            self._count_by_tenant[tenant] -= 1
            if not self._count_by_tenant[tenant]:
                del self._count_by_tenant[tenant]
            del channel.subscriptions[subscription]
            if not channel.subscriptions:
                del self.channels[channel_key]
                channel.clear(0)

    def check_capacity(self, tenant: str) -> None:
        """Raise Overloaded if this server cannot serve one more stream of the tenant."""
        if self.is_closed:
            raise Overloaded("the server is about to stop; connect again")
        if self.subscription_count >= MAX_STREAMS or self._count_by_tenant.get(tenant, 0) >= MAX_STREAMS_PER_TENANT:
            raise Overloaded(
                f"this server has {self.subscription_count} open streams, "
                f"{self._count_by_tenant.get(tenant, 0)} of them of this tenant; close one, or try again later"
            )

    async def check_seq(self, seq: int) -> None:
        """Raise Refused if no event has this seq yet: a stream from there could wait for ever."""
        if seq > (self._last_seq or 0) and seq > (last_seq := await self._store.last_seq()):
            raise Refused(
                "bad_request", f"there is no event {seq} yet, the newest is {last_seq}; start from a known event"
            )

    async def buffered_since(self, channel: Channel) -> int:
        """Return the seq after which the channel's buffer has all events."""
        if channel.since is None:
            last_seq = await self._store.last_seq()
            if channel.since is None:
                channel.since = last_seq
        return channel.since

    async def read(self, after_seq: int, run_id: str) -> list[Event]:
        """Return the page of the log after the seq `after_seq` from the store, of one run or, for "", of all runs."""
        async with self._read_permits:
            return await self._store.events(after_seq, PAGE_SIZE, run_id=run_id)

    def _tick(self) -> None:
        """Wake the subscriptions that are due. One timer serves all: each event would restart a timer per client."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for channel in self.channels.values():
            channel.drop_chunks()
            for subscription in channel.subscriptions:
                if subscription.due_at <= now:
                    subscription.wake()
        self._ticker = loop.call_later(TICK_SECONDS, self._tick) if self.subscription_count else None

    def _buffer(self, channel: Channel, frame: Frame) -> None:
        """Buffer an event; above MAX_BUFFERED_BYTES, drop the oldest events of all channels."""
        channel.add(frame)
        frame_bytes = len(frame.encoded) + _OVERHEAD_BYTES
        self._eviction_order.append((channel, frame_bytes))
        self._buffered_bytes += frame_bytes
        while self._buffered_bytes > MAX_BUFFERED_BYTES:
            oldest_channel, frame_bytes = self._eviction_order.popleft()
            self._buffered_bytes -= frame_bytes
            oldest_channel.drop_first()
