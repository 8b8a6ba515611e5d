"""Checks a command that another node proposes for the metadata log: every node must be able to decode and keep it.

The leader calls `check_proposal` before it appends a command received over a link, since a log entry is permanent: it
is decided on every node and at each start. No leader appends a command of a schema that it does not know itself, so a
node that reads one in the log knows that a newer version leads or has led. It stops with `NewerSchemaError`, because if
it skipped the command, its image would diverge from the others' permanently. Bytes in the log that are not a command,
and commands whose decision fails, change nothing on any node (`MetadataStateMachine.apply`).

Numbers must also fit their fields in client responses: 64 bits for times and broker epochs, 16 for a port, 32 for all
others; a text must fit into a string on the wire.

Left out: deciding the command on a copy. `apply` makes `decide` total, and the image may have changed by then.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import decode_command
from kraftpy.metadata.submissions import decode_submission

MAX_TEXT_BYTES = (1 << 15) - 1
_MAX_HOST_BYTES = 255
_LONG = frozenset(
    {
        "time_ms", "broker_epoch", "previous_broker_epoch", "controller_epoch",
        "issue_ms", "expiry_ms", "max_ms", "period_ms",
    }
)  # fmt: skip


def check_proposal(data: bytes, node_id: int) -> None:
    """Check that this is a submission of that node with a command this version knows. Raises `CodecError`."""
    submission, encoded = decode_submission(data)
    if submission is None:
        raise CodecError("not a metadata submission")
    if submission.node_id != node_id:
        raise CodecError(f"a submission of node {submission.node_id}, sent by node {node_id}")
    command = decode_command(encoded)
    _check(type(command).__name__, "", command)


def _check(where: str, name: str, value: Any) -> None:
    if type(value) is tuple:
        for item in value:
            _check(where, name, item)
    elif is_dataclass(value):
        for field in fields(value):
            _check(f"{where}.{field.name}", field.name, getattr(value, field.name))
    elif isinstance(value, str):
        size = len(value.encode(errors="replace"))
        if size > (_MAX_HOST_BYTES if name in ("host", "listener") else MAX_TEXT_BYTES):
            raise CodecError(f"{where}: a text of {size} bytes is too long")
    elif isinstance(value, int):
        lowest, highest = _bounds(name)
        if not lowest <= value <= highest:
            raise CodecError(f"{where}: {value} is out of range")


def _bounds(name: str) -> tuple[int, int]:
    if name == "port":
        return 0, (1 << 16) - 1
    bits = 63 if name in _LONG else 31
    return -(1 << bits), (1 << bits) - 1
