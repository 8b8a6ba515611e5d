"""The settings of single groups as the metadata has them, within what this broker allows (KIP-848, KIP-932).

    settings = GroupSettingsNow(config, lambda: metadata.image)
    settings("my-group").consumer_session_timeout_ms

Looking them up costs next to nothing: most groups have none of their own, and what is set is parsed once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kraftpy.config import BrokerConfig
from kraftpy.config.group import GroupSettings, group_settings
from kraftpy.metadata.commands import ConfigResourceType
from kraftpy.metadata.image import Image

_REMEMBERED = 1_000


class GroupSettingsNow:
    """The settings of every group, by its id, whether it is there or not."""

    def __init__(self, config: BrokerConfig, image: Callable[[], Image]) -> None:
        self._image = image
        self._defaults = group_settings({}, config)

        @lru_cache(maxsize=_REMEMBERED)
        def parsed(overrides: tuple[tuple[str, str], ...]) -> GroupSettings:
            return group_settings(dict(overrides), config)

        self._parsed = parsed

    def __call__(self, group_id: str) -> GroupSettings:
        """What holds for that group now."""
        overrides = self._image().configs(ConfigResourceType.GROUP, group_id)
        return self._parsed(tuple(overrides.items())) if overrides else self._defaults
