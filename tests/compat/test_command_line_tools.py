"""`make compat-tools` without its JVM: how it compares, and whether its command lines and differences are sound."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

from command_line import FILES as OPEN_FILES
from command_line import TOOLS, CommandLine
from documented import Documented, differing_lines, read
from evening import even
from secure_lines import FILES as SECURE_FILES
from tool_clusters import ToolCluster
from tools_suite import STORIES, Tally

FILES = OPEN_FILES | SECURE_FILES
ALL = [command for story in STORIES.values() for command in story]


@pytest.fixture
def cluster() -> Iterator[ToolCluster]:
    made = ToolCluster("kraftpy", "")
    made.ports = [40001, 40002, 40003]
    made.controller_ports = [50001, 50002, 50003]
    yield made
    made.stop()


def test_every_command_line_can_be_given(cluster: ToolCluster) -> None:
    running: set[str] = set()
    for command in ALL:
        tool, *arguments = cluster.arguments(command.line)
        assert tool.startswith(("org.apache.kafka.tools.", "kafka.admin."))
        words = shlex.split(command.line)
        assert words[0].partition(":")[0] in TOOLS
        assert all(word[1:] in FILES for word in words[1:] if word.startswith("@"))
        assert all(str(cluster.directory) in argument for argument in arguments if "properties" in argument)
        for pattern in (command.until, *command.masks):
            re.compile(pattern)
        if command.starts:
            running.add(command.starts)
        if command.ends:
            running.remove(command.ends)
    assert not running


def test_an_address_is_given_where_it_belongs(cluster: ToolCluster) -> None:
    brokers = "127.0.0.1:40001,127.0.0.1:40002,127.0.0.1:40003"
    controllers = "127.0.0.1:50001,127.0.0.1:50002,127.0.0.1:50003"
    topics, features = TOOLS["topics"].name, TOOLS["features"].name
    assert cluster.arguments("topics --list") == [topics, "--list", "--bootstrap-server", brokers]
    assert cluster.arguments("features:controller describe") == [
        features, "--bootstrap-controller", controllers, "describe",
    ]  # fmt: skip
    assert cluster.arguments("dump-log --files %data1/x")[1:] == ["--files", f"{cluster.data_directory(1)}/x"]
    assert cluster.arguments("consumer-groups --validate-regex 'a b'")[1:] == ["--validate-regex", "a b"]


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ("a   b\t c \n\n", ["a b c"]),
        ("at 127.0.0.1:40002 and 127.0.0.1:50003", ["at broker-2:PORT and controller-3:PORT"]),
        ("1790000000000 2026-11-27 02:47:44,066 2026-11-27T02:47:44.066Z", ["TIME DATE DATE"]),
        ("MkU3OEVBNTcwNTJENDM2Qk c0e9bd2e-0c2c-4a57-8f5b-3f1b2c3d4e5f", ["ID UUID"]),
        ("group.coordinator.new.enable", ["group.coordinator.new.enable"]),
        ("! java.lang.E: x\n! \tat a.B.<init>(B.java:1)\n! \t... 3 more\n", ["! java.lang.E: x"]),
        ('Voters: [{"id": 2}, {"id": 1}]', ['Voters: [{"id": 1}, {"id": 2}]']),
        ('{"time": 1790000000000, "a": 1}', ['{"a": 1, "time": TIME}']),
        ('! {"b": broken', ['! {"b": broken']),
        ("exit status 1", ["exit status 1"]),
    ],
)
def test_what_is_made_even(cluster: ToolCluster, printed: str, lines: list[str]) -> None:
    assert even(printed, CommandLine("topics --list"), cluster) == lines


def test_a_mask_hides_its_first_group_or_its_match_but_no_status(cluster: ToolCluster) -> None:
    command = CommandLine("topics --list", masks=(r"epoch: (\d+)", r"\d+ ms"), is_unordered=True, are_repeated=True)
    printed = "of epoch: 17, 20 ms\nof epoch: 18, 21 ms\nb 1\na 2\nexit status 20 ms\n"
    assert even(printed, command, cluster) == ["a 2", "b 1", "exit status 20 ms", "of epoch: #, #"]
    assert even(printed, CommandLine("topics --list", is_compared=False), cluster) == []


def test_a_line_that_depends_on_threads_is_dropped(cluster: ToolCluster) -> None:
    command = CommandLine("topics --list", drops=("was .*",))
    assert even("was here\nit was here\nexit status 0\n", command, cluster) == ["it was here", "exit status 0"]


def test_what_a_command_line_keeps_is_given_to_later_ones(cluster: ToolCluster) -> None:
    cluster.keep("id x9\n", CommandLine("topics --list", keeps=r"id (\S+)"))
    cluster.keep("id y9\n", CommandLine("topics --list"))
    assert cluster.arguments("topics --topic %kept")[1:3] == ["--topic", "x9"]


def test_the_directory_is_made_even(cluster: ToolCluster) -> None:
    assert even(f"in {cluster.data_directory(1)}", CommandLine("x"), cluster) == ["in DIRECTORY/data1"]


def entry(kafka: str, here: str, commands: str = "topics *") -> Documented:
    return Documented(commands=(commands,), kafka=(kafka,), here=(here,), reason="it is better")


@pytest.mark.parametrize(
    ("known", "counts"),
    [
        ([], (1, 0, 1)),
        ([entry("b", "c")], (1, 1, 0)),
        ([entry("b", "d")], (1, 0, 1)),
        ([entry("b|c", "b|c", "groups *")], (1, 0, 1)),
    ],
)
def test_a_command_line_is_documented_if_each_of_its_lines_is(
    known: list[Documented], counts: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally(known)
    command = CommandLine("topics --list")
    tally.compare(command, ["a", "b"], ["a", "c"])
    tally.compare(command, ["a"], ["a"])
    assert (tally.same, tally.known, tally.different) == counts
    assert [each.seen_in for each in tally.unseen()] == [set()] * len(tally.unseen())
    assert ("topics --list" in capsys.readouterr().out) == bool(tally.different)


def test_differing_lines_are_told_with_their_side() -> None:
    assert differing_lines(["--- a", "b"], ["--- a", "+++ c"]) == ["-b", "++++ c"]


def test_every_documented_difference_is_of_command_lines_and_says_why() -> None:
    for each in read():
        assert each.reason.strip()
        assert each.kafka or each.here
        for pattern in (*each.kafka, *each.here):
            re.compile(pattern)
        for commands in each.commands:
            assert any(fnmatchcase(command.line, commands) for command in ALL), commands
