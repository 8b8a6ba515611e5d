"""Long work in steps, so that inspecting one client's records does not hold up all others.

`Work` is a generator. It yields None when other clients may be served before it continues, and a function when its
driver should call that function, in a thread if there is one: the result is sent back, an exception is thrown in. Short
work yields nothing. The driver is `finish`, or on an event loop `broker.storage.record_inspection`.

Invariant: the work between two yields is bounded by a count, a few milliseconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from kraftpy.ports import Buffer
from kraftpy.protocol.compression import copied
from kraftpy.protocol.record_batch import BatchHeader, record_payload
from kraftpy.protocol.records import ExpandedTooFar

T = TypeVar("T")
Work = Generator[Callable[[], Any] | None, Any, T]

INLINE_BYTES: Final = 128 << 10
"""Records of up to this many bytes, uncompressed, are inspected without a pause."""


def finish(work: Work[T]) -> T:
    """Run the work to its end, right here, and return its result."""
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
    """Return the uncompressed bytes of a batch's records, without a pause if they are few.

    Raises CorruptBatch if they are malformed or exceed `max_bytes`; in the latter case it is `ExpandedTooFar`.
    """
    if len(batch) <= INLINE_BYTES:
        try:
            return copied(record_payload(header, batch, min(max_bytes, INLINE_BYTES)))
        except ExpandedTooFar:
            if max_bytes <= INLINE_BYTES:
                raise
    payload: bytes = yield lambda: copied(record_payload(header, batch, max_bytes))
    return payload
