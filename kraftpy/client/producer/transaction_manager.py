"""The shell around `transaction_state`: sends the machine's requests to the coordinators and returns their answers.

One request is outstanding at a time, each in a task of its own. An operation waits at most `max_block_ms`; after that
it continues in the background, and calling it again waits for it.

Left out: KIP-939.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

from kraftpy.client.cluster import Cluster
from kraftpy.client.model import ConsumerGroupMetadata, OffsetAndMetadata
from kraftpy.client.options import ProducerOptions
from kraftpy.client.producer.accumulator import Accumulator
from kraftpy.client.producer.transaction_events import (
    Abort,
    Adopt,
    Answered,
    BatchFailed,
    Begin,
    Commit,
    Discard,
    Done,
    Drained,
    Effect,
    Event,
    ForgetCoordinator,
    GiveOffsets,
    Initialize,
    Operation,
    Request,
    SendAddOffsets,
    SendAddPartitions,
    SendCommitOffsets,
    SendEndTransaction,
    SendInitProducerId,
    Sent,
    Stop,
    Tick,
    Use,
    VersionFound,
)
from kraftpy.client.producer.transaction_messages import FEATURE, answered, question
from kraftpy.client.producer.transaction_state import State, TransactionMachine
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

logger = logging.getLogger(__name__)

Drain = Callable[[], Awaitable[None]]


class Transactions:
    """The transactions of one producer. `on_progress`: the sender, or a call that awaits deliveries, may continue."""

    def __init__(
        self, cluster: Cluster, options: ProducerOptions, accumulator: Accumulator, on_progress: Callable[[], None]
    ) -> None:
        assert options.transactional_id is not None, "only producers with a transactional id have transactions"
        self._id = options.transactional_id
        self._cluster = cluster
        self._options = options
        self._accumulator = accumulator
        self._on_progress = on_progress
        self._machine = TransactionMachine(self._id, retry_backoff_ms=options.retry_backoff_ms)
        self._changed = asyncio.Event()
        self._outcomes: dict[Operation, KafkaError | None] = {}
        self._tick: asyncio.Task[None] | None = None

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the open transaction: 1 or 2."""
        return self._machine.version

    @property
    def is_abortable(self) -> bool:
        """True if `abort` may be called: the outcome is not decided yet."""
        machine = self._machine
        return machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)

    def raise_failure(self) -> None:
        """Raise the error that the transaction, or the producer, failed with."""
        self._machine.raise_failure()

    def may_send(self, partition: TopicPartition) -> bool:
        """Return whether records may be sent to the partition now."""
        return self._machine.may_send(partition)

    def use(self, partition: TopicPartition) -> None:
        """Note that a record goes to this partition.

        Raises RuntimeError outside a transaction, or the transaction's error.
        """
        machine = self._machine
        if machine.state is not State.IN_TRANSACTION or partition not in machine.partitions:
            self._do(Use(partition=partition))

    def sent(self) -> None:
        """Note that records were sent to a broker."""
        if not self._machine.may_be_open:
            self._do(Sent())

    def look_for_failures(self) -> None:
        """Report batches that were given up to the machine."""
        failures = self._accumulator.failures
        while failures:
            self._do(BatchFailed(error=failures.pop(0)))

    # --- what the application calls -------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Get an id and an epoch, fencing their previous owner and aborting its open transaction."""
        if Operation.INIT not in self._outcomes:
            self._do(Initialize())
        await self._outcome(Operation.INIT)

    def begin(self) -> None:
        """Begin a transaction."""
        self._look_at_features()
        self._do(Begin())
        self._outcomes.clear()  # of the previous transaction, if a caller did not wait long enough to get them

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Commit these offsets with the transaction."""
        self._outcomes.pop(Operation.SEND_OFFSETS, None)
        self._do(GiveOffsets(group=group, offsets=offsets))
        await self._outcome(Operation.SEND_OFFSETS)

    async def commit(self, drained: Drain) -> None:
        """Commit, once `drained` has delivered every record."""
        await self._end_by(Operation.COMMIT, Commit(), drained)

    async def abort(self, drained: Drain) -> None:
        """Abort, once `drained` knows the outcome of the records that were on their way."""
        await self._end_by(Operation.ABORT, Abort(), drained)

    async def _end_by(self, operation: Operation, event: Commit | Abort, drained: Drain) -> None:
        if operation not in self._outcomes:
            self._do(event)
            await drained()
            self._look_at_features()
            self._do(Drained())
        await self._outcome(operation)

    async def _outcome(self, operation: Operation) -> None:
        """Wait until the operation is complete. Raises its error, or REQUEST_TIMED_OUT if it is still in progress."""
        try:
            async with asyncio.timeout(self._options.max_block_ms / 1000):
                while operation not in self._outcomes:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            text = f"{operation.value} did not complete within {self._options.max_block_ms:g} ms; it continues"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        error = self._outcomes.pop(operation)
        if error is not None:
            raise error

    def stopped(self, error: KafkaError) -> None:
        """Fail the outstanding operation: the producer's tasks are gone, so no answer will come."""
        if self._machine.operation is not None:
            self._outcomes[self._machine.operation] = error
        self._changed.set()

    # --- the machine ----------------------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        effects = self._machine.step(event, self._now())
        for effect in effects:
            self._carry_out(effect)
        self._keep_time()
        self._on_progress()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Adopt():
                self._accumulator.set_producer(effect.producer_id, effect.producer_epoch)
            case Discard():
                self._accumulator.discard_unsent(effect.error)
                self.look_for_failures()
            case Stop():
                self._accumulator.fail_all(effect.error)
                self.look_for_failures()
            case ForgetCoordinator():
                self._cluster.forget_coordinator(effect.key, effect.kind)
            case Done():
                self._outcomes[effect.operation] = effect.error
                self._changed.set()
            case (
                SendInitProducerId()
                | SendAddPartitions()
                | SendAddOffsets()
                | SendCommitOffsets()
                | SendEndTransaction()
            ):
                self._cluster.tasks.spawn(self._ask(effect), f"transaction of {self._id}")
            case _:
                assert_never(effect)

    def _now(self) -> float:
        return self._cluster.runtime.monotonic_ms()

    def _keep_time(self) -> None:
        """Arrange for the machine's next `Tick`."""
        if self._tick is not None and not self._tick.done():
            return  # it looks again after that tick
        deadline = self._machine.deadline_ms
        if deadline is not None:
            self._tick = self._cluster.tasks.spawn(self._tick_at(deadline), f"transaction of {self._id}")

    async def _tick_at(self, deadline_ms: float) -> None:
        await asyncio.sleep(max(deadline_ms - self._now(), 0) / 1000)
        self._tick = None
        self._do(Tick())

    def _look_at_features(self) -> None:
        self._do(VersionFound(level=self._cluster.features.get(FEATURE, 0)))

    # --- requests -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request) -> None:
        try:
            told = await self._answer(request)
        except KafkaError as failed:
            logger.debug("%s: %s: %s", self._id, type(request).__name__, failed)
            told = Answered(error=failed.code)
        if isinstance(request, SendInitProducerId):
            self._look_at_features()
        self._do(told)

    async def _answer(self, request: Request) -> Answered:
        asked = question(request, self._id, self._options.transaction_timeout_ms)
        connection = await self._cluster.connect_coordinator(asked.coordinator_key, asked.kind)
        answer = await connection.request(asked.key, asked.message, low=asked.low, high=asked.high)
        return answered(request, answer)
