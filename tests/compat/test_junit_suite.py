"""How outcomes of Kafka's own tests are held against the table, and how test classes are found. No JVM is started."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from compat.junit_classes import cluster_tests, read_class
from compat.junit_runs import README, RUNS, Run, read_runs, table_of, with_table, write_runs
from compat.junit_suite import PACKAGES, select
from compat.junit_table import TABLE, Outcome, judge, read_outcomes, read_table

INSIDE = read_table('[inside]\nreason = "looks inside"\ntests = ["a.ATest#inside", "a.ATest#part[2]"]')


def test_a_test_that_fails_and_is_not_in_the_table_is_told() -> None:
    failed = Outcome(test="a.ATest#other", outcome="failed", cause="no")
    verdict = judge(
        [failed, Outcome(test="a.ATest#inside", outcome="aborted")], {"a.ATest#inside": INSIDE["a.ATest#inside"]}
    )
    assert verdict.failed == [failed]
    assert [outcome.test for outcome, _ in verdict.explained] == ["a.ATest#inside"]
    assert not verdict.is_good


def test_an_aborted_test_needs_a_reason_as_a_failed_one_does() -> None:
    assert not judge([Outcome(test="a.ATest#other", outcome="aborted")], {}).is_good


def test_an_entry_stands_for_all_runs_of_its_test_or_for_one() -> None:
    runs = [
        Outcome(test="a.ATest#inside[1]", outcome="failed"),
        Outcome(test="a.ATest#inside[2]", outcome="failed"),
        Outcome(test="a.ATest#part[1]", outcome="passed"),
        Outcome(test="a.ATest#part[2]", outcome="failed"),
    ]
    verdict = judge(runs, INSIDE)
    assert verdict.is_good
    assert len(verdict.explained) == 3
    assert len(verdict.passed) == 1


def test_an_entry_whose_test_passes_is_stale_even_if_only_one_run_does() -> None:
    runs = [Outcome(test=f"a.ATest#inside[{number}]", outcome=end) for number, end in ((1, "failed"), (2, "passed"))]
    verdict = judge([*runs, Outcome(test="a.ATest#part[2]", outcome="failed")], INSIDE)
    assert verdict.stale == ["a.ATest#inside: passed, and is still in the table (looks inside)"]
    assert not verdict.is_good


def test_an_entry_that_may_pass_is_not_stale() -> None:
    table = read_table('[flaky]\nreason = "Kafka fails too"\nmay_pass = true\ntests = ["a.ATest#now"]')
    assert judge([Outcome(test="a.ATest#now", outcome="passed")], table).is_good
    assert judge([Outcome(test="a.ATest#now", outcome="failed")], table).is_good


def test_an_entry_without_a_test_is_told_only_if_its_class_was_run() -> None:
    assert judge([Outcome(test="b.BTest#any", outcome="passed")], INSIDE).is_good
    verdict = judge([Outcome(test="a.ATest#part[1]", outcome="passed")], INSIDE)
    assert verdict.stale == [
        "a.ATest#inside: is in the table, and there is no such test",
        "a.ATest#part[2]: is in the table, and there is no such test",
    ]


def test_a_class_that_failed_as_a_whole_is_one_failure() -> None:
    whole = Outcome(test="a.ATest#", outcome="failed", cause="before all")
    verdict = judge([whole], INSIDE)
    assert verdict.failed == [whole]
    assert verdict.stale == []


FINE = '{"test": "a.ATest#fine", "outcome": "passed", "cause": "", "is_flaky_in_kafka": false, "seconds": 1}\n'


def test_a_class_whose_jvm_ends_in_its_middle_has_failed() -> None:
    """Whatever its status is: a test that calls `System.exit(1)` ends it with the status of any failed test."""
    begun = '{"begun": "a.ATest#fine"}\n' + FINE + '{"begun": "a.ATest#fatal"}\n'
    for text in (begun, begun + '{"begun": "a.ATe'):
        passed, whole = read_outcomes("a.ATest", text)
        assert passed.test == "a.ATest#fine"
        assert (whole.test, whole.outcome) == ("a.ATest#", "failed")
        assert whole.cause == "the JVM ended before the class was done, in a.ATest#fatal"
    assert [each.test for each in read_outcomes("a.ATest", "")] == ["a.ATest#"]
    assert [each.test for each in read_outcomes("a.ATest", f'{FINE}{{"is_done": true}}\n')] == ["a.ATest#fine"]
    (killed,) = read_outcomes("a.ATest", '{"is_done": true}\n', "the JVM ended with status 137")
    assert killed.cause == "the JVM ended with status 137"


def test_the_last_run_of_each_class_is_counted() -> None:
    outcomes = [
        Outcome(test="a.ATest#fine", outcome="passed"),
        Outcome(test="a.ATest#other", outcome="failed"),
        Outcome(test="a.ATest#inside", outcome="failed"),
        Outcome(test="a.ATest#never", outcome="disabled"),
    ]
    run = Run.of(outcomes, INSIDE, "2026-11-29")
    assert run == Run(day="2026-11-29", passed=1, failed=1, explained=1, disabled=1)
    runs = {"a.ATest": run, "a.b.BTest": None, "c.CTest": run}
    assert read_runs(write_runs(runs)) == runs
    rows = table_of(runs, ["a"]).splitlines()[2:]
    assert rows == ["| `a` | 2 | 1 | 1 | 1 | 1 | 1 |", "| all | 3 | 1 | 2 | 2 | 2 | 2 |"]


def test_the_readme_shows_the_runs_that_are_kept() -> None:
    readme = README.read_text()
    assert readme == with_table(readme, table_of(read_runs(RUNS.read_text()), PACKAGES))


def test_what_a_run_leaves_out_counts_neither_way() -> None:
    left_out = Outcome(test="a.ATest#inside[1]", outcome="aborted", cause="kraftpy.compat.NotAsked: not asked: twin")
    verdict = judge([left_out, Outcome(test="a.ATest#part[2]", outcome="failed")], INSIDE)
    assert verdict.is_good
    assert [outcome.test for outcome, _ in verdict.explained] == ["a.ATest#part[2]"]


def test_a_traceback_in_a_node_s_log_is_a_failure_though_the_test_passed() -> None:
    passed = Outcome(test="a.ATest#fine", outcome="passed", notes=("node-0.log: Traceback (most recent call last):",))
    verdict = judge([passed], {})
    assert verdict.crashed == [passed]
    assert not verdict.is_good


def test_the_table_names_no_test_twice_and_every_reason() -> None:
    with pytest.raises(ValueError, match="twice"):
        read_table('[a]\nreason = "a"\ntests = ["X#y"]\n[b]\nreason = "b"\ntests = ["X#y"]')
    for entry in read_table(TABLE.read_text()).values():
        assert "#" in entry.test
        assert entry.reason


def _class_file(name: str, extends: str, *texts: str, flags: int = 0x0021) -> bytes:
    pool: list[bytes] = []

    def text(content: str) -> int:
        encoded = content.encode()
        pool.append(b"\x01" + struct.pack(">H", len(encoded)) + encoded)
        return len(pool)

    def named(content: str) -> int:
        pool.append(b"\x07" + struct.pack(">H", text(content)))
        return len(pool)

    pool.append(b"\x05" + bytes(8))  # a long, which takes two places
    pool.append(b"")
    this, extended = named(name), named(extends)
    for each in texts:
        text(each)
    head = b"\xca\xfe\xba\xbe" + struct.pack(">HHH", 0, 61, len(pool) + 1)
    return head + b"".join(pool) + struct.pack(">HHH", flags, this, extended)


MARK = "Lorg/apache/kafka/common/test/api/ClusterTest;"


def test_the_head_of_a_class_file_is_read() -> None:
    found = read_class(_class_file("a/ATest", "a/Base", MARK, flags=0x0421))
    assert (found.name, found.extends, found.is_abstract) == ("a/ATest", "a/Base", True)
    assert MARK in found.names


def test_classes_that_start_a_cluster_are_found_by_their_own_marks_and_by_inherited_ones(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "kafka-test.jar", "w") as jar:
        jar.writestr("a/Base.class", _class_file("a/Base", "java/lang/Object", MARK, flags=0x0421))
        jar.writestr("a/HeirTest.class", _class_file("a/HeirTest", "a/Base"))
        jar.writestr("a/OwnTest.class", _class_file("a/OwnTest", "java/lang/Object", MARK))
        jar.writestr("a/UnitTest.class", _class_file("a/UnitTest", "java/lang/Object"))
        jar.writestr("a/OwnTest$Inner.class", _class_file("a/OwnTest$Inner", "java/lang/Object", MARK))
        jar.writestr("a/notes.txt", "no class")
    assert cluster_tests(tmp_path) == ["a.HeirTest", "a.OwnTest"]


def test_classes_are_chosen_by_name_or_package() -> None:
    known = ["a.b.OneTest", "a.bc.TwoTest", "org.apache.kafka.tools.ThreeTest"]
    assert select(known, ["OneTest"], []) == ["a.b.OneTest"]
    assert select(known, [], ["a.b"]) == ["a.b.OneTest"]
    assert select(known, ["a.bc.TwoTest"], ["org.apache.kafka.tools"]) == known[1:]
    assert select(known, [], []) == known[2:]
    with pytest.raises(SystemExit, match="NoTest"):
        select(known, ["NoTest"], [])
