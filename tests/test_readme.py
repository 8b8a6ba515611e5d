"""README and docs/ show what happens: their Python runs, their commands print what they say, their tables are true.

A page's blocks of `console` are run in order against one broker, each block of `python` against one of its own; the
README's block for Spark is in tests/spark/test_spark_readme.py, where a session is. ARCHITECTURE.md names symbols that
exist. `python tests/test_readme.py` rewrites the outputs in all pages.
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
CONFIGURE = ROOT / "docs" / "how-to" / "configure.md"
WITH_COMMANDS = [
    "README.md",
    "docs/how-to/command-line.md",
    "docs/how-to/configure.md",
    "docs/tutorials/first-steps.md",
]
WITH_PYTHON = [
    "README.md",
    "docs/how-to/python-client.md",
    "docs/how-to/tracing.md",
    "docs/tutorials/first-steps.md",
    "docs/tutorials/first-failover.md",
]
ADDRESS = "127.0.0.1:9092"

BLOCK = re.compile(r"(?P<before><!-- spark -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULTS = re.compile(r"(<!-- differing defaults:.*?-->\n).*?(<!-- end of differing defaults -->)", re.DOTALL)


def blocks(kind: str, page: str = "README.md", *, spark: bool = False) -> list[str]:
    found = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
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
        """Run a command; return its output, both streams together."""
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


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_print_what_the_page_says(world: World, page: str) -> None:
    assert blocks("console", page)
    for block in blocks("console", page):
        assert stable(rerun(world, block)) == stable(block)


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page in WITH_PYTHON for number in range(len(blocks("python", page)))]
)
def test_a_page_s_python_runs(world: World, page: str, number: int, tmp_path: Path) -> None:
    done = world.python(blocks("python", page)[number], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_the_table_of_differing_defaults_is_the_code_s() -> None:
    text = CONFIGURE.read_text(encoding="utf-8")
    match = DEFAULTS.search(text)
    assert match
    assert match[0] == f"{match[1]}{render_differing_defaults()}\n{match[2]}"


def test_every_command_of_make_and_of_the_program_is_mentioned() -> None:
    text = (ROOT / "docs" / "reference" / "make.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in sorted({*targets, "bench"} - {"help", "format", "clean"}):
        assert f"`make {target}`" in text
    text = (ROOT / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"kraftpy {command}" in text


def test_every_option_of_the_spark_reader_is_in_its_table() -> None:
    text = (ROOT / "docs" / "how-to" / "spark.md").read_text(encoding="utf-8")
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
    page = (ROOT / "docs" / "reference" / "differences.md").read_text(encoding="utf-8")
    passing, total = re.findall(r"<!-- compat -->\D*(\d+) of (\d+)\D*<!-- end of compat -->", page)[0]
    assert int(total) - int(passing) == count


DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
DOCUMENTS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_within_the_project_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document}: {target}"


def test_symbols_the_guides_name_are_in_the_modules_they_link_to() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for label, target in re.findall(r"\[`([\w.]+)`\]\(([\w/.-]+\.py)\)", text):
            source = ((ROOT / document).parent / target).read_text(encoding="utf-8")
            for name in label.split("."):
                defined = re.search(rf"^ *(class|def|async def) {name}\b|^ *{name}\b.* = ", source, re.MULTILINE)
                assert defined or name == Path(target).stem, f"{document}: {label} is not in {target}"


def test_the_architecture_says_where_each_thing_is() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text[text.index("## Where is ...?") : text.index("## State and tests")]
    rows = re.findall(r"^\| [^*|]+ \| (\[`[\w.]+`\]\([\w/]+\.py\)(?:, )?)+ \|$", table, re.MULTILINE)
    assert len(rows) >= 40
    for question in ("JoinGroup timeout", "`min.insync.replicas`", "who elects", "where Spark plans"):
        assert question in table
    assert "(docs/rules.md)" in text
    assert len(text.encode()) <= 15_000
    assert len(README.read_bytes()) <= 12_000


def write_anew() -> None:
    """Run the console blocks, put what they print into their pages, and bring the table of defaults up to date."""
    import tempfile

    text = CONFIGURE.read_text(encoding="utf-8")
    text = DEFAULTS.sub(lambda match: f"{match[1]}{render_differing_defaults()}\n{match[2]}", text)
    CONFIGURE.write_text(text, encoding="utf-8")
    for page in WITH_COMMANDS:
        with tempfile.TemporaryDirectory() as directory:
            world = World(Path(directory))
            with world.broker:

                def replace(match: re.Match[str], world: World = world) -> str:
                    if match["kind"] != "console":
                        return match[0]
                    return f"```console\n{rerun(world, match['text'])}```"

                text = BLOCK.sub(replace, (ROOT / page).read_text(encoding="utf-8"))
        (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_anew()
