"""The options of `format("kraftpy")`: the names, forms and defaults of Spark's own Kafka source, checked before use.

Names are case-insensitive, as everywhere in Spark. An unknown name is an error that suggests the nearest known one: if
a misspelt `startingOffset` were ignored, the query would silently read the wrong data. `kafka.*` options go to the
client under Kafka's names (`client_options`).

Our own options: `maxPartitions` merges neighbouring ranges into at most that many Spark partitions, because each task
costs tens of milliseconds and a topic may have many small partitions; `prefetchRecords` is the size up to which batches
of a stream have no such task; `maxBytesPerTrigger`; `commitGroupId` names a consumer group in which the stream commits
its progress; `startingOffsets=committed`; times such as `-10 minutes`; and the options that give values a type
(`value_options`).

`kafka.default.api.timeout.ms` is how long planning tries to reach a silent broker; it defaults to 10 s, so that a wrong
address is reported soon. Tasks wait `kafkaConsumer.pollTimeoutMs` for the next record.

Stream options have no effect on a batch query and cause a warning, as with Spark's own source. A stream has no end, so
options for one are refused. No consumer group is joined, so `groupIdPrefix` has nothing to name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kraftpy.spark.client_options import CLIENT_USED, ClientOptions, check_client_name, client_options
from kraftpy.spark.offsets import (
    EARLIEST,
    LATEST,
    Assign,
    AtOffsets,
    AtTimestamps,
    ByDuration,
    Committed,
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
from kraftpy.spark.option_values import duration_ms, flag, nearest, number, optional_number, spelt
from kraftpy.spark.value_options import ValueOptions, value_options

READ = frozenset(
    {
        "assign",
        "deadLetterTopic",
        "failOnDataLoss",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "includeHeaders",
        "isolation.level",
        "kafkaConsumer.pollTimeoutMs",
        "maxPartitions",
        "maxRecordsPerPartition",
        "minPartitions",
        "mode",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingTimestamp",
        "subscribe",
        "subscribePattern",
        "value.format",
        "value.schema",
    }
)
"""Options of batch queries and streams alike."""
ENDINGS = frozenset({"endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"})
BATCH_ONLY = ENDINGS | {"pushdown"}
STREAM_ONLY = frozenset(
    {
        "commitGroupId",
        "maxBytesPerTrigger",
        "maxOffsetsPerTrigger",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
        "prefetchRecords",
    }
)
WITHOUT_EFFECT = frozenset({"groupIdPrefix"})
PREFETCH_RECORDS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options that batch queries and streams share."""

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
    values: ValueOptions | None
    """How to parse values; None if they stay binary."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The checked options of a stream."""

    read: ReadOptions
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    """How long `min_offsets` may delay a batch."""
    max_bytes: int | None
    commit_group: str | None
    prefetch_records: int
    """Batches of at most so many records are read where the stream is planned."""


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of `spark.read.format("kraftpy")`. Raises OptionError."""
    options = _lowered(given)
    warnings = _check_names(given)
    for name in sorted(given):
        if name.lower() in _lowered_names(STREAM_ONLY) and not _names_the_group(options, name.lower()):
            warnings.append(f"option {spelt(name, STREAM_ONLY)} has no effect on a batch query")
    flag(options, "pushdown", default=False)  # already used to choose the reader; checked here as well
    return _read_options(options, _batch_start(options), _ending(options), warnings)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of `spark.readStream.format("kraftpy")`. Raises OptionError."""
    options = _lowered(given)
    warnings = _check_names(given)
    for name in sorted(given):
        if name.lower() in _lowered_names(ENDINGS):
            raise OptionError(f"option {spelt(name, ENDINGS)!r} is not supported: a stream has no end")
    if flag(options, "pushdown", default=False):
        warnings.append("option pushdown has no effect on a stream: Spark pushes no filters into one")
    most, least = (optional_number(options, name, least=1) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"))
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    if "maxtriggerdelay" in options and least is None:
        raise OptionError("maxTriggerDelay: it says how long minOffsetsPerTrigger may wait, and that is not given")
    return StreamOptions(
        read=_read_options(options, _starting(options) or Latest(), Latest(), warnings),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=duration_ms("maxTriggerDelay", options.get("maxtriggerdelay", "15m")),
        max_bytes=optional_number(options, "maxBytesPerTrigger", least=1),
        commit_group=_group(options, "commitGroupId"),
        prefetch_records=number(options, "prefetchRecords", PREFETCH_RECORDS, least=0),
    )


def parse_any_options(given: Mapping[str, str]) -> ReadOptions:
    """Check options before it is known whether a batch or a stream is meant. Raises OptionError."""
    try:
        return parse_read_options(given)
    except OptionError as error:
        try:
            return parse_stream_options(given).read
        except OptionError as of_stream:
            is_stream = any(name.lower() in _lowered_names(STREAM_ONLY) for name in given)
            raise (of_stream if is_stream else error) from None


def _read_options(options: Mapping[str, str], starting: Position, ending: Position, warnings: list[str]) -> ReadOptions:
    min_partitions = optional_number(options, "minPartitions", least=1)
    max_partitions = optional_number(options, "maxPartitions", least=1)
    if min_partitions is not None and max_partitions is not None and min_partitions > max_partitions:
        raise OptionError(f"minPartitions ({min_partitions}) is above maxPartitions ({max_partitions})")
    return ReadOptions(
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        client=client_options(options),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        include_headers=flag(options, "includeHeaders", default=False),
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records_per_partition=optional_number(options, "maxRecordsPerPartition", least=1),
        poll_timeout_ms=number(options, "kafkaConsumer.pollTimeoutMs", 120_000, least=1),
        offset_retries=number(options, "fetchOffset.numRetries", 3, least=0),
        offset_retry_interval_ms=number(options, "fetchOffset.retryIntervalMs", 10, least=0),
        values=value_options(options),
        warnings=tuple(warnings),
    )


# Names ---------------------------------------------------------------------------------------------------------


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in given.items()}


def _lowered_names(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _check_names(given: Mapping[str, str]) -> list[str]:
    """Return warnings about names. Raises OptionError for an unknown or forbidden one."""
    known = _lowered_names(READ | BATCH_ONLY | STREAM_ONLY)
    without_effect = _lowered_names(WITHOUT_EFFECT)
    options = _lowered(given)
    warnings = []
    for name in sorted(given):
        lowered = name.lower()
        if lowered.startswith("kafka."):
            if not _names_the_group(options, lowered):
                warnings += check_client_name(name, lowered.removeprefix("kafka."))
        elif lowered in without_effect:
            warnings.append(f"option {spelt(name, WITHOUT_EFFECT)} has no effect: no consumer group is joined")
        elif lowered == "path":
            raise OptionError("load() takes no path; name the topics with option subscribe")
        elif lowered not in known:
            every = [*READ, *BATCH_ONLY, *STREAM_ONLY, *WITHOUT_EFFECT, *(f"kafka.{each}" for each in CLIENT_USED)]
            raise OptionError(f"unknown option {name!r}{nearest(name, every)}")
    return warnings


def _names_the_group(options: Mapping[str, str], lowered: str) -> bool:
    """Return whether this option names the group whose committed offsets a query starts from."""
    if options.get("startingoffsets", "").strip().lower() != "committed":
        return False
    return lowered == ("commitgroupid" if "commitgroupid" in options else "kafka.group.id")


# Values --------------------------------------------------------------------------------------------------------


def _group(options: Mapping[str, str], name: str) -> str | None:
    group_id = options.get(name.lower())
    if group_id is not None and not group_id.strip():
        raise OptionError(f"{name}: a group id cannot be empty")
    return group_id


def _subscription(options: Mapping[str, str]) -> Subscription:
    names = ("assign", "subscribe", "subscribePattern")
    given = [name for name in names if name.lower() in options]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise OptionError(f"exactly one of the options assign, subscribe and subscribePattern is required; {found}")
    text = options[given[0].lower()]
    if given[0] == "assign":
        return Assign(partitions=parse_assignment("assign", text))
    if given[0] == "subscribe":
        topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise OptionError("subscribe: it names no topics; expected topics separated by commas")
        return Subscribe(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: {text!r} is not a regular expression ({error})") from None
    if not text.strip():
        raise OptionError("subscribePattern: an empty pattern matches nothing")
    return SubscribePattern(pattern=text)


def _batch_start(options: Mapping[str, str]) -> Position:
    """Return where a batch starts; the end is refused, because there would be nothing to read."""
    position = _starting(options)
    if isinstance(position, Latest):
        raise OptionError("startingOffsets: a batch query cannot start at latest; it would read nothing")
    if isinstance(position, AtOffsets) and LATEST in position.offsets.values():
        raise OptionError("startingOffsets: a batch query cannot start at latest (-1); it would read nothing")
    return position or Earliest()


def _starting(options: Mapping[str, str]) -> Position | None:
    """Return where to start: startingTimestamp wins over startingOffsetsByTimestamp, and that over startingOffsets."""
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy: {strategy!r} is neither error nor latest")
    by_time = _by_time(options, "starting", latest_if_none=strategy == "latest")
    if by_time is not None:
        return by_time
    text = options.get("startingoffsets")
    if text is None:
        return None
    match text.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case "committed":
            group_id = _group(options, "commitGroupId") or _group(options, "kafka.group.id")
            if group_id is None:
                raise OptionError("startingOffsets: 'committed' needs a group: set commitGroupId or kafka.group.id")
            return Committed(group_id=group_id)
        case ago if ago.startswith("-"):
            return _ago("startingOffsets", ago)
    return AtOffsets(option="startingOffsets", offsets=parse_partition_numbers("startingOffsets", text, least=EARLIEST))


def _ending(options: Mapping[str, str]) -> Position:
    """Return where to end: endingTimestamp wins over endingOffsetsByTimestamp, and that over endingOffsets."""
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
    text = options.get(single.lower(), "").strip()
    if text.startswith("-") and not text[1:].isdecimal():
        return _ago(single, text)
    timestamp = optional_number(options, single, least=0)
    if timestamp is not None:
        return AtTimestamps(option=single, timestamps=timestamp, latest_if_none=latest_if_none)
    text_of_each = options.get(each.lower())
    if text_of_each is None:
        return None
    timestamps = parse_partition_numbers(each, text_of_each, least=0)
    return AtTimestamps(option=each, timestamps=timestamps, latest_if_none=latest_if_none)


def _ago(option: str, text: str) -> ByDuration:
    """Parse `-10 minutes`."""
    return ByDuration(option=option, milliseconds=duration_ms(option, text[1:]))
