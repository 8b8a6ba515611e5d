"""The sources of broker settings, in order of precedence: defaults < properties file < environment < `--override`.

The caller reads the file and the environment, and passes their contents in. An unknown name is an error that suggests
the nearest known one, but only a warning in the environment, where container images set their own variables. A setting
that Kafka has, for brokers, topics, groups or clients, but this broker does not use is a note. A name that a properties
file has twice counts the last time, as in Java.

A value may be stored elsewhere, and referred to by a variable (`variables`). A password is not accepted on the command
line, which every user of the machine can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin, WrittenSetting
from kraftpy.config.listener_limits import limit_name
from kraftpy.config.listeners import is_reachable
from kraftpy.config.metrics import LISTENER, why_metrics_are_exposed, why_without_effect
from kraftpy.config.settings import ConfigError, ConfigType, nearest
from kraftpy.config.variables import fill_in

if TYPE_CHECKING:
    from kraftpy.config.security import ListenerSecurity

PREFIX = "KAFKA_"
_IMAGE_VARIABLES = """
KAFKA_CFG_FILE KAFKA_CLASSPATH KAFKA_CLUSTER_ID KAFKA_CONFIG KAFKA_CONF_DIR KAFKA_DATA_DIR KAFKA_DEBUG
KAFKA_GC_LOG_OPTS KAFKA_GROUP KAFKA_HEAP_OPTS KAFKA_HOME KAFKA_JMX_HOSTNAME KAFKA_JMX_OPTS KAFKA_JMX_PORT
KAFKA_JVM_PERFORMANCE_OPTS KAFKA_KRAFT_CLUSTER_ID KAFKA_LOG4J_CMD_OPTS KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_OPTS
KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_MODE KAFKA_OPTS KAFKA_SSL_KEYSTORE_CREDENTIALS
KAFKA_SSL_KEYSTORE_FILENAME KAFKA_SSL_KEY_CREDENTIALS KAFKA_SSL_TRUSTSTORE_CREDENTIALS KAFKA_SSL_TRUSTSTORE_FILENAME
KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_USER KAFKA_VERSION
"""
NOT_SETTINGS = frozenset(_IMAGE_VARIABLES.split())
"""Variables that the public images and Kafka's scripts use for themselves."""


class Loaded(NamedTuple):
    """The settings, and the messages for the person who wrote them."""

    config: BrokerConfig
    warnings: list[str]
    notes: list[str]


def load(
    properties: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    *,
    file_name: str = "server.properties",
    read_file: Callable[[str], str] | None = None,
) -> Loaded:
    """Load the broker's settings from a properties file's text, the environment and `name=value` overrides.

    `read_file` reads files that values refer to; without it they cannot be read. Raises ConfigError with a one-line
    message.
    """
    given: dict[str, WrittenSetting] = {}
    if properties is not None:
        for name, text in parse_properties(properties, file_name).items():
            given[name] = WrittenSetting(text, Origin.FILE)
    for name, text in environment_settings(environment or {}).items():
        given[name] = WrittenSetting(text, Origin.ENVIRONMENT)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--override '{override}' is not allowed: expected name=value")
        if is_password(name.strip()) and "${" not in text:
            raise ConfigError(
                f"--override {name.strip()} is not allowed: it is a password, and every user of this machine can read "
                f"the command line; set it in the properties file or the environment, or give '${{file:path:key}}'"
            )
        given[name.strip()] = WrittenSetting(text.strip(), Origin.OVERRIDE)
    for name, (text, origin) in given.items():
        filled = fill_in(name, text, environment or {}, read_file or _no_file, parse_properties)
        if filled is not text:
            given[name] = WrittenSetting(filled, origin)
    warnings: list[str] = []
    notes: list[str] = []
    for name in given:
        if name not in BROKER_SETTINGS:
            _tell_ignored(name, given[name].origin, warnings, notes)
    config = BrokerConfig.from_given(given)
    exposed = [each for each in config.client_listeners if is_reachable(each) and not config.security_of(each.name)]
    if exposed and config.is_broker:
        listed = ", ".join(map(str, exposed))
        warnings.append(f"listeners: anyone who can reach {listed} may do anything, and read what others send")
    warnings += filter(None, map(_why_tokens_prove_little, config.secured))
    warnings += filter(None, [_why_metrics_are_exposed(config)])
    notes += [
        f"{name} is ignored: {reason}"
        for name in given
        if (reason := why_without_effect(name, given) if name in BROKER_SETTINGS else _why_without_effect(name, config))
    ]
    return Loaded(config, warnings, notes)


def _why_tokens_prove_little(security: ListenerSecurity) -> str | None:
    """Return a warning if OAUTHBEARER tokens can be forged on a listener, else None."""
    oauthbearer = None if security.sasl is None else security.sasl.oauthbearer
    if oauthbearer is None or (oauthbearer.url is not None and not oauthbearer.url.startswith("http:")):
        return None
    if oauthbearer.url is None:
        return f"{security.listener} accepts unsecured tokens: anyone who can reach it can claim any name"
    return f"{security.listener} fetches the keys for tokens over http: anyone who forges the answer can claim any name"


def _why_metrics_are_exposed(config: BrokerConfig) -> str | None:
    """Return a warning if other machines can read the metrics, or the passwords of monitors, else None."""
    if config.kraftpy_metrics_listener is None:
        return None
    from kraftpy.config.security import metrics_tls  # here: most brokers do not need it

    tls = metrics_tls(config)
    return why_metrics_are_exposed(
        config.kraftpy_metrics_listener,
        has_login=config.kraftpy_metrics_users_file is not None,
        proves_clients=tls is not None and tls.client_auth == "required",
    )


def is_password(name: str) -> bool:
    """Return whether the setting is a password, whose value is never shown."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        from kraftpy.config.other_settings import OTHER_SETTINGS
        from kraftpy.config.security import base_name
        from kraftpy.config.security_settings import SECURITY_SETTINGS

        setting = SECURITY_SETTINGS.get(base_name(name) or name) or OTHER_SETTINGS.get(name)
    return setting is not None and setting.type is ConfigType.PASSWORD


def _no_file(path: str) -> str:
    raise OSError(0, "no files here", path)


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Map variables such as `KAFKA_LOG_DIRS` to settings such as `log.dirs`, as Kafka's image does.

    `_` stands for a dot, `__` for an underscore, `___` for a dash.
    """
    return {
        setting_name(variable): text
        for variable, text in sorted(environment.items())
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS and len(variable) > len(PREFIX)
    }


def setting_name(variable: str) -> str:
    """Return the setting that an environment variable such as `KAFKA_NODE_ID` stands for."""
    name = variable.removeprefix(PREFIX).lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def variable_name(setting: str) -> str:
    """Return the environment variable that stands for a setting."""
    return PREFIX + setting.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def parse_properties(text: str, file_name: str = "server.properties") -> dict[str, str]:
    """Parse a Java properties file; the last entry of a name wins. Raises ConfigError for an invalid escape."""
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
    """Return (number of the first line, text with joined continuations) without comments and blank lines."""
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


def _why_without_effect(name: str, config: BrokerConfig) -> str | None:
    """Explain why a security setting of listeners has no effect; None if it has one, or for any other setting."""
    from kraftpy.config.security import PREFIX as OF_LISTENER
    from kraftpy.config.security import base_name, metrics_tls
    from kraftpy.config.security_settings import SECURITY_SETTINGS

    has_metrics = metrics_tls(config) is not None
    if name in SECURITY_SETTINGS:
        return None if config.secured or has_metrics else "no listener has TLS or SASL"
    if base_name(name) is None:
        return None
    listener = name.removeprefix(OF_LISTENER).partition(".")[0]
    is_secured = any(each.listener.lower() == listener for each in config.secured)
    is_secured = is_secured or (has_metrics and listener == LISTENER.lower() and ".sasl." not in name)
    return None if is_secured else f"{listener.upper()} is not a listener with TLS or SASL"


def _tell_ignored(name: str, origin: Origin, warnings: list[str], notes: list[str]) -> None:
    """Add the remark on a setting that this broker does not use. Raises ConfigError if the setting is unknown."""
    from kraftpy.config.other_settings import OTHER_SETTINGS, why_ignored
    from kraftpy.config.security import base_name
    from kraftpy.config.security_settings import SECURITY_SETTINGS

    if name in SECURITY_SETTINGS or base_name(name) is not None or limit_name(name) is not None:
        return
    if reason := why_ignored(name):
        notes.append(f"{name} is ignored: {reason}")
        return
    near = nearest(name, [*BROKER_SETTINGS, *SECURITY_SETTINGS, *OTHER_SETTINGS])
    hint = f"; did you mean {near}?" if near else ""
    if origin is not Origin.ENVIRONMENT:
        raise ConfigError(f"{name} is not a setting{hint}")
    warnings.append(f"{variable_name(name)} is ignored: {name} is not a setting{hint}")
