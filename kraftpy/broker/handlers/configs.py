"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74): settings.

Settings belong to topics, brokers, groups and client metrics subscriptions. A group's settings can be set before the
group exists; the broker that handles the request bounds them by its own settings. A subscription exists while it has
settings. The levels of a broker's loggers belong to its process (`broker.loggers`).

Topic settings change in the metadata log and apply to open logs immediately. So do those of brokers that can change at
runtime (`config.dynamic`), for one broker or all; any other is refused (INVALID_REQUEST). KIP-133, KIP-226 (sources and
synonyms), KIP-339 (incremental), KIP-412 (loggers), KIP-569 (types and documentation), KIP-848 (groups), KIP-1142
(lists).

Left out: loggers in AlterConfigs, as in Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.loggers import change_levels, levels
from kraftpy.broker.metadata.config_changes import (
    added_bytes,
    check_change,
    named_more_than_once,
    number_problem,
    settings_after,
)
from kraftpy.broker.metadata.topic_changes import UNITS_AT_ONCE
from kraftpy.broker.slicing import PIECE
from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, Setting
from kraftpy.config.client_metrics import CLIENT_METRICS_SETTINGS
from kraftpy.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_every_broker,
    describe_group,
    describe_loggers,
    describe_topic,
    every_setting,
)
from kraftpy.config.dynamic import DYNAMIC_ONLY, with_certificates
from kraftpy.config.group import GROUP_SETTINGS
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigOperationType, ConfigResourceType, SetConfigs
from kraftpy.metadata.decision import ConfigResult
from kraftpy.metadata.topics import topic_name_problem
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages import alter_configs as alter
from kraftpy.protocol.messages import describe_configs as describe
from kraftpy.protocol.messages import incremental_alter_configs as incremental
from kraftpy.protocol.messages import list_config_resources as listing

if TYPE_CHECKING:
    from kraftpy.broker.dynamic_settings import DynamicSettings
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.security.listeners import SecureListeners
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasNodeId, HasSlices
    from kraftpy.broker.upkeep.directory_reports import ReplicaReports

    class Broker(HasClock, HasConfig, HasConfigRoom, HasImage, HasMetadata, HasNodeId, HasSlices, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def reports(self) -> ReplicaReports:
            """Tells the cluster whether this broker is cordoned."""

        @property
        def secured(self) -> SecureListeners | None:
            """The listeners with TLS or SASL; None if there are none."""

        @property
        def settings(self) -> DynamicSettings:
            """The settings in force, and those of the file."""


_MOST_DIGITS = 10
_RULES = 1
_KEY_TWICE = "Error due to duplicate config keys"
_BROKER_LOGGER = 8
_FIRST_LIST_WITH_TYPES = 1
_DESCRIBED_AT_ONCE = 5
_RESOURCE_UNITS = 100
"""The cost of describing all settings of a resource, in units of `slicing`."""


async def _check_certificates(broker: Broker, change: ConfigChange) -> None:
    """Check that this broker could take over the certificates that a change leads to. Raises KafkaError."""
    if change.resource_type != ConfigResourceType.BROKER or change.resource_name != str(broker.node_id):
        return
    after = with_certificates(broker.settings.static, settings_after(change, broker.image))
    if broker.secured is None or after.secured == broker.settings.config.secured:
        return
    try:
        await broker.secured.check(after)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


async def describe_configs(
    broker: Broker, request: describe.DescribeConfigsRequest, context: RequestContext
) -> describe.DescribeConfigsResponse:
    """Describe the settings of each resource, all of them or those named."""
    results = []
    # Each resource once, even if it is named often: a small request must not get an answer of unbounded size.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for number, resource in enumerate(resources.values(), 1):
        if not number % _DESCRIBED_AT_ONCE:
            await broker.slices.breathe(_DESCRIBED_AT_ONCE * _RESOURCE_UNITS)
        answer = describe.DescribeConfigsResult(
            error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
        )
        try:
            answer.configs = [_described(entry, request) for entry in _entries(broker, resource)]
        except KafkaError as error:
            answer.error_code = error.code
            answer.error_message = shortened(error.message)
        results.append(answer)
    return describe.DescribeConfigsResponse(results=results)


def _entries(broker: Broker, resource: describe.DescribeConfigsResource) -> list[ConfigEntry]:
    names = frozenset(resource.configuration_keys) if resource.configuration_keys else None  # no names mean all
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if problem := topic_name_problem(resource.resource_name):
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            if broker.image.topic(resource.resource_name) is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist."
                )
            return describe_topic(
                broker.image.topic_configs(resource.resource_name),
                broker.config,
                names,
                own=broker.image.configs(ConfigResourceType.BROKER, str(broker.node_id)),
                cluster=broker.image.cluster_configs(),
            )
        case ConfigResourceType.BROKER:
            if resource.resource_name == "":
                return describe_every_broker(broker.image.cluster_configs(), names)
            if _broker_id(resource.resource_name) != broker.node_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {broker.node_id} or empty string, "
                    f"but received {resource.resource_name}",
                )
            return describe_broker(
                broker.config,
                names,
                own=broker.image.configs(ConfigResourceType.BROKER, resource.resource_name),
                cluster=broker.image.cluster_configs(),
            )
        case ConfigResourceType.GROUP:
            if not resource.resource_name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            overrides = broker.image.configs(ConfigResourceType.GROUP, resource.resource_name)
            return describe_group(
                overrides,
                broker.config,
                names,
                own=broker.image.configs(ConfigResourceType.BROKER, str(broker.node_id)),
                cluster=broker.image.cluster_configs(),
            )
        case ConfigResourceType.CLIENT_METRICS:
            if not resource.resource_name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            overrides = broker.image.configs(ConfigResourceType.CLIENT_METRICS, resource.resource_name)
            return describe_client_metrics(overrides, names)
        case other if other == _BROKER_LOGGER:
            if not resource.resource_name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            if _broker_id(resource.resource_name) != broker.node_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {broker.node_id} but received {resource.resource_name}",
                )
            return describe_loggers(levels(), names)
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")


def _broker_id(name: str) -> int:
    """Return the number of a broker, leading zeros and a sign allowed, as in Kafka. Raises KafkaError."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MOST_DIGITS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return int(name)


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
        documentation=entry.documentation if request.include_documentation or not entry.documentation else None,
    )


async def alter_configs(
    broker: Broker, request: alter.AlterConfigsRequest, context: RequestContext
) -> alter.AlterConfigsResponse:
    """Replace all settings of each resource by those given."""
    changes: list[ConfigChange | ConfigResult] = []
    async for resources in broker.slices.pieces(request.resources):
        for resource in resources:
            if len({config.name for config in resource.configs}) < len(resource.configs):
                changes.append(_refused(resource, ErrorCode.INVALID_REQUEST, _KEY_TWICE))
                continue
            if problem := number_problem(len(resource.configs)):
                changes.append(_refused(resource, ErrorCode.INVALID_CONFIG, problem))
                continue
            if problem := _problem_of_nulls(config.name for config in resource.configs if config.value is None):
                changes.append(_refused(resource, ErrorCode.INVALID_REQUEST, problem))
                continue
            operations = tuple(ConfigOperation(name=config.name, value=config.value) for config in resource.configs)
            changes.append(
                ConfigChange(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    operations=operations,
                    replace=True,
                )
            )
    response = alter.AlterConfigsResponse(responses=[])
    results = await _set(broker, changes, validate_only=request.validate_only)
    async for some in broker.slices.pieces(results):
        response.responses += [
            alter.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=shortened(result.message),
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in some
        ]
    return response


async def incremental_alter_configs(
    broker: Broker, request: incremental.IncrementalAlterConfigsRequest, context: RequestContext
) -> incremental.IncrementalAlterConfigsResponse:
    """Set, delete, append to or subtract from the settings named, and leave all others."""
    changes: list[ConfigChange | ConfigResult] = []
    validate_only = request.validate_only
    inherited: dict[str, str | None] = {}
    operations_read = 0
    async for resources in broker.slices.pieces(request.resources):
        for resource in resources:
            try:
                change = _incremental_change(resource, inherited, broker.config)
                is_of_loggers = resource.resource_type == _BROKER_LOGGER
                changes.append(_of_loggers(broker, change, validate_only=validate_only) if is_of_loggers else change)
            except KafkaError as error:
                changes.append(_refused(resource, error.code, error.message))
                continue
            operations_read += len(resource.configs)
            if operations_read >= PIECE:
                await broker.slices.breathe(operations_read)
                operations_read = 0
    response = incremental.IncrementalAlterConfigsResponse(responses=[])
    results = await _set(broker, changes, validate_only=request.validate_only)
    async for some in broker.slices.pieces(results):
        response.responses += [
            incremental.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=shortened(result.message),
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in some
        ]
    return response


def _incremental_change(
    resource: incremental.AlterConfigsResource, inherited: dict[str, str | None], config: BrokerConfig
) -> ConfigChange:
    """Return the change of one resource. `inherited` holds, by name, the lists to append to. Raises KafkaError.

    A setting that is named twice is refused before anything else is checked, as Kafka does.
    """
    if len({each.name for each in resource.configs}) < len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, _KEY_TWICE)
    if problem := number_problem(len(resource.configs)):
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    nulls = (
        each.name
        for each in resource.configs
        if each.value is None and each.config_operation != ConfigOperationType.DELETE
    )
    if problem := _problem_of_nulls(nulls):
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    operations = []
    for each in resource.configs:
        operation = _operation(each.config_operation)
        found = None
        if operation in (ConfigOperationType.APPEND, ConfigOperationType.SUBTRACT):
            if each.value is not None:
                _check_list(resource.resource_type, each.name, operation)
            if resource.resource_type == ConfigResourceType.BROKER:
                found = BROKER_SETTINGS[each.name].default if each.name in BROKER_SETTINGS else None
            elif each.name in TOPIC_SETTINGS:
                if each.name not in inherited:
                    inherited[each.name] = _inherited(each.name, config)
                found = inherited[each.name]
        operations.append(ConfigOperation(name=each.name, value=each.value, operation=operation, inherited=found))
    return ConfigChange(
        resource_type=resource.resource_type, resource_name=resource.resource_name, operations=tuple(operations)
    )


def _of_loggers(broker: HasNodeId, change: ConfigChange, *, validate_only: bool) -> ConfigResult:
    """Change the levels of this process's loggers. Raises KafkaError."""
    name = change.resource_name
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MOST_DIGITS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {shortened(name)}")
    if int(name) != broker.node_id:
        problem = f"Unexpected node id. Expected {broker.node_id}, but received {int(name)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    change_levels(change.operations, validate_only=validate_only)
    return ConfigResult(resource_type=change.resource_type, resource_name=name)


def _problem_of_nulls(names: Iterable[str]) -> str | None:
    """Return the refusal of settings whose value is null; None for an empty list."""
    nulls = list(names)
    return f"Null value not supported for : {', '.join(nulls)}" if nulls else None


_SETTINGS: dict[int, Mapping[str, Setting]] = {
    ConfigResourceType.TOPIC: TOPIC_SETTINGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
    ConfigResourceType.GROUP: GROUP_SETTINGS,
}


def _check_list(resource_type: int, name: str, operation: ConfigOperationType) -> None:
    """Check that a setting is a list, which values can be appended to; unknown settings are not. Raises KafkaError."""
    if resource_type == ConfigResourceType.BROKER:
        setting = None if name in DYNAMIC_ONLY else every_setting().get(name)
        if setting is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {shortened(name)}")
        if setting.type is not ConfigType.LIST:
            problem = f"Config value {operation.name.lower()} is not allowed for config key: {name}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        return
    settings = _SETTINGS.get(resource_type)
    if settings is None or (name in settings and settings[name].type is ConfigType.LIST):
        return
    problem = f"Can't {operation.name} to key {shortened(name)} because its type is not LIST."
    raise KafkaError(ErrorCode.INVALID_CONFIG, problem)


def _operation(number: int) -> ConfigOperationType:
    try:
        return ConfigOperationType(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {number}.") from None


def _inherited(name: str, config: BrokerConfig) -> str | None:
    """Return the default value of a list that the topic does not set; appends and subtractions start from it."""
    entry = next(iter(describe_topic({}, config, frozenset((name,)))), None)
    return None if entry is None else entry.value


async def _set(
    broker: Broker, changes: Sequence[ConfigChange | ConfigResult], *, validate_only: bool
) -> list[ConfigResult]:
    """Submit the changes; return a result for each, in order. Results among `changes` are passed through.

    Resources succeed or fail independently, so many changes become several commands, with other requests in between.
    """
    results: list[ConfigResult | None] = []
    several = named_more_than_once(changes)
    async for some in broker.slices.pieces(changes):
        for change in some:
            is_named_twice = (int(change.resource_type), change.resource_name) in several
            results.append(_named_twice(change) if is_named_twice else None)
    part: list[int] = []
    units = 0
    for number, change in enumerate(changes, 1):
        part.append(number - 1)
        units += 1 + (len(change.operations) if isinstance(change, ConfigChange) else 0)
        if units >= UNITS_AT_ONCE or number == len(changes):
            await _set_some(broker, changes, results, part, validate_only=validate_only)
            await asyncio.sleep(0)
            part, units = [], 0
    return [result for result in results if result is not None]


async def _set_some(
    broker: Broker,
    changes: Sequence[ConfigChange | ConfigResult],
    results: list[ConfigResult | None],
    numbers: Sequence[int],
    *,
    validate_only: bool,
) -> None:
    """Submit those changes as one command, and store their results."""
    open_changes: dict[int, ConfigChange] = {}
    for number in numbers:
        change = changes[number]
        if results[number] is not None:
            continue
        if isinstance(change, ConfigResult):
            results[number] = change
        else:
            try:
                check_change(change, broker.config, broker.image, broker.settings.static)
                await _check_certificates(broker, change)
                open_changes[number] = change
            except KafkaError as error:
                results[number] = _refused(change, error.code, error.message)
    if not open_changes:
        return
    with contextlib.ExitStack() as held:
        for number, change in list(open_changes.items()):
            try:
                held.enter_context(broker.config_room.held(added_bytes(change, broker.image)))
            except KafkaError as error:
                results[number] = _refused(change, error.code, error.message)
                del open_changes[number]
        changed = tuple(open_changes.values())
        command = SetConfigs(changes=changed, time_ms=broker.clock.now(), validate_only=validate_only, rules=_RULES)
        try:
            decided = (await broker.metadata.submit(command)).result or ()
            await broker.reports.report_cordon()  # before the answer: the next topic must not be placed here
        except KafkaError as error:
            decided = tuple(_refused(change, error.code, error.message) for change in changed)
    for number, result in zip(open_changes, decided, strict=True):
        results[number] = result


def _named_twice(change: ConfigChange | ConfigResult) -> ConfigResult:
    message = "Each resource must appear at most once."
    return _refused(change, ErrorCode.INVALID_REQUEST, message)


def _refused(
    change: ConfigChange | ConfigResult | alter.AlterConfigsResource | incremental.AlterConfigsResource,
    error: ErrorCode,
    message: str,
) -> ConfigResult:
    return ConfigResult(
        resource_type=change.resource_type, resource_name=change.resource_name, error=error, message=message
    )


async def list_config_resources(
    broker: Broker, request: listing.ListConfigResourcesRequest, context: RequestContext
) -> listing.ListConfigResourcesResponse:
    """List the resources with settings: every topic and broker, and the groups and subscriptions that have some."""
    has_types = context.api_version >= _FIRST_LIST_WITH_TYPES
    asked = request.resource_types if has_types else [ConfigResourceType.CLIENT_METRICS]
    names: dict[int, list[str]] = {
        ConfigResourceType.CLIENT_METRICS: broker.image.configured(ConfigResourceType.CLIENT_METRICS),
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
