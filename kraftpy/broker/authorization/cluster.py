"""Guards of requests about the cluster, and about the settings of topics, groups and brokers.

Most of these requests need one right to the cluster. Their guards differ only in the response that refuses them, and
are made from it (`guard_from`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from kraftpy.broker.authorization.guards import Guard, Handler, allows, needs
from kraftpy.broker.authorization.policy import Need, Refusal
from kraftpy.broker.handlers.leaders import no_election
from kraftpy.broker.request import RequestContext
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import alter_configs as alter
from kraftpy.protocol.messages import incremental_alter_configs as incremental
from kraftpy.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryResult,
)
from kraftpy.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kraftpy.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kraftpy.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kraftpy.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from kraftpy.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kraftpy.protocol.messages.describe_configs import DescribeConfigsResult
from kraftpy.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kraftpy.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from kraftpy.protocol.schema import fields
from kraftpy.security.acls import CLUSTER_NAME

_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


Refuse = Callable[[Any, Any, RequestContext], Awaitable[Any]]
"""Answers a request whose right is missing: every entry of the response has the error."""


def guard_from(refuse: Refuse) -> Guard:
    """Return a guard that calls the handler if the API's first need is met, and `refuse` if it is not."""

    @wraps(refuse)
    async def guard(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
        if allows(context, needs(context)[0]):
            return await handler(broker, request, context)
        return await refuse(broker, request, context)

    return guard


@guard_from
async def whole(broker: Any, request: Any, context: RequestContext) -> Any:
    """Refuse the whole request; its response has an error code of its own."""
    response = APIS[context.api_key].response
    has_message = any(field.name == "error_message" for field in fields(cast("type", response)))
    return response(error_code=_DENIED, **({"error_message": _DENIED.meaning} if has_message else {}))


async def describe_cluster(
    broker: Any, request: DescribeClusterRequest, context: RequestContext, handler: Handler
) -> DescribeClusterResponse:
    """Describe brokers to every client, and controllers to those that may alter the cluster."""
    need = next(each for each in needs(context) if each.refusal is Refusal.WHOLE)
    if context.listener in broker.config.controller_listener_names and not allows(context, need):
        return DescribeClusterResponse(
            error_code=_DENIED, error_message=_DENIED.meaning, cluster_id="", controller_id=-1, brokers=[]
        )
    answer: DescribeClusterResponse = await handler(broker, request, context)
    return answer


@guard_from
async def create_acls(broker: Any, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Refuse each binding that is to be created."""
    refused = AclCreationResult(error_code=_DENIED, error_message=_DENIED.meaning)
    return CreateAclsResponse(results=[refused] * len(request.creations))


@guard_from
async def delete_acls(broker: Any, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Refuse each filter of bindings that are to be deleted."""
    refused = DeleteAclsFilterResult(error_code=_DENIED, error_message=_DENIED.meaning)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


@guard_from
async def alter_client_quotas(
    broker: Any, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Refuse each entity whose quotas are to be changed."""
    return AlterClientQuotasResponse(
        entries=[
            EntryResult(error_code=_DENIED, error_message=_DENIED.meaning, entity=entry.entity)
            for entry in request.entries
        ]
    )


@guard_from
async def alter_user_scram_credentials(
    broker: Any, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Refuse each user whose credentials are to be changed; a client that may change them can become any user."""
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=_DENIED, error_message=_DENIED.meaning)
            for user in dict.fromkeys(names)
        ]
    )


@guard_from
async def elect_leaders(broker: Any, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Refuse the election of each partition's leader."""
    return await no_election(KafkaError(_DENIED, _DENIED.meaning), request, context.api_version)


@guard_from
async def alter_partition_reassignments(
    broker: Any, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Refuse the reassignment of each partition."""
    answer = AlterPartitionReassignmentsResponse(error_code=_DENIED, error_message=_DENIED.meaning)
    async for topics in broker.slices.pieces(request.topics):
        answer.responses += [
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_code=_DENIED, error_message=_DENIED.meaning
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ]
    return answer


@guard_from
async def list_partition_reassignments(
    broker: Any, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Refuse the list; as in Kafka, the refusal repeats the partitions that the request names."""
    return ListPartitionReassignmentsResponse(
        error_code=_DENIED,
        error_message=_DENIED.meaning,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=each) for each in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


@guard_from
async def alter_replica_log_dirs(
    broker: Any, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Refuse the move of each replica, by topic."""
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[]))
            result.partitions += [
                AlterReplicaLogDirPartitionResult(partition_index=each, error_code=_DENIED) for each in topic.partitions
            ]
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


async def describe_configs(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Describe the settings of resources that the client may describe; refuse the others."""
    request.resources, refused = await _divided_resources(broker, context, request.resources)
    answer = await handler(broker, request, context)
    answer.results += [
        DescribeConfigsResult(
            error_code=need.error,
            error_message=need.error.meaning,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        for resource, need in refused
    ]
    return answer


async def alter_configs(broker: Any, request: Any, context: RequestContext, handler: Handler) -> Any:
    """Change the settings of resources that the client may alter; refuse the others.

    Serves AlterConfigs and IncrementalAlterConfigs.
    """
    asked = request.resources
    times: dict[tuple[int, str], int] = {}
    for resource in asked:
        key = (resource.resource_type, resource.resource_name)
        times[key] = times.get(key, 0) + 1
    request.resources, refused = await _divided_resources(broker, context, asked, times)
    answer = await handler(broker, request, context)
    is_old = context.api_key == ApiKey.ALTER_CONFIGS
    answer.responses += [
        (alter if is_old else incremental).AlterConfigsResourceResponse(
            error_code=need.error,
            error_message=need.error.meaning,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, need in refused
    ]
    return answer


async def _divided_resources(
    broker: Any, context: RequestContext, resources: list[Any], times: dict[tuple[int, str], int] | None = None
) -> tuple[list[Any], list[tuple[Any, Need]]]:
    """Divide resources into the allowed and the refused; malformed ones are left to the handler, which reports them."""
    of_topic, of_group, of_cluster = needs(context)
    allowed: list[Any] = []
    refused: list[tuple[Any, Need]] = []
    async for some in broker.slices.pieces(resources):
        for resource in some:
            need, name = of_cluster, CLUSTER_NAME
            if resource.resource_type == ConfigResourceType.TOPIC:
                need, name = of_topic, resource.resource_name
            elif resource.resource_type == ConfigResourceType.GROUP:
                need, name = of_group, resource.resource_name
            is_repeated = times is not None and times[resource.resource_type, resource.resource_name] > 1
            if is_repeated or resource.resource_type not in _TYPES or allows(context, need, name):
                allowed.append(resource)
            else:
                refused.append((resource, need))
    return allowed, refused


_BROKER_LOGGER = 8
_TYPES = frozenset({*(int(each) for each in ConfigResourceType), _BROKER_LOGGER})
