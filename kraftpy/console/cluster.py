"""The cluster as the console's pages ask for it: the admin client, with answers that live for a few seconds.

    async with Cluster({"bootstrap_servers": "127.0.0.1:9092"}) as cluster:
        for topic in await cluster.topics(): ...

Every question may raise KafkaError. Answers are kept for `FRESH_SECONDS`, those that cost more for `SLOW_SECONDS`;
after a change of the console's own, none of them is used any more. `MOST_ANSWERS` are kept at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar

from kraftpy.client.admin.admin import Admin
from kraftpy.client.admin.model import (
    ClusterDescription,
    ConfigEntry,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    LogDir,
    QuorumDescription,
    Reassignment,
    TransactionListing,
)
from kraftpy.client.model import OffsetSpec, PartitionInfo, ResourceType, TopicInfo
from kraftpy.console.cache import Answers
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

T = TypeVar("T")
FRESH_SECONDS: Final = 2.0
SLOW_SECONDS: Final = 10.0
SOON_SECONDS: Final = 3.0
"""One broker of several may take this long to answer."""
PATIENCE_MS: Final = 10_000
MOST_ANSWERS: Final = 256
FEW_TOPICS: Final = 20
"""Topics that are described one by one rather than all that there are."""
SHARE: Final = "share"
"""The type of a share group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A partition's first offset and its end; None where no leader told."""

    first: int | None
    end: int | None

    @property
    def count(self) -> int | None:
        """The offsets between both: at least the number of records."""
        return None if self.first is None or self.end is None else max(0, self.end - self.first)


class Cluster:
    """One cluster, asked through one admin client. `options` are those of a client."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: Mapping[str, Any] = {
            "client_id": "kraftpy-console",
            "default_api_timeout_ms": PATIENCE_MS,
            "request_timeout_ms": PATIENCE_MS // 2,
            **options,
        }
        self.admin = Admin(**self.options)
        self._answers = Answers(MOST_ANSWERS)

    async def __aenter__(self) -> Cluster:
        await self.admin.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.admin.close()

    @property
    def servers(self) -> str:
        """The addresses at which the cluster is first asked."""
        servers = self.options.get("bootstrap_servers", "127.0.0.1:9092")
        return servers if isinstance(servers, str) else ",".join(servers)

    def changed(self) -> None:
        """Forget the answers, because the cluster was changed."""
        self._answers.forget()

    async def description(self) -> ClusterDescription:
        """Return the cluster's id, its brokers and its controller."""

        async def ask() -> ClusterDescription:
            try:
                return await self.admin.describe_cluster(include_fenced=True)
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                return await self.admin.describe_cluster()

        return await self._answers.get("cluster", FRESH_SECONDS, ask)

    async def quorum(self) -> QuorumDescription:
        """Return the metadata quorum. Raises KafkaError, also for a cluster that has none (ZooKeeper)."""
        return await self._answers.get("quorum", FRESH_SECONDS, self.admin.describe_quorum)

    async def topics(self) -> list[TopicInfo]:
        """Return all topics with their partitions, sorted by name."""
        return await self._answers.get("topics", FRESH_SECONDS, self.admin.describe_topics)

    async def topic(self, name: str) -> TopicInfo:
        """Return one topic. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION)."""

        async def ask() -> TopicInfo:
            (info,) = await self.admin.describe_topics([name])
            return info

        return await self._answers.get(("topic", name), FRESH_SECONDS, ask)

    async def log_dirs(self) -> list[LogDir]:
        """Return the log directories of the brokers that answer, with the sizes of the logs in them."""

        async def ask() -> list[LogDir]:
            cluster = await self.description()
            alive = [node.node_id for node in cluster.nodes if node.node_id not in cluster.fenced]
            found = await asyncio.gather(*(or_none(self.admin.describe_log_dirs([node])) for node in alive))
            return [directory for directories in found if directories is not None for directory in directories]

        return await self._answers.get("log dirs", SLOW_SECONDS, ask)

    async def sizes(self) -> Mapping[TopicPartition, int]:
        """Return the bytes of each partition's largest replica."""

        async def ask() -> dict[TopicPartition, int]:
            sizes: dict[TopicPartition, int] = {}
            for directory in await self.log_dirs():
                for partition, log in directory.partitions.items():
                    if not log.is_future:
                        sizes[partition] = max(sizes.get(partition, 0), log.size_bytes)
            return sizes

        return await self._answers.get("sizes", SLOW_SECONDS, ask)

    async def extents(self, info: TopicInfo) -> dict[int, Extent]:
        """Return the first offset and the end of each partition of a topic."""

        async def ask() -> dict[int, Extent]:
            ends, firsts = await asyncio.gather(
                self._offsets(info.partitions, OffsetSpec.LATEST), self._offsets(info.partitions, OffsetSpec.EARLIEST)
            )
            return {
                each.partition: Extent(first=firsts.get(each.topic_partition), end=ends.get(each.topic_partition))
                for each in info.partitions
            }

        return await self._answers.get(("extents", info.name), FRESH_SECONDS, ask)

    async def places(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the first offset and the end of partitions; of those that do not exist or do not answer, none."""
        names = sorted({partition.topic for partition in partitions})
        if len(names) > FEW_TOPICS:
            infos: Iterable[TopicInfo | None] = await self.topics()
        else:
            infos = await asyncio.gather(*(or_none(self.topic(name)) for name in names))
        wanted = set(partitions)
        found = [
            each for info in infos if info is not None for each in info.partitions if each.topic_partition in wanted
        ]
        ends, firsts = await asyncio.gather(
            self._offsets(found, OffsetSpec.LATEST), self._offsets(found, OffsetSpec.EARLIEST)
        )
        return {name: Extent(first=firsts.get(name), end=end) for name, end in ends.items()}

    async def _offsets(self, partitions: Iterable[PartitionInfo], at: int) -> dict[TopicPartition, int]:
        """Ask each leader for offsets; partitions whose leader does not answer soon are left out."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for each in partitions:
            if each.leader >= 0:
                by_leader.setdefault(each.leader, []).append(each.topic_partition)
        answers = await asyncio.gather(
            *(or_none(self.admin.list_offsets(dict.fromkeys(names, at))) for names in by_leader.values())
        )
        return {
            name: place.offset
            for found in answers
            if found is not None
            for name, place in found.items()
            if place is not None
        }

    async def settings(self, kind: ResourceType, name: str) -> list[ConfigEntry]:
        """Return the settings of a resource, sorted by name, with their documentation and synonyms."""

        async def ask() -> list[ConfigEntry]:
            resource = (kind, name)
            try:
                found = await self.admin.describe_configs([resource], documentation=True, synonyms=True)
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                found = await self.admin.describe_configs([resource])
            return sorted(found[resource].values(), key=lambda entry: entry.name)

        return await self._answers.get(("settings", kind, name), FRESH_SECONDS, ask)

    async def groups(self) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by id."""
        return await self._answers.get("groups", FRESH_SECONDS, self.admin.list_groups)

    async def group(self, group_id: str) -> GroupDescription:
        """Return one group with its members. One that does not exist has state "Dead"."""

        async def ask() -> GroupDescription:
            return (await self.admin.describe_groups([group_id]))[group_id]

        return await self._answers.get(("group", group_id), FRESH_SECONDS, ask)

    async def features(self) -> FeatureDescription:
        """Return the features' levels, finalized and supported."""
        return await self._answers.get("features", SLOW_SECONDS, self.admin.describe_features)

    async def transactions(self) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators."""
        return await self._answers.get("transactions", FRESH_SECONDS, self.admin.list_transactions)

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress."""
        return await self._answers.get("reassignments", FRESH_SECONDS, self.admin.list_partition_reassignments)


async def or_none(asked: Awaitable[T]) -> T | None:
    """Return an answer, or None if it is refused or does not come soon: the rest of a page is shown without it."""
    try:
        async with asyncio.timeout(SOON_SECONDS):
            return await asked
    except (KafkaError, TimeoutError):
        return None


def now_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
