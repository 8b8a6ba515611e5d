"""A share partition with its coordinator and a log, driven by hand: what scripts and random histories share.

Checks after every step: the invariants of both machines, every acknowledgement answered once or still
waiting for its write, and a state log that, replayed afresh, gives the same durable state.
"""

from __future__ import annotations

from collections import deque

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.acknowledgements import Acknowledgement
from kraftpy.share.config import ShareCoordinatorConfig, SharePartitionConfig
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.share.effects import Acquired, Available, DeadLetters, Effect, Stretch, Write
from kraftpy.share.effects import Reply as Acknowledged
from kraftpy.share.events import (
    Append,
    Appended,
    Command,
    Event,
    Initialize,
    Read,
    Reply,
    Request,
    Result,
    Tick,
)
from kraftpy.share.events import Effect as CoordinatorEffect
from kraftpy.share.events import Write as WriteState
from kraftpy.share.partition import SharePartition
from kraftpy.share.records import Record, ShareKey
from kraftpy.types import Millis, TopicId

KEY = ShareKey("g", TopicId(b"topic-id-16bytes"), 0)


class CoordinatorWorld:
    """One share coordinator, its log, the requests to it, and the time."""

    def __init__(self, config: ShareCoordinatorConfig | None = None) -> None:
        self.config = config or ShareCoordinatorConfig()
        self.now = Millis(0)
        self.log: list[tuple[int, Record]] = []
        self.next_offset = 0
        self.hold = False
        self.held: deque[Append] = deque()
        self.requests: dict[int, Command] = {}
        self.answers: dict[int, Result] = {}
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now, self.now))

    def _fresh(self) -> ShareCoordinator:
        coordinator = ShareCoordinator(self.config)
        for offset, (key, value) in self.log:
            coordinator.replay(key, value, offset)
        return coordinator

    def request(self, command: Command) -> int:
        request_id = len(self.requests) + 1
        self.requests[request_id] = command
        self.step(Request(request_id=request_id, command=command))
        return request_id

    def step(self, event: Event) -> None:
        self.take(self.coordinator.step(event, self.now, self.now))
        while self.held and not self.hold:
            self.appended()

    def appended(self, error_code: ErrorCode = ErrorCode.NONE) -> None:
        append = self.held.popleft()
        offset = self.next_offset
        if error_code is ErrorCode.NONE:
            self.log.append((offset, append.record))
            self.next_offset += 1
        self.step(Appended(token=append.token, offset=offset, error_code=error_code))

    def tick(self, now: int) -> None:
        self.now = Millis(now)
        self.step(Tick())

    def reload(self, *, lose_held: bool = True) -> None:
        """The coordinator's broker dies; the next one finds what is in the log."""
        self.take(self.coordinator.unload())
        while self.held:
            append = self.held.popleft()
            if not lose_held:
                self.log.append((self.next_offset, append.record))
                self.next_offset += 1
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now, self.now))

    def prune(self) -> None:
        """Delete what the coordinator says it does not need."""
        before = self.coordinator.prune_offset
        if before is not None:
            self.log = [(offset, record) for offset, record in self.log if offset >= before]
            self.coordinator.pruned()

    def take(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.request_id not in self.answers, effect
                    self.answers[effect.request_id] = effect.result
                case Append():
                    self.held.append(effect)
        self.told(effects)

    def told(self, effects: list[CoordinatorEffect]) -> None:
        """A hook for subclasses."""

    def check(self) -> None:
        self.coordinator.validate()
        assert self._fresh().durable() == self.coordinator.durable()
        if not self.held:
            assert self.requests.keys() == self.answers.keys()


class PartitionWorld:
    """A share partition, the log it reads, and a coordinator that it writes to."""

    def __init__(self, config: SharePartitionConfig | None = None) -> None:
        self.config = config or SharePartitionConfig()
        self.states = CoordinatorWorld()
        self.now = Millis(0)
        self.leader_epoch = 0
        self.log: list[Stretch] = []
        self.log_start_offset = 0
        self.hold = False
        self.held: deque[Write] = deque()
        self.letters: deque[DeadLetters] = deque()
        """Records on their way to the dead letter queue."""
        self.queue: list[int] = []
        """The offsets of all dead letters that the queue has."""
        self.holds_letters = False
        self.requests = 0
        self.waiting: set[int] = set()
        self.partition: SharePartition
        self.states.request(Initialize(key=KEY, state_epoch=1, start_offset=0))
        self.load()

    @property
    def log_end_offset(self) -> int:
        return self.log[-1].last_offset + 1 if self.log else 0

    def load(self) -> None:
        """A new leader reads what the coordinator knows."""
        self.leader_epoch += 1
        request_id = self.states.request(Read(key=KEY, leader_epoch=self.leader_epoch))
        found = self.states.answers[request_id]
        assert found.error_code is ErrorCode.NONE, found
        self.partition = SharePartition(self.config, state_epoch=found.state_epoch)
        self.partition.loaded(
            found.start_offset,
            found.batches,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )
        self.take(self.partition.resume_dead_letters())

    def fail_over(self) -> None:
        """The leader dies."""
        self.held.clear()
        self.letters.clear()
        self.take(self.partition.unload(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.load()

    def append(self, count: int, *, has_records: bool = True, gap: int = 0) -> None:
        first = self.log_end_offset + gap
        self.log.append(Stretch(first, first + count - 1, has_records))

    def fetch(
        self, member_id: str, max_records: int = 500, *, is_record_limit: bool = False, batch_size: int = 500
    ) -> list[Acquired]:
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return []
        read = [each for each in self.log if each.last_offset >= max(offset, self.log_start_offset)]
        acquired = self.partition.acquire(
            member_id,
            read,
            fetch_offset=offset,
            max_records=max_records,
            batch_size=batch_size,
            is_record_limit=is_record_limit,
            now=self.now,
        )
        if not acquired:
            self.take(self.partition.save_skipped())
        return acquired

    def acknowledge(self, member_id: str, said: list[Acknowledgement]) -> int:
        self.requests += 1
        self.waiting.add(self.requests)
        self.take(self.partition.acknowledge(self.requests, member_id, said, self.now))
        return self.requests

    def tick(self, now: int) -> None:
        self.now = Millis(now)
        deadline = self.partition.next_deadline()
        if deadline is not None and deadline <= now:
            self.take(self.partition.tick(self.now))

    def take(self, effects: list[Effect]) -> None:
        self.told(effects)
        for effect in effects:
            match effect:
                case Write():
                    assert not self.held
                    self.held.append(effect)
                case Acknowledged():
                    assert effect.request_id in self.waiting, effect
                    self.waiting.remove(effect.request_id)
                case Available():
                    pass
                case DeadLetters():
                    self.letters.append(effect)
        if self.held and not self.hold:
            self.write()
        if self.letters and not self.holds_letters:
            self.write_letters()

    def write_letters(self, *, is_done: bool = True) -> None:
        """The first dead letters on their way arrive in the queue, or are given up."""
        letters = self.letters.popleft()
        if is_done:
            self.queue += range(letters.first_offset, letters.last_offset + 1)
        self.take(self.partition.dead_letters_written(letters.first_offset, letters.last_offset))

    def write(self, error_code: ErrorCode = ErrorCode.NONE, *, is_done: bool | None = None) -> None:
        """End the pending write with this error; `is_done` if it was done all the same."""
        write = self.held.popleft()
        if error_code is ErrorCode.NONE or is_done:
            command = WriteState(
                key=KEY,
                state_epoch=self.partition.state_epoch,
                leader_epoch=self.leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                batches=write.batches,
            )
            found = self.states.answers[self.states.request(command)]
            if error_code is ErrorCode.NONE:
                error_code = found.error_code
        self.take(self.partition.written(error_code, now=self.now))

    def told(self, effects: list[Effect]) -> None:
        """A hook for subclasses."""

    def check(self) -> None:
        self.partition.validate()
        self.states.check()
        if not self.held:
            assert not self.waiting, self.waiting
