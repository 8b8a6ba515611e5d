"""Peers that have not proved the secret: nothing they send over a link decides anything, or teaches them anything.

A malformed message from a node that has proved itself is refused too, with one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.containment import UNEXPECTED, Complaints, Incidents
from kraftpy.broker.metadata import link as link_module
from kraftpy.broker.metadata import transport as module
from kraftpy.broker.metadata.link import VERSION
from kraftpy.broker.metadata.link_messages import ANSWERS, REQUESTS, BadBodyError, LinkError, check
from kraftpy.broker.metadata.secret import (
    SecretError,
    configured_secret,
    derived_key,
    is_loopback,
    is_remote_address,
    make_secret_file,
)
from kraftpy.broker.metadata.transport import Links
from kraftpy.config import Address, BrokerConfig, Listener
from kraftpy.metadata.codec import pack, unpack

BOUND_SECONDS = 10.0
SECRET = "a secret of the cluster"
Make = Callable[..., Links]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals this condition
            await asyncio.sleep(0.005)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Links] = []
    async with asyncio.TaskGroup() as tasks:

        def links(node_id: int, **arguments: Any) -> Links:
            settings = {"is_voter": True, "silence_ms": 2000, **arguments}
            made.append(Links(node_id, tasks=tasks, **settings))
            return made[-1]

        yield links
        for each in made:
            await each.stop()


async def listening(links: Links) -> Address:
    return Address("127.0.0.1", await links.listen(Listener("CONTROLLER", "127.0.0.1", 0)))


async def two_voters(make: Make, **arguments: Any) -> tuple[Links, Links]:
    one, two = make(1, **arguments), make(2, **arguments)
    voters = {1: await listening(one), 2: await listening(two)}
    await one.start(voters)
    await two.start(voters)
    await until(lambda: one.peers == [2] and two.peers == [1])
    return one, two


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def hello(**others: Any) -> bytes:
    return frame(pack({"version": VERSION, "node": 9, "nonce": bytes(32), "knocks": False, **others}))


async def all_it_says(reader: asyncio.StreamReader) -> list[bytes]:
    """Every frame until the other side closes."""
    frames = []
    async with asyncio.timeout(BOUND_SECONDS):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                frames.append(await reader.readexactly(size))
    return frames


async def one_voter(make: Make, **arguments: Any) -> tuple[Links, Address]:
    one = make(1, secret=SECRET, **arguments)
    one.cluster_id = "ours"
    address = await listening(one)
    await one.start({1: address})
    return one, address


async def said_by_a_stranger(address: Address, *frames: bytes, host: str = "127.0.0.1") -> list[bytes]:
    reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
    try:
        writer.write(b"".join(frames))
        return await all_it_says(reader)
    finally:
        writer.close()


# -- peers that have proved nothing


async def test_a_stranger_is_told_nothing_that_depends_on_the_secret(make: Make) -> None:
    one, address = await one_voter(make)
    identity = pack({"node": 9, "cluster": None, "expects": None, "knocks": False})
    said = await said_by_a_stranger(address, hello(), frame(bytes(32) + identity))
    assert len(said) == 1, "its first frame, and no proof"
    told = unpack(said[0])
    assert sorted(told) == ["knocks", "node", "nonce", "version"]
    again = unpack((await said_by_a_stranger(address, hello(), frame(b"")))[0])
    assert told["nonce"] != again["nonce"]
    assert {**told, "nonce": None} == {**again, "nonce": None}
    assert not one.peers


async def test_what_a_stranger_says_decides_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one, address = await one_voter(make)
    knocked: list[int] = []
    one.knocked = knocked.append  # type: ignore[method-assign]
    name = "theirs\n\x1b[31mforged"
    identity = {"node": 2, "cluster": name, "expects": 7, "knocks": True}
    for first in (hello(cluster=name, knocks=True), hello(version=1, cluster=name), hello(version=name), hello(node=1)):
        await said_by_a_stranger(address, first, frame(bytes(32) + pack(identity)))
    assert one.refused_cluster is None
    assert not knocked
    assert not one.peers
    assert "\x1b" not in caplog.text
    assert "forged" not in caplog.text


async def test_a_node_of_another_cluster_that_comes_here_is_refused_and_does_not_say_where_this_node_belongs(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, address = await one_voter(make)
    other = make(5, is_voter=False, secret=SECRET)
    other.cluster_id = "the\nother"
    await other.start({1: address})
    await until(lambda: other.refused_cluster == "ours")
    assert one.refused_cluster is None, "only whoever is at an address of the quorum says so"
    assert "node 5 belongs to cluster the?other, this node to ours" in caplog.text


async def test_a_voter_is_told_by_proved_ones_that_it_is_of_another_cluster_whichever_side_calls(make: Make) -> None:
    for wrong, right in ((1, 2), (2, 1)):
        one, two = make(wrong, secret=SECRET), make(right, secret=SECRET)
        one.cluster_id, two.cluster_id = "A", "B"
        voters = {wrong: await listening(one), right: await listening(two)}
        await one.start(voters)
        await two.start(voters)
        await until(lambda one=one: one.refused_cluster == "B")  # type: ignore[misc]
        await one.stop()
        await two.stop()


async def test_a_node_at_the_address_of_another_does_not_push_out_its_link(make: Make) -> None:
    one, address = await one_voter(make)
    two = make(2, is_voter=False, secret=SECRET)
    await two.start({1: address})
    await until(lambda: one.peers == [2])
    link = one._up[2]
    loop = asyncio.get_running_loop()
    _, wrong = await loop.create_connection(lambda: link_module.Link(two, is_caller=True, expected=3), *address)
    assert await wrong.ready is None
    assert one._up[2] is link


async def test_nodes_of_another_version_are_refused_and_told_so(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    _, address = await one_voter(make)
    said = await said_by_a_stranger(address, hello(version=1))
    assert [unpack(each)["version"] for each in said] == [VERSION]
    assert f"it uses version 1 of the link protocol, and this node version {VERSION}" in caplog.text


async def test_strangers_of_one_address_do_not_keep_out_those_of_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_HELLO_SECONDS", 60.0)
    one, address = await one_voter(make)
    async with contextlib.AsyncExitStack() as stack:

        async def connects(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
            stack.callback(writer.close)
            return reader, writer

        reader, writer = await connects("127.0.0.3")
        await until(lambda: len(one._half_open) == 1)
        for _ in range(3 * module._MAX_HALF_OPEN):
            await connects("127.0.0.2")
            assert len(one._half_open) <= module._MAX_HALF_OPEN_OF_HOST + 1
        for last in range(4, module._MAX_HALF_OPEN):
            await connects(f"127.0.0.{last}")
        await until(lambda: len(one._half_open) == module._MAX_HALF_OPEN)
        writer.write(hello())
        async with asyncio.timeout(BOUND_SECONDS):
            assert await reader.readexactly(4)


async def test_a_node_that_is_new_here_gets_in_beside_strangers_of_many_addresses(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connect while it shakes hands: those that failed before make room first."""
    monkeypatch.setattr(link_module, "_HELLO_SECONDS", 60.0)
    monkeypatch.setattr(module.random, "choice", lambda equals: equals[0])
    one, address = await one_voter(make)
    strangers = module._MAX_HALF_OPEN + 20
    async with contextlib.AsyncExitStack() as stack:

        async def connects(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
            stack.callback(writer.close)
            return reader, writer

        for number in range(strangers):
            await said_by_a_stranger(address, frame(b"no node"), host=f"127.0.1.{number + 1}")
        for number in range(module._MAX_HALF_OPEN):
            await connects(f"127.0.1.{number + 1}")
        await until(lambda: len(one._half_open) == module._MAX_HALF_OPEN)
        reader, writer = await connects("127.0.0.3")
        for _ in range(2):
            for number in range(strangers):
                await connects(f"127.0.1.{number + 1}")
        assert len(one._half_open) <= module._MAX_HALF_OPEN + 1
        assert len(one._failed_networks) == strangers
        writer.write(hello())
        async with asyncio.timeout(BOUND_SECONDS):
            assert await reader.readexactly(4)


class _Stranger:
    """A connection that has said nothing."""

    def __init__(self, links: Links, host: str) -> None:
        self.host = host
        self._links = links

    def close(self, reason: str, kind: str = "lost") -> None:
        self._links.failed(self)  # type: ignore[arg-type]
        self._links._half_open.pop(self)  # type: ignore[call-overload]


async def test_no_flood_from_new_addresses_outruns_a_node_that_is_new_here(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is closed is drawn among equals; the first to come is not the first to go."""
    one = make(1)
    chosen: list[int] = []
    monkeypatch.setattr(module.random, "choice", lambda equals: (chosen.append(len(equals)), equals[-1])[1])
    node = _Stranger(one, "10.0.0.1")
    one.half_opened(node)  # type: ignore[arg-type]
    for number in range(5_000):
        one.half_opened(_Stranger(one, f"10.1.{number // 250}.{number % 250}"))  # type: ignore[arg-type]
    assert node in one._half_open
    assert set(chosen) == {module._MAX_HALF_OPEN + 1}
    assert len(one._half_open) == module._MAX_HALF_OPEN
    assert len(one._failed_networks) == module._MAX_FAILED_NETWORKS


def test_the_addresses_of_a_host_count_as_one() -> None:
    assert (
        module.network_of("2001:db8::1") == module.network_of("2001:db8::2:1") != module.network_of("2001:db8:0:1::1")
    )
    assert module.network_of("::ffff:10.0.0.1") == module.network_of("10.0.0.1") == "10.0.0.1"
    assert module.network_of("fe80::1%eth0") == module.network_of("fe80::2")
    assert {module.network_of(odd) for odd in ("", "odd:name")} == {"", "odd:name"}


async def test_complaints_about_a_stranger_are_one_line_a_minute(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, address = await one_voter(make)
    for number in range(20):
        await said_by_a_stranger(address, frame(pack({"what": number})))
    assert caplog.text.count("it is not a node of a cluster") == 1


async def test_without_a_secret_nobody_beyond_this_machine_is_met(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "is_loopback", lambda host: host != "127.0.0.2")
    one = make(1)
    address = await listening(one)
    await one.start({1: address})
    reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
    writer.write(hello())
    assert await all_it_says(reader) == []
    writer.close()
    assert "kraftpy.quorum.secret" in caplog.text
    two = make(2, is_voter=False)
    await two.start({1: Address("127.0.0.2", address.port)})
    three = make(3, is_voter=False)
    await three.start({1: address})
    await until(lambda: one.peers == [3])
    assert not two.peers


async def test_a_connection_that_is_over_keeps_nothing(make: Make) -> None:
    _, address = await one_voter(make)
    made: list[link_module.Link] = []
    found = link_module.Link.connection_made

    def connection_made(link: link_module.Link, transport: asyncio.BaseTransport) -> None:
        made.append(link)
        found(link, transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module.Link, "connection_made", connection_made)
        await said_by_a_stranger(address, hello(), frame(bytes(1000))[:900], bytes(200_000))
        await until(lambda: bool(made) and made[0]._transport is None)
    assert not made[0]._buffer
    assert made[0]._deadline is not None
    assert made[0]._deadline.cancelled()


# -- the secret


def test_a_guess_of_the_secret_costs_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    scrypt = hashlib.scrypt

    def noted(password: bytes, **arguments: Any) -> bytes:
        asked.append(arguments)
        return scrypt(password, **arguments)

    monkeypatch.setattr(hashlib, "scrypt", noted)
    first, other = derived_key("one secret of sixteen"), derived_key("another one of sixteen")
    assert first != other
    assert len(first) == 32
    assert derived_key("one secret of sixteen") == first
    assert len(asked) == 2
    assert all(128 * each["n"] * each["r"] >= 16 << 20 for each in asked), "bytes of memory for each guess"


def test_where_the_secret_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert configured_secret(BrokerConfig.of({})) is None
    assert configured_secret(BrokerConfig.of({"kraftpy.quorum.secret": SECRET})) == SECRET
    from_file = BrokerConfig.of({"kraftpy.quorum.secret.file": str(file)})
    assert configured_secret(from_file) == SECRET
    file.write_text("short\n")
    for settings, reason in (
        ({"kraftpy.quorum.secret": "fifteen letters"}, "15 characters can be guessed; at least 16"),
        ({"kraftpy.quorum.secret.file": str(file)}, "5 characters can be guessed"),
        ({"kraftpy.quorum.secret.file": str(tmp_path / "none")}, "cannot be read: No such file"),
        ({"kraftpy.quorum.secret": SECRET, "kraftpy.quorum.secret.file": str(file)}, "set only one of them"),
    ):
        with pytest.raises(SecretError, match=reason):
            configured_secret(BrokerConfig.of(settings))
    assert SECRET not in repr(BrokerConfig.of({"kraftpy.quorum.secret": SECRET}))


def test_of_several_that_make_the_secret_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with ThreadPoolExecutor(6) as threads:
        for _ in range(20):
            list(threads.map(make_secret_file, [str(file)] * 6))
            kept = file.read_text()
            assert len(kept.strip()) >= 32
            make_secret_file(str(file))
            assert file.read_text() == kept
            assert [each.name for each in tmp_path.iterdir()] == ["secret"]
            file.unlink()


def test_which_addresses_are_of_this_machine() -> None:
    here = ("127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1")
    elsewhere = ("0.0.0.0", "::", "10.0.0.1", "169.254.1.1", "fe80::1%eth0", "::ffff:10.0.0.1", "2001:db8::1")
    assert all(is_loopback(host) and not is_remote_address(host) for host in here)
    assert all(is_remote_address(host) and not is_loopback(host) for host in elsewhere)
    assert not is_loopback("localhost")
    assert not is_remote_address("localhost"), "a name is looked at once it is resolved"


# -- bodies

GOOD_REQUESTS: dict[str, dict[str, Any]] = {
    "submit": {"data": b"\x90"},
    "follow": {"after": 0, "leader": -1, "term": 0},
    "heartbeat": {"epoch": 5, "applied": 7, "wants_fence": False, "wants_shut_down": False},
    "describe quorum": {},
    "directory": {"id": bytes(16)},
    "directory id": {},
    "directory ids": {},
    "change voter": {"add": [4, "host:1"], "remove": None},
}
GOOD_ANSWERS: dict[str, dict[str, Any]] = {
    "follow": {
        "leader": 1,
        "term": 2,
        "applied": 3,
        "voters": [[1, "h:1"]],
        "entries": [[3, 2, b"\x00x"]],
        "snapshot": [3, 2, b"s"],
    },
    "heartbeat": {"error": 0, "is_caught_up": True, "is_fenced": False, "should_shut_down": False},
    "describe quorum": {
        "leader": [1, 2, 3],
        "voters": [[1, 2, 3, 4]],
        "observers": [],
        "addresses": [[1, "h:1"]],
    },
    "directory id": {"id": bytes(16)},
    "directory ids": {"ids": [[1, bytes(16)]]},
    "change voter": {"refused": None},
}
ODD = (None, -2, 1 << 63, 1.5, "x" * 20_000, b"x", True, [], [[]], [[1]], [None, None], [-1, 2, b""], {}, {"a": 1})


def spoilt(good: dict[str, Any]) -> list[dict[str, Any]]:
    """Bodies with a field less, with one more, and with a value of another type or beyond its range."""
    bodies = [{**good, "more": 1}]
    for name, value in good.items():
        bodies.append({other: each for other, each in good.items() if other != name})
        bodies += [{**good, name: odd} for odd in ODD if type(odd) is not type(value) or odd in (-2, 1 << 63)]
        bodies += [{**good, name: odd} for odd in ODD if type(odd) is list is type(value) and odd]
    return bodies


@pytest.mark.parametrize(("shapes", "good"), [(REQUESTS, GOOD_REQUESTS), (ANSWERS, GOOD_ANSWERS)])
def test_every_body_is_checked_field_by_field(shapes: Any, good: dict[str, dict[str, Any]]) -> None:
    assert shapes.keys() == good.keys()
    may_be = {("change voter", "add"), ("change voter", "remove"), ("change voter", "refused"), ("submit", "data")}
    for kind, body in good.items():
        check(shapes, kind, body)
        for odd in spoilt(body):
            changed = {name for name in odd if odd[name] is not body.get(name)}
            if any((kind, name) in may_be for name in changed) or (kind == "follow" and "snapshot" not in odd):
                continue
            with pytest.raises(BadBodyError, match=kind):
                check(shapes, kind, odd)


def test_bodies_of_a_quorum_that_tells_disks_apart_are_checked_too() -> None:
    """Voters, and a change of them, may have the id of a directory, of 16 bytes."""
    for directory_id, is_right in ((bytes(16), True), (bytes(15), False), ("x" * 16, False), (None, False)):
        described = GOOD_ANSWERS["describe quorum"]
        for shapes, kind, body in (
            (REQUESTS, "change voter", {**GOOD_REQUESTS["change voter"], "directory": directory_id}),
            (ANSWERS, "follow", {**GOOD_ANSWERS["follow"], "voters": [[1, "h:1", directory_id]]}),
            (ANSWERS, "describe quorum", {**described, "voters": [[1, 2, 3, 4, directory_id]]}),
            (ANSWERS, "describe quorum", {**described, "observers": [[1, 2, 3, 4, directory_id]]}),
        ):
            if is_right:
                check(shapes, kind, body)
            else:
                with pytest.raises(BadBodyError, match=kind):
                    check(shapes, kind, body)


async def test_bodies_of_another_shape_are_refused_with_one_line(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    incidents = Incidents(complaints)
    one, two = await two_voters(make, secret=SECRET, complaints=complaints, incidents=incidents)
    came: list[str] = []
    link = one._up[2]

    for kind in REQUESTS:
        if kind == "submit":
            two.receive(kind, lambda peer, body: came.append(str(body["data"])))
            continue

        async def answer(peer: int, body: dict[str, Any], kind: str = kind) -> dict[str, Any]:
            came.append(kind)
            return {}

        two.serve(kind, answer)
    for kind, body in GOOD_REQUESTS.items():
        for odd in ({**body, "more\x1b": 1}, dict.fromkeys(body), {}):
            if kind == "submit":
                assert one.send(2, kind, odd)
            elif (body or odd) and (kind, odd.get("add", "")) != ("change voter", None):
                with pytest.raises(LinkError, match=kind):
                    await one.request(2, kind, odd, 5_000)
    await until(lambda: "describe quorum" not in came)
    with pytest.raises(LinkError, match="sent an invalid answer"):
        await one.request(2, "heartbeat", GOOD_REQUESTS["heartbeat"], 5_000)
    assert came == ["heartbeat"]
    assert one._up[2] is link
    assert caplog.text.count("refused a message from node") == 2, "one line for each peer"
    assert "\x1b" not in caplog.text
    assert incidents.count == 0


async def test_an_error_of_ours_in_a_receiver_or_a_handler_costs_the_message(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    incidents = Incidents(complaints)
    one, two = await two_voters(make, secret=SECRET, complaints=complaints, incidents=incidents)
    link = one._up[2]

    def receives(peer: int, body: dict[str, Any]) -> None:
        raise KeyError("a field")

    async def answers(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("a field")

    two.receive("word", receives)
    two.serve("question", answers)
    assert one.send(2, "word", {})
    with pytest.raises(LinkError, match="the request failed: KeyError"):
        await one.request(2, "question", {}, 5_000)
    assert incidents.count == 2
    assert one._up[2] is link
    assert caplog.text.count(UNEXPECTED) == 2
    assert "Traceback" not in caplog.text


async def test_requests_that_are_not_answered_are_bounded(make: Make) -> None:
    one, two = await two_voters(make, secret=SECRET)
    may_end = asyncio.Event()
    asked: list[int] = []

    async def waits(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["number"])
        await may_end.wait()
        return {}

    two.serve("wait", waits)
    most = link_module._MAX_REQUESTS
    waiting = [asyncio.create_task(one.request(2, "wait", {"number": n}, 60_000)) for n in range(most)]
    await until(lambda: len(asked) == most)
    with pytest.raises(LinkError, match="unanswered already"):
        await one.request(2, "wait", {"number": most}, 60_000)
    may_end.set()
    assert await asyncio.gather(*waiting) == [{}] * most
    assert await one.request(2, "wait", {"number": most}, 60_000) == {}
