"""Legal requests cannot fill the log: each kind of line is limited per minute and counted, in every place."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
from broker_wire import ask, connect, create_topic

import kraftpy
from kraftpy.broker.log_limit import LINES_PER_MINUTE, MOST_KINDS, LineLimit
from kraftpy.broker.log_lines import LineFormatter, log_handler
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.testing.cluster import EmbeddedBroker

BROKER_PACKAGES = ("broker", "log", "metadata", "groups", "transactions", "share", "replication", "config", "protocol")


def record(message: str, *arguments: object, at: float, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("kraftpy.broker.x", level, "here", 1, message, arguments, None)
    made.created = at
    return made


def test_a_kind_has_so_many_lines_a_minute_and_the_next_counts_the_rest() -> None:
    limit = LineLimit()
    passed = [limit.filter(record("group %s: %s", f"g{n}", "empty", at=1_000 + n / 100)) for n in range(1_000)]
    assert sum(passed) == LINES_PER_MINUTE
    assert all(passed[:LINES_PER_MINUTE]), "a normal rate is told in full"
    assert limit.filter(record("topic %s created", "a", at=1_010)), "another kind is told"
    assert limit.filter(record("group %s: %s", "g", "on fire", at=1_010, level=logging.WARNING)), "and another level"
    later = record("group %s: %s", "100%", "empty", at=1_060)
    assert limit.filter(later)
    assert later.getMessage() == f"group 100%: empty ({1_000 - LINES_PER_MINUTE} more like it were not logged)"
    after = record("group %s: %s", "g", "empty", at=1_061)
    assert limit.filter(after)
    assert after.getMessage() == "group g: empty"


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    limit = LineLimit()
    for _ in range(LINES_PER_MINUTE + 1):
        limit.filter(record("group %s", "g", at=5_000))
    assert limit.filter(record("group %s", "g", at=1_000))


def test_errors_and_what_is_asked_for_are_written_whole() -> None:
    limit = LineLimit()
    for level in (logging.ERROR, logging.CRITICAL, logging.DEBUG):
        assert all(limit.filter(record("%s is offline", "a-0", at=1_000, level=level)) for _ in range(1_000))


def test_kinds_that_are_made_up_share_a_limit() -> None:
    limit = LineLimit()
    passed = sum(limit.filter(record(f"group {n}", at=1_000)) for n in range(10 * MOST_KINDS))
    assert passed == MOST_KINDS + LINES_PER_MINUTE
    assert len(limit._minutes) == MOST_KINDS + 1


def test_the_node_s_log_has_limit_and_format() -> None:
    handler = log_handler()
    assert isinstance(handler.formatter, LineFormatter)
    assert [type(each) for each in handler.filters] == [LineLimit]


def _messages_that_are_put_together(source: str) -> list[int]:
    """The lines at which INFO or WARNING is logged with a message that is not a constant."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        is_log = isinstance(owner, ast.Name) and owner.id in ("logger", "log", "logging")
        if is_log and node.func.attr in ("info", "warning") and not isinstance(node.args[0], ast.Constant):
            found.append(node.lineno)
    return found


def test_no_place_puts_its_message_together() -> None:
    """Text from outside is passed as an argument; otherwise each name would be a kind of its own."""
    assert _messages_that_are_put_together('logger.info(f"group {name}")\nlogger.warning("a %s" % name)') == [1, 2]
    root = Path(kraftpy.__file__).parent
    paths = [path for package in BROKER_PACKAGES for path in sorted((root / package).rglob("*.py"))]
    assert len(paths) > 200
    found = [(path.name, line) for path in paths for line in _messages_that_are_put_together(path.read_text("utf-8"))]
    assert found == []


def test_legal_requests_do_not_fill_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group that a client makes writes two lines."""
    monkeypatch.setenv("KRAFTPY_LOG_LEVEL", "INFO")
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "__consumer_offsets")
        for number in range(2 * LINES_PER_MINUTE):
            request = JoinGroupRequest(
                group_id=f"{number}-" + "g" * 30_000,
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                member_id="",
                protocol_type="consumer",
                protocols=[protocol],
            )
            ask(connection, ApiKey.JOIN_GROUP, 3, request)
        told = [line for line in broker.log_text.split("\n") if " group " in line]
    assert 1 <= len(told) <= 2 * LINES_PER_MINUTE + 2, "a minute may have ended meanwhile"
    assert max(map(len, told)) < 2_200
