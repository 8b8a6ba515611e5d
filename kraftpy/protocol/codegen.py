"""Generates the Python source of a message's codec, for one version.

For each declared class, version and form (flexible or not) there is one reader and one writer. A reader is
`read(buffer, position, budget) -> (message, next position)`, a writer `write(message, emit)`, where `emit` takes each
piece of output. Both look like code written by hand for that version: no loop over fields, no test of the version, one
`struct` call for each run of fixed-width fields. `source(kind, version, flexible)` shows it.

Invariant: the source is made from our own declarations only, never from anything received over the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from struct import Struct as Layout
from typing import Any, NoReturn

from kraftpy.ports import Buffer
from kraftpy.protocol import primitives
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.schema import REQUIRED, Array, Field, Fixed, Nested, Reader, Sized, Struct, Writer, fields

# Nullable structs open with one signed byte (KIP-893).
NULL, NOT_NULL = b"\xff", b"\x01"


def reader(kind: type, version: int, flexible: bool) -> Reader:
    """Return the reader of a class in one version."""
    return _compiled(kind, version, flexible)[0]


def writer(kind: type, version: int, flexible: bool) -> Writer:
    """Return the writer of a class in one version."""
    return _compiled(kind, version, flexible)[1]


def source(kind: type, version: int, flexible: bool) -> str:
    """Return the generated source of both functions, for people to look at."""
    return _Source(kind, version, flexible).text()


@cache
def _compiled(kind: type, version: int, flexible: bool) -> tuple[Reader, Writer]:
    made = _Source(kind, version, flexible)
    exec(compile(made.text(), f"<codec of {kind.__name__} v{version}>", "exec"), made.names)
    return made.names["read"], made.names["write"]


@cache
def _numbers(code: str) -> primitives.Numbers:
    return primitives.Numbers(code)


@cache
def min_size(kind: type, version: int, flexible: bool) -> int:
    """Return the fewest bytes that a struct of this class can take, and at least 1."""
    present = [field for field in fields(kind) if version in field.versions and field.tag is None]
    return max(1, flexible + sum(_min_field_size(field, version, flexible) for field in present))


def _min_field_size(field: Field, version: int, flexible: bool) -> int:
    match field.wire:
        case Fixed():
            return field.wire.size
        case Sized():
            return 1 if flexible else field.wire.prefix
        case Array():
            return 1 if flexible else 4
        case Nested():
            assert field.struct is not None
            return 1 if version in field.nullable else min_size(field.struct, version, flexible)


def _absent(message: Struct, name: str, version: int) -> NoReturn:
    what = f"{type(message).__name__} v{version} has no {name}, which is {getattr(message, name)!r:.80}"
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, what)


def _not_null(message: Struct, name: str, version: int) -> NoReturn:
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{type(message).__name__} v{version} cannot carry {name}=None")


def _null_marker(buffer: Buffer, position: int) -> bool:
    """Return whether the struct that begins here is null."""
    return buffer[position] >= 0x80


class _Source:
    """Writes one reader and one writer, collecting the names they refer to."""

    def __init__(self, kind: type, version: int, flexible: bool) -> None:
        self.kind, self.version, self.flexible = kind, version, flexible
        self.compact = "compact_" if flexible else ""
        self.names: dict[str, Any] = {
            "kind": kind,
            "new": object.__new__,
            "absent": _absent,
            "not_null": _not_null,
            "is_null": _null_marker,
            "int32": Layout(">i").pack,
            "NULL": NULL,
            "NOT_NULL": NOT_NULL,
            **{name: value for name, value in vars(primitives).items() if callable(value)},
        }
        present = [field for field in fields(kind) if version in field.versions]
        self.plain = [field for field in present if field.tag is None]
        self.tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
        self.missing = [field for field in fields(kind) if version not in field.versions]

    def text(self) -> str:
        """Return the source of both functions."""
        lines = ["def read(buffer, position, budget):", "    self = new(kind)"]
        lines += self._reader()
        lines += ["    return self, position", "", "def write(self, emit):"]
        lines += list(self._writer()) or ["    pass"]
        return "\n".join(lines) + "\n"

    def _name(self, prefix: str, value: object) -> str:
        """Return a name under which the generated code can reach `value`."""
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def _runs(self) -> Iterator[Field | list[Field]]:
        """Yield the plain fields in order; adjacent fields of fixed width come as one list."""
        run: list[Field] = []
        for field in self.plain:
            if isinstance(field.wire, Fixed):
                run.append(field)
                continue
            if run:
                yield run
                run = []
            yield field
        if run:
            yield run

    def _default(self, field: Field) -> str:
        """Return an expression for the value of a field that is not on the wire."""
        if field.default is REQUIRED:
            raise TypeError(f"{self.kind.__name__}.{field.name} is not in every version and has no default")
        return "[]" if isinstance(field.default, list) else self._name("default", field.default)

    # --- reading ---

    def _reader(self) -> Iterator[str]:
        for field in self.missing:
            yield f"    self.{field.name} = {self._default(field)}"
        for each in self._runs():
            if isinstance(each, list):
                layout = Layout(">" + "".join(field.wire.code for field in each if isinstance(field.wire, Fixed)))
                unpack = self._name("unpack", layout.unpack_from)
                yield f"    {''.join(f'self.{field.name}, ' for field in each)}= {unpack}(buffer, position)"
                yield f"    position += {layout.size}"
            else:
                yield from self._read_field(each, f"self.{each.name}")
        if not self.flexible:
            return
        if not self.tagged:
            yield "    position = skip_tags(buffer, position, budget) if buffer[position] else position + 1"
            return
        for field in self.tagged:
            yield f"    self.{field.name} = {self._default(field)}"
        known = self._name("known", {field.tag: (field.name, self._tag_reader(field)) for field in self.tagged})
        yield "    if buffer[position]:"
        yield f"        position = read_tags(buffer, position, budget, {known}, self)"
        yield "    else:"
        yield "        position += 1"

    def _read_field(self, field: Field, into: str) -> Iterator[str]:
        null = "nullable_" if self.version in field.nullable else ""
        match field.wire:
            case Fixed():
                unpack = self._name("unpack", Layout(">" + field.wire.code).unpack_from)
                yield f"    {into}, = {unpack}(buffer, position)"
                yield f"    position += {field.wire.size}"
            case Sized():
                yield f"    {into}, position = read_{self.compact}{null}{field.wire.name}(buffer, position)"
            case Array():
                yield from self._read_array(field, field.wire, null, into)
            case Nested():
                assert field.struct is not None
                read = self._name("read", reader(field.struct, self.version, self.flexible))
                if not null or field.tag is not None:
                    yield f"    {into}, position = {read}(buffer, position, budget)"
                else:
                    yield "    if is_null(buffer, position):"
                    yield f"        {into}, position = None, position + 1"
                    yield "    else:"
                    yield f"        {into}, position = {read}(buffer, position + 1, budget)"

    def _read_array(self, field: Field, wire: Array, null: str, into: str) -> Iterator[str]:
        size = self._element_size(field, wire)
        yield f"    count, position = read_{self.compact}{null}count(buffer, position, {size}, budget)"
        indent = "    "
        if null:
            yield "    if count < 0:"
            yield f"        {into} = None"
            yield "    else:"
            indent = "        "
        if isinstance(wire.element, Fixed):
            read = self._name("read", _numbers(wire.element.code).read)
            yield f"{indent}{into} = {read}(buffer, position, count)"
            yield f"{indent}position += count * {wire.element.size}"
            return
        if wire.element is None:
            assert field.struct is not None
            read = self._name("read", reader(field.struct, self.version, self.flexible)) + "(buffer, position, budget)"
        else:
            read = f"read_{self.compact}{wire.element.name}(buffer, position)"
        yield f"{indent}{into} = items = []"
        yield f"{indent}for _ in range(count):"
        yield f"{indent}    item, position = {read}"
        yield f"{indent}    items.append(item)"

    def _element_size(self, field: Field, wire: Array) -> int:
        match wire.element:
            case Fixed():
                return wire.element.size
            case Sized():
                return 1 if self.flexible else wire.element.prefix
            case None:
                assert field.struct is not None
                return min_size(field.struct, self.version, self.flexible)

    def _tag_reader(self, field: Field) -> Callable[..., Any]:
        """Make a separate function for a field that is seldom present."""
        lines = [
            "def read_tag(buffer, position, budget):",
            *self._read_field(field, "value"),
            "    return value, position",
        ]
        return self._function("\n".join(lines), "read_tag")

    def _function(self, text: str, name: str) -> Callable[..., Any]:
        names = dict(self.names)
        exec(compile(text, f"<codec of {self.kind.__name__} v{self.version}>", "exec"), names)
        made: Callable[..., Any] = names[name]
        return made

    # --- writing ---

    def _writer(self) -> Iterator[str]:
        for field in self.missing:
            if not field.ignorable:
                yield f"    if {self._differs(field)}:"
                yield f"        absent(self, {field.name!r}, {self.version})"
        for each in self._runs():
            if isinstance(each, list):
                layout = Layout(">" + "".join(field.wire.code for field in each if isinstance(field.wire, Fixed)))
                pack = self._name("pack", layout.pack)
                yield f"    emit({pack}({', '.join(f'self.{field.name}' for field in each)}))"
            else:
                yield from self._write_field(each)
        if self.flexible and not self.tagged:
            yield "    emit(b'\\0')"
        elif self.flexible:
            yield from self._write_tags()

    def _differs(self, field: Field) -> str:
        """Return an expression that is true if a field differs from its default."""
        value, default = f"self.{field.name}", field.default
        if isinstance(default, list):
            return f"{value} or {value} is None" if field.nullable.first <= field.nullable.last else value
        if isinstance(default, Struct):
            name = self._name("default", default)
            each = " or ".join(f"{value}.{part} != {name}.{part}" for part in default.__slots__)
            return f"{value} is not {name} and ({each})"
        if default is None or isinstance(default, bool):
            return f"{value} is not {default}"
        return f"{value} != {self._name('default', default)}"

    def _write_field(self, field: Field) -> Iterator[str]:
        value, null = f"self.{field.name}", self.version in field.nullable
        if not null and field.nullable.first <= field.nullable.last:
            yield f"    if {value} is None:"
            yield f"        not_null(self, {field.name!r}, {self.version})"
        match field.wire:
            case Fixed():
                yield f"    emit({self._name('pack', Layout('>' + field.wire.code).pack)}({value}))"
            case Sized(name="string"):
                yield f"    emit({self.compact}{'nullable_' if null else ''}string({value}))"
            case Sized():
                length = f"uvarint(len({value}) + 1)" if self.flexible else f"int32(len({value}))"
                nothing = "b'\\0'" if self.flexible else "b'\\xff\\xff\\xff\\xff'"
                yield from self._unless_null(null, value, nothing, [f"emit({length})", f"emit({value})"])
            case Array():
                nothing = "b'\\0'" if self.flexible else "b'\\xff\\xff\\xff\\xff'"
                yield f"    items = {value}"
                yield from self._unless_null(null, "items", nothing, list(self._elements(field, field.wire)))
            case Nested():
                assert field.struct is not None
                write = self._name("write", writer(field.struct, self.version, self.flexible))
                marked = [f"emit(NOT_NULL); {write}({value}, emit)"] if null else [f"{write}({value}, emit)"]
                yield from self._unless_null(null, value, "NULL", marked)

    @staticmethod
    def _unless_null(null: bool, value: str, nothing: str, lines: list[str]) -> Iterator[str]:
        if null:
            yield f"    if {value} is None:"
            yield f"        emit({nothing})"
            yield "    else:"
        for line in lines:
            yield ("        " if null else "    ") + line

    def _elements(self, field: Field, wire: Array) -> Iterator[str]:
        if isinstance(wire.element, Fixed):
            numbers = _numbers(wire.element.code)
            write = self._name("write", numbers.compact_write if self.flexible else numbers.write)
            yield f"emit({write}(items))"
            return
        yield "emit(uvarint(len(items) + 1))" if self.flexible else "emit(int32(len(items)))"
        if wire.element is None:
            assert field.struct is not None
            write = self._name("write", writer(field.struct, self.version, self.flexible))
            yield f"for item in items: {write}(item, emit)"
        else:
            yield f"for item in items: emit({self.compact}{wire.element.name}(item))"

    def _write_tags(self) -> Iterator[str]:
        yield "    tags = []"
        for field in self.tagged:
            lines = ["def write_tag(self, emit):", *self._write_field(field)]
            write = self._name("write_tag", self._function("\n".join(lines), "write_tag"))
            yield f"    if {self._differs(field)}:"
            yield "        parts = []"
            yield f"        {write}(self, parts.append)"
            yield "        data = b''.join(parts)"
            yield f"        tags.append(uvarint({field.tag}) + uvarint(len(data)) + data)"
        yield "    emit(uvarint(len(tags)) + b''.join(tags))"
