"""Which settings a client may set here: what this broker refuses before the metadata log is asked (KIP-226, KIP-339).

The metadata log judges by the tables alone, and must go on accepting what it once accepted. So the bounds that depend
on this broker's own settings, and those that came later, are kept here: the size of a value, combinations that cannot
work beside the broker's defaults, the bounds of groups, and the memory that all settings of the cluster take together.
Readers survive a value that slipped through (an earlier version accepted it, or it came by another broker).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kraftpy.config import TOPIC_SETTINGS, BrokerConfig, ConfigError, ConfigType
from kraftpy.config.broker import CLUSTER_SETTINGS, DYNAMIC_ONLY, DYNAMIC_SETTINGS
from kraftpy.config.group import check_group_settings
from kraftpy.config.settings import check_length, shortened
from kraftpy.config.topic import check_topic_config
from kraftpy.metadata.commands import ConfigChange, ConfigOperationType, ConfigResourceType
from kraftpy.metadata.image import Image, config_bytes
from kraftpy.protocol.errors import ErrorCode, KafkaError

MAX_SETTINGS_PER_RESOURCE: Final = 1_000
"""More than there are of any kind: a request that gives a resource more settings names unknown ones, or some twice."""


def number_problem(count: int) -> str | None:
    """Why a resource may not be given so many settings by one request; None if it may."""
    if count <= MAX_SETTINGS_PER_RESOURCE:
        return None
    return f"One request may give a resource {MAX_SETTINGS_PER_RESOURCE} settings, not {count}."


class ConfigRoom:
    """Room in memory for what clients set, of which requests under way hold what they may yet need."""

    def __init__(self, most_bytes: int, image: Callable[[], Image]) -> None:
        self._most_bytes = most_bytes
        self._image = image
        self._held_bytes = 0

    @contextmanager
    def held(self, added_bytes: int) -> Iterator[None]:
        """Hold room until the settings are decided. Raises KafkaError (POLICY_VIOLATION) if there is none.

        What adds nothing always has room.
        """
        added_bytes = max(added_bytes, 0)
        if added_bytes and self._image().configs_bytes + self._held_bytes + added_bytes > self._most_bytes:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The settings of all topics, brokers and groups would take more than {self._most_bytes} bytes "
                "(kraftpy.max.configs.bytes).",
            )
        self._held_bytes += added_bytes
        try:
            yield
        finally:
            self._held_bytes -= added_bytes


def check_change(change: ConfigChange, config: BrokerConfig, image: Image) -> None:
    """Raise KafkaError for a change that this broker does not allow, by the settings that would then stand."""
    if change.resource_type == ConfigResourceType.BROKER:
        _check_broker_settings(change)
        return
    if change.resource_type not in (ConfigResourceType.TOPIC, ConfigResourceType.GROUP):
        return  # refused by the metadata log
    if change.resource_type == ConfigResourceType.TOPIC and image.topic(change.resource_name) is None:
        return
    after = settings_after(change, image)
    try:
        if change.resource_type == ConfigResourceType.GROUP:
            check_group_settings(after, config)
        else:
            check_topic_config(after, config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def topic_problem(configs: Sequence[tuple[str, str | None]], config: BrokerConfig) -> str | None:
    """Why a new topic may not have these settings on this broker; None if it may."""
    if problem := number_problem(len(configs)):
        return problem
    try:
        check_topic_config({name: value for name, value in configs if value is not None}, config)
    except ConfigError as error:
        return str(error)
    return None


def settings_after(change: ConfigChange, image: Image) -> dict[str, str]:
    """Return a resource's settings after `change`. A list that is appended to holds at least what is appended."""
    after = {} if change.replace else dict(_before(change, image))
    for operation in change.operations:
        if operation.operation is ConfigOperationType.DELETE:
            after.pop(operation.name, None)
        elif operation.operation is ConfigOperationType.APPEND and operation.value is not None:
            setting = TOPIC_SETTINGS.get(operation.name)
            if setting is None or setting.type is not ConfigType.LIST:
                continue  # refused by the metadata log
            known = after.get(operation.name) or operation.inherited
            after[operation.name] = f"{known},{operation.value}" if known else operation.value
        elif operation.operation is ConfigOperationType.SET and operation.value is not None:
            after[operation.name] = operation.value
    return after


def added_bytes(change: ConfigChange, image: Image) -> int:
    """Memory that the change adds to what is set for its resource; negative if it takes some away."""
    return _bytes(change, settings_after(change, image)) - _bytes(change, _before(change, image))


def named_more_than_once(changes: Sequence[ConfigChange]) -> set[tuple[int, str]]:
    """The resources that several of these changes name."""
    named = Counter((int(change.resource_type), change.resource_name) for change in changes)
    return {resource for resource, times in named.items() if times > 1}


def _before(change: ConfigChange, image: Image) -> Mapping[str, str]:
    try:
        return image.configs(ConfigResourceType(change.resource_type), change.resource_name)
    except ValueError:  # a type of resource that has no settings here
        return {}


def _bytes(change: ConfigChange, settings: Mapping[str, str]) -> int:
    return sum(config_bytes(change.resource_name, name, value) for name, value in settings.items())


def _check_broker_settings(change: ConfigChange) -> None:
    allowed = DYNAMIC_ONLY if change.resource_name else DYNAMIC_SETTINGS
    for operation in change.operations:
        if operation.name not in allowed:
            if operation.name in CLUSTER_SETTINGS:
                reason = "can be set for every broker together, not for one"
            else:
                reason = "cannot be changed while a broker runs"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{shortened(operation.name)} {reason}")
        try:
            check_length(operation.value or "")
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
