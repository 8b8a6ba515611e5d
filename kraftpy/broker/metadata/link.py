"""A link: one connection between two nodes, from its first byte to its last.

    caller: hello                      version, nonce
    called: hello                      version, nonce
    caller: keyed hash, identity       over both hellos and the identity: node, cluster, expected peer, knock or not
    called: keyed hash, identity       the same for its own identity; sent only after the caller's proof was verified

The key is derived from the cluster's secret (`secret`). Without a secret it is a constant: it then distinguishes nodes
from other programs but protects nothing, and connections from other machines are refused. Every later frame carries a
keyed hash of the session, its direction and its number.

Nothing that a peer sends before its proof has an effect. The called side, which answers unknown peers, sends nothing
that depends on the secret before it has verified the caller's proof, so an unknown caller learns nothing to test
guesses on. An impostor at another node's address can test guesses on the caller's first frames. Before its proof, a
connection may send frames of `_HELLO_BYTES`, may last for `_HELLO_SECONDS`, and is one of a few (`half_open`).

A frame's size is checked before anything is allocated, and the buffer grows as the frame arrives. A peer that does not
read is disconnected when more than `max_buffered_bytes` are waiting; with `_MAX_REQUESTS` unanswered requests, further
ones are refused. Both sides send something at least `TICKS_OF_SILENCE` times within the allowed silence; a link that
receives nothing for that long is closed.

A connection whose first frame begins with a zero byte is not a node's, because a hello is a msgpack map: it belongs to
a Kafka client that administers the cluster through this listener (KIP-919). The node then serves it as a client's
(`Links.take_over`), with all bytes received so far.

On a controller listener with TLS, all of this is inside TLS (`broker.security`); on one with SASL, the caller logs in
before its hello (`link_login`). `principal` is the name that it has proved by its login or its certificate. If the
session of the login ends, the caller logs in again before that, in frames of the type LOGIN between the others; once
the session has ended, the called side closes the link.

`VERSION` is the version of this protocol. Nodes of different versions do not connect, and both log that.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from kraftpy.broker.metadata.link_messages import (
    CLUSTER_ID_BYTES,
    LOGIN_BYTES,
    ConnectionRefused,
    LinkError,
    printable,
    read_hello,
    read_identity,
    refusal_of_login,
)
from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kraftpy.broker.metadata.link_login import LoginServer
    from kraftpy.broker.metadata.transport import Links

VERSION = 2
_HELLO_BYTES = 1024
_HELLO_SECONDS = 5.0
_SECURE_HELLO_SECONDS = 10.0
"""The same on listeners with TLS or SASL: as long as their handshakes may take on client listeners."""
_MAX_REQUESTS = 64
TICKS_OF_SILENCE = 6
_SIZE = Struct(">I")
_NUMBER = Struct(">Q")
_MAC_BYTES = 16
_PROOF_BYTES = 32
_NONCE_BYTES = 32
_SHOWN = 200
"""The most characters of a name that are logged."""

# The first element of a frame: its type.
ONE_WAY, REQUEST, ANSWER, REFUSAL, PING, LOGIN = range(6)

Body = dict[str, Any]


class LinkCounts:
    """The frames that went over a node's links, both ways, with their bytes."""

    __slots__ = ("received", "received_bytes", "sent", "sent_bytes")

    def __init__(self) -> None:
        self.sent = self.sent_bytes = self.received = self.received_bytes = 0


class _State(Enum):
    """The stage of a connection's handshake."""

    LOGIN = "the caller has to log in"
    HELLO = "nothing was received yet"
    PROOF = "the hello was received; nothing is proved yet"
    OPEN = "the peer has proved that it knows the secret: this is a link"
    OVER = "nothing more will be sent: the peer disconnects"


class Link(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(
        self,
        links: Links,
        *,
        is_caller: bool,
        expected: int | None = None,
        is_knock: bool = False,
        listener: str = "",
        login: LoginServer | None = None,
        must_log_in: bool = False,
    ) -> None:
        """`login` is for the called side; a caller that `must_log_in` awaits `ask`, then calls `begin`."""
        self._links = links
        self._listener = listener
        self._login = login
        self._login_answer: asyncio.Future[bytes] | None = None
        self._is_checking = False
        """True while the caller's last frame of a login is being checked."""
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._may_be_clients = not is_caller
        self._is_caller = is_caller
        self._expected = expected
        self._is_knock = is_knock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._own_hello = b""
        self._their_hello = b""
        self._state = _State.LOGIN if login is not None or must_log_in else _State.HELLO
        self._send_key = self._receive_key = b""
        self._sent = self._received = 0
        self._is_closed = False
        self._silent_ticks = 0
        self._has_sent = False
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Body]] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._unanswered = 0
        """The number of the peer's unanswered requests."""
        self.peer: int | None = None
        self.is_to_itself = False
        """True if this node found its own id at an address that it called."""
        self.principal: Principal = ANONYMOUS
        """The caller's principal, by its certificate or login; unknown on the caller's side."""
        self.host = ""
        self.ready: asyncio.Future[int | None] = self._loop.create_future()

    # --- asyncio's side ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello, if this side connects."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = self._transport.get_extra_info("peername")
        self.host = str(address[0]) if isinstance(address, tuple) else ""
        seconds = _HELLO_SECONDS if self._links.security is None else _SECURE_HELLO_SECONDS
        self._deadline = self._loop.call_later(seconds, self.close, "it did not identify itself in time", "late")
        if self._links.forbids_links_to(self.host, None if self._is_caller else self._listener):
            self.close("links to other machines require kraftpy.quorum.secret", "beyond this machine")
        elif not self._is_caller:
            self._links.half_opened(self)
        elif self._state is _State.HELLO:
            self._send_hello()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return a buffer for bytes that a TLS layer has decrypted."""
        return self._links.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that a TLS layer has decrypted."""
        self.data_received(bytes(self._links.receive_buffer[:nbytes]))

    def certified(self, principal: Principal) -> None:
        """Note the name in the peer's certificate."""
        self.principal = principal

    def data_received(self, data: bytes) -> None:
        """Process every frame that is complete."""
        self._buffer += data
        self._silent_ticks = 0
        if self._may_be_clients and self._is_of_a_client():
            self._hand_over()
            return
        try:
            while not self._is_closed and (frame := self._next_frame()) is not None:
                if self._state is _State.OPEN:
                    self._receive(frame)
                else:
                    self._receive_handshake(frame)
        except ConnectionRefused as error:
            self.close(str(error), error.kind)
        except (CodecError, LinkError) as error:
            self.close(str(error), "no node")

    def connection_lost(self, exc: Exception | None) -> None:
        """Close this link after the peer or the network closed the connection."""
        if isinstance(exc, ssl.SSLError):  # with TLS 1.3, a caller learns here that it is not trusted
            self.close(f"TLS failed: {exc}", "TLS")
        self.close("the connection is lost" if exc is None else str(exc))
        self._buffer.clear()
        self._transport = None

    def _is_of_a_client(self) -> bool:
        """Return whether a frame of Kafka's protocol has begun: it opens with an API key below 256."""
        return len(self._buffer) > _SIZE.size and self._buffer[_SIZE.size] == 0

    def _hand_over(self) -> None:
        """Have the node serve this connection as a client's, with the bytes received so far."""
        transport, received = self._transport, bytes(self._buffer)
        self._buffer.clear()
        self._transport = None
        self._state = _State.OVER
        self.close("it is a client's")
        if transport is not None:
            self._links.take_over(self._listener, transport, received, self.principal)

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer)
        limit = self._limit()
        if size > limit:
            raise LinkError(f"a frame of {size} bytes; {limit} are allowed")
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[_SIZE.size : end])
        del self._buffer[:end]
        self._may_be_clients = False
        return frame

    def _limit(self) -> int:
        match self._state:
            case _State.OPEN:
                return self._links.max_frame_bytes
            case _State.LOGIN:
                return LOGIN_BYTES
            case _:
                return _HELLO_BYTES

    # --- the login ---------------------------------------------------------------------------

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame of the caller's login, and return the next one. Raises LinkError."""
        if self._is_closed or self._state not in (_State.LOGIN, _State.OPEN):
            raise LinkError("the connection is lost")
        self._login_answer = self._loop.create_future()
        self._send_login(frame)
        return await self._login_answer

    def _send_login(self, frame: bytes) -> None:
        if self._state is _State.OPEN:
            self.send([LOGIN, frame])
        else:
            self._write(frame)

    def begin(self) -> None:
        """Send the hello, after the caller's login."""
        if self._state is _State.LOGIN and not self._is_closed:
            self._state = _State.HELLO
            self._send_hello()

    def renew_after(self, seconds: float, renew: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Renew the caller's session then, if this link is still up."""

        def start() -> None:
            self._renewal = self._links.run(renew(), "renewal of a session")

        if not self._is_closed:
            self._renewal = self._loop.call_later(seconds, start)

    def _receive_login(self, frame: bytes) -> None:
        if self._is_caller:
            waiting, self._login_answer = self._login_answer, None
            if waiting is None or waiting.done():
                raise LinkError("it sent an unexpected frame of a login")
            waiting.set_result(frame)
            return
        if self._login is None or self._is_checking:
            raise LinkError("it sent an unexpected frame of a login")
        try:
            needed = self._login.take(frame)
        except AuthenticationFailed as failure:
            self._login_failed(failure)
            return
        if needed is None:
            self._answer_login()
        elif self._links.run(self._check_login(needed), "login of a node") is not None:
            self._is_checking = True
        else:
            self.close("this node stops")

    async def _check_login(self, needed: Awaitable[None]) -> None:
        await needed
        self._is_checking = False
        if not self._is_closed:
            self._answer_login()

    def _answer_login(self) -> None:
        assert self._login is not None
        try:
            answer, principal = self._login.answer()
            if principal is not None and self._state is _State.OPEN:
                self._demand_rights(principal)
        except AuthenticationFailed as failure:
            self._login_failed(failure)
            return
        except ConnectionRefused as refused:
            self._links.note_refusal(self, refused.kind, str(refused))
            self.close(str(refused), refused.kind)
            return
        self._send_login(answer)
        if principal is not None and self._state is _State.LOGIN:
            self.principal = principal
            self._state = _State.HELLO

    def _login_failed(self, failure: AuthenticationFailed) -> None:
        assert self._login is not None
        self._links.login_failed(self, failure)
        is_renewal = self._state is _State.OPEN
        answer = refusal_of_login(str(failure))
        self._loop.call_later(self._login.failure_delay, self._refuse_login, answer, is_renewal)
        self._state = _State.OVER
        if is_renewal and self._transport is not None:  # nothing that it sends counts from now on
            self._buffer.clear()
            self._transport.pause_reading()

    def _refuse_login(self, answer: bytes, is_renewal: bool) -> None:
        if self._is_closed or self._transport is None:
            return
        if is_renewal:
            self._send([LOGIN, answer])
        else:
            self._write(answer)
        self._transport.close()

    # --- the handshake -----------------------------------------------------------------------

    def _send_hello(self) -> None:
        self._own_hello = pack(
            {
                "version": VERSION,
                "node": self._links.node_id,  # nodes of version 1 name it when they refuse this one
                "nonce": secrets.token_bytes(_NONCE_BYTES),
                "knocks": False,
            }
        )
        self._write(self._own_hello)

    def _receive_handshake(self, frame: bytes) -> None:
        match self._state:
            case _State.LOGIN:
                self._receive_login(frame)
            case _State.HELLO:
                self._their_hello = frame
                version = read_hello(frame)
                if not self._is_caller:
                    self._send_hello()
                if version != VERSION:
                    raise ConnectionRefused(
                        "version",
                        f"it uses version {version} of the link protocol, and this node version {VERSION}: all nodes "
                        "of a cluster must run versions of kraftpy with the same link protocol",
                    )
                self._state = _State.PROOF
                if self._is_caller:
                    self._send_identity()
            case _State.PROOF:
                self._receive_identity(frame)
            case _:
                raise LinkError("it sent a frame after the end of the handshake")

    def _send_identity(self) -> None:
        """Send this node's identity with the proof that it knows the secret."""
        links = self._links
        identity = pack(
            {
                "node": links.node_id,
                "cluster": links.cluster_id,
                "expects": self._expected,
                "knocks": self._is_knock,
            }
        )
        self._write(self._keyed(b"proof of caller" if self._is_caller else b"proof of called", identity) + identity)

    def _receive_identity(self, frame: bytes) -> None:
        """Verify the peer's proof, then act on its identity."""
        proof, content = frame[:_PROOF_BYTES], frame[_PROOF_BYTES:]
        purpose = b"proof of called" if self._is_caller else b"proof of caller"
        if not hmac.compare_digest(proof, self._keyed(purpose, content)):
            raise ConnectionRefused("secret", "it does not know the secret of this cluster (kraftpy.quorum.secret)")
        identity = read_identity(content)
        if not self._is_caller:
            self._demand_rights(self.principal)
            self._send_identity()
        node, links = identity["node"], self._links
        if node == links.node_id and self._expected is None and identity["expects"] is None:
            self.is_to_itself = self._is_caller
            self.close("it has this node's id: an address among controller.quorum.bootstrap.servers is this node's own")
            return
        if node == links.node_id or self._expected not in (None, node):
            raise ConnectionRefused(
                "id", f"node {node} answers at the address of node {self._expected}, or has this node's id"
            )
        if identity["cluster"] is not None and links.cluster_id not in (None, identity["cluster"]):
            cluster = printable(identity["cluster"], CLUSTER_ID_BYTES)
            if self._is_caller:  # only a peer at a configured address counts: any node may call this one
                links.refused_cluster = cluster
            self._refuse(
                ConnectionRefused(
                    "cluster", f"node {node} belongs to cluster {cluster}, this node to {links.cluster_id}"
                )
            )
        elif identity["expects"] not in (None, links.node_id):
            self._refuse(ConnectionRefused("id", f"node {node} expected node {identity['expects']} at this address"))
        elif identity["knocks"] or self._is_knock:
            self._state = _State.OVER
            if self._is_caller:
                self.close("it only knocked")
            else:
                links.knocked(node)
        else:
            self._open(node)

    def _demand_rights(self, principal: Principal) -> None:
        """Check that a caller may be a node. Raises ConnectionRefused."""
        if not self._links.may_be_node(self._listener, principal, self.host):
            raise ConnectionRefused(
                "rights",
                f"{printable(str(principal), _SHOWN)} may not be a node: it is not among super.users, and lacks "
                "CLUSTER_ACTION on the cluster",
            )

    def _refuse(self, error: ConnectionRefused) -> None:
        """Refuse an authenticated node: it finds the reason in this node's identity, and disconnects."""
        if self._is_caller:
            raise error
        self._state = _State.OVER
        self._links.note_refusal(self, error.kind, str(error))

    def _keyed(self, purpose: bytes, content: bytes = b"") -> bytes:
        """Compute a keyed hash that requires the secret and both hello frames."""
        both = (self._own_hello, self._their_hello) if self._is_caller else (self._their_hello, self._own_hello)
        parts = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose, *both, content))
        return blake2b(parts, key=self._links.key, digest_size=_PROOF_BYTES).digest()

    def _open(self, peer: int) -> None:
        keys = self._keyed(b"frames of caller"), self._keyed(b"frames of called")
        self._send_key, self._receive_key = keys if self._is_caller else keys[::-1]
        self.peer = peer
        self._state = _State.OPEN
        if self._deadline is not None:
            self._deadline.cancel()
        self._links.opened(self, peer)
        if not self.ready.done():
            self.ready.set_result(peer)

    # --- frames of a link --------------------------------------------------------------------

    def send(self, frame: list[Any]) -> bool:
        """Send a frame, if this is still a link."""
        if self._state is not _State.OPEN or self._is_closed or self._transport is None:
            return False
        return self._send(frame)

    def _send(self, frame: list[Any]) -> bool:
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > self._links.max_buffered_bytes:
            self.close("it does not read the frames sent to it")
            return False
        payload = pack(frame)
        if len(payload) + _MAC_BYTES > self._links.max_frame_bytes:
            raise ValueError(f"a frame of {len(payload)} bytes is too large for a link")
        self._write(self._mac(self._send_key, self._sent, payload) + payload)
        self._sent += 1
        self._has_sent = True
        return True

    def request(self, kind: str, body: Body) -> asyncio.Future[Body]:
        """Send a request and return a future for its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[Body] = self._loop.create_future()
        if not self.send([REQUEST, kind, body, number]):
            answer.set_exception(LinkError(f"node {self.peer} is not connected"))
            return answer
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        return answer

    def tick(self) -> None:
        """Send a ping if nothing else was sent, and close the link after `TICKS_OF_SILENCE` silent ticks.

        Silence is counted in ticks rather than by a clock, so that a pause of this process does not look like one of
        the peer.
        """
        self._end_session()
        if not self._has_sent:
            self.send([PING])
        self._has_sent = False
        self._silent_ticks += 1
        if self._silent_ticks > TICKS_OF_SILENCE:
            self.close("nothing was received from it for too long")

    def _receive(self, frame: bytes) -> None:
        mac, payload = frame[:_MAC_BYTES], frame[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._receive_key, self._received, payload)):
            raise LinkError("a frame does not belong to this session")
        self._received += 1
        self._links.counts.received += 1
        self._links.counts.received_bytes += len(frame)
        assert self.peer is not None
        found = unpack(payload)
        match found:
            case [int(what), bytes(login)] if what == LOGIN:
                self._receive_login(login)
                return
        self._end_session()
        if self._is_closed:
            return
        match found:
            case [int(what)] if what == PING:
                pass
            case [int(what), str(kind), dict(body)] if what == ONE_WAY:
                self._links.received_message(self.peer, kind, body)
            case [int(what), str(kind), dict(body), int(number)] if what == REQUEST:
                self._receive_request(number, kind, body)
            case [int(what), int(number), dict(body)] if what == ANSWER:
                if (answer := self._waiting.get(number)) is not None and not answer.done():
                    answer.set_result(body)
            case [int(what), int(number), str(reason)] if what == REFUSAL:
                if (answer := self._waiting.get(number)) is not None and not answer.done():
                    answer.set_exception(LinkError(printable(reason)))
            case _:
                raise LinkError("a frame of an unknown kind")

    def _end_session(self) -> None:
        """Close the link if the caller's session has ended."""
        if self._login is not None and self._login.has_expired():
            self.close("its session has expired, and it has not authenticated again", "login")

    def _receive_request(self, number: int, kind: str, body: Body) -> None:
        if self._unanswered >= _MAX_REQUESTS:
            self.send([REFUSAL, number, f"{_MAX_REQUESTS} requests are unanswered already"])
        elif self._links.received_request(self, number, kind, body):
            self._unanswered += 1

    def answer(self, frame: list[Any]) -> None:
        """Send the answer to a request, or its refusal."""
        self._unanswered -= 1
        self.send(frame)

    @staticmethod
    def _mac(key: bytes, number: int, payload: bytes) -> bytes:
        return blake2b(_NUMBER.pack(number) + payload, key=key, digest_size=_MAC_BYTES).digest()

    def _write(self, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_SIZE.pack(len(payload)) + payload)
            self._links.counts.sent += 1
            self._links.counts.sent_bytes += len(payload)

    def close(self, reason: str, kind: str = "lost") -> None:
        """Close the connection at once; idempotent. `kind` classifies the reason for rate-limited logging."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._login_answer is not None and not self._login_answer.done():
            self._login_answer.set_exception(LinkError(reason))
        if self._state in (_State.LOGIN, _State.HELLO, _State.PROOF):
            self._links.note_refusal(self, kind, reason)
            if kind != "lost" and not self._is_caller:
                self._links.failed(self)
        for answer in [*self._waiting.values()]:
            if not answer.done():
                answer.set_exception(LinkError(f"the link to node {self.peer} was lost: {reason}"))
        if not self.ready.done():
            self.ready.set_result(None)
        self._links.closed(self, reason)
