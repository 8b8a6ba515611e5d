"""A proxy for packets in user space: packets that pass through it arrive late, or not at all.

    python -m chaos.worlds.proxy QUEUE      settings come in on standard input, a JSON line each:
                                            {"delay_ms": 50, "jitter_ms": 5, "loss": 0.05}

The kernel hands it the packets that an iptables rule with `-j NFQUEUE --queue-num QUEUE` matches, as references without
their content, and waits for a verdict on each. So open connections are slowed as well as new ones, and TCP itself sends
lost packets again, after its own timeouts. tc's netem would do the same, on kernels that have it.

Each packet has the delay, give or take the jitter, evenly; packets do not overtake each other. Each packet is lost
independently. A packet here may be a large piece that the network card would have split up (GSO), and is lost as one.
Rules should say `--queue-bypass`: without this process packets pass.

Left out: duplicates, bursts of losses, bandwidth.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

NETLINK_NETFILTER: Final = 12
_QUEUE_SUBSYSTEM: Final = 3
_PACKET, _VERDICT, _CONFIG = 0, 1, 2  # messages of that subsystem
_CFG_COMMAND, _CFG_PARAMETERS, _CFG_MOST = 1, 2, 3  # attributes of a configuration
_BIND: Final = 1
_COPY_META: Final = 1
_PACKET_HEADER: Final = 1
_VERDICT_HEADER: Final = 2
DROP, ACCEPT = 0, 1
_REQUEST: Final = 1
_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_GENERIC = struct.Struct(">BBH")  # family, version, queue
_ATTRIBUTE = struct.Struct("=HH")  # length with this header, type
_MOST_WAITING: Final = 1 << 16
_BUFFER_BYTES: Final = 8 << 20


def _attribute(kind: int, data: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def _message(kind: int, queue: int, attributes: bytes) -> bytes:
    body = _GENERIC.pack(socket.AF_UNSPEC, 0, queue) + attributes
    return _MESSAGE.pack(_MESSAGE.size + len(body), _QUEUE_SUBSYSTEM << 8 | kind, _REQUEST, 0, 0) + body


def binding(queue: int) -> list[bytes]:
    """The messages that make this socket the queue's."""
    return [
        _message(_CONFIG, queue, _attribute(_CFG_COMMAND, struct.pack(">BBH", _BIND, 0, socket.AF_INET))),
        _message(_CONFIG, queue, _attribute(_CFG_PARAMETERS, struct.pack(">IB", 0, _COPY_META))),
        _message(_CONFIG, queue, _attribute(_CFG_MOST, struct.pack(">I", _MOST_WAITING))),
    ]


def verdict(queue: int, packet: int, what: int) -> bytes:
    """The message that lets a packet go or drops it."""
    return _message(_VERDICT, queue, _attribute(_VERDICT_HEADER, struct.pack(">II", what, packet)))


def packets(data: bytes) -> Iterator[int]:
    """The numbers of the packets that the kernel's messages tell of; others (answers) are passed over."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        length, kind, *_ = _MESSAGE.unpack_from(data, at)
        if length < _MESSAGE.size:
            return
        if kind == _QUEUE_SUBSYSTEM << 8 | _PACKET:
            place, end = at + _MESSAGE.size + _GENERIC.size, at + length
            while place + _ATTRIBUTE.size <= end:
                size, attribute = _ATTRIBUTE.unpack_from(data, place)
                if attribute & 0x7FFF == _PACKET_HEADER:
                    yield struct.unpack_from(">I", data, place + _ATTRIBUTE.size)[0]
                place += max(_ATTRIBUTE.size, size + -size % 4)
        at += length + -length % 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """Delay, jitter and loss of packets."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0


class PacketQueue:
    """Packets in order, each with the time at which it is released. Some are lost. Times are in seconds."""

    def __init__(self, chance: Random) -> None:
        self.impairment = Impairment()
        self._chance = chance
        self._waiting: list[tuple[float, int]] = []
        self._last = 0.0

    def arrived(self, packet: int, now: float) -> int | None:
        """Queue a packet. Return DROP if it is lost instead."""
        impairment, chance = self.impairment, self._chance
        if impairment.loss and chance.random() < impairment.loss:
            return DROP
        delay = impairment.delay_ms
        if impairment.jitter_ms:
            delay += impairment.jitter_ms * chance.uniform(-1, 1)
        self._last = max(self._last, now + max(0.0, delay) / 1000)
        heapq.heappush(self._waiting, (self._last, packet))
        return None

    def due(self, now: float) -> list[int]:
        """Take the packets whose time has come, in order."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(heapq.heappop(self._waiting)[1])
        return found

    def next_at(self) -> float | None:
        """Return when the next packet is due, or None if there is none."""
        return self._waiting[0][0] if self._waiting else None


def serve(queue: int, settings: int = 0, chance: Random | None = None) -> None:
    """Serve until the settings' file descriptor ends, and then release everything that waits."""
    delayed = PacketQueue(chance or Random())
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        kernel.bind((0, 0))
        for message in binding(queue):
            kernel.send(message)
        print("ready", flush=True)
        text = b""
        while True:
            at = delayed.next_at()
            timeout = None if at is None else max(0.0, at - time.monotonic())
            readable, _, _ = select.select([kernel.fileno(), settings], [], [], timeout)
            if settings in readable:
                more = os.read(settings, 4096)
                if not more:
                    break
                *lines, text = (text + more).split(b"\n")
                for said in lines:
                    delayed.impairment = Impairment(**json.loads(said))
            if kernel.fileno() in readable:
                _read(kernel, queue, delayed)
            for packet in delayed.due(time.monotonic()):
                kernel.send(verdict(queue, packet, ACCEPT))
        for packet in delayed.due(float("inf")):
            kernel.send(verdict(queue, packet, ACCEPT))


def _read(kernel: socket.socket, queue: int, delayed: PacketQueue) -> None:
    try:
        data = kernel.recv(1 << 16)
    except OSError:  # more came than the buffer holds: those delayed are lost, as in any router
        return
    now = time.monotonic()
    for packet in packets(data):
        what = delayed.arrived(packet, now)
        if what is not None:
            kernel.send(verdict(queue, packet, what))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
