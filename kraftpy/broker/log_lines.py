"""The lines of a node's log: text for people, or one JSON object a line for programs (`kraftpy.log.format`).

A JSON line has `time` (UTC, with milliseconds), `level`, `logger`, `node` and `message`, and `exception` with a
traceback if there is one. The lines of a program that belongs to no node have no `node`. Both kinds are one line,
whatever they quote, and are cut in the middle if they are long.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

from kraftpy.broker.log_limit import LineLimit
from kraftpy.config.printing import printable, shortened

TEXT: Final = "text"
JSON: Final = "json"
_MOST_TRACEBACK: Final = 8_000


class LineFormatter(logging.Formatter):
    """Formats a record as one line, even if it quotes control characters; a traceback follows, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line, with control characters escaped, and without its middle if it is long."""
        record.message = shortened(printable(shortened(record.message)))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Format the traceback so that none of its lines looks like a record's."""
        return "\n".join(
            f"    {shortened(printable(shortened(line)))}" for line in super().formatException(ei).split("\n")
        )


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line, in ASCII."""

    def __init__(self, node_id: int | None) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        """Format the record. One whose message cannot be put together is shown without its arguments."""
        try:
            message = record.getMessage()
        except Exception:
            message = str(record.msg)
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        return json_line(record.levelname, record.name, self._node_id, message, at=record.created, exception=traceback)


def json_line(
    level: str,
    logger: str,
    node_id: int | None,
    message: str,
    *,
    at: float | None = None,
    exception: str | None = None,
) -> str:
    """Return a line of the log in JSON. `at` is in seconds since the Unix epoch; by default, now."""
    at = time.time() if at is None else at
    milliseconds = int(at * 1000)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    line: dict[str, Any] = {
        "time": f"{seconds}.{milliseconds % 1000:03}Z",
        "level": level,
        "logger": logger,
    }
    if node_id is not None:
        line["node"] = node_id
    line["message"] = shortened(message)
    if exception is not None:
        line["exception"] = shortened(exception, _MOST_TRACEBACK)
    return json.dumps(line)


def log_handler(log_format: str = TEXT, node_id: int | None = None, *, is_one_of_many: bool = False) -> logging.Handler:
    """Return the handler of all log output: lines are short, printable, and limited per kind and minute.

    `is_one_of_many`: other nodes write to the same log, so lines of text name the node as well.
    """
    handler = logging.StreamHandler(sys.stderr)
    is_json = log_format == JSON
    whose = f"node {node_id} " if is_one_of_many else ""
    text = LineFormatter(f"%(asctime)s %(levelname)s {whose}%(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(node_id) if is_json else text)
    handler.addFilter(LineLimit())
    return handler


def say(log_format: str, node_id: int, level: str, text: str) -> None:
    """Print a line about the start or end of a node on standard error, where its log goes too."""
    if log_format == JSON:
        print_line(json_line(level, "kraftpy", node_id, text))
    else:
        kind = "" if level == "CRITICAL" else f"{level.lower()}: "
        print_line(f"kraftpy: {kind}{printable(text)}")


def print_line(line: str) -> None:
    """Print a line on standard error in one piece, which other processes may write to as well."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
