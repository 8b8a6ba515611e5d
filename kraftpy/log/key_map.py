"""The last offset of each key, in bounded memory, for one pass of compaction.

The map is a dict, because the interpreter's own table is several times as fast as one in arrays. Its cost is measured:
`ENTRY_BYTES`, including the peak during a resize. A buffer of 128 MiB holds half a million keys; Kafka's table of MD5
digests would hold ten times as many (docs/decisions/0014). Keys that do not fit are left to the next pass.

Keys of up to 40 bytes are held as they are, so they cannot collide. A longer one is held as its BLAKE2b digest of 41
bytes: its length distinguishes it from a short key, and two digests never collide, by chance or by intent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 256
WHOLE_KEY_BYTES: Final = 40
_DIGEST_BYTES: Final = WHOLE_KEY_BYTES + 1


def short_key(key: bytes) -> bytes:
    """Return the digest that stands for a key longer than `WHOLE_KEY_BYTES`."""
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


class KeyMap:
    """Key -> its last offset, for as many keys as `buffer_bytes` have room for (at least one)."""

    __slots__ = ("_latest", "_offsets", "capacity")

    def __init__(self, buffer_bytes: int, load_factor: float = 1.0) -> None:
        self.capacity = max(1, int(buffer_bytes * load_factor) // ENTRY_BYTES)
        self._latest: dict[bytes | None, int] = {}
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._latest)

    def __bool__(self) -> bool:
        return len(self) > 0

    def put(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> int:
        """Add keys in the form of `keys_of`, with rising offsets; return how many: fewer if the map is full."""
        latest = self._latest
        if len(latest) + len(keys) <= self.capacity:
            latest.update(zip(keys, offsets, strict=True))
            latest.pop(None, None)
            return len(keys)
        for number, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
            if key is None:
                continue
            if len(latest) >= self.capacity and key not in latest:
                return number
            latest[key] = offset
        return len(keys)

    def freeze(self) -> None:
        """End the adding of keys; from here on `count_kept` and `kept_offsets` may be called."""
        self._offsets = array("q", sorted(self._latest.values()))

    def count_kept(self, offset: int, end_offset: int) -> int:
        """Return how many keys have their last record in [offset, end_offset)."""
        first = bisect_left(self._offsets, offset)
        return bisect_left(self._offsets, end_offset, first) - first

    def kept_offsets(self, offset: int, end_offset: int) -> frozenset[int]:
        """Return the offsets in [offset, end_offset) that are the last of their key."""
        first = bisect_left(self._offsets, offset)
        return frozenset(self._offsets[first : bisect_left(self._offsets, end_offset, first)])

    def knows_any(self, keys: Sequence[bytes | None]) -> bool:
        """Return whether any of these keys is in the map."""
        return not self._latest.keys().isdisjoint(keys)

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return whether the key has a record after that offset."""
        return self._latest.get(key, -1) > offset
