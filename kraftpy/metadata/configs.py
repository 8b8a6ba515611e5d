"""What is decided about settings of topics, brokers and groups: incremental changes (KIP-339) and whole replacements.

A resource's changes are taken all or none, judged by the settings that would stand afterwards. The judgement uses the
tables of `kraftpy.config` and Kafka's defaults, never the settings of the broker that happens to decide: every node
must come to the same answer. Where the default of the broker that took the request matters (appending to a list that
is not set), the command carries it.

Left out: loggers and client metrics as resources (INVALID_REQUEST); whether a broker can act on a changed setting
without a restart, and the bounds it sets to groups, which is for the broker that takes the request to refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, topic_config
from kraftpy.config.group import GROUP_SETTINGS, parse_group_setting
from kraftpy.metadata.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    SetConfigs,
)
from kraftpy.metadata.decision import ConfigResult, Decision, Refused
from kraftpy.metadata.elections import Rules, Wish, changed, settle
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, Image
from kraftpy.metadata.records import ConfigChanged, Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId

_KAFKA_DEFAULTS = BrokerConfig()
_SETTINGS = {
    ConfigResourceType.TOPIC: TOPIC_SETTINGS,
    ConfigResourceType.BROKER: BROKER_SETTINGS,
    ConfigResourceType.GROUP: GROUP_SETTINGS,
}
_FOR_ELECTIONS = (MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION)


def set_configs(command: SetConfigs, image: Image) -> Decision[tuple[ConfigResult, ...]]:
    """Change each resource that may be changed; one that the command names twice is refused each time."""
    times_named = Counter((change.resource_type, change.resource_name) for change in command.changes)
    records: list[Record] = []
    results = []
    for change in command.changes:
        error, message = ErrorCode.NONE, None
        try:
            if times_named[change.resource_type, change.resource_name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request names this resource more than once.")
            resource_type = _existing(change, image)
            if change.replace:
                records += _replacement_records(resource_type, change, image)
            else:
                records += config_records(resource_type, change.resource_name, change.operations, image)
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(
            ConfigResult(
                resource_type=change.resource_type, resource_name=change.resource_name, error=error, message=message
            )
        )
    records += _settled(records, image)
    return Decision(records=() if command.validate_only else tuple(records), result=tuple(results))


def _settled(decided: Sequence[Record], image: Image) -> list[Record]:
    """What becomes of partitions when the minimum of their ISR changes, or unclean elections are allowed."""
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
    return [
        record
        for topic in concerned
        if topic is not None
        for number, partition in enumerate(topic.partitions)
        for record in changed(topic, number, partition, settle(topic.name, partition, Wish(), rules))
    ]


def _apply(change: ConfigChanged, configs: dict[str, str]) -> None:
    if change.value is None:
        configs.pop(change.name, None)
    else:
        configs[change.name] = change.value


def config_records(
    resource_type: ConfigResourceType, name: str, operations: Sequence[ConfigOperation], image: Image
) -> list[Record]:
    """What these operations change of a resource that exists or is about to. Raises `Refused`."""
    if any(times > 1 for times in Counter(operation.name for operation in operations).values()):
        raise Refused(ErrorCode.INVALID_REQUEST, "The request names a setting of this resource more than once.")
    _refuse_nulls(operations)
    before = image.configs(resource_type, name)
    after = dict(before)
    for operation in operations:
        value = _after(operation, resource_type, before.get(operation.name))
        if value is None:
            after.pop(operation.name, None)
        else:
            after[operation.name] = value
    return _difference(resource_type, name, before, after, image)


def _replacement_records(resource_type: ConfigResourceType, change: ConfigChange, image: Image) -> list[Record]:
    _refuse_nulls(change.operations)
    after = {operation.name: operation.value or "" for operation in change.operations}
    before = image.configs(resource_type, change.resource_name)
    return _difference(resource_type, change.resource_name, before, after, image)


def _existing(change: ConfigChange, image: Image) -> ConfigResourceType:
    """The kind of a resource that a client named, if there is such a one."""
    name = change.resource_name
    match change.resource_type:
        case ConfigResourceType.TOPIC:
            if image.topic(name) is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            return ConfigResourceType.TOPIC
        case ConfigResourceType.BROKER:
            if name and (not name.isascii() or not name.isdecimal() or len(name) > 10 or str(int(name)) != name):
                raise Refused(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker's id.")
            if name and image.broker(BrokerId(int(name))) is None:
                raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} is registered.")
            return ConfigResourceType.BROKER
        case ConfigResourceType.GROUP:  # there may be no such group yet
            if not name:
                raise Refused(ErrorCode.INVALID_REQUEST, "The name of a group is empty.")
            return ConfigResourceType.GROUP
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Resources of type {change.resource_type} have no settings here.")


def _refuse_nulls(operations: Sequence[ConfigOperation]) -> None:
    deleting = ConfigOperationType.DELETE
    if nulls := sorted(o.name for o in operations if o.value is None and o.operation is not deleting):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Settings without a value: {', '.join(nulls)}")


def _after(operation: ConfigOperation, resource_type: ConfigResourceType, current: str | None) -> str | None:
    """One setting after one operation; None where it is then not set."""
    match operation.operation:
        case ConfigOperationType.SET:
            return operation.value
        case ConfigOperationType.DELETE:
            return None
    setting = _SETTINGS[resource_type].get(operation.name)
    if setting is not None and setting.type is not ConfigType.LIST:
        verb = operation.operation.name.lower()
        raise Refused(ErrorCode.INVALID_CONFIG, f"{operation.name} is not a list: there is nothing to {verb}.")
    items = _items(operation.inherited if current is None else current)
    given = _items(operation.value)
    if operation.operation is ConfigOperationType.APPEND:
        return ",".join(dict.fromkeys(items + given))
    return ",".join(item for item in items if item not in given)


def _items(text: str | None) -> list[str]:
    return [item for part in (text or "").split(",") if (item := part.strip())]


def _difference(
    resource_type: ConfigResourceType, name: str, before: Mapping[str, str], after: Mapping[str, str], image: Image
) -> list[Record]:
    """One record for each setting that differs, by name, if the whole of `after` is allowed."""
    if problem := _problem(resource_type, tuple(sorted(after.items()))):
        raise Refused(ErrorCode.INVALID_CONFIG, problem)
    if resource_type is ConfigResourceType.BROKER and image.has_eligible_leader_replicas:
        _check_one_minimum(name, before, after)
    return [
        ConfigChanged(resource_type=resource_type, resource_name=name, name=key, value=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _check_one_minimum(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """With eligible leader replicas, leaders and controller judge an ISR by the same minimum (KIP-966)."""
    if name and MIN_INSYNC_REPLICAS in after:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_INSYNC_REPLICAS} is set for topics or for all brokers: eligible leader replicas are on.",
        )
    if not name and MIN_INSYNC_REPLICAS in before and MIN_INSYNC_REPLICAS not in after:
        raise Refused(
            ErrorCode.INVALID_CONFIG,
            f"{MIN_INSYNC_REPLICAS} stays set for all brokers while eligible leader replicas are on.",
        )


@lru_cache(maxsize=256)
def _problem(resource_type: ConfigResourceType, configs: tuple[tuple[str, str], ...]) -> str | None:
    """What is wrong with a resource's settings, in one line. Remembered: most topics are set alike."""
    try:
        if resource_type is ConfigResourceType.TOPIC:
            topic_config(dict(configs), _KAFKA_DEFAULTS)
            return None
        if resource_type is ConfigResourceType.GROUP:
            for name, text in configs:
                parse_group_setting(name, text)
            return None
        for name, text in configs:
            if name not in BROKER_SETTINGS:
                return f"{name} is not a broker setting"
            BROKER_SETTINGS[name].parse(text)
    except ConfigError as error:
        return str(error)
    return None
