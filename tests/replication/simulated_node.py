"""A broker of the simulation: what the data path does with a leader, a follower and a fetch plan, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ablated_rules import leader_class
from simulated_parts import PowerLoss, View, Violation, Waiter

from kraftpy.broker.replication.fetch_sessions import FetchedPartition, FetchSessions
from kraftpy.config.topic import TopicConfig
from kraftpy.log.deletion import delete_files, delete_old_segments
from kraftpy.log.layout import LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets, write_offsets
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.results import Origin
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.replication.events import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendRecords,
    BackOff,
    FollowerEffect,
    FollowerLeftIsr,
    HighWatermarkAdvanced,
    LeaderEffect,
    NeedsMetadata,
    ProposeIsr,
    StartOver,
    TruncateTo,
)
from kraftpy.replication.fetch_plan import Fetched, FetchLimits, FetchPlan, PartitionKey
from kraftpy.replication.follower import Follower
from kraftpy.replication.leader import Leader, PartitionState
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import BrokerId, Millis, TopicId, TopicPartition

if TYPE_CHECKING:
    from replication_simulation import Simulation
    from trusted_controller import Metadata

TOPIC_ID = TopicId(b"t" * 16)
KEY = PartitionKey(TOPIC_ID, 0)
TP = TopicPartition("t", 0)
CONTROLLER = BrokerId(0)
LAG_TIME_MAX_MS = 1_500
FETCH_TIMEOUT_MS = 700
CONFIG = TopicConfig(segment_bytes=1200, index_interval_bytes=200, retention_ms=-1)
LIMITS = FetchLimits(partition_max_bytes=400, response_max_bytes=1000, max_wait_ms=100)


class Node:
    log: PartitionLog

    def __init__(self, simulation: Simulation, broker_id: BrokerId) -> None:
        self.simulation = simulation
        self.id = broker_id
        self.disk = MemoryDisk()
        self.disk.root.child("t-0")
        self.disk.root.sync()
        self.is_up = False
        self.stopped_cleanly = False
        self.tainted = False
        self.incarnation = 0
        self.broker_epoch = -1
        self.clean_epoch = -1
        self.stored_high_watermark = 0

    def __str__(self) -> str:
        role = "leader" if self.leader else f"follower of {self.follower.leader}" if self.follower else "idle"
        return (
            f"node {self.id} {role} up={self.is_up} [{self.log.log_start_offset}, {self.log.log_end_offset}) "
            f"hw={self.high_watermark} epochs={self.log.epochs.entries()} tainted={self.tainted}"
        )

    # --- life ---

    def start(self, *, is_clean: bool) -> None:
        if self.is_up:
            return
        self.stopped_cleanly = False
        root = self.disk.root
        self.log = PartitionLog.open(
            root.child("t-0"),
            CONFIG,
            now=self._now,
            clean=is_clean,
            recovery_point=read_offsets(root, RECOVERY_POINTS).get(TP, 0),
            log_start_offset=read_offsets(root, LOG_START_OFFSETS).get(TP, 0),
        )
        self.is_up = True
        self.incarnation += 1
        self.high_watermark = max(self.log.log_start_offset, min(self.stored_high_watermark, self.log.log_end_offset))
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.plan: FetchPlan | None = None
        self._asked: object = None  # the fetch in flight
        self.seen: Metadata | None = None
        self.waiters: list[Waiter] = []
        rng = self.simulation.rng
        self.sessions = FetchSessions(rng.choice([1, 10]), lambda: rng.randrange(1, 1 << 30))
        self.broker_epoch = -1
        self._register(self.clean_epoch if is_clean else -1)
        self._beat()
        self._tick()

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Run it only while this process lives."""
        incarnation = self.incarnation

        def guarded() -> None:
            if self.is_up and self.incarnation == incarnation:
                action()

        return guarded

    def kill(self, loss: Loss | None) -> None:
        self.is_up = False
        self.clean_epoch = -1
        self.disk.on_operation = None
        self.disk.crash(self.simulation.rng, loss)

    def lose_power_after(self, operations: int) -> None:
        """Die at a disk operation, after this many more."""
        left = operations

        def count(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss(self)

        self.disk.on_operation = count

    def stop(self) -> None:
        self.simulation.controller.stop_cleanly(self.id)
        self.log.close()
        self._store()
        self.is_up, self.stopped_cleanly = False, True
        self.clean_epoch = self.broker_epoch
        self.disk.crash(self.simulation.rng, Loss.NOTHING)

    def _store(self) -> None:
        write_offsets(self.disk.root, RECOVERY_POINTS, {TP: self.log.recovery_point})
        write_offsets(self.disk.root, LOG_START_OFFSETS, {TP: self.log.log_start_offset})
        self.stored_high_watermark = self.high_watermark

    def flush(self) -> None:
        if self.is_up:
            self.log.flush()
            self._store()

    def advance_log_start(self) -> None:
        """Advance the log start, as retention or DeleteRecords does on a leader."""
        if self.is_up and self.leader is not None and self.high_watermark > self.log.log_start_offset:
            to = self.simulation.rng.randrange(self.log.log_start_offset, self.high_watermark + 1)
            self.log.advance_log_start(to)
            self.simulation.deleted_before = max(self.simulation.deleted_before, to)
            delete_files(self.log.directory, delete_old_segments(self.log, self._now, self.high_watermark))
            self._store()
            self.simulation.count("log starts moved")

    @property
    def _now(self) -> Millis:
        return Millis(self.simulation.now)

    # --- the quorum ---

    def _ask_controller(self, action: Callable[[], Callable[[], None] | None]) -> None:
        """Do something there; what it returns is done here."""
        simulation = self.simulation

        def there() -> None:
            answer = action()
            if answer is not None:
                simulation.send(CONTROLLER, self.id, self._guarded(answer))

        simulation.send(self.id, CONTROLLER, there)

    def _register(self, previous_epoch: int) -> None:
        if self.broker_epoch >= 0:
            return
        incarnation = self.incarnation

        def register() -> Callable[[], None] | None:
            if not self.is_up or self.incarnation != incarnation or self.broker_epoch >= 0:
                return None
            # The answer cannot be lost: the node would ask for its own incarnation's epoch again.
            self.broker_epoch = self.simulation.controller.register(self.id, previous_epoch, self.simulation.now)
            return None

        self._ask_controller(register)
        self.simulation.at(200, self._guarded(lambda: self._register(previous_epoch)))

    def _beat(self) -> None:
        controller = self.simulation.controller

        def beat() -> Callable[[], None] | None:
            if not self.is_up or self.broker_epoch < 0:
                return None
            controller.heartbeat(self.id, self.broker_epoch, self.simulation.now)
            metadata = controller.now
            return lambda: self.apply(metadata)

        self._ask_controller(self._of_this_process(beat))
        self.simulation.at(self.simulation.rng.randrange(*self.simulation.heartbeats_ms), self._guarded(self._beat))

    def _of_this_process(
        self, action: Callable[[], Callable[[], None] | None]
    ) -> Callable[[], Callable[[], None] | None]:
        incarnation = self.incarnation
        return lambda: action() if self.incarnation == incarnation else None

    def _tick(self) -> None:
        if self.leader is not None:
            is_settled, effects = self.leader.is_settled, self.leader.tick(self._now)
            if is_settled and effects:
                raise Violation(f"node {self.id}: a leader that was settled had something to do: {effects}")
            self._lead(effects)
        self.simulation.at(60, self._guarded(self._tick))

    def apply(self, metadata: Metadata) -> None:
        """The metadata as of some version; roles follow it."""
        if self.broker_epoch < 0 or metadata.epochs.get(self.id) != self.broker_epoch:
            return  # of before it registered
        if self.seen is not None and metadata.version <= self.seen.version:
            return
        self.seen = metadata
        state = PartitionState(
            leader_epoch=metadata.leader_epoch,
            partition_epoch=metadata.partition_epoch,
            replicas=metadata.replicas,
            isr=metadata.isr,
            is_recovering=metadata.is_recovering,
        )
        if metadata.leader == self.id:
            self._become_leader(state, metadata)
        else:
            self._stop_leading()
            if self.id not in metadata.replicas:
                self._delete()
            elif metadata.leader < 0:
                self.follower = self.plan = self._asked = None
            elif self.follower is None or self.follower.leader_epoch != metadata.leader_epoch:
                self._become_follower(metadata.leader, metadata.leader_epoch)

    def _become_leader(self, state: PartitionState, metadata: Metadata) -> None:
        self.follower = self.plan = self._asked = None
        if self.leader is None or state.leader_epoch > self.leader.state.leader_epoch:
            self.simulation.count("leaders")
            self.simulation.check_leader(self)
            self.log.assign_epoch(state.leader_epoch)
        if self.leader is None:
            kind = leader_class(self.simulation.rules) if self.simulation.breaks_rules else Leader
            self.leader = kind(
                broker_id=self.id,
                state=state,
                log_end_offset=self.log.log_end_offset,
                high_watermark=self.high_watermark,
                min_insync_replicas=self.simulation.min_insync_replicas,
                lag_time_max_ms=LAG_TIME_MAX_MS,
                brokers=metadata.brokers,
                now=self._now,
            )
            self._lead(())
        else:
            self._lead(self.leader.changed(state, self._now))
            self._lead(self.leader.brokers_changed(metadata.brokers, self._now))

    def _delete(self) -> None:
        """Delete the log: this node has no replica of the partition any more."""
        self.follower = self.plan = self._asked = None
        if self.log.log_end_offset:
            self.log.truncate_fully_and_start_at(0)
            self.high_watermark = 0
            self._store()
        self.tainted = False

    def _become_follower(self, leader: BrokerId, leader_epoch: int) -> None:
        if self.plan is None or self.follower is None or self.follower.leader != leader:
            self.plan, self._asked = FetchPlan(replica_id=self.id, broker_epoch=self.broker_epoch), None
        self.follower = Follower(leader=leader, leader_epoch=leader_epoch, log=View(self))
        if "truncate by epochs" not in self.simulation.rules and self.high_watermark < self.log.log_end_offset:
            self._truncate(self.high_watermark)
        self._pump()

    def _stop_leading(self) -> None:
        self.leader = None
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    # --- leading ---

    def _lead(self, effects: Sequence[LeaderEffect]) -> None:
        leader = self.leader
        assert leader is not None
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced():
                    pass  # read from the leader itself, below
                case FollowerLeftIsr():
                    pass  # every fetch is passed on
                case ProposeIsr():
                    self._propose(leader, effect)
        if leader.high_watermark < self.high_watermark:
            raise Violation(f"node {self.id}: high watermark {self.high_watermark} fell to {leader.high_watermark}")
        if not set(leader.state.isr) | {self.id} <= leader.maximal_isr <= set(leader.state.replicas):
            raise Violation(f"maximal ISR {leader.maximal_isr} of {leader.state}")
        if leader.high_watermark > self.high_watermark:
            start, self.high_watermark = self.high_watermark, leader.high_watermark
            self.simulation.on_committed(self, start, self.high_watermark)
        done = [waiter for waiter in self.waiters if waiter.last_offset < self.high_watermark]
        self.waiters = [waiter for waiter in self.waiters if waiter.last_offset >= self.high_watermark]
        for waiter in done:
            if leader.has_enough_acks:
                waiter.answer(ErrorCode.NONE, waiter.base_offset)
            else:
                waiter.answer(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)

    def _propose(self, leader: Leader, proposal: ProposeIsr) -> None:
        """One submission; its answer comes after what it has changed, or it is lost."""
        is_answered = False
        self.simulation.count("proposals")

        def there() -> Callable[[], None]:
            error = self.simulation.controller.alter_partition(self.id, self.broker_epoch, proposal)
            metadata = self.simulation.controller.now
            return lambda: answer(error, metadata)

        def answer(error: ErrorCode, metadata: Metadata | None) -> None:
            nonlocal is_answered
            if is_answered:
                return
            is_answered = True
            if metadata is not None:
                self.apply(metadata)
            if error is not ErrorCode.NONE and self.leader is leader:
                self.simulation.count(f"refused {error.name}")
                epoch = proposal.partition_epoch
                self._lead(leader.proposal_refused(error, self._now, partition_epoch=epoch))

        self._ask_controller(self._of_this_process(there))
        self.simulation.at(500, self._guarded(lambda: answer(ErrorCode.REQUEST_TIMED_OUT, None)))

    def produce(
        self, values: list[bytes], *, producer_id: int, sequence: int, answer: Callable[[ErrorCode, int], None]
    ) -> None:
        leader = self.leader
        if not self.is_up or leader is None:
            return answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        if leader.is_under_min_insync_replicas:
            return answer(ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        batch = encode_batch(
            [(self.simulation.now, b"k", value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        try:
            result = self.log.append(batch, leader_epoch=leader.state.leader_epoch, now=self._now)
        except KafkaError as error:
            return answer(error.code, -1)
        self.waiters.append(Waiter(leader.state.leader_epoch, result.base_offset, result.last_offset, answer))
        self._lead(leader.appended(self.log.log_end_offset, self._now))
        return None

    def serve(self, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
        """Serve a follower's Fetch: at once, or after a while if there is nothing."""
        try:
            fetched = self.sessions.open(request, 17, self._now)
        except KafkaError as error:
            return respond(FetchResponse(error_code=error.code))
        replica = request.replica_state
        answers = [(p, self._read(p, replica.replica_id, replica.replica_epoch)) for p in fetched.partitions]

        def finish() -> None:
            if fetched.is_overtaken:
                return respond(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            sent = [(p, answer) for p, answer in answers if fetched.include(p, answer)]
            for partition, answer in sent:
                # The current bytes, as a transfer from the file sends, even if the leader has changed (KAFKA-18723).
                if answer.records and self.log.log_start_offset <= partition.fetch_offset < self.log.log_end_offset:
                    answer.records = self.log.read(partition.fetch_offset, LIMITS.partition_max_bytes).records
            topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[a for _, a in sent])] if sent else []
            return respond(FetchResponse(session_id=fetched.session_id, responses=topics))

        has_news = any(a.records or a.error_code or a.diverging_epoch.epoch >= 0 for _, a in answers)
        rng = self.simulation.rng
        if has_news and (self.simulation.is_healing or rng.random() >= self.simulation.holds):
            return finish()
        longest_ms = FETCH_TIMEOUT_MS if has_news else LIMITS.max_wait_ms
        self.simulation.at(rng.randrange(1, longest_ms), self._guarded(finish))
        return None

    def _read(self, asked: FetchedPartition, replica_id: int, broker_epoch: int) -> PartitionData:
        leader, log = self.leader, self.log
        answer = PartitionData(partition_index=0, log_start_offset=log.log_start_offset)
        try:
            if leader is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader")
            epoch = leader.state.leader_epoch
            if asked.current_leader_epoch != epoch:  # rule 6
                is_old = asked.current_leader_epoch < epoch
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH, "epoch")
            leader.check_follower(BrokerId(replica_id), broker_epoch)
            answer.high_watermark = leader.high_watermark
            if asked.fetch_offset < log.log_start_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "before the start")
            if asked.last_fetched_epoch >= 0 and "truncate by epochs" in self.simulation.rules:  # rule 3
                end = log.end_offset_for_epoch(asked.last_fetched_epoch)
                if end.leader_epoch < 0:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "an epoch of the future")
                if end.leader_epoch < asked.last_fetched_epoch or end.end_offset < asked.fetch_offset:
                    answer.diverging_epoch = EpochEndOffset(epoch=end.leader_epoch, end_offset=end.end_offset)
                    self.simulation.count("diverging")
                    return answer
            answer.records = log.read(asked.fetch_offset, LIMITS.partition_max_bytes).records
            self._lead(
                leader.fetched(
                    broker_id=BrokerId(replica_id),
                    broker_epoch=broker_epoch,
                    fetch_offset=asked.fetch_offset,
                    log_start_offset=0,
                    log_end_offset=log.log_end_offset,
                    now=self._now,
                )
            )
        except KafkaError as error:
            self.simulation.count(f"fetch {error.code.name}")
            answer.error_code = error.code
        return answer

    # --- following ---

    def _pump(self) -> None:
        """Ask for more, unless a fetch is in flight."""
        follower, plan = self.follower, self.plan
        if follower is None or plan is None or self._asked is not None:
            return
        position = follower.next_fetch(self._now)
        if position is None:
            assert follower.retry_at is not None
            plan.forget(KEY)
            self.simulation.at(follower.retry_at - self.simulation.now, self._guarded(self._pump))
            return
        plan.set(KEY, position)
        request = plan.request(LIMITS)
        assert request is not None
        token = self._asked = object()
        leader = self.simulation.nodes[follower.leader]

        def respond(response: FetchResponse) -> None:
            self.simulation.send(
                leader.id, self.id, self._guarded(lambda: self._handle_response(token, plan, response))
            )

        def arrive() -> None:
            if leader.is_up:
                leader.serve(request, respond)

        self.simulation.send(self.id, leader.id, arrive)
        self.simulation.at(FETCH_TIMEOUT_MS, self._guarded(lambda: self._lose(token, plan)))

    def _lose(self, token: object, plan: FetchPlan) -> None:
        if self._asked is token:
            plan.lost()
            self._asked = None
            self._pump()

    def _handle_response(self, token: object, plan: FetchPlan, response: FetchResponse) -> None:
        if self._asked is not token:
            return
        self._asked = None
        for fetched in plan.handle_response(response):
            self._take(fetched)
            if self.simulation.rng.random() < 0.1:
                delay = self.simulation.rng.choice([0, 1, 10, 100, 1000])
                self.simulation.at(delay, self._guarded(lambda fetched=fetched: self._take(fetched)))  # type: ignore[misc]
        self._pump()

    def _take(self, fetched: Fetched) -> None:
        follower = self.follower
        if follower is None:
            return
        asked = fetched.asked
        if "late answers" not in self.simulation.rules and self.leader is None:
            asked = follower._position()
        self._follow(follower, follower.answered(asked, fetched.answer, self._now))

    def _follow(self, follower: Follower, effects: list[FollowerEffect]) -> None:
        log = self.log
        for effect in effects:
            match effect:
                case TruncateTo(offset=offset):
                    self._truncate(offset)
                case StartOver(offset=offset):
                    self.simulation.count("started over")
                    log.truncate_fully_and_start_at(offset)
                    self.high_watermark = min(self.high_watermark, offset)
                    self._store()
                    self.high_watermark = max(self.high_watermark, offset)
                case AppendRecords(records=records, leader_epoch=leader_epoch):
                    if "epochs asked for" not in self.simulation.rules:
                        leader_epoch = -1
                    try:
                        log.append(records, leader_epoch=leader_epoch, now=self._now, origin=Origin.REPLICA)
                    except KafkaError as error:
                        self.simulation.count(f"append {error.code.name}")
                        follower.failed(error.code, self._now)
                        return
                case AdvanceHighWatermark(offset=offset):
                    end = min(offset, log.log_end_offset)
                    if end > self.high_watermark:
                        start, self.high_watermark = self.high_watermark, end
                        self.simulation.on_committed(self, start, end)
                case AdvanceLogStart(offset=offset):
                    log.advance_log_start(min(offset, log.log_end_offset))
                    delete_files(log.directory, delete_old_segments(log, self._now, self.high_watermark))
                    self._store()
                case BackOff() | NeedsMetadata():
                    pass

    def _truncate(self, offset: int) -> None:
        self.simulation.count("truncations")
        if self.log.truncate_to(offset):
            self._store()
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)

    # --- looking at it ---

    def records(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """(offset, leader epoch, value) of what is there of [start, end)."""
        offset = max(start, self.log.log_start_offset)
        while offset < end:
            read = self.log.read(offset, 1 << 20)
            for header, batch in split_batches(read.records):
                for record in iter_records(batch, header):
                    if max(start, self.log.log_start_offset) <= record.offset < end:
                        yield record.offset, header.partition_leader_epoch, record.value or b""
            if read.next_offset <= offset:
                return
            offset = read.next_offset

    def bytes_from(self, start: int) -> bytes:
        """Return all batches from the one that holds `start`."""
        parts = []
        offset = start
        while offset < self.log.log_end_offset:
            read = self.log.read(offset, 1 << 20)
            parts.append(read.records)
            offset = read.next_offset
        return b"".join(parts)

    def last_epoch(self) -> int:
        return self.log.epochs.epoch_of(self.log.log_end_offset - 1)

    def epochs_from(self, start: int) -> list[tuple[int, int]]:
        """The leader epochs from an offset on, that of the offset itself first."""
        entries = [entry for entry in self.log.epochs.entries() if entry[1] > start]
        return [(self.log.epochs.epoch_of(start), start), *entries]

    def producer_states(self, start: int) -> list[tuple[int, int, int]]:
        """(producer, epoch, last sequence) of those whose last batch is at `start` or later."""
        kept = self.log.producers.last_sequences()
        return [
            (found.producer_id, found.producer_epoch, found.last_sequence)
            for found in self.log.producers.describe()
            if found.producer_id in kept and kept[found.producer_id][1] >= start
        ]
