"""A fuzz's traffic on the links between nodes: before the proof as raw bytes, after it as a node with a number.

A stranger has no secret, so it sends hellos of every shape, half ones, large ones, and bytes that are no hello.
`Impostor` knows the secret and uses the product's own `Links`: it sends bodies of every kind, right, with fields
missing, of other types and with numbers at their ends, and frames that are no messages at all. It is a node that no
cluster has, and it proposes nothing that would be right: a node that knows the secret is trusted (see `links`), but no
node may fail because of what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from random import Random
from typing import Any

import hostile

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.link import ANSWER, LOGIN, ONE_WAY, PING, REFUSAL, REQUEST, VERSION, LinkError
from kraftpy.broker.metadata.transport import Links
from kraftpy.config import Address
from kraftpy.metadata.codec import pack
from kraftpy.metadata.quorum_messages import _FIELDS

IMPOSTOR = 99
_SIZE = struct.Struct(">I")
_NUMBERS = (0, 1, -1, 2, 3, IMPOSTOR, 2**31, 2**62, 2**63 - 1, 2**64 - 1, -(2**63))
_TEXTS = ("", "x", "x" * 3000, f"\n{hostile.FORGED}", "\x1b[31m", "\0", "raft")
_BODIES: dict[str, dict[str, Any]] = {
    "follow": {"after": 0, "leader": -1, "term": 0},
    "heartbeat": {"epoch": 0, "applied": 0, "wants_fence": False, "wants_shut_down": False},
    "describe quorum": {},
    "change voter": {"add": None, "remove": IMPOSTOR},
    "submit": {"data": b"\x93\x01\x02\xc4"},
    "no such kind": {"x": 1},
}


def hello(chance: Random) -> bytes:
    """Return bytes of a stranger that does not know the secret, with their sizes."""
    shape: dict[str, Any] = {
        "version": chance.choice((VERSION, VERSION, VERSION, 0, -1, 2**63)),
        "node": chance.choice((1, 2, 3, 3, IMPOSTOR, -1, 2**64 - 1)),
        "nonce": chance.randbytes(chance.choice((32, 32, 0, 3000))),
        "cluster": chance.choice((None, None, "another cluster", f"\n{hostile.FORGED}\x1b[31m", 5, "x" * 3000)),
        "knocks": chance.choice((False, False, True)),
    }
    for name in list(shape):
        roll = chance.random()
        if roll < 0.05:
            del shape[name]
        elif roll < 0.1:
            shape[name] = plain(chance)
    payload = (
        pack(shape)
        if chance.random() < 0.8
        else chance.choice((b"", b"\xc1", b"\x80", chance.randbytes(60), b"\x91" * 3000))
    )
    size = len(payload) if chance.random() < 0.9 else chance.choice((0, 4096, 4097, 2**32 - 1, len(payload) + 10))
    proof = _SIZE.pack(32) + chance.randbytes(32) if chance.random() < 0.5 else b""
    return _SIZE.pack(size) + payload + proof


def plain(chance: Random, depth: int = 0) -> Any:
    """Return any value that msgpack carries."""
    match chance.randrange(9 if depth < 3 else 6):
        case 0:
            return chance.choice(_NUMBERS)
        case 1:
            return chance.choice(_TEXTS)
        case 2:
            return chance.randbytes(chance.choice((0, 1, 40)))
        case 3:
            return chance.choice((None, True, False))
        case 4:
            return chance.choice((1.5, float("nan"), float("inf")))
        case 5:
            return {}
        case 6:
            return [plain(chance, depth + 1) for _ in range(chance.choice((0, 1, 3, 3)))]
        case 7:
            return {chance.choice(_TEXTS): plain(chance, depth + 1) for _ in range(2)}
        case _:
            return [chance.choice(_NUMBERS)] * chance.choice((2, 100))


def body(chance: Random) -> tuple[str, dict[str, Any]]:
    """Return a kind and a body, of which a part may be missing or of another type."""
    kind = chance.choice((*_BODIES, "raft", "raft", "raft"))
    if kind == "raft":
        of = chance.choice(sorted(_FIELDS))
        made: dict[str, Any] = {"type": of}
        for name, wanted in _FIELDS[of].items():
            values = {int: chance.choice((0, 0, 1, *_NUMBERS)), bool: chance.random() < 0.5, bytes: b"", list: []}
            made[name] = values[wanted]
        if "term" in made and made["term"] not in (0, 1):
            made["term"] = chance.choice(
                (0, -1, -(2**63))
            )  # a node may rightly send a newer term, which would depose the leader
    else:
        made = dict(_BODIES[kind])
    for name in list(made):
        roll = chance.random()
        if roll < 0.15:
            del made[name]
        elif roll < 0.4 and name != "term":
            made[name] = plain(chance)
    if chance.random() < 0.1:
        made[chance.choice(_TEXTS)] = plain(chance)
    if kind == "change voter":  # a node may rightly take a voter's vote away
        made["remove"] = chance.choice((None, IMPOSTOR, -1, 2**63, "1", [], {}))
        made["add"] = chance.choice((None, None, 5, "x", [], [1], [None, None], ["x", 5], {}, [[], []]))
    if kind == "submit":
        made["data"] = _no_command(chance)
    return kind, made


def _no_command(chance: Random) -> Any:
    """Return bytes for a proposal that are no valid command."""
    command = chance.choice(
        (
            b"", b"\xc1", chance.randbytes(20), pack(None), pack([]), pack([1]), pack([1, 0]), pack([3, 1, []]),
            pack([3, 9999, []]),
            pack([2**40, 1, []]), pack([4, 1, []]), pack([-1, -1, {}]), pack({"a": 1}), pack([1, 7, {"topics": 5}]),
            b"\x91" * 400,
            pack([3, 3, {f"\n{hostile.FORGED}": "\x1b"}]),
        )
    )  # fmt: skip
    if chance.random() < 0.5:
        submission = chance.choice(
            ([IMPOSTOR, b"n" * 16, 1, command], [IMPOSTOR, b"", -1, command], [1, 2, 3], [None] * 4)
        )
        return pack(submission)
    return command if chance.random() < 0.9 else plain(chance)


def message(chance: Random) -> list[Any]:
    """Return a whole frame of a link, perhaps of an unknown kind."""
    kind, made = body(chance)
    if chance.random() < 0.9:  # an unknown kind ends the link, and with it everything after it
        return [ONE_WAY, kind, made] if kind in ("raft", "submit") else [REQUEST, kind, made, chance.randrange(1000)]
    return chance.choice(
        (
            [ONE_WAY, kind, made], [REQUEST, kind, made, chance.choice(_NUMBERS)],
            [ANSWER, chance.choice(_NUMBERS), made], [REFUSAL, 0, chance.choice(_TEXTS)], [PING], [PING, 1], [], [7],
            [LOGIN, b""], [LOGIN, chance.choice(_TEXTS)], [LOGIN, chance.randbytes(40)],
            [None],
            [ONE_WAY, 5, made], [ONE_WAY, kind, []], [REQUEST, kind, made], [plain(chance)], [True, kind, made],
        )
    )  # fmt: skip


class Impostor:
    """A node that knows the secret but does not belong to the cluster."""

    def __init__(self, secret: str | None, voters: dict[int, Address]) -> None:
        self._secret = secret
        self._voters = voters
        self._links: Links | None = None
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Impostor:
        await self._group.__aenter__()
        tasks = Tasks(self._group, Incidents(Complaints()))
        self._links = Links(IMPOSTOR, is_voter=False, tasks=tasks, silence_ms=2000, secret=self._secret)
        await self._links.start(self._voters)
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._links is not None
        await self._links.stop()
        await self._group.__aexit__(None, None, None)

    async def say(self, frames: list[list[Any]], node: int) -> int:
        """Send these to a node; return how many were sent."""
        assert self._links is not None
        for _ in range(20):
            if self._links.is_connected(node):
                break
            await asyncio.sleep(0.05)
        link = self._links._up.get(node)
        sent = 0
        for each in frames:
            if link is None or not link.send(each):
                break
            sent += 1
        with contextlib.suppress(LinkError):
            await self._links.request(node, "describe quorum", {}, 300)
        return sent
