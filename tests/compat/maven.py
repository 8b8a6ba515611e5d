"""Java in the tests of compatibility: jars from Maven, sources compiled against them, commands that run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


class JavaProject:
    """The jars that a pom names, and classes compiled against them, in a directory.

    Maven is asked for the jars again only if the pom has changed since.
    """

    def __init__(self, directory: Path, pom: Path) -> None:
        self._directory = directory
        self.jars = directory / "lib"
        self._classes = [str(directory)]
        made_of = directory / "made-of.xml"
        if made_of.exists() and made_of.read_bytes() == pom.read_bytes():
            return
        shutil.rmtree(self.jars, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(pom, directory / "pom.xml")
        maven = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", f"-DoutputDirectory={self.jars}"]
        subprocess.run(maven, cwd=directory, check=True)
        shutil.copy(pom, made_of)

    def compile(self, sources: Sequence[Path], name: str = "") -> Path:
        """Compile the sources into the directory, or into the one with this name below it; return the path."""
        into = self._directory / name
        into.mkdir(exist_ok=True)
        if name:
            self._classes.append(str(into))
        compiler = ["javac", "-proc:none", "-cp", self.path(), "-d", str(into), *map(str, sources)]
        subprocess.run(compiler, check=True)
        return into

    def path(self, *first: Path) -> str:
        """Return the class path: these directories first, or all that has been compiled; then the jars."""
        classes = [str(each) for each in first] or self._classes
        return os.pathsep.join([*classes, f"{self.jars}{os.sep}*"])
