"""Commands with odd values: what may get into the log, and that none that is there stops a node.

`decide` may refuse any command; its decisions can be replayed, kept in a snapshot and read again.
"""

from __future__ import annotations

import math
import random
import types
import typing
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

import pytest

from kraftpy.metadata.codec import CodecError, pack
from kraftpy.metadata.commands import (
    _NUMBERS,
    CreateTopics,
    DeleteTopics,
    Endpoint,
    FormatCluster,
    NewTopic,
    RegisterBroker,
    UnregisterBroker,
    encode_command,
)
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.features import LATEST
from kraftpy.metadata.proposals import check_proposal
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.types import BrokerId, Millis, TopicId

COMMANDS = 2_000
A_LIFE = 400
INTEGERS = (0, 1, 2, 3, -1, -2, 5, 100, 20_000, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63))
TEXTS = (
    "", "t", "u", "a.b", "a_b", "__consumer_offsets", "x" * 300, "\n\x1b", "1", "0", "-1", "9" * 400, "delete",
    "compact", "min.insync.replicas", "retention.ms", "cleanup.policy", "share.auto.offset.reset", "compression.type",
    "leader.replication.throttled.rate", "eligible.leader.replicas.version", "share.version", "metadata.version",
)  # fmt: skip
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan)
IDS = (b"t" * 16, b"u" * 16, bytes(16), b"i" * 16, b"x", b"")


class Odd:
    """Makes commands with any values that their fields can have, often ones that take effect."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.machine = MetadataStateMachine()
        self.index = 0

    def begin(self) -> None:
        """A cluster of three brokers and two topics."""
        self.machine = MetadataStateMachine()
        self.index = 0
        features = LATEST if self._random.random() < 0.5 else ()
        self.apply(FormatCluster(cluster_id="c", time_ms=Millis(0), features=features))
        for number in (1, 2, 3):
            self.apply(
                RegisterBroker(
                    broker_id=BrokerId(number),
                    incarnation_id=bytes([number]) * 16,
                    endpoints=(Endpoint(listener="P", host="h", port=1),),
                    time_ms=Millis(0),
                    fenced=False,
                )
            )
        topics = tuple(
            NewTopic(name=name, topic_id=TopicId(name.encode() * 16), partitions=3, replication_factor=3)
            for name in "tu"
        )
        self.apply(CreateTopics(topics=topics, time_ms=Millis(0)))

    def apply(self, command: Any) -> str:
        """Apply the log's next command; return "changes", or its error's name."""
        self.index += 1
        applied = self.machine.apply(self.index, 1, encode_command(command))
        assert not applied.is_unusable, applied.decision.message
        return "changes" if applied.decision.records else applied.decision.error.name

    def command(self) -> Any:
        """Seldom one that ends what the others are about."""
        while True:
            kind = self._random.choice([*_NUMBERS])
            if kind not in (UnregisterBroker, DeleteTopics) or self._random.random() < 0.03:
                return self._made(kind)

    def _made(self, kind: type[Any]) -> Any:
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: self._value(hints[field.name], field.name) for field in fields(kind)})

    def _value(self, hint: Any, name: str) -> Any:
        choose = self._random.choice
        hint = getattr(hint, "__supertype__", hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            some = next(each for each in arguments if each is not type(None))
            return None if self._random.random() < 0.3 else self._value(some, name)
        if origin is tuple:
            return tuple(self._value(arguments[0], name) for _ in range(choose((0, 1, 1, 2, 3))))
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            return choose([*hint])
        if is_dataclass(hint):
            return self._made(typing.cast("type[Any]", hint))
        if hint is bool:
            return choose((True, False))
        is_likely = self._random.random() < 0.8
        if hint is int:
            return choose(self._likely(name) if is_likely else INTEGERS)
        if hint is float:
            return choose(NUMBERS)
        if hint is str:
            return choose(
                ("t", "u", "new", "", "1") if is_likely and name in ("name", "topic", "resource_name") else TEXTS
            )
        return choose(IDS)

    def _likely(self, name: str) -> tuple[int, ...]:
        if name == "broker_epoch":
            return tuple(broker.broker_epoch for broker in self.machine.image.brokers()) or (0,)
        likely: dict[str, tuple[int, ...]] = {"controller_epoch": (1, -1), "count": (4, 5), "level": (0, 1, 2)}
        return likely.get(name, (0, 1, 2, 3) if name != "replication_factor" else (-1, 1, 2, 3))


@pytest.mark.parametrize("seed", [1, 2])
def test_no_command_of_the_log_stops_a_node(seed: int) -> None:
    odd = Odd(seed)
    came_to: Counter[tuple[str, str]] = Counter()
    for number in range(COMMANDS):
        if number % A_LIFE == 0:
            odd.begin()
        command = odd.command()
        came_to[type(command).__name__, odd.apply(command)] += 1
        if number % A_LIFE == A_LIFE - 1:
            snapshot = odd.machine.snapshot()
            again = MetadataStateMachine()
            again.restore(snapshot)
            assert again.snapshot() == snapshot
    changed = {kind for kind, found in came_to if found == "changes"}
    assert len(changed) >= 8, "it tries too little"


def submission(command: Any, node_id: int = 1) -> bytes:
    data = command if isinstance(command, bytes) else encode_command(command)
    return encode_submission(SubmissionId(node_id=node_id, nonce=b"n", sequence=0), data)


def registers(**given: Any) -> RegisterBroker:
    endpoint = {
        "listener": "P",
        "host": "h",
        "port": 1,
        **{name: given.pop(name) for name in ("host", "port") if name in given},
    }
    fields_of_it = {"broker_id": BrokerId(1), "incarnation_id": b"i" * 16, "time_ms": Millis(1 << 40), **given}
    return RegisterBroker(endpoints=(Endpoint(**endpoint),), **fields_of_it)


def test_what_may_be_proposed() -> None:
    check_proposal(submission(registers()), 1)
    check_proposal(
        submission(registers(broker_id=BrokerId((1 << 31) - 1), previous_broker_epoch=1 << 40, port=65535)), 1
    )
    for data, reason in (
        (encode_command(registers()), "not a metadata submission"),
        (submission(registers(), node_id=2), "a submission of node 2, sent by node 1"),
        (submission(pack([99, 2, {}])), "a newer version"),
        (submission(pack([3, 99, {}])), "unknown metadata command 99"),
        (submission(pack([3, 2, {}])), "field broker_id is missing"),
        (submission(b"\xc1"), "not msgpack"),
        (b"\x94\xc1", "not msgpack"),
        (b"", "not a metadata submission"),
        (submission(registers(broker_id=BrokerId(1 << 31))), "RegisterBroker.broker_id: 2147483648 is out of range"),
        (submission(registers(port=65536)), "RegisterBroker.endpoints.port: 65536 is out of range"),
        (submission(registers(host="h" * 256)), "RegisterBroker.endpoints.host: a text of 256 bytes is too long"),
        (submission(registers(rack="r" * 32768)), "RegisterBroker.rack: a text of 32768 bytes is too long"),
        (submission(replace(registers(), host="h" * 256)), "RegisterBroker.host: a text of 256 bytes is too long"),
    ):
        with pytest.raises(CodecError, match=reason):
            check_proposal(data, 1)
