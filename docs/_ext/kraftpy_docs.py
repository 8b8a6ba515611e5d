"""The Sphinx extension of this site: directives for pages generated from the code, and safe docstrings.

`settings KIND`, `differences`, `answers`, `rights` and `metrics` insert the output of `pages`; `include-root FILE`
shows a page from the project's root with its links made relative. `setting`, `topic-setting`, `group-setting` and
`console-setting` are
object types: each setting can be searched for and linked to.

Docstrings are prose with `code` in single backticks; `safe_lines` turns them into reStructuredText that means the
same and cannot go wrong.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pages
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]


class Generated(SphinxDirective):
    """Markdown that a function of `pages` makes, parsed in place."""

    optional_arguments = 1

    def text(self) -> str:
        """Return the Markdown."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown where the directive stands."""
        container = nodes.Element()
        lines = StringList(self.text().splitlines(), source=self.env.docname)
        self.state.nested_parse(lines, self.content_offset, container, match_titles=True)
        return container.children


class Settings(Generated):
    """The settings of one table."""

    required_arguments = 1

    def text(self) -> str:
        """Return the table's settings."""
        self.env.note_dependency(pages.__file__)
        return pages.settings_page(self.arguments[0])


class Differences(Generated):
    """The differences from Kafka."""

    def text(self) -> str:
        """Return the tables."""
        self.env.note_dependency(str(pages.DIFFERENCES))
        return pages.differences_page()


class Answers(Generated):
    """The answers that differ from Kafka's on purpose."""

    def text(self) -> str:
        """Return the table."""
        self.env.note_dependency(str(pages.ANSWERS))
        return pages.answers_page()


class Rights(Generated):
    """The rights that each API needs."""

    def text(self) -> str:
        """Return the table."""
        self.env.note_dependency(pages.__file__)
        return pages.rights_page()


def relink(text: str, folder: Path) -> str:
    """Make the links of a page in the project's root relative to `folder`; those to pages of the site stay pages."""
    included = {
        "ARCHITECTURE.md": "docs/explanation/architecture.md",
        "CHANGELOG.md": "docs/changelog.md",
        "CONTRIBUTING.md": "docs/contributing.md",
    }

    def relative(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        if not path or "://" in path:
            return match[0]
        target = ROOT / included.get(path, path)
        return f"]({os.path.relpath(target, folder)}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", relative, text)


def read_root_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Replace `{include-root} FILE` by that file; adapt links to what is no page of the site."""
    source = Path(app.env.doc2path(docname))
    match = re.fullmatch(r"```\{include-root\} (\S+)\n```\s*", content[0])
    if match:
        app.env.note_dependency(str(ROOT / match[1]), docname=docname)
        content[0] = relink((ROOT / match[1]).read_text(encoding="utf-8"), source.parent)
    content[0] = re.sub(r"\]\(([^)\s#]+)(#[^)\s]*)?\)", lambda found: _outside(found, source.parent), content[0])


def _outside(match: re.Match[str], folder: Path) -> str:
    """Point a link to a page of the root at its place in the site, and one to a folder at its index."""
    if "://" in match[1]:
        return match[0]
    target = (folder / match[1]).resolve()
    shown = {"ARCHITECTURE.md": "explanation/architecture.md", "CHANGELOG.md": "changelog.md"}
    if target.parent == ROOT and target.name in shown:
        return f"]({os.path.relpath(ROOT / 'docs' / shown[target.name], folder)}{match[2] or ''})"
    if target.is_dir() and (target / "index.md").exists():
        return f"]({os.path.relpath(target / 'index.md', folder)})"
    if target.suffix == ".md" and not target.is_relative_to(ROOT / "docs"):
        return f"](path:{match[1]})"  # a file to open, not a page
    return match[0]


# Docstrings ----------------------------------------------------------------------------------------------------


def safe_lines(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText: code literal, examples as blocks, nothing else with a meaning."""
    found: list[str] = []
    in_code = False
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        before = lines[number - 1] if number else ""
        if in_code and line.strip() and not indent:
            in_code = False
        starts = not in_code and indent >= 4 and not before.strip() and not _in_list(lines, number)
        if starts and line.strip():
            found += ["::", ""]
            in_code = True
        if in_code:
            found.append(line)
            continue
        is_item = bool(re.match(r"\s*[-*] ", line))
        if is_item and before.strip() and not re.match(r"\s*[-*] ", before) and not before.startswith(" "):
            found.append("")
        if not is_item and before.startswith((" ", "- ", "* ")) and line.strip() and not indent and not in_code:
            found.append("")
        found.append(safe(line))
    return found


def _in_list(lines: list[str], number: int) -> bool:
    for line in reversed(lines[:number]):
        if re.match(r"\s*[-*] ", line):
            return True
        if line.strip() and not line.startswith(" "):
            return False
    return False


def safe(line: str) -> str:
    """Escape what reStructuredText would take for markup, and make code literal."""
    indent = re.match(r"\s*(?:[-*] )?", line)
    start = indent[0] if indent else ""
    parts = re.split(r"(`+[^`]+`+)", line[len(start) :])
    told = []
    for part in parts:
        if re.fullmatch(r"`+[^`]+`+", part):
            told.append(f"\\ ``{part.strip('`')}``\\ ")
        else:
            told.append(re.sub(r"([*|\\`]|_(?=\W|$)|::(?=$))", r"\\\1", part))
    return start + "".join(told)


class Metrics(Generated):
    """Every metric of a node."""

    def text(self) -> str:
        """Return the tables."""
        self.env.note_dependency(pages.__file__)
        return pages.metrics_page()


def process_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make the docstring safe, in place."""
    lines[:] = safe_lines(lines)


def process_click(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Make the text of a command safe, in place."""
    lines[:] = [safe(line) if "`" in line and not line.startswith((" ", "..")) else line for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives and hooks."""
    for kind in ("setting", "topic-setting", "group-setting", "console-setting"):
        app.add_object_type(kind, kind, objname=kind.replace("-", " "), indextemplate=f"pair: %s; {kind}")
    app.add_directive("settings", Settings)
    app.add_directive("differences", Differences)
    app.add_directive("answers", Answers)
    app.add_directive("rights", Rights)
    app.add_directive("metrics", Metrics)
    app.connect("source-read", read_root_page)
    app.connect("autodoc-process-docstring", process_docstring)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
