"""Work that may be long, in steps: what a client's records ask for, without holding up everybody else.

`Work` is a generator. It yields None where others may be served before it goes on, and a function where that function
is to be called, in a thread if there is one: what it returns is sent back, what it raises is thrown in. Work that is
short yields nothing. `finish` drives it, or on an event loop `broker.storage.record_inspection`.

Invariant: between two yields there is a counted amount of work, a few milliseconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from kraftpy.ports import Buffer
from kraftpy.protocol.compression import ExpandsTooFar, copied
from kraftpy.protocol.record_batch import BatchHeader, CorruptBatch, record_payload

T = TypeVar("T")
Work = Generator[Callable[[], Any] | None, Any, T]

INLINE_BYTES: Final = 128 << 10
"""Records of up to so many bytes, uncompressed, are looked at without a pause."""


def finish(work: Work[T]) -> T:
    """Do all of it here and now."""
    try:
        step = next(work)
        while True:
            if step is None:
                step = work.send(None)
                continue
            try:
                result = step()
            except Exception as error:
                step = work.throw(error)
            else:
                step = work.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


def expanded(header: BatchHeader, batch: Buffer, max_bytes: int) -> Work[bytes]:
    """The records' bytes, uncompressed: at once where they are few.

    CorruptBatch where they are malformed, or more than `max_bytes`: then its cause is `ExpandsTooFar`.
    """
    if len(batch) <= INLINE_BYTES:
        try:
            return copied(record_payload(header, batch, min(max_bytes, INLINE_BYTES)))
        except CorruptBatch as error:
            if max_bytes <= INLINE_BYTES or not isinstance(error.__cause__, ExpandsTooFar):
                raise
    payload: bytes = yield lambda: copied(record_payload(header, batch, max_bytes))
    return payload
