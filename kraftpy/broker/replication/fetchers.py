"""Fetches partitions from their leaders: a task and a connection for each fetcher, many partitions per request.

`replication` decides what to request and how to react to a response (`FetchPlan`, `Follower`); this module sends the
requests and applies the results to the logs. Appends run on the event loop, truncations in threads. A response is
applied completely before the next request, whose fetch offsets tell the leader what this broker has. A flush that the
topic asks for (`flush.messages`) comes before it too.

If a partition is added while a fetcher's request waits at the leader, a second request on the connection ends that
wait: records acknowledged with acks=all must not be delayed by it. A partition that backs off after an error shortens
the next wait instead. A leader that cannot be reached is retried after `replica.fetch.backoff.ms`, and at once when the
metadata says that it, or any broker, is back.

Each leader has `num.replica.fetchers` fetchers, which share its partitions. They all run on one loop: more than one
helps if the leader is far away, not if the processor is busy (decision 43). Partitions that are synced before they are
acknowledged (`kraftpy.flush.before.ack`) have their own fetchers, for each leader and log directory. These sync
everything they have appended, in one round, before their next request, so that the offsets in it acknowledge only
synced records; no other partition waits for that disk. Replicas under a throttle pause for as long as it asks
(`throttle`).

Left out: moves of a partition between this broker's disks (`upkeep.log_moves`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.broker.containment import Tasks
from kraftpy.broker.peers import Outgoing, response_limit
from kraftpy.broker.replication.replica import NO_LEADER, Replica
from kraftpy.broker.replication.throttle import Throttles
from kraftpy.broker.slicing import in_slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.replication.events import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendRecords,
    BackOff,
    FollowerEffect,
    NeedsMetadata,
    StartOver,
    TruncateTo,
)
from kraftpy.replication.fetch_plan import Fetched, FetchLimits, FetchPlan, PartitionKey
from kraftpy.replication.follower import Follower
from kraftpy.types import BrokerId, LeaderEpoch, TopicPartition

if TYPE_CHECKING:
    from kraftpy.client.connection import Connection

logger = logging.getLogger(__name__)

_FetcherId = tuple[BrokerId, str, int]
"""A leader, the log directory whose syncs the fetches wait for ("" if they wait for no syncs), and a number."""

_FIRST_VERSION = 17
_LET_OTHERS_RUN_AFTER_BYTES = 1 << 20
_POSITIONS_AT_ONCE = 500
"""Partitions that get a position, or are looked up for a response, before others get the event loop."""


_SHARED_AT_ONCE = 500
"""Partitions that get another fetcher before others get the event loop."""


class Fetchers:
    """Every fetcher of this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        *,
        image: Callable[[], Image],
        broker_epoch: Callable[[], int],
        checkpoint: Callable[[], Awaitable[None]],
        proof: BrokerProof,
        outgoing: Outgoing,
    ) -> None:
        self.config = config
        self.listener = config.inter_broker_listener
        """The listener on which brokers reach one another."""
        self.clock = clock
        self.image = image
        self.broker_epoch = broker_epoch
        self.checkpoint = checkpoint
        self.proof = proof
        self.outgoing = outgoing
        self._tasks = tasks
        self.incidents = tasks.incidents
        self._is_started = False
        self._fetchers: dict[_FetcherId, _Fetcher] = {}
        self._fetcher_of: dict[PartitionKey, _Fetcher] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.throttles = Throttles(
            BrokerId(config.node_id),
            image,
            clock.monotonic_ms,
            static=(config.leader_replication_throttled_rate, config.follower_replication_throttled_rate),
        )

    def start(self) -> None:
        """Begin to fetch: this broker is registered, so leaders know its current epoch."""
        self._is_started = True
        for fetcher in self._fetchers.values():
            fetcher.start(self._tasks)

    async def stop(self) -> None:
        """Stop fetching; returns when no log is being changed any more."""
        for fetcher in list(self._fetchers.values()):
            self._end(fetcher)
        self._is_started = False
        if self._ending:
            await asyncio.wait(self._ending)

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that changed while the broker runs; another number of fetchers shares the partitions."""
        before, self.config = self.config, config
        if config.num_replica_fetchers != before.num_replica_fetchers:
            self._tasks.create_task(self._share_again(), name="partitions for another number of fetchers")

    async def _share_again(self) -> None:
        async for keys in in_slices(list(self._fetcher_of), _SHARED_AT_ONCE):
            held = [(key, fetcher) for key in keys if (fetcher := self._fetcher_of.get(key)) is not None]
            self.assign([(fetcher.replicas[key], fetcher.leader) for key, fetcher in held if key in fetcher.replicas])

    def assign(self, changes: Iterable[tuple[Replica, BrokerId]]) -> None:
        """Fetch these partitions from these leaders from now on; `NO_LEADER` means not to fetch it."""
        touched: dict[_Fetcher, None] = {}
        for replica, leader in changes:
            key = PartitionKey(replica.topic_id, replica.topic_partition.partition)
            before = self._fetcher_of.get(key)
            directory = replica.log_directory.path if replica.syncs.comes_before_ack else ""
            fetcher_id = (leader, directory, _number_of(key) % self.config.num_replica_fetchers)
            if before is not None and before.id != fetcher_id:
                before.forget(key)
                del self._fetcher_of[key]
                touched[before] = None
            if leader == NO_LEADER:
                continue
            fetcher = self._fetchers.get(fetcher_id)
            if fetcher is None:
                fetcher = self._fetchers[fetcher_id] = _Fetcher(self, fetcher_id)
            fetcher.add(key, replica)
            self._fetcher_of[key] = fetcher
            touched[fetcher] = None
        for fetcher in touched:
            if not fetcher.replicas:
                self._end(fetcher)
            elif self._is_started:
                fetcher.start(self._tasks)

    def wake(self) -> None:
        """Retry failed leaders and partitions now, because brokers have come or gone."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def _end(self, fetcher: _Fetcher) -> None:
        if self._fetchers.pop(fetcher.id, None) is None:
            return
        task = fetcher.end()
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _number_of(key: PartitionKey) -> int:
    """Return a number for a partition; a topic's partitions have consecutive numbers, so that fetchers share them."""
    return int.from_bytes(key.topic_id[:8]) + key.partition


class _Fetcher:
    """Fetches some partitions from their leader."""

    def __init__(self, fetchers: Fetchers, fetcher_id: _FetcherId) -> None:
        config = fetchers.config
        self.id = fetcher_id
        self.leader = fetcher_id[0]
        self.replicas: dict[PartitionKey, Replica] = {}
        self._fetchers = fetchers
        self._plan = FetchPlan(replica_id=BrokerId(config.node_id), broker_epoch=-1)
        self._limits = FetchLimits(
            partition_max_bytes=config.replica_fetch_max_bytes,
            response_max_bytes=config.replica_fetch_response_max_bytes,
            min_bytes=config.replica_fetch_min_bytes,
            max_wait_ms=config.replica_fetch_wait_max_ms,
        )
        self._due: dict[PartitionKey, None] = {}
        """Partitions whose position the plan does not know yet."""
        self._delayed: dict[PartitionKey, int] = {}
        """Partitions that back off, and until when, on the monotonic clock."""
        self._awake = asyncio.Event()
        self._connection: Connection | None = None
        self._is_waiting = False
        self._is_hurrying = False
        """A request was sent to end the long poll, for a partition that has come."""
        self._task: asyncio.Task[None] | None = None
        self._has_complained = False
        self._complaints: dict[TopicPartition, tuple[str, tuple[object, ...]]] = {}

    # --- control -----------------------------------------------------------------------------

    def start(self, tasks: Tasks) -> None:
        """Start fetching, unless it is running already."""
        if self._task is None:
            self._task = tasks.create_task(self._run(), name=f"fetcher of broker {self.leader}")

    def end(self) -> asyncio.Task[None] | None:
        """Stop fetching; return the task that is ending, if any."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def add(self, key: PartitionKey, replica: Replica) -> None:
        """Fetch another partition, or a known one in a new leader epoch."""
        self.replicas[key] = replica
        self._delayed.pop(key, None)
        self._due[key] = None
        self._awake.set()
        if self._is_waiting and not self._is_hurrying and self._connection is not None:
            self._hurry(self._connection)

    def _hurry(self, connection: Connection) -> None:
        """End the long poll: the leader answers it when it gets another request, here one about nothing."""
        from kraftpy.protocol.messages.list_offsets import ListOffsetsRequest  # here: as in `_connect`

        self._is_hurrying = True
        with contextlib.suppress(KafkaError):  # a connection that is lost has ended the poll
            version = connection.version(ApiKey.LIST_OFFSETS)
            connection.send(ApiKey.LIST_OFFSETS, ListOffsetsRequest(), version).add_done_callback(_forget_outcome)

    def forget(self, key: PartitionKey) -> None:
        """Stop fetching a partition."""
        self.replicas.pop(key, None)
        self._plan.forget(key)
        self._due.pop(key, None)
        self._delayed.pop(key, None)

    def wake(self) -> None:
        """End all back-offs: the situation may have changed."""
        self._due.update(dict.fromkeys(self._delayed))
        self._awake.set()

    # --- the task ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch()
            except KafkaError as error:
                self._plan.lost()
                if not self._has_complained:
                    logger.warning("broker %d: cannot fetch from it: %s", self.leader, error)
                    self._has_complained = True
                await self._pause(self._fetchers.config.replica_fetch_backoff_ms / 1000)
            except Exception as error:
                self._plan.lost()
                self._fetchers.incidents.note(f"fetcher of broker {self.leader}", error)
                await self._pause(self._fetchers.config.replica_fetch_backoff_ms / 1000)
            finally:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

    async def _fetch(self) -> None:
        """Connect, and fetch for as long as that succeeds. Raises KafkaError."""
        self._awake.clear()
        epoch = self._fetchers.broker_epoch()
        connection = self._connection = await self._connect()
        version = connection.version(ApiKey.FETCH, low=_FIRST_VERSION)
        if self._has_complained:
            logger.info("broker %d: fetching from it again", self.leader)
            self._has_complained = False
        while True:
            self._awake.clear()
            self._end_delays()  # before the syncs: a partition whose back-off ends may need one
            await self._sync()
            now = self._fetchers.clock.monotonic_ms()
            await self._set_positions(now)
            self._plan.broker_epoch = self._fetchers.broker_epoch()
            if self._plan.broker_epoch != epoch:  # the epoch is proved by the connection, so a new one is needed
                self._plan.lost()
                return
            pause_ms = min((until - now for until in self._delayed.values()), default=self._limits.max_wait_ms)
            request = self._plan.request(self._limits, max(1, min(pause_ms, self._limits.max_wait_ms)))
            if request is None:
                await self._pause(pause_ms / 1000)
                continue
            self._is_waiting, self._is_hurrying = True, False
            try:
                response = await connection.send(ApiKey.FETCH, request, version)
            finally:
                self._is_waiting = False
            await self._apply(self._plan.handle_response(response))

    async def _connect(self) -> Connection:
        from kraftpy.client.connection import BrokerUnreachable, Connection  # here: a broker that is alone needs none
        from kraftpy.client.runtime import RealRuntime

        config = self._fetchers.config
        broker = self._fetchers.image().broker(self.leader)
        endpoint = None if broker is None else broker.endpoint(self._fetchers.listener)
        if endpoint is None:
            raise BrokerUnreachable(f"broker {self.leader} has no listener {self._fetchers.listener}")
        return await Connection.open(
            RealRuntime(),
            endpoint.host,
            endpoint.port,
            client_id=f"broker-{config.node_id}-fetcher",
            request_timeout_ms=config.replica_socket_timeout_ms,
            setup_timeout_ms=config.replica_socket_timeout_ms,
            software=self._fetchers.proof.software_for(self.leader),
            limit=response_limit(config),
            security=self._fetchers.outgoing.security(),
        )

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    def _end_delays(self) -> None:
        now = self._fetchers.clock.monotonic_ms()
        for key in [key for key, until in self._delayed.items() if until <= now]:
            del self._delayed[key]
            self._due[key] = None

    async def _set_positions(self, now: int) -> None:
        """Tell the plan the position of each partition, in slices: after a failover that may be all of them.

        When it returns, no partition was added meanwhile that the next request would lack.
        """
        while self._due:
            due, self._due = self._due, {}
            for number, key in enumerate(due, 1):
                self._set_position(key, now)
                if number % _POSITIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _set_position(self, key: PartitionKey, now: int) -> None:
        replica = self.replicas.get(key)
        if replica is None or replica.following is None or replica.leader_id != self.leader:
            self._plan.forget(key)
            return
        position = replica.following.next_fetch(self._fetchers.clock.monotonic_ms())
        if replica.syncs.comes_before_ack and replica.syncs.is_due(replica.log_end_offset):
            self._plan.forget(key)  # it was added while others were synced, or could not be synced
            self._delayed[key] = replica.following.retry_at or now
        elif throttled_ms := self._fetchers.throttles.follower_wait_ms(replica):
            self._plan.forget(key)
            self._delayed[key] = now + throttled_ms
        elif position is None:
            self._plan.forget(key)
            self._delayed[key] = replica.following.retry_at or now
        else:
            self._plan.set(key, position)

    # --- applying a response -----------------------------------------------------------------

    async def _apply(self, answers: list[Fetched]) -> None:
        done_bytes = done = 0
        slow: list[Awaitable[None]] = []
        flushes: list[Replica] = []
        for fetched in answers:
            done += 1
            if done % _POSITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            replica = self.replicas.get(fetched.key)
            follower = None if replica is None else replica.following
            if replica is None or follower is None:
                continue
            try:
                effects = follower.answered(fetched.asked, fetched.answer, self._fetchers.clock.monotonic_ms())
            except Exception as error:
                self._unexpected(replica, follower, error)
                continue
            if not effects:
                continue
            self._due[fetched.key] = None
            if isinstance(effects[0], TruncateTo | StartOver):
                slow.append(self._truncate(replica, follower, effects))
                continue
            self._carry_out(replica, follower, effects, flushes)
            done_bytes += len(fetched.answer.records)
            if done_bytes >= _LET_OTHERS_RUN_AFTER_BYTES:
                done_bytes = 0
                await asyncio.sleep(0)
        if slow:
            await asyncio.gather(*slow)
        if flushes:
            await asyncio.gather(*(self._flush(replica) for replica in flushes))

    def _carry_out(
        self, replica: Replica, follower: Follower, effects: list[FollowerEffect], flushes: list[Replica]
    ) -> None:
        """Carry out the effects that need no thread, up to the first that fails."""
        try:
            for effect in effects:
                match effect:
                    case AppendRecords():
                        appended = replica.append_copies(effect.records, LeaderEpoch(effect.leader_epoch))
                        self._complaints.pop(replica.topic_partition, None)
                        if appended.flush_due and not replica.syncs.comes_before_ack:
                            flushes.append(replica)
                        if self._fetchers.throttles.follower_wait_ms(replica) is not None:
                            self._fetchers.throttles.following.spend(len(effect.records))
                    case AdvanceHighWatermark():
                        replica.advance_high_watermark(min(effect.offset, replica.log_end_offset))
                    case AdvanceLogStart():
                        replica.advance_log_start(min(effect.offset, replica.log_end_offset))
                    case BackOff(reason=ErrorCode.CORRUPT_MESSAGE):
                        self._complain(replica, "the next records are damaged at broker %d, its leader", self.leader)
                    case BackOff():
                        logger.debug("%s: broker %d: %s", replica.topic_partition, self.leader, effect.reason.name)
                    case NeedsMetadata() | TruncateTo() | StartOver():
                        pass  # the metadata arrives without a request; a truncation comes alone
        except (KafkaError, ProtocolError) as error:
            self._failed(replica, follower, error)
        except Exception as error:
            self._unexpected(replica, follower, error)

    def _unexpected(self, replica: Replica, follower: Follower, error: Exception) -> None:
        """Handle an unexpected error: this partition backs off, and the leader's others are unaffected."""
        key = PartitionKey(replica.topic_id, replica.topic_partition.partition)
        self._fetchers.incidents.note(f"{replica.topic_partition}: fetch", error, kind="fetch")
        self._due[key] = None
        follower.failed(ErrorCode.UNKNOWN_SERVER_ERROR, self._fetchers.clock.monotonic_ms())

    def _complain(self, replica: Replica, message: str, *about: object) -> None:
        """Log why a partition cannot be copied, unless that was the last reason logged since it was copied."""
        if self._complaints.get(replica.topic_partition) != (message, about):
            self._complaints[replica.topic_partition] = message, about
            logger.error(f"%s: {message}", replica.topic_partition, *about)

    def _failed(self, replica: Replica, follower: Follower, error: Exception) -> None:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.CORRUPT_MESSAGE
        if not replica.is_offline:
            self._complain(replica, "cannot append what broker %d sent: %s", self.leader, str(error))
        follower.failed(code, self._fetchers.clock.monotonic_ms())

    async def _truncate(self, replica: Replica, follower: Follower, effects: list[FollowerEffect]) -> None:
        """Truncate the log; then rewrite the checkpoints if they promise records that are gone."""
        if replica.following is not follower:  # it may have become the leader since the response
            return
        effect = effects[0]
        try:
            if isinstance(effect, TruncateTo):
                if effect.offset < replica.log_end_offset:
                    logger.info(
                        "%s: truncated to %d, where it diverges from broker %d",
                        replica.topic_partition,
                        effect.offset,
                        self.leader,
                    )
                is_lower = await replica.operations.truncate(effect.offset)
            else:
                assert isinstance(effect, StartOver)
                logger.info("%s: starts over at %d", replica.topic_partition, effect.offset)
                is_lower = await replica.operations.start_over(effect.offset)
            if is_lower:
                await self._fetchers.checkpoint()
        except OSError as error:
            self._failed(replica, follower, replica.errors.failed("truncate", error))
        except Exception as error:
            self._unexpected(replica, follower, error)

    async def _sync(self) -> None:
        """Sync unsynced logs of topics that ask for it, before a request whose offsets acknowledge them."""
        tried: set[PartitionKey] = set()
        while unsynced := self._unsynced(tried):  # more may be added meanwhile
            tried.update(unsynced)
            await asyncio.gather(*(self._flush(replica) for replica in unsynced.values()))

    def _unsynced(self, tried: Collection[PartitionKey]) -> dict[PartitionKey, Replica]:
        due = {key: self.replicas[key] for key in self._due if key in self.replicas and key not in tried}
        return {
            key: replica
            for key, replica in due.items()
            if replica.syncs.comes_before_ack and replica.syncs.is_due(replica.log_end_offset)
        }

    async def _flush(self, replica: Replica) -> None:
        follower = replica.following
        try:
            await replica.flush(replica.log_end_offset)
        except KafkaError as error:  # the replica has logged it
            if follower is not None and replica.following is follower:
                follower.failed(error.code, self._fetchers.clock.monotonic_ms())
        except Exception as error:
            if follower is not None and replica.following is follower:
                self._unexpected(replica, follower, error)


def _forget_outcome(answer: asyncio.Future[Any]) -> None:
    """Look at a failure that is of no interest, so that the loop does not log it."""
    if not answer.cancelled():
        answer.exception()
