"""`kraftpy server`: one process, one broker, until SIGTERM or SIGINT.

Prints one line when clients can connect, and nothing else on standard output. If the broker cannot start, one line on
standard error says why; the exit status is 2 for anything a person can change (a taken port, a directory in use), 1 for
a disk that cannot be read or does not hold what was written. A later error of ours is survived (`containment`), unless
this node's own state cannot be trusted any more. That, or the failure of a log directory the node cannot do without,
ends it with a line and status 1. So does a stop that could not make everything durable, with a line for each thing it
could not. On SIGUSR1 it prints its health, one line of JSON, on standard error. With `kraftpy.log.format=json`, all
lines on standard error are JSON.

One of several processes (`supervisor`) tells its supervisor that it is ready instead of printing it, stops when that is
gone, and has its node's id on every line of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import time
from pathlib import Path

from kraftpy import __version__
from kraftpy.broker.allocator import keep_freed_memory
from kraftpy.broker.broker import Broker
from kraftpy.broker.containment import DirectoryFailed, Fatal, contain_callbacks
from kraftpy.broker.descriptors import SPARES
from kraftpy.broker.event_loop import new_event_loop
from kraftpy.broker.garbage_collection import Collections
from kraftpy.broker.log_lines import log_handler, print_line, say
from kraftpy.broker.runtime import SystemClock, keep_spare_descriptors
from kraftpy.broker.security.audit import open_audit_log
from kraftpy.broker.stalls import watched
from kraftpy.broker.startup import StartupError
from kraftpy.broker.supervision import Supervision
from kraftpy.broker.threads import Threads
from kraftpy.config import BrokerConfig

logger = logging.getLogger(__name__)

EXIT_FAILURE = 1
EXIT_USAGE = 2
_ODD_JOB_THREADS = min(32, (os.cpu_count() or 1) + 4)
_LAST_SECONDS = 2.0
"""How long tasks that did not end with the broker may take to end."""


def run(config: BrokerConfig, supervision: Supervision | None = None) -> int:
    """Serve until a signal stops it, or the end of its supervisor; return the process's exit status."""
    os.umask(0o077)  # files are for this user alone
    keep_freed_memory()
    handler = log_handler(config.kraftpy_log_format, config.node_id, is_one_of_many=supervision is not None)
    logging.basicConfig(level=os.environ.get("KRAFTPY_LOG_LEVEL", "WARNING").upper(), handlers=[handler])
    _allow_many_files()
    with contextlib.suppress(OSError):  # the broker reports a limit that is too low
        keep_spare_descriptors(SPARES)
    status = 0
    try:
        open_audit_log(config)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            status = 0 if runner.run(_serve(config, supervision)) else EXIT_FAILURE
    except* StartupError as errors:
        error = _first(errors)
        _say_why(config, supervision, error)
        status = EXIT_FAILURE if isinstance(error, StartupError) and error.is_damage else EXIT_USAGE
    except* (DirectoryFailed, Fatal) as errors:
        _say_why(config, supervision, _first(errors))
        status = EXIT_FAILURE
    return status


def _say_why(config: BrokerConfig, supervision: Supervision | None, error: BaseException) -> None:
    """Print why the node ends."""
    whose = "" if supervision is None else f"node {config.node_id}: "
    say(config.kraftpy_log_format, config.node_id, "CRITICAL", f"{whose}{error}")


async def _serve(config: BrokerConfig, supervision: Supervision | None) -> bool:
    """Run the broker until a signal stops it; return whether it was a clean stop."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Threads(_ODD_JOB_THREADS, thread_name_prefix="odd-jobs"))
    collections = Collections()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if supervision is not None:
        supervision.watch(loop, stop.set)
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        broker.is_one_of_many = supervision is not None
        contain_callbacks(loop, broker.incidents)
        loop.add_signal_handler(signal.SIGUSR1, _print_health, broker)
        if not await start(broker, stop):
            await broker.stop(is_ready=False)
            await _end_what_is_left()
            return True
        collections.started()
        listeners = ", ".join(f"{listener}" for listener in broker.advertised or broker.controller_address)
        if supervision is None:
            seconds = seconds_since_process_start()
            print(f"kraftpy {__version__} ready: node {config.node_id}, {listeners}, {seconds:.2f} s", flush=True)
        else:
            supervision.tell_ready(listeners)
        with watched(config.kraftpy_loop_stall_ms / 1000):
            await stop.wait()
        is_clean = await broker.stop()
        await _end_what_is_left()
        if count := broker.incidents.count:
            logger.error("this node survived %d errors that it should not have met", count)
        for number in (signal.SIGTERM, signal.SIGINT):  # a second signal must not keep it from reporting how it ended
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        return is_clean


def _print_health(broker: Broker) -> None:
    """Print the node's health as one line of JSON on standard error: the answer to SIGUSR1."""
    print_line(json.dumps(broker.health))


async def _end_what_is_left() -> None:
    """End the remaining tasks: everything is closed and durable, so a bug must not hold up the exit.

    A node that had to be killed because it did not exit would not count as a clean stop for the cluster.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=_LAST_SECONDS)
    for task in left:
        logger.error("%s: still running at the end of the stop", task.get_name())
        task.cancel()


async def start(broker: Broker, stop: asyncio.Event) -> bool:
    """Start a broker; return False if it is stopped before it is ready. Finding a quorum may take long."""
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: a broker holds three per partition and one per client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def seconds_since_process_start() -> float:
    """Return seconds since the kernel started this process, with the interpreter's start (Linux; else CPU time)."""
    try:
        # The process's name may hold spaces and parentheses; the fields are counted behind its last one.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_at = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def _first(errors: BaseExceptionGroup[StartupError | DirectoryFailed | Fatal]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
