"""The options that give values a type: `value.format`, `value.schema`, `mode`, `deadLetterTopic`.

The schema is DDL for JSON and MessagePack (`id bigint, name string`), and an Avro schema for Avro, whose records cannot
be read without one. DDL is passed to Spark unchanged, and Spark decides what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kraftpy.spark.avro_types import to_ddl
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.option_values import choice

FORMATS = ("json", "avro", "msgpack")
MODES = ("permissive", "dropmalformed", "failfast")
NEEDS_FORMAT = frozenset({"value.schema", "mode", "deadLetterTopic"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """How to parse values."""

    format: str
    mode: str
    ddl: str | None
    """The fields in Spark's words, if a schema was given."""
    avro_schema: str | None
    dead_letter_topic: str | None


def value_options(options: Mapping[str, str]) -> ValueOptions | None:
    """Parse options with lower-cased names; None if values stay binary. Raises OptionError."""
    if "value.format" not in options:
        for name in sorted(NEEDS_FORMAT):
            if name.lower() in options:
                raise OptionError(f"{name} has no effect without value.format ({', '.join(FORMATS)})")
        return None
    kind = choice(options, "value.format", FORMATS, "")
    mode = choice(options, "mode", MODES, "permissive")
    schema = options.get("value.schema")
    if schema is not None and not schema.strip():
        raise OptionError("value.schema: the schema is empty")
    if kind == "avro" and schema is None:
        raise OptionError("value.schema: Avro needs the schema that the records were written with")
    topic = options.get("deadlettertopic")
    if topic is not None and not topic.strip():
        raise OptionError("deadLetterTopic: a topic's name cannot be empty")
    if topic is not None and mode == "failfast":
        raise OptionError("deadLetterTopic: with mode=failfast the first malformed record ends the query")
    return ValueOptions(
        format=kind,
        mode=mode,
        ddl=to_ddl(schema) if kind == "avro" and schema is not None else schema,
        avro_schema=schema if kind == "avro" else None,
        dead_letter_topic=topic,
    )
