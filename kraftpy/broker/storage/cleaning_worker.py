"""The process that cleans logs: reads plans from its standard input, writes results to its standard output.

Started by `cleaning_process`, never by people. It only reads the segments named in its orders, and writes
`.log.cleaned` files, so it can be killed at any point. It ends when its standard input does: with the broker, however
that died.

It is another process because a thread would share the interpreter with the event loop: every producer would wait for
it. It yields the processor to other processes (`nice`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import BinaryIO, Final

from kraftpy.broker.runtime import OsDirectory, OsFile
from kraftpy.broker.storage.cleaning_messages import LENGTH_BYTES, Failure, Message, Order, encode
from kraftpy.log.compaction_work import clean
from kraftpy.log.layout import CLEANED
from kraftpy.protocol.records import CorruptBatch

_NICENESS: Final = 10


class Throttle:
    """Slows its caller down to a number of bytes per second, over any period."""

    def __init__(self, bytes_per_second: float, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._bytes_per_second = bytes_per_second
        self._now = now
        self._sleep = sleep
        self._free_at = now()

    def spend(self, count: int) -> None:
        """Return once `count` bytes have had their time."""
        now = self._now()
        self._free_at = max(self._free_at, now) + count / self._bytes_per_second
        if self._free_at > now:
            self._sleep(self._free_at - now)


class _SourceFile(OsFile):
    """A segment opened for reading only, and never created."""

    __slots__ = ()

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class PartitionDirectory(OsDirectory):
    """A partition's directory as the worker sees it: a missing one is an error."""

    def __init__(self, path: str) -> None:
        self._path = path  # not created, as the base class would

    def open(self, name: str) -> OsFile:
        """Open a segment to read, or create one to write."""
        file = f"{self._path}/{name}"
        return OsFile(file) if name.endswith(CLEANED) else _SourceFile(file)


def carry_out(order: Order, say: Callable[[Message], None]) -> None:
    """Clean, and send a message for each segment written, then one for the success or failure of the whole."""
    throttle = Throttle(order.bytes_per_second, time.monotonic, time.sleep)
    try:
        for message in clean(order.plan, PartitionDirectory(order.path), throttle.spend):
            say(message)
    except CorruptBatch as damage:
        say(Failure(damage.message))
    except OSError as error:
        say(Failure(error.strerror or str(error), error.errno or 0, error.filename))
    except MemoryError:
        say(Failure(os.strerror(errno.ENOMEM), errno.ENOMEM))
    except Exception as error:
        say(Failure(f"{type(error).__name__}: {error}", is_unexpected=True))


def _listen(stream: BinaryIO, orders: SimpleQueue[Order]) -> None:
    """Pass on the orders received; when standard input ends, end the process at once, even during a job."""
    while head := stream.read(LENGTH_BYTES):
        body = stream.read(int.from_bytes(head, "big"))
        try:
            orders.put(pickle.loads(body))
        except (EOFError, pickle.UnpicklingError):
            break  # the broker died while it wrote
    os._exit(0)


def main() -> None:
    """Serve one broker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the broker, which ends this
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    output = sys.stdout.buffer
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()

    def say(message: Message) -> None:
        output.write(encode(message))
        output.flush()

    try:
        while True:
            carry_out(orders.get(), say)
    except BrokenPipeError:
        os._exit(0)  # the broker no longer reads
