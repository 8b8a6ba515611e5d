"""Links: which nodes may be peers, what a peer can do to a node, and how fast a lost link is back.

The defects D12, D15 to D18 and D21 of the Raft library's own transport, as they would look here, have a test each.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kraftpy.broker.metadata import link as link_module
from kraftpy.broker.metadata import transport as module
from kraftpy.broker.metadata.link import Link
from kraftpy.broker.metadata.link_messages import LinkError
from kraftpy.broker.metadata.transport import Links
from kraftpy.config import Address, Listener

BOUND_SECONDS = 10.0
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


async def listening(links: Links, port: int = 0) -> Address:
    return Address("127.0.0.1", await links.listen(Listener("CONTROLLER", "127.0.0.1", port)))


async def two_voters(make: Make, **arguments: Any) -> tuple[Links, Links]:
    """Nodes 1 and 2, linked."""
    one, two = make(1, **arguments), make(2, **arguments)
    voters = {1: await listening(one), 2: await listening(two)}
    await one.start(voters)
    await two.start(voters)
    await until(lambda: one.peers == [2] and two.peers == [1])
    return one, two


def heard(links: Links) -> list[tuple[int, Any]]:
    """Record the events at a node: messages, and links that come and go."""
    found: list[tuple[int, Any]] = []
    links.receive("word", lambda peer, body: found.append((peer, body["word"])))
    links.on_connection(lambda peer, is_up: found.append((peer, is_up)))
    return found


async def closed_by_the_other_side(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(BOUND_SECONDS):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
    return True


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


async def test_messages_requests_and_refusals(make: Make) -> None:
    one, two = await two_voters(make)
    at_two = heard(two)
    assert one.send(2, "word", {"word": "a"})
    assert one.send(2, "word", {"word": b"\xff"})
    assert not one.send(7, "word", {"word": "nobody"})

    async def double(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"is": body["of"] * 2, "for": peer}

    async def fails(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        raise LinkError("not today")

    two.serve("double", double)
    two.serve("fails", fails)
    assert await one.request(2, "double", {"of": 21}, 1000) == {"is": 42, "for": 1}
    assert at_two == [(1, "a"), (1, b"\xff")]
    for kind, reason in (("fails", "not today"), ("unheard of", "this node has no handler for")):
        with pytest.raises(LinkError, match=reason):
            await one.request(2, kind, {}, 1000)
    with pytest.raises(LinkError, match="not connected"):
        await one.request(3, "double", {}, 1000)


async def test_a_request_whose_link_is_lost_has_no_answer(make: Make) -> None:
    one, two = await two_voters(make)

    async def never(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        two.disconnect(1)
        await asyncio.sleep(BOUND_SECONDS)
        return {}

    two.serve("never", never)
    asked = asyncio.create_task(one.request(2, "never", {}, 60_000))
    with pytest.raises(LinkError, match="lost"):
        await asked
    for task in asyncio.all_tasks():
        if task.get_name() == "answer never":
            task.cancel()


async def test_a_request_to_a_node_that_fails_closes_the_link_and_leaves_no_coroutine(make: Make) -> None:
    answered: list[int] = []
    one = make(1)
    voters = {1: await listening(one)}

    async def answer(peer: int, body: dict[str, Any]) -> dict[str, Any]:
        answered.append(peer)
        return {}

    async def fails() -> None:
        raise OSError("the broker fails")

    async def fails_and_is_asked() -> None:
        async with asyncio.TaskGroup() as tasks:
            two = Links(2, tasks=tasks, is_voter=True, silence_ms=2000)
            two.serve("word", answer)
            voters[2] = await listening(two)
            await one.start(voters)
            await two.start(voters)
            await until(lambda: one.peers == [2] and two.peers == [1])

            async def lingers() -> None:
                try:
                    await asyncio.sleep(BOUND_SECONDS)
                finally:  # the group takes no more tasks from now on, and waits for this one
                    with pytest.raises(LinkError, match="lost"):
                        await one.request(2, "word", {}, 60_000)
                    assert not two.peers
                    await two.stop()

            tasks.create_task(lingers())
            await asyncio.sleep(0)
            tasks.create_task(fails())

    with pytest.raises(ExceptionGroup) as failure:
        await fails_and_is_asked()
    assert [str(error) for error in failure.value.exceptions] == ["the broker fails"]
    assert not answered
    gc.collect()  # a coroutine that was never awaited would be reported now


async def test_a_node_that_does_not_vote_connects_to_every_voter(make: Make) -> None:
    one, two = await two_voters(make)
    observer = make(9, is_voter=False)
    await observer.start({**one._voters, **two._voters})
    await until(lambda: one.peers == [2, 9] and two.peers == [1, 9] and observer.peers == [1, 2])
    found = make(10, is_voter=False)
    await found.start({}, tuple(two._voters.values()))
    await until(lambda: found.peers == [1])


async def test_a_large_message_is_whole(make: Make) -> None:
    one, two = await two_voters(make)
    at_two = heard(two)
    large = os.urandom(5 << 20)
    one.send(2, "word", {"word": large})
    await until(lambda: bool(at_two))
    assert at_two == [(1, large)]
    with pytest.raises(ValueError, match="too large"):
        one.send(2, "word", {"word": bytes(module.MAX_FRAME_BYTES)})


# -- one link per peer (D12)


async def test_a_newer_connection_of_a_peer_closes_the_older_one_first(make: Make) -> None:
    one, two = await two_voters(make)
    at_one = heard(one)
    older = one._up[2]
    loop = asyncio.get_running_loop()
    _, newer = await loop.create_connection(lambda: link_module.Link(two, is_caller=True, expected=1), *two._voters[1])
    await newer.ready
    await until(lambda: one._up.get(2) not in (older, None))
    assert at_one[:2] == [(2, False), (2, True)]
    older.data_received(b"\0\0\0\1x")  # bytes that it still had in its buffer are not looked at
    assert one.peers == [2]
    two.send(1, "word", {"word": "by the newer"})
    await until(lambda: (2, "by the newer") in at_one)


async def test_a_restarted_peer_is_heard_in_order(make: Make) -> None:
    one, two = await two_voters(make)
    at_one = heard(one)
    for number in range(20):
        two.send(1, "word", {"word": f"{number:02}"})
        if number % 5 == 4:
            two.disconnect(1)
            times = number // 5 + 1
            await until(lambda times=times: at_one.count((2, True)) == times and two.is_connected(1))  # type: ignore[misc]
    words = [what for _, what in at_one if type(what) is str]
    assert words == sorted(words)
    ups = [what for _, what in at_one if type(what) is bool]
    assert ups == [False, True] * (len(ups) // 2)


# -- peers that are not ours (D16, D17, D18)


async def test_nothing_that_is_sent_is_unpickled(make: Make) -> None:
    one = make(1)
    address = await listening(one)
    await one.start({})

    class Opened:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("it was unpickled",)

    for payload in (pickle.dumps(Opened()), b"GET / HTTP/1.1\r\n\r\n", frame(b"\xc1"), frame(b"\x90"), frame(b"")):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(frame(payload))
        assert await closed_by_the_other_side(reader)
        writer.close()
    assert not one.peers


async def test_the_size_of_a_frame_is_looked_at_before_anything_is_kept(make: Make) -> None:
    one = make(1)
    address = await listening(one)
    await one.start({})
    reader, writer = await asyncio.open_connection(*address)
    writer.write(struct.pack(">I", 5000))
    assert await closed_by_the_other_side(reader)
    writer.close()
    one, _ = await two_voters(make, max_frame_bytes=1 << 20)
    link = one._up[2]
    link.data_received(struct.pack(">I", (1 << 20) + 1))
    assert link._is_closed
    assert len(link._buffer) == 4
    await until(lambda: one.peers == [2])


async def test_without_the_secret_nobody_is_a_peer(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    one, stranger = make(1, secret="ours"), make(2, secret="theirs")
    at_one = heard(one)
    voters = {1: await listening(one), 2: await listening(stranger)}
    await one.start(voters)
    await stranger.start(voters)
    await until(lambda: "does not know the secret" in caplog.text)
    assert not one.peers
    assert not stranger.peers
    friend = make(3, secret="ours")
    await friend.start(voters)
    await until(lambda: one.peers == [3])
    assert at_one == [(3, True)]


async def test_a_node_of_another_cluster_is_no_peer(make: Make) -> None:
    one, other = make(1), make(2)
    one.cluster_id, other.cluster_id = "A", "B"
    voters = {1: await listening(one), 2: await listening(other)}
    await one.start(voters)
    await other.start(voters)
    await until(lambda: one.refused_cluster == "B" or other.refused_cluster == "A")
    assert not one.peers
    other.cluster_id = None  # it does not know yet
    await until(lambda: one.peers == [2])


async def test_a_frame_that_was_changed_or_repeated_closes_the_link(make: Make) -> None:
    one, two = await two_voters(make)
    at_two = heard(two)
    for spoil in ("change", "repeat"):
        link = one._up[2]
        assert link._transport is not None
        write, sent = link._transport.write, []

        def spoiled(data: bytes, spoil: str = spoil, write: Any = write, sent: list[bytes] = sent) -> None:
            sent.append(data)
            write(data if spoil == "repeat" else data[:-1] + bytes([data[-1] ^ 1]))
            if spoil == "repeat":
                write(data)

        link._transport.write = spoiled  # type: ignore[method-assign]
        one.send(2, "word", {"word": spoil})
        await until(lambda: (1, False) in at_two)
        await until(lambda: at_two[-1] == (1, True) and one.is_connected(2))
        assert [what for _, what in at_two if type(what) is str] == (["repeat"] if spoil == "repeat" else [])
        at_two.clear()


async def test_who_says_nothing_is_closed_and_cannot_keep_others_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_HELLO_SECONDS", 0.2)
    one = make(1)
    address = await listening(one)
    await one.start({})
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"\0")
    assert await closed_by_the_other_side(reader)
    writer.close()
    monkeypatch.setattr(link_module, "_HELLO_SECONDS", 60.0)
    silent = [await asyncio.open_connection(*address) for _ in range(module._MAX_HALF_OPEN_OF_HOST + 5)]
    await until(lambda: len(one._half_open) == module._MAX_HALF_OPEN_OF_HOST)
    assert await closed_by_the_other_side(silent[0][0])
    friend = make(3, is_voter=False)
    await friend.start({1: address})
    await until(lambda: one.peers == [3])
    for _, writer in silent:
        writer.close()


async def test_a_peer_that_does_not_read_is_disconnected(make: Make) -> None:
    one, two = await two_voters(make, max_buffered_bytes=1 << 20)
    transport = two._up[1]._transport
    assert transport is not None
    transport.pause_reading()
    sent = 0
    while one.send(2, "word", {"word": bytes(100_000)}):
        sent += 1
        assert sent < 1000, "it buffers without a limit"
        await asyncio.sleep(0)
    assert not one.is_connected(2)


async def test_d14_an_idle_link_carries_its_first_message(make: Make) -> None:
    one, two = await two_voters(make, silence_ms=200)
    at_two = heard(two)
    link = one._up[2]
    pings_until = asyncio.get_running_loop().time() + 1.0
    await until(lambda: asyncio.get_running_loop().time() > pings_until)
    assert one.send(2, "word", {"word": "after a long silence"})
    await until(lambda: at_two == [(1, "after a long silence")])
    assert one._up[2] is link


async def test_a_peer_of_which_nothing_is_heard_is_disconnected(make: Make) -> None:
    one, two = await two_voters(make, silence_ms=300)
    at_one = heard(one)
    await asyncio.sleep(0.6)
    assert at_one == [], "pings keep an idle link"
    transport = one._up[2]._transport
    assert transport is not None
    transport.pause_reading()
    await until(lambda: at_one[:1] == [(2, False)])
    await until(lambda: one.is_connected(2) and two.is_connected(1))


# -- a listener that survives (D15)


async def test_a_listener_survives_running_out_of_descriptors(make: Make) -> None:
    one = make(1)
    address = await listening(one)
    await one.start({})
    problems: list[Any] = []
    filling: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = f"""
import socket, sys
sys.stdin.readline()
held = [socket.create_connection(({address.host!r}, {address.port})) for _ in range(40)]
print("held", flush=True)
sys.stdin.read()
"""
    attacker = subprocess.Popen(  # noqa: ASYNC220 - it starts, and is waited for in a thread
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    try:
        few = 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + few, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        for _ in range(few):
            os.close(filling.pop())
        assert attacker.stdin.write("now\n")
        attacker.stdin.flush()
        assert await asyncio.to_thread(attacker.stdout.readline) == "held\n"
        await until(lambda: any("system resource" in context["message"] for context in problems))
        attacker.stdin.close()
        attacker.wait(BOUND_SECONDS)
        friend = make(3, is_voter=False)
        await friend.start({1: address})
        await until(lambda: one.peers == [3])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in filling:
            os.close(descriptor)
        attacker.kill()
        attacker.wait()
        attacker.stdin.close()
        attacker.stdout.close()


# -- how fast it is back (D21)


async def test_a_node_that_comes_back_is_linked_at_once_whichever_side_calls(make: Make) -> None:
    for returning, staying in ((1, 2), (2, 1)):
        stays, goes = make(staying), make(returning)
        voters = {staying: await listening(stays), returning: await listening(goes)}
        await stays.start(voters)
        await goes.start(voters)
        await until(lambda stays=stays, goes=goes: bool(stays.peers and goes.peers))  # type: ignore[misc]
        await goes.stop()
        await until(lambda stays=stays: not stays.peers)  # type: ignore[misc]
        await asyncio.sleep(0.5)  # its pauses grow
        back = make(returning)
        await listening(back, voters[returning].port)
        await back.start(voters)
        await until(lambda stays=stays, back=back: bool(stays.peers and back.peers))  # type: ignore[misc]


async def test_a_name_is_resolved_anew_each_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make(1)
    address = await listening(one)
    await one.start({})
    resolve = socket.getaddrinfo
    asked: list[str] = []

    def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
        if host != "node-1":
            return resolve(host, *arguments, **named)
        asked.append(host)
        return resolve("127.0.0.9" if len(asked) == 1 else "127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    two = make(2)
    await two.start({1: Address("node-1", address.port)})
    await until(lambda: one.peers == [2])
    assert len(asked) >= 2


async def test_a_connection_that_was_accepted_before_a_stop_and_is_made_after_it_is_closed(make: Make) -> None:
    one = make(1)
    await one.start({})
    await one.stop()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        accepted, _ = listener.accept()
        await loop.connect_accepted_socket(lambda: Link(one, is_caller=False), accepted)
        peer.setblocking(False)
        async with asyncio.timeout(BOUND_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(peer, 1) == b""
    assert one._half_open == {}


async def test_a_client_is_served_only_while_the_node_serves_clients(make: Make) -> None:
    """KIP-919: a request of Kafka's protocol on a controller listener is no attempt to be a node."""
    served = make(1)
    address = await listening(served)
    await served.start({})
    request = frame(struct.pack(">hhih", 18, 0, 1, -1))
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    assert await closed_by_the_other_side(reader)
    writer.close()

    class Client(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer, self.heard = bytearray(3), b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, count: int) -> None:
            self.heard += self.buffer[:count]
            if self.heard == 2 * request:
                self.transport.write(b"whole")

    served.serve_clients("CONTROLLER", Client)
    reader, writer = await asyncio.open_connection(*address)
    for byte in request:  # the bytes that decide may come one by one
        writer.write(bytes([byte]))
        await writer.drain()
    writer.write(request)
    async with asyncio.timeout(BOUND_SECONDS):
        assert await reader.readexactly(5) == b"whole"
    writer.close()
    assert served.peers == []
