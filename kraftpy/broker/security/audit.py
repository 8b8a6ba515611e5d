"""The audit log: a line of JSON for each refusal and each administrative operation, in its own file if one is set.

A full file is replaced by a new one; `_KEPT_FILES` older ones are kept, with `.1`, `.2`, ... appended to their names.
Without a file, the lines go to the broker's log, and count towards its limits.
"""

from __future__ import annotations

import logging
import time
from logging.handlers import RotatingFileHandler
from typing import Final

from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig

NAME: Final = "kafka.authorizer.logger"
"""The logger's name in Kafka."""
_KEPT_FILES: Final = 9


class _TimedLine(logging.Formatter):
    """Adds the time to the line's object, as its first field."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f'{{"time": "{at}.{int(record.msecs):03d}Z", {record.getMessage()[1:]}'


def open_audit_log(config: BrokerConfig) -> None:
    """Set up the audit log of this process, if there is an authorizer. Raises StartupError."""
    if not config.authorizer_class_name:
        return
    open_audit_file(config.kraftpy_audit_log_file, config.kraftpy_audit_log_max_bytes)


def open_audit_file(path: str | None, most_bytes: int) -> None:
    """Write the lines to a file, or without a path to the log. Raises StartupError."""
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.INFO)
    if path is None:
        return
    try:
        handler = RotatingFileHandler(path, maxBytes=most_bytes, backupCount=_KEPT_FILES, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"kraftpy.audit.log.file: {error}") from error
    handler.setFormatter(_TimedLine())
    logger.addHandler(handler)
    logger.propagate = False
