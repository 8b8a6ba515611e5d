"""A seeded event loop with virtual time, on which whole processes run, pause and die.

It is an asyncio event loop: production code runs on it unchanged. Time passes only when nothing is ready, and then
jumps to the next timer. Every callback belongs to the `Process` in whose context it was scheduled; tasks, timers and
callbacks inherit their context, so all that a process starts is its own. A paused process keeps its callbacks until it
resumes; a dead one never runs again, which is a crash at any `await`.

Work for threads (`run_in_executor`, `asyncio.to_thread`) runs on the loop too, at one instant, after or before a delay
drawn from the seed: others see its effect before the caller learns of it, or only then. Work of an executor
with one thread keeps its order. A process that dies may leave such work half done: its disk stops it at an operation
drawn from the seed.

A process that runs more callbacks in one virtual second than `Process.most_callbacks`, and than `Process.got_on`
allows besides, spins: it repeats the same work without waiting for anything. `SimulatedLoop.spins` records what kept
it busy.

Invariants: the same seed and the same program give the same order of callbacks; no thread, no socket, no real clock.
Left out: sendfile, signals, subprocesses, DNS, datagrams.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import inspect
import itertools
import logging
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final, TypeVar, cast
from unittest import mock

T = TypeVar("T")

_SAME_INSTANT: Final = 20_000
"""The callbacks at one instant after which time moves by `_STEP_SECONDS` anyway: a busy loop takes time too."""
_STEP_SECONDS: Final = 0.05
"""A second full of such steps is 400,000 callbacks: a seed that spins is soon over."""
_COLLECT_EVERY: Final = 200_000

current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The process that runs now; None outside of all processes."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run: asyncio keeps tasks in sets."""

    _number = -1

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = next(cast("SimulatedLoop", self.get_loop()).numbers)
        return self._number


class _Future(asyncio.Future[Any]):
    """A future with the same property."""

    _number = -1

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = next(cast("SimulatedLoop", self.get_loop()).numbers)
        return self._number


class _Handle:
    """A callback to come, as asyncio's handles are: it can be cancelled. It belongs to the process of its context."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process: Process | None = context.get(current)
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel it: it is skipped when its time comes."""
        self.is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Return True if it was cancelled."""
        return self.is_cancelled


class _Timer(_Handle):
    """A callback at a given time."""

    __slots__ = ("_loop", "_when")

    def __init__(
        self, loop: SimulatedLoop, when: float, callback: Callable[..., object], args: Any, context: Any
    ) -> None:
        super().__init__(callback, args, context)
        self._loop = loop
        self._when = when

    def when(self) -> float:
        """Return its time in virtual seconds since the simulation began."""
        return self._when

    def cancel(self) -> None:
        """Cancel it: it is skipped when its time comes."""
        if not self.is_cancelled:
            super().cancel()
            self._loop.timer_cancelled()


class Process:
    """A process that runs, pauses and dies as a whole, with a `random` of its own; `host` is its address."""

    def __init__(self, loop: SimulatedLoop, name: str, host: str, seed: str) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.random = Random(seed)
        self.is_dead = False
        self.is_paused = False
        self.thread_delay: Callable[[], float] = lambda: 0.0
        """Returns the seconds that the next piece of work for a thread takes."""
        self.before_death: list[Callable[[], None]] = []
        """Called when the process dies: the kernel closes its sockets."""
        self.in_threads: dict[int, Callable[[], None]] = {}
        """Work begun by threads that has had no effect yet."""
        self._held: deque[_Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.most_callbacks = 1 << 60
        """The limit in a virtual second; a process that exceeds it spins."""
        self.callbacks_left = self.most_callbacks
        """How many of them are left in this second."""
        self.callbacks_allowed = 0
        """The extra allowance in this second, for what it achieved."""
        self.busy_with: Counter[str] = Counter()
        """Callbacks beyond the limit, by the names of tasks, or of functions."""
        loop.processes.append(self)
        self._context = contextvars.Context()
        self._context.run(current.set, self)

    def __repr__(self) -> str:
        return self.name

    def run(self, main: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this process."""
        task: asyncio.Task[T] = self._context.run(self.loop.create_task, main, name=name)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in this process; nothing happens if it is dead."""
        if not self.is_dead:
            self.loop.call_soon(callback, *args, context=self._context.copy())

    def call_now(self, callback: Callable[..., object], *args: Any) -> None:
        """Call at once, for the network, which already had its turn of the loop; a paused process gets the call
        later."""
        if self.is_paused:
            self.call_soon(callback, *args)
        elif not self.is_dead:
            self._context.copy().run(callback, *args)

    def pause(self) -> None:
        """Stop it as SIGSTOP does: callbacks that become ready wait."""
        self.is_paused = True

    def resume(self) -> None:
        """Let it continue with all that waited."""
        if self.is_paused:
            self.is_paused = False
            self.loop.ready.extendleft(reversed(self._held))  # before the next work of `call_now`
            self.callbacks_left += len(self._held)
            self._held.clear()

    def half_done(self, interrupt: Callable[[Callable[[], None]], None]) -> None:
        """Let `interrupt` run the work that threads have begun, each piece as far as it was when the process died."""
        unfinished, self.in_threads = self.in_threads, {}
        for work in unfinished.values():
            self._context.run(interrupt, work)

    def die(self) -> None:
        """End it at once: none of its code runs any more, no `finally`, no destructor."""
        if self.is_dead:
            return
        self.is_dead = True
        self._held.clear()
        self.in_threads.clear()
        for callback in self.before_death:
            callback()
        self.before_death.clear()

    def got_on(self, callbacks: int) -> None:
        """Allow this many more callbacks for progress that will not repeat."""
        self.callbacks_left += callbacks
        self.callbacks_allowed += callbacks

    def count_excess(self, callback: Callable[..., object]) -> None:
        """Count a callback beyond the limit."""
        owner = getattr(callback, "__self__", None)
        name = owner.get_name() if isinstance(owner, asyncio.Task) else getattr(callback, "__qualname__", "?")
        self.busy_with[name] += 1

    def hold(self, handle: _Handle) -> None:
        """Keep a callback until the process resumes."""
        self._held.append(handle)

    def owns(self, task: asyncio.Task[Any]) -> None:
        """Keep a task for as long as the simulation lasts: one that were collected would run its `finally` blocks."""
        self.tasks.append(task)
        if len(self.tasks) > 10_000 and not self.is_dead:
            self.tasks = [task for task in self.tasks if not task.done()]


class SimulatedLoop:
    """The loop: as much of `asyncio.AbstractEventLoop` as there is a use for.

    `network` answers `create_server` and `create_connection`.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(f"loop {seed}")
        self.ready: deque[_Handle] = deque()
        self.network: Any = None
        self.outside = contextvars.Context()
        """The context of no process: for the network itself."""
        self.unhandled: list[dict[str, Any]] = []
        """Exceptions that no code caught, in live processes."""
        self.spins: list[tuple[int, str, int, str]] = []
        """For each second in which a process did too much: the second, the process, its callbacks, and the main one."""
        self.processes: list[Process] = []
        self.numbers = itertools.count()
        """Numbers that identify tasks and futures."""
        self.callbacks = 0
        self._now = 0.0
        self._second_ends = 1.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timers_made = 0
        self._timers_cancelled = 0
        self._is_running = False
        self._is_closed = False
        self.as_loop = cast("asyncio.AbstractEventLoop", self)
        """The loop itself, typed for asyncio."""
        self._executors: dict[int, tuple[Any, float]] = {}

    # --- time ---

    def time(self) -> float:
        """Return virtual seconds since the simulation began."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """Run a callback at this instant, after all that is ready."""
        handle = _Handle(callback, args, contextvars.copy_context() if context is None else context)
        if not self._is_closed:
            self.ready.append(handle)
        return cast("asyncio.Handle", handle)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """Run a callback soon: there is only one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run a callback some virtual seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        timer = _Timer(self, when, callback, args, contextvars.copy_context() if context is None else context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return cast("asyncio.TimerHandle", timer)

    def timer_cancelled(self) -> None:
        """Count a cancelled timer; these stay in the heap until they are the majority."""
        self._timers_cancelled += 1
        if self._timers_cancelled > 100 and self._timers_cancelled * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2].is_cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    # --- running ---

    def run_until(self, done: Callable[[], bool], *, at_most_seconds: float) -> bool:
        """Run until `done` or for that long; return whether it was done. Raises RuntimeError if nothing can happen."""
        deadline = self._now + at_most_seconds
        with self._as_running():
            while not done():
                if not self._turn(deadline):
                    return done()
        return True

    def run_for(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        self.run_until(lambda: False, at_most_seconds=seconds)

    def run_until_complete(self, future: Any) -> Any:
        """Run a coroutine or future to its end. Raises RuntimeError if it waits for something that never happens."""
        future = asyncio.ensure_future(future, loop=self.as_loop)
        with self._as_running():
            while not future.done():
                if not self._turn(float("inf")):
                    raise RuntimeError("nothing is left to happen")
        return future.result()

    @contextmanager
    def _as_running(self) -> Iterator[None]:
        asyncio._set_running_loop(self.as_loop)
        self._is_running = True
        was_collecting = gc.isenabled()
        gc.disable()  # when it happens must not depend on what else is in memory
        try:
            yield
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            if was_collecting:
                gc.enable()

    def _turn(self, deadline: float) -> bool:
        """Run what is ready at this instant, or move to the next timer; return False if that is beyond `deadline`."""
        timers, ready = self._timers, self.ready
        if not ready:
            while timers and timers[0][2].is_cancelled:
                heapq.heappop(timers)
                self._timers_cancelled -= 1
            if not timers or timers[0][0] > deadline:
                if deadline != float("inf"):
                    self._now = max(self._now, deadline)
                return False
            self._now = max(self._now, timers[0][0])
        now = self._now
        if now >= self._second_ends:
            self._end_second()
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if timer.is_cancelled:
                self._timers_cancelled -= 1
            else:
                ready.append(timer)
        left = _SAME_INSTANT
        while ready:
            handle = ready.popleft()
            callback, process = handle.callback, handle.process
            if callback is None:
                continue
            if process is not None:
                if process.is_dead:
                    continue
                if process.is_paused:
                    process.hold(handle)
                    continue
                process.callbacks_left -= 1
                if process.callbacks_left < 0:
                    process.count_excess(callback)
            try:
                handle.context.run(callback, *handle.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                what = getattr(callback, "__qualname__", type(callback).__name__)
                self.call_exception_handler({"message": f"an exception in {what}", "exception": error})
            left -= 1
            if not left:
                self._now += _STEP_SECONDS
                break
        self.callbacks += _SAME_INSTANT - left
        if self.callbacks >= self._collected_at + _COLLECT_EVERY:
            self._collected_at = self.callbacks
            gc.collect(1)
        return True

    _collected_at = 0

    def _end_second(self) -> None:
        second, self._second_ends = int(self._second_ends) - 1, int(self._now) + 1.0
        for process in self.processes:
            if process.callbacks_left < 0:
                ((what, _),) = process.busy_with.most_common(1)
                count = process.most_callbacks + process.callbacks_allowed - process.callbacks_left
                self.spins.append((second, process.name, count, what))
                process.busy_with.clear()
            process.callbacks_left = process.most_callbacks
            process.callbacks_allowed = 0

    def is_running(self) -> bool:
        """Return True if it is running."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return True if it was closed."""
        return self._is_closed

    def close(self) -> None:
        """Drop all pending callbacks."""
        self._is_closed = True
        self.ready.clear()
        self._timers.clear()
        for process in self.processes:
            for task in process.tasks:
                main = task.get_coro()
                if inspect.iscoroutine(main) and inspect.getcoroutinestate(main) == inspect.CORO_CREATED:
                    main.close()  # its process died before it began: nothing of it runs, and no warning is printed
            process.tasks.clear()

    def get_debug(self) -> bool:
        """Never."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored."""

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: asynchronous generators end with the simulation."""

    # --- tasks, futures, errors ---

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return _Future(loop=self.as_loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """A task of the process that runs now."""
        task: asyncio.Task[T] = _Task(coro, loop=self.as_loop, name=name, context=context)
        process = current.get()
        if process is not None:
            process.owns(task)
        return task

    def get_task_factory(self) -> None:
        """Return None: there is no task factory."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an uncaught exception, unless the process that should have caught it is dead."""
        process = current.get()
        if not self._is_closed and (process is None or not process.is_dead):
            self.unhandled.append({**context, "process": process, "time": self._now})

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Handle an exception that no code caught."""
        self.call_exception_handler(context)

    # --- threads ---

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Work that a thread would do: at one instant, before or after its delay."""
        future = self.create_future()
        process = current.get()
        delay = 0.0 if process is None else process.thread_delay()
        begins = self._now
        if getattr(executor, "_max_workers", 0) == 1:
            begins = max(begins, self._executors.get(id(executor), (executor, 0.0))[1])
            self._executors[id(executor)] = (executor, begins + delay)
        is_early = process is not None and process.random.random() < 0.5
        outcome: list[tuple[bool, Any]] = []

        def work() -> None:
            try:
                outcome.append((True, func(*args)))
            except StopIteration as error:
                outcome.append((False, RuntimeError(repr(error))))
            except Exception as error:
                outcome.append((False, error))

        def tell() -> None:
            if not outcome:
                if process is not None:
                    process.in_threads.pop(id(future), None)
                work()
            if future.cancelled():
                return
            is_good, value = outcome[0]
            if is_good:
                future.set_result(value)
            else:
                future.set_exception(value)

        if is_early:
            self.call_at(begins, work)
        elif process is not None:
            process.in_threads[id(future)] = work
        self.call_at(begins + delay, tell)
        return future

    def set_default_executor(self, executor: Any) -> None:
        """Ignored."""

    async def shutdown_default_executor(self) -> None:
        """Do nothing: there are no threads."""

    # --- the network ---

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Listen on the host of the process that asks."""
        return self.network.listen(protocol_factory, port or 0, options.get("start_serving", True))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect from the process that asks. Raises OSError."""
        return await self.network.connect(protocol_factory, host, port)


def collect_quietly() -> None:
    """Collect what simulations left. Tasks that never ended run their `finally` blocks now, and are not heard."""
    disabled, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable()
    sys.unraisablehook = lambda _: None
    try:
        while gc.collect():  # ending one may release others
            pass
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)


@contextmanager
def seeded_world(loop: SimulatedLoop, seed: int, now: Callable[[], float]) -> Iterator[None]:
    """Give code that asks the operating system for randomness or the time those of the simulation meanwhile.

    Each process has its own randomness, so ids and nonces are the same in every run of a seed. `now` is the wall clock,
    in seconds since the Unix epoch, of processes that have no clock of their own.
    """
    outside = Random(f"chance {seed}")

    def urandom(size: int) -> bytes:
        process = current.get()
        return (outside if process is None else process.random).randbytes(size)

    state = random.getstate()
    with ExitStack() as stack:
        for module, name, value in (
            (os, "urandom", urandom),
            (random, "_urandom", urandom),
            (time, "time", now),
            (time, "time_ns", lambda: int(now() * 1e9)),
            (time, "monotonic", loop.time),
            (time, "monotonic_ns", lambda: int(loop.time() * 1e9)),
            (time, "perf_counter", loop.time),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        stack.callback(random.setstate, state)
        random.seed(seed)
        yield
