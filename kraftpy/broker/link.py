"""A link: one connection between two nodes, from its first byte to its last.

A connection begins with a challenge from either side, answered by a keyed hash over both (the secret of
`kraftpy.quorum.secret`; without one, a constant: the nodes are then told apart, not protected). Every frame after that
carries a keyed hash of the session, its direction and its number. Before that proof a connection may send
`_HELLO_BYTES`, live for `_HELLO_SECONDS` and be one of a few, of which the oldest goes first.

A frame's size is checked before anything is allocated, and the frame grows as it arrives. A peer that does not read
what it is sent is disconnected when more than `max_buffered_bytes` wait. Both sides send something at least
`TICKS_OF_SILENCE` times within the allowed silence; a link over which nothing comes for that long is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import socket
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from kraftpy.metadata.codec import CodecError, pack, unpack

if TYPE_CHECKING:
    from kraftpy.broker.links import Links

VERSION = 1
_HELLO_BYTES = 4096
_HELLO_SECONDS = 5.0
TICKS_OF_SILENCE = 6
_SIZE = Struct(">I")
_NUMBER = Struct(">Q")
_MAC_BYTES = 16
_NONCE_BYTES = 32

# What a frame is, by its first element.
ONE_WAY, REQUEST, ANSWER, REFUSAL, PING = range(5)

Body = dict[str, Any]


class LinkError(Exception):
    """A request that has no answer: the peer is not connected, went away, took too long or refused."""


class Link(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self, links: Links, *, is_caller: bool, expected: int | None = None, is_knock: bool = False) -> None:
        self._links = links
        self._is_caller = is_caller
        self._expected = expected
        self._is_knock = is_knock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._own_hello = b""
        self._their_hello = b""
        self._claimed = -1
        self._send_key = self._receive_key = b""
        self._sent = self._received = 0
        self._is_open = self._is_closed = False
        self._silent_ticks = 0
        self._has_sent = False
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Body]] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self.peer: int | None = None
        self.ready: asyncio.Future[int | None] = self._loop.create_future()

    # --- asyncio's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who this is, if it is this side that connects."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self._loop.call_later(_HELLO_SECONDS, self.close, "it took too long to say who it is")
        if not self._is_caller:
            self._links.half_opened(self)
            return
        self._say_hello()
        if self._is_knock:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Frames, as far as they are complete."""
        self._buffer += data
        self._silent_ticks = 0
        try:
            while not self._is_closed and (frame := self._next_frame()) is not None:
                if self._is_open:
                    self._take(frame)
                else:
                    self._shake_hands(frame)
        except (CodecError, LinkError) as error:
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side closed it, or the network did."""
        self.close("the connection is lost" if exc is None else str(exc))

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer)
        limit = self._links.max_frame_bytes if self._is_open else _HELLO_BYTES
        if size > limit:
            raise LinkError(f"a frame of {size} bytes; {limit} are allowed")
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[_SIZE.size : end])
        del self._buffer[:end]
        return frame

    # --- who is there ------------------------------------------------------------------------

    def _say_hello(self) -> None:
        links = self._links
        self._own_hello = pack(
            {
                "version": VERSION,
                "node": links.node_id,
                "nonce": secrets.token_bytes(_NONCE_BYTES),
                "cluster": links.cluster_id,
                "knocks": self._is_knock,
            }
        )
        self._write(self._own_hello)

    def _shake_hands(self, frame: bytes) -> None:
        if not self._their_hello:
            self._meet(frame)
            if not self._is_caller and not self._is_closed:
                self._say_hello()
                self._write(self._proof(of_caller=False))
            return
        if not hmac.compare_digest(frame, self._proof(of_caller=not self._is_caller)):
            raise LinkError(f"node {self._claimed} does not know the secret of this cluster")
        if self._is_caller:
            self._write(self._proof(of_caller=True))
        self._open()

    def _meet(self, frame: bytes) -> None:
        """Look at the other side's first frame: nothing in it is proved yet."""
        hello = unpack(frame)
        shape: tuple[tuple[str, type], ...] = (("version", int), ("node", int), ("nonce", bytes), ("knocks", bool))
        if type(hello) is not dict or any(type(hello.get(name)) is not kind for name, kind in shape):
            raise LinkError("it is no node of a cluster")
        if hello["version"] != VERSION:
            raise LinkError(f"node {hello['node']} speaks version {hello['version']} of links, this one {VERSION}")
        self._their_hello = frame
        self._claimed = hello["node"]
        if hello["knocks"]:
            self._links.knocked(self._claimed)
            self.close("it only knocked")
            return
        if self._claimed == self._links.node_id or self._expected not in (None, self._claimed):
            raise LinkError(
                f"node {self._claimed} is at the address of node {self._expected}, or has the id of this one"
            )
        cluster = hello.get("cluster")
        if cluster is not None and self._links.cluster_id not in (None, cluster):
            self._links.refused_cluster = str(cluster)
            if not self._is_caller:
                self._say_hello()  # so that the other side knows why
            raise LinkError(f"node {self._claimed} is of cluster {cluster}, this one of {self._links.cluster_id}")

    def _proof(self, *, of_caller: bool) -> bytes:
        return self._keyed(b"proof of caller" if of_caller else b"proof of called")

    def _keyed(self, purpose: bytes) -> bytes:
        """What only those can compute who know the secret and both first frames."""
        both = (self._own_hello, self._their_hello) if self._is_caller else (self._their_hello, self._own_hello)
        content = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose, *both))
        return blake2b(content, key=self._links.secret, digest_size=32).digest()

    def _open(self) -> None:
        keys = self._keyed(b"frames of caller"), self._keyed(b"frames of called")
        self._send_key, self._receive_key = keys if self._is_caller else keys[::-1]
        self.peer = self._claimed
        self._is_open = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._links.opened(self, self.peer)
        if not self.ready.done():
            self.ready.set_result(self.peer)

    # --- frames of a link --------------------------------------------------------------------

    def send(self, frame: list[Any]) -> bool:
        """Send a frame, if this is still a link."""
        if not self._is_open or self._is_closed or self._transport is None:
            return False
        if self._transport.get_write_buffer_size() > self._links.max_buffered_bytes:
            self.close("it does not read what it is sent")
            return False
        payload = pack(frame)
        if len(payload) + _MAC_BYTES > self._links.max_frame_bytes:
            raise ValueError(f"a frame of {len(payload)} bytes is too large for a link")
        self._write(self._mac(self._send_key, self._sent, payload) + payload)
        self._sent += 1
        self._has_sent = True
        return True

    def request(self, kind: str, body: Body) -> asyncio.Future[Body]:
        """Send a request; its answer to come."""
        number = next(self._numbers)
        answer: asyncio.Future[Body] = self._loop.create_future()
        if not self.send([REQUEST, kind, body, number]):
            answer.set_exception(LinkError(f"node {self.peer} is not connected"))
            return answer
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        return answer

    def tick(self) -> None:
        """Once per part of the allowed silence: say something, and close what has been silent for all of it.

        Counted in ticks rather than by a clock, so that a pause of this process is not taken for one of the peer.
        """
        if not self._has_sent:
            self.send([PING])
        self._has_sent = False
        self._silent_ticks += 1
        if self._silent_ticks > TICKS_OF_SILENCE:
            self.close("nothing has come from it for too long")

    def _take(self, frame: bytes) -> None:
        mac, payload = frame[:_MAC_BYTES], frame[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._receive_key, self._received, payload)):
            raise LinkError("a frame is not of this session")
        self._received += 1
        assert self.peer is not None
        match unpack(payload):
            case [int(what)] if what == PING:
                pass
            case [int(what), str(kind), dict(body)] if what == ONE_WAY:
                self._links.arrived(self.peer, kind, body)
            case [int(what), str(kind), dict(body), int(number)] if what == REQUEST:
                self._links.asked(self, number, kind, body)
            case [int(what), int(number), dict(body)] if what == ANSWER:
                if (answer := self._waiting.get(number)) is not None and not answer.done():
                    answer.set_result(body)
            case [int(what), int(number), str(reason)] if what == REFUSAL:
                if (answer := self._waiting.get(number)) is not None and not answer.done():
                    answer.set_exception(LinkError(reason))
            case _:
                raise LinkError("a frame of no known kind")

    @staticmethod
    def _mac(key: bytes, number: int, payload: bytes) -> bytes:
        return blake2b(_NUMBER.pack(number) + payload, key=key, digest_size=_MAC_BYTES).digest()

    def _write(self, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_SIZE.pack(len(payload)) + payload)

    def close(self, reason: str) -> None:
        """Close from our side, at once. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self._is_open and not self._is_knock:
            self._links.note_refusal(self, reason)
        for answer in [*self._waiting.values()]:
            if not answer.done():
                answer.set_exception(LinkError(f"the link to node {self.peer} was lost: {reason}"))
        if not self.ready.done():
            self.ready.set_result(None)
        self._links.closed(self, reason)
