"""The settings of this broker that are in force: those of its file, and the dynamic ones in the metadata (KIP-226).

    settings = DynamicSettings(config, lambda: metadata.image)
    settings.then(maintenance.configure)     # is called with the new settings after every change of them
    settings.follow(records)                 # after every change of the metadata
    settings.config.message_max_bytes
    settings.limits_of("EXTERNAL").connections

A part of the broker that takes its settings when it is created, and does not call `then`, keeps those of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kraftpy.config import BrokerConfig
from kraftpy.config.dynamic import in_force
from kraftpy.config.listener_limits import ListenerLimits, limits_of
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import ConfigChanged, Record


class DynamicSettings:
    """One broker's current settings."""

    def __init__(self, config: BrokerConfig, image: Callable[[], Image]) -> None:
        self.static = config
        """The settings with which this broker was started."""
        self.config = config
        """The settings in force."""
        self._image = image
        self._listeners: list[Callable[[BrokerConfig], None]] = []
        self._given = {name: written.text for name, written in config.given.items()}
        self._limits: dict[str, ListenerLimits] = {}

    def limits_of(self, listener: str) -> ListenerLimits:
        """Return the limits on the connections of a listener that are in force now."""
        found = self._limits.get(listener)
        if found is None:
            own, cluster = self._dynamic()
            found = self._limits[listener] = limits_of(listener, own, cluster, self._given)
        return found

    def connections_of(self, listener: str) -> int | None:
        """Return the `max.connections` of a listener; None if it has none of its own."""
        return self.limits_of(listener).connections

    def then(self, *listeners: Callable[[BrokerConfig], None]) -> None:
        """Call these functions with the new settings after every change."""
        self._listeners += listeners

    def follow(self, records: Sequence[Record] | None = None) -> None:
        """Take over settings that these records change; None stands for everything in the metadata."""
        if records is not None and not any(_is_about_brokers(record) for record in records):
            return
        self._limits.clear()
        config = in_force(self.static, *self._dynamic())
        if config != self.config:
            self.config = config
            for listener in self._listeners:
                listener(config)

    def _dynamic(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the dynamic settings of this broker, and those of all."""
        image = self._image()
        return image.configs(ConfigResourceType.BROKER, str(self.static.node_id)), image.cluster_configs()


def _is_about_brokers(record: Record) -> bool:
    return isinstance(record, ConfigChanged) and record.resource_type is ConfigResourceType.BROKER
