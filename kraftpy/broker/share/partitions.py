"""The share partitions of this broker, for the partitions that it leads and that a share group fetches from it.

Each is the state machine of `share.partition`. A group's first fetch creates it, and its state is loaded from its share
coordinator. It is dropped when the leadership ends, when the group's last session here ends, or when the coordinator
fences it; the next leader or member loads the state again. A state that the group coordinator changed while the group
had no members is thus found by the next member.

An unexpected error in a share partition fails the requests in progress: the partition is unloaded, waiting clients get
the error, and the next fetch loads its state again.

A group that has never read the partition begins where `share.auto.offset.reset` says. That offset is written before
anything is handed out, so that the next leader begins at the same place.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import assert_never

from kraftpy.broker.containment import Tasks
from kraftpy.broker.replication.log_search import search_timestamp
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.replication.replicas import Replicas
from kraftpy.broker.share.coordinator_client import ShareStates
from kraftpy.broker.share.dead_letters import DeadLetterQueues
from kraftpy.broker.slicing import in_slices
from kraftpy.broker.waiting import Watch, wake_all
from kraftpy.config.group import GroupSettings, duration_ms
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.share.acknowledgements import Acknowledgement
from kraftpy.share.config import SharePartitionConfig
from kraftpy.share.effects import Acquired, Available, DeadLetters, Effect, Reply, Write
from kraftpy.share.events import NO_OFFSET
from kraftpy.share.partition import SharePartition
from kraftpy.share.records import ShareKey
from kraftpy.types import Millis

logger = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_RELEASED_AT_ONCE = 500
"""How many share partitions are looked at in one go for what a member holds."""
_SHOWN_CHARACTERS = 100
_NOT_LED = ErrorCode.NOT_LEADER_OR_FOLLOWER


class HeldPartition:
    """A share partition, the replica it reads from, and the requests that wait for it."""

    def __init__(self, key: ShareKey, replica: Replica, machine: SharePartition) -> None:
        self.key = key
        self.replica = replica
        self.leadership = replica.leadership
        self.leader_epoch = replica.leader_epoch
        self.machine = machine
        self.is_loaded = False
        self.error: KafkaError | None = None
        """Why the last load failed; after a pause it is tried again."""
        self.watches: dict[Watch, None] = {}
        """Fetches that wait for records to become available."""
        self.waiting: dict[int, asyncio.Future[Reply]] = {}
        """Acknowledgements that are not written yet."""
        self.loading: asyncio.Task[None] | None = None
        self.letters: deque[DeadLetters] = deque()
        """The ranges to write to the dead letter queue, in order."""
        self.burying: asyncio.Task[None] | None = None
        """Writes them."""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = Millis(0)

    @property
    def is_led(self) -> bool:
        """True if this broker has led the partition without interruption."""
        return self.replica.leading is not None and self.replica.leadership == self.leadership


class SharePartitions:
    """Every share partition served by this broker."""

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        replicas: Replicas,
        states: ShareStates,
        queues: DeadLetterQueues,
        settings: Callable[[str], GroupSettings],
        has_members: Callable[[str], bool],
    ) -> None:
        """`has_members`: whether any member of the group has a session on this broker."""
        self._has_members = has_members
        self._clock = clock
        self._tasks = tasks
        self._replicas = replicas
        self._states = states
        self._queues = queues
        self._settings = settings
        self._held: dict[ShareKey, HeldPartition] = {}
        self._request_ids = itertools.count(1)
        self._is_stopped = False
        self._leaving: dict[str, set[str]] = {}
        """The members, by group, whose sessions have ended, and of whom nothing is released yet."""
        self._left: dict[str, set[str]] = {}
        """Those of whom all is being released."""
        self._releasing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldPartition]:
        return iter(list(self._held.values()))

    # --- creating and dropping ---------------------------------------------------------------

    def get(self, key: ShareKey) -> HeldPartition:
        """Return the share partition, perhaps still loading. Raises KafkaError as `Replicas.leader_by_id` does."""
        held = self._held.get(key)
        if held is not None and (not held.is_led or held.machine.is_fenced):
            self._drop(held, _NOT_LED)
            held = None
        if held is None:
            if self._is_stopped:
                raise KafkaError(_NOT_LED, "the broker is shutting down")
            replica = self._replicas.leader_by_id(key.topic_id, key.partition)
            held = self._held[key] = HeldPartition(key, replica, SharePartition(self._config_of(key.group_id)))
            held.loading = self._tasks.create_task(self._load(held), name=f"load share {key.group_id!r}")
        held.machine.config = self._config_of(key.group_id)
        return held

    def find(self, key: ShareKey) -> HeldPartition | None:
        """Return the share partition, if it is served here at the moment."""
        held = self._held.get(key)
        return held if held is not None and held.is_led else None

    def lock_duration_ms(self, group_id: str) -> int:
        """Return how long the group's members may hold the records they acquire."""
        return self._settings(group_id).share_record_lock_duration_ms

    def reconcile(self) -> None:
        """Drop share partitions that this broker no longer leads."""
        for held in list(self._held.values()):
            if not held.is_led:
                self._drop(held, _NOT_LED)

    def stop(self) -> None:
        """Drop everything for good; waiting clients are sent to look for the new leader."""
        self._is_stopped = True
        for held in list(self._held.values()):
            self._drop(held, _NOT_LED)

    def _drop(self, held: HeldPartition, error_code: ErrorCode) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]
        if held.loading is not None:
            held.loading.cancel()
        if held.burying is not None:
            held.burying.cancel()  # the next leader, or the next fetch, continues with archiving records
        if held.timer is not None:
            held.timer.cancel()
        try:
            self._run(held, held.machine.unload(error_code))
        except Exception as error:
            self._tasks.survive("dropping a share partition", error)
        waiting, held.waiting = held.waiting, {}
        for request_id, answer in waiting.items():
            if not answer.done():
                answer.set_result(Reply(request_id=request_id, error_code=error_code))
        wake_all(held.watches)

    def failed(self, held: HeldPartition, doing: str, error: Exception) -> None:
        """Drop the share partition after an unexpected error. Raises the error if it is one that ends the node."""
        group_id = held.key.group_id[:_SHOWN_CHARACTERS]
        what = f"{doing} of {held.replica.topic_partition} in share group {group_id!r}"
        self._tasks.survive(what, error, kind=f"share partition: {doing}")
        self._drop(held, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _step(self, held: HeldPartition, doing: str, step: Callable[[], Sequence[Effect]]) -> None:
        """Run one step of the machine and carry out its effects."""
        try:
            self._run(held, step())
        except Exception as error:
            self.failed(held, doing, error)

    def _config_of(self, group_id: str) -> SharePartitionConfig:
        settings = self._settings(group_id)
        return SharePartitionConfig(
            delivery_count_limit=settings.share_delivery_count_limit,
            partition_max_record_locks=settings.share_partition_max_record_locks,
            record_lock_duration_ms=settings.share_record_lock_duration_ms,
            renew_acknowledge_enable=settings.share_renew_acknowledge_enable,
            has_dead_letters=self._queues.has_queue(group_id),
        )

    # --- loading -----------------------------------------------------------------------------

    async def _load(self, held: HeldPartition) -> None:
        """Load the state, and retry until that succeeds or this broker no longer leads."""
        pause_s = _RETRY_PAUSE_S
        while held.is_led:
            try:
                await self._load_once(held)
                return
            except KafkaError as error:
                logger.info("%s of group %s: %s", held.replica.topic_partition, held.key.group_id, error)
                held.error = error
                if error.code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
                    break
            except Exception as error:
                self._tasks.survive("loading a share partition", error)
                held.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "cannot load the share partition")
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            await asyncio.sleep(pause_s)
        held.loading = None
        self._drop(held, _NOT_LED)

    async def _load_once(self, held: HeldPartition) -> None:
        """Load the state once. Raises KafkaError if it is not available now."""
        found = await self._states.read(held.key, held.leader_epoch)
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(found.error_code, found.error_message or "cannot read the share-partition state")
        replica = held.replica
        is_first = found.start_offset == NO_OFFSET
        start_offset = await self._first_offset(held) if is_first else found.start_offset
        machine = SharePartition(self._config_of(held.key.group_id), state_epoch=found.state_epoch)
        machine.loaded(
            start_offset,
            found.batches,
            log_start_offset=replica.log_start_offset,
            log_end_offset=replica.log_end_offset,
        )
        if is_first:
            (begun,) = machine.save()
            assert isinstance(begun, Write)
            written = await self._states.write(held.key, found.state_epoch, held.leader_epoch, begun)
            machine.written(written.error_code, now=self._clock.monotonic_ms())
            if written.error_code != ErrorCode.NONE:
                raise KafkaError(written.error_code, written.error_message or "cannot write the start offset")
        held.machine, held.is_loaded, held.error, held.loading = machine, True, None, None
        self._step(held, "loading", machine.resume_dead_letters)
        wake_all(held.watches)

    async def _first_offset(self, held: HeldPartition) -> int:
        """Return the offset from which a group that has never read the partition begins."""
        replica, reset = held.replica, self._settings(held.key.group_id).share_auto_offset_reset
        if reset == "earliest":
            return replica.log_start_offset
        if reset == "latest":
            return replica.high_watermark
        since = self._clock.now() - duration_ms(reset.partition(":")[2])
        if since <= 0:
            return replica.log_start_offset
        search = search_timestamp(replica, Millis(since), replica.high_watermark)
        found = await self._replicas.decoding.carry_out(search)
        return replica.high_watermark if found is None else found.offset

    # --- the loop around the machines --------------------------------------------------------

    def acknowledge(
        self, held: HeldPartition, member_id: str, said: Sequence[Acknowledgement]
    ) -> asyncio.Future[Reply]:
        """Acknowledge records. The reply comes once that is written."""
        request_id = next(self._request_ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        held.waiting[request_id] = answer
        held.machine.config = self._config_of(held.key.group_id)
        now = self._clock.monotonic_ms()
        self._step(held, "an acknowledgement", lambda: held.machine.acknowledge(request_id, member_id, said, now))
        return answer

    def release(self, group_id: str, member_id: str) -> None:
        """Release everything a member holds: its session has ended. Many share partitions are looked at in slices."""
        if self._releasing is None and len(self._held) <= _RELEASED_AT_ONCE:
            self._release(list(self._held.values()), {group_id: {member_id}})
            return
        self._leaving.setdefault(group_id, set()).add(member_id)
        if self._releasing is None:
            self._releasing = self._tasks.create_task(self._release_in_slices(), name="release of share partitions")

    async def released(self, group_id: str) -> None:
        """Return once all is released that members of the group held whose sessions have ended."""
        while self._releasing is not None and (group_id in self._leaving or group_id in self._left):
            await asyncio.wait([self._releasing])

    async def _release_in_slices(self) -> None:
        try:
            while self._leaving:
                self._left, self._leaving = self._leaving, {}
                async for some in in_slices(list(self._held.values()), _RELEASED_AT_ONCE):
                    self._release(some, self._left)
        finally:
            self._left, self._releasing = {}, None

    def _release(self, some: Sequence[HeldPartition], left: Mapping[str, Set[str]]) -> None:
        """Release what those members, by group, hold of these share partitions."""
        for held in some:
            members = left.get(held.key.group_id)
            if members is None or self._held.get(held.key) is not held:
                continue
            for member_id in sorted(held.machine.holders() & members):
                self._step(held, "a release", partial(held.machine.release, member_id))
            self._drop_unneeded(held)

    def _drop_unneeded(self, held: HeldPartition) -> None:
        """Drop the share partition if no member fetches from it any more and all changes are written."""
        is_at_work = held.waiting or held.burying is not None or not held.machine.is_idle
        if not is_at_work and not self._has_members(held.key.group_id):
            self._drop(held, _NOT_LED)

    def acquired(self, held: HeldPartition) -> None:
        """Schedule the expiry of the locks that were just handed out."""
        self._set_timer(held)

    def skipped(self, held: HeldPartition) -> None:
        """Tell the machine that a fetch has acquired none of the records it has read."""
        self._step(held, "skipping", held.machine.save_skipped)

    def give_back(self, held: HeldPartition, member_id: str, acquired: Sequence[Acquired]) -> None:
        """Undo what a fetch has acquired."""
        self._step(held, "giving back", lambda: held.machine.give_back(member_id, acquired))

    def log_start_advanced(self, held: HeldPartition) -> None:
        """Tell the machine that old records were deleted from the log."""
        log_start_offset = held.replica.log_start_offset
        self._step(held, "a new log start", lambda: held.machine.log_start_advanced(log_start_offset))

    def _run(self, held: HeldPartition, effects: Sequence[Effect]) -> None:
        remaining = deque(effects)
        while remaining:
            effect = remaining.popleft()
            match effect:
                case Write():
                    self._tasks.create_task(self._write(held, effect), name=f"share state of {held.key.group_id!r}")
                case Reply():
                    answer = held.waiting.pop(effect.request_id, None)
                    if answer is not None and not answer.done():
                        answer.set_result(effect)
                case Available():
                    wake_all(held.watches)
                case DeadLetters():
                    held.letters.append(effect)
                    if held.burying is None:
                        name = f"dead letters of {held.key.group_id!r}"
                        held.burying = self._tasks.create_task(self._bury(held), name=name)
                case _:
                    assert_never(effect)
        if self._held.get(held.key) is held:
            self._set_timer(held)

    async def _write(self, held: HeldPartition, effect: Write) -> None:
        machine = held.machine
        try:
            found = await self._states.write(held.key, machine.state_epoch, held.leader_epoch, effect)
        except Exception as error:
            self.failed(held, "a write", error)
            return
        if self._held.get(held.key) is not held:
            return  # its waiting requests were answered when it was dropped
        if found.error_code != ErrorCode.NONE:
            logger.warning(
                "%s: cannot write the state of share group %s: %s %s",
                held.replica.topic_partition,
                held.key.group_id,
                found.error_code.name,
                found.error_message or "",
            )
        now = self._clock.monotonic_ms()
        self._step(held, "a write", lambda: machine.written(found.error_code, found.error_message, now=now))
        if machine.is_fenced:
            self._drop(held, _NOT_LED)
        else:
            self._drop_unneeded(held)

    async def _bury(self, held: HeldPartition) -> None:
        """Write the pending ranges to the dead letter queue; records that it cannot take are archived all the same."""
        while held.letters:
            letters = held.letters.popleft()
            first, last = letters.first_offset, letters.last_offset
            try:
                await self._queues.write(held.key.group_id, held.replica, letters)
            except KafkaError as error:
                self._tasks.incidents.complaints.write(
                    logger,
                    logging.ERROR,
                    "dead letters",
                    held.key.group_id[:_SHOWN_CHARACTERS],
                    "share group %.100r: offsets %d to %d of %s are not all in its dead letter queue: %s",
                    held.key.group_id,
                    first,
                    last,
                    held.replica.topic_partition,
                    error,
                )
            except Exception as error:
                self._tasks.survive("writing dead letters", error)
            if self._held.get(held.key) is not held:
                return
            self._step(held, "dead letters", partial(held.machine.dead_letters_written, first, last))
        held.burying = None
        self._drop_unneeded(held)

    def _set_timer(self, held: HeldPartition) -> None:
        """Schedule a tick for when the next lock expires. An earlier timer stays: a spurious tick is harmless."""
        deadline = held.machine.next_deadline()
        if deadline is None:
            return
        if held.timer is not None:
            if held.timer_at <= deadline:
                return
            held.timer.cancel()
        held.timer_at = deadline
        delay_ms = max(0, deadline - self._clock.monotonic_ms())
        held.timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick, held)

    def _tick(self, held: HeldPartition) -> None:
        held.timer = None
        if held.is_led and self._held.get(held.key) is held:
            now = self._clock.monotonic_ms()
            held.machine.config = self._config_of(held.key.group_id)
            self._step(held, "a tick", lambda: held.machine.tick(now))
