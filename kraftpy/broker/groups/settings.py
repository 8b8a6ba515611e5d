"""The settings of single groups from the metadata, within this broker's limits (KIP-848, KIP-932).

    settings = GroupSettingsNow(config, lambda: metadata.image, complaints)
    settings("my-group").consumer_session_timeout_ms

A lookup costs next to nothing: most groups have no settings of their own, and those that exist are parsed once. An
invalid stored value counts as not set; it is logged with its group at most once a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from kraftpy.broker.containment import Complaints
from kraftpy.config import BrokerConfig
from kraftpy.config.group import GroupSettings, group_settings, usable_group_overrides
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image

logger = logging.getLogger(__name__)

_REMEMBERED = 1_000


class GroupSettingsNow:
    """The settings of every group by id, whether the group exists or not."""

    def __init__(self, config: BrokerConfig, image: Callable[[], Image], complaints: Complaints) -> None:
        self._complaints = complaints
        self._image = image
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Take over settings that changed while the broker runs."""
        self._defaults = group_settings({}, config)

        @lru_cache(maxsize=_REMEMBERED)
        def parsed(overrides: tuple[tuple[str, str], ...]) -> tuple[GroupSettings, list[str]]:
            usable, problems = usable_group_overrides(dict(overrides))
            return group_settings(usable, config), problems

        self._parsed = parsed

    def __call__(self, group_id: str) -> GroupSettings:
        """Return the group's current settings."""
        overrides = self._image().configs(ConfigResourceType.GROUP, group_id)
        if not overrides:
            return self._defaults
        settings, problems = self._parsed(tuple(overrides.items()))
        if problems:
            message, what = (
                "group %r: ignoring an invalid stored setting and using the default: %s",
                "; ".join(problems),
            )
            self._complaints.write(logger, logging.ERROR, "setting of a group", group_id, message, group_id, what)
        return settings
