"""The messages that a peer may send: each is read whole or refused, and none breaks the node that reads it."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from quorum_node import THREE, Node

from kraftpy.metadata import quorum_messages as wire
from kraftpy.metadata.quorum import QuorumStoppedError
from kraftpy.metadata.quorum_messages import BadMessageError, read_body

Body = dict[str, Any]


def samples() -> list[Body]:
    snapshot = wire.pack_snapshot(0, THREE, b"\x90")
    return [
        {"type": "request_prevote", "term": 3, "last_log_index": 4, "last_log_term": 2},
        {"type": "response_prevote", "term": 3, "granted": True, "current_term": 2},
        {"type": "request_vote", "term": 3, "last_log_index": 4, "last_log_term": 2, "transfer": False},
        {"type": "response_vote", "term": 3},
        {"type": "term", "term": 3},
        {
            "type": "append_entries", "term": 3, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 1,
            "entries": [[b"\x00\x90", 2, 2], [b"\x01", 3, 3], [wire.voters_entry(THREE), 4, 3]], "round": 1,
        },
        {"type": "heartbeat", "term": 3, "round": 2},
        {
            "type": "next_node_idx", "term": 3, "next_node_idx": 4, "reset": False, "success": True, "round": 1,
            "last_index": 4,
        },
        {
            "type": "snapshot", "term": 3, "index": 9, "last_term": 3, "size": len(snapshot),
            "checksum": wire.checksum(snapshot), "offset": 0, "data": snapshot,
        },
        {"type": "snapshot_ack", "term": 3, "index": 9, "offset": 1, "status": 0},
        {"type": "timeout_now", "term": 3},
        {"type": "learn"},
    ]  # fmt: skip


@pytest.mark.parametrize("body", samples(), ids=lambda body: body["type"])
def test_each_message_is_read_as_it_was_sent(body: Body) -> None:
    read = read_body(msgpack.unpackb(msgpack.packb(body)))
    entries = [list(entry) for entry in read.get("entries", ())]
    assert {**read, **({"entries": entries} if "entries" in read else {})} == body
    assert {each["type"] for each in samples()} == set(wire._FIELDS)


@pytest.mark.parametrize("body", samples(), ids=lambda body: body["type"])
def test_a_field_that_is_not_what_it_should_be_is_refused(body: Body) -> None:
    for name, value in body.items():
        without = {key: held for key, held in body.items() if key != name}
        others = [None, "3", 1.5, [1], {}, -1, 1 << 64, True] if type(value) is int else [None, 3]
        for wrong in [without, {**body, name + "x": 1}, *({**body, name: other} for other in others)]:
            with pytest.raises(BadMessageError):
                read_body(wrong)


@pytest.mark.parametrize(
    "entries",
    [
        [[b"\x00", 3, 2]],
        [[b"\x00", 2, 0]],
        [[b"\x00", 2, 4]],
        [[b"\x00", 2, 2], [b"\x00", 2, 2]],
        [[b"\x03", 2, 2]],
        [[b"", 2, 2]],
        [[b"\x02\xc1", 2, 2]],
        [[b"\x02\x90", 2, 2]],
        [[b"\x02\x91\x91\x01", 2, 2]],
        [["\x00", 2, 2]],
        [[b"\x00", 2]],
        [None],
    ],
)
def test_entries_that_no_leader_has_are_refused(entries: list[Any]) -> None:
    (body,) = [each for each in samples() if each["type"] == "append_entries"]
    with pytest.raises(BadMessageError):
        read_body({**body, "entries": entries})


def some_node(chance: random.Random) -> Node:
    node = Node(1, THREE, now_ms=10_000)
    for peer in (2, 3):
        node.quorum.connected(peer, 10_000)
    if chance.random() < 0.5:
        node.quorum.tick(20_000)
        node.messages()
        granted = {"type": "response_prevote", "term": 1, "granted": True, "current_term": 0}
        node.quorum.receive(2, granted, 20_000)
        node.messages()
        node.quorum.receive(2, {"type": "response_vote", "term": 1}, 20_000)
        node.messages()
        assert node.quorum.is_leader
        for _ in range(5):
            node.quorum.propose(b"\x90")
    return node


@pytest.mark.parametrize("seed", range(40))
def test_no_message_breaks_the_node(seed: int) -> None:
    """A message with odd numbers is refused, accepted, or stops the node on purpose (it conflicts with a commit)."""
    chance = random.Random(seed)
    node = some_node(chance)
    for _ in range(150):
        body = dict(chance.choice(samples()))
        for name, value in body.items():
            if type(value) is int and chance.random() < 0.6:
                body[name] = chance.choice([0, 1, 2, node.quorum.term, node.quorum.last_index, value + 1, 1 << 61])
            elif type(value) is bool:
                body[name] = chance.random() < 0.5
        if "term" in body and chance.random() < 0.8:
            body["term"] = node.quorum.term
        try:
            node.quorum.receive(chance.choice((2, 3)), body, 20_000 + chance.randrange(5000))
            node.messages()
            node.save_snapshots()
        except BadMessageError:
            continue
        except QuorumStoppedError as stopped:
            if "not of one history" not in str(stopped):
                raise
            return
