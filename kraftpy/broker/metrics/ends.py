"""The ends of the partitions in which groups coordinated here have committed offsets, and when they were seen.

The end of a partition with a replica on this node is its high watermark. For others, `ask` asks their leaders
(ListOffsets), at most every `_ASK_S` while metrics are scraped, with one request for each leader at a time.

From the ends seen at earlier scrapes follows when the oldest uncommitted record was written, which gives the lag in
seconds: interpolated between two scrapes, and at most since the first. A partition keeps `_POINTS` ends: when there are
more, every second one of the older half goes, so that old ones are further apart.

Limit: `_MOST` partitions are watched, some 1 KiB each. Partitions beyond have a lag, but none in seconds.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node

_ASK_S: Final = 10.0
_ASKED_AT_ONCE: Final = 1000
_MOST: Final = 20_000
_POINTS: Final = 64
_UNUSED_S: Final = 600.0
_LATEST: Final = -1


class _History:
    """The ends of one partition, as seen at scrapes."""

    __slots__ = ("ends", "times", "used_at")

    def __init__(self) -> None:
        self.times = array("d")
        self.ends = array("q")
        self.used_at = 0.0

    def see(self, now: float, end: int) -> None:
        """Note the end now. If it has not moved, the last time it was seen there moves."""
        self.used_at = now
        ends, times = self.ends, self.times
        if len(ends) > 1 and ends[-1] == ends[-2] == end:
            times[-1] = now
            return
        if ends and end < ends[-1]:  # truncated, or another topic of the same name
            del ends[:], times[:]
        ends.append(end)
        times.append(now)
        if len(ends) > _POINTS:
            half = _POINTS // 2
            self.ends = ends[:half:2] + ends[half:]
            self.times = times[:half:2] + times[half:]

    def age(self, now: float, offset: int) -> float:
        """Return about how long ago the record at an offset was written."""
        ends, times = self.ends, self.times
        after = bisect_right(ends, offset)  # the first scrape at which the end was beyond the offset
        if after >= len(ends):
            return 0.0
        if after == 0:
            return now - times[0]
        share = (offset + 1 - ends[after - 1]) / (ends[after] - ends[after - 1])
        return now - (times[after - 1] + share * (times[after] - times[after - 1]))


class Ends:
    """The ends of partitions, for the lag of groups."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._histories: dict[TopicPartition, _History] = {}
        self._elsewhere: dict[TopicPartition, int] = {}
        """Ends of partitions without a replica here, as their leaders said last."""
        self._wanted: dict[TopicPartition, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._now = 0.0

    def begin(self) -> None:
        """Begin a scrape; ask other brokers, in the background, for ends that the last one lacked."""
        self._now = asyncio.get_running_loop().time()
        for key in [key for key, each in self._histories.items() if self._now - each.used_at > _UNUSED_S]:
            del self._histories[key]
        if self._wanted and self._asking is None and self._now - self._asked_at >= _ASK_S:
            self._asked_at = self._now
            wanted, self._wanted = list(self._wanted), {}
            self._elsewhere = {key: self._elsewhere[key] for key in wanted if key in self._elsewhere}
            self._asking = self._node.tasks.create_task(self._ask(wanted), name="ends of partitions")

    def lag(self, key: TopicPartition, offset: int) -> tuple[int, float] | None:
        """Return a group's lag in records and in seconds; None if the end is not known."""
        end = self._end(key)
        if end is None:
            return None
        history = self._histories.get(key)
        if history is None and len(self._histories) < _MOST:
            history = self._histories[key] = _History()
        if history is not None and history.used_at != self._now:
            history.see(self._now, end)
        lag = max(0, end - offset)
        return lag, history.age(self._now, offset) if lag and history is not None else 0.0

    def _end(self, key: TopicPartition) -> int | None:
        replica = self._node.replicas.held(key)
        if replica is not None and not replica.is_offline:
            return replica.high_watermark
        if len(self._wanted) < _MOST:
            self._wanted[key] = None
        return self._elsewhere.get(key)

    # --- partitions elsewhere ----------------------------------------------------------------

    async def _ask(self, wanted: list[TopicPartition]) -> None:
        try:
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for key in wanted:
                known = self._node.image.partition(*key)
                if known is not None and known.has_leader and known.leader != self._node.node_id:
                    by_leader.setdefault(known.leader, []).append(key)
            for leader, keys in by_leader.items():
                for start in range(0, len(keys), _ASKED_AT_ONCE):
                    await self._ask_leader(leader, keys[start : start + _ASKED_AT_ONCE])
        finally:
            self._asking = None

    async def _ask_leader(self, leader: BrokerId, keys: list[TopicPartition]) -> None:
        from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

        topics: dict[str, list[ListOffsetsPartition]] = {}
        for key in keys:
            asked = ListOffsetsPartition(partition_index=key.partition, current_leader_epoch=-1, timestamp=_LATEST)
            topics.setdefault(key.topic, []).append(asked)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
        )
        try:
            response = await self._node.peers.ask(leader, ApiKey.LIST_OFFSETS, request)
        except (KafkaError, OSError):
            return  # the next scrape asks again
        for topic in response.topics:
            for answer in topic.partitions:
                if answer.error_code == ErrorCode.NONE:
                    self._elsewhere[TopicPartition(topic.name, answer.partition_index)] = answer.offset
