"""Markdown generated from the code: the reference of settings, rights and metrics, and what differs from Kafka.

Pure functions of the tables in `kraftpy.config`, of the rights in `kraftpy.broker.authorization`, and of
docs/differences.toml and docs/answers.toml. `kraftpy_docs` inserts their output into the site; tests call them without
Sphinx.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kraftpy.broker.authorization.policy import RIGHTS, Refusal
from kraftpy.config.broker_settings import BROKER_TABLE
from kraftpy.config.console import CONSOLE_TABLE
from kraftpy.config.dynamic import DYNAMIC_SETTINGS
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND, GROUP_TABLE
from kraftpy.config.other_settings import OTHER_TABLE
from kraftpy.config.security_settings import SECURITY_TABLE
from kraftpy.config.settings import ConfigType, Setting, parse_table
from kraftpy.config.topic_settings import NO_EFFECT, SYNONYMS, TOPIC_TABLE
from kraftpy.metrics.catalogue import ALIASES, CATALOGUE

DIFFERENCES = Path(__file__).resolve().parents[1] / "differences.toml"
ANSWERS = DIFFERENCES.with_name("answers.toml")

TABLES = {
    "broker": BROKER_TABLE,
    "topic": TOPIC_TABLE,
    "group": GROUP_TABLE,
    "security": SECURITY_TABLE,
    "console": CONSOLE_TABLE,
    "unused": OTHER_TABLE,
}
DIRECTIVES = {
    "broker": "setting",
    "topic": "topic-setting",
    "group": "group-setting",
    "security": "setting",
    "console": "console-setting",
    "unused": "setting",
}


def chapters(table: str) -> Iterator[tuple[str, list[Setting]]]:
    """Split a table of settings at its comments: (heading, settings), with an empty heading before the first."""
    heading, lines = "", list[str]()
    for line in table.split("\n"):
        if line.startswith("# "):
            if found := parse_table("\n".join(lines)):
                yield heading, list(found.values())
            heading, lines = line[2:], []
        else:
            lines.append(line)
    if found := parse_table("\n".join(lines)):
        yield heading, list(found.values())


def is_ours(setting: Setting) -> bool:
    """Whether Kafka has no such setting."""
    return setting.name.startswith("kraftpy.")


def settings_page(kind: str) -> str:
    """Return the settings of a table (a key of `TABLES`) as Markdown with one `setting` directive each."""
    lines: list[str] = []
    for heading, settings in chapters(TABLES[kind]):
        if heading:
            lines += [f"## {heading}", ""]
        for setting in settings:
            lines += [f"````{{{DIRECTIVES[kind]}}} {setting.name}", *_body(kind, setting), "````", ""]
    return "\n".join(lines)


def metrics_page() -> str:
    """Return the catalogue of metrics as Markdown, a table for each of its sections."""
    lines: list[str] = []
    section = ""
    for name, meaning in CATALOGUE.items():
        if name in ALIASES.values():
            continue
        if meaning.section != section:
            section = meaning.section
            lines += ["", f"## {section}", "", "| metric | labels | meaning | when to worry |", "|---|---|---|---|"]
        labels = ", ".join(f"`{each}`{'?' if each in meaning.optional else ''}" for each in meaning.labels)
        shown = f"`{name}` ({meaning.kind.value})"
        if name in ALIASES:
            shown += f", also `{ALIASES[name]}`"
        lines.append(f"| {shown} | {labels} | {_safe(meaning.text)} | {_safe(meaning.worry)} |")
    return "\n".join(lines)


def _body(kind: str, setting: Setting) -> Iterator[str]:
    yield _safe(setting.meaning)
    yield ""
    yield f"- **Value:** {_safe(setting.wants())}" + (" (hidden)" if setting.type is ConfigType.PASSWORD else "")
    yield f"- **Default:** {_default_of(kind, setting)}"
    yield f"- **Whose:** {'kraftpy only' if is_ours(setting) else 'Kafka'}"
    if kind == "broker" and setting.name in DYNAMIC_SETTINGS:
        yield "- **Can be changed while the broker runs**"
    if kind == "topic" and setting.name in NO_EFFECT:
        yield "- **No effect in this broker**"
    behind = BROKER_SETTINGS_BEHIND.get(setting.name) if kind == "group" else None
    if behind is not None and (behind.least or behind.most):
        bounds = [f"at least {{setting}}`{behind.least}`"] * bool(behind.least)
        bounds += [f"at most {{setting}}`{behind.most}`"] * bool(behind.most)
        yield f"- **Bounds:** {', '.join(bounds)}"


def _default_of(kind: str, setting: Setting) -> str:
    sources: Iterable[str] = ()
    if kind == "topic":
        sources = SYNONYMS.get(setting.name, ())
    elif kind == "group" and setting.name in BROKER_SETTINGS_BEHIND:
        sources = (BROKER_SETTINGS_BEHIND[setting.name].default,)
    if sources:
        return (
            "the broker's " + " or ".join(f"{{setting}}`{name}`" for name in sources) + f" ({_shown(setting.default)})"
        )
    if is_ours(setting) or not setting.differs:
        return _shown(setting.default)
    theirs = "must be set" if setting.kafka_default is None else _shown(setting.kafka_default)
    return f"{_shown(setting.default)} (Kafka: {theirs})"


def _shown(value: str | None) -> str:
    return "none" if value is None else "empty" if value == "" else f"`{value}`"


def _safe(text: str) -> str:
    return re.sub(r"([*_<>\[\]{}])", r"\\\1", text)


def differences() -> list[dict[str, Any]]:
    """Return the entries of docs/differences.toml."""
    found: list[dict[str, Any]] = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))["difference"]
    return found


def numbers(ranges: Iterable[str | int]) -> list[int]:
    """Return every number of `["0-3", "8"]`, in order."""
    found: list[int] = []
    for text in ranges:
        first, _, last = str(text).partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def differences_page() -> str:
    """Return the differences as Markdown: a heading and a table for each area."""
    lines: list[str] = []
    area = ""
    for entry in differences():
        if entry["area"] != area:
            area = entry["area"]
            lines += ["", f"## {area}", "", "| Kafka 4.3 | kraftpy |", "|---|---|"]
        here = entry["here"]
        if entry.get("check") == "apis":
            here += f": {', '.join(str(text) for text in entry['apis'])}"
        lines.append(f"| {entry['kafka']} | {here} |")
    return "\n".join(lines).strip() + "\n"


def answers() -> list[dict[str, Any]]:
    """Return the entries of docs/answers.toml."""
    found: list[dict[str, Any]] = tomllib.loads(ANSWERS.read_text(encoding="utf-8"))["answer"]
    return found


def rights_page() -> str:
    """Return the rights that each API needs, as a table in Markdown."""
    lines = ["| API | operation | on | if it is refused |", "|---|---|---|---|"]
    for key, needs in sorted(RIGHTS.items()):
        name = "".join(word.capitalize() for word in key.name.split("_"))
        if not needs:
            lines.append(f"| {int(key)} {name} | | | open to every client |")
        for place, need in enumerate(needs):
            shown = f"{int(key)} {name}" if not place else ""
            when = f"; {_safe(need.when)}" if need.when else ""
            makes_up = f"instead of {needs[need.instead_of - 1].operation.name} on the " if need.instead_of else ""
            instead = f" ({makes_up}{needs[need.instead_of - 1].resource.name.lower()})" if need.instead_of else ""
            error = "" if need.refusal in (Refusal.LEFT_OUT, Refusal.HIDDEN) else f" ({int(need.error)})"
            kind = need.resource.name.lower().replace("_", " ")
            lines.append(f"| {shown} | {need.operation.name}{instead} | {kind}{when} | {need.refusal.value}{error} |")
    return "\n".join(lines) + "\n"


IN_WORDS = {
    "null": "null",
    "": "empty",
    "any": "anything",
    "absent": "not there",
    "present": "there",
    "text": "a message",
    "silent": "no answer",
    "answered": "an answer",
    "closed": "a closed connection",
}
"""Values in docs/answers.toml that stand for a kind of value."""


def answers_page() -> str:
    """Return the answers that differ from Kafka's on purpose, as a table in Markdown."""
    lines = ["| request | field | Kafka 4.3 | kraftpy | why |", "|---|---|---|---|---|"]
    for entry in answers():
        if entry.get("follows"):
            continue
        names = "every request" if entry["request"] == "*" else ", ".join(_listed(entry["request"]))
        versions = f" {entry['versions']}" if "versions" in entry else ""
        when = f" of {entry['when']}" if "when" in entry else ""
        fields = _listed(entry["field"])
        field = "the answer" if fields == ["outcome"] else ", ".join(f"`{name}`" for name in fields)
        kafka, here = (" or ".join(_in_words(value) for value in _listed(entry[side])) for side in ("kafka", "here"))
        lines.append(f"| {names}{versions} | {field}{when} | {kafka} | {here} | {entry['why']} |")
    return "\n".join(lines) + "\n"


def _in_words(value: str) -> str:
    return IN_WORDS.get(value, f"`{value}`")


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
