"""The admin client's calls about transactions: list and describe them, and abort those that hang.

A transaction hangs if a partition has it open and no coordinator knows of it: nothing would ever complete it, and
read_committed consumers stop before it. `find_hanging_transactions` compares what partitions report with what
coordinators report; `abort_transaction` writes the missing marker. It asks no coordinator: do not use it on a
transaction that still has one.

KIP-664, KIP-994 (by duration), KIP-1152 (by a pattern).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kraftpy.client.admin.base import AdminBase
from kraftpy.client.admin.messages import check, read_producer
from kraftpy.client.admin.model import ActiveProducer, HangingTransaction, TransactionDescription, TransactionListing
from kraftpy.client.model import CoordinatorType
from kraftpy.client.offsets import by_topic
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import describe_producers, describe_transactions, list_transactions, write_txn_markers
from kraftpy.types import TopicPartition

_FIRST_WITH_DURATION, _FIRST_WITH_PATTERN = 1, 2
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of a transaction that has not ended: its coordinator reports when it started."""
MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`: a transaction open for longer should have been aborted."""


class TransactionAdmin(AdminBase):
    """Admin calls about transactions and the producers whose state partitions keep."""

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Return the producers whose state each partition keeps (KIP-664)."""
        wanted = set(partitions)
        found: dict[TopicPartition, list[ActiveProducer]] = {}

        async def attempt() -> None:
            for node_id, names in (await self._by_leader(wanted - set(found))).items():
                request = describe_producers.DescribeProducersRequest(
                    topics=[
                        describe_producers.TopicRequest(name=topic, partition_indexes=indexes)
                        for topic, indexes in by_topic(names).items()
                    ]
                )
                answer = await self._cluster.request(node_id, ApiKey.DESCRIBE_PRODUCERS, request)
                for topic in answer.topics:
                    for part in topic.partitions:
                        name = TopicPartition(topic.name, part.partition_index)
                        check(part.error_code, f"producers of {name}", part.error_message)
                        found[name] = [read_producer(state) for state in part.active_producers]

        await self._cluster.retry(attempt)
        return found

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators that meet every condition, sorted.

        `pattern` is an RE2 regular expression that has to match the whole id. Raises `KafkaError` if a broker does not
        support one of the conditions.
        """
        chosen = set(states)
        request = list_transactions.ListTransactionsRequest(
            state_filters=sorted(chosen),
            producer_id_filters=sorted(set(producer_ids)),
            duration_filter=running_longer_than_ms,
            transactional_id_pattern=pattern,
        )
        low = _FIRST_WITH_PATTERN if pattern else _FIRST_WITH_DURATION if running_longer_than_ms >= 0 else 0

        def checked(answer: Any) -> None:
            check(answer.error_code, "list transactions")
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"the broker does not know the state {unknown}")

        found = []
        for node_id in sorted((await self._metadata_retried([])).nodes):
            answer = await self._ask(node_id, ApiKey.LIST_TRANSACTIONS, request, checked, low=low)
            found += [
                TransactionListing(
                    transactional_id=each.transactional_id,
                    coordinator_id=node_id,
                    producer_id=each.producer_id,
                    state=each.transaction_state,
                )
                for each in answer.transaction_states
            ]
        return sorted(found, key=lambda each: each.transactional_id)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        """Describe transactional ids, in order, as their coordinators know them.

        Raises `KafkaError` if an id is unknown.
        """
        return [await self._describe_transaction(each) for each in dict.fromkeys(transactional_ids)]

    async def _describe_transaction(self, transactional_id: str) -> TransactionDescription:
        kind = CoordinatorType.TRANSACTION
        request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def attempt() -> TransactionDescription:
            connection = await self._cluster.connect_coordinator(transactional_id, kind)
            try:
                answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request)
                (state,) = answer.transaction_states
                check(state.error_code, f"transactional id {transactional_id!r}")
            except KafkaError:
                self._cluster.forget_coordinator(transactional_id, kind)
                raise
            return TransactionDescription(
                transactional_id=transactional_id,
                coordinator_id=await self._cluster.coordinator(transactional_id, kind),
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                state=state.transaction_state,
                timeout_ms=state.transaction_timeout_ms,
                started_at_ms=state.transaction_start_time_ms if state.transaction_state in _OPEN else -1,
                partitions=frozenset(
                    TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions
                ),
            )

        return await self._cluster.retry(attempt)

    async def abort_transaction(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int = 0
    ) -> None:
        """Write an abort marker to a partition for a transaction that no coordinator will complete."""
        request = write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                write_txn_markers.WritableTxnMarker(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transaction_result=False,
                    topics=[
                        write_txn_markers.WritableTxnMarkerTopic(
                            name=partition.topic, partition_indexes=[partition.partition]
                        )
                    ],
                    coordinator_epoch=coordinator_epoch,
                )
            ]
        )

        async def attempt() -> None:
            leader = (await self._cluster.leader(partition)).leader
            answer = await self._cluster.request(leader, ApiKey.WRITE_TXN_MARKERS, request)
            for marker in answer.markers:
                for topic in marker.topics:
                    for part in topic.partitions:
                        check(part.error_code, f"no marker of producer {producer_id} in {partition}")

        await self._cluster.retry(attempt)

    async def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        *,
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    ) -> list[HangingTransaction]:
        """Return the hanging transactions of these partitions.

        They are open, their producer has not written there for longer than any transaction may take, and no coordinator
        knows of them.
        """
        candidates = [
            HangingTransaction(partition=partition, producer=producer)
            for partition, producers in sorted((await self.describe_producers(partitions)).items())
            for producer in producers
            if producer.current_transaction_start_offset >= 0
            and now_ms - producer.last_timestamp_ms > max_transaction_timeout_ms
        ]
        if not candidates:
            return []
        listed = await self.list_transactions(producer_ids={each.producer.producer_id for each in candidates})
        known: dict[int, frozenset[TopicPartition]] = {}
        for each in listed:
            try:
                described = await self._describe_transaction(each.transactional_id)
            except KafkaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                continue  # it has expired since
            known[described.producer_id] = described.partitions
        return [each for each in candidates if each.partition not in known.get(each.producer.producer_id, ())]
