"""The guard of each API, and the functions that guards share.

A guard is called in place of the handler if there is an authorizer. It asks for the rights that `policy.RIGHTS` names,
in their order, and calls the handler with the entries that are allowed. An API without a guard needs no rights, or its
handler asks for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from kraftpy.broker.authorization.policy import RIGHTS, Need
from kraftpy.broker.request import RequestContext
from kraftpy.broker.rights import ASK_UNITS
from kraftpy.broker.slicing import PIECE
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.security.acls import CLUSTER_NAME, OPERATIONS, ResourceType

T = TypeVar("T")

Handler = Callable[[Any, Any, RequestContext], Awaitable[Any]]
Guard = Callable[[Any, Any, RequestContext, Handler], Awaitable[Any]]

GUARDS: dict[ApiKey, str] = {
    ApiKey.PRODUCE: "topics:produce",
    ApiKey.LIST_OFFSETS: "topics:list_offsets",
    ApiKey.OFFSET_COMMIT: "groups:offset_commit",
    ApiKey.OFFSET_FETCH: "groups:offset_fetch",
    ApiKey.FIND_COORDINATOR: "groups:find_coordinator",
    ApiKey.JOIN_GROUP: "groups:of_member",
    ApiKey.HEARTBEAT: "groups:of_member",
    ApiKey.LEAVE_GROUP: "groups:of_member",
    ApiKey.SYNC_GROUP: "groups:of_member",
    ApiKey.DESCRIBE_GROUPS: "groups:describe",
    ApiKey.LIST_GROUPS: "groups:list_groups",
    ApiKey.CREATE_TOPICS: "topics:create_topics",
    ApiKey.DELETE_TOPICS: "topics:delete_topics",
    ApiKey.DELETE_RECORDS: "topics:delete_records",
    ApiKey.INIT_PRODUCER_ID: "transactions:init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "topics:offset_for_leader_epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions:add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions:add_offsets_to_txn",
    ApiKey.END_TXN: "transactions:end_txn",
    ApiKey.WRITE_TXN_MARKERS: "transactions:write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "transactions:txn_offset_commit",
    ApiKey.DESCRIBE_ACLS: "cluster:whole",
    ApiKey.CREATE_ACLS: "cluster:create_acls",
    ApiKey.DELETE_ACLS: "cluster:delete_acls",
    ApiKey.DESCRIBE_CONFIGS: "cluster:describe_configs",
    ApiKey.ALTER_CONFIGS: "cluster:alter_configs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "cluster:alter_replica_log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "cluster:whole",
    ApiKey.CREATE_PARTITIONS: "topics:create_partitions",
    ApiKey.DELETE_GROUPS: "groups:delete_groups",
    ApiKey.ELECT_LEADERS: "cluster:elect_leaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "cluster:alter_configs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "cluster:alter_partition_reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "cluster:list_partition_reassignments",
    ApiKey.OFFSET_DELETE: "groups:offset_delete",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "cluster:whole",
    ApiKey.ALTER_CLIENT_QUOTAS: "cluster:alter_client_quotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "cluster:whole",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "cluster:alter_user_scram_credentials",
    ApiKey.DESCRIBE_QUORUM: "cluster:whole",
    ApiKey.UPDATE_FEATURES: "cluster:whole",
    ApiKey.DESCRIBE_CLUSTER: "cluster:describe_cluster",
    ApiKey.DESCRIBE_PRODUCERS: "topics:describe_producers",
    ApiKey.UNREGISTER_BROKER: "cluster:whole",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactions:describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "transactions:list_transactions",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "groups:heartbeat_with_topics",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "groups:describe_with_topics",
    ApiKey.LIST_CONFIG_RESOURCES: "cluster:whole",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "groups:heartbeat_with_topics",
    ApiKey.STREAMS_GROUP_DESCRIBE: "groups:describe_with_topics",
    ApiKey.SHARE_GROUP_HEARTBEAT: "groups:heartbeat_with_topics",
    ApiKey.SHARE_GROUP_DESCRIBE: "groups:describe_with_topics",
    ApiKey.SHARE_FETCH: "share:of_member",
    ApiKey.SHARE_ACKNOWLEDGE: "share:of_member",
    ApiKey.ADD_RAFT_VOTER: "cluster:whole",
    ApiKey.REMOVE_RAFT_VOTER: "cluster:whole",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "share:describe_share_group_offsets",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "share:alter_share_group_offsets",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "share:delete_share_group_offsets",
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: "groups:topology_description",
    ApiKey.UNREGISTER_CONTROLLER: "cluster:whole",
}

ASKED_BY_HANDLERS = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""APIs whose handlers ask for rights; they have no guard."""
_FIRST_BY_ID = {ApiKey.PRODUCE: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
"""The first version that names topics by id."""


@cache
def guard_of(key: int) -> Guard | None:
    """Return the guard of an API, if it has one."""
    place = GUARDS.get(ApiKey(key))
    if place is None:
        return None
    module, _, name = place.partition(":")
    guard: Guard = getattr(import_module(f"kraftpy.broker.authorization.{module}"), name)
    return guard


def needs(context: RequestContext) -> tuple[Need, ...]:
    """Return the rights that the API needs."""
    return RIGHTS[context.api_key]


def allows(context: RequestContext, need: Need, name: str = CLUSTER_NAME, *, is_asked_for: bool = True) -> bool:
    """Return whether a need is met for a resource."""
    return context.rights.allows(need.operation, need.resource, name, is_asked_for=is_asked_for)


async def divided(
    broker: Any, context: RequestContext, need: Need, items: Sequence[T], name_of: Callable[[T], str | None]
) -> tuple[list[T], list[T]]:
    """Divide the entries of a request into the allowed and the refused; an entry without a name is allowed.

    Each name is asked for once.
    """
    decided: dict[str | None, bool] = {None: True}
    allowed: list[T] = []
    refused: list[T] = []
    async for some in broker.slices.pieces(items, ASK_UNITS):
        for item in some:
            name = name_of(item)
            if name not in decided:
                assert name is not None
                decided[name] = allows(context, need, name)
            (allowed if decided[name] else refused).append(item)
    return allowed, refused


async def commit_allowed(
    broker: Any,
    request: Any,
    context: RequestContext,
    handler: Handler,
    need: Need,
    name_of: Callable[[Any], str | None],
    refuse: Callable[[Any, ErrorCode], Any],
) -> Any:
    """Let the handler commit the offsets of topics for which a need is met, and add the refusals of the others.

    `refuse` answers a whole request with an error.
    """
    allowed, refused = await divided(broker, context, need, request.topics, name_of)
    request.topics = refused
    refusal = refuse(request, need.error)
    request.topics = allowed
    if refused and not allowed:
        return refusal
    answer = await handler(broker, request, context)
    answer.topics += refusal.topics
    return answer


async def visible(
    broker: Any, context: RequestContext, need: Need, items: Sequence[T], name_of: Callable[[T], str]
) -> list[T]:
    """Return the items that the client may see; the others are left out without an error."""
    found: list[T] = []
    async for some in broker.slices.pieces(items, ASK_UNITS):
        found += [item for item in some if allows(context, need, name_of(item), is_asked_for=False)]
    return found


async def each_with_room(broker: Any, items: Sequence[T], size_of: Callable[[T], int]) -> AsyncIterator[T]:
    """Yield items that each have a list of resources of this size to ask for; breathe before each, if there are many.

    `divided` and `visible` breathe for long lists only, and there may be many short ones.
    """
    for item in items:
        if len(items) > 1:
            await broker.slices.breathe(min(PIECE, ASK_UNITS * (1 + size_of(item))))
        yield item


async def all_allowed(broker: Any, context: RequestContext, need: Need, names: Iterable[str]) -> bool:
    """Return whether a need is met for each of these resources; none is asked for after the first refusal."""
    async for some in broker.slices.pieces(list(dict.fromkeys(names)), ASK_UNITS):
        if not all(allows(context, need, name) for name in some):
            return False
    return True


def topic_name(broker: Any, context: RequestContext, topic: Any) -> str | None:
    """Return the name of a topic that a request names by id or by name; None if no topic has the id."""
    if context.api_version >= _FIRST_BY_ID[ApiKey(context.api_key)]:
        known = broker.image.topic_by_id(topic.topic_id)
        return None if known is None else known.name
    name: str = topic.name
    return name


async def put_operations(broker: Any, context: RequestContext, groups: Sequence[Any], not_asked: int) -> None:
    """Put into each description of a group the operations that the client may do with it, if it asked for them."""
    async for some in broker.slices.pieces(groups, ASK_UNITS * len(OPERATIONS[ResourceType.GROUP])):
        for group in some:
            if group.authorized_operations != not_asked:
                group.authorized_operations = context.rights.operations(ResourceType.GROUP, group.group_id)
