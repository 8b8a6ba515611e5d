"""Share consumers read whole batches of a log, no markers, and nothing of aborted transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kraftpy.broker.replication.replica import AbortedTransaction, Records
from kraftpy.broker.share.partitions import duration_ms
from kraftpy.broker.share.reading import Piece, read_pieces, with_acquired
from kraftpy.protocol.record_batch import ControlType, encode_batch, encode_control_batch, stamp
from kraftpy.share.effects import Acquired, Stretch


def log_of(*batches: tuple[str, int]) -> bytes:
    """Batches of two records: `plain`, or in a transaction of a producer; markers are `commit` and `abort`."""
    made = b""
    offset = 0
    for kind, producer_id in batches:
        if kind in ("commit", "abort"):
            marker = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
            batch = bytearray(
                encode_control_batch(
                    marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1
                )
            )
        else:
            batch = bytearray(
                encode_batch(
                    [(1, None, b"a", ()), (1, None, b"b", ())],
                    producer_id=producer_id,
                    producer_epoch=-1 if kind == "plain" else 0,
                    base_sequence=-1 if kind == "plain" else 0,
                    is_transactional=kind == "open",
                )
            )
        stamp(batch, base_offset=offset, leader_epoch=0)
        offset += 1 if kind in ("commit", "abort") else 2
        made += batch
    return made


def replica_with(records: bytes, *aborted: AbortedTransaction) -> Any:
    def read(offset: int, max_bytes: int, *, read_committed: bool, min_one_batch: bool) -> Records:
        assert min_one_batch
        return Records(records, list(aborted) if read_committed else [])

    return SimpleNamespace(read=read)


LOG = log_of(("plain", -1), ("open", 1), ("open", 2), ("abort", 1), ("open", 1), ("commit", 1), ("abort", 2))


def shown(pieces: list[Piece]) -> list[tuple[int, int, bool]]:
    return [tuple(piece.stretch) for piece in pieces]  # type: ignore[misc]


def test_markers_hold_no_records() -> None:
    pieces = read_pieces(replica_with(LOG), 0, 1 << 20, read_committed=False)
    assert shown(pieces) == [
        (0, 1, True),
        (2, 3, True),
        (4, 5, True),
        (6, 6, False),
        (7, 8, True),
        (9, 9, False),
        (10, 10, False),
    ]


def test_what_was_aborted_holds_none_for_who_reads_what_is_committed() -> None:
    """A producer's next transaction counts again."""
    aborted = AbortedTransaction(1, 2), AbortedTransaction(2, 4)
    pieces = read_pieces(replica_with(LOG, *aborted), 0, 1 << 20, read_committed=True)
    assert shown(pieces) == [
        (0, 1, True),
        (2, 3, False),
        (4, 5, False),
        (6, 6, False),
        (7, 8, True),
        (9, 9, False),
        (10, 10, False),
    ]


def test_only_batches_with_acquired_records_are_sent() -> None:
    pieces = [Piece(Stretch(first, first + 4), memoryview(b"%02d" % first)) for first in range(0, 50, 5)]
    assert with_acquired(pieces, [Acquired(3, 3, 2), Acquired(14, 21, 1), Acquired(48, 49, 1)]) == b"0010152045"
    assert with_acquired(pieces, []) == b""


def test_durations() -> None:
    assert duration_ms("P1D") == 86_400_000
    assert duration_ms("PT1H30M2.5S") == 5_402_500
    assert duration_ms("p1dt1s") == 86_401_000
