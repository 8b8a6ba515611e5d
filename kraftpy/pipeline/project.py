"""A project for Spark Declarative Pipelines in a directory: create it from the template, and find it again.

A project stores its own location, because Spark needs an absolute address for its storage. A project that was moved is
refused, with what to change, rather than started over in the new place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from kraftpy.config import ConfigError
from kraftpy.config.texts import text_of

SPEC = "spark-pipeline.yml"
CONF = "conf"
_TRANSFORMATIONS = Path("transformations")
_EXAMPLE = frozenset({Path("README.md"), Path("sample.jsonl")})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_STORAGE = re.compile(r"^storage:\s*(\S+)\s*$", re.MULTILINE)
_VALUE = re.compile(r"@([a-z_]+)@")


class ProjectError(ValueError):
    """The project is missing, exists already or cannot be used; the message is one readable line."""


def create(
    name: str,
    parent: Path,
    *,
    bootstrap_servers: str,
    source_topic: str,
    target_topic: str,
    command_config: Path | None = None,
    transformations: Traversable | None = None,
) -> list[Path]:
    """Write the project `name` below `parent`. Return its files, sorted. Raises ProjectError, OSError.

    `command_config` is a properties file with client settings, such as those for TLS and SASL.

    The files in the folder `transformations` replace the example's, and may use the same @values@; the example's README
    and sample are then left out.
    """
    if _NAME.fullmatch(name) is None:
        raise ProjectError(f"{name!r} is not a project name: use letters, digits, - and _, and begin with a letter")
    place = (parent / name).resolve()
    if place.exists():
        raise ProjectError(f"{place} already exists")
    values = {
        "name": name,
        "bootstrap_servers": bootstrap_servers,
        "source_topic": source_topic,
        "target_topic": target_topic,
        "command_config": "" if command_config is None else str(command_config.resolve()),
        "storage": _storage(place),
        "tables": (place / "tables").as_uri(),
        "catalog": str(place / "catalog"),
        "catalog_log": str(place / "catalog.log"),
    }
    if any(" " in value for value in values.values()):
        raise ProjectError(f"{place}: Spark's settings allow no spaces in paths and topic names")
    sources = dict(_template(files("kraftpy.pipeline") / "template", Path()))
    if transformations is not None:
        sources = {relative: source for relative, source in sources.items() if relative not in _EXAMPLE}
        sources = {relative: source for relative, source in sources.items() if _TRANSFORMATIONS not in relative.parents}
        sources |= _template(transformations, _TRANSFORMATIONS)
    written = []
    for relative, source in sorted(sources.items()):
        text = source.read_text(encoding="utf-8")
        target = place / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_VALUE.sub(lambda found: values[found.group(1)], text), encoding="utf-8")
        written.append(target)
    return written


def check(place: Path) -> None:
    """Check that a directory is a project and was not moved. Raises ProjectError, OSError."""
    spec = place / SPEC
    if not spec.is_file():
        raise ProjectError(f"{place} is not a pipeline: it has no {SPEC} (kraftpy pipeline init NAME creates one)")
    try:
        found = _STORAGE.search(text_of(spec.read_bytes(), str(spec)))
    except ConfigError as error:
        raise ProjectError(str(error)) from None
    wanted = _storage(place.resolve())
    if found is not None and found.group(1) != wanted and not Path(found.group(1).removeprefix("file://")).exists():
        raise ProjectError(
            f"{spec} keeps its progress in {found.group(1)}, which does not exist: was the project moved? Its path is"
            f" also in {CONF}/spark-defaults.conf; here it would be {wanted}"
        )


def _storage(place: Path) -> str:
    return (place / "storage").as_uri()


def _template(folder: Traversable, relative: Path) -> Iterator[tuple[Path, Traversable]]:
    """Yield the template's files with their paths in a project."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _template(each, relative / each.name)
        elif each.is_file() and "__pycache__" not in relative.parts:
            yield relative / each.name, each
