"""Memory of requests and unread responses, bounded over all client connections (`queued.max.request.bytes`).

Every connection charges what it holds: the frame it receives (what is allocated, not what was announced), queued
frames, the frame being served, and responses that the peer does not read. A connection that needs more than is left
pauses reading, so that TCP holds back its peer, and resumes when memory is released.

Three rules keep the broker serving while memory is short:

- A connection may have its first `SMALL_BYTES` as long as the total is below the limit; everything beyond comes out of
  three eighths of it. Large frames cannot take the memory of small ones.
- One large frame at a time (the favourite) may exceed that share, so frames cannot block each other for good.
- While a connection waits, those that hoard are closed (`Holder.hoards`).

Invariant: at most the limit is held (half of it and a frame of `socket.request.max.bytes` if that is more), plus what
one system call reads for each connection. A connection that leaves gives back everything it charged. Left out: the
memory that handlers use; their own limits bound that.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SMALL_BYTES = 64 * 1024
"""A connection's share of the memory that large frames cannot take."""
NO_LIMIT = -1
_SWEEP_SECONDS = 0.25


class Holder(Protocol):
    """The interface of a connection towards the shared memory."""

    held_bytes: int
    """The bytes that it has charged."""

    @property
    def is_receiving(self) -> bool:
        """True if it is in the middle of a frame."""

    def memory_granted(self) -> None:
        """Resume: the memory it waited for is now charged to it."""

    def hoards(self, now: float) -> str | None:
        """Explain why it should be closed while others wait for memory; None if it makes progress."""

    def close_hoarder(self, reason: str) -> None:
        """Close the connection and drop its buffers: its memory is needed."""


class RequestMemory:
    """The memory shared by all connections of one broker. A frame has at most `largest` bytes; -1 is no limit."""

    def __init__(self, limit: int = NO_LIMIT, largest: int = 0) -> None:
        self.limit = limit if limit > 0 else 1 << 62
        """In bytes, as a number that others can be compared with."""
        self.large_limit = self.limit // 8 * 3
        self._favourite_limit = max(self.limit - self.large_limit - largest, self.limit // 8)
        self.held = 0
        self.receiving = 0
        """The part of `held` that belongs to incomplete frames."""
        self.has_waiters = False
        self._holders: dict[Holder, None] = {}
        self._small: dict[Holder, int] = {}
        """Waiting connections with the bytes they wait for, in order of arrival."""
        self._large: dict[Holder, int] = {}
        """The same for connections that need more than `SMALL_BYTES`."""
        self._favourite: Holder | None = None
        self._sweeper: asyncio.Handle | None = None

    def join(self, holder: Holder) -> None:
        """Add a new connection."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Remove a closed connection and release everything it held. Does nothing if it has left already."""
        if holder not in self._holders:
            return
        del self._holders[holder]
        self._small.pop(holder, None)
        self._large.pop(holder, None)
        if self._favourite is holder:
            self._favourite = None
        self.held -= holder.held_bytes
        holder.held_bytes = 0
        self._release()

    def charge(self, holder: Holder, count: int) -> None:
        """Count bytes that the connection already holds."""
        self.held += count
        holder.held_bytes += count

    def discharge(self, holder: Holder, count: int) -> None:
        """Count bytes that the connection no longer holds. Does nothing for one that has left."""
        left = holder.held_bytes - count
        if left < 0:
            count, left = holder.held_bytes, 0
        self.held -= count
        holder.held_bytes = left
        if self.has_waiters:
            self._release()

    def take(self, holder: Holder, count: int) -> bool:
        """Charge `count` bytes that are about to be allocated, if there is room; return whether there was."""
        if self.held + count > self._limit_of(holder, count) and holder is not self._favourite:
            return False
        self.charge(holder, count)
        return True

    def wait(self, holder: Holder, count: int) -> None:
        """Charge `count` bytes and call `memory_granted`, once, as soon as there is room for them."""
        waiting = self._small if holder.held_bytes + count <= SMALL_BYTES else self._large
        waiting[holder] = count
        self.has_waiters = True
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_soon(self._sweep)

    def frame_is_whole(self, holder: Holder) -> None:
        """A connection's frame is complete: if it was the favourite, another may become it."""
        if self._favourite is holder:
            self._favourite = None
            self._release()

    def room(self) -> int:
        """Return how many bytes a response may take now without exceeding the limit."""
        return max(0, self.limit - self.held)

    def _limit_of(self, holder: Holder, count: int) -> int:
        return self.limit if holder.held_bytes + count <= SMALL_BYTES else self.large_limit

    def _release(self) -> None:
        """Resume connections for which there is room now, in order of arrival."""
        small, large = self._small, self._large
        while small and self.held + (count := next(iter(small.values()))) <= self.limit:
            self._grant(small, count)
        while large and self.held + (count := next(iter(large.values()))) <= self.large_limit:
            self._grant(large, count)
        if large and self._favourite is None and self.held - self.receiving <= self._favourite_limit:
            for holder, count in large.items():
                if holder.is_receiving:
                    self._favourite = holder
                    del large[holder]
                    self.charge(holder, count)
                    holder.memory_granted()
                    break
        self.has_waiters = bool(small or large)

    def _grant(self, waiting: dict[Holder, int], count: int) -> None:
        holder = next(iter(waiting))
        del waiting[holder]
        self.charge(holder, count)
        holder.memory_granted()

    def _sweep(self) -> None:
        """Close connections that hoard memory, largest first, until there is room again."""
        self._sweeper = None
        self._release()
        if not self.has_waiters:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        for holder in sorted(self._holders, key=lambda each: -each.held_bytes):
            if not holder.held_bytes or self.held <= self.large_limit // 2 or not self.has_waiters:
                break
            reason = holder.hoards(now)
            if reason is not None:
                holder.close_hoarder(reason)
        if self._small or self._large:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
