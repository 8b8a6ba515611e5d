"""Writes records that share groups give up to the groups' dead letter queues (KIP-1191).

A queue is an ordinary topic, the group's `errors.deadletterqueue.topic.name`, that allows it
(`errors.deadletterqueue.group.enable`). Its name must begin with the broker's
`errors.deadletterqueue.topic.name.prefix`. If there is no such topic, it is created, provided that the broker allows
that (`errors.deadletterqueue.auto.create.topics.enable`). A record of partition p goes to the queue's partition p,
modulo their number. Its headers tell, as text, which record was given up, by which group, after how many deliveries,
and why; if the group copies records, it also has the key and the value. Headers of the original are not copied.

Every offset of the range gets a dead letter, even if the record cannot be read any more, or is too large to be copied.
A batch is never larger than the queue's `max.message.bytes`. A write that fails with a temporary error is tried five
times, as in Kafka, which counts fewer errors as temporary. If all fail, the error says so, and the records are archived
all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.share.reading import Piece, read_pieces
from kraftpy.broker.storage.record_inspection import Decoding
from kraftpy.config import BrokerConfig, TopicConfig
from kraftpy.config.group import GroupSettings
from kraftpy.config.topic import topic_config, usable_topic_overrides
from kraftpy.log.work import Work, expanded
from kraftpy.metadata.commands import ConfigResourceType, ConfigValue
from kraftpy.metadata.features import DEAD_LETTER_LEVEL, SHARE_FEATURE
from kraftpy.metadata.image import Topic
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kraftpy.protocol.record_batch import BatchBuilder, CorruptBatch, iter_payload, read_header
from kraftpy.protocol.records import Headers, record_size_bound
from kraftpy.share.effects import DeadLetters
from kraftpy.types import BrokerId

Produce = Callable[[BrokerId, ProduceRequest], Awaitable[ProduceResponse]]
"""Sends a request to a broker, which may be this one. Raises KafkaError."""
KeyAndValue = tuple[bytes | None, bytes | None]

GROUP_ENABLE: Final = "errors.deadletterqueue.group.enable"
_INTERNAL = "__"
_TRIES = 5
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_TIMEOUT_MS = 30_000
_READ_BYTES = 1 << 20
_RECORDS_AT_ONCE = 500
_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_CONTROLLER,
)


class _Batch(NamedTuple):
    """A batch of dead letters, and the first offset that it leaves to the next."""

    records: bytes
    next_offset: int


class DeadLetterQueues:
    """The dead letter queues of all share groups, for the partitions that this broker leads."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        metadata: MetadataLog,
        settings: Callable[[str], GroupSettings],
        decoding: Decoding,
        produce: Produce,
    ) -> None:
        self._config_now = config
        self._clock = clock
        self._metadata = metadata
        self._settings = settings
        self._decoding = decoding
        self._produce = produce

    def has_queue(self, group_id: str) -> bool:
        """Return whether a group has a dead letter queue, and the cluster has them at all."""
        is_supported = self._metadata.image.feature_level(SHARE_FEATURE) >= DEAD_LETTER_LEVEL
        return is_supported and bool(self._settings(group_id).errors_deadletterqueue_topic_name)

    async def write(self, group_id: str, source: Replica, letters: DeadLetters) -> None:
        """Write a dead letter for each of these records of a partition. Raises KafkaError if the queue lacks some."""
        offset = letters.first_offset
        while offset <= letters.last_offset:
            offset = await self._with_patience(partial(self._write_some, group_id, source, letters, offset))

    async def _with_patience(self, attempt: Callable[[], Awaitable[int]]) -> int:
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in _AGAIN:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return await attempt()

    async def _write_some(self, group_id: str, source: Replica, letters: DeadLetters, offset: int) -> int:
        """Write one batch of dead letters; return the first offset that is left. Raises KafkaError."""
        name = self._settings(group_id).errors_deadletterqueue_topic_name
        self._check(group_id, name)
        topic = self._metadata.image.topic(name) or await self._created(name)
        most_bytes = self._config_of(name).max_message_bytes
        found: dict[int, KeyAndValue] = {}
        end = letters.last_offset + 1
        if self._settings(group_id).errors_deadletterqueue_copy_record_enable:
            found, end = await self._originals(source, offset, letters.last_offset, most_bytes)
        batch = self._batch(group_id, source, letters, range(offset, end), found, most_bytes)
        partition = source.topic_partition.partition % len(topic.partitions)
        leader = topic.partitions[partition].leader
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {name}-{partition}")
        data = TopicProduceData(
            name=name,
            topic_id=topic.topic_id,
            partition_data=[PartitionProduceData(index=partition, records=batch.records)],
        )
        answered = await self._produce(leader, ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[data]))
        answer = answered.responses[0].partition_responses[0]
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode.of(answer.error_code), f"{name}-{partition}: {answer.error_message}")
        return batch.next_offset

    # --- the topic ---------------------------------------------------------------------------

    def _check(self, group_id: str, name: str) -> None:
        """Check that the group may use the topic. Raises KafkaError (INVALID_CONFIG) with Kafka's words."""
        config, problem = self._config_now(), None
        prefix = config.errors_deadletterqueue_topic_name_prefix
        is_there = self._metadata.image.topic(name) is not None
        if not name:
            problem = f"Configured DLQ topic name in share group: {group_id} is empty."
        elif name.startswith(_INTERNAL):
            problem = f"Configured DLQ topic name in share group: {group_id} cannot start with __, topic: {name}."
        elif is_there and not self._config_of(name).errors_deadletterqueue_group_enable:
            problem = f"DLQ is not enabled on configured DLQ topic for share group: {group_id}, topic: {name}."
        elif not is_there and not config.errors_deadletterqueue_auto_create_topics_enable:
            problem = (
                "DLQ topic does not exist and auto create is disabled on cluster for share group: "
                f"{group_id}, topic: {name}."
            )
        elif not name.startswith(prefix):
            problem = (
                "Configured DLQ topic name does not comply with the DLQ topic prefix in share group: "
                f"{group_id}, topic: {name}, prefix: {prefix}."
            )
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)

    def _config_of(self, name: str) -> TopicConfig:
        config = self._config_now()
        usable, _ = usable_topic_overrides(self._metadata.image.configs(ConfigResourceType.TOPIC, name), config)
        return topic_config(usable, config)

    async def _created(self, name: str) -> Topic:
        configs = (
            ConfigValue(name=GROUP_ENABLE, value="true"),
            ConfigValue(name="message.timestamp.type", value="CreateTime"),
        )
        refused = await auto_create_topics([name], self._metadata, self._config_now(), self._clock, configs)
        if name in refused:
            raise KafkaError(refused[name], f"cannot create the dead letter queue {name}")
        topic = self._metadata.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the dead letter queue {name} is gone again")
        return topic

    # --- the records -------------------------------------------------------------------------

    def _batch(
        self,
        group_id: str,
        source: Replica,
        letters: DeadLetters,
        offsets: range,
        found: dict[int, KeyAndValue],
        most_bytes: int,
    ) -> _Batch:
        """Encode dead letters for some of the offsets, at least one, as many as fit into a batch."""
        builder, now = BatchBuilder(), self._clock.now()
        offset = offsets.start
        while offset < offsets.stop and len(builder) < _RECORDS_AT_ONCE:
            headers = _headers(group_id, source, letters, offset)
            key, value = found.get(offset, (None, None))
            size = record_size_bound(key, value, headers)
            if builder.size_bytes + size > most_bytes:
                if len(builder):
                    break
                key = value = None  # too large to be copied
            builder.append(now, key, value, headers)
            offset += 1
        return _Batch(builder.build(), offset)

    async def _originals(
        self, source: Replica, first: int, last: int, most_bytes: int
    ) -> tuple[dict[int, KeyAndValue], int]:
        """Return the keys and values of records, and one past the last offset that was looked for.

        Records that are gone or damaged, or too large for the queue, are left out.
        """
        try:
            pieces = read_pieces(source, max(first, source.log_start_offset), _READ_BYTES, read_committed=False)
        except KafkaError:
            return {}, last + 1
        read_end = pieces[-1].stretch.last_offset + 1 if pieces else last + 1
        if read_end <= first:
            return {}, last + 1
        try:
            found, end = await self._decoding.carry_out(_keys_and_values(pieces, first, last, most_bytes))
        except CorruptBatch:
            return {}, min(read_end, last + 1)
        return found, min(end, read_end, last + 1)


def _headers(group_id: str, source: Replica, letters: DeadLetters, offset: int) -> Headers:
    topic, partition = source.topic_partition
    return (
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", str(partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.group", group_id.encode(errors="replace")),
        ("__dlq.errors.delivery.count", str(letters.delivery_count).encode()),
        ("__dlq.errors.message", letters.cause.value.encode()),
    )


def _keys_and_values(
    pieces: list[Piece], first: int, last: int, most_bytes: int
) -> Work[tuple[dict[int, KeyAndValue], int]]:
    """Return records between two offsets, and one past the last offset that was looked for.

    Stops before their keys and values are larger than a batch, unless it is the first record that is.
    """
    found: dict[int, KeyAndValue] = {}
    size = 0
    for stretch, batch in pieces:
        if not stretch.has_records or stretch.last_offset < first or stretch.first_offset > last:
            continue
        header = read_header(batch)
        try:
            payload = yield from expanded(header, batch, max(most_bytes, len(batch)))
        except CorruptBatch:  # expands too far to be copied
            continue
        for count, record in enumerate(iter_payload(payload, header)):
            if count % _RECORDS_AT_ONCE == _RECORDS_AT_ONCE - 1:
                yield None
            if not first <= record.offset <= last:
                continue
            size += len(record.key or b"") + len(record.value or b"")
            if size > most_bytes and found:
                return found, record.offset
            found[record.offset] = record.key, record.value
    return found, last + 1
