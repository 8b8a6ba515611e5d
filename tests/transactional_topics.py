"""Transactional topics whose logs end with what is no record: markers, several in a row, aborted records, both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import confluent_kafka

SECONDS: Final = 30.0


class Writer:
    """Writes transactions into one partition."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str = "") -> None:
        self.topic = topic
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id or f"{topic}-writer", "linger.ms": 0}
        )
        self._producer.init_transactions(SECONDS)

    def begin(self, *values: str, partition: int = 0) -> None:
        """Begin a transaction and write records in it."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self.topic, value.encode(), partition=partition)
        assert self._producer.flush(SECONDS) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS)


def _ends_in_a_commit(writers: list[Writer]) -> None:
    writers[0].begin("1", "2")
    writers[0].commit()


def _ends_in_an_abort(writers: list[Writer]) -> None:
    _ends_in_a_commit(writers)
    writers[0].begin("aborted", "aborted too")
    writers[0].abort()


def _ends_in_markers_in_a_row(writers: list[Writer]) -> None:
    for number, writer in enumerate(writers, 1):
        writer.begin(str(number))
    for writer in writers:
        writer.commit()


def _ends_in_mixed_markers(writers: list[Writer]) -> None:
    _ends_in_a_commit(writers)
    for writer in writers:
        writer.begin("aborted")
    for writer in writers:
        writer.abort()
    for _ in range(2):
        writers[0].begin("aborted")
        writers[0].abort()


def _abort_all_records(writers: list[Writer]) -> None:
    for writer in writers:
        writer.begin("aborted")
        writer.abort()


ENDINGS: Final[Mapping[str, tuple[Callable[[list[Writer]], None], list[str]]]] = {
    "a commit marker": (_ends_in_a_commit, ["1", "2"]),
    "aborted records": (_ends_in_an_abort, ["1", "2"]),
    "markers in a row": (_ends_in_markers_in_a_row, ["1", "2", "3"]),
    "aborts in a row": (_ends_in_mixed_markers, ["1", "2"]),
    "aborted records only": (_abort_all_records, []),
}
"""How a partition ends: what writes it, and the values of its committed records."""


def write_ending(bootstrap: str, topic: str, ending: str) -> list[str]:
    """Write a partition's transactions, and return the values of the committed records."""
    write, values = ENDINGS[ending]
    write([Writer(bootstrap, topic, f"{topic}-writer-{number}") for number in range(3)])
    return values
