"""Shapes of the messages on a link: identities, one-way messages, requests and their answers.

`REQUESTS` and `ANSWERS` declare them by kind. A body has exactly the fields of its shape, each of its type and within
its range. `check` runs before any other use of a body, so receivers may rely on its shape. The contents of a raft
message, an entry or a snapshot are checked where those are read (`metadata.quorum_messages`, `metadata.commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kraftpy.metadata.codec import pack, unpack
from kraftpy.metadata.journal import MAX_ENTRY_BYTES

MAX_NODE_ID = (1 << 31) - 1
CLUSTER_ID_BYTES = 64
_MAX_NUMBER = (1 << 62) - 1
_MAX_TEXT = 1_000
_MAX_ENTRIES = 1 << 20
_MAX_NODES = 10_000
LOGIN_BYTES = 80 * 1024
"""The largest frame of a login: a token of OAUTHBEARER has at most 64 KiB, and one of the other mechanisms less."""


class LinkError(Exception):
    """A request that has no answer: the peer is not connected, went away, took too long or refused."""


class ConnectionRefused(LinkError):
    """A connection was refused. `kind` classifies the reason: each kind is logged at most once a minute."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BadBodyError(LinkError):
    """A body that no node of this version sends."""


Check = Callable[[object], bool]
Shape = Mapping[str, Check]


def printable(text: str, most: int = _MAX_TEXT) -> str:
    """Replace characters of a peer's text that would forge or break lines of the log, and shorten it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


# -- checks of single values


def _number(low: int = 0, high: int = _MAX_NUMBER) -> Check:
    return lambda value: type(value) is int and low <= value <= high  # exactly int: True is not a number


def _text(most_bytes: int = _MAX_TEXT) -> Check:
    return lambda value: type(value) is str and len(value.encode(errors="replace")) <= most_bytes


def _bytes(least: int = 0, most: int = MAX_ENTRY_BYTES) -> Check:
    return lambda value: type(value) is bytes and least <= len(value) <= most


def _flag(value: object) -> bool:
    return type(value) is bool


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _fixed_list(*checks: Check) -> Check:
    """A list with one value for each check."""
    return lambda value: (
        type(value) is list
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _either(*checks: Check) -> Check:
    """A value that passes one of the checks."""
    return lambda value: any(check(value) for check in checks)


def _list(check: Check, most: int) -> Check:
    return lambda value: type(value) is list and len(value) <= most and all(map(check, value))


# -- shapes

_NODE = _number(0, MAX_NODE_ID)
_DIRECTORY_ID = _bytes(16, 16)
_REPLICA = _fixed_list(_NODE, _number(), _number(-1), _number(-1))
_VOTER = _fixed_list(_NODE, _text(300))
_VOTER_WITH_DIRECTORY = _fixed_list(_NODE, _text(300), _DIRECTORY_ID)
_REPLICA_WITH_DIRECTORY = _fixed_list(_NODE, _number(), _number(-1), _number(-1), _DIRECTORY_ID)

_HELLO: Shape = {"version": _number(0, 1 << 31), "nonce": _bytes(16, 64)}
_IDENTITY: Shape = {
    "node": _NODE,
    "cluster": _optional(_text(CLUSTER_ID_BYTES)),
    "expects": _optional(_NODE),
    "knocks": _flag,
}

_LOGIN_TOKEN: Shape = {"mechanism": _text(100), "token": _bytes(0, 1 << 20)}
_LOGIN_ANSWER: Shape = {"token": _bytes(0, 1 << 20), "done": _flag}
_LIFETIME: Shape = {"lifetime_ms": _number()}
_LOGIN_REFUSAL: Shape = {"refused": _text()}

REQUESTS: Mapping[str, Shape] = {
    "submit": {"data": _bytes(1, MAX_ENTRY_BYTES - 1)},
    "follow": {"after": _number(), "leader": _number(-1, MAX_NODE_ID), "term": _number(-1)},
    "heartbeat": {"epoch": _number(-1), "applied": _number(-1), "wants_fence": _flag, "wants_shut_down": _flag},
    "describe quorum": {},
    "directory": {"id": _DIRECTORY_ID},
    "directory id": {},
    "directory ids": {},
    "change voter": {"add": _optional(_VOTER), "remove": _optional(_NODE)},
}
"""One-way messages and requests, by kind. A message "raft" is read by `quorum_messages.read_body`."""

ANSWERS: Mapping[str, Shape] = {
    "follow": {
        "leader": _number(-1, MAX_NODE_ID),
        "term": _number(-1),
        "applied": _number(),
        "voters": _list(_either(_VOTER, _VOTER_WITH_DIRECTORY), _MAX_NODES),
        "entries": _list(_fixed_list(_number(1), _number(), _bytes()), _MAX_ENTRIES),
    },
    "heartbeat": {
        "error": _number(-1, (1 << 15) - 1),
        "is_caught_up": _flag,
        "is_fenced": _flag,
        "should_shut_down": _flag,
    },
    "describe quorum": {
        "leader": _fixed_list(_NODE, _number(), _number()),
        "voters": _list(_either(_REPLICA, _REPLICA_WITH_DIRECTORY), _MAX_NODES),
        "observers": _list(_either(_REPLICA, _REPLICA_WITH_DIRECTORY), _MAX_NODES),
        "addresses": _list(_VOTER, _MAX_NODES),
    },
    "directory id": {"id": _DIRECTORY_ID},
    "directory ids": {"ids": _list(_fixed_list(_NODE, _DIRECTORY_ID), _MAX_NODES)},
    "change voter": {"refused": _optional(_text(10_000))},
}
_OPTIONAL_ANSWERS: Mapping[str, Shape] = {"follow": {"snapshot": _fixed_list(_number(), _number(), _bytes(0, 1 << 32))}}
_OPTIONAL_REQUESTS: Mapping[str, Shape] = {"change voter": {"directory": _DIRECTORY_ID}}
"""Fields that may be left out. Nodes of earlier versions refuse those of requests."""


def check(shapes: Mapping[str, Shape], kind: str, body: Mapping[str, Any]) -> None:
    """Check that a body has the declared shape of its kind, if any. Raises BadBodyError."""
    shape = shapes.get(kind)
    if shape is not None:
        optional = _OPTIONAL_ANSWERS if shapes is ANSWERS else _OPTIONAL_REQUESTS
        _check(f"{kind}", shape, optional.get(kind, {}), body)


def _check(what: str, shape: Shape, optional: Shape, body: Mapping[str, Any]) -> None:
    for name, is_right in shape.items():
        if name not in body:
            raise BadBodyError(f"{what}: field {name} is missing")
        if not is_right(body[name]):
            raise BadBodyError(f"{what}: field {name} is not allowed")
    for name in body.keys() - shape.keys():
        if name not in optional:
            raise BadBodyError(f"{what}: there is no field {printable(str(name), 40)}")
        if not optional[name](body[name]):
            raise BadBodyError(f"{what}: field {name} is not allowed")


# -- the first frames


def read_hello(frame: bytes) -> int:
    """Return the protocol version of the peer. Raises CodecError or LinkError if it is not a node."""
    hello = unpack(frame)
    if type(hello) is not dict or any(not is_right(hello.get(name)) for name, is_right in _HELLO.items()):
        raise ConnectionRefused("no node", "it is not a node of a cluster")
    return int(hello["version"])


def read_identity(content: bytes) -> dict[str, Any]:
    """Decode and check the identity of a node that has proved the secret. Raises CodecError or LinkError."""
    identity = unpack(content)
    if type(identity) is not dict:
        raise BadBodyError("its identity is not a map")
    _check("its identity", _IDENTITY, {}, identity)
    return identity


# -- the frames of a login: before a hello, and inside frames of the type LOGIN on a link


def read_login_token(frame: bytes) -> tuple[str, bytes]:
    """Decode a mechanism and a token of the caller. Raises CodecError or LinkError."""
    body = unpack(frame)
    if type(body) is not dict or "token" not in body:
        raise ConnectionRefused("login", "it has not logged in, which this listener requires of nodes")
    _check("its login", _LOGIN_TOKEN, {}, body)
    return body["mechanism"], body["token"]


def refusal_of_login(reason: str) -> bytes:
    """Return the frame that tells the caller why its login is refused."""
    return pack({"refused": reason[:_MAX_TEXT]})


def login_answer(token: bytes, *, is_done: bool, lifetime_ms: int) -> bytes:
    """Return the frame with the called side's token, and the session's lifetime; 0 means that it does not end."""
    return pack({"token": token, "done": is_done, **({"lifetime_ms": lifetime_ms} if lifetime_ms else {})})


def read_login_answer(frame: bytes) -> tuple[bytes, int] | str:
    """Decode the called side's token and the session's lifetime, or the reason of its refusal.

    Raises CodecError or LinkError.
    """
    body = unpack(frame)
    if type(body) is not dict:
        raise BadBodyError("the answer to a login is not a map")
    if "refused" in body:
        _check("the refusal of a login", _LOGIN_REFUSAL, {}, body)
        return printable(body["refused"])
    _check("the answer to a login", _LOGIN_ANSWER, _LIFETIME, body)
    return body["token"], body.get("lifetime_ms", 0)
