"""Errors that a node survives: one fails only the work that met it, is counted, and is logged once a minute."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest
from broker_wire import StartBroker

from chaos import live
from kraftpy.broker import containment
from kraftpy.broker.containment import (
    MAX_COMPLAINTS,
    QUIET_SECONDS,
    UNEXPECTED,
    Complaints,
    DirectoryFailed,
    Fatal,
    Incidents,
    Tasks,
    contain_callbacks,
)

BOUND_SECONDS = 20.0
logger = logging.getLogger("test")


@pytest.fixture
def now() -> list[float]:
    """The time that the complaints of this test know: one number, which the test changes."""
    return [1000.0]


@pytest.fixture
def complaints(now: list[float]) -> Complaints:
    return Complaints(lambda: now[0])


def complain(complaints: Complaints, kind: str = "frame", peer: str = "10.0.0.1") -> bool:
    return complaints.write(logger, logging.WARNING, kind, peer, "%s: %s is malformed", peer, kind)


# --- complaints --------------------------------------------------------------------------------------------------


def test_one_line_a_kind_and_peer_a_minute(
    now: list[float], complaints: Complaints, caplog: pytest.LogCaptureFixture
) -> None:
    assert [complain(complaints) for _ in range(1000)] == [True] + [False] * 999
    assert complain(complaints, peer="10.0.0.2")
    assert complain(complaints, kind="header")
    now[0] += QUIET_SECONDS - 0.1
    assert not complain(complaints)
    now[0] += 0.2
    assert complain(complaints)
    assert caplog.messages[0] == "10.0.0.1: frame is malformed"
    assert caplog.messages[-1] == "10.0.0.1: frame is malformed (1000 more like it were not logged)"
    assert len(caplog.messages) == 4


def test_however_many_peers_complain_what_is_remembered_is_bounded(now: list[float], complaints: Complaints) -> None:
    written = sum(complain(complaints, peer=str(number)) for number in range(20 * MAX_COMPLAINTS))
    assert written == MAX_COMPLAINTS + 1, "one more for all those that had no room"
    assert len(complaints._seen) <= MAX_COMPLAINTS + 1
    now[0] += QUIET_SECONDS + 1
    assert complain(complaints, peer="new"), "what is over makes room"
    assert len(complaints._seen) <= 2


def test_text_from_outside_begins_no_line(complaints: Complaints, caplog: pytest.LogCaptureFixture) -> None:
    complain(complaints, peer="evil\n2026-01-01 ERROR forged\x1b[2J")
    Incidents(complaints).note("group 'a\nb'", ValueError("c\r\nd"))
    assert len(caplog.messages) == 2
    assert all(message.isprintable() for message in caplog.messages)


# --- incidents ---------------------------------------------------------------------------------------------------


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_incidents_are_counted_and_the_last_few_kept(complaints: Complaints, caplog: pytest.LogCaptureFixture) -> None:
    incidents = Incidents(complaints)
    for number in range(500):
        incidents.note(f"group g{number}", raised(KeyError(number)), kind="group")
    assert incidents.count == 500
    assert [each.what for each in incidents.last] == [f"group g{number}" for number in range(480, 500)]
    assert len(caplog.messages) == 1, "one of a kind"
    assert UNEXPECTED in caplog.messages[0]
    assert "raised in test_containment.py:" in caplog.messages[0]
    assert "Traceback" not in caplog.text


def test_a_huge_or_broken_message_is_survived(complaints: Complaints, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    incidents = Incidents(complaints)
    incidents.note("x" * 1_000_000, ValueError("y" * 1_000_000))
    incidents.note("broken", Broken())
    assert incidents.count == 2
    assert all(len(message) < 3_000 for message in caplog.messages)


def test_what_is_contained_goes_no_further_and_fatal_does(complaints: Complaints) -> None:
    incidents = Incidents(complaints)
    with incidents.contained("a partition"):
        raise KeyError("x")
    assert incidents.count == 1
    with pytest.raises(Fatal), incidents.contained("a partition"):
        raise Fatal("its image cannot be trusted")
    with pytest.raises(asyncio.CancelledError), incidents.contained("a partition"):
        raise asyncio.CancelledError
    assert incidents.count == 1


# --- tasks -------------------------------------------------------------------------------------------------------


async def test_an_error_of_a_task_costs_no_other() -> None:
    incidents = Incidents(Complaints())

    async def fails() -> int:
        raise KeyError("x")

    async def works() -> int:
        await asyncio.sleep(0)
        return 7

    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        tasks = Tasks(group, incidents)
        bad, good = tasks.create_task(fails(), name="bad"), tasks.create_task(works(), name="good")
        assert await bad is None
        assert await good == 7
    assert [each.what for each in incidents.last] == ["bad"]


@pytest.mark.parametrize("error", [Fatal("its own state"), DirectoryFailed("its own disk")])
async def test_what_is_fatal_ends_the_group(error: Exception) -> None:
    incidents = Incidents(Complaints())

    async def fails() -> None:
        raise error

    async def node() -> None:
        async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
            tasks = Tasks(group, incidents)
            tasks.create_task(asyncio.Event().wait(), name="waits")
            tasks.keep_running(fails, name="fails")

    with pytest.raises(ExceptionGroup) as caught:
        await node()
    assert caught.value.exceptions == (error,)
    assert incidents.count == 0


@pytest.mark.parametrize("error", [Fatal("its own state"), DirectoryFailed("its own disk")])
def test_nothing_contains_what_is_fatal(error: Exception) -> None:
    """A directory that failed in one of many partitions' loops was noted as that partition's incident."""
    incidents = Incidents(Complaints())
    with pytest.raises(type(error)), incidents.contained("a partition"):
        raise error
    with pytest.raises(type(error)), incidents.contained_in("a-0", "flush"):
        raise error
    with pytest.raises(type(error)):
        incidents.note("a request", error)
    assert (incidents.count, incidents.last) == (0, [])


async def test_a_task_cancelled_before_it_began_leaves_nothing_unawaited() -> None:
    """Warnings are errors here: a coroutine that was never awaited would be one."""

    async def waits() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        task = Tasks(group, Incidents(Complaints())).create_task(waits(), name="waits")
        task.cancel()
    assert task.cancelled()


async def test_no_task_begins_when_the_node_goes_down() -> None:
    async def works() -> None:
        pass

    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        tasks = Tasks(group, Incidents(Complaints()))
    with pytest.raises(RuntimeError):
        tasks.create_task(works(), name="late")


async def test_a_loop_that_must_go_on_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "_RESTART_SECONDS", 0.001)
    incidents = Incidents(Complaints())
    runs = 0
    lives = asyncio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise KeyError(runs)
        lives.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as group:
        task = Tasks(group, incidents).keep_running(loop, name="loop")
        await lives.wait()
        task.cancel()
    assert (runs, incidents.count) == (4, 3)


async def test_callbacks_that_raise_are_incidents(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    before, incidents = loop.get_exception_handler(), Incidents(Complaints())

    def fails() -> None:
        raise KeyError("x")

    contain_callbacks(loop, incidents)
    try:
        ran = asyncio.Event()
        for callback in (fails, fails, ran.set):
            loop.call_soon(callback)
        async with asyncio.timeout(BOUND_SECONDS):
            await ran.wait()
        for _ in range(100):  # as asyncio does when there is no descriptor for a connection
            error: dict[str, Any] = {"message": "socket.accept() out of system resource"}
            loop.call_exception_handler({**error, "exception": OSError(errno.EMFILE, "Too many open files")})
            loop.call_exception_handler({"message": "Task was destroyed but it is pending!"})
    finally:
        loop.set_exception_handler(before)
    assert incidents.count == 2
    assert len([message for message in caplog.messages if "out of system resource" in message]) == 1
    assert len([message for message in caplog.messages if "destroyed" in message]) == 1
    assert "Traceback" not in caplog.text


# --- and it cannot be missed -----------------------------------------------------------------------------------


def test_an_unexpected_error_of_a_node_fails_the_test_that_started_it(
    start_broker: StartBroker, incidents: list[str]
) -> None:
    broker = start_broker()
    with (broker.data_dir / "server.log").open("a") as log:
        log.write(f"ERROR kraftpy.broker.containment: group g: {UNEXPECTED}: KeyError: 1\n")
    assert incidents == []
    assert broker.stop() == 0
    assert len(incidents) == 1
    incidents.clear()  # else this test would fail, as any other does


def test_a_run_on_real_nodes_excuses_no_unexpected_error() -> None:
    assert UNEXPECTED in live._MISTAKES.values()
