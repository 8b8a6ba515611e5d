"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74): settings.

They belong to topics, brokers and groups; a group's need no group yet, and the broker that takes the request bounds
them by its own.

Topic settings change in the metadata log and take effect on the open logs at once. Of the brokers' settings few can be
changed while they run: the replication throttles of one broker or of every one, and for every one together what
elections go by (`CLUSTER_SETTINGS`). An attempt at another says so (INVALID_CONFIG). KIP-133, KIP-226 (sources and
synonyms), KIP-339 (incremental), KIP-569 (types and documentation), KIP-848 (groups), KIP-1142 (lists).

Left out: broker loggers and client metrics as resources (KIP-412, KIP-714): INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kraftpy.broker.apis import shortened
from kraftpy.broker.topic_changes import UNITS_AT_ONCE
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.broker import CLUSTER_SETTINGS, DYNAMIC_ONLY, DYNAMIC_SETTINGS
from kraftpy.config.describe import ConfigEntry, describe_broker, describe_every_broker, describe_group, describe_topic
from kraftpy.config.group import check_group_settings
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigOperationType, ConfigResourceType, SetConfigs
from kraftpy.metadata.decision import ConfigResult
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import alter_configs as alter
from kraftpy.protocol.messages import describe_configs as describe
from kraftpy.protocol.messages import incremental_alter_configs as incremental
from kraftpy.protocol.messages import list_config_resources as listing

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.request import RequestContext

_CLIENT_METRICS = 16
_BROKER_LOGGER = 8
_FIRST_LIST_WITH_TYPES = 1
_LONG_NAME = 256


async def describe_configs(
    broker: Broker, request: describe.DescribeConfigsRequest, context: RequestContext
) -> describe.DescribeConfigsResponse:
    """The settings of each resource: all, or those named."""
    results = []
    # Each once, however often it is named: a small request must not become an answer of any size.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for resource in resources.values():
        answer = describe.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
        )
        try:
            answer.configs = [_described(entry, request) for entry in _entries(broker, resource)]
        except KafkaError as error:
            answer.error_code = error.code
            answer.error_message = shortened(str(error))
        results.append(answer)
    return describe.DescribeConfigsResponse(results=results)


def _entries(broker: Broker, resource: describe.DescribeConfigsResource) -> list[ConfigEntry]:
    names = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if broker.image.topic(resource.resource_name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {resource.resource_name!r}")
            return describe_topic(
                broker.image.topic_configs(resource.resource_name),
                broker.config,
                names,
                cluster=broker.image.cluster_configs(),
            )
        case ConfigResourceType.BROKER:
            if resource.resource_name == "":
                return describe_every_broker(broker.image.cluster_configs(), names)
            if resource.resource_name != str(broker.node_id):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"broker {resource.resource_name!r} does not answer here; ask it itself"
                )
            return describe_broker(
                broker.config,
                names,
                own=broker.image.configs(ConfigResourceType.BROKER, resource.resource_name),
                cluster=broker.image.cluster_configs(),
            )
        case ConfigResourceType.GROUP:
            if not resource.resource_name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the name of a group is empty")
            overrides = broker.image.configs(ConfigResourceType.GROUP, resource.resource_name)
            return describe_group(overrides, broker.config, names)
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {other} have no settings here")


def _described(entry: ConfigEntry, request: describe.DescribeConfigsRequest) -> describe.DescribeConfigsResourceResult:
    return describe.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            describe.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


async def alter_configs(
    broker: Broker, request: alter.AlterConfigsRequest, context: RequestContext
) -> alter.AlterConfigsResponse:
    """Make the settings named all that is set for each resource."""
    changes = [
        ConfigChange(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            operations=tuple(ConfigOperation(name=config.name, value=config.value) for config in resource.configs),
            replace=True,
        )
        for resource in request.resources
    ]
    return alter.AlterConfigsResponse(
        responses=[
            alter.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=shortened(result.message),
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in await _set(broker, changes, validate_only=request.validate_only)
        ]
    )


async def incremental_alter_configs(
    broker: Broker, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
) -> incremental.IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from the settings named; the others stay."""
    changes: list[ConfigChange | ConfigResult] = []
    for resource in request.resources:
        try:
            operations = tuple(
                ConfigOperation(
                    name=config.name,
                    value=config.value,
                    operation=_operation(config.config_operation),
                    inherited=_inherited(config.name, config.config_operation, broker.config),
                )
                for config in resource.configs
            )
        except KafkaError as error:
            changes.append(
                ConfigResult(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    error=error.code,
                    message=str(error),
                )
            )
            continue
        changes.append(
            ConfigChange(
                resource_type=resource.resource_type, resource_name=resource.resource_name, operations=operations
            )
        )
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=shortened(result.message),
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in await _set(broker, changes, validate_only=request.validate_only)
        ]
    )


def _operation(number: int) -> ConfigOperationType:
    try:
        return ConfigOperationType(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{number} is no operation on a setting") from None


def _inherited(name: str, operation: int, config: BrokerConfig) -> str | None:
    """What a list holds where the topic does not set it: what is appended to or subtracted from."""
    if operation not in (ConfigOperationType.APPEND, ConfigOperationType.SUBTRACT):
        return None
    entry = next(iter(describe_topic({}, config, frozenset((name,)))), None)
    return None if entry is None else entry.value


async def _set(
    broker: Broker, changes: Sequence[ConfigChange | ConfigResult], *, validate_only: bool
) -> list[ConfigResult]:
    """Decide the changes, many in parts; a result for each, in order. What is a result already stays what it is."""
    results = [_refused_here(change, broker) if isinstance(change, ConfigChange) else change for change in changes]
    places: dict[tuple[int, str], list[int]] = {}  # changes of one resource are judged together
    new_groups = _NewGroups(broker)
    for place, change in enumerate(changes):
        if isinstance(change, ConfigChange) and results[place] is None:
            if (refused := new_groups.refused(change)) is not None:
                results[place] = refused
            else:
                places.setdefault((change.resource_type, change.resource_name), []).append(place)
    part: list[int] = []
    units = 0
    for number, of_resource in enumerate(places.values(), 1):
        part += of_resource
        some = [change for place in of_resource if isinstance(change := changes[place], ConfigChange)]
        units += sum(1 + len(change.operations) for change in some)
        if units >= UNITS_AT_ONCE or number == len(places):
            some = [change for place in part if isinstance(change := changes[place], ConfigChange)]
            for place, result in zip(part, await _set_some(broker, some, validate_only=validate_only), strict=True):
                results[place] = result
            part, units = [], 0
            await asyncio.sleep(0)
    return [result for result in results if result is not None]


async def _set_some(broker: Broker, changes: Sequence[ConfigChange], *, validate_only: bool) -> Sequence[ConfigResult]:
    command = SetConfigs(changes=tuple(changes), time_ms=broker.clock.now(), validate_only=validate_only)
    try:
        return (await broker.metadata.submit(command)).result or ()
    except KafkaError as error:
        return [_refused(change, error.code, error.message) for change in changes]


class _NewGroups:
    """Counts groups with settings of their own: they need not exist, and their settings are kept for good."""

    def __init__(self, broker: Broker) -> None:
        self._image = broker.image
        self._limit = broker.config.kraftpy_max_configured_groups
        self._known: dict[str, None] | None = None
        self._count = 0

    def refused(self, change: ConfigChange) -> ConfigResult | None:
        """What is told of settings for one group more than may have some; None for all other changes."""
        if change.resource_type != ConfigResourceType.GROUP:
            return None
        if self._known is None:
            self._known = dict.fromkeys(self._image.configured(ConfigResourceType.GROUP))
            self._count = sum(map(_weight_of_name, self._known))
        name = change.resource_name
        if name in self._known:
            return None
        if self._count + _weight_of_name(name) > self._limit:
            message = f"No more groups may have settings of their own: kraftpy.max.configured.groups={self._limit}."
            return _refused(change, ErrorCode.POLICY_VIOLATION, message)
        self._known[name] = None
        self._count += _weight_of_name(name)
        return None


def _weight_of_name(name: str) -> int:
    """A group whose name is very long counts for several."""
    return 1 + len(name) // _LONG_NAME


def _refused_here(change: ConfigChange, broker: Broker) -> ConfigResult | None:
    if change.resource_type == ConfigResourceType.GROUP:
        return _out_of_bounds(change, broker)
    if change.resource_type != ConfigResourceType.BROKER:
        return None
    allowed = DYNAMIC_ONLY if change.resource_name else DYNAMIC_SETTINGS
    for operation in change.operations:
        if operation.name in allowed:
            continue
        if operation.name in CLUSTER_SETTINGS:
            reason = "can be set for every broker together, not for one"
        else:
            reason = "cannot be changed while a broker runs"
        return _refused(change, ErrorCode.INVALID_CONFIG, f"{operation.name} {reason}")
    return None


def _out_of_bounds(change: ConfigChange, broker: Broker) -> ConfigResult | None:
    """What this broker does not allow a group, by the settings it would then have."""
    after = {} if change.replace else dict(broker.image.configs(ConfigResourceType.GROUP, change.resource_name))
    for operation in change.operations:
        if operation.operation is ConfigOperationType.SET and operation.value is not None:
            after[operation.name] = operation.value
        elif operation.operation is ConfigOperationType.DELETE:
            after.pop(operation.name, None)
    try:
        check_group_settings(after, broker.config)
    except ConfigError as error:
        return _refused(change, ErrorCode.INVALID_CONFIG, str(error))
    return None


def _refused(change: ConfigChange, error: ErrorCode, message: str) -> ConfigResult:
    return ConfigResult(
        resource_type=change.resource_type, resource_name=change.resource_name, error=error, message=message
    )


async def list_config_resources(
    broker: Broker, request: listing.ListConfigResourcesRequest, context: RequestContext
) -> listing.ListConfigResourcesResponse:
    """What settings can be described: every topic and broker, and the groups for which something is set."""
    asked = request.resource_types if context.api_version >= _FIRST_LIST_WITH_TYPES else [_CLIENT_METRICS]
    names: dict[int, list[str]] = {
        _CLIENT_METRICS: [],  # nobody can set any (KIP-714)
        ConfigResourceType.TOPIC: [topic.name for topic in broker.image.topics()],
        ConfigResourceType.BROKER: [str(known.broker_id) for known in broker.image.brokers()],
        _BROKER_LOGGER: [str(known.broker_id) for known in broker.image.brokers()],
        ConfigResourceType.GROUP: broker.image.configured(ConfigResourceType.GROUP),
    }
    if not set(asked) <= names.keys():
        return listing.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return listing.ListConfigResourcesResponse(
        config_resources=[
            listing.ConfigResource(resource_name=name, resource_type=int(kind))
            for kind, of_kind in sorted(names.items())
            if not asked or kind in asked
            for name in of_kind
        ]
    )
