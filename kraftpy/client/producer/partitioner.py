"""Chooses the partition of each record.

A record with a key goes to `(murmur2(key) & 0x7fffffff) % partitions`, counting *all* partitions, with a leader or not,
so that every Kafka client sends a key to the same partition. Records without a key stick to one partition until
`sticky_bytes` have gone there, then move to another that has a leader (KIP-480, KIP-794): batches stay full, partitions
stay even.

Left out: KIP-794's weighting by queue length; the switch is uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF
_REMEMBERED_KEYS = 65_536


@lru_cache(maxsize=256)
def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """Return murmur2 of `data` with Kafka's seed, as an unsigned 32-bit integer."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length >> 2
    if whole:
        words = _words(whole) if whole < 256 else Struct(f"<{whole}I")
        for word in words.unpack_from(data):
            word = (word * _MIX) & _MASK
            word = ((word ^ (word >> 24)) * _MIX) & _MASK
            hashed = ((hashed * _MIX) & _MASK) ^ word
    if length & 3:
        hashed ^= int.from_bytes(data[whole << 2 :], "little")
        hashed = (hashed * _MIX) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _MIX) & _MASK
    return hashed ^ (hashed >> 15)


class Partitioner:
    """The partitioner of one topic. Call `update` when its partitions change.

    `random` returns a float in [0, 1).
    """

    __slots__ = ("_available", "_count", "_hashes", "_random", "_sent_bytes", "_sticky", "_sticky_bytes")

    def __init__(self, *, sticky_bytes: int, random: Callable[[], float]) -> None:
        self._sticky_bytes = sticky_bytes
        self._random = random
        self._hashes: dict[bytes, int] = {}
        self._available: Sequence[int] = ()
        self._count = 0
        self._sticky = -1
        self._sent_bytes = 0

    def update(self, count: int, available: Sequence[int]) -> None:
        """Note that the topic has `count` partitions, of which `available` have a leader."""
        self._count = count
        self._available = available or range(count)
        if self._sticky not in self._available:
            self._switch()

    def for_key(self, key: bytes) -> int:
        """Return the partition of `key`."""
        hashed = self._hashes.get(key)
        if hashed is None:
            if len(self._hashes) >= _REMEMBERED_KEYS:
                self._hashes.clear()
            hashed = self._hashes[key] = murmur2(key) & 0x7FFFFFFF
        return hashed % self._count

    def for_none(self, record_bytes: int) -> int:
        """Return the partition for a record of `record_bytes` without a key."""
        if self._sent_bytes >= self._sticky_bytes:
            self._switch()
        self._sent_bytes += record_bytes
        return self._sticky

    def _switch(self) -> None:
        self._sent_bytes = 0
        others = [partition for partition in self._available if partition != self._sticky]
        if others:
            self._sticky = others[int(self._random() * len(others))]
