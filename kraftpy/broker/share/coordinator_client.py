"""Requests to share coordinators, on any broker; partition leaders and group coordinators here send them.

    response = await states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, request)

A request is split among the coordinators of its share partitions, and retried if a coordinator has moved or cannot be
reached; every one of these requests is safe to repeat. It is answered within `share.coordinator.write.timeout.ms`;
share partitions without an answer by then get COORDINATOR_NOT_AVAILABLE, so a silent coordinator blocks no caller for
longer. A leader's writes are retried for five times as long, with that timeout for each attempt: a node that dies
silently stays registered for `broker.session.timeout.ms`, and records whose acknowledgement has failed are locked until
the lock expires.

Requests to other brokers have connections of their own, so that a write that waits to become durable delays no other
traffic between the two brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.broker.internal_topics import SHARE_GROUP_STATE
from kraftpy.broker.metadata.auto_creation import found_or_created
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.peers import Outgoing, Peers
from kraftpy.broker.share.coordinators import ShareCoordinators
from kraftpy.broker.share.state_requests import Asked, asked_of, request_of, response_of, results_of, state_partition
from kraftpy.broker.slicing import PIECE, Slices
from kraftpy.config import BrokerConfig
from kraftpy.ports import Clock
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import read_share_group_state as read
from kraftpy.protocol.messages import write_share_group_state as write
from kraftpy.share.effects import Write
from kraftpy.share.events import Command, Result
from kraftpy.share.records import ShareKey
from kraftpy.types import BrokerId

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_WRITE_TRIES = 5
"""Kafka's number. By default, all tries together take less time than a lock lasts, or than a client waits."""
_LOOK_ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_SHORT = 10
"""How many share partitions are asked for without a pause."""
_FIND_UNITS = 4
"""The cost of finding a share partition's coordinator, in units of `slicing`."""
_ASK_UNITS = 25
"""The cost of one command at its coordinator, until it is stored and answered."""
_UNREACHABLE = Result(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


class ShareStates:
    """A client of all share coordinators of the cluster, on this broker and others."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: MetadataLog,
        coordinators: ShareCoordinators,
        proof: BrokerProof,
        outgoing: Outgoing,
        slices: Slices | None = None,
    ) -> None:
        self._config = config
        self._slices = slices or Slices()
        self._clock = clock
        self._metadata = metadata
        self._coordinators = coordinators
        self._peers = Peers(config, lambda: metadata.image, proof, outgoing)
        self._try_s = config.share_coordinator_write_timeout_ms / 1000
        self._is_closed = False

    def close(self) -> None:
        """Close the connections. Requests in progress are answered soon, with the results they have by then."""
        self._is_closed = True
        self._peers.close()

    # --- requests ----------------------------------------------------------------------------

    async def ask(self, api_key: ApiKey, request: Any) -> Any:
        """Answer a request of one of the APIs 83 to 87. Never raises: errors are part of the answer."""
        return response_of(api_key, await self._ask(api_key, request))

    async def read(self, key: ShareKey, leader_epoch: int) -> Result:
        """Read the full state of a share partition; this fences its earlier leaders."""
        part = read.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topic = read.ReadStateData(topic_id=key.topic_id, partitions=[part])
        request = read.ReadShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        return (await self._ask(ApiKey.READ_SHARE_GROUP_STATE, request))[key]

    async def write(self, key: ShareKey, state_epoch: int, leader_epoch: int, said: Write) -> Result:
        """Store what has changed in a share partition."""
        batches = [
            read.StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.state,
                delivery_count=each.delivery_count,
            )
            for each in said.batches
        ]
        part = write.PartitionData(
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=said.start_offset,
            delivery_complete_count=said.delivery_complete_count,
            state_batches=batches,
        )
        topic = write.WriteStateData(topic_id=key.topic_id, partitions=[part])
        request = write.WriteShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        return (await self._ask(ApiKey.WRITE_SHARE_GROUP_STATE, request, tries=_WRITE_TRIES))[key]

    # --- sending -----------------------------------------------------------------------------

    async def _ask(self, api_key: ApiKey, request: Any, *, tries: int = 1) -> dict[ShareKey, Result]:
        """Return the result of each share partition, within `tries` times `share.coordinator.write.timeout.ms`."""
        asked = await self.asked_of(request)
        results: dict[ShareKey, Result] = {each.key: _UNREACHABLE for each in asked}
        results.update({each.key: each.command for each in asked if isinstance(each.command, Result)})
        unanswered = [each for each in asked if not isinstance(each.command, Result)]
        pause_s = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(tries * self._try_s):
                while unanswered and not self._is_closed:
                    found = await self._ask_all(api_key, request, unanswered)
                    results.update(found)
                    unanswered = [each for each in unanswered if results[each.key].error_code in _LOOK_ELSEWHERE]
                    if unanswered:
                        await asyncio.sleep(pause_s)
                        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            waiting = ", ".join(f"{each.key.group_id}:{each.key.partition}" for each in unanswered[:3])
            logger.info("%s: no answer in time for %s", api_key.name, waiting)
        return results

    async def _ask_all(self, api_key: ApiKey, request: Any, asked: Iterable[Asked]) -> Mapping[ShareKey, Result]:
        by_broker: dict[BrokerId, list[Asked]] = {}
        found: dict[ShareKey, Result] = {}
        asked = list(asked)
        for each in asked:
            if len(asked) > _SHORT:
                await self._slices.breathe(_FIND_UNITS)
            broker_id = await self._coordinator_of(each.key)
            if broker_id is not None:
                by_broker.setdefault(broker_id, []).append(each)
        asking = [self._ask_one(api_key, request, broker_id, part) for broker_id, part in by_broker.items()]
        for results in await asyncio.gather(*asking):
            found.update(results)
        return found

    async def _coordinator_of(self, key: ShareKey) -> BrokerId | None:
        """Return the broker that coordinates a share partition, or None at the moment."""
        topic = await found_or_created(SHARE_GROUP_STATE, self._metadata, self._config, self._clock)
        if topic is None:
            return None
        leader = topic.partitions[state_partition(key, len(topic.partitions))].leader
        return None if leader < 0 else BrokerId(leader)

    async def _ask_one(
        self, api_key: ApiKey, request: Any, broker_id: BrokerId, asked: list[Asked]
    ) -> Mapping[ShareKey, Result]:
        if broker_id == self._config.node_id:
            return await self.answer_here(asked)
        try:
            async with asyncio.timeout(self._try_s):
                response = await self._peers.ask(broker_id, api_key, request_of(request, asked))
        except (KafkaError, TimeoutError) as error:
            logger.debug("%s: broker %d failed: %r", api_key.name, broker_id, error)
            return {each.key: _UNREACHABLE for each in asked}
        results = results_of(request.group_id, response)
        found = {each.key: results.get(each.key, _UNREACHABLE) for each in asked}
        for key, result in found.items():
            if result.error_code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # our broker epoch has just changed
                found[key] = _UNREACHABLE
        return found

    async def asked_of(self, request: Any) -> list[Asked]:
        """Take a request apart into its share partitions, each once (`state_requests`)."""
        if (
            sum(1 + len(getattr(part, "state_batches", ())) for topic in request.topics for part in topic.partitions)
            > PIECE
        ):
            return await self._slices.apart(asked_of, request)
        return asked_of(request)

    async def answer_here(self, asked: Iterable[Asked]) -> dict[ShareKey, Result]:
        """Have the coordinators of this broker answer."""
        results: dict[ShareKey, Result] = {}
        asked = list(asked)

        async def ask(key: ShareKey, command: Command) -> None:
            results[key] = await self._coordinators.ask(command)

        async with asyncio.TaskGroup() as group:
            for each in asked:
                if isinstance(each.command, Result):
                    results[each.key] = each.command
                    continue
                if len(asked) > _SHORT:
                    await self._slices.breathe(_ASK_UNITS + len(getattr(each.command, "batches", ())))
                group.create_task(ask(each.key, each.command))
        return {each.key: results[each.key] for each in asked}
