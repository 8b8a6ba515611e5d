"""Checks a command that another node proposes for the metadata log: every node must be able to decode and keep it.

The leader asks `check_proposal` before it appends what came over a link, since an entry of the log stays: it is decided
on every node and at each start. So no leader appends a command of a schema that it does not know itself, and a node
that meets one in the log knows that a newer version leads, or has led: it stops and says so (`NewerSchemaError`),
because to pass over what the others decide would be to disagree with them for ever. Bytes in the log that are no
command at all, and commands whose decision fails, change nothing on any node (`MetadataStateMachine.apply`).

Beyond its type a number has to fit where clients are told it: 64 bits for times and brokers' epochs, 32 for all others,
16 for a port; a text has to fit into a string of the wire.

Left out: deciding the command on a copy. `decide` is total by `apply`, and the image may be another by then.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import decode_command, decode_submission

MAX_TEXT_BYTES = (1 << 15) - 1
_MAX_HOST_BYTES = 255
_LONG = frozenset({"time_ms", "broker_epoch", "previous_broker_epoch", "controller_epoch"})


def check_proposal(data: bytes, node_id: int) -> None:
    """That this is a submission of that node, of a command as this version knows them. Raises CodecError."""
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
