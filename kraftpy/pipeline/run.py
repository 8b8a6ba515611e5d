"""Run a project with Spark's own `spark-pipelines`: with a Java, this Python and the project's settings.

The program is a process of its own in the project's directory. Its output goes straight to the caller's, or to a file;
an interrupt ends it; its exit status is returned. Java's temporary files are deleted after the run, because Spark's
catalog never deletes its own.

Left out: remote Spark Connect servers; Spark's own `spark-pipelines run --remote` works with these projects, too.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from kraftpy.pipeline.project import CONF, ProjectError, check
from kraftpy.pipeline.steps import COMMAND_CONFIG
from kraftpy.spark.java import find_java

_NEEDED = ("pyspark", "pandas", "grpc", "yaml")
_PATIENCE_SECONDS = 30
_PORT = 15002
"""Spark's program talks to a server of Spark Connect that it starts on this port, and can be given no other."""


def run(
    place: Path,
    *,
    dry: bool = False,
    master: str | None = None,
    arguments: Sequence[str] = (),
    output: IO[bytes] | None = None,
    command_config: Path | None = None,
) -> int:
    """Run the project at `place`, or only check it. Returns the exit status. Raises ProjectError, NoJavaError.

    `master` is the Spark master to run on, by default this machine. Spark's program knows it as a remote, and starts a
    server of Spark Connect with it, provided that SPARK_API_MODE says so (pyspark.sql.session).

    `command_config` is a properties file with client settings, used instead of the one that the project names.
    `output` is a file for Spark's standard output and error.
    """
    check(place)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ProjectError(f"{', '.join(missing)} missing: pip install 'kraftpy[pipelines]'")
    _check_port()
    with tempfile.TemporaryDirectory(prefix="kraftpy-pipeline-", ignore_cleanup_errors=True) as scratch:
        command = [str(spark_home() / "bin" / "spark-pipelines"), "dry-run" if dry else "run", *arguments]
        environment = _environment(place, Path(scratch), command_config)
        if master is not None:
            command += ["--remote", master]
            environment["SPARK_API_MODE"] = "connect"
        (place / "storage").mkdir(exist_ok=True)
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _check_port() -> None:
    """Raise ProjectError if Spark could not start its server."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", _PORT), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise ProjectError(
            f"cannot listen on port {_PORT}: {os.strerror(error.errno or 0)}. Spark's pipelines use this port and no "
            "other: does another pipeline run, or a server of Spark Connect?"
        ) from error


def spark_home() -> Path:
    """Return the installed pyspark's directory without importing it. Raises ProjectError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ProjectError("pyspark missing: pip install 'kraftpy[pipelines]'")
    return Path(spec.origin).parent


def _environment(place: Path, scratch: Path, command_config: Path | None) -> dict[str, str]:
    java = find_java(os.environ, scratch)
    ours = {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str((place / CONF).resolve()),
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {shlex.quote(f'-Djava.io.tmpdir={scratch}')}",
    }
    if command_config is not None:
        ours[COMMAND_CONFIG] = str(command_config.resolve())
    return {"SPARK_LOCAL_IP": "127.0.0.1", **os.environ, **ours}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Spark and the Python process that talks to it; both are in the session we created."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        break
