"""Regular expressions for names of topics and other ids, in RE2's syntax, matched in linear time (KIP-848).

A client's expression runs in the broker, so one that backtracks (Python's own) would let any client stop it. Names of
topics have 65 different characters, so a class is a set of some of them, and an automaton is small: `Pattern` is
the usual one, all its states at once, its steps remembered. Other names have other characters, and a pattern is told
which (`alphabet`). Decision 0023 says why it is ours.

What may be written: literals, `.`, classes with ranges, POSIX names and `\\d \\w \\s \\pL \\p{Lu}` and their opposites,
groups of every kind, `|`, `* + ? {n} {n,} {n,m}` with or without a lazy `?`, flags `i m s U`, `^ $ \\A \\z \\b \\B`,
`\\Q..\\E`, the escapes of single characters. A name matches when all of it does. As in RE2 there are no backreferences
and no looking around.

Left out, and refused: names of scripts other than Latin (`\\p{Greek}`), `\\C`. Refused as well: what compiles to more
than `MAX_STATES` states, and nesting deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_STATES = 2_000
MAX_DEPTH = 50
MAX_REPEAT = 1_000
_MAX_REMEMBERED = 20_000

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
"""What names of topics are made of."""
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_DIGITS = frozenset(string.digits)
_LETTERS = frozenset(string.ascii_letters)
_ASCII = frozenset(map(chr, range(128)))
_ESCAPED_CLASSES = {"d": _DIGITS, "w": _WORD, "s": frozenset("\t\n\f\r ")}
_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_POSIX = {
    "alnum": _LETTERS | _DIGITS,
    "alpha": _LETTERS,
    "ascii": _ASCII,
    "blank": frozenset(" \t"),
    "cntrl": frozenset(char for char in _ASCII if not char.isprintable()),
    "digit": _DIGITS,
    "graph": frozenset(char for char in _ASCII if char.isprintable() and char != " "),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(char for char in _ASCII if char.isprintable()),
    "punct": frozenset(string.punctuation),
    "space": frozenset(string.whitespace),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CATEGORY_NAMES = "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
_CATEGORIES = frozenset(_CATEGORY_NAMES.split())


class PatternError(ValueError):
    """The expression cannot be read; says what is wrong where."""


# ---- what an expression is made of

Context = Callable[[str, str], bool]
"""Whether an empty place fits, by the characters before and after it; at an end there is none."""


@dataclass(frozen=True, slots=True)
class _Chars:
    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Place:
    fits: Context


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Chars | _Place | _Sequence | _Choice | _Repeat


def _is_boundary(before: str, after: str) -> bool:
    return (before in _WORD) != (after in _WORD)


_START = _Place(lambda before, _: not before)
_END = _Place(lambda _, after: not after)
_BOUNDARY = _Place(_is_boundary)
_NO_BOUNDARY = _Place(lambda before, after: not _is_boundary(before, after))
_PLACES = {"A": _START, "z": _END, "b": _BOUNDARY, "B": _NO_BOUNDARY}


# ---- reading one


class _Parser:
    def __init__(self, text: str, alphabet: frozenset[str]) -> None:
        self._text = text
        self._alphabet = alphabet
        self._at = 0
        self._depth = 0
        self._ignore_case = False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._error("a ')' too many")
        return node

    def _error(self, what: str) -> PatternError:
        return PatternError(f"{what}, at {self._at} of {self._text!r}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("it ends too early")
        self._at += 1
        return char

    def _skip(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("it is nested too deep")
        ignored = self._ignore_case  # flags set within a group end with it
        parts = [self._sequence()]
        while self._skip("|"):
            parts.append(self._sequence())
        self._ignore_case = ignored
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._skip("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(self._at + len(quoted) + 2, len(self._text))
                parts += [self._literal(char) for char in quoted]
                if quoted:
                    parts[-1] = self._quantified(parts[-1])
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._quantified(atom))
        return _Sequence(tuple(parts))

    def _quantified(self, atom: _Node) -> _Node:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        self._skip("?")  # lazy or not, the same names match
        if self._quantifier() is not None:
            raise self._error("a repetition of a repetition")
        least, most = bounds
        return _Repeat(atom, least, most)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for token, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(token):
                return bounds
        if self._peek() != "{":
            return None
        inside, closed, _ = self._text[self._at + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not low.isdecimal() or not (high.isdecimal() or not high):
            return None  # then it is a brace like any other character
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._error(f"a repetition that cannot be: {{{inside}}}")
        self._at += len(inside) + 2
        return least, most

    def _literal(self, char: str) -> _Chars:
        chars = {char, char.lower(), char.upper()} if self._ignore_case else {char}
        return _Chars(self._alphabet & chars)

    def _atom(self) -> _Node | None:
        char = self._take()
        match char:
            case ".":
                return _Chars(self._alphabet)
            case "^":
                return _START
            case "$":
                return _END
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                place = _PLACES.get(self._peek())
                if place is not None:
                    self._at += 1
                    return place
                found = self._escape()
                return _Chars(found) if isinstance(found, frozenset) else self._literal(found)
            case "*" | "+" | "?":
                raise self._error("nothing to repeat")
        return self._literal(char)

    def _group(self) -> _Node | None:
        ignored = self._ignore_case
        if self._skip("?"):
            if self._skip("P<") or self._skip("<"):
                name, closed, _ = self._text[self._at :].partition(">")
                if not closed or not name.replace("_", "a").isalnum():
                    raise self._error("the name of a group is missing, or it looks around, which cannot be")
                self._at += len(name) + 1
            elif not self._flags():
                if self._quantifier() is not None:
                    raise self._error("nothing to repeat")
                return None
        node = self._choice()
        if not self._skip(")"):
            raise self._error("a ')' is missing")
        self._ignore_case = ignored
        return node

    def _flags(self) -> bool:
        """Read `i-s:` or `i)`. False where they are for all that follows, and no group opens."""
        value = True
        while (char := self._take()) not in (":", ")"):
            if char == "-":
                value = False
            elif char == "i":
                self._ignore_case = value
            elif char not in "msU":  # a name has one line, and all of it must match
                raise self._error(f"(?{char} is not known")
        return char == ":"

    def _escape(self) -> frozenset[str] | str:
        """What stands behind a backslash: a class, or one character."""
        char = self._take()
        if char.lower() in _ESCAPED_CLASSES:
            chars = _ESCAPED_CLASSES[char.lower()]
            return self._alphabet - chars if char.isupper() else chars
        if char in "pP":
            return self._category(negated=char == "P")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            digits = self._braced("}") if self._skip("{") else self._take() + self._take()
            return self._char(digits, 16)
        if char in "01234567":
            if char != "0" and self._peek() not in frozenset("01234567"):
                raise self._error("there are no backreferences")
            while len(char) < 3 and self._peek() in frozenset("01234567"):
                char += self._take()
            return self._char(char, 8)
        if char.isalnum():
            raise self._error(f"\\{char} is not known")
        return char

    def _char(self, digits: str, base: int) -> str:
        try:
            return chr(int(digits, base))
        except (ValueError, OverflowError):
            raise self._error(f"{digits!r} is no character") from None

    def _braced(self, closing: str) -> str:
        inside, closed, _ = self._text[self._at :].partition(closing)
        if not closed:
            raise self._error(f"a '{closing}' is missing")
        self._at += len(inside) + len(closing)
        return inside

    def _category(self, *, negated: bool) -> frozenset[str]:
        name = self._braced("}") if self._skip("{") else self._take()
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name == "Any":
            chars = self._alphabet
        elif name == "Latin":
            chars = _LETTERS
        elif name in _CATEGORIES:
            chars = frozenset(char for char in self._alphabet if unicodedata.category(char).startswith(name))
        else:
            raise self._error(f"\\p{{{name}}} is not known")
        if self._ignore_case:
            chars |= frozenset(char.swapcase() for char in chars)
        return self._alphabet - chars if negated else chars

    def _class(self) -> _Node:
        negated = self._skip("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._skip("[:"):
                name = self._braced(":]")
                if name.removeprefix("^") not in _POSIX:
                    raise self._error(f"[:{name}:] is not known")
                posix = _POSIX[name.removeprefix("^")]
                chars |= self._alphabet - posix if name.startswith("^") else posix
                continue
            low = self._class_item()
            if isinstance(low, frozenset):
                chars |= low
                continue
            high: frozenset[str] | str = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_item()
            if isinstance(high, frozenset) or high < low:
                raise self._error("a range that cannot be")
            between = {char for char in self._alphabet if low <= char <= high}
            if self._ignore_case:
                # Letters of the other case that fall into the range are in it as well.
                between |= {c for c in _LETTERS if low <= c.lower() <= high or low <= c.upper() <= high}
            chars |= between
        self._at += 1
        return _Chars(self._alphabet - chars if negated else frozenset(chars))

    def _class_item(self) -> frozenset[str] | str:
        char = self._take()
        return self._escape() if char == "\\" else char


# ---- the automaton


@dataclass(slots=True)
class _State:
    """Goes on with one of `chars`, or without any where `fits`."""

    chars: frozenset[str] | None = None
    fits: Context | None = None
    nexts: list[int] = field(default_factory=list)


class Pattern:
    """An expression, ready to be matched against names of these characters. Raises PatternError where it cannot be
    read."""

    def __init__(self, text: str, alphabet: frozenset[str] = ALPHABET) -> None:
        self._states: list[_State] = []
        self._accept = self._new()
        self._start = self._build(_Parser(text, alphabet).parse(), self._accept)
        self._steps: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether all of the name is what the expression says."""
        states = frozenset((self._start,))
        before = ""
        for char in name:
            states = self._step(states, before, char)
            if not states:
                return False
            before = char
        return self._accept in self._reachable(states, before, "")

    def _new(self, **fields: object) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError(f"it is too large: more than {MAX_STATES} states")
        self._states.append(_State(**fields))  # type: ignore[arg-type]
        return len(self._states) - 1

    def _build(self, node: _Node, then: int) -> int:
        """The state to begin with for what the node says, going on with `then`."""
        match node:
            case _Chars(chars):
                return self._new(chars=chars, nexts=[then])
            case _Place(fits):
                return self._new(fits=fits, nexts=[then])
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self._build(part, then)
                return then
            case _Choice(parts):
                return self._new(nexts=[self._build(part, then) for part in parts])
            case _Repeat(part, least, most):
                if most is None:
                    loop = self._new()
                    self._states[loop].nexts = [self._build(part, loop), then]
                    then = loop
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._new(nexts=[self._build(part, then), end])
                for _ in range(least):
                    then = self._build(part, then)
                return then

    def _step(self, states: frozenset[int], before: str, char: str) -> frozenset[int]:
        key = (states, before, char)
        after = self._steps.get(key)
        if after is None:
            if len(self._steps) >= _MAX_REMEMBERED:
                self._steps.clear()
            reached = (self._states[each] for each in self._reachable(states, before, char))
            after = frozenset(state.nexts[0] for state in reached if state.chars is not None and char in state.chars)
            self._steps[key] = after
        return after

    def _reachable(self, states: frozenset[int], before: str, after: str) -> set[int]:
        """These states and whatever can be reached from them without a character."""
        reached = set(states)
        waiting = list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.chars is None and (state.fits is None or state.fits(before, after)):
                fresh = [each for each in state.nexts if each not in reached]
                reached.update(fresh)
                waiting += fresh
        return reached
