"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): list and change ACL bindings (KIP-140, KIP-290).

Bindings are in the metadata. Each binding or filter of a request succeeds or fails independently; many are decided in
parts. Bindings share the limit of all settings (`config_room`). Without an authorizer, all three requests are refused
(SECURITY_DISABLED).

A host must be an address or "*": Kafka stores any text, but this broker refuses a binding that would never apply. A
code of 0, which means unknown, closes the connection, as in Kafka.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.slicing import PIECE
from kraftpy.metadata.acls import CreateAcls, DeleteAcls, acl_bytes
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError, shortened
from kraftpy.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from kraftpy.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kraftpy.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kraftpy.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    is_address,
)

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.security.authorizer import Authorizer
    from kraftpy.broker.services import HasClock, HasImage, HasSlices

    class Broker(HasClock, HasConfigRoom, HasImage, HasMetadata, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def authorizer(self) -> Authorizer | None:
            """The authorizer; None if every client may do everything."""


_NO_AUTHORIZER = "No Authorizer is configured."
_NO_AUTHORIZER_ON_THE_BROKER = "No Authorizer is configured on the broker"
"""Kafka's words in the answer to DescribeAcls."""
_MOST_DELETED = 10_000
"""The most bindings that one request may delete."""
_MOST_FILTERS = 1_000
_COMPARED_AT_ONCE = 50_000
"""The most comparisons of a binding with a filter in one command: some 25 ms."""
_COMPARED_PER_UNIT = 10
"""How many comparisons of a binding with a filter cost one unit of `slicing`."""
_MOST_CHARACTERS = 1_024
"""The longest name, principal or host of a binding."""


async def describe_acls(broker: Broker, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """Return the bindings that a filter selects, by pattern."""
    wanted = _filter(request)
    if broker.authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER_ON_THE_BROKER)
    found: dict[tuple[int, str, int], DescribeAclsResource] = {}
    async for some in broker.slices.pieces(list(broker.image.acls)):
        for binding in some:
            if wanted.selects(binding):
                key = (binding.resource_type, binding.name, binding.pattern_type)
                if key not in found:
                    found[key] = DescribeAclsResource(
                        resource_type=binding.resource_type,
                        resource_name=binding.name,
                        pattern_type=binding.pattern_type,
                    )
                found[key].acls.append(
                    AclDescription(
                        principal=binding.principal,
                        host=binding.host,
                        operation=binding.operation,
                        permission_type=binding.permission,
                    )
                )
    return DescribeAclsResponse(error_message="", resources=list(found.values()))  # as in Kafka


async def create_acls(broker: Broker, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create bindings; one that exists already is a success."""
    for each in request.creations:
        _check_not_unknown(each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
    if broker.authorizer is None:
        refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        return CreateAclsResponse(results=[refused] * len(request.creations))
    results: list[AclCreationResult] = []
    for start in range(0, len(request.creations), PIECE):
        part = request.creations[start : start + PIECE]
        await broker.slices.breathe(len(part))
        bindings: list[AclBinding] = []
        for creation in part:
            try:
                bindings.append(_binding(creation))
                results.append(AclCreationResult(error_message=""))
            except KafkaError as error:
                results.append(AclCreationResult(error_code=error.code, error_message=shortened(error.message)))
        if not bindings:
            continue
        try:
            with broker.config_room.held(sum(map(acl_bytes, bindings))):
                await broker.metadata.submit(CreateAcls(bindings=tuple(bindings), time_ms=broker.clock.now()))
        except KafkaError as error:
            for result in results[start:]:
                if result.error_code == ErrorCode.NONE:
                    result.error_code, result.error_message = error.code, shortened(error.message)
    return CreateAclsResponse(results=results)


async def delete_acls(broker: Broker, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Delete the bindings that each filter selects, in several commands if there are many."""
    filters: list[AclFilter] = []
    problems: list[str | None] = []
    async for some in broker.slices.pieces(request.filters):
        filters += map(_filter, some)
        problems += map(_problem_of, filters[len(problems) :])
    if broker.authorizer is None:
        refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refused] * len(filters))
    results: list[DeleteAclsFilterResult] = []
    try:
        if len(filters) > _MOST_FILTERS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A request may have at most {_MOST_FILTERS} filters.")
        selected = 0
        for wanted in filters:
            await broker.slices.breathe(1 + min(PIECE, len(broker.image.acls.index)))
            async for bindings in broker.slices.pieces(list(broker.image.acls)):
                selected += sum(map(wanted.selects, bindings))
                if selected > _MOST_DELETED:
                    problem = f"Cannot remove more than {_MOST_DELETED} acls in a single delete operation."
                    raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        at_once = max(1, _COMPARED_AT_ONCE // max(1, len(broker.image.acls.index)))
        for start in range(0, len(filters), at_once):
            part = tuple(filters[start : start + at_once])
            await broker.slices.breathe(1 + len(part) * len(broker.image.acls.index) // _COMPARED_PER_UNIT)
            decision = await broker.metadata.submit(DeleteAcls(filters=part, time_ms=broker.clock.now()))
            results += [
                DeleteAclsFilterResult(matching_acls=[_deleted(binding) for binding in result.bindings])
                for result in decision.result or ()
            ]
    except KafkaError as error:
        failed = DeleteAclsFilterResult(error_code=error.code, error_message=shortened(error.message))
        results += [failed] * (len(filters) - len(results))
    for place, why in enumerate(problems):
        if why is not None:
            results[place] = DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=why)
    return DeleteAclsResponse(filter_results=results)


def _problem_of(wanted: AclFilter) -> str | None:
    """Say why a filter is invalid, in Kafka's words; None if it is valid."""
    pattern = (_word(ResourceType, wanted.resource_type), _word(PatternType, wanted.pattern_type))
    if "UNKNOWN" in pattern:
        return "Unknown patternFilter."
    entry = (_word(Operation, wanted.operation), _word(Permission, wanted.permission))
    return "Unknown entryFilter." if "UNKNOWN" in entry else None


def _deleted(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def _check_not_unknown(*codes: int) -> None:
    """Check that no code means UNKNOWN. Raises ProtocolError, which closes the connection, as in Kafka."""
    if 0 in codes:
        raise ProtocolError("ACLs contain unknown elements")


def _word(kind: type[IntEnum], code: int) -> str:
    """Return the name of a code; UNKNOWN if it has none."""
    return kind(code).name if code in kind._value2member_map_ else "UNKNOWN"


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter. A filter with an unknown code selects nothing."""
    _check_not_unknown(asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    return AclFilter(
        resource_type=asked.resource_type_filter,
        name=asked.resource_name_filter,
        pattern_type=asked.pattern_type_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def _binding(asked: AclCreation) -> AclBinding:
    """Return the binding to create. Raises KafkaError."""
    problem = None
    if asked.resource_type == ResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not asked.resource_name:
        problem = "Invalid empty resource name"
    elif asked.resource_type not in OPERATIONS:
        problem = f"Invalid resourceType {_word(ResourceType, asked.resource_type)}"
    elif asked.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = f"Invalid patternType {_word(PatternType, asked.resource_pattern_type)}"
    elif not Operation.ANY < asked.operation <= max(Operation):
        problem = f"Invalid operation {_word(Operation, asked.operation)}"
    elif asked.permission_type not in (Permission.DENY, Permission.ALLOW):
        problem = f"Invalid permissionType {_word(Permission, asked.permission_type)}"
    elif max(len(asked.resource_name), len(asked.principal), len(asked.host)) > _MOST_CHARACTERS:
        problem = f"Resource name, principal and host must not exceed {_MOST_CHARACTERS} characters"
    elif ":" not in asked.principal:
        problem = (
            f"Could not parse principal from `{shortened(asked.principal)}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    elif asked.host != WILDCARD and not is_address(asked.host):
        problem = f"Invalid host {shortened(asked.host)}: expected an IP address, or {WILDCARD} for every host"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return AclBinding(
        resource_type=asked.resource_type,
        name=asked.resource_name,
        pattern_type=asked.resource_pattern_type,
        principal=asked.principal,
        host=asked.host,
        operation=asked.operation,
        permission=asked.permission_type,
    )
