"""Fetch (key 1) from a follower: send records up to the log's end, and take the fetch offset as acknowledgement.

A follower's fetch offset acknowledges everything before it, so not every client may send one: only a replica of the
partition, in the session it registered with (rules 13 and 49; CVE-2018-1288), over the inter-broker listener, on a
connection whose other end has proved to be that broker (`broker_proof`). Epoch -1, which Kafka lets pass unchecked, is
no session. An offset in a log that has diverged from the leader's acknowledges nothing (rule 3).

A request looks only at the partitions it names and at those of its session that changed since the last answer: neither
an idle follower nor a single append costs as much as a thousand partitions. An answer has at most `_MOST_ANSWERED`
partitions; what changed besides comes first in the next one. The leaders of the others know when the session was last
used, because a follower's lag is measured by that. A follower that is not in the ISR of some of them joins once it has
enough, so it is recorded now and then, in slices, that it still has what it last fetched from there.

Records go out as soon as there are any. If only the high watermark or the log start has moved, the answer waits a few
milliseconds for records to travel with. A throttled follower gets its records when the throttle releases them
(`replication.throttle`). The wait ends early if another request arrives on the connection: a follower sends any one, to
name a new partition in the Fetch after it.

Left out: versions before 15, in which a follower cannot say which registration it belongs to (KIP-903).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.broker_proof import who_asks
from kraftpy.broker.handlers.services import HasFetchSessions, HasMetadata, HasProof, HasReplicas
from kraftpy.broker.replication.change_reports import NEWS_WAITS_S
from kraftpy.broker.replication.fetch_responses import count_fetched, name_leaders, respond
from kraftpy.broker.services import HasClock, HasConfig, HasImage
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.waiting import ChangedKeys
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse, PartitionData
from kraftpy.replication.fetch_plan import MOST_NAMED
from kraftpy.types import BrokerId, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kraftpy.broker.connection import Connection
    from kraftpy.broker.replication.fetch_sessions import FetchContext, FetchedPartition, PartitionKey
    from kraftpy.broker.replication.fetchers import Fetchers
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.broker.request import RequestContext


class Broker(HasClock, HasConfig, HasFetchSessions, HasImage, HasMetadata, HasProof, HasReplicas, Protocol):
    """The part of a broker that these handlers need."""

    @property
    def fetchers(self) -> Fetchers:
        """The fetchers for partitions this node follows."""


_FIRST_VERSION = 15
_MOST_ANSWERED = MOST_NAMED
_SWEPT_AT_ONCE = 1_000
_SWEEP_S = 1.0
_SWEEPS_PER_LAG = 10


async def replica_fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Read what is new; wait if nothing is; answer."""
    if context.api_version < _FIRST_VERSION or context.listener != broker.fetchers.listener:
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if await who_asks(broker, context) != (request.replica_state.replica_id, request.replica_state.replica_epoch):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        fetched = broker.fetch_sessions.open(
            request, context.api_version, broker.clock.now(), follower_id=request.replica_state.replica_id
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if fetched.session is not None:
        fetched.session.last_request.at = broker.clock.monotonic_ms()
    broker.replicas.confirmations.asked(fetched.session)
    reading = _Reading(broker, request, fetched, context.connection)
    try:
        await reading.read_or_wait()
    finally:
        reading.end()
    if fetched.is_overtaken:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    broker.replicas.confirmations.answered(fetched.session)
    answers = list(reading.answers.values())
    count_fetched(broker.replicas, answers, is_follower=True)
    if context.connection is not None and context.connection.counted is not None:
        context.connection.counted.note_follower(context.connection)
    return respond(fetched, answers, name_leaders(broker, answers, context))


class _Reading:
    """The state of one follower's request while it is being answered."""

    def __init__(
        self, broker: Broker, request: FetchRequest, fetched: FetchContext, connection: Connection | None
    ) -> None:
        session = fetched.session
        self._connection = connection
        self.answers: dict[PartitionKey, tuple[FetchedPartition, PartitionData]] = {}
        self._broker = broker
        self._fetched = fetched
        self._throttles = broker.fetchers.throttles
        self._follower = BrokerId(request.replica_state.replica_id)
        self._follower_epoch = request.replica_state.replica_epoch
        self._max_wait_ms = request.max_wait_ms
        self._budget = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._enough = min(max(1, request.min_bytes), self._budget)
        self._changed_keys: ChangedKeys[PartitionKey] = (
            ChangedKeys() if session is None or session.changed_keys is None else session.changed_keys
        )
        self._partitions = (
            {partition.key: partition for partition in fetched.partitions} if session is None else session.partitions
        )
        self._total_bytes = 0
        self._must_answer = False
        self._has_news = False
        self._held_ms = 0
        """How long the throttle holds back the records read last."""

    def end(self) -> None:
        """Clean up after any outcome: without a session, nothing reads the changes any more."""
        if self._connection is not None:
            self._connection.on_next_request = None
        if self._fetched.session is None:
            self._changed_keys.is_over = True

    def _is_hurried(self) -> bool:
        """Return whether the follower has sent another request meanwhile."""
        return self._connection is not None and self._connection.has_next_request

    async def read_or_wait(self) -> None:
        """Read until there is something to send, or time is up."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = now + self._max_wait_ms / 1000
        await self._sweep(now)
        changed = dict.fromkeys(self._changed_keys.take())  # first what had no room in the last answer
        changed.update(dict.fromkeys(partition.key for partition in self._fetched.asked))
        self._read(changed)
        if self._connection is not None:
            self._connection.on_next_request = self._changed_keys.wake
        while not self._must_answer and self._total_bytes < self._enough and not self._is_hurried():
            if self._has_news:
                deadline = min(deadline, loop.time() + NEWS_WAITS_S)
            held_until = loop.time() + self._held_ms / 1000 if self._held_ms else deadline
            is_woken = await self._changed_keys.wait_until(min(deadline, held_until))
            if self._fetched.is_overtaken:
                return
            is_over = not is_woken and held_until >= deadline
            self._held_ms = 0
            self._read(self._changed_keys.take())
            if is_over:
                return

    async def _sweep(self, now: float) -> None:
        """Record what the follower still has of partitions without changes that it may join."""
        session = self._fetched.session
        lag_s = self._broker.config.replica_lag_time_max_ms / 1000
        if session is None or now - session.swept_at < min(_SWEEP_S, lag_s / _SWEEPS_PER_LAG):
            return
        session.swept_at = now
        async for some in in_slices([*session.joining.items()], _SWEPT_AT_ONCE):
            self._sweep_some(some)

    def _sweep_some(self, some: Sequence[tuple[PartitionKey, FetchedPartition]]) -> None:
        for key, partition in some:
            if not partition.is_accepted or key in self._changed_keys:
                continue
            replica = self._broker.replicas.held_by_id(partition.topic_id, partition.partition)
            if replica is None or replica.leading is None or replica.leader_epoch != partition.current_leader_epoch:
                continue
            try:
                self._note(replica, partition)
            except KafkaError:
                self._changed_keys.put_back(key)

    def _note(self, replica: Replica, partition: FetchedPartition) -> None:
        follower, epoch = self._follower, self._follower_epoch
        replica.fetched(follower, epoch, partition.fetch_offset, partition.log_start_offset, partition)
        session = self._fetched.session
        if session is None or replica.leading is None:
            return
        if follower not in replica.leading.maximal_isr:
            session.joining[partition.key] = partition
        elif session.joining:
            session.joining.pop(partition.key, None)

    def _read(self, keys: Iterable[PartitionKey]) -> None:
        left_over: list[PartitionKey] = []
        for key in keys:
            partition = self._partitions.get(key)
            if partition is None:  # forgotten
                replica = self._broker.replicas.held_by_id(TopicId(key[1]), key[2])
                if replica is not None:
                    replica.change_reports.remove(self._changed_keys)
                continue
            before = self.answers.pop(key, None)
            if before is not None:
                self._total_bytes -= len(before[1].records or b"")
            if self._total_bytes >= self._budget or len(self.answers) >= _MOST_ANSWERED:
                left_over.append(key)
                continue
            answer = self._read_partition(partition)
            self._total_bytes += len(answer.records or b"")
            self.answers[key] = (partition, answer)
            if answer.error_code != ErrorCode.NONE:
                self._must_answer = True
                self._changed_keys.put_back(key)  # report it until it is well, or no longer asked for
            elif answer.diverging_epoch.epoch >= 0 or self._is_awaited(key):
                self._must_answer = True
            elif partition.has_moved(answer):
                self._has_news = True
        if left_over:  # first in the next answer, before those in this one that are reported again
            self._must_answer = True
            for key in (*left_over, *self._changed_keys.take()):
                self._changed_keys.put_back(key)

    def _is_awaited(self, key: PartitionKey) -> bool:
        """Return whether the leader needs to know that this follower still follows."""
        return self._broker.replicas.confirmations.is_awaited(key, self._fetched.session)

    def _read_partition(self, partition: FetchedPartition) -> PartitionData:
        answer = PartitionData(partition_index=partition.partition, high_watermark=-1, records=b"")
        partition.is_accepted = False
        try:
            replica = self._broker.replicas.leader_by_id(partition.topic_id, partition.partition)
            replica.change_reports.add(self._changed_keys)
            replica.check_leader_epoch(partition.current_leader_epoch)
            assert replica.leading is not None
            replica.leading.check_follower(self._follower, self._follower_epoch)
            answer.log_start_offset = replica.log.log_start_offset  # a follower that is behind it starts over there
            offset = Offset(partition.fetch_offset)
            if partition.last_fetched_epoch >= 0:
                diverging = replica.diverging_epoch(LeaderEpoch(partition.last_fetched_epoch), offset)
                if diverging is not None:
                    answer.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
                    _set_limits(answer, replica)
                    return answer
            throttled_ms = self._throttles.leader_wait_ms(replica, self._follower)
            records: Any = b""  # or a file slice, which has a length too; the connection sends it
            if throttled_ms:
                self._held_ms = min(self._held_ms or throttled_ms, throttled_ms)
            else:
                records = replica.read_for_follower(
                    offset,
                    max(0, min(partition.max_bytes, self._budget - self._total_bytes)),
                    min_one_batch=self._total_bytes == 0,
                    slice_from=self._broker.config.kraftpy_fetch_zero_copy_min_bytes,
                )
                if throttled_ms is not None:
                    self._throttles.leading.spend(len(records))
            self._note(replica, partition)
            partition.is_accepted = True
            _set_limits(answer, replica)
            answer.records = records
            if not records and offset < replica.log_end_offset:
                self._changed_keys.put_back(partition.key)  # there was no room, or the throttle holds it back
        except KafkaError as error:
            answer.error_code = error.code
        return answer


def _set_limits(answer: PartitionData, replica: Replica) -> None:
    answer.high_watermark = replica.high_watermark
    answer.last_stable_offset = replica.last_stable_offset
