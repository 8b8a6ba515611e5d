"""The loggers of this process and their levels, as the resource BROKER_LOGGER of one node (KIP-412).

Names are those of Python's loggers: `root`, `kraftpy.broker.server`, and the packages above them, such as `kraftpy`,
whose level holds for all their modules without one of their own. Levels are Kafka's words. A change applies to this
process at once, and is lost when it ends. Clients cannot create loggers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kraftpy.metadata.commands import ConfigOperation, ConfigOperationType
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened

logger = logging.getLogger(__name__)

ROOT = "root"
_TRACE = 5
_LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": _TRACE,
    "WARN": logging.WARNING,
}


def levels() -> Mapping[str, str]:
    """Return the effective level of every logger, and of every package that has loggers."""
    found = {ROOT: _word(logging.getLogger().level)}
    for name in sorted(logging.root.manager.loggerDict):
        found[name] = _word(logging.getLogger(name).getEffectiveLevel())
    return found


def change_levels(operations: Sequence[ConfigOperation], *, validate_only: bool) -> None:
    """Set levels, or let loggers inherit theirs (DELETE): all or none. Raises KafkaError."""
    for operation in operations:
        _check(operation)
    if validate_only:
        return
    for operation in operations:
        is_set = operation.operation is ConfigOperationType.SET
        level = _LEVELS[str(operation.value)] if is_set else logging.NOTSET
        _logger(operation.name).setLevel(level)
        if is_set:
            logger.warning("the log level of %s is now %s", operation.name, operation.value)
        else:
            logger.warning("the log level of %s is no longer set", operation.name)


def _check(operation: ConfigOperation) -> None:
    match operation.operation:
        case ConfigOperationType.SET:
            _check_exists(operation.name)
            if operation.value not in _LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Cannot set the log level of {operation.name} to {shortened(str(operation.value))} as it is not a "
                    f"supported log level. Valid log levels are {', '.join(_LEVELS)}",
                )
        case ConfigOperationType.DELETE:
            _check_exists(operation.name)
            if operation.name == ROOT:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        case other:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{other.name} operation is not allowed for the BROKER_LOGGER resource"
            )


def _check_exists(name: str) -> None:
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {shortened(name)} does not exist!")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _word(level: int) -> str:
    """Return Kafka's word for a level, or for the next higher one."""
    return min(
        (word for word, value in _LEVELS.items() if value >= level),
        key=lambda word: _LEVELS[word],
        default="FATAL",
    )
