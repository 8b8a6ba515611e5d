"""A node's event loop: readers run as soon as they are found ready; all else is as with asyncio's own selector."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kraftpy.broker.event_loop import PromptSelector, new_event_loop

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="only Linux has epoll")
BOUND_S = 20.0


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in such a loop."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await work()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    """Open pipes, whose ends are closed afterwards unless they are already."""
    opened = [os.pipe() for _ in range(count)]
    yield opened
    for fd in (fd for pair in opened for fd in pair):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_reader_runs_within_select() -> None:
    selector, found = PromptSelector(), []
    loop = asyncio.SelectorEventLoop(selector)
    with pipes(1) as [(reads, writes)]:
        loop.add_reader(reads, found.append, "read")
        os.write(writes, b"1")
        assert (selector.select(0), found) == ([], ["read"])
        loop.remove_reader(reads)
        assert (selector.select(0), found) == ([], ["read"])
    loop.close()


def test_a_file_that_a_callback_closes_is_not_read_any_more() -> None:
    selector, found = PromptSelector(), []
    loop = asyncio.SelectorEventLoop(selector)
    with pipes(2) as both:

        def close(other: int) -> None:
            found.append(other)
            loop.remove_reader(both[other][0])

        for number, (reads, writes) in enumerate(both):
            loop.add_reader(reads, close, 1 - number)
            os.write(writes, b"1")
        assert selector.select(0) == []
        assert len(found) == 1, "each would have removed the other"
    loop.close()


def test_a_file_that_a_callback_opens_under_the_number_of_another_is_not_ready() -> None:
    """A pipe to a process is closed once its reader runs, which asyncio takes for the other end's leaving."""
    selector, found = PromptSelector(), []
    loop = asyncio.SelectorEventLoop(selector)
    with pipes(3) as [*both, (new, _)]:

        def replace(other: int) -> None:
            number = both[other][0]
            loop.remove_reader(number)
            os.dup2(new, number)
            loop.add_reader(number, found.append, "the new one")
            found.append("replaced")

        for number, (reads, writes) in enumerate(both):
            loop.add_reader(reads, replace, 1 - number)
            os.write(writes, b"1")
        assert selector.select(0) == []
        assert found == ["replaced"]
        for reads, _ in both:
            loop.remove_reader(reads)
    loop.close()


def test_a_changed_file_is_found_by_the_next_call() -> None:
    selector, found = PromptSelector(), []
    loop = asyncio.SelectorEventLoop(selector)
    with pipes(2) as both:

        def change(other: int) -> None:
            loop.add_reader(both[other][0], found.append, other)
            loop.remove_reader(both[1 - other][0])

        for number, (reads, writes) in enumerate(both):
            loop.add_reader(reads, change, 1 - number)
            os.write(writes, b"1")
        assert (selector.select(0), found) == ([], [])
        assert selector.select(0) == []
        assert len(found) == 1, "the callback of the other, which was changed"
        for reads, _ in both:
            loop.remove_reader(reads)
    loop.close()


def test_writers_are_left_to_the_loop() -> None:
    selector = PromptSelector()
    loop = asyncio.SelectorEventLoop(selector)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_writer(ours.fileno(), print)
        [(key, events)] = selector.select(0)
        assert (key.fd, events) == (ours.fileno(), selectors.EVENT_WRITE)
        loop.add_reader(ours.fileno(), print)
        theirs.send(b"1")
        [(key, events)] = selector.select(0)
        assert events == selectors.EVENT_READ | selectors.EVENT_WRITE
        loop.remove_writer(ours.fileno())
        loop.remove_reader(ours.fileno())
    loop.close()


def test_an_error_in_a_reader_is_the_loop_s() -> None:
    async def work() -> None:
        loop, errors, done = asyncio.get_running_loop(), [], asyncio.Event()
        loop.set_exception_handler(lambda _, context: (errors.append(context["exception"]), done.set()))
        with pipes(1) as [(reads, writes)]:

            def fail() -> None:
                loop.remove_reader(reads)
                raise ZeroDivisionError

            loop.add_reader(reads, fail)
            os.write(writes, b"1")
            await done.wait()
        assert [type(error) for error in errors] == [ZeroDivisionError]

    run(work)


def test_large_answers_pause_and_go_on() -> None:
    """Reading and writing at once, with a peer that reads slowly: nothing is lost."""
    size = 8 << 20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sent = os.urandom(size)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        writer.close()
        server.close()
        await server.wait_closed()

    run(work)


def test_threads_and_signals_wake_it() -> None:
    async def work() -> None:
        loop, woken, signalled = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, signalled.set)
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(woken.set,))
        thread.start()
        await woken.wait()
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR2)
        await signalled.wait()
        loop.remove_signal_handler(signal.SIGUSR2)

    run(work)


def test_it_keeps_the_books_of_a_selector() -> None:
    with pipes(1) as [(reads, writes)]:
        selector = PromptSelector()
        key = selector.register(reads, selectors.EVENT_READ, (None, None))
        assert selector.get_key(reads) == key
        assert dict(selector.get_map()) == {reads: key}
        with pytest.raises(KeyError):
            selector.register(reads, selectors.EVENT_READ, (None, None))
        os.write(writes, b"1")
        assert selector.select(0) == [(key, selectors.EVENT_READ)], "nobody reads it: the loop decides"
        changed = selector.modify(reads, selectors.EVENT_READ, ("reader", None))
        assert selector.get_key(reads) == changed
        os.close(reads)
        assert selector.unregister(reads) == changed
        with pytest.raises(KeyError):
            selector.unregister(reads)
        selector.close()
        assert not selector.get_map()
