"""The declaration of messages, and their codecs, which are compiled once per message and version.

A declaration is a class whose fields carry their wire type and, beside it, the versions they exist in:

    @message(api_key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        group_id: Annotated[str, string]
        group_instance_id: Annotated[str | None, string, "3+"] = None

After the wire type may come, in any order: a version range ("3+", "0-12", "8"); `nullable("7+")` for an optional field
that may be null only in some of its versions; `tag(0)` for a tagged field; `ignorable` for a field whose value may be
dropped in a version without that field. A struct within another is `nested`, a list of structs is `array`, a list of
anything else is `array(int32)` or the like.

The classes are slotted and keyword-only, and may be changed while a message is being put together. A list given as a
default is copied.

A codec is straight-line Python, written and compiled by `codegen.py` at first use. Making a class costs microseconds:
its annotations are read and its `__init__` is made when first needed, because a starting server needs few of them.

Invariants: `decode(type(m), encode(m, v), v) == m` for every m that the version can carry; `encode` never silently
drops what is not `ignorable`; `decode` either returns a message that spans the buffer exactly or raises
`ProtocolError`.

Left out: unknown tagged fields are not kept; nothing here parses `records`.

Read: KIP-482 (flexible versions, tagged fields), KIP-893 (nullable structs).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from struct import error as struct_error
from typing import Any, NamedTuple, TypeVar, dataclass_transform, get_args, get_origin

from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.primitives import MAX_ELEMENTS

T = TypeVar("T")

ZERO_UUID = bytes(16)
"""The sixteen bytes on the wire that stand for no id."""

# --- the words of a declaration ------------------------------------------------------------------------------------


class Versions(NamedTuple):
    """An inclusive range of versions; `last` is very large if the range is open."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        return f"{self.first}+" if self.last == OPEN else f"{self.first}-{self.last}"


OPEN = 0x7FFF
EVERY = Versions(0, OPEN)
NEVER = Versions(OPEN, -1)


def parse_versions(text: str) -> Versions:
    """Read "3+", "0-12", "8" or "none"."""
    if text == "none":
        return NEVER
    if text.endswith("+"):
        return Versions(int(text[:-1]), OPEN)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


class Fixed(NamedTuple):
    """A value of fixed width: its code in the `struct` module."""

    code: str
    size: int


class Sized(NamedTuple):
    """A value preceded by its length: the name of its readers in `primitives`, and the size of the older form's length
    in bytes.
    """

    name: str
    prefix: int


class Array(NamedTuple):
    """A list; its elements are structs if `element` is None."""

    element: Fixed | Sized | None

    def __call__(self, element: Fixed | Sized) -> Array:
        """Return the type of a list of `element`."""
        return Array(element)


class Nested(NamedTuple):
    """A struct within a struct."""


boolean = Fixed("?", 1)
int8 = Fixed("b", 1)
int16 = Fixed("h", 2)
int32 = Fixed("i", 4)
int64 = Fixed("q", 8)
float64 = Fixed("d", 8)
uint16 = Fixed("H", 2)
uuid = Fixed("16s", 16)
string = Sized("string", 2)
bytestring = Sized("bytes", 4)
records = Sized("records", 4)
array = Array(None)
nested = Nested()

Wire = Fixed | Sized | Array | Nested


class Ignorable(NamedTuple):
    """Marks a field that may be dropped in a version without it."""


class Tag(NamedTuple):
    """Marks a tagged field, with its number."""

    number: int


class Nullable(NamedTuple):
    """The versions in which an optional field may be null on the wire."""

    versions: Versions


ignorable = Ignorable()


def tag(number: int) -> Tag:
    """Mark a tagged field, which is absent from the wire while it has its default."""
    return Tag(number)


def nullable(versions: str) -> Nullable:
    """Allow null in these versions only; without this, an optional field may be null in all of its versions."""
    return Nullable(parse_versions(versions))


# --- classes -------------------------------------------------------------------------------------------------------


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


class Struct:
    """The base of every declared class. `__slots__` holds its fields in wire order."""

    __slots__: tuple[str, ...] = ()
    _defaults: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        # Called once per class: the real one, with its keywords, replaces this one.
        kind = type(self)
        kind.__init__ = _make_init(kind)  # type: ignore[method-assign]
        kind.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class Message(Struct):
    """A struct that stands alone, such as a request or a response, with an API key and versions."""

    __slots__: tuple[str, ...] = ()
    api_key: int
    versions: Versions
    flexible: Versions


def _make_init(kind: type[Struct]) -> Callable[..., None]:
    """Make the keyword-only `__init__` of a class, as `dataclasses` would write it."""
    keywords: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {"_absent": REQUIRED}
    for name in kind.__slots__:
        default = kind._defaults.get(name, REQUIRED)
        value = name
        if default is REQUIRED:
            keywords.append(name)
        elif isinstance(default, list):
            keywords.append(f"{name}=_absent")
            value = f"[] if {name} is _absent else {name}"
        else:
            names[f"_default_{name}"] = default
            keywords.append(f"{name}=_default_{name}")
        body.append(f"    self.{name} = {value}\n")
    source = f"def __init__(self{', *, ' if keywords else ''}{', '.join(keywords)}):\n{''.join(body) or '    pass'}"
    exec(compile(source, f"<{kind.__name__}.__init__>", "exec"), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{kind.__name__}.__init__"  # for the message of a TypeError
    return made


def _declare(cls: type[T], base: type, **extra: object) -> type[T]:
    names = tuple(cls.__annotations__)
    namespace = {key: value for key, value in cls.__dict__.items() if key not in (*names, "__dict__", "__weakref__")}
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    return type(cls.__name__, (base,), {**namespace, "__slots__": names, "_defaults": defaults, **extra})


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message. Its versions are those of the message that contains it."""
    return _declare(cls, Struct)


@dataclass_transform(kw_only_default=True)
def message(*, api_key: int, versions: str, flexible: str) -> Callable[[type[T]], type[T]]:
    """Declare a request or a response: its API key, its versions, and its flexible versions ("none" if it has none)."""

    def declare(cls: type[T]) -> type[T]:
        known = {"api_key": api_key, "versions": parse_versions(versions), "flexible": parse_versions(flexible)}
        return _declare(cls, Message, **known)

    return declare


_ELEMENTS = (None, int8, int16, int32, int64, string)
"""The element types of arrays; the protocol has no others."""

# --- what a declaration says ---------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One field of a declaration, after parsing."""

    name: str
    wire: Wire
    struct: type | None
    """The class of a nested struct, or of an array's elements."""
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool
    default: Any
    """The default, or `REQUIRED` if there is none; a list has to be copied."""


@cache
def fields(kind: type) -> tuple[Field, ...]:
    """Return the fields of a declared class, in wire order."""
    # Not `get_type_hints`: it looks into the class first, where a field may have the same name as its wire type.
    around = vars(sys.modules[kind.__module__])
    return tuple(_read(kind, name, eval(text, around)) for name, text in kind.__annotations__.items())


def _read(kind: type, name: str, hint: Any) -> Field:
    inner, *marks = get_args(hint)
    members = [each for each in get_args(inner) if each is not type(None)] if type(None) in get_args(inner) else None
    optional = members is not None
    if members is not None:
        inner = members[0]
    versions, null_in, number, may_ignore = EVERY, None, None, False
    wire: Wire | None = None
    for mark in marks:
        match mark:
            case str():
                versions = parse_versions(mark)
            case Nullable():
                null_in = mark.versions
            case Tag():
                number = mark.number
            case Ignorable():
                may_ignore = True
            case Fixed() | Sized() | Array() | Nested():
                wire = mark
            case _:
                raise TypeError(f"{kind.__name__}.{name}: what is {mark!r}?")
    if wire is None:
        raise TypeError(f"{kind.__name__}.{name} has no wire type")
    of: type | None = None
    if isinstance(wire, Nested):
        of = inner
    elif wire == array:
        (of,) = get_args(inner)
    if isinstance(wire, Array) and (get_origin(inner) is not list or wire.element not in _ELEMENTS):
        raise TypeError(f"{kind.__name__}.{name}: {hint!r} is not an array that can be read")
    null_versions = NEVER if not optional else null_in or versions
    default = kind._defaults.get(name, REQUIRED)  # type: ignore[attr-defined]
    return Field(name, wire, of, versions, null_versions, number, may_ignore, default)


# --- encode and decode ---------------------------------------------------------------------------------------------

Reader = Callable[[Buffer, int, list[int]], tuple[Any, int]]
Writer = Callable[[Any, Callable[[Buffer], None]], None]

_readers: dict[tuple[type, int], Reader] = {}
_writers: dict[tuple[type, int], Writer] = {}


def _codec(kind: type, version: int) -> tuple[Reader, Writer]:
    """Make the reader and the writer of a message. Raises `KafkaError` for a version the message does not have."""
    from kraftpy.protocol import codegen  # at first use: a server starts without it

    assert issubclass(kind, Message)
    if version not in kind.versions:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{kind.__name__} has versions {kind.versions}, not {version}")
    flexible = version in kind.flexible
    reader, writer = codegen.reader(kind, version, flexible), codegen.writer(kind, version, flexible)
    _readers[kind, version], _writers[kind, version] = reader, writer
    return reader, writer


def decode(kind: type[T], buffer: Buffer, version: int, *, max_elements: int = MAX_ELEMENTS, exact: bool = True) -> T:
    """Decode the message of class `kind` that `buffer` holds from its first byte to its last.

    `records` are views of `buffer`. At most `max_elements` array elements and tagged fields are read, all levels
    together. Bytes after the message are an error if `exact`; a client accepts them from its broker, as Kafka's own
    client does. Raises `ProtocolError` for malformed bytes (`TooManyElements` beyond `max_elements`), `KafkaError`
    (UNSUPPORTED_VERSION) for a version the message does not have.
    """
    reader = _readers.get((kind, version)) or _codec(kind, version)[0]
    try:
        value, end = reader(buffer, 0, [max_elements])
    except ProtocolError as error:
        raise type(error)(f"{kind.__name__} v{version}: {error}") from None
    except (IndexError, struct_error):
        raise ProtocolError(f"{kind.__name__} v{version}: ends early") from None
    if exact and end != len(buffer):
        raise ProtocolError(f"{kind.__name__} v{version}: {len(buffer) - end} bytes too many")
    result: T = value
    return result


def encode(value: object, version: int) -> bytes:
    """Return the bytes of a message in one version.

    Raises `KafkaError` (UNSUPPORTED_VERSION) if the version does not exist or cannot carry the message's values, and
    `ValueError` if a value does not fit its field.
    """
    parts: list[Buffer] = []
    encode_into(parts, value, version)
    return b"".join(parts)


def encode_into(parts: list[Buffer], value: object, version: int) -> None:
    """Append the bytes of a message to `parts`, `records` without a copy. Raises as `encode` does."""
    kind = type(value)
    writer = _writers.get((kind, version)) or _codec(kind, version)[1]
    try:
        writer(value, parts.append)
    except (struct_error, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{kind.__name__} v{version} cannot be encoded: {error}") from error
