"""Mutants of idempotent producers: sequences, epochs, duplicates, and several batches in flight."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import Mutant, cycle, three, wrapped
from chaos.nemesis import Kind
from kraftpy.client.producer.accumulator import Accumulator
from kraftpy.log.producer_snapshots import ProducerSnapshots
from kraftpy.log.producer_states import ProducerStates
from kraftpy.protocol.errors import ErrorCode, KafkaError

_LOST = frozenset({"lost-write", "unseen"})
_WRONG_ORDER = frozenset({"reordered", "nonmonotonic-send", "int-nonmonotonic-send"})


def _accept_gaps(original: Any) -> Any:
    def check_sequence(producer: Any, header: Any) -> None:
        if header.base_sequence <= producer.last_sequence:
            original(producer, header)

    return staticmethod(check_sequence)


def _newest_for_any(original: Any) -> Any:
    def check(self: Any, header: Any) -> Any:
        found = original(self, header)
        return found if found is None else self._producers[header.producer_id].batches[-1]

    return check


def _older_epochs_too(original: Any) -> Any:
    def check(self: Any, header: Any) -> Any:
        producer = self._producers.get(header.producer_id)
        is_older = producer is not None and header.producer_epoch < producer.epoch
        return None if is_older else original(self, header)

    return check


def _any_first_sequence(original: Any) -> Any:
    def check(self: Any, header: Any) -> Any:
        producer = self._producers.get(header.producer_id)
        is_newer = producer is not None and header.producer_epoch > producer.epoch
        return None if is_newer else original(self, header)

    return check


def _keep_the_producers(original: Any) -> Any:
    def reload(self: Any, *arguments: Any, previous: Any) -> Any:
        original(self, *arguments, previous=previous)
        return previous

    return reload


def _take_gaps_for_duplicates(original: Any) -> Any:
    def check_sequence(producer: Any, header: Any) -> None:
        try:
            original(producer, header)
        except KafkaError as error:
            raise KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, error.message) from error

    return staticmethod(check_sequence)


def _known_at_once(original: Any) -> Any:
    def take(self: Any, queue: Any, batch: Any) -> None:
        original(self, queue, batch)
        queue.known_as = self.producer_id

    return take


_in_sync_by_turns = cycle((Kind.PARTITION, "followers of t0-0", 3_000, {"shape": "target"}))
_leaders_end = cycle((Kind.KILL, "leader of t0-0", 800, {}), (Kind.PARTITION, "leader of t0-0", 3_000, {}))
_answers_are_late = cycle((Kind.SLOW, "leader of t0-0", 6_000, {"delay_ms": 1_700, "jitter_ms": 10}))
"""Batches are written and sent again, because the client gives up before the answer comes."""
_pipelines = three(workload="log", load=2.0, with_pipelines=True, settings={"replica.lag.time.max.ms": "1000"})

MUTANTS = (
    Mutant(
        name="sequence-gap-accepted",
        breaks="a leader appends a producer's batch although one before it is missing",
        rule="23",
        shows=_LOST | _WRONG_ORDER | {"duplicate"},
        directed=_pipelines,
        faults=_in_sync_by_turns,
        patches=(wrapped(ProducerStates, "_check_sequence", _accept_gaps),),
    ),
    Mutant(
        name="gap-taken-for-a-duplicate",
        breaks="a leader tells a producer that a batch behind a gap was written already",
        rule="23",
        shows=_LOST,
        directed=_pipelines,
        faults=_in_sync_by_turns,
        patches=(wrapped(ProducerStates, "_check_sequence", _take_gaps_for_duplicates),),
    ),
    Mutant(
        name="duplicate-at-the-newest-offset",
        breaks="a batch that is sent again is answered with the offset of the producer's newest one",
        rule="23",
        shows=frozenset({"inconsistent-offsets", "duplicate"}),
        directed=_pipelines,
        faults=_answers_are_late,
        patches=(wrapped(ProducerStates, "check", _newest_for_any),),
    ),
    Mutant(
        name="older-epoch-accepted",
        breaks="a leader appends batches of a producer's older epoch: late ones come after what replaced them",
        rule="23",
        shows=_WRONG_ORDER | {"duplicate"},
        directed=_pipelines,
        faults=_answers_are_late,
        patches=(wrapped(ProducerStates, "check", _older_epochs_too),),
    ),
    Mutant(
        name="any-first-sequence",
        breaks="a producer's new epoch may begin with any sequence: batches before it are refused for good",
        rule="23",
        shows=_LOST | _WRONG_ORDER | {"duplicate"},
        directed=_pipelines,
        faults=_in_sync_by_turns,
        patches=(wrapped(ProducerStates, "check", _any_first_sequence),),
    ),
    Mutant(
        name="producers-not-truncated",
        breaks="a follower still knows batches that it truncated: once it leads, it takes them for written",
        rule="25",
        shows=_LOST | {"inconsistent-offsets"},
        directed=_pipelines,
        faults=_leaders_end,
        patches=(wrapped(ProducerSnapshots, "reload", _keep_the_producers),),
    ),
    Mutant(
        name="unknown-producer-pipelines",
        breaks="a client sends several batches to a broker that may not know its producer: any may become the first",
        rule="23",
        shows=_LOST | _WRONG_ORDER | {"duplicate"},
        directed=_pipelines,
        faults=_in_sync_by_turns,
        patches=(wrapped(Accumulator, "_take", _known_at_once),),
    ),
)
