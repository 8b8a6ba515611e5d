r"""Rules that shorten a certificate's subject to a user name: `ssl.principal.mapping.rules` (KIP-371).

`RULE:^CN=(.*?),.*$/$1/L,DEFAULT`: the first rule whose expression matches the whole name decides. Its replacement may
refer to groups, and `L` or `U` converts the result to lower or upper case. `DEFAULT` keeps the name. A name that no
rule matches fails authentication.

The expressions are RE2's, which take time linear in the name: Java's look-around and back references are refused. A
replacement that refers to a missing group is refused at the start, whereas Kafka fails each authentication; but if the
expression has other groups, a missing number stays as text, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSER: Final = re.compile(_RULE)


class PatternError(ValueError):
    """RE2 does not accept an expression. The message is RE2's."""


def compile_pattern(expression: str) -> Any:
    """Compile an expression. Raises PatternError."""
    import re2  # here: most brokers have no such rule

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options=options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise PatternError(reason) from None


class Substitution:
    """An expression and the replacement for its matches, in Java's notation. Raises ValueError."""

    def __init__(self, expression: str, replacement: str) -> None:
        self.pattern = compile_pattern(expression)
        self._parts = _replacement(replacement, self.pattern.groups, self.pattern.groupindex)

    def apply(self, text: str, *, is_repeated: bool) -> str:
        """Return the text with its first match replaced, or if `is_repeated` every match."""
        result, position, last = [], 0, (-1, -1)
        for found in self.pattern.finditer(text):
            if found.span() == last:  # RE2 finds an empty match at the end twice
                continue
            last = found.span()
            result.append(text[position : found.start()])
            result += [part if isinstance(part, str) else found.group(part) or "" for part in self._parts]
            position = found.end()
            if not is_repeated:
                break
        return "".join([*result, text[position:]])


def changed_case(name: str, case: str) -> str:
    """Return the name in lower (`L`) or upper case (`U`), or unchanged."""
    return name.lower() if case == "L" else name.upper() if case == "U" else name


class _Rule:
    """One rule with an expression."""

    def __init__(self, expression: str, replacement: str, case: str) -> None:
        try:
            self._substitution = Substitution(expression, replacement)
        except PatternError as error:
            raise ValueError(f"Invalid rule: `RULE:{expression}/{replacement}/{case}`, {error}") from None
        self._case = case

    def apply(self, name: str) -> str | None:
        """Return the short name, or None if the expression does not match the whole name."""
        if self._substitution.pattern.fullmatch(name) is None:
            return None
        # The rest of the name is replaced as well if the expression matches there once more, as in Java.
        return changed_case(self._substitution.apply(name, is_repeated=True), self._case)


class SslRules:
    """The rules of one listener."""

    def __init__(self, text: str, rules: tuple[_Rule | None, ...]) -> None:
        self._text = text
        self._rules = rules

    def apply(self, name: str) -> str:
        """Return the short name. Raises ValueError if no rule matches."""
        for rule in self._rules:
            short = name if rule is None else rule.apply(name)
            if short is not None:
                return short
        raise ValueError(f"No rules apply to {name}, rules {self._text}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SslRules) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def parse_ssl_rules(text: str) -> SslRules:
    """Parse a comma-separated list of rules. Raises ValueError in Kafka's words."""
    rules: list[_Rule | None] = []
    for split in _SPLITTER.finditer(text.strip()):
        rule = split[1]
        found = _PARSER.match(rule)
        if found is None:
            raise ValueError(f"Invalid rule: {rule}")
        if found.end() != len(rule):
            raise ValueError(f"Invalid rule: `{rule}`, unmatched substring: `{rule[found.end() :]}`")
        if found[1] is not None:
            rules.append(None)
        elif found[2] is not None:
            rules.append(_Rule(found[2], found[3], found[4]))
    return SslRules(text.strip(), tuple(rules))


def _replacement(text: str, groups: int, names: Mapping[str, int]) -> list[str | int]:
    """Parse a replacement in Java's notation into texts and group numbers. Raises ValueError."""
    parts: list[str | int] = []
    literal, position = "", 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter == "\\":
            if position == len(text):
                raise ValueError("character to be escaped is missing")
            literal += text[position]
            position += 1
        elif letter == "$" and text[position : position + 1] == "{":
            name, brace, _ = text[position + 1 :].partition("}")
            if not brace or name not in names:
                raise ValueError(f"No group with name {{{name}}}")
            parts += [literal, names[name]]
            literal, position = "", position + len(name) + 2
        elif letter == "$":
            digits = re.match(r"[0-9]*", text[position:], re.ASCII)
            assert digits is not None
            if not digits[0]:
                raise ValueError("Illegal group reference")
            number = int(digits[0][:9])
            while number > groups and number >= 10:
                number //= 10
            if number > groups:
                if groups == 0:
                    raise ValueError(f"No group {number}")
                literal += letter
                continue
            parts += [literal, number]
            literal, position = "", position + len(str(number))
        else:
            literal += letter
    return [*parts, literal]
