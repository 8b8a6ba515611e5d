"""Fixtures every test may use: a real broker in its own process."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import kafka_python_sockets
import pytest

import kraftpy.metadata.raft.library  # noqa: F401  before any test imports pysyncobj, which breaks socket.inet_ntop
from kraftpy.broker.containment import UNEXPECTED
from kraftpy.config.sources import variable_name
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from kraftpy.testing.server_process import ServerProcess

BrokerFactory = Callable[..., EmbeddedBroker]

UNPACKED = Path(__file__).parents[1] / "build" / "prometheus" / "usr" / "bin"

LONGEST = (
    "tests/spark",
    "tests/fuzz/test_fuzz.py",
    "tests/cluster/test_failures.py",
    "tests/chaos/test_chaos_simulated_world.py",
    "tests/broker/test_crash.py",
    "tests/broker/test_bad_disks.py",
    "tests/test_readme.py",
    "tests/broker/test_cleaning_process.py",
    "tests/compat/test_public_share.py",
    "tests/chaos/test_chaos_simulation.py",
    "tests/replication/test_replication_simulation.py",
    "tests/chaos/test_chaos_ledger.py",
    "tests/chaos/test_chaos_hostile.py",
    "tests/cluster/test_cluster_transactions.py",
    "tests/cluster/test_cluster.py",
    "tests/compat/test_clients.py",
    "tests/compat/differential/test_recorded_answers.py",
    "tests/compat/test_public_consumer_protocol.py",
    "tests/cluster/test_quorum_nodes.py",
    "tests/cluster/test_damaged_copy.py",
    "tests/cluster/test_pytest_plugin.py",
    "tests/broker/test_hostile_settings.py",
    "tests/test_packaging.py",
    "tests/client/test_client_transactions.py",
    "tests/protocol/test_wire_fuzz.py",
)
"""The groups of tests that take longest, in the order in which they start when workers run side by side."""


def pytest_configure() -> None:
    """Say nothing of how fast an example has to be. And be interruptible, and have the processes that tests start be so
    too: a shell that starts the tests in the background has them, and all they start, ignore SIGINT.

    Programs that system-packages.sh has unpacked are found as if they were installed."""
    hypothesis.settings.register_profile("at any speed", deadline=None)
    hypothesis.settings.load_profile("at any speed")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(UNPACKED)])


def pytest_collection_finish() -> None:
    _freeze()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Collect what a file leaves behind: a resource that it left open is an error of this file, and of no later one.

    The process's umask is such a resource too.
    """
    before = _umask()
    yield
    _freeze()
    after = _umask()
    os.umask(before)
    assert after == before, f"the umask is {after:#o} now, and not {before:#o}"


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


def _freeze() -> None:
    """Collect garbage, and keep what is alive to the end: no later collection looks through it again.

    The data that modules keep for their tests (histories, tables) are millions of objects in a whole run.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups that take longest first, after pytest-randomly has shuffled: no worker starts a long one when the
    others have nothing left to do."""
    if hasattr(config, "workerinput"):
        gone = [group for group in LONGEST if not (config.rootpath / group).exists()]
        assert not gone, f"rename them in LONGEST too: {gone}"
        place = {group: place for place, group in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(_group(item.nodeid), len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file, and all of Spark, on one worker, which sets up once what they share.

    The scheduler asks for a test's group by its id. xdist's marks for groups have no effect with pytest 9.2
    (pytest-xdist issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return Groups(config, log)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "tests/spark" if file.startswith("tests/spark/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Note which worker ran a test, in the process that prints."""
    if hasattr(report, "node"):
        _workers.setdefault(_group(report.nodeid), set()).add(report.node.gateway.id)


_workers: dict[str, set[str]] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints what this one could not test; fail if a group was torn apart."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["untested"] = _untested()
    elif _torn_apart():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _torn_apart() -> list[str]:
    """Return the groups that more than one worker ran: each of them set up what the group should share."""
    return sorted(group for group, workers in _workers.items() if len(workers) > 1)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear what one process of several could not test."""
    _told.update(dict.fromkeys(getattr(node, "workeroutput", {}).get("untested", [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine did not let be tested: no test is skipped, some have fewer ways."""
    for line in dict.fromkeys([*_told, *_untested()]):
        terminalreporter.write_line(line)
    for group in _torn_apart():
        terminalreporter.write_line(f"FAILED: {group} was run by more than one worker", red=True)


_told: dict[str, None] = {}


def _untested() -> list[str]:
    lines = []
    mounting = sys.modules.get("mounting")
    if mounting is not None and not mounting.CAN_MOUNT:
        lines.append(
            "No file system can be mounted here (that takes root, loop devices and mkfs.ext4): log directories failed "
            "in tests by being moved away, and by nothing else."
        )
    namespacing = sys.modules.get("namespacing")
    if namespacing is not None and namespacing.WHY_NOT is not None:
        lines.append(f"No chaos run on real processes was tested: {namespacing.WHY_NOT}.")
    return lines


class _Logs:
    """The logs of the nodes that tests start: read when a node ends, and after each test while it runs."""

    def __init__(self) -> None:
        self._looked_at: dict[Path, int] = {}
        self._ended: dict[Path, int] = {}
        self.found: list[str] = []

    def look(self, logs: Sequence[Path] | None = None) -> None:
        """Note the lines of unexpected errors that are new in these logs, or in those of all nodes that run."""
        for log in list(self._looked_at) if logs is None else self._looked_at.keys() & logs:
            begin = self._looked_at[log]
            try:
                size = log.stat().st_size
            except FileNotFoundError:
                del self._looked_at[log]
                continue
            if size == begin:
                continue
            with log.open("rb") as file:
                file.seek(begin)
                text = file.read()
            end = text.rfind(b"\n") + 1
            self._looked_at[log] = begin + end
            self.found += [line for line in text[:end].decode(errors="replace").splitlines() if UNEXPECTED in line]

    def watch(self, log: Path) -> None:
        """A node writes here from now on."""
        size = log.stat().st_size if log.exists() else 0
        self._looked_at.setdefault(log, min(self._ended.pop(log, size), size))

    def end(self, log: Path) -> None:
        """Look a last time at the log of a node that has ended: too many have to be looked at after each test."""
        self.look([log])
        if log in self._looked_at:
            self._ended[log] = self._looked_at.pop(log)


_logs = _Logs()

RETENTION_RESTS = {variable_name("log.initial.task.delay.ms"): "86400000"}
"""Many tests write records of long ago: half a minute after its start, a node would begin to delete them."""


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    """Ports that no other process gets during the test."""
    with ReservedPorts() as reserved:
        yield reserved


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """pytest parses modules as they are imported, and CPython before 3.11.8 fails if two threads do so (gh-106905)."""
    parse, lock = ast.parse, threading.RLock()

    def parse_alone(*arguments: Any, **more: Any) -> Any:
        with lock:
            return parse(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", parse_alone)
        yield


@pytest.fixture(scope="session", autouse=True)
def _watched_logs() -> Iterator[None]:
    begin, wait = ServerProcess.__init__, ServerProcess.wait

    def begin_and_watch(
        self: ServerProcess, *arguments: Any, log: Path, environment: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        _logs.watch(log)
        begin(self, *arguments, log=log, environment={**RETENTION_RESTS, **(environment or {})}, **more)

    def wait_and_look(self: ServerProcess, timeout: float) -> int:
        try:
            return wait(self, timeout)
        finally:
            _logs.end(self._log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "__init__", begin_and_watch)
        patch.setattr(ServerProcess, "wait", wait_and_look)
        yield


@pytest.fixture(autouse=True)
def incidents(_watched_logs: None) -> Iterator[list[str]]:
    """Lines of unexpected errors of nodes that run: there are to be none. A test that wants some clears the list."""
    yield _logs.found
    _logs.look()
    found, _logs.found = _logs.found, []
    assert not found, "a node met what it should not have:\n" + "\n".join(found)


@pytest.fixture(scope="session")
def kraftpy_server() -> Iterator[EmbeddedBroker]:
    """One broker for the whole session; tests share it and take topic and group names of their own."""
    settings = {"offsets.topic.num.partitions": "8", "group.share.min.heartbeat.interval.ms": "100"}
    with EmbeddedBroker(settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.log_text, broker.log_text


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Start brokers of one's own: `start_broker(settings={...})`; each is stopped when the test ends."""
    started: list[EmbeddedBroker] = []

    def start(**settings: object) -> EmbeddedBroker:
        directory = tmp_path / f"broker-{len(started)}"
        broker = EmbeddedBroker(directory, **settings)  # type: ignore[arg-type]
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.close()


@pytest.fixture(scope="session", autouse=True)
def _sockets_of_kafka_python_closed() -> Iterator[None]:
    with kafka_python_sockets.unconnected_closed():
        yield
