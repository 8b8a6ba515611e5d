"""Decisions about settings of topics, brokers and groups: incremental changes (KIP-339) and whole replacements.

Changes to one resource are accepted or refused together, by validating the settings that would result. Validation uses
the tables of `kraftpy.config` and Kafka's defaults, never the deciding broker's own settings, because every node must
reach the same decision. The active controller's static settings for elections are in the image: it puts them there. If
the default of the broker that received the request matters (appending to a list that is not set), the command carries
it.

Left out: loggers as resources, which belong to one process (INVALID_REQUEST). The broker that receives the request
checks whether the broker or controller exists, whether a setting can change without a restart, a group's settings
against its own bounds, and the patterns of client metrics, on which versions of Python may disagree. Unknown settings
of brokers are stored, as in Kafka: they may belong to a plug-in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, topic_config
from kraftpy.config.client_metrics import CLIENT_METRICS_SETTINGS, UnknownOrOutOfRange, check_client_metrics
from kraftpy.config.dynamic import WITHOUT_EFFECT, dynamic_settings
from kraftpy.config.group import GROUP_SETTINGS, parse_group_setting
from kraftpy.metadata.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    SetConfigs,
    SetControllerDefaults,
)
from kraftpy.metadata.decision import ConfigResult, Decision, Refused
from kraftpy.metadata.elections import PartitionUpdate, Rules, change_records, next_state
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, Image, Topic
from kraftpy.metadata.records import ConfigChanged, ControllerDefaultsChanged, PartitionChanged, Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId

_KAFKA_DEFAULTS = BrokerConfig()
_SETTINGS = {
    ConfigResourceType.TOPIC: TOPIC_SETTINGS,
    ConfigResourceType.BROKER: BROKER_SETTINGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
    ConfigResourceType.GROUP: GROUP_SETTINGS,
}
_FOR_ELECTIONS = (MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION)


def set_configs(command: SetConfigs, image: Image) -> Decision[tuple[ConfigResult, ...]]:
    """Change each resource independently. All entries of a resource that is named twice are refused."""
    times_named = Counter((change.resource_type, change.resource_name) for change in command.changes)
    records: list[Record] = []
    results = []
    for change in command.changes:
        error, message = ErrorCode.NONE, None
        try:
            if times_named[change.resource_type, change.resource_name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            resource_type = _existing(change, image, command.rules)
            if change.replace:
                records += _replacement_records(resource_type, change, image, command.rules)
            else:
                records += config_records(
                    resource_type, change.resource_name, change.operations, image, rules=command.rules
                )
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(
            ConfigResult(
                resource_type=change.resource_type, resource_name=change.resource_name, error=error, message=message
            )
        )
    records += _partition_changes(records, image)
    return Decision(records=() if command.validate_only else tuple(records), result=tuple(results))


def _partition_changes(decided: Sequence[Record], image: Image) -> list[Record]:
    """Return the partition changes caused by a new min.insync.replicas or unclean.leader.election.enable."""
    changes = [record for record in decided if isinstance(record, ConfigChanged) and record.name in _FOR_ELECTIONS]
    topics: dict[str, dict[str, str]] = {}
    cluster = dict(image.cluster_configs())
    for change in changes:
        if change.resource_type is ConfigResourceType.TOPIC:
            name = change.resource_name
            _apply(change, topics.setdefault(name, dict(image.topic_configs(name))))
        elif change.resource_name == "":
            _apply(change, cluster)
    rules = Rules(image, topic_configs=topics, cluster_configs=cluster)
    concerned = image.topics() if cluster != image.cluster_configs() else [image.topic(name) for name in sorted(topics)]
    return [*_decided_again(concerned, rules)]


def set_controller_defaults(command: SetControllerDefaults, image: Image) -> Decision[None]:
    """Take over a new active controller's settings for elections, and make the changes that follow from them."""
    defaults: dict[str, str] = {}
    for config in command.configs:
        if config.name not in _FOR_ELECTIONS or config.value is None:
            message = f"{config.name} is not a setting for elections, or has no value"
            return Decision(error=ErrorCode.INVALID_REQUEST, message=message)
        defaults[config.name] = config.value
    if problem := _problem(ConfigResourceType.BROKER, tuple(sorted(defaults.items()))):
        return Decision(error=ErrorCode.INVALID_CONFIG, message=problem)
    if defaults == image.controller_defaults:
        return Decision()
    rules = Rules(image, controller_defaults=defaults)
    return Decision(
        records=(ControllerDefaultsChanged(configs=command.configs), *_decided_again(image.topics(), rules))
    )


def _decided_again(topics: Sequence[Topic | None], rules: Rules) -> list[PartitionChanged]:
    """Return the changes to partitions of these topics that follow from the new rules alone."""
    return [
        record
        for topic in topics
        if topic is not None
        for number, partition in enumerate(topic.partitions)
        for record in change_records(
            topic, number, partition, next_state(topic.name, partition, PartitionUpdate(), rules)
        )
    ]


def _apply(change: ConfigChanged, configs: dict[str, str]) -> None:
    if change.value is None:
        configs.pop(change.name, None)
    else:
        configs[change.name] = change.value


def config_records(
    resource_type: ConfigResourceType,
    name: str,
    operations: Sequence[ConfigOperation],
    image: Image,
    *,
    rules: int = 0,
) -> list[Record]:
    """Return the changes these operations make to a resource that exists or is being created. Raises `Refused`."""
    if any(times > 1 for times in Counter(operation.name for operation in operations).values()):
        raise Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    _refuse_nulls(operations)
    before = image.configs(resource_type, name)
    after = dict(before)
    for operation in operations:
        value = _after(operation, resource_type, before.get(operation.name))
        if value is None:
            after.pop(operation.name, None)
        else:
            after[operation.name] = value
    return _difference(resource_type, name, before, after, image, rules)


def _replacement_records(
    resource_type: ConfigResourceType, change: ConfigChange, image: Image, rules: int
) -> list[Record]:
    _refuse_nulls(change.operations)
    after = {operation.name: operation.value or "" for operation in change.operations}
    before = image.configs(resource_type, change.resource_name)
    return _difference(resource_type, change.resource_name, before, after, image, rules)


def _existing(change: ConfigChange, image: Image, rules: int) -> ConfigResourceType:
    """Return the type of an existing resource. Raises `Refused` if the client named one that does not exist."""
    name = change.resource_name
    match change.resource_type:
        case ConfigResourceType.TOPIC:
            if image.topic(name) is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            return ConfigResourceType.TOPIC
        case ConfigResourceType.BROKER:
            if name and (not name.isascii() or not name.isdecimal() or len(name) > 10 or str(int(name)) != name):
                raise Refused(ErrorCode.INVALID_REQUEST, f"Unable to parse broker name '{name}' as a base 10 number.")
            if name and not rules and image.broker(BrokerId(int(name))) is None:
                raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")
            return ConfigResourceType.BROKER
        case ConfigResourceType.GROUP:  # settings may precede the group
            if not name:
                raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            return ConfigResourceType.GROUP
        case ConfigResourceType.CLIENT_METRICS if rules:
            if not name:
                raise Refused(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
            return ConfigResourceType.CLIENT_METRICS
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {int(change.resource_type)}")


def _refuse_nulls(operations: Sequence[ConfigOperation]) -> None:
    deleting = ConfigOperationType.DELETE
    if nulls := sorted(o.name for o in operations if o.value is None and o.operation is not deleting):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _after(operation: ConfigOperation, resource_type: ConfigResourceType, current: str | None) -> str | None:
    """Return a setting's value after one operation; None if it is no longer set."""
    match operation.operation:
        case ConfigOperationType.SET:
            return operation.value
        case ConfigOperationType.DELETE:
            return None
    setting = _SETTINGS[resource_type].get(operation.name)
    if setting is not None and setting.type is not ConfigType.LIST:
        message = f"Can't {operation.operation.name} to key {operation.name} because its type is not LIST."
        raise Refused(ErrorCode.INVALID_CONFIG, message)
    items = _items(operation.inherited if current is None else current)
    given = _items(operation.value)
    if operation.operation is ConfigOperationType.APPEND:
        return ",".join(dict.fromkeys(items + given))
    subtracted = set(given)
    return ",".join(item for item in items if item not in subtracted)


def _items(text: str | None) -> list[str]:
    return [item for part in (text or "").split(",") if (item := part.strip())]


def _difference(
    resource_type: ConfigResourceType,
    name: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    image: Image,
    rules: int,
) -> list[Record]:
    """Return one record for each setting that differs, by name. Raises `Refused` if `after` is not valid."""
    if resource_type is ConfigResourceType.CLIENT_METRICS:
        _check_client_metrics(after)
    elif problem := _problem(resource_type, tuple(sorted(after.items())), rules):
        raise Refused(ErrorCode.INVALID_CONFIG, problem)
    if resource_type is ConfigResourceType.BROKER and image.has_eligible_leader_replicas:
        _check_min_insync_replicas(name, before, after)
    return [
        ConfigChanged(resource_type=resource_type, resource_name=name, name=key, value=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _check_min_insync_replicas(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check that, with eligible leader replicas, leaders and controller judge ISRs by the same minimum (KIP-966)."""
    if name and MIN_INSYNC_REPLICAS in after:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled.",
        )
    if not name and MIN_INSYNC_REPLICAS in before and MIN_INSYNC_REPLICAS not in after:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled.",
        )


def _check_client_metrics(settings: Mapping[str, str]) -> None:
    try:
        check_client_metrics(settings, with_patterns=False)
    except UnknownOrOutOfRange as error:
        raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
    except ConfigError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error


@lru_cache(maxsize=256)
def _problem(resource_type: ConfigResourceType, configs: tuple[tuple[str, str], ...], rules: int = 0) -> str | None:
    """Describe the first invalid setting in one line, or return None. Cached, since most topics share settings."""
    try:
        if resource_type is ConfigResourceType.TOPIC:
            topic_config(dict(configs), _KAFKA_DEFAULTS)
            return None
        if resource_type is ConfigResourceType.GROUP:
            for name, text in configs:
                parse_group_setting(name, text)
            return None
        for name, text in configs:
            if name in BROKER_SETTINGS:
                BROKER_SETTINGS[name].parse(text)
            elif rules and name in WITHOUT_EFFECT:
                dynamic_settings()[name].parse(text)
            elif not rules:
                return f"{name} is not a broker setting"
    except ConfigError as error:
        return str(error)
    return None
