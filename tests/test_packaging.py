"""The wheel: built, installed in an environment of its own, and used from outside the source tree."""

from __future__ import annotations

import ast
import email.message
import email.parser
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kraftpy

ROOT = Path(__file__).resolve().parents[1]

ROUND_TRIP = """
from kraftpy.client import BlockingConsumer, BlockingProducer
import kraftpy, sys

with BlockingProducer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("wheel", b"round", key=b"k", headers=[("h", b"1")])
with BlockingConsumer("wheel", bootstrap_servers=sys.argv[1], auto_offset_reset="earliest") as consumer:
    record = next(iter(consumer))
print(record.value.decode(), kraftpy.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree. hatchling is in the dev extra, so nothing is downloaded."""
    target = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", target, ROOT)
    (built,) = target.glob("kraftpy-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel in it.

    The dependencies are those of the environment the tests run in, by a path in a .pth file: their own .pth files are
    not read, so the source tree, which is installed there as editable, cannot be seen.
    """
    home = tmp_path_factory.mktemp("installed")
    venv.EnvBuilder(with_pip=False).create(home)
    binaries = home / "bin"
    _run(sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet", "--no-deps", wheel)
    packages = Path(_run(binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(dependencies)))
    return binaries


def _run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_holds_what_it_should(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = f"kraftpy-{kraftpy.__version__}.dist-info"
    for name in ("kraftpy/py.typed", "pyspark_kraftpy/__init__.py", "kraftpy/__main__.py", f"{info}/licenses/LICENSE"):
        assert name in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "kraftpy").rglob("*.py")}
    assert sources <= set(names)
    assert [name for name in names if name.endswith(".so")] == [], "this is the pure wheel"
    assert {name.partition("/")[0] for name in names} == {"kraftpy", "pyspark_kraftpy", info}


def test_its_metadata_is_the_project_s(wheel: Path) -> None:
    metadata = _metadata(wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert (ROOT / "README.md").read_text().strip() in str(metadata.get_payload())


def test_what_the_package_imports_is_what_the_wheel_requires(wheel: Path) -> None:
    """Else it works only where something else happens to have installed it."""
    extras = (
        "",
        "security",
        "metrics",
        "tracing",
        "kerberos",
        "spark",
        "avro",
        "load",
        "delta",
        "iceberg",
        "pipelines",
        "demo",
    )
    required: dict[str, set[str]] = {extra: set() for extra in extras}
    for line in _metadata(wheel).get_all("Requires-Dist", []):
        match = re.match(r"([\w.-]+)", line)
        assert match
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        required.setdefault(extra[1] if extra else "", set()).add(match[1].lower().replace("-", "_"))
    base = required[""]
    spark, load = base | required["spark"], base | required["load"]
    allowed = {
        "kraftpy/audit/counting.py": load,
        "kraftpy/broker/metrics/": base | required["metrics"],
        "kraftpy/metrics/registry.py": base | required["metrics"],  # for a type checker
        "kraftpy/certificates.py": base | required["security"],
        "kraftpy/cli/load_metrics.py": load | required["metrics"],
        "kraftpy/client/exposition.py": base | required["metrics"],
        "kraftpy/client/tracing.py": base | required["tracing"],
        "kraftpy/console/decoding.py": base | required["avro"],
        "kraftpy/console/": base | required["console"],
        "kraftpy/client/assertions.py": base | required["security"],
        "kraftpy/audit/plot.py": base | required["demo"],
        "kraftpy/kerberos.py": base | required["kerberos"],
        "kraftpy/demo/": spark | required["pipelines"] | required["demo"],
        "kraftpy/pipeline/": spark | required["pipelines"],
        "kraftpy/security/json_web_tokens.py": base | required["security"],
        "kraftpy/spark/values.py": spark | required["avro"],
        "kraftpy/spark/load_delta.py": load | required["delta"],
        "kraftpy/spark/load_iceberg.py": load | required["iceberg"],
        "kraftpy/spark/load": load,
        "kraftpy/cli/load.py": load | required["iceberg"],
        "kraftpy/spark/": spark,
        "kraftpy/telemetry/store.py": base | required["metrics"],
        "kraftpy/broker/telemetry.py": base | required["metrics"],
        "kraftpy/testing/pytest_plugin.py": base | {"pytest"},  # which is who loads it
        "kraftpy/client/ranges/columns.py": spark,
        "pyspark_kraftpy/": spark,
    }
    for path, module in _third_party_imports():
        names = next((names for start, names in allowed.items() if path.startswith(start)), base)
        known_as = {"re2": "google_re2", "jwt": "pyjwt", "opentelemetry": "opentelemetry_api"}
        assert known_as.get(module, module) in names, f"{path} imports {module}, which the wheel does not ask for"


def _metadata(wheel: Path) -> email.message.Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.parser.Parser().parsestr(archive.read(name).decode())


def _third_party_imports() -> Iterator[tuple[str, str]]:
    ours = {"kraftpy", "pyspark_kraftpy", *sys.stdlib_module_names}
    for package in ("kraftpy", "pyspark_kraftpy"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                modules: list[str] = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                for module in modules:
                    top = module.partition(".")[0]
                    if top not in ours:
                        yield str(path.relative_to(ROOT)), top


def test_the_installed_command_says_its_version(installed: Path, tmp_path: Path) -> None:
    assert _run(installed / "kraftpy", "--version", cwd=tmp_path).split()[-1] == kraftpy.__version__


def test_the_installed_server_serves_the_installed_client(installed: Path, tmp_path: Path) -> None:
    command = [installed / "kraftpy", "server", "--override", "listeners=PLAINTEXT://127.0.0.1:0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "PYTHON"))}
    with (tmp_path / "errors").open("w") as errors:
        server = subprocess.Popen(
            [str(part) for part in command],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    with server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            address = re.search(r"PLAINTEXT://(\S+?),", ready)
            assert address, ready + (tmp_path / "errors").read_text()
            printed = _run(installed / "python", "-c", ROUND_TRIP, address[1], cwd=tmp_path).split()
        finally:
            server.terminate()
        assert server.wait(30) == 0
    assert printed[0] == "round"
    assert not Path(printed[1]).is_relative_to(ROOT / "kraftpy"), "the source tree was used, not the wheel"
    assert (tmp_path / "kraftpy-data" / "wheel-0").is_dir(), "the data is where the README says"


def test_what_spark_finds_imports_little(installed: Path, tmp_path: Path) -> None:
    """Spark imports every `pyspark_*` module in a worker at first use."""
    script = "import pyspark_kraftpy, sys; print({'numpy', 'pyarrow', 'kraftpy.client'} & set(sys.modules))"
    assert _run(installed / "python", "-c", script, cwd=tmp_path).strip() == "set()"
