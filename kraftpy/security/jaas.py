"""Parses `sasl.jaas.config`: one of Kafka's login modules with its options, in the grammar of Java's JAAS files.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_alice="c";

Comments, quotes and escapes are those of Java's tokenizer. Only the modules in `MODULES` are known: each stands for a
mechanism of this package, and a name in a setting never makes it load a class (CVE-2023-25194, CVE-2025-27818).
Options are secrets: neither `repr` nor an error shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kraftpy.frozen import frozen

MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
    "com.sun.security.auth.module.Krb5LoginModule": ("GSSAPI",),
}
"""The mechanisms of each login module."""
_USER: Final = "user_"
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?P<blank>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)"""
    r"""|"(?P<double>(?:\\[^\r\n]|[^"\\\r\n])*)"|'(?P<single>(?:\\[^\r\n]|[^'\\\r\n])*)'"""
    r"""|(?P<word>[A-Za-z\u00a0-\uffff$_][-A-Za-z0-9\u00a0-\uffff._$]*)|(?P<sign>[=;])""",
    re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", "r": "\r", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """A login module cannot be used. The message is one line, and shows no option's value."""


@frozen
class Login:
    """A parsed login module."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the module serves."""
        return MODULES[self.module]

    @property
    def username(self) -> str | None:
        """The name with which this node itself logs in to others."""
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        """The password with which this node itself logs in to others."""
        return self.options.get("password")

    @property
    def is_by_token(self) -> bool:
        """True if name and password are a delegation token's id and HMAC: the option `tokenauth`."""
        return self.options.get("tokenauth", "").lower() == "true"

    @property
    def keytab(self) -> str | None:
        """The Kerberos keytab, if the module uses one."""
        return self.options.get("keyTab") if self.options.get("useKeyTab", "").lower() == "true" else None

    @property
    def users(self) -> dict[str, str]:
        """The passwords of PLAIN's users, by name: the options `user_<name>`."""
        return {name[len(_USER) :]: value for name, value in self.options.items() if name.startswith(_USER)}


def parse_jaas(text: str) -> Login:
    """Parse a login module with its options. Raises JaasError."""
    tokens = _tokens(text)
    if not tokens:
        raise JaasError("JAAS config property does not contain any login modules")
    module = tokens[0][1]
    if len(tokens) < 2 or tokens[1][1].lower() not in _FLAGS:
        raise JaasError(f"login module control flag is not available: expected one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != ("sign", ";"):
        kinds = [kind for kind, _ in tokens[position : position + 3]]
        if len(kinds) < 3 or kinds[0] == "sign" or kinds[2] == "sign" or tokens[position + 1] != ("sign", "="):
            raise JaasError('an option is not of the form name="value"')
        options[tokens[position][1]] = tokens[position + 2][1]
        position += 3
    if position == len(tokens):
        raise JaasError("the login module does not end with ';'")
    if position + 1 < len(tokens):
        raise JaasError("JAAS config property contains more than one login module, should be 1 module")
    if module not in MODULES:
        shown = module if module.isprintable() and len(module) < 200 else "the login module"
        raise JaasError(f"{shown} is not supported: expected one of {', '.join(MODULES)}")
    return Login(module=module, options=options)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split the text into words, texts and signs. Raises JaasError."""
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError("a quote that does not end, or a character that has to be quoted")
        kind = match.lastgroup
        assert kind is not None
        if kind in ("double", "single"):
            found.append(("text", _unescape(match[kind])))
        elif kind != "blank":
            found.append((kind, match[kind]))
        position = match.end()
    return found


def _unescape(text: str) -> str:
    def letter(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 8) & 0xFF)
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", letter, text, flags=re.DOTALL)
