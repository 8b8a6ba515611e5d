r"""Rules that shorten a Kerberos principal to a user name: `sasl.kerberos.principal.to.local.rules`.

    RULE:[1:$1@$0](.*@EXAMPLE\.ORG)s/@.*//L
         |         |               |       `- lower case; U: upper case
         |         |               `- like sed's s/../../: replaces the first match, or with a g every match
         |         `- an expression that the text made by `[..]` must match as a whole
         `- for principals of one component: $0 is the realm, $1 and $2 are the components

The first rule that fits decides. `DEFAULT` fits principals of the default realm, and drops their realm and their host.
A principal that no rule fits fails authentication, and so does one whose short name is empty or has a `/` or a `@`.

The grammar is Kafka's: an expression cannot contain `)`, nor a substitution `/`. As in `mapping_rules`, expressions are
RE2's, and an error in a rule that Kafka reports when it applies the rule is refused at the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftpy.security.mapping_rules import Substitution, changed_case, compile_pattern

_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<count>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?",
    re.ASCII,
)
_PARAMETER: Final = re.compile(r"\$(\d*)", re.ASCII)
_PRINCIPAL: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)", re.DOTALL)
_NOT_SIMPLE: Final = re.compile(r"[/@]")


class KerberosName(NamedTuple):
    """A principal such as `kafka/broker1.example.org@EXAMPLE.ORG`, parsed."""

    primary: str
    instance: str | None
    realm: str


def parse_kerberos_name(text: str) -> KerberosName:
    """Parse a principal with a realm. Raises ValueError."""
    found = _PRINCIPAL.fullmatch(text)
    if found is None:
        raise ValueError(f"Malformed Kerberos name: {text}")
    return KerberosName(found[1], found[2], found[3])


class _Rule:
    """One rule other than DEFAULT. Raises ValueError."""

    def __init__(self, text: str, found: re.Match[str]) -> None:
        if not found["count"]:
            raise ValueError(f"Invalid rule: `{text}`, it does not say how many components a principal has")
        self._text = text
        self._count = int(found["count"][:9])
        self._parts = _parameters(text, found["format"], self._count)
        self._case = found["case"] or ""
        self._is_repeated = found["repeat"] is not None
        try:
            self._match = None if found["match"] is None else compile_pattern(found["match"])
            self._substitution = None if found["from"] is None else Substitution(found["from"], found["to"])
        except ValueError as error:
            raise ValueError(f"Invalid rule: `{text}`, {error}") from None

    def apply(self, name: KerberosName, default_realm: str) -> str | None:
        """Return the short name, or None if the rule does not fit. Raises ValueError for a name that is not simple."""
        components = [name.primary] if name.instance is None else [name.primary, name.instance]
        if len(components) != self._count:
            return None
        values = [name.realm, *components]
        short = "".join(part if isinstance(part, str) else values[part] for part in self._parts)
        if self._match is not None and self._match.fullmatch(short) is None:
            return None
        if self._substitution is not None:
            short = self._substitution.apply(short, is_repeated=self._is_repeated)
        return changed_case(_simple(short, self._text), self._case)


class _Default:
    """The rule DEFAULT."""

    def apply(self, name: KerberosName, default_realm: str) -> str | None:
        """Return the first component of a principal of the default realm; None for others."""
        return _simple(name.primary, "DEFAULT") if name.realm == default_realm else None


def _simple(short: str, rule: str) -> str:
    if not short or _NOT_SIMPLE.search(short):
        raise ValueError(f"Non-simple name {short} after auth_to_local rule {rule}")
    return short


class KerberosRules:
    """The rules of one listener."""

    def __init__(self, texts: Sequence[str], rules: Sequence[_Rule | _Default]) -> None:
        self._texts = tuple(texts)
        self._rules = tuple(rules)

    def apply(self, principal: str, default_realm: str) -> str:
        """Return the short name of a principal. Raises ValueError if no rule gives it one."""
        name = parse_kerberos_name(principal)
        for rule in self._rules:
            short = rule.apply(name, default_realm)
            if short is not None:
                return short
        raise ValueError(f"No rules apply to {principal}, rules [{', '.join(self._texts)}]")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KerberosRules) and other._texts == self._texts

    def __hash__(self) -> int:
        return hash(self._texts)


def parse_kerberos_rules(texts: Sequence[str]) -> KerberosRules:
    """Parse a list of rules; an empty one means DEFAULT. Raises ValueError in Kafka's words."""
    texts = texts or ("DEFAULT",)
    rules: list[_Rule | _Default] = []
    for text in texts:
        found = _RULE.match(text)
        if found is None:
            raise ValueError(f"Invalid rule: {text}")
        if found.end() != len(text):
            raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[found.end() :]}`")
        rules.append(_Default() if found["default"] is not None else _Rule(text, found))
    return KerberosRules(texts, rules)


def _parameters(rule: str, text: str, count: int) -> list[str | int]:
    """Parse the format in `[..]` into texts and the numbers of a principal's parts. Raises ValueError."""
    parts: list[str | int] = []
    position = 0
    for found in _PARAMETER.finditer(text):
        parts.append(text[position : found.start()])
        position = found.end()
        if not found[1]:
            raise ValueError(f"Invalid rule: `{rule}`, bad format in username mapping: a $ without a number")
        number = int(found[1][:9])
        if number > count:
            raise ValueError(
                f"Invalid rule: `{rule}`, index {number} from {text} is outside of the valid range 0 to {count}"
            )
        parts.append(number)
    return [*parts, text[position:]]
