"""Where the broker's settings come from: defaults < properties file < environment < `--override`.

The caller reads the file and the environment; this module is handed their contents. A name nobody knows is an error
that names the nearest known one, but only a warning from the environment, where container images set variables of their
own. A setting that Kafka has and this broker does not act on is one warning.

A value may name where it is kept (`variables`). A password may not stand on the command line, where every user of the
machine reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Given, Origin
from kraftpy.config.settings import ConfigError, ConfigType, nearest
from kraftpy.config.variables import fill_in

PREFIX = "KAFKA_"
_IMAGE_VARIABLES = """
KAFKA_CFG_FILE KAFKA_CLASSPATH KAFKA_CLUSTER_ID KAFKA_CONFIG KAFKA_CONF_DIR KAFKA_DATA_DIR KAFKA_DEBUG
KAFKA_GC_LOG_OPTS KAFKA_GROUP KAFKA_HEAP_OPTS KAFKA_HOME KAFKA_JMX_HOSTNAME KAFKA_JMX_OPTS KAFKA_JMX_PORT
KAFKA_JVM_PERFORMANCE_OPTS KAFKA_KRAFT_CLUSTER_ID KAFKA_LOG4J_CMD_OPTS KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_OPTS
KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_MODE KAFKA_OPTS KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_USER KAFKA_VERSION
"""
NOT_SETTINGS = frozenset(_IMAGE_VARIABLES.split())
"""What the public images and Kafka's scripts use for themselves."""


class Loaded(NamedTuple):
    """The settings, and what the person who wrote them should hear."""

    config: BrokerConfig
    warnings: list[str]


def load(
    properties: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    *,
    file_name: str = "server.properties",
    read_file: Callable[[str], str] | None = None,
) -> Loaded:
    """The broker's settings from the text of a properties file, the environment and `name=value` overrides.

    `read_file` reads the files that values name; without it they cannot be read. Raises ConfigError, whose message is
    one line.
    """
    given: dict[str, Given] = {}
    if properties is not None:
        for name, text in parse_properties(properties, file_name).items():
            given[name] = Given(text, Origin.FILE)
    for name, text in environment_settings(environment or {}).items():
        given[name] = Given(text, Origin.ENVIRONMENT)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--override '{override}' is not allowed: expected name=value")
        if is_password(name.strip()) and "${" not in text:
            raise ConfigError(
                f"--override {name.strip()} is not allowed: it is a password, and every user of this machine can read "
                f"the command line; set it in the properties file or the environment, or give '${{file:path:key}}'"
            )
        given[name.strip()] = Given(text.strip(), Origin.OVERRIDE)
    for name, (text, origin) in given.items():
        filled = fill_in(name, text, environment or {}, read_file or _no_file, parse_properties)
        if filled is not text:
            given[name] = Given(filled, origin)
    warnings = [_about_ignored(name, given[name].origin) for name in given if name not in BROKER_SETTINGS]
    return Loaded(BrokerConfig.from_given(given), warnings)


def is_password(name: str) -> bool:
    """Whether the setting of that name is one whose value nobody is told."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        from kraftpy.config.other_settings import OTHER_SETTINGS

        setting = OTHER_SETTINGS.get(name)
    return setting is not None and setting.type is ConfigType.PASSWORD


def _no_file(path: str) -> str:
    raise OSError(0, "no files here", path)


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """`KAFKA_LOG_DIRS=/data` as `log.dirs`: `_` is a dot, `__` an underscore, `___` a dash, as in Kafka's image."""
    return {
        setting_name(variable): text
        for variable, text in sorted(environment.items())
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS and len(variable) > len(PREFIX)
    }


def setting_name(variable: str) -> str:
    """The setting an environment variable such as `KAFKA_NODE_ID` stands for."""
    name = variable.removeprefix(PREFIX).lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def parse_properties(text: str, file_name: str = "server.properties") -> dict[str, str]:
    """The entries of a Java properties file; the last of a name wins. Raises ConfigError for a broken escape."""
    entries: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        where = f"{file_name}, line {number}"
        entries[_unescape(line[:key_end], where)] = _unescape(rest, where).strip()
    return entries


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of the first line, text with continuations joined), comments and blank lines left out."""
    lines: list[tuple[int, str]] = []
    started: int | None = None
    held = ""
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        stripped = line.lstrip(" \t\f")
        if started is None:
            if not stripped or stripped[0] in "#!":
                continue
            started = number
        held += stripped
        backslashes = len(held) - len(held.rstrip("\\"))
        if stripped and backslashes % 2:
            held = held[:-1]
            continue
        lines.append((started, held))
        started, held = None, ""
    if started is not None:
        lines.append((started, held))
    return lines


def _key_end(line: str) -> int:
    escaped = False
    for position, letter in enumerate(line):
        if not escaped and letter in "=: \t\f":
            return position
        escaped = letter == "\\" and not escaped
    return len(line)


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    plain: list[str] = []
    letters = iter(range(len(text)))
    for position in letters:
        if text[position] != "\\":
            plain.append(text[position])
            continue
        position = next(letters, position)
        letter = text[position]
        if letter == "u":
            digits = text[position + 1 : position + 5]
            if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError(f"{where}: \\u{digits} is not four hexadecimal digits")
            plain.append(chr(int(digits, 16)))
            for _ in range(4):
                next(letters)
        else:
            plain.append({"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(letter, letter))
    return "".join(plain)


def _about_ignored(name: str, origin: Origin) -> str:
    """The warning for a name this broker does not act on. Raises ConfigError where nobody knows it."""
    from kraftpy.config.other_settings import DROPPED, OTHER_SETTINGS, is_known

    if is_known(name):
        reason = "Kafka 4 no longer has it" if name in DROPPED else "Kafka has it, this broker does not use it"
        return f"{name} is ignored: {reason}"
    near = nearest(name, [*BROKER_SETTINGS, *OTHER_SETTINGS])
    hint = f"; did you mean {near}?" if near else ""
    if origin is not Origin.ENVIRONMENT:
        raise ConfigError(f"{name} is not a setting{hint}")
    variable = PREFIX + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()
    return f"{variable} is ignored: {name} is not a setting{hint}"
