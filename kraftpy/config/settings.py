"""The definition of a setting: name, type, default and allowed values; parsing and rendering of its values.

Types are Kafka's: boolean, string, int (32 bits), short (16), long (64), double, list, class, password. A list is a
tuple of strings; class and password are strings.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed setting."""


class ConfigError(Exception):
    """Invalid settings. The message is a single line for the person who wrote them."""


class ConfigType(IntEnum):
    """The type codes of DescribeConfigs (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


MAX_VALUE_LENGTH = 32_767
"""Maximum length of a value set by a client, in characters, as in Kafka."""
_SHOWN_LENGTH = 200
_MAX_INTEGER_LENGTH = 21
"""A sign and 20 digits."""

_THROTTLED = (
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
_NO_VALUE = {"none", "null"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a table. `kafka_default` and `default` are texts; None means no value."""

    name: str
    type: ConfigType
    kafka_default: str | None
    default: str | None
    allowed: str
    meaning: str

    @property
    def attribute(self) -> str:
        """The name as a Python attribute."""
        return self.name.replace(".", "_")

    @property
    def differs(self) -> bool:
        """True if our default differs from Kafka's."""
        return self.default != self.kafka_default

    def default_value(self) -> Value:
        """Return our default, parsed."""
        return None if self.default is None else self.parse(self.default)

    def parse(self, text: str) -> Value:
        """Parse `text`. Raises a ConfigError that names the setting, the text and the allowed values."""
        match self.type:
            case ConfigType.BOOLEAN:
                return self._boolean(text)
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return self._integer(text)
            case ConfigType.DOUBLE:
                return self._double(text)
            case ConfigType.LIST:
                return self._list(text)
            case _:
                return self._string(text)

    def wants(self) -> str:
        """Describe the allowed values."""
        kinds = {
            ConfigType.BOOLEAN: "true or false",
            ConfigType.DOUBLE: "a number",
            ConfigType.LIST: "a list with commas",
            ConfigType.INT: "an integer",
            ConfigType.SHORT: "an integer",
            ConfigType.LONG: "an integer",
        }
        kind = kinds.get(self.type, "a text")
        if self.allowed == "non-empty":
            return f"{kind} that is not empty"
        if self.allowed == "throttled":
            return "* or a list of partition:broker"
        if self.allowed.startswith(("{", "~{")):
            choices = ", ".join(_choices(self.allowed))
            return f"a list of {choices}" if self.type is ConfigType.LIST else f"one of {choices}"
        low, high = _range(self.allowed, self.type)
        if self.type not in _BITS:
            return f"{kind} from {low:g} to {high:g}" if self.allowed else kind
        extra, comma, _ = self.allowed.partition(",")
        alternative = f", or {extra}" if comma else ""
        bits = _BITS[self.type]
        if low == -(1 << bits):
            return f"{kind} of {bits + 1} bits"
        return f"{kind} of at least {low}" if high == (1 << bits) - 1 else f"{kind} from {low} to {high}{alternative}"

    def refusal(self, text: str, reason: str) -> ConfigError:
        """Return Kafka's refusal of a text."""
        shown = "[hidden]" if self.type is ConfigType.PASSWORD else shortened(text)
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {reason}")

    def _boolean(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise self.refusal(text, "Expected value to be either true or false")
        return word == "true"

    def _integer(self, text: str) -> int:
        digits = text.strip()
        unsigned = digits[1:] if digits[:1] in ("+", "-") else digits
        bound = 1 << _BITS[self.type]
        if not (unsigned.isascii() and unsigned.isdecimal()) or len(unsigned) > 20 or not -bound <= int(digits) < bound:
            raise self.refusal(text, f"Not a number of type {self.type.name}")
        value = int(digits)
        extra, comma, _ = self.allowed.partition(",")
        if comma and value != int(extra):
            low, high = _range(self.allowed, self.type)
            if not low <= value <= high:
                raise self.refusal(text, f"Value must be between {low} and {high} or equal to {extra}")
        elif not comma:
            self._check_range(text, value)
        return value

    def _double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if "_" in text or value != value:
            raise self.refusal(text, f"Not a number of type {self.type.name}")
        self._check_range(text, value)
        return value

    def _check_range(self, text: str, value: float) -> None:
        low, high = _range(self.allowed, self.type)
        if low <= value <= high:
            return
        shown = render(value) or text
        if value < low:
            raise self.refusal(shown, f"Value must be at least {_plain(low)}")
        raise self.refusal(shown, f"Value must be no more than {_plain(high)}")

    def _string(self, text: str) -> str:
        value = text.strip()
        if self.allowed == "non-empty" and not value:
            raise self.refusal(text, "String must be non-empty")
        if self.allowed.startswith("{") and value not in _choices(self.allowed):
            raise self._not_one_of(value)
        if self.allowed.startswith("~{") and value.upper() not in _choices(self.allowed):
            raise self.refusal(value, f"String must be one of (case insensitive): {', '.join(_choices(self.allowed))}")
        return value

    def _list(self, text: str) -> tuple[str, ...]:
        if not text.strip():
            return ()
        values = tuple(item.strip() for item in text.split(","))
        if self.allowed == "throttled":
            if "".join(values) != "*" and not all(_is_throttled(value) for value in values if value):
                raise self.refusal(f"[{', '.join(values)}]", f"{self.name} {_THROTTLED}")
            values = tuple(filter(None, values))  # as Kafka: tools that add replicas one by one may leave commas
        if "" in values:
            raise ConfigError(f"Configuration '{self.name}' values must not be empty.")
        if self.allowed.startswith("{"):
            for value in values:
                if value not in _choices(self.allowed):
                    raise self._not_one_of(value)
        return tuple(dict.fromkeys(values))

    def _not_one_of(self, value: str) -> ConfigError:
        return self.refusal(value, f"String must be one of: {', '.join(_choices(self.allowed))}")


def parse_table(table: str) -> dict[str, Setting]:
    """Parse a table in the form that `broker_settings` describes."""
    settings: dict[str, Setting] = {}
    lines = iter(table.split("\n"))
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, kind, defaults, *allowed = line.split()
        theirs, changed, ours = defaults.partition("->")
        settings[name] = Setting(
            sys.intern(name),
            ConfigType[kind.upper()],
            _default(theirs),
            _default(ours if changed else theirs),
            allowed[0] if allowed else "",
            next(lines).strip(),
        )
    return settings


def render(value: Value) -> str | None:
    """Render a value as Kafka does: true, 5, 0.5, a,b."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            return _rendered(value)
        case _:
            return str(value)


def _rendered(number: float) -> str:
    """Render a number as Java does: 0.5, 1.0E22."""
    if number == 0 or 0.001 <= abs(number) < 10_000_000 or number - number != 0:
        return repr(number)
    sign, mantissa = ("-", repr(-number)) if number < 0 else ("", repr(number))
    plain, _, exponent = mantissa.partition("e")
    whole, _, fraction = plain.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits) if whole == "0" else 0)
    rest = digits[1:].rstrip("0") or "0"
    return f"{sign}{digits[0]}.{rest}E{power}"


def check_length(text: str) -> None:
    """Raise ConfigError, with Kafka's message, if a client's value is too long."""
    if len(text) > MAX_VALUE_LENGTH:
        raise ConfigError(
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{MAX_VALUE_LENGTH} bytes."
        )


def whole_number(text: str | None, default: int) -> int:
    """Parse a stored integer; return `default` if it is missing or invalid, so that readers never fail."""
    digits = (text or "").strip()
    try:
        return int(digits) if 0 < len(digits) <= _MAX_INTEGER_LENGTH else default
    except ValueError:
        return default


def shortened(text: str) -> str:
    """Return the text for a message: on one line, and shortened."""
    shown = text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name most similar to `name`, or None if none is similar."""
    import difflib

    if len(name) > _SHOWN_LENGTH:  # the comparison grows with the square of the length
        return None

    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else None


def _default(text: str) -> str | None:
    if text in _NO_VALUE:
        return None
    return text[1:-1] if text.startswith('"') else text


def _choices(allowed: str) -> list[str]:
    return allowed.lstrip("~").strip("{}").split(",")


def _range(allowed: str, kind: ConfigType) -> tuple[float, float]:
    """Return a number's bounds, both inclusive. Integers stay exact."""
    bound = 1 << _BITS[kind] if kind in _BITS else None
    low: float = -bound if bound else float("-inf")
    high: float = bound - 1 if bound else float("inf")
    before, dots, after = allowed.rpartition(",")[2].partition("..")
    if dots:
        number = int if bound else float
        low = number(before) if before else low
        high = number(after) if after else high
    return low, high


def _is_throttled(text: str) -> bool:
    partition, colon, broker = text.partition(":")
    return bool(colon) and text.isascii() and partition.isdecimal() and broker.isdecimal()


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
