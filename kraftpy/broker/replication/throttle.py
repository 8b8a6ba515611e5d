"""The replication throttles of a broker: bounds the rate at which moved partitions are copied (KIP-73).

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` are bytes per second, broker settings that
take effect at once. They apply to the replicas that `leader.replication.throttled.replicas` and
`follower.replication.throttled.replicas` of a topic name (`partition:broker`, or `*`), and only while the follower is
not in sync: a throttle is meant to slow a move down, never to push a replica out of the ISR.

A rate is an average over about a second: unused bytes are saved for that long, and a batch larger than the remaining
allowance goes out whole and is paid for afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kraftpy.config.settings import whole_number
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image
from kraftpy.types import BrokerId, Millis

if TYPE_CHECKING:
    from kraftpy.broker.replication.replica import Replica

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
_LONGEST_WAIT_MS = 1_000
"""A new rate, or the end of the throttle, is noticed within this time."""


class Allowance:
    """Bytes that may be copied now: they are refilled at some rate, and saved for a second."""

    def __init__(self) -> None:
        self._left = 0.0
        self._rate = -1
        self._at = Millis(0)

    def wait_ms(self, rate: int, now: Millis) -> int:
        """Return how long to wait at this rate before more may go; 0 means not at all."""
        if rate != self._rate:
            self._left, self._rate = float(rate), rate
        else:
            self._left = min(float(rate), self._left + rate * max(0, now - self._at) / 1000)
        self._at = now
        if self._left > 0:
            return 0
        if rate <= 0:
            return _LONGEST_WAIT_MS
        return max(1, min(_LONGEST_WAIT_MS, int(1 - 1000 * self._left / rate)))

    def spend(self, count: int) -> None:
        """Count bytes that were sent or received."""
        self._left -= count


class Throttles:
    """Both throttles of one broker."""

    def __init__(
        self, node_id: BrokerId, image: Callable[[], Image], clock: Callable[[], Millis], *, static: tuple[int, int]
    ) -> None:
        """`static` holds the leader's and the follower's rates that apply if none was set while the broker runs."""
        self._node_id = node_id
        self._image = image
        self._clock = clock
        self._static = static
        self.leading = Allowance()
        self.following = Allowance()

    def leader_wait_ms(self, replica: Replica, follower: BrokerId) -> int | None:
        """Return how long to withhold this partition's records from the follower; None if it is not throttled."""
        throttled = replica.log.config.leader_replication_throttled_replicas
        if not throttled or not self._covers(throttled, replica) or self._is_in_sync(replica, follower):
            return None
        return self.leading.wait_ms(self._rate(LEADER_RATE, self._static[0]), self._clock())

    def follower_wait_ms(self, replica: Replica) -> int | None:
        """Return how long not to fetch this partition; None if it is not throttled."""
        throttled = replica.log.config.follower_replication_throttled_replicas
        if not throttled or not self._covers(throttled, replica) or self._is_in_sync(replica, self._node_id):
            return None
        return self.following.wait_ms(self._rate(FOLLOWER_RATE, self._static[1]), self._clock())

    def _covers(self, throttled: Collection[str], replica: Replica) -> bool:
        return "*" in throttled or f"{replica.topic_partition.partition}:{self._node_id}" in throttled

    def _is_in_sync(self, replica: Replica, broker_id: BrokerId) -> bool:
        partition = self._image().partition(*replica.topic_partition)
        return partition is not None and broker_id in partition.isr

    def _rate(self, name: str, static: int) -> int:
        image = self._image()
        for resource in (str(self._node_id), ""):
            value = image.configs(ConfigResourceType.BROKER, resource).get(name)
            if value is not None:
                return whole_number(value, static)
        return static
