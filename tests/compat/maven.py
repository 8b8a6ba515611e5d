"""Java's side of the suites: libraries that Maven fetches, and classes compiled against them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def class_path(pom: Path, directory: Path) -> str:
    """Copy what `pom` depends on into `lib` of `directory`; return a class path of both."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(pom, directory / "pom.xml")
    maven = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    subprocess.run(maven, cwd=directory, check=True)
    return f"{directory}{os.pathsep}{directory / 'lib'}{os.sep}*"


def compile_class(source: Path, path: str, directory: Path) -> None:
    """Compile a class against `path`, into `directory`."""
    subprocess.run(["javac", "-proc:none", "-cp", path, "-d", str(directory), str(source)], check=True)
