"""The options of `format("kraftpy")`: the names, forms and defaults of Spark's own Kafka source, checked before use.

Names are case-insensitive, as everywhere in Spark. An unknown name is an error that names the nearest known one: a
misspelt `startingOffset` that is ignored would read the wrong data without a word. `kafka.*` options go to the
client under Kafka's names; those Kafka has and this client does not use are accepted with a warning.

One option is our own: `maxPartitions` merges neighbouring ranges into at most that many Spark partitions, because
each task costs tens of milliseconds and a topic may have many small partitions.

`kafka.default.api.timeout.ms` is how long planning asks a broker that does not answer; 10 s where it is left out,
so that a wrong address is told soon. Tasks wait `kafkaConsumer.pollTimeoutMs` for the next record.

Left out: options of streaming queries (`maxOffsetsPerTrigger`, ...) are accepted with a warning, as Spark's batch
source does; the reader joins no consumer group, so `groupIdPrefix` and `kafka.group.id` have nothing to name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kraftpy.spark.offsets import (
    EARLIEST,
    LATEST,
    Assign,
    AtOffsets,
    AtTimestamps,
    Earliest,
    Latest,
    OptionError,
    Position,
    Subscribe,
    SubscribePattern,
    Subscription,
    parse_assignment,
    parse_partition_numbers,
)

READ = frozenset(
    {
        "assign",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "failOnDataLoss",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "includeHeaders",
        "kafkaConsumer.pollTimeoutMs",
        "maxPartitions",
        "maxRecordsPerPartition",
        "minPartitions",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingTimestamp",
        "subscribe",
        "subscribePattern",
    }
)
WITHOUT_EFFECT = frozenset({"groupIdPrefix", "maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger"})

FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the reader commits no offsets",
    "interceptor.classes": "interceptors may break the query",
    "key.deserializer": "keys are always binary; cast them in the query",
    "key.serializer": "keys are always binary",
    "value.deserializer": "values are always binary; cast them in the query",
    "value.serializer": "values are always binary",
}
CLIENT_USED = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "default.api.timeout.ms",
        "fetch.max.wait.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "request.timeout.ms",
    }
)
CLIENT_WITHOUT_EFFECT = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
# What follows changes who may read what: accepting it silently would be a promise not kept.
CLIENT_REFUSED_PREFIXES = ("sasl.", "ssl.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The `kafka.*` options the client uses."""

    bootstrap_servers: str
    client_id: str
    isolation_level: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """One batch query's options, checked."""

    subscription: Subscription
    starting: Position
    ending: Position
    client: ClientOptions
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    warnings: tuple[str, ...]


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of `spark.read.format("kraftpy")`. Raises OptionError."""
    options = {name.lower(): value for name, value in given.items()}
    warnings = _check_names(given)
    min_partitions = _optional_number(options, "minPartitions", least=1)
    max_partitions = _optional_number(options, "maxPartitions", least=1)
    if min_partitions is not None and max_partitions is not None and min_partitions > max_partitions:
        raise OptionError(f"minPartitions ({min_partitions}) is above maxPartitions ({max_partitions})")
    client = _client_options(options)
    return ReadOptions(
        subscription=_subscription(options),
        starting=_starting(options),
        ending=_ending(options),
        client=client,
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_flag(options, "includeHeaders", default=False),
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records_per_partition=_optional_number(options, "maxRecordsPerPartition", least=1),
        poll_timeout_ms=_number(options, "kafkaConsumer.pollTimeoutMs", 120_000, least=1),
        offset_retries=_number(options, "fetchOffset.numRetries", 3, least=0),
        offset_retry_interval_ms=_number(options, "fetchOffset.retryIntervalMs", 10, least=0),
        warnings=tuple(warnings),
    )


# Names ---------------------------------------------------------------------------------------------------------


def _check_names(given: Iterable[str]) -> list[str]:
    """The warnings there are about names. Raises OptionError for one that is unknown or forbidden."""
    read = {name.lower() for name in READ}
    without_effect = {name.lower() for name in WITHOUT_EFFECT}
    warnings = []
    for name in sorted(given):
        lowered = name.lower()
        if lowered.startswith("kafka."):
            warnings += _check_client_name(name, lowered.removeprefix("kafka."))
        elif lowered in without_effect:
            warnings.append(f"option {_spelt(name, WITHOUT_EFFECT)} has no effect on a batch query")
        elif lowered == "path":
            raise OptionError("load() takes no path; name the topics with option subscribe")
        elif lowered not in read:
            known = [*READ, *WITHOUT_EFFECT, *(f"kafka.{each}" for each in CLIENT_USED)]
            raise OptionError(f"unknown option {name!r}{_nearest(name, known)}")
    return warnings


def _check_client_name(name: str, plain: str) -> list[str]:
    if plain in FORBIDDEN:
        raise OptionError(f"option {name!r} is not supported: {FORBIDDEN[plain]}")
    if plain.startswith(CLIENT_REFUSED_PREFIXES):
        raise OptionError(f"option {name!r} is not supported: this client speaks plain text only")
    if plain in CLIENT_USED or plain == "security.protocol":
        return []
    if plain in CLIENT_WITHOUT_EFFECT:
        return [f"option kafka.{plain} is not used by this reader"]
    known = [f"kafka.{each}" for each in (*CLIENT_USED, *CLIENT_WITHOUT_EFFECT, "security.protocol")]
    raise OptionError(f"unknown option {name!r}{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), sorted(by_lowered), n=1, cutoff=0.5)
    return f"; did you mean {by_lowered[close[0]]!r}?" if close else ""


def _spelt(name: str, known: Iterable[str]) -> str:
    return next(each for each in known if each.lower() == name.lower())


# Values --------------------------------------------------------------------------------------------------------


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: {text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    number = _optional_number(options, name, least=least)
    return default if number is None else number


def _optional_number(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"{name}: {text!r} is not a whole number of at least {least}")
    return number


def _subscription(options: Mapping[str, str]) -> Subscription:
    names = ("assign", "subscribe", "subscribePattern")
    given = [name for name in names if name.lower() in options]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise OptionError(f"exactly one of the options assign, subscribe and subscribePattern is needed; {found}")
    text = options[given[0].lower()]
    if given[0] == "assign":
        return Assign(partitions=parse_assignment("assign", text))
    if given[0] == "subscribe":
        topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise OptionError("subscribe: no topic in it; expected topics separated by commas")
        return Subscribe(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: {text!r} is not a regular expression ({error})") from None
    if not text.strip():
        raise OptionError("subscribePattern: an empty pattern matches nothing")
    return SubscribePattern(pattern=text)


def _starting(options: Mapping[str, str]) -> Position:
    """Where to start: startingTimestamp before startingOffsetsByTimestamp before startingOffsets."""
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy: {strategy!r} is neither error nor latest")
    by_time = _by_time(options, "starting", latest_if_none=strategy == "latest")
    if by_time is not None:
        return by_time
    text = options.get("startingoffsets", "earliest").strip()
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        raise OptionError("startingOffsets: a batch query cannot start at latest; it would read nothing")
    offsets = parse_partition_numbers("startingOffsets", text, least=EARLIEST)
    if LATEST in offsets.values():
        raise OptionError("startingOffsets: a batch query cannot start at latest (-1); it would read nothing")
    return AtOffsets(option="startingOffsets", offsets=offsets)


def _ending(options: Mapping[str, str]) -> Position:
    """Where to end: endingTimestamp before endingOffsetsByTimestamp before endingOffsets."""
    by_time = _by_time(options, "ending", latest_if_none=True)
    if by_time is not None:
        return by_time
    text = options.get("endingoffsets", "latest").strip()
    if text.lower() == "latest":
        return Latest()
    if text.lower() == "earliest":
        raise OptionError("endingOffsets: a query cannot end at earliest; it would read nothing")
    offsets = parse_partition_numbers("endingOffsets", text, least=EARLIEST)
    if EARLIEST in offsets.values():
        raise OptionError("endingOffsets: a query cannot end at earliest (-2); it would read nothing")
    return AtOffsets(option="endingOffsets", offsets=offsets)


def _by_time(options: Mapping[str, str], which: str, *, latest_if_none: bool) -> Position | None:
    single, each = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    timestamp = _optional_number(options, single, least=0)
    if timestamp is not None:
        return AtTimestamps(option=single, timestamps=timestamp, latest_if_none=latest_if_none)
    text = options.get(each.lower())
    if text is None:
        return None
    timestamps = parse_partition_numbers(each, text, least=0)
    return AtTimestamps(option=each, timestamps=timestamps, latest_if_none=latest_if_none)


def _client_options(options: Mapping[str, str]) -> ClientOptions:
    servers = options.get("kafka.bootstrap.servers", "").strip()
    if not servers:
        raise OptionError("option kafka.bootstrap.servers is needed: host:port, several separated by commas")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"kafka.bootstrap.servers: {server.strip()!r} is not host:port")
    isolation_level = options.get("kafka.isolation.level", "read_uncommitted").strip().lower()
    if isolation_level not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level: {isolation_level!r} is neither read_uncommitted nor read_committed")
    protocol = options.get("kafka.security.protocol", "PLAINTEXT").strip().upper()
    if protocol != "PLAINTEXT":
        raise OptionError(f"kafka.security.protocol: {protocol} is not supported: this client speaks plain text only")
    return ClientOptions(
        bootstrap_servers=servers,
        client_id=options.get("kafka.client.id", "kraftpy-spark"),
        isolation_level=isolation_level,
        request_timeout_ms=_number(options, "kafka.request.timeout.ms", 30_000, least=1),
        default_api_timeout_ms=_number(options, "kafka.default.api.timeout.ms", 10_000, least=1),
        max_partition_fetch_bytes=_number(options, "kafka.max.partition.fetch.bytes", 8 << 20, least=1),
        fetch_max_wait_ms=_number(options, "kafka.fetch.max.wait.ms", 500, least=1),
    )
