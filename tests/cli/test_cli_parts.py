"""The parts of the command line that need no broker: times, lines, records as JSON, rows, failures as one line."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from kraftpy import __version__
from kraftpy.cli import COMMANDS, cli, describe_failure
from kraftpy.cli.lines import read_lines
from kraftpy.cli.output import local_time, print_rows
from kraftpy.client.json_records import NewRecord, parse_json_record, record_row, shown
from kraftpy.client.times import parse_time
from kraftpy.config import ConfigError
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import Record

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("0", 0),
        ("2h", NOW - 7_200_000),
        ("-2h", NOW - 7_200_000),
        ("1.5 s ago", NOW - 1_500),
        ("90000d", 0),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250+01:00", 1_769_857_200_250),
        ("2026-01-31", round(datetime(2026, 1, 31).timestamp() * 1000)),
    ],
)
def test_a_time_is_a_date_milliseconds_or_how_long_ago(text: str, milliseconds: int) -> None:
    assert parse_time(text, NOW) == milliseconds


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "5 parsecs"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: expected a date"):
        parse_time(text, NOW)


def test_times_are_shown_in_this_machines_zone() -> None:
    assert datetime.fromisoformat(local_time(NOW)).timestamp() * 1000 == NOW
    assert local_time(-1) == "-"
    assert local_time(10**18) == str(10**18)


@pytest.mark.parametrize(
    "record",
    [
        Record(1, 2, b"k", b"v", ()),
        Record(1, 2, None, None, (("h", None), ("h", b"\xff"))),
        Record(1, 2, b"\xff", "ü".encode(), ()),
        Record(1, 2, b"", b"", ()),
    ],
)
def test_a_record_survives_json(record: Record) -> None:
    back = parse_json_record(json.dumps(record_row(record)).encode())
    assert back == NewRecord(key=record.key, value=record.value, headers=record.headers, timestamp_ms=2)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": {"a": [1, "ü"]}}', NewRecord(value='{"a":[1,"ü"]}'.encode())),
        ('{"value": 5, "key": true}', NewRecord(value=b"5", key=b"true")),
        ('{"value": "v", "headers": {"a": "b", "c": null}}', NewRecord(value=b"v", headers=(("a", b"b"), ("c", None)))),
        ('{"value": null, "partition": 3, "timestamp": -1}', NewRecord(partition=3)),
    ],
)
def test_json_may_be_written_by_hand(line: str, record: NewRecord) -> None:
    assert parse_json_record(line.encode()) == record


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "neither key nor value"),
        ('{"value_base64": "*"}', "value_base64 is not base64"),
        ('{"value_base64": 1}', "value_base64 is not base64"),
        ('{"value": "", "headers": 1}', "headers must be a list or an object"),
        ('{"value": "", "headers": [1]}', "each header must be an object with a name"),
        ('{"value": "", "partition": true}', "partition must be a whole number"),
        ('{"value": "", "timestamp": 1.5}', "timestamp must be a whole number"),
    ],
)
def test_what_is_no_record_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_json_record(line.encode())


def test_bytes_are_shown_as_text() -> None:
    assert shown(None) == "null"
    assert shown("ü\xff".encode() + b"\xff") == "üÿ\\xff"


async def test_lines_are_read_over_files_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.cli.lines.BLOCK_BYTES", 4)
    (tmp_path / "a").write_bytes(b"one\r\ntwo and more\n\nlast")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"x\n")
    names = [str(tmp_path / name) for name in "abc"]
    lines = [line async for block in read_lines(names) for line in block]
    assert lines == [b"one", b"two and more", b"", b"last", b"x"]


ROWS = [{"topic": "a", "partitions": 3, "config": {"x": "y"}}, {"topic": "b", "partitions": None, "config": {}}]


def test_rows_are_json_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_rows_can_be_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, plain="topic")
    print_rows(ROWS, "plain")
    assert capsys.readouterr().out == "a\nb\na\t3\tx=y\nb\t-\t\n"


def test_rows_are_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "table", title="Topics")
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == "Topics"
    assert "partitions" in out
    assert out.splitlines()[-1].split() == ["b", "-"]
    print_rows([], "table", empty="no topics")
    assert capsys.readouterr() == ("", "no topics\n")


def test_a_long_cell_begins_beside_the_others_of_its_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_rows([{"cause": "stuck", "per_second": 3, "explanation": "begins " + "and goes on " * 10}], "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["per"]
    assert lines[1].split() == ["cause", "second", "explanation"]
    assert lines[2].split()[:4] == ["stuck", "3", "begins", "and"]
    assert len(lines) > 4


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' exists"), "TOPIC_ALREADY_EXISTS: Topic 'a' exists"),
        (ConfigError("x=1 is not allowed"), "x=1 is not allowed"),
        (FileNotFoundError(2, "No such file or directory", "/a"), "/a: No such file or directory"),
        (OSError("odd"), "odd"),
        (ExceptionGroup("", [ExceptionGroup("", [ConfigError("deep")])]), "deep"),
        (KeyError("a bug"), None),
    ],
)
def test_a_failure_is_one_line_and_a_bug_is_not(error: Exception, line: str | None) -> None:
    assert describe_failure(error) == line


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"kraftpy {__version__}\n")


def test_help_tells_of_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: cli {command} ")
    assert "\\b" not in result.stdout


def test_an_unknown_command_is_a_wrong_command() -> None:
    result = CliRunner().invoke(cli, ["brew"])
    assert result.exit_code == 2
    assert "brew" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--override", "nod.id=1"], "nod.id is not a setting; did you mean node.id?"),
        (
            ["--override", "num.partitions=x"],
            "Invalid value x for configuration num.partitions: Not a number of type INT",
        ),
        (["--override", "num.partitions"], "--override 'num.partitions' is not allowed: expected name=value"),
    ],
)
def test_the_server_refuses_bad_settings_with_one_line_and_status_2(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(cli, ["server", *arguments])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"kraftpy: {line}\n")


def test_the_server_reads_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "node.properties"
    path.write_bytes("# Schlüssel\nnum.partitions=".encode("latin-1") + rb"\u00zz")
    result = CliRunner().invoke(cli, ["server", str(path)])
    assert result.exit_code == 2
    assert result.stderr == f"kraftpy: {path}, line 2: \\u00zz is not four hexadecimal digits\n"


def test_the_server_reads_the_environment() -> None:
    result = CliRunner().invoke(cli, ["server"], env={"KAFKA_NUM_PARTITIONS": "0"})
    assert result.exit_code == 2
    assert "Invalid value 0 for configuration num.partitions" in result.stderr


def test_the_server_does_not_load_what_other_commands_need() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from kraftpy.cli import cli;"
        "CliRunner().invoke(cli, ['server', '--override', 'num.partitions=0']);"
        "heavy = {'rich', 'numpy', 'aiofiles', 'pyarrow', 'asyncio'};"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & heavy),"
        "      sorted(name for name in sys.modules if name.startswith('kraftpy.cli')))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed == "[] ['kraftpy.cli', 'kraftpy.cli.server']\n"
