"""The coordinator of the share partitions that belong to one partition of `__share_group_state`.

    coordinator = ShareCoordinator(config)
    for each record of the partition, in order: coordinator.replay(key, value, offset)
    effects = coordinator.loaded(now, timestamp)
    effects = coordinator.step(event, now, timestamp)     # see `events`; a Tick is due at next_deadline()
    effects = coordinator.unload()                        # another broker leads the partition; then drop the object

A partition's leader keeps in memory which member holds which records, and reports outcomes to the coordinator. The
coordinator writes a snapshot first, then updates, and another snapshot after every
`snapshot.update.records.per.snapshot` updates. Two epochs fence stale writers. The state epoch is the group
coordinator's: it rises when a share partition is initialized again (FENCED_STATE_EPOCH). The leader epoch is that of
the last leader that read the state: later writes of an earlier leader are refused (FENCED_LEADER_EPOCH).

Invariants: durable state changes only in `replay`; at most one record per share partition is in flight, and further
requests for that partition queue up; each request is answered exactly once, after its record is durable; within a state
epoch the start offset never falls, and what is done stays done (`batches`).

Records before `prune_offset` are no longer needed: each share partition has a later snapshot. An idle share partition
gets a new snapshot every `cold.partition.snapshot.interval.ms`, so that it does not keep the rest from being pruned.

A failed append must not be in the log. If the shell cannot know, it unloads the coordinator and loads it again.

Read: KIP-932 (durable share-partition state), KIP-1226 (`delivery_complete_count`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from kraftpy.frozen import frozen
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.batches import MAX_INT32, MAX_OFFSET, StateBatch, advance, combine, count_done, merge
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.events import (
    NO_EPOCH,
    NO_OFFSET,
    Append,
    Appended,
    Command,
    Delete,
    Effect,
    Event,
    Initialize,
    Read,
    ReadSummary,
    Reply,
    Request,
    Result,
    Survived,
    Tick,
    TopicsDeleted,
    Write,
)
from kraftpy.share.memory import MAX_BYTES_SETTING, MOST_BATCHES, Room, weight
from kraftpy.share.records import (
    SNAPSHOT,
    UPDATE,
    Record,
    ShareKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    from_batches,
    read_key,
    read_snapshot,
    read_update,
    write_key,
    write_value,
)
from kraftpy.types import Millis

MOST_SNAPSHOTS: Final = 500
"""How many idle share partitions get a new snapshot, or are deleted, before other requests are served."""
LOOKED_AT_ONCE: Final = 10_000
"""How many share partitions are looked at for idle ones before other requests are served."""
_SOON_MS: Final = 10


@frozen
class ShareState:
    """The durable state of one share partition, and the offset of its last snapshot in the log."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    create_timestamp: int
    write_timestamp: int
    snapshot_offset: int = NO_OFFSET
    updates: int = 0
    """The number of updates since the snapshot."""


@frozen
class StateChange:
    """The changes that an update makes to a share partition."""

    leader_epoch: int
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()
    """Combined: in order and disjoint."""


class _Said(NamedTuple):
    """A record with its parsed content."""

    record: Record
    said: ShareState | StateChange | None


@frozen
class _InFlight:
    """A record on its way to the log, and the request to answer once it is durable."""

    key: ShareKey
    said: ShareState | StateChange | None
    """The content of the record; None if it deletes the share partition."""
    request: Request | None


class ShareCoordinator:
    """The coordinator of all share partitions in one partition of `__share_group_state`."""

    def __init__(self, config: ShareCoordinatorConfig, room: Room | None = None) -> None:
        """All coordinators of a broker share one `room`."""
        self.config = config
        self.room = room or Room(config.kraftpy_share_coordinator_max_bytes)
        self._used = 0
        self.states: dict[ShareKey, ShareState] = {}
        self.records_since_pruned = 0
        """How many records were replayed since the last call of `pruned`."""
        self._in_flight: dict[int, _InFlight] = {}
        self._busy: dict[ShareKey, int] = {}
        """The token of the record in flight, for each share partition that has one."""
        self._queues: dict[ShareKey, deque[Request | None]] = {}
        """Requests that wait for a share partition's record in flight; None is the deletion of its topic."""
        self._next_token = 1
        self._is_loaded = False
        self._look_for_cold_at = Millis(0)
        self._cold_left: list[ShareKey] = []
        """The share partitions that remain to be looked at for idle ones."""
        self._doomed: deque[ShareKey] = deque()
        """The share partitions of deleted topics that remain to be deleted."""
        self._delete_doomed_at = Millis(0)

    # ---- loading and unloading

    def replay(
        self, key: Buffer | None, value: Buffer | None, offset: int, parsed: ShareState | StateChange | None = None
    ) -> None:
        """Apply one record of the partition, `parsed` before if that takes long. Raises ProtocolError if it is not in
        Kafka's format."""
        self.records_since_pruned += 1
        found = None if key is None else read_key(key)
        if found is None:
            return
        kind, share_key = found
        if parsed is None and value is not None:
            parsed = _parsed(kind, value)
        if parsed is not None or kind == SNAPSHOT:
            self._apply(share_key, parsed, offset)

    def _apply(self, share_key: ShareKey, said: ShareState | StateChange | None, offset: int) -> None:
        before = self._weight(share_key)
        self._replay(share_key, said, offset)
        growth = self._weight(share_key) - before
        self._used += growth
        self.room.used += growth

    def _weight(self, key: ShareKey) -> int:
        state = self.states.get(key)
        return 0 if state is None else weight(key.group_id, len(state.batches))

    def _replay(self, share_key: ShareKey, said: ShareState | StateChange | None, offset: int) -> None:
        match said:
            case ShareState():
                self.states[share_key] = replace(said, snapshot_offset=offset)
            case StateChange() if share_key in self.states:  # else its snapshot was pruned and a later one follows
                self.states[share_key] = _updated(self.states[share_key], said)
            case None:
                self.states.pop(share_key, None)

    def loaded(self, now: Millis, timestamp: Millis) -> list[Effect]:
        """Start work once the whole partition has been replayed."""
        self._is_loaded = True
        self._look_for_cold_at = Millis(now + self.config.cold_partition_snapshot_interval_ms)
        return []

    def unload(self) -> list[Effect]:
        """Tell waiting clients to look for the new coordinator. Drop the object afterwards."""
        self.room.used -= self._used
        self._used = 0
        moved = Result(error_code=ErrorCode.NOT_COORDINATOR)
        waiting = [each.request for each in self._in_flight.values()]
        waiting += [request for queue in self._queues.values() for request in queue]
        return [Reply(request_id=request.request_id, result=moved) for request in waiting if request is not None]

    # ---- the machine

    @property
    def is_loaded(self) -> bool:
        """True if the whole partition has been replayed."""
        return self._is_loaded

    @property
    def prune_offset(self) -> int | None:
        """The offset before which no record is needed; None before `loaded`, or if there is no state at all."""
        if not self._is_loaded or not self.states:
            return None
        return min(state.snapshot_offset for state in self.states.values())

    def pruned(self) -> None:
        """Note that the records before `prune_offset` were deleted."""
        self.records_since_pruned = 0

    def next_deadline(self) -> Millis | None:
        """Return when the next Tick is due, on the clock of `now`; None before `loaded`."""
        if not self._is_loaded:
            return None
        return min(self._look_for_cold_at, self._delete_doomed_at) if self._doomed else self._look_for_cold_at

    def step(self, event: Event, now: Millis, timestamp: Millis) -> list[Effect]:
        """Handle an event and return its effects, in order."""
        effects: list[Effect] = []
        match event:
            case Request():
                self._request(event, effects, timestamp)
            case Appended():
                self._appended(event, effects, timestamp)
            case TopicsDeleted():
                doomed = [key for key in self.states if key.topic_id in event.topic_ids]
                self._doomed.extend(sorted(doomed) if len(doomed) <= MOST_SNAPSHOTS else doomed)
                self._delete_doomed_at = now
            case Tick():
                pass
            case _:
                assert_never(event)
        if self._doomed and now >= self._delete_doomed_at:
            self._delete_doomed_at = Millis(now + _SOON_MS)
            for _ in range(min(MOST_SNAPSHOTS, len(self._doomed))):
                self._enqueue(self._doomed.popleft(), None, effects, timestamp)
        if self._is_loaded and now >= self._look_for_cold_at:
            self._look_for_cold_at = Millis(now + self.config.cold_partition_snapshot_interval_ms)
            self._snapshot_cold(effects, now, timestamp)
        return effects

    def _request(self, event: Request, effects: list[Effect], timestamp: Millis) -> None:
        if not self._is_loaded:
            refusal = Result(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            effects.append(Reply(request_id=event.request_id, result=refusal))
            return
        self._enqueue(event.command.key, event, effects, timestamp)

    def _enqueue(self, key: ShareKey, request: Request | None, effects: list[Effect], timestamp: Millis) -> None:
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(request)
        elif self._is_busy(key):
            self._queues[key] = deque((request,))
        else:
            self._decide(key, request, effects, timestamp)

    def _is_busy(self, key: ShareKey) -> bool:
        return key in self._busy

    def _decide(self, key: ShareKey, request: Request | None, effects: list[Effect], timestamp: Millis) -> None:
        """Decide one request. An unexpected error fails only this request: nothing changes before the decision."""
        try:
            self._decide_now(key, request, effects, timestamp)
        except Exception as error:
            kind = "deletion with the topic" if request is None else type(request.command).__name__
            effects.append(Survived(kind=kind, name=key.group_id, error=error))
            if request is not None:
                refusal = Result(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
                effects.append(Reply(request_id=request.request_id, result=refusal))

    def _decide_now(self, key: ShareKey, request: Request | None, effects: list[Effect], timestamp: Millis) -> None:
        state = self.states.get(key)
        if request is None:
            if state is not None:
                self._append(key, _Said(_tombstone(key), None), None, effects)
            return
        refusal = _refusal(request.command, state) or self._without_room(request.command, state)
        if refusal is not None:
            effects.append(Reply(request_id=request.request_id, result=refusal))
            return
        said = self._record(request.command, state, timestamp)
        if said is None:
            effects.append(Reply(request_id=request.request_id, result=_result(request.command, state)))
        else:
            self._append(key, said, request, effects)

    def _without_room(self, command: Command, state: ShareState | None) -> Result | None:
        """Return a refusal if a command needs more memory than there is, else None."""
        match command:
            case Initialize() if state is None and not self.room.has(weight(command.key.group_id, 0)):
                setting = f"{MAX_BYTES_SETTING}={self.room.max_bytes}"
                self.room.refused(f"a share partition ({setting}) of group {command.key.group_id}")
                return Result(error_code=ErrorCode.POLICY_VIOLATION, error_message=f"Memory limit reached: {setting}.")
            case Write() if state is not None and len(state.batches) + len(command.batches) > MOST_BATCHES:
                message = f"A share partition can have at most {MOST_BATCHES} batches."
                return Result(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        return None

    def _append(self, key: ShareKey, said: _Said, request: Request | None, effects: list[Effect]) -> None:
        token, self._next_token = self._next_token, self._next_token + 1
        self._in_flight[token] = _InFlight(key=key, said=said.said, request=request)
        self._busy[key] = token
        effects.append(Append(record=said.record, token=token))

    def _appended(self, event: Appended, effects: list[Effect], timestamp: Millis) -> None:
        done = self._in_flight.pop(event.token)
        del self._busy[done.key]
        if event.error_code is ErrorCode.NONE:
            self.records_since_pruned += 1
            self._apply(done.key, done.said, event.offset)  # as if it were replayed, but not parsed again
            result = None if done.request is None else _result(done.request.command, self.states.get(done.key))
        else:
            result = Result(error_code=_client_error(event.error_code))
        if done.request is not None:
            assert result is not None
            effects.append(Reply(request_id=done.request.request_id, result=result))
        queue = self._queues.get(done.key)
        while queue and not self._is_busy(done.key):
            self._decide(done.key, queue.popleft(), effects, timestamp)
        if queue is not None and not queue:
            del self._queues[done.key]

    # ---- deciding

    def _record(self, command: Command, state: ShareState | None, timestamp: Millis) -> _Said | None:
        """Return the record to write for an accepted command, or None if it changes nothing."""
        match command:
            case Initialize():
                if state is not None and state.state_epoch == command.state_epoch:
                    return None  # a retry
                begun = ShareState(
                    snapshot_epoch=0 if state is None else _next_snapshot_epoch(state),
                    state_epoch=command.state_epoch,
                    leader_epoch=NO_EPOCH if state is None else state.leader_epoch,
                    start_offset=command.start_offset,
                    delivery_complete_count=-1 if command.start_offset == NO_OFFSET else 0,
                    batches=(),
                    create_timestamp=timestamp,
                    write_timestamp=timestamp,
                )
                return _snapshot(command.key, begun)
            case Read():
                assert state is not None
                if command.leader_epoch <= state.leader_epoch:
                    return None
                change = StateChange(leader_epoch=command.leader_epoch)
                return self._changed(command.key, state, change, timestamp)
            case Write():
                assert state is not None
                change = StateChange(
                    leader_epoch=state.leader_epoch,
                    start_offset=command.start_offset,
                    delivery_complete_count=command.delivery_complete_count,
                    batches=tuple(combine((), command.batches)),
                )
                return self._changed(command.key, state, change, timestamp)
            case Delete():
                return None if state is None else _Said(_tombstone(command.key), None)
            case ReadSummary():
                return None
            case _:
                assert_never(command)

    def _changed(self, key: ShareKey, state: ShareState, change: StateChange, timestamp: Millis) -> _Said:
        """Return the update or, after enough updates, a snapshot that includes it."""
        if state.updates < self.config.snapshot_update_records_per_snapshot:
            value = ShareUpdateValue(
                snapshot_epoch=state.snapshot_epoch,
                leader_epoch=change.leader_epoch,
                start_offset=change.start_offset,
                delivery_complete_count=change.delivery_complete_count,
                state_batches=[],
            )
            return _Said((write_key(UPDATE, key), write_value(value, change.batches)), change)
        changed = _updated(state, change)
        snapshot_epoch = _next_snapshot_epoch(state)
        return _snapshot(
            key,
            replace(changed, snapshot_epoch=snapshot_epoch, create_timestamp=timestamp, write_timestamp=timestamp),
        )

    def _snapshot_cold(self, effects: list[Effect], now: Millis, timestamp: Millis) -> None:
        """Write new snapshots for idle share partitions whose old ones keep most of the log from being pruned."""
        if not self._cold_left:
            if self.records_since_pruned <= 2 * len(self.states):
                return
            self._cold_left = list(self.states)
        interval_ms = self.config.cold_partition_snapshot_interval_ms
        cold: list[ShareKey] = []
        looked_at = batches = 0
        while self._cold_left and looked_at < LOOKED_AT_ONCE and len(cold) < MOST_SNAPSHOTS and batches < MOST_BATCHES:
            looked_at += 1
            state = self.states.get(key := self._cold_left.pop())
            if state is None or self._is_busy(key) or timestamp - state.write_timestamp < interval_ms:
                continue
            cold.append(key)
            batches += len(state.batches)
        for key in sorted(cold):
            state = self.states[key]
            try:
                again = replace(state, snapshot_epoch=_next_snapshot_epoch(state), write_timestamp=timestamp)
                self._append(key, _snapshot(key, again), None, effects)
            except Exception as error:
                effects.append(Survived(kind="snapshot", name=key.group_id, error=error))
        if self._cold_left:
            self._look_for_cold_at = Millis(now + _SOON_MS)

    # ---- for tests and simulations

    def durable(self) -> dict[ShareKey, ShareState]:
        """Return what the log says. A fresh coordinator that replayed the log returns the same."""
        return dict(sorted(self.states.items()))

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations, between steps."""
        on_the_way = [each.key for each in self._in_flight.values()]
        assert len(set(on_the_way)) == len(on_the_way), on_the_way
        assert self._busy == {each.key: token for token, each in self._in_flight.items()}
        assert self._used == sum(map(self._weight, self.states)), self._used
        assert set(self._queues) <= set(on_the_way), self._queues
        assert all(self._queues.values()), self._queues
        for state in self.states.values():
            assert combine((), state.batches, max(0, state.start_offset)) == list(state.batches), state
            assert advance(state.start_offset, state.batches)[0] == state.start_offset, state


def _refusal(command: Command, state: ShareState | None) -> Result | None:
    """Return why a command is refused, or None."""
    out_of_range = _out_of_range(command)
    if out_of_range is not None:
        return Result(error_code=ErrorCode.INVALID_REQUEST, error_message=out_of_range)
    match command:
        case Initialize() if state is not None and command.state_epoch < state.state_epoch:
            return _fenced(ErrorCode.FENCED_STATE_EPOCH, "state", state.state_epoch, command.state_epoch)
        case Read() | Write() if state is None:
            message = "the share partition has not been initialized by the group coordinator"
            return Result(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        case Read() | Write() if state is not None and command.leader_epoch < state.leader_epoch:
            return _fenced(ErrorCode.FENCED_LEADER_EPOCH, "leader", state.leader_epoch, command.leader_epoch)
        case Write() if state is not None and command.state_epoch != state.state_epoch:
            return _fenced(ErrorCode.FENCED_STATE_EPOCH, "state", state.state_epoch, command.state_epoch)
    return None


def _out_of_range(command: Command) -> str | None:
    """Describe an epoch or offset too large to be followed by another; None if all are fine."""
    match command:
        case Initialize(state_epoch=epoch) if epoch >= MAX_INT32:
            return f"state epoch {epoch} is out of range"
        case Read(leader_epoch=epoch) | Write(leader_epoch=epoch) if epoch >= MAX_INT32:
            return f"leader epoch {epoch} is out of range"
        case Write(batches=batches) if any(each.last_offset >= MAX_OFFSET for each in batches):
            return f"offset {MAX_OFFSET} is out of range"
    return None


def _next_snapshot_epoch(state: ShareState) -> int:
    """Return the next snapshot epoch, capped at the largest int32: only readers of the log tell snapshots by it."""
    return min(state.snapshot_epoch + 1, MAX_INT32)


def _fenced(error_code: ErrorCode, which: str, known: int, said: int) -> Result:
    return Result(error_code=error_code, error_message=f"the {which} epoch is {known}, not {said}")


def _result(command: Command, state: ShareState | None) -> Result:
    match command:
        case Read():
            assert state is not None
            return Result(state_epoch=state.state_epoch, start_offset=state.start_offset, batches=state.batches)
        case ReadSummary() if state is not None:
            return Result(
                state_epoch=state.state_epoch,
                leader_epoch=state.leader_epoch,
                start_offset=state.start_offset,
                delivery_complete_count=state.delivery_complete_count,
            )
    return Result()


def parse(key: Buffer | None, value: Buffer | None) -> ShareState | StateChange | None:
    """Parse the value of a record, for `ShareCoordinator.replay`. Raises ProtocolError."""
    found = None if key is None else read_key(key)
    return None if found is None or value is None else _parsed(found[0], value)


def _parsed(kind: int, value: Buffer) -> ShareState | StateChange:
    return _from_snapshot(read_snapshot(value)) if kind == SNAPSHOT else _change_of(read_update(value))


def _from_snapshot(value: ShareSnapshotValue) -> ShareState:
    combined = combine((), from_batches(value.state_batches), max(0, value.start_offset))
    start_offset, batches = advance(value.start_offset, combined)
    return ShareState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=tuple(batches),
        create_timestamp=value.create_timestamp,
        write_timestamp=value.write_timestamp,
    )


def _change_of(value: ShareUpdateValue) -> StateChange:
    return StateChange(
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=tuple(combine((), from_batches(value.state_batches))),
    )


def _updated(state: ShareState, value: StateChange) -> ShareState:
    said_start = max(state.start_offset, value.start_offset)
    merged = merge(state.batches, value.batches, max(0, said_start))
    start_offset, batches = advance(said_start, merged)
    done = count_done(batches)
    is_counted = value.delivery_complete_count >= 0 or state.delivery_complete_count >= 0
    return replace(
        state,
        leader_epoch=max(state.leader_epoch, value.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=done if is_counted else -1,
        batches=tuple(batches),
        updates=state.updates + 1,
    )


def _snapshot(key: ShareKey, state: ShareState) -> _Said:
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_timestamp,
        write_timestamp=state.write_timestamp,
        state_batches=[],
    )
    return _Said((write_key(SNAPSHOT, key), write_value(value, state.batches)), replace(state, updates=0))


def _tombstone(key: ShareKey) -> Record:
    return write_key(SNAPSHOT, key), None


def _client_error(error_code: ErrorCode) -> ErrorCode:
    """Translate the error of the coordinator's own append into one that makes callers look for the coordinator."""
    match error_code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR
