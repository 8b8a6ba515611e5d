"""Questions that a query asks brokers before it reads: which topics and partitions exist, and their offsets."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kraftpy.client.ranges.reader import RangeReader, UnknownTopic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.client_options import ClientOptions
from kraftpy.spark.counts import ReaderCounts
from kraftpy.spark.offsets import Offsets, SubscribePattern, wanted_topics
from kraftpy.spark.options import ReadOptions
from kraftpy.types import TopicPartition

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{env:([^}:]*)\}")

NO_ANSWER = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
"""The errors with which the client reports that no broker can be reached."""


def connect(client: ClientOptions, *, timeout_ms: int, fetch_bytes: int | None = None) -> RangeReader:
    """Open a reader for the options' broker, as a context manager. It gives up after `timeout_ms` without progress."""
    return RangeReader(
        client.bootstrap_servers,
        client_id=client.client_id,
        client_rack=rack_here(client.client_rack),
        isolation_level=client.isolation_level,
        request_timeout_ms=min(client.request_timeout_ms, timeout_ms),
        socket_connection_setup_timeout_ms=min(10_000, timeout_ms),
        default_api_timeout_ms=timeout_ms,
        max_partition_fetch_bytes=fetch_bytes or client.max_partition_fetch_bytes,
        fetch_max_wait_ms=client.fetch_max_wait_ms,
        receive_message_max_bytes=client.receive_message_max_bytes,
        **dict(client.security),
    )


def rack_here(rack: str) -> str:
    """Return the rack with `${env:NAME}` filled in from this process's environment; empty without such a variable."""
    return _VARIABLE.sub(lambda found: os.environ.get(found.group(1), ""), rack)


def admin_options(client: ClientOptions) -> dict[str, Any]:
    """Return options with which an `Admin` connects to the same broker."""
    return {
        "bootstrap_servers": client.bootstrap_servers,
        "client_id": client.client_id,
        "request_timeout_ms": client.request_timeout_ms,
        "default_api_timeout_ms": client.default_api_timeout_ms,
        "receive_message_max_bytes": client.receive_message_max_bytes,
        **dict(client.security),
    }


class Lookup:
    """Asks the broker, up to `fetchOffset.numRetries` more times, and keeps each answer so that it is asked for once.

    A `patient` lookup also retries that often if no broker answers: a stream survives the absence of its brokers, while
    a batch query should report a wrong address soon.
    """

    def __init__(
        self,
        options: ReadOptions,
        broker: RangeReader,
        *,
        patient: bool = False,
        counts: ReaderCounts | None = None,
    ) -> None:
        self._options = options
        self._broker = broker
        self._patient = patient
        self._counts = counts if counts is not None else ReaderCounts()
        self.topic_ids: dict[str, bytes] = {}
        """The ids of the topics found."""
        self._known: dict[tuple[str, TopicPartition], int] = {}

    def found_partitions(self) -> dict[str, list[int]]:
        """Return the partitions of the topics that the options name, without those that do not exist.

        A pattern does not match internal topics, as in Kafka's consumer: a stream that read the commits of its own
        progress would never be up to date.
        """
        subscription = self._options.subscription
        if isinstance(subscription, SubscribePattern):
            return self._describe(None)
        names = wanted_topics(subscription, ())
        try:
            return self._describe(names)
        except UnknownTopic:  # it names only one topic; find all that are missing
            return {name: found for each in names for name, found in self._describe_if_there(each).items()}

    def _describe(self, names: list[str] | None) -> dict[str, list[int]]:
        topics = self.ask(lambda: self._broker.topics(names))
        if names is None:
            topics = {name: topic for name, topic in topics.items() if not topic.is_internal}
        self.topic_ids.update({name: topic.topic_id for name, topic in topics.items()})
        return {name: [each.partition for each in topic.partitions] for name, topic in topics.items()}

    def _describe_if_there(self, name: str) -> dict[str, list[int]]:
        try:
            return self._describe([name])
        except UnknownTopic:
            return {}

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the log start offsets."""
        return self._once("earliest", partitions, self._broker.earliest)

    def latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the end offsets for this isolation level."""
        return self._once("latest", partitions, self._broker.latest)

    def at_timestamps(self, timestamps: Offsets) -> Mapping[TopicPartition, int | None]:
        """Return the offsets of the first records at or after these times (ms), or None."""
        answers = self.ask(lambda: self._broker.offsets(timestamps))
        return {where: None if answer is None else answer.offset for where, answer in answers.items()}

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return a group's committed offsets for these partitions, without those that have none."""
        from kraftpy.client.blocking.facade import BlockingAdmin

        with BlockingAdmin(**admin_options(self._options.client)) as admin:
            found = self.ask(lambda: admin.list_group_offsets(group_id))
        return {where: found[where].offset for where in partitions if where in found}

    def now_ms(self) -> int:
        """Return this machine's time."""
        return time.time_ns() // 1_000_000

    def _once(
        self,
        which: str,
        partitions: Sequence[TopicPartition],
        question: Callable[[Sequence[TopicPartition]], dict[TopicPartition, int]],
    ) -> Offsets:
        """Ask only about partitions not known yet: start and end of a plan must come from the same answer."""
        missing = [where for where in partitions if (which, where) not in self._known]
        if missing:
            answers = self.ask(lambda: question(missing))
            self._known.update({(which, where): offset for where, offset in answers.items()})
        return {where: self._known[which, where] for where in partitions}

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer; passing errors are retried. Raises UnknownTopic, ConnectionError, another KafkaError."""
        for left in range(self._options.offset_retries, -1, -1):
            try:
                return question()
            except UnknownTopic:
                raise
            except KafkaError as error:
                if error.code in NO_ANSWER and not (left and self._patient):  # the client itself has already retried
                    servers = self._options.client.bootstrap_servers
                    raise ConnectionError(f"no broker answered at {servers}: {error}") from None
                if not error.code.retriable or not left:
                    raise
            self._counts.retries += 1
            time.sleep(self._options.offset_retry_interval_ms / 1000)
        raise AssertionError("unreachable")
