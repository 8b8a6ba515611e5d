"""Checks settings from clients before they are submitted to the metadata log (KIP-226, KIP-339).

The metadata log validates by the tables alone, and must keep accepting what it once accepted. Limits that depend on
this broker's own settings, or that were added later, are therefore checked here: the size of a value, combinations that
conflict with the broker's defaults, the bounds of groups, and the total memory of the cluster's settings. Readers
tolerate values that were not checked (accepted by an earlier version or another broker).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kraftpy.broker.storage.cordoned_directories import CORDONED, check_cordoned
from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType, Setting
from kraftpy.config.client_metrics import CLIENT_METRICS_SETTINGS, UnknownOrOutOfRange, check_client_metrics
from kraftpy.config.dynamic import (
    CERTIFICATES,
    CLUSTER_SETTINGS,
    DYNAMIC_SETTINGS,
    OF_ONE_BROKER,
    Levels,
    check_listeners,
    check_settings,
    check_value,
    with_certificates,
)
from kraftpy.config.group import check_group_settings
from kraftpy.config.listener_limits import LISTENER_LIMITS, PREFIX
from kraftpy.config.settings import check_length, shortened, whole_number
from kraftpy.config.topic import check_topic_config
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigOperationType, ConfigResourceType
from kraftpy.metadata.decision import ConfigResult
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, Image, config_bytes
from kraftpy.metadata.topics import topic_name_problem
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import BrokerId

_LONGEST_NAME: Final = 249
_LISTS: Final[Mapping[int, Mapping[str, Setting]]] = {
    ConfigResourceType.BROKER: BROKER_SETTINGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
}
"""The settings of resources that are not topics, to whose lists values can be appended."""
_OF_ALL_BROKERS: Final = {*LISTENER_LIMITS, "num.network.threads"}
"""Settings of a single listener that can be set for all brokers together."""
MAX_SETTINGS_PER_RESOURCE: Final = 1_000
"""More than any resource has: a request with more settings contains unknown or duplicate names."""


def number_problem(count: int) -> str | None:
    """Return an error message if a request sets too many settings of one resource; None if not."""
    if count <= MAX_SETTINGS_PER_RESOURCE:
        return None
    return f"A request may set at most {MAX_SETTINGS_PER_RESOURCE} settings of a resource, not {count}."


class ConfigRoom:
    """The memory limit for settings, credentials, ACLs, tokens and quotas; requests reserve what they may need."""

    def __init__(self, most_bytes: int, image: Callable[[], Image]) -> None:
        self._most_bytes = most_bytes
        self._image = image
        self._held_bytes = 0

    @contextmanager
    def held(self, added_bytes: int) -> Iterator[None]:
        """Reserve memory until the settings are decided. Raises KafkaError (POLICY_VIOLATION) if there is too little.

        A change that adds nothing is always allowed.
        """
        added_bytes = max(added_bytes, 0)
        image = self._image()
        kept = image.configs_bytes + image.credentials.bytes + image.acls.bytes + image.quotas.bytes
        kept += image.delegation_tokens.bytes
        if added_bytes and kept + self._held_bytes + added_bytes > self._most_bytes:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                "The settings of all topics, brokers, groups and users, and the ACLs, would take more than "
                f"{self._most_bytes} bytes (kraftpy.max.configs.bytes).",
            )
        self._held_bytes += added_bytes
        try:
            yield
        finally:
            self._held_bytes -= added_bytes


def check_change(change: ConfigChange, config: BrokerConfig, image: Image, static: BrokerConfig | None = None) -> None:
    """Validate the settings that a change would result in. Raises KafkaError if this broker does not allow them.

    `config` are the settings in force, and `static` those of this broker's file, if different.
    """
    _check_name(change, config, image)
    if change.resource_type == ConfigResourceType.BROKER:
        _check_broker_settings(change, image, config, static or config)
        return
    if change.resource_type == ConfigResourceType.CLIENT_METRICS:
        _check_lengths(change)
        try:
            check_client_metrics(settings_after(change, image))
        except UnknownOrOutOfRange as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return
    if change.resource_type not in (ConfigResourceType.TOPIC, ConfigResourceType.GROUP):
        return  # refused by the metadata log
    after = settings_after(change, image)
    try:
        if change.resource_type == ConfigResourceType.GROUP:
            check_group_settings(after, config)
        else:
            check_topic_config(after, config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _check_name(change: ConfigChange, config: BrokerConfig, image: Image) -> None:
    """Check the name of a resource before its settings, as Kafka does. Raises KafkaError."""
    name = change.resource_name
    if change.resource_type == ConfigResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if problem := topic_name_problem(name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    elif change.resource_type == ConfigResourceType.GROUP and not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    elif change.resource_type == ConfigResourceType.BROKER and name:
        number = whole_number(name, -1) if name.isascii() and name.isdecimal() else -1
        if number < 0:
            problem = f"Node id must be an integer, but it is: {shortened(name)}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if number != config.node_id and image.broker(BrokerId(number)) is None:
            problem = f"Unexpected broker id, expected {config.node_id}, but received {number}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def topic_problem(configs: Sequence[tuple[str, str | None]], config: BrokerConfig) -> str | None:
    """Return an error message if this broker does not allow these settings for a new topic; None if it does."""
    if problem := number_problem(len(configs)):
        return problem
    try:
        check_topic_config({name: value for name, value in configs if value is not None}, config)
    except ConfigError as error:
        return str(error)
    return None


def settings_after(change: ConfigChange, image: Image) -> dict[str, str]:
    """Return a resource's settings after `change`. A list contains at least the values appended to it, joined as Kafka
    does: an empty value leaves an empty entry, which not every list allows."""
    after = {} if change.replace else dict(_before(change, image))
    settings = _LISTS.get(change.resource_type, TOPIC_SETTINGS)
    for name, value, operation, inherited in map(_parts, change.operations):
        if operation is ConfigOperationType.DELETE:
            after.pop(name, None)
        elif value is None:
            continue  # refused by the metadata log
        elif operation is ConfigOperationType.SET:
            after[name] = value
        elif name in settings and settings[name].type is ConfigType.LIST:  # others are refused by the metadata log
            known = list(filter(None, (after.get(name) or inherited or "").split(",")))
            if operation is ConfigOperationType.APPEND:
                after[name] = ",".join((*known, *value.rstrip(",").split(",")))
            elif change.resource_type == ConfigResourceType.BROKER:
                subtracted = set(value.split(","))
                after[name] = ",".join(each for each in known if each not in subtracted)
    return after


def _parts(operation: ConfigOperation) -> tuple[str, str | None, ConfigOperationType, str | None]:
    return operation.name, operation.value, operation.operation, operation.inherited


def added_bytes(change: ConfigChange, image: Image) -> int:
    """Return the memory that a change adds to its resource's settings; negative if it frees some."""
    return _bytes(change, settings_after(change, image)) - _bytes(change, _before(change, image))


def named_more_than_once(changes: Sequence[ConfigChange | ConfigResult]) -> set[tuple[int, str]]:
    """Return the resources named by more than one of these changes."""
    named = Counter((int(change.resource_type), change.resource_name) for change in changes)
    return {resource for resource, times in named.items() if times > 1}


def _before(change: ConfigChange, image: Image) -> Mapping[str, str]:
    try:
        return image.configs(ConfigResourceType(change.resource_type), change.resource_name)
    except ValueError:  # a type of resource that has no settings here
        return {}


def _bytes(change: ConfigChange, settings: Mapping[str, str]) -> int:
    return sum(config_bytes(change.resource_name, name, value) for name, value in settings.items())


def _is_unknown(name: str) -> bool:
    """Return whether a setting of brokers is unknown, so that it may belong to a plug-in or a listener, as in Kafka."""
    from kraftpy.config.describe import every_setting

    return name not in every_setting() and name.isprintable() and 0 < len(name) <= _LONGEST_NAME


def _check_lengths(change: ConfigChange) -> None:
    try:
        for operation in change.operations:
            check_length(operation.value or "")
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _check_broker_settings(change: ConfigChange, image: Image, config: BrokerConfig, static: BrokerConfig) -> None:
    """Check that brokers' settings can be changed, and their values. Raises KafkaError (INVALID_REQUEST, as Kafka).

    As in Kafka, a setting may be deleted even if it can no longer be set.
    """
    is_own = bool(change.resource_name)
    written = [each for each in change.operations if each.operation is not ConfigOperationType.DELETE]
    for operation in written:
        _check_can_change(operation.name)
    _check_lengths(change)
    before = Levels(
        image.configs(ConfigResourceType.BROKER, change.resource_name if is_own else str(config.node_id)),
        image.cluster_configs(),
    )
    after = settings_after(change, image)
    try:
        for operation in written:
            check_value(operation.name, after.get(operation.name, ""))
        for operation in change.operations:
            _check_level(operation, image, is_own=is_own)
        check_settings(before, before._replace(**{"own" if is_own else "cluster": after}), static)
        if is_own:
            check_listeners(before.own, after, static)
            with_certificates(static, after, strictly=True)
        if is_own and any(operation.name == CORDONED for operation in written):
            _check_cordoned(change, after, image, static)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_cordoned(change: ConfigChange, after: Mapping[str, str], image: Image, static: BrokerConfig) -> None:
    """Check which directories a broker is to cordon. Raises ConfigError; KafkaError if this node cannot know them.

    As in Kafka, no other node knows a broker's directories, and can only take some from those that are cordoned.
    """
    names = _cordoned_in(after)
    if static.is_broker and change.resource_name == str(static.node_id):
        check_cordoned(names, static.log_dirs)
        return
    if not set(names) <= set(_cordoned_in(_before(change, image))):
        problem = f"When updating {CORDONED} via controllers,  the new value must be a subset of the current"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{problem} configuration value.")


def _cordoned_in(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cordoned directories that a broker's settings name. Raises ConfigError."""
    values = BROKER_SETTINGS[CORDONED].parse(settings.get(CORDONED, ""))
    assert isinstance(values, tuple)
    return values


def _check_can_change(name: str) -> None:
    """Check that a setting can change while brokers run. Raises KafkaError."""
    if name in DYNAMIC_SETTINGS or _is_unknown(name):
        return
    problem = "Cannot update these configs dynamically"
    if name in CERTIFICATES:
        problem = "These security configs can be dynamically updated only per-listener using the listener prefix"
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{problem}: [{shortened(name)}]")


def _check_level(operation: ConfigOperation, image: Image, *, is_own: bool) -> None:
    """Check that a setting can be altered for one broker (`is_own`), or for all. Raises KafkaError."""
    name = operation.name
    if is_own and name == MIN_INSYNC_REPLICAS and image.has_eligible_leader_replicas:
        problem = f"Broker-level {name} cannot be altered while ELR is enabled."
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    if operation.operation is ConfigOperationType.DELETE:
        return
    if is_own and name in CLUSTER_SETTINGS:
        problem = f"{name} can only be set for all brokers, not for a single one"
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    is_of_listener = name.startswith(PREFIX) and name.removeprefix(PREFIX).partition(".")[2] not in _OF_ALL_BROKERS
    if not is_own and (is_of_listener or name in OF_ONE_BROKER):
        problem = "Cannot update these configs at default cluster level, broker id must be specified"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{problem}: [{shortened(name)}]")
