"""What the README shows is what happens: its Python runs, its commands print what it says, its tables are the code's.

Blocks of `console` are run in order against one broker, each block of `python` against one of its own; the one for
Spark is in tests/spark/test_spark_readme.py, where a session is.
`python tests/test_readme.py` writes the outputs in the README anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftpy import __version__
from kraftpy.cli import COMMANDS
from kraftpy.config.describe import render_differing_defaults
from kraftpy.spark.client_options import CLIENT_USED
from kraftpy.spark.options import BATCH_ONLY, READ, STREAM_ONLY
from kraftpy.testing.cluster import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
ADDRESS = "127.0.0.1:9092"

BLOCK = re.compile(r"(?P<before><!-- spark -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULTS = re.compile(r"(<!-- differing defaults:.*?-->\n).*?(<!-- end of differing defaults -->)", re.DOTALL)


def blocks(kind: str, *, spark: bool = False) -> list[str]:
    found = BLOCK.finditer(README.read_text(encoding="utf-8"))
    return [match["text"] for match in found if match["kind"] == kind and bool(match["before"]) == spark]


def stable(output: str) -> list[str]:
    """The output's lines without what differs from run to run: times, CRCs (they cover times), order of partitions."""
    return sorted(re.sub(r"\b1[5-9]\d{11}\b", "TIME", re.sub(r'"crc":\d+', '"crc":CRC', output)).splitlines())


class World:
    """A broker and a directory in which the README's reader stands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = EmbeddedBroker(directory / "broker", settings={"log.dirs": str(directory / "kraftpy-data")})

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
        kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        kept["KRAFTPY_BOOTSTRAP_SERVERS"] = self.broker.bootstrap
        return kept

    def shell(self, command: str) -> str:
        """What a command prints, both streams together."""
        done = subprocess.run(
            ["sh", "-c", command.replace(ADDRESS, self.broker.bootstrap)],
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout

    def python(self, source: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a block as a program of its own."""
        program = directory / "program.py"
        program.write_text(source.replace(ADDRESS, self.broker.bootstrap), encoding="utf-8")
        return subprocess.run(
            [sys.executable, program],
            cwd=directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )


def rerun(world: World, block: str) -> str:
    """A console block with its outputs as they are now."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            lines.append(line)
            lines += world.shell(line[2:]).splitlines()
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.broker:
        yield world


def test_the_commands_print_what_the_readme_says(world: World) -> None:
    for block in blocks("console"):
        assert stable(rerun(world, block)) == stable(block)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_its_python_runs(world: World, number: int, tmp_path: Path) -> None:
    done = world.python(blocks("python")[number], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_the_table_of_differing_defaults_is_the_code_s() -> None:
    text = README.read_text(encoding="utf-8")
    match = DEFAULTS.search(text)
    assert match
    assert match[0] == f"{match[1]}{render_differing_defaults()}\n{match[2]}"


def test_every_command_of_make_and_of_the_program_is_mentioned() -> None:
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in sorted({*targets, "bench"} - {"help", "format", "clean"}):
        assert f"`make {target}`" in text
    for command in COMMANDS:
        assert f"kraftpy {command}" in text or f"make {command}" in text


def test_every_option_of_the_spark_reader_is_in_its_table() -> None:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    for option in [*READ, *BATCH_ONLY, *STREAM_ONLY, *(f"kafka.{name}" for name in CLIENT_USED)]:
        assert f"`{option}`" in text, option


def test_the_ready_line_is_the_server_s(world: World) -> None:
    (shown,) = [block for block in blocks("text") if " ready: " in block]
    form = re.compile(r"kraftpy (\S+) ready: node 1, PLAINTEXT://127\.0\.0\.1:\d+, \d+\.\d\d s\n")
    match = form.fullmatch(shown)
    assert match
    assert match[1] == __version__
    assert form.fullmatch(world.broker.ready_line.rstrip("\n") + "\n")


def test_the_number_of_tests_that_do_not_pass_is_that_of_the_list() -> None:
    exceptions = (ROOT / "tests/compat/kafka_python_exceptions.toml").read_text(encoding="utf-8")
    count = len(tomllib.loads(exceptions)["does_not_pass"])
    passing, total = re.findall(r"<!-- compat -->\D*(\d+) of (\d+)\D*<!-- end of compat -->", README.read_text())[0]
    assert int(total) - int(passing) == count


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_within_the_project_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (ROOT / target).exists(), f"{document}: {target}"


def test_symbols_the_guide_names_are_in_the_modules_it_links_to() -> None:
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for label, target in re.findall(r"\[`([\w.]+)`\]\(([\w/]+\.py)\)", text):
            source = (ROOT / target).read_text(encoding="utf-8")
            for name in label.split("."):
                defined = re.search(rf"^ *(class|def|async def) {name}\b|^ *{name}\b.* = ", source, re.MULTILINE)
                assert defined or name == Path(target).stem, f"{document}: {label} is not in {target}"


def write_anew() -> None:
    """Run the console blocks and put what they print into the README, and the table of defaults."""
    import tempfile

    text = README.read_text(encoding="utf-8")
    text = DEFAULTS.sub(lambda match: f"{match[1]}{render_differing_defaults()}\n{match[2]}", text)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        with world.broker:

            def replace(match: re.Match[str]) -> str:
                if match["kind"] != "console":
                    return match[0]
                return f"```console\n{rerun(world, match['text'])}```"

            text = BLOCK.sub(replace, text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_anew()
