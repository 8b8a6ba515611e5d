"""The log directories that get no new replicas: `cordoned.log.dirs` (KIP-1066).

Paths are compared as absolute ones, because that is how clients see log directories, whatever the settings say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kraftpy.config import BrokerConfig, ConfigError

CORDONED = "cordoned.log.dirs"
ALL = "*"


def absolute(names: Iterable[str]) -> list[str]:
    """Return the absolute paths of directories, in order."""
    return [str(Path(name).absolute()) for name in names]


def cordoned_paths(config: BrokerConfig) -> frozenset[str]:
    """Return the absolute paths of the cordoned directories; what is no log directory of this broker is left out."""
    paths = absolute(config.log_dirs)
    if ALL in config.cordoned_log_dirs:
        return frozenset(paths)
    return frozenset(paths).intersection(absolute(config.cordoned_log_dirs))


def check_cordoned(names: Iterable[str], log_dirs: Iterable[str]) -> None:
    """Check that only log directories are cordoned, or "*" alone. Raises ConfigError in Kafka's words."""
    given = list(names)
    if ALL in given:
        if len(given) > 1:
            raise ConfigError(f"When {CORDONED} is set to {ALL}, it must not contain other values")
        return
    known = set(absolute(log_dirs))
    missing = [name for name in given if str(Path(name).absolute()) not in known]
    if missing:
        raise ConfigError(
            f"All entries in {CORDONED} must be present in log.dirs or log.dir. Missing entries : {', '.join(missing)}"
        )
