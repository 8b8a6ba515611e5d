"""A share partition: one partition of a topic as one share group reads it, at the partition's leader (KIP-932).

    partition = SharePartition(config)
    partition.loaded(state, log_start_offset=..., log_end_offset=...)
    effects = partition.resume_dead_letters()      # continue those that the last leader did not complete
    offset = partition.next_fetch_offset()         # read the log from there
    acquired = partition.acquire(...)              # hand out the available records among those read
    effects = partition.save_skipped()             # if that acquired nothing
    effects = partition.acknowledge(...)           # accept, release, reject, renew, or report a gap
    effects = partition.give_back(...)             # undo an acquisition
    effects = partition.release(member_id)         # the member's session has ended
    effects = partition.tick(now)                  # at next_deadline(): locks expire
    effects = partition.written(error_code)        # the outcome of a Write
    effects = partition.dead_letters_written(...)  # records of a DeadLetters effect are in the queue, or cannot be
    effects = partition.unload(error_code)         # another broker leads; then drop the object

A record is available, acquired by one member for the duration of a lock, and finally acknowledged or archived. Every
delivery is counted: a record that is released, or whose lock expires, or whose member's session ends, on its last
allowed delivery (`share.delivery.count.limit`) is archived.

If the group has a dead letter queue (KIP-1191), records that are rejected, or delivered too often, go through the state
archiving: the state is written, then the records are written to the queue, and then they are archived, even if the
write to the queue failed. If the leader changes meanwhile, the next leader writes them to the queue again.

Invariants: no two members hold a record at the same time; a finished record is never handed out again; an
acknowledgement is answered, and takes effect, only after it is written: if the write fails, the member holds the record
as before; one Write is in flight at a time, and later changes go into the next one; at most
`share.partition.max.record.locks` records are between the start offset and the end.

A record that crashes its consumers also costs deliveries of the records fetched with it, since no one reports which
record it was. So from half the delivery limit on, fewer records are delivered at a time: half of those delivered that
often, then a quarter, and each one alone on its last delivery. Nothing else is handed out with them.

Acquisitions are not stored: after a failover these records are available again, with the last written delivery count.
Expired locks and ended sessions are written too, but nothing waits for that write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.acknowledgements import Acknowledgement, AcknowledgeType, BadAcknowledgement, check
from kraftpy.share.batches import MAX_INT32, DeliveryState, StateBatch, advance, combine
from kraftpy.share.config import SharePartitionConfig
from kraftpy.share.effects import Acquired, Available, DeadLetters, Effect, Reply, Stretch, Write
from kraftpy.share.in_flight import NOBODY, GivenUp, InFlight, Run
from kraftpy.types import Millis

FENCED = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
)
"""After these errors the coordinator accepts no more writes from here: the state, if any, has to be read again."""

_RETRY_MS = 1_000
"""The time after which a failed write that dead letters wait for is repeated, unless another write comes first."""


@dataclass(slots=True)
class _PendingWrite:
    """The contents of one write, and the acknowledgements that wait for it."""

    number: int
    batches: list[StateBatch] = field(default_factory=list)
    """Changes that have already taken effect, whether or not the write succeeds."""
    requests: list[int] = field(default_factory=list)


class SharePartition:
    """The records of a partition, as one share group sees them."""

    def __init__(self, config: SharePartitionConfig, *, state_epoch: int = 0) -> None:
        self.config = config
        """May be replaced at any time."""
        self.state_epoch = state_epoch
        self.is_fenced = False
        """True if the coordinator has stopped accepting writes from here."""
        self.records = InFlight(0)
        self._next = _PendingWrite(1)
        self._writing: _PendingWrite | None = None
        self._retry_at: Millis | None = None

    def loaded(
        self, start_offset: int, batches: Sequence[StateBatch], *, log_start_offset: int, log_end_offset: int
    ) -> None:
        """Restore the coordinator's state, limited to the offsets that the log has."""
        start_offset = min(max(start_offset, log_start_offset), log_end_offset)
        known = [
            each._replace(last_offset=min(each.last_offset, log_end_offset - 1))
            for each in combine((), batches, start_offset)
            if each.first_offset < log_end_offset
        ]
        start_offset, known = advance(start_offset, known)
        self.records = InFlight(start_offset)
        self.records.fill(known)
        self.records.consolidate()

    # ---- position

    @property
    def start_offset(self) -> int:
        """The first offset that is not done (Kafka's SPSO)."""
        return self.records.start_offset

    @property
    def end_offset(self) -> int:
        """One past the last offset that was acquired or skipped (Kafka's SPEO is one less)."""
        return self.records.end_offset

    @property
    def has_room(self) -> bool:
        """True if records past the end may be handed out."""
        return len(self.records) < self.config.partition_max_record_locks

    @property
    def delivery_complete_count(self) -> int:
        """Offsets from the start on that are done, or will be once the write in flight succeeds (KIP-1226).

        Capped at the largest int32.
        """
        done = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)
        return min(MAX_INT32, sum(len(run) for run in self.records if (run.target or run.state) in done))

    @property
    def is_idle(self) -> bool:
        """True if no write is in flight."""
        return self._writing is None

    def next_fetch_offset(self) -> int | None:
        """Return the first offset that may be handed out; None if nothing can be until something else happens."""
        if self.is_fenced:
            return None
        for run in self.records:
            if run.is_available:
                return run.first
        return self.end_offset if self.has_room else None

    def next_deadline(self) -> Millis | None:
        """Return when the next lock expires, or a failed write is to be repeated; None if nothing is to come."""
        locks = [run.deadline for run in self.records if run.is_locked]
        return min(locks if self._retry_at is None else [*locks, self._retry_at], default=None)

    # ---- acquiring

    def acquire(
        self,
        member_id: str,
        stretches: Iterable[Stretch],
        *,
        fetch_offset: int,
        max_records: int,
        batch_size: int,
        is_record_limit: bool,
        now: Millis,
    ) -> list[Acquired]:
        """Hand out available records from those read at `fetch_offset` and after, in log order.

        With `is_record_limit` (KIP-1206), `max_records` is never exceeded; otherwise the batch that reaches it is
        handed out in full. The result comes in pieces of about `batch_size` records, each ending where a batch does.
        """
        acquisition = _Acquisition(self, member_id, now, max_records, batch_size, is_record_limit=is_record_limit)
        position = max(fetch_offset, self.start_offset)
        if self.is_fenced or max_records <= 0:
            return []
        for stretch in stretches:
            first = max(stretch.first_offset, position)
            if first > stretch.last_offset:
                continue
            if first > position:
                self._skip(position, first - 1)
            position = stretch.last_offset + 1
            if not stretch.has_records:
                self._skip(first, stretch.last_offset)
            elif not acquisition.take(first, stretch.last_offset):
                break
        self.records.consolidate()
        return acquisition.acquired

    def _skip(self, first: int, last: int) -> None:
        """Archive what was still to be delivered at these offsets: there are no records."""
        known = max(first, self.start_offset), min(last, self.end_offset - 1)
        for run in self.records.split_out(*known) if known[0] <= known[1] else ():
            if run.is_available:
                self._archive(run)
                run.is_gap = True
        if first <= self.end_offset <= last:
            run = self.records.append(last, DeliveryState.ARCHIVED, 0)
            run.is_gap = True
            self._report(run)

    def _archive(self, run: Run) -> None:
        run.become(DeliveryState.ARCHIVED, run.count)
        self._report(run)

    def _give_up(self, run: Run) -> None:
        """Archive records that were delivered too often, perhaps through the dead letter queue."""
        if not self.config.has_dead_letters:
            self._archive(run)
            return
        run.become(DeliveryState.ARCHIVING, run.count, GivenUp.DELIVERED_TOO_OFTEN)
        run.told = self._next.number
        self._report(run)

    def _report(self, run: Run) -> None:
        """Report the run's state to the coordinator with the next write."""
        self._next.batches.append(StateBatch(run.first, run.last, run.state, run.count))

    def _lock(self, run: Run, member_id: str, now: Millis) -> None:
        run.become(DeliveryState.ACQUIRED, run.count + 1)
        run.member_id = member_id
        run.deadline = self._deadline(now)

    def _deadline(self, now: Millis) -> Millis:
        return Millis(now + self.config.record_lock_duration_ms)

    # ---- acknowledging and releasing

    def acknowledge(
        self, request_id: int, member_id: str, acknowledgements: Sequence[Acknowledgement], now: Millis
    ) -> list[Effect]:
        """Apply all acknowledgements of a member for this partition, or none of them if any is invalid.

        Refused with INVALID_REQUEST if they are malformed, and INVALID_RECORD_STATE if the member does not hold the
        records, or no longer does. Acknowledgements before the start offset are ignored.
        """
        try:
            said = check(acknowledgements)
            for each in said:
                self._check_owned(each, member_id)
        except BadAcknowledgement as bad:
            return [Reply(request_id=request_id, error_code=bad.error_code, message=str(bad))]
        needs_write = False
        for each in said:
            first = max(each.first_offset, self.start_offset)
            for run in self.records.split_out(first, each.last_offset) if first <= each.last_offset else ():
                if each.type is AcknowledgeType.RENEW:
                    run.deadline = self._deadline(now)
                else:
                    run.target, run.cause = self._target(each.type, run)
                    run.write = self._next.number
                    needs_write = True
        if not needs_write:
            self.records.consolidate()
            return [Reply(request_id=request_id)]
        self._next.requests.append(request_id)
        return self._write_if_idle()

    def _check_owned(self, said: Acknowledgement, member_id: str) -> None:
        first = max(said.first_offset, self.start_offset)
        if first > said.last_offset:
            return
        if said.last_offset >= self.end_offset:
            raise BadAcknowledgement(
                ErrorCode.INVALID_REQUEST,
                f"no record was delivered from {self.end_offset} on",
            )
        for run in self.records.between(first, said.last_offset):
            if not run.is_locked or run.member_id != member_id:
                raise BadAcknowledgement(
                    ErrorCode.INVALID_RECORD_STATE, f"offset {max(run.first, first)} is not acquired by this member"
                )
            if said.type is AcknowledgeType.RENEW and not self.config.renew_acknowledge_enable:
                raise BadAcknowledgement(
                    ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group."
                )

    def _target(self, kind: AcknowledgeType, run: Run) -> tuple[DeliveryState, GivenUp | None]:
        """Return the state that an acknowledgement leads to; if that makes a dead letter, also why it is given up."""
        cause = None
        if kind is AcknowledgeType.ACCEPT:
            return DeliveryState.ACKNOWLEDGED, None
        if kind is AcknowledgeType.RELEASE:
            if not self._is_last_delivery(run):
                return DeliveryState.AVAILABLE, None
            cause = GivenUp.DELIVERED_TOO_OFTEN
        elif kind is AcknowledgeType.REJECT:
            cause = GivenUp.REJECTED
        if cause is not None and self.config.has_dead_letters:
            return DeliveryState.ARCHIVING, cause
        return DeliveryState.ARCHIVED, None

    def _is_last_delivery(self, run: Run) -> bool:
        return run.count >= self.config.delivery_count_limit

    def holders(self) -> set[str]:
        """Return the members that hold records, acknowledged or not."""
        return {run.member_id for run in self.records if run.member_id != NOBODY}

    def release(self, member_id: str) -> list[Effect]:
        """End the member's session: release the records it holds. Its acknowledgements are still written."""
        held = []
        for run in self.records:
            if run.member_id == member_id and run.is_locked:
                held.append(run)
            elif run.member_id == member_id:  # if the write fails, the lock must already have expired
                run.deadline = Millis(0)
        return self._released(held)

    def give_back(self, member_id: str, acquired: Iterable[Acquired]) -> list[Effect]:
        """Count what one fetch acquired as not delivered, if nothing has happened to it since."""
        locked = []
        for each in acquired:
            first = max(each.first_offset, self.start_offset)
            locked += [
                run
                for run in (self.records.split_out(first, each.last_offset) if first <= each.last_offset else ())
                if run.member_id == member_id and run.is_locked and run.count == each.delivery_count
            ]
        return self._not_delivered(locked)

    def _not_delivered(self, runs: Sequence[Run]) -> list[Effect]:
        for run in runs:
            run.become(DeliveryState.AVAILABLE, run.count - 1)
        self.records.consolidate()
        return [Available()] if runs else []

    def tick(self, now: Millis) -> list[Effect]:
        """Release the locks that have expired by now, and repeat a write that dead letters wait for."""
        is_retried = self._retry_at is not None and self._retry_at <= now
        if is_retried:
            self._retry_at = None
        expired = [run for run in self.records if run.is_locked and run.deadline <= now]
        return self._released(expired) or (self._write_if_idle() if is_retried else [])

    def _released(self, runs: Sequence[Run]) -> list[Effect]:
        """Make delivered records available again, or give them up, and have that written."""
        if not runs:
            return []
        for run in runs:
            if self._is_last_delivery(run):
                self._give_up(run)
            else:
                run.become(DeliveryState.AVAILABLE, run.count)
                self._report(run)
        self.records.consolidate()
        return [*self._write_if_idle(), Available()]

    def log_start_advanced(self, log_start_offset: int) -> list[Effect]:
        """Drop everything before the new start of the log."""
        if log_start_offset <= self.start_offset:
            return []
        self.records.drop_before(log_start_offset)
        self.records.consolidate()
        return [Available()]

    # ---- writing

    def save(self) -> list[Effect]:
        """Write all changes that the coordinator does not know yet, including the start offset."""
        return self._write_if_idle()

    def save_skipped(self) -> list[Effect]:
        """Write the start offset if all records are done and only markers followed, or if records were given up.

        Otherwise markers and aborted records at the end of the log would remain a lag that no acknowledgement ends, and
        nothing would write the dead letters.
        """
        is_due = self.start_offset == self.end_offset or any(run.told == self._next.number for run in self.records)
        return self._write_if_idle() if self._next.batches and is_due else []

    def _write_if_idle(self) -> list[Effect]:
        if self._writing is not None or self.is_fenced:
            return []
        said = self._writing = self._next
        self._next = _PendingWrite(said.number + 1)
        batches = list(said.batches)
        for run in self.records:
            if run.write == said.number:
                assert run.target is not None
                batches.append(StateBatch(run.first, run.last, run.target, run.count))
        said.batches = combine((), said.batches, self.start_offset)
        return [
            Write(
                start_offset=self.start_offset,
                delivery_complete_count=self.delivery_complete_count,
                batches=tuple(combine((), batches, self.start_offset)),
            )
        ]

    def written(self, error_code: ErrorCode, message: str | None = None, *, now: Millis) -> list[Effect]:
        """Take the outcome of the write in flight. A write that failed may have taken effect all the same."""
        said = self._writing
        assert said is not None
        self._writing = None
        offered = self.next_fetch_offset()
        is_written = error_code is ErrorCode.NONE
        for run in self.records:
            if run.write != said.number:
                continue
            if is_written:
                assert run.target is not None
                run.become(run.target, run.count, run.cause)
            else:
                run.target, run.write, run.cause = None, 0, None
        for run in self.records:
            if run.told == said.number:
                run.told = 0 if is_written else self._next.number
        if not is_written:
            if any(run.told == self._next.number for run in self.records):
                self._retry_at = Millis(now + _RETRY_MS)
            self._next.batches += said.batches
            self.is_fenced = self.is_fenced or error_code in FENCED
        self.records.consolidate()
        effects: list[Effect] = [
            Reply(request_id=request_id, error_code=_client_error(error_code), message=message)
            for request_id in said.requests
        ]
        if self.is_fenced:
            effects += self._refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._next.requests or (is_written and self._next.batches):
            effects += self._write_if_idle()
        if not is_written:
            effects += self.tick(now)
        effects += self.resume_dead_letters()
        if self.next_fetch_offset() != offered:
            effects.append(Available())
        return effects

    def resume_dead_letters(self) -> list[Effect]:
        """Write archiving records that are not on their way yet to the dead letter queue."""
        effects: list[Effect] = []
        for run in self.records if not self.is_fenced else ():
            if run.is_archiving and not run.told and not run.is_sent:
                run.is_sent = True
                too_often = self._is_last_delivery(run)  # a later leader can only guess the reason
                guess = GivenUp.DELIVERED_TOO_OFTEN if too_often else GivenUp.REJECTED
                effects.append(
                    DeadLetters(
                        first_offset=run.first,
                        last_offset=run.last,
                        delivery_count=run.count,
                        cause=run.cause or guess,
                    )
                )
        return effects

    def dead_letters_written(self, first_offset: int, last_offset: int) -> list[Effect]:
        """Archive records that are in the dead letter queue, or cannot be written to it."""
        first = max(first_offset, self.start_offset)
        sent = [
            run
            for run in (self.records.split_out(first, last_offset) if first <= last_offset else ())
            if run.is_archiving and run.is_sent
        ]
        offered = self.next_fetch_offset()
        for run in sent:
            self._archive(run)
        self.records.consolidate()
        effects = self._write_if_idle() if sent else []
        return [*effects, Available()] if self.next_fetch_offset() != offered else effects

    def unload(self, error_code: ErrorCode) -> list[Effect]:
        """Stop for good, and answer every waiting acknowledgement with the error."""
        self.is_fenced = True
        waiting = self._writing.requests if self._writing is not None else []
        replies: list[Effect] = [Reply(request_id=request_id, error_code=error_code) for request_id in waiting]
        self._writing = None
        return replies + self._refuse_all(error_code)

    def _refuse_all(self, error_code: ErrorCode) -> list[Effect]:
        refused = self._next.requests
        for run in self.records:
            if run.target is not None:
                run.target, run.write, run.cause = None, 0, None
        self._next = _PendingWrite(self._next.number + 1)
        return [Reply(request_id=request_id, error_code=error_code) for request_id in refused]

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations, between steps."""
        self.records.validate()
        for run in self.records:
            assert run.count >= 0, run
            assert run.write in (0, self._next.number, 0 if self._writing is None else self._writing.number), run


class _Acquisition:
    """The progress of one fetch: what it has acquired, and how much more it may."""

    def __init__(
        self,
        partition: SharePartition,
        member_id: str,
        now: Millis,
        max_records: int,
        batch_size: int,
        *,
        is_record_limit: bool,
    ) -> None:
        assert member_id != NOBODY
        self.acquired: list[Acquired] = []
        self._partition = partition
        self._member_id = member_id
        self._now = now
        self._remaining = max_records
        self._room = partition.config.partition_max_record_locks - len(partition.records)
        """How many records may be handed out beyond the end."""
        self._batch_size = None if is_record_limit else batch_size
        self._is_record_limit = is_record_limit
        self._is_throttled = False
        self._limit = partition.config.delivery_count_limit
        self._throttled_from = max(2, (self._limit + 1) // 2)

    def take(self, first: int, last: int) -> bool:
        """Acquire what is available of a batch of the log; return whether the fetch may take more."""
        records = self._partition.records
        for run in records.between(first, min(last, records.end_offset - 1)):
            if not run.is_available:
                continue
            if run.count >= self._limit:  # the limit was lowered since
                self._partition._give_up(run)
            elif not self._take_run(run, max(first, run.first), min(last, run.last), batch_begins_at=first):
                return False
        return self._take_new(max(first, records.end_offset), last) and self._remaining > 0

    def _take_run(self, run: Run, first: int, last: int, *, batch_begins_at: int) -> bool:
        is_suspect = run.count >= self._throttled_from
        is_last_time = is_suspect and run.count == self._limit - 1
        if self.acquired and (is_suspect != self._is_throttled or is_last_time):
            return False
        if is_suspect and not self._is_throttled:
            self._is_throttled = True
            self._remaining = min(self._remaining, 1 if is_last_time else self._most_suspects(run.count))
        count = last - first + 1
        if self._is_record_limit or self._is_throttled:
            count = min(count, self._remaining)
        for part in self._partition.records.split_out(first, first + count - 1):
            self._have(part, batch_begins_at)
        return self._remaining > 0 or not (self._is_record_limit or self._is_throttled)

    def _most_suspects(self, count: int) -> int:
        """Return how many may go at once of records delivered so often that one of them may be to blame."""
        suspects = sum(
            len(run)
            for run in self._partition.records
            if not (run.is_done or run.is_archiving) and run.count - (not run.is_available) >= self._throttled_from
        )
        return max(1, suspects >> (count - self._throttled_from + 1))

    def _take_new(self, first: int, last: int) -> bool:
        """Acquire what was never delivered; return whether all of it was."""
        if first > last:
            return True
        if self._is_throttled:
            return False
        count = min(last - first + 1, self._room)
        if self._is_record_limit:
            count = min(count, self._remaining)
        if count <= 0:
            return False
        run = self._partition.records.append(first + count - 1, DeliveryState.AVAILABLE, 0)
        self._room -= count
        self._have(run, batch_begins_at=first)
        return count == last - first + 1

    def _have(self, run: Run, batch_begins_at: int) -> None:
        self._partition._lock(run, self._member_id, self._now)
        self._remaining -= len(run)
        before = self.acquired[-1] if self.acquired else None
        if (
            before is None
            or before.last_offset + 1 != run.first
            or before.delivery_count != run.count
            or (self._batch_size is not None and run.first == batch_begins_at and before.size >= self._batch_size)
        ):
            self.acquired.append(Acquired(run.first, run.last, run.count))
        else:
            self.acquired[-1] = before._replace(last_offset=run.last)


def _client_error(error_code: ErrorCode) -> ErrorCode:
    """Translate the error of a failed write into the one a member gets."""
    match error_code:
        case ErrorCode.FENCED_LEADER_EPOCH | ErrorCode.FENCED_STATE_EPOCH:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case ErrorCode.INVALID_REQUEST:  # the state no longer exists
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case (
            ErrorCode.NOT_COORDINATOR
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.NETWORK_EXCEPTION
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error_code
