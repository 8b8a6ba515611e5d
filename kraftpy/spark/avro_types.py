"""Translate an Avro schema into Spark's types.

Types map as in Spark's own Avro source: `long` with `timestamp-millis` or `-micros` is a timestamp, with
`local-timestamp-*` one without a zone, `int` with `date` a date, `bytes` or `fixed` with `decimal` a decimal, an enum
a string, and a union of null and one other type that other type. Unknown logical types are ignored, as the Avro
specification requires.

Left out, because no column can hold them: unions of several types, recursive schemas, times of day and `duration`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kraftpy.spark.offsets import OptionError

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}


_WITHOUT_COLUMN = frozenset({"time-millis", "time-micros", "duration"})


def to_ddl(text: str) -> str:
    """Return DDL such as `a bigint, b string` for a record schema in JSON. Raises OptionError."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise OptionError(f"value.schema: not an Avro schema in JSON ({error})") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise OptionError("value.schema: an Avro schema of a record is required; its fields become columns")
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in _Reader().fields(schema, ""))


class _Reader:
    """Walks through one schema. A named type can be referred to by its name once it has been defined."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}

    def fields(self, record: Mapping[str, Any], namespace: str) -> list[tuple[str, str]]:
        """Return names and types of a record's fields; `namespace` is that of the enclosing definition."""
        fields = record.get("fields")
        if not isinstance(fields, list) or not fields:
            raise OptionError(f"value.schema: record {record.get('name')!r} has no fields")
        inside = _full_name(record, namespace).rpartition(".")[0]
        found = []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise OptionError(f"value.schema: {field!r} of record {record.get('name')!r} is not a field")
            found.append((field["name"], self._type(field["type"], field["name"], inside)))
        return found

    def _type(self, schema: Any, where: str, namespace: str) -> str:
        """Return the type of the field `where`."""
        kind: str | None = None
        match schema:
            case str():
                in_namespace = f"{namespace}.{schema}" if namespace else schema
                kind = _PLAIN.get(schema) or self._named.get(in_namespace) or self._named.get(schema)
            case list():
                others = [each for each in schema if each != "null"]
                if len(others) != 1:
                    raise OptionError(f"value.schema: field {where!r} is a union of several types, which has no column")
                kind = self._type(others[0], where, namespace)
            case dict():
                kind = self._complex(schema, where, namespace)
                if "name" in schema and kind is not None:
                    self._named[_full_name(schema, namespace)] = kind
        if kind is None:
            raise OptionError(f"value.schema: field {where!r} is of a type that has no column: {schema!r}")
        return kind

    def _complex(self, schema: Mapping[str, Any], where: str, namespace: str) -> str | None:
        kind, logical = schema.get("type"), schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
        if logical in _WITHOUT_COLUMN:
            return None
        match kind:
            case "record":
                fields = self.fields(schema, namespace)
                return f"struct<{', '.join(f'{_quoted(name)}: {each}' for name, each in fields)}>"
            case "array":
                return f"array<{self._type(schema.get('items'), where, namespace)}>"
            case "map":
                return f"map<string, {self._type(schema.get('values'), where, namespace)}>"
            case "enum":
                return "string"
            case "fixed":
                return "binary"
            case str() if (kind, logical) in _LOGICAL:
                return _LOGICAL[kind, str(logical)]
            case _:
                return self._type(kind, where, namespace)


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name = str(schema.get("name", ""))
    if "." in name:
        return name
    within = schema.get("namespace", namespace)
    return f"{within}.{name}" if within else name


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
