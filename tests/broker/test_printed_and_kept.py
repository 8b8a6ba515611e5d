"""Clients' text is escaped before it is printed, and new files are for the node's user alone."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from broker_wire import ask, connect, create_topic, produce_values

from kraftpy.broker.log_lines import LineFormatter
from kraftpy.broker.runtime import OsDirectory
from kraftpy.cli.output import print_rows, say, write_lines
from kraftpy.config import BrokerConfig, ConfigError, Origin, load
from kraftpy.config.broker import BROKER_SETTINGS
from kraftpy.config.describe import describe_broker
from kraftpy.config.printing import printable
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.testing.cluster import EmbeddedBroker

FORGED = "x\n2026-01-01 00:00:00,000 CRITICAL kraftpy: all is lost\x1b[2J\x9b1m\u202e\u2028"
SECRET = "correct horse battery staple"
NAME = "kraftpy.quorum.secret"


def test_what_is_not_printable_is_escaped() -> None:
    assert printable("plain, ä, 日本 ✓") == "plain, ä, 日本 ✓"
    assert printable("a\nb\x1b\x9b\u202e\ud800\x7f") == r"a\nb\x1b\x9b\u202e\ud800\x7f"
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_a_record_of_the_log_is_one_line() -> None:
    formatter = LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    record = logging.LogRecord("kraftpy", logging.INFO, "here", 1, "group %s: gone", (FORGED,), None)
    line = formatter.format(record)
    assert "\n" not in line
    assert line.isprintable()
    assert "all is lost" in line
    record = logging.LogRecord("kraftpy", logging.INFO, "here", 1, "group %s: gone", ("\0" * 32_767,), None)
    assert len(formatter.format(record)) < 2200
    assert formatter.format(record).endswith(": gone")
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("kraftpy", logging.ERROR, "here", 1, "failed", (), sys.exc_info())
    first, *rest = formatter.format(record).split("\n")
    assert first.endswith("failed")
    assert all(each.startswith("    ") and each.isprintable() for each in rest), "none looks like a record's line"


@pytest.mark.parametrize("letter", ["x", "\n", "\U0001f600"])
def test_a_line_of_the_log_is_short_whatever_it_quotes(letter: str) -> None:
    formatter = LineFormatter("%(message)s")
    text = letter * 32_767
    record = logging.LogRecord("kraftpy", logging.INFO, "here", 1, "group %s: member %s left", (text, text), None)
    line = formatter.format(record)
    assert len(line) < 2_100
    assert line.startswith("group ")
    assert line.endswith(" left")
    assert "characters]" in line
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("kraftpy", logging.ERROR, "here", 1, "failed", (), sys.exc_info())
    assert max(map(len, formatter.format(record).split("\n"))) < 2_100


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_shown_nothing_that_it_obeys(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kraftpy.cli.output.at_terminal", lambda: is_terminal)
    write_lines([FORGED])
    print_rows([{"name": FORGED}], "plain")
    said = capsys.readouterr().out
    assert ("\x1b" in said) is not is_terminal, "programs get the bytes"
    print_rows([{"name": FORGED}], "table")
    say(f"no topic {FORGED}")
    shown = capsys.readouterr()
    assert "\x1b[2J" not in shown.out + shown.err
    assert shown.err.count("\n") == 1


def test_a_client_cannot_forge_lines_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRAFTPY_LOG_LEVEL", "INFO")
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    with EmbeddedBroker(tmp_path / "data") as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "__consumer_offsets")
        create_topic(connection, "topic")
        for _ in range(2):  # the group's coordinator is there at the second
            request = JoinGroupRequest(
                group_id=FORGED,
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                member_id="",
                protocol_type="consumer",
                protocols=[protocol],
            )
            ask(connection, ApiKey.JOIN_GROUP, 3, request)
        told = broker.log_text
    assert not [line for line in told.split("\n") if line.startswith("2026-01-01 00:00:00")]
    assert "\x1b" not in told
    assert "all is lost" in told, "the id was logged at all"


def test_what_a_broker_writes_is_for_its_user_alone(tmp_path: Path) -> None:
    before = tmp_path / "there" / "before"
    before.mkdir(parents=True, mode=0o755)
    settings = {"log.dirs": f"{tmp_path}/new,{before}", "auto.create.topics.enable": "true"}
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker, connect(broker.bootstrap) as connection:
        create_topic(connection, "topic", 4)
        produce_values(connection, "topic", b"value")
        broker.stop()
    seen = 0
    for top in (tmp_path / "new", before):
        for directory, names, files in os.walk(top):
            for name in files:
                assert stat.S_IMODE((Path(directory) / name).stat().st_mode) == 0o600, name
                seen += 1
            for name in names:
                assert stat.S_IMODE((Path(directory) / name).stat().st_mode) == 0o700, name
    assert seen > 10
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(before.stat().st_mode) == 0o755, "a user's directory is left as it is"
    assert stat.S_IMODE((tmp_path / "data" / "server.log").stat().st_mode) == 0o600


def test_files_are_made_for_their_user_whatever_the_umask(tmp_path: Path) -> None:
    usual = os.umask(0o000)
    try:
        directory = OsDirectory(tmp_path / "a" / "b")
        directory.open("file").close()
        directory.replace("replaced", b"data")
        made = [directory.path, directory.child("child").path]
    finally:
        os.umask(usual)
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in made} == {0o700}
    files = [f"{directory.path}/file", f"{directory.path}/replaced"]
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in files} == {0o600}


def test_a_password_is_refused_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="command line") as refused:
        load(None, {}, [f"{NAME}={SECRET}"])
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError, match="command line"):
        load(None, {}, [f"ssl.keystore.password={SECRET}"])
    command = [sys.executable, "-m", "kraftpy", "server", "--override", f"{NAME}={SECRET}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert SECRET not in ended.stderr + ended.stdout


def test_values_may_be_kept_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text(f"quorum={SECRET}\n")
    (tmp_path / "quorum").write_text(f"{SECRET}\n")
    read = lambda path: Path(path).read_text()  # noqa: E731
    for value in ("${env:HIDDEN}", f"${{file:{tmp_path}/secrets.properties:quorum}}", f"${{dir:{tmp_path}:quorum}}"):
        config, _, _ = load(f"{NAME}={value}", {"HIDDEN": SECRET}, read_file=read)
        assert config.kraftpy_quorum_secret == SECRET
        config, _, _ = load(None, {"HIDDEN": SECRET}, [f"{NAME}={value}"], read_file=read)
        assert config.kraftpy_quorum_secret == SECRET
        assert config.given[NAME].origin is Origin.OVERRIDE
    config, _, _ = load("log.dirs=/data/${env:WHERE}/logs", {"WHERE": "a"})
    assert config.log_dirs == ("/data/a/logs",)


@pytest.mark.parametrize("value", ["${env:NOT_THERE}", "${file:/not/there:key}", "${dir:/not:there}", "${vault:a:b}"])
def test_a_variable_that_cannot_be_filled_in_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^kraftpy\.quorum\.secret: \$\{") as refused:
        load(f"{NAME}={value}", {"OTHER": SECRET}, read_file=lambda path: Path(path).read_text())
    assert SECRET not in str(refused.value)


def test_a_secret_is_nowhere_told(tmp_path: Path) -> None:
    config = BrokerConfig.of({NAME: SECRET})
    assert SECRET not in repr(config)
    assert SECRET not in repr(describe_broker(config))
    assert SECRET not in repr(describe_broker(config, [NAME, "ssl.keystore.password"]))
    with pytest.raises(ConfigError) as refused:
        BROKER_SETTINGS[NAME].__class__(NAME, BROKER_SETTINGS[NAME].type, None, None, "{a,b}", "").parse(SECRET)
    assert SECRET not in str(refused.value)
    with EmbeddedBroker(tmp_path / "data", settings={NAME: SECRET}) as broker:
        assert SECRET.encode() not in Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        with connect(broker.bootstrap) as connection:
            resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
            request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
            found = ask(connection, ApiKey.DESCRIBE_CONFIGS, 4, request)
            entry = next(each for each in found.results[0].configs if each.name == NAME)
            assert entry.is_sensitive
            assert SECRET not in repr(found)
        assert SECRET not in broker.log_text


def test_bad_frames_do_not_fill_the_log(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(struct.pack(">i", -1))
                assert connection.recv(1) == b""
        assert broker.log_text.count("a request of -1 bytes") == 1
