"""The admin client: topics, settings, records, groups, offsets, and the brokers' log directories.

Every call retries transient failures and raises the first `KafkaError` of any of its parts. Other calls are in modules
of their own: `cluster` (the cluster as a whole), `transactions`, `share` (share groups), `users` (SCRAM credentials),
`acls`, `tokens` (delegation tokens) and `quotas` (client quotas).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kraftpy.client.admin.acls import AclAdmin
from kraftpy.client.admin.cluster import ClusterAdmin
from kraftpy.client.admin.messages import (
    Resource,
    alter_errors,
    alterable,
    by_broker,
    check,
    config_errors,
    creatable,
    log_dir_errors,
    read_consumer_group,
    read_log_dir,
    read_member,
    read_streams_group,
    resource_errors,
)
from kraftpy.client.admin.model import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    GroupDescription,
    GroupListing,
    LogDir,
)
from kraftpy.client.admin.quotas import QuotaAdmin
from kraftpy.client.admin.share import ShareAdmin
from kraftpy.client.admin.tokens import TokenAdmin
from kraftpy.client.admin.transactions import TransactionAdmin
from kraftpy.client.admin.users import UserAdmin
from kraftpy.client.model import (
    AlterOperation,
    IsolationLevel,
    NewTopic,
    OffsetAndMetadata,
    ResourceType,
    TopicInfo,
)
from kraftpy.client.offsets import Found, by_topic, commit_offsets, fetch_committed, list_offsets
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    alter_configs,
    alter_replica_log_dirs,
    consumer_group_describe,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    incremental_alter_configs,
    list_config_resources,
    list_groups,
    offset_delete,
    streams_group_describe,
)
from kraftpy.types import TopicPartition


class Admin(TransactionAdmin, ShareAdmin, ClusterAdmin, UserAdmin, AclAdmin, TokenAdmin, QuotaAdmin):
    """Administer a cluster: `async with Admin(bootstrap_servers=...) as admin:`. Options: `ClientOptions`."""

    # --- topics ---------------------------------------------------------------------------------------------------

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return [info.name for info in await self.describe_topics() if include_internal or not info.is_internal]

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """Return topics with their partitions, sorted by name: all by default.

        Raises `KafkaError` if a named one is missing.
        """
        return await self._topics(None if names is None else sorted(set(names)))

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics, or with `validate_only` just check that they could be.

        Other brokers learn of them a little later.
        """
        listed = list(topics)
        request = create_topics.CreateTopicsRequest(
            topics=[creatable(topic) for topic in listed],
            timeout_ms=int(self.options.request_timeout_ms),
            validate_only=validate_only,
        )
        by_default = any(
            not topic.replica_assignment and (topic.num_partitions < 0 or topic.replication_factor < 0)
            for topic in listed
        )
        answer = await self._ask_controller(ApiKey.CREATE_TOPICS, request, low=4 if by_default else 0)  # KIP-464
        for result in answer.topics:
            check(result.error_code, f"topic {result.name!r} not created", result.error_message)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and all their records."""
        listed = sorted(set(names))
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name, topic_id=bytes(16)) for name in listed],
            topic_names=listed,
            timeout_ms=int(self.options.request_timeout_ms),
        )
        older = delete_topics.DeleteTopicsRequest(topic_names=listed, timeout_ms=int(self.options.request_timeout_ms))
        answer = await self._ask_controller(
            ApiKey.DELETE_TOPICS, request, choose=lambda version: request if version >= 6 else older
        )
        for result in answer.responses:
            check(result.error_code, f"topic {result.name!r} not deleted", result.error_message)

    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Raise the number of partitions of each topic to the given total."""
        request = create_partitions.CreatePartitionsRequest(
            topics=[
                create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in sorted(totals.items())
            ],
            timeout_ms=int(self.options.request_timeout_ms),
            validate_only=validate_only,
        )
        answer = await self._ask_controller(ApiKey.CREATE_PARTITIONS, request)
        for result in answer.results:
            check(result.error_code, f"partitions of {result.name!r} not added", result.error_message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset (-1: before the high watermark). Returns the new log start offsets."""
        done: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            for node_id, partitions in (await self._by_leader(set(before) - set(done))).items():
                request = delete_records.DeleteRecordsRequest(
                    topics=[
                        delete_records.DeleteRecordsTopic(
                            name=topic,
                            partitions=[
                                delete_records.DeleteRecordsPartition(
                                    partition_index=index, offset=before[TopicPartition(topic, index)]
                                )
                                for index in indexes
                            ],
                        )
                        for topic, indexes in by_topic(partitions).items()
                    ],
                    timeout_ms=int(self.options.request_timeout_ms),
                )
                answer = await self._cluster.request(node_id, ApiKey.DELETE_RECORDS, request)
                for topic in answer.topics:
                    for part in topic.partitions:
                        name = TopicPartition(topic.name, part.partition_index)
                        check(part.error_code, f"records of {name} not deleted")
                        done[name] = part.low_watermark

        await self._cluster.retry(attempt)
        return done

    # --- settings -------------------------------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[Resource],
        *,
        names: Sequence[str] | None = None,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        """Return the settings of resources, by name; with `names`, only those. The broker "" stands for all brokers."""
        found: dict[Resource, dict[str, ConfigEntry]] = {}
        for node_id, listed in by_broker(resources).items():
            request = describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configuration_keys=None if names is None else list(names),
                    )
                    for kind, name in listed
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            answer = await self._ask(node_id, ApiKey.DESCRIBE_CONFIGS, request, config_errors)
            for result in answer.results:
                found[(ResourceType(result.resource_type), result.resource_name)] = {
                    entry.name: ConfigEntry(
                        name=entry.name,
                        value=entry.value,
                        source=ConfigSource(entry.config_source),
                        is_read_only=entry.read_only,
                        is_sensitive=entry.is_sensitive,
                        documentation=entry.documentation,
                        synonyms=tuple(
                            ConfigSynonym(name=each.name, value=each.value, source=ConfigSource(each.source))
                            for each in entry.synonyms
                        ),
                    )
                    for entry in result.configs
                }
        return found

    async def list_config_resources(self, kinds: Collection[ResourceType] = ()) -> list[Resource]:
        """List the resources that have settings, or may have: all, or those of some kinds (KIP-1142)."""
        request = list_config_resources.ListConfigResourcesRequest(resource_types=[int(kind) for kind in kinds])
        low = 0 if set(kinds) == {ResourceType.CLIENT_METRICS} else 1
        answer = await self._ask(None, ApiKey.LIST_CONFIG_RESOURCES, request, resource_errors, low=low)
        return [(ResourceType(each.resource_type), each.resource_name) for each in answer.config_resources]

    async def alter_configs(
        self,
        changes: Mapping[Resource, Mapping[str, str | tuple[AlterOperation, str | None] | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change single settings: a string sets, None restores the default, a pair names the operation (KIP-339)."""
        for node_id, listed in by_broker(changes).items():
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[alterable(setting, change) for setting, change in changes[(kind, name)].items()],
                    )
                    for kind, name in listed
                ],
                validate_only=validate_only,
            )
            await self._ask(node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, alter_errors)

    async def replace_configs(
        self, settings: Mapping[Resource, Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Give resources exactly these settings and no others. Uses AlterConfigs, for brokers before KIP-339."""
        for node_id, listed in by_broker(settings).items():
            request = alter_configs.AlterConfigsRequest(
                resources=[
                    alter_configs.AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[
                            alter_configs.AlterableConfig(name=setting, value=value)
                            for setting, value in settings[(kind, name)].items()
                        ],
                    )
                    for kind, name in listed
                ],
                validate_only=validate_only,
            )
            await self._ask(node_id, ApiKey.ALTER_CONFIGS, request, alter_errors)

    # --- groups ---------------------------------------------------------------------------------------------------

    async def list_groups(self, *, states: Sequence[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by id; with `states`, only groups in one of them (KIP-518)."""
        request = list_groups.ListGroupsRequest(states_filter=list(states))

        def errors(answer: Any) -> None:
            check(answer.error_code, "list groups")

        found: dict[str, GroupListing] = {}
        for node in (await self._metadata_retried([])).nodes.values():
            answer = await self._ask(node.node_id, ApiKey.LIST_GROUPS, request, errors, low=4 if states else 0)
            for group in answer.groups:
                found[group.group_id] = GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    group_type=group.group_type,
                )
        return [found[group_id] for group_id in sorted(found)]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return groups with their members. A group that does not exist has state "Dead" and no members."""
        return {group_id: await self._describe_group(group_id) for group_id in sorted(set(group_ids))}

    async def _describe_group(self, group_id: str) -> GroupDescription:
        async def attempt() -> GroupDescription:
            request = describe_groups.DescribeGroupsRequest(groups=[group_id])
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.DESCRIBE_GROUPS, request)
            group = answer.groups[0]
            if group.group_state in ("", "Dead"):
                found = (
                    await self._describe_consumer_group(group_id)
                    or await self._describe_share_group(group_id)
                    or await self._describe_streams_group(group_id)
                )
                if found is not None:
                    return found
            if ErrorCode.of(group.error_code) is not ErrorCode.GROUP_ID_NOT_FOUND:  # KIP-1043: then it is Dead
                check(group.error_code, f"group {group_id!r}", group.error_message)
            return GroupDescription(
                group_id=group_id,
                state=group.group_state or "Dead",
                protocol_type=group.protocol_type,
                protocol=group.protocol_data,
                coordinator=await self._cluster.coordinator(group_id),
                members=tuple(read_member(member, group.protocol_type) for member in group.members),
            )

        return await self._cluster.retry(attempt, group_id=group_id)

    async def _describe_consumer_group(self, group_id: str) -> GroupDescription | None:
        """Describe the group if it uses the consumer protocol (KIP-848) and the broker knows that, else return None."""
        request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[group_id])
        try:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.CONSUMER_GROUP_DESCRIBE, request)
        except KafkaError as failed:
            if failed.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        group = answer.groups[0]
        if ErrorCode.of(group.error_code) is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        check(group.error_code, f"group {group_id!r}", group.error_message)
        return read_consumer_group(group, await self._cluster.coordinator(group_id))

    async def _describe_streams_group(self, group_id: str) -> GroupDescription | None:
        """Describe the group if the broker supports streams groups (KIP-1071) and it is one, else return None."""
        request = streams_group_describe.StreamsGroupDescribeRequest(group_ids=[group_id])
        try:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.STREAMS_GROUP_DESCRIBE, request)
        except KafkaError as failed:
            if failed.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        group = answer.groups[0]
        if ErrorCode.of(group.error_code) in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        check(group.error_code, f"group {group_id!r}", group.error_message)
        counts = {info.name: len(info.partitions) for info in await self.describe_topics()}
        return read_streams_group(group, await self._cluster.coordinator(group_id), counts)

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their offsets. They must have no members."""
        for group_id in sorted(set(group_ids)):

            async def attempt(group_id: str = group_id) -> None:
                request = delete_groups.DeleteGroupsRequest(groups_names=[group_id])
                answer = await self._cluster.ask_coordinator(group_id, ApiKey.DELETE_GROUPS, request)
                for result in answer.results:
                    check(result.error_code, f"group {result.group_id!r} not deleted")

            await self._cluster.retry(attempt, group_id=group_id)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets: by default, those of every partition that has one."""
        return await fetch_committed(self._cluster, group_id, partitions)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Commit offsets on behalf of a group that has no members."""
        plain = {
            name: OffsetAndMetadata(offset) if isinstance(offset, int) else offset for name, offset in offsets.items()
        }
        await self._retry_what_is_there(lambda: commit_offsets(self._cluster, group_id, plain), group_id, plain)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of topics that the group is not subscribed to (KIP-496)."""
        named = by_topic(partitions)
        request = offset_delete.OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
                )
                for topic, indexes in named.items()
            ],
        )

        async def attempt() -> None:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.OFFSET_DELETE, request)
            check(answer.error_code, f"offsets of group {group_id!r} not deleted")
            for topic in answer.topics:
                for part in topic.partitions:
                    check(part.error_code, f"offset of {topic.name}-{part.partition_index} not deleted")

        there = [TopicPartition(topic, index) for topic, indexes in named.items() for index in indexes]
        await self._retry_what_is_there(attempt, group_id, there)

    # --- offsets --------------------------------------------------------------------------------------------------

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Found:
        """Return each partition's offset for an `OffsetSpec` or a time in ms; None if no record is that late."""
        return await list_offsets(self._cluster, wanted, isolation=isolation)

    # --- inside brokers -------------------------------------------------------------------------------------------

    async def describe_log_dirs(self, broker_ids: Iterable[int] | None = None) -> list[LogDir]:
        """Return the log directories of brokers (all by default), with the sizes of the logs in them."""
        known = await self._metadata_retried([])
        request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
        found = []
        for node_id in sorted(known.nodes if broker_ids is None else set(broker_ids)):
            answer = await self._ask(node_id, ApiKey.DESCRIBE_LOG_DIRS, request, log_dir_errors)
            found += [read_log_dir(node_id, result) for result in answer.results]
        return found

    async def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, ErrorCode]:
        """Move a broker's replicas to other log directories of that broker.

        NONE: the move has begun, or was not needed.

        REPLICA_NOT_AVAILABLE: the broker has no such replica yet and will create it in that directory.
        `describe_log_dirs` shows the moves in progress.
        """
        by_path: dict[str, list[TopicPartition]] = {}
        for name, path in sorted(paths.items()):
            by_path.setdefault(path, []).append(name)
        request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path=path,
                    topics=[
                        alter_replica_log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                        for topic, indexes in by_topic(names).items()
                    ],
                )
                for path, names in by_path.items()
            ]
        )
        answer = await self._ask(broker_id, ApiKey.ALTER_REPLICA_LOG_DIRS, request, lambda answer: None)
        return {
            TopicPartition(topic.topic_name, part.partition_index): ErrorCode.of(part.error_code)
            for topic in answer.results
            for part in topic.partitions
        }
