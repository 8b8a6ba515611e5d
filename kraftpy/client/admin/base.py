"""How the admin client sends its requests: to any broker, to a given one, or to the controller, with retries.

Changes to the cluster go to the controller if the brokers name one. A broker that is not the controller answers
NOT_CONTROLLER, and the next attempt looks it up again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from kraftpy.client.admin.messages import check
from kraftpy.client.cluster import Cluster, ClusterMetadata, Measured, metadata_request, read_metadata
from kraftpy.client.connection import Connection
from kraftpy.client.options import ClientOptions
from kraftpy.client.runtime import Runtime
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Not retried: a missing topic that is being described is not about to be created."""

_ASK_ANEW = (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


class AdminBase(Measured):
    """A started client and its ways to ask brokers."""

    def __init__(self, *, runtime: Runtime | None = None, **options: Any) -> None:
        self.options = ClientOptions(**{"allow_auto_create_topics": False, **options})
        self._cluster = Cluster(self.options, runtime)

    async def start(self) -> Self:
        """Start the client. `async with` does this."""
        await self._cluster.start()
        return self

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _metadata(self, names: list[str] | None) -> ClusterMetadata:
        """Fetch metadata of these topics once. The answer also updates the nodes used for connections."""
        connection = await self._cluster.any_connection()
        version = connection.version(ApiKey.METADATA)
        answer = await connection.send(ApiKey.METADATA, metadata_request(names, create=version < 4), version)
        check(answer.error_code, "metadata")
        known = read_metadata(answer, ClusterMetadata())
        self._cluster.learn_nodes(known)
        return known

    async def _metadata_retried(self, names: list[str] | None) -> ClusterMetadata:
        return await self._cluster.retry(lambda: self._metadata(names))

    async def _by_leader(self, partitions: set[TopicPartition]) -> dict[int, list[TopicPartition]]:
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            leader = (await self._cluster.leader(partition)).leader
            grouped.setdefault(leader, []).append(partition)
        return grouped

    async def _ask(
        self, node_id: int | None, key: ApiKey, request: Any, check: Callable[[Any], None], *, low: int = 0
    ) -> Any:
        """Ask one broker (None: any) until the answer passes `check`."""

        async def attempt() -> Any:
            if node_id is None:
                connection = await self._cluster.any_connection()
            else:
                if node_id not in self._cluster.metadata.nodes:
                    await self._metadata([])
                connection = await self._cluster.connect(node_id)
            answer = await connection.request(key, request, low=low)
            check(answer)
            return answer

        return await self._cluster.retry(attempt, final=MISSING)

    async def _retry_what_is_there(
        self, attempt: Callable[[], Awaitable[None]], group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Ask a group's coordinator until it answers, retrying UNKNOWN_TOPIC_OR_PARTITION only if the partitions exist.

        A coordinator may not know a new topic yet, so it is asked again if the cluster's metadata has all these
        partitions. Otherwise the error is final, as in Kafka's own client: a missing topic is not about to be created.
        """
        needed = set(partitions)

        async def attempt_there() -> None:
            try:
                await attempt()
            except KafkaError as failed:
                if failed.code not in MISSING:
                    raise
                known = await self._metadata(sorted({each.topic for each in needed}))
                if any(known.partition(each) is None for each in needed):
                    raise
                text = f"the coordinator of {group_id!r} does not know these partitions yet"
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text) from failed

        await self._cluster.retry(attempt_there, group_id=group_id, final=MISSING)

    async def _ask_controller(
        self,
        key: ApiKey,
        request: Any,
        *,
        low: int = 0,
        choose: Callable[[int], Any] | None = None,
    ) -> Any:
        """Ask the controller; if it has moved, ask the new one."""

        async def attempt() -> Any:
            connection = await self._controller()
            version = connection.version(key, low=low)
            answer = await connection.send(key, request if choose is None else choose(version), version)
            parts = [
                answer,
                *(part for name in ("topics", "responses", "results") for part in getattr(answer, name, ())),
            ]
            for part in parts:
                code = ErrorCode.of(getattr(part, "error_code", 0))
                if code in _ASK_ANEW:
                    raise KafkaError(code)
            return answer

        return await self._cluster.retry(attempt)

    async def _controller(self) -> Connection:
        known = await self._metadata([])
        if known.controller_id in known.nodes:
            return await self._cluster.connect(known.controller_id)
        return await self._cluster.any_connection()
