"""Record encode and decode rates of our client, kafka-python and aiokafka (a C extension), in the same run.

Records have 8-byte keys, values of 100 bytes or 1 KiB, and timestamps that rise now and then; batches have 16 KiB or
1 MiB, uncompressed. Values differ in length by up to an eighth either way, so that no reader can rely on a stride. The
best of several rounds counts; the libraries take turns. Decoding includes the CRC and yields bytes objects for key and
value; decoding columns yields positions, or Arrow arrays of key, value and timestamp.

Run: python -m bench.codec
"""

from __future__ import annotations

import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from kraftpy.client.ranges.columns import decode_columns, key_array, timestamp_array, value_array
from kraftpy.protocol.record_batch import (
    BatchBuilder,
    NewRecord,
    check_crc,
    iter_records,
    read_header,
    split_batches,
    stamp,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

ROUNDS = 7
TOTAL_BYTES = 4 * 1024 * 1024
UNIT = "records/s"

Batches = list[list[NewRecord]]


def records_of(value_bytes: int, batch_bytes: int) -> Batches:
    """Return about `TOTAL_BYTES` of records, in batches of about `batch_bytes`."""
    rng = random.Random(value_bytes)
    per_batch = max(1, batch_bytes // (value_bytes + 20))
    batches: Batches = []
    for start in range(0, TOTAL_BYTES // (value_bytes + 20), per_batch):
        batches.append(
            [
                (
                    1_700_000_000_000 + number // 10,
                    b"%08d" % (number % 1000),
                    rng.randbytes(value_bytes + rng.randint(-value_bytes // 8, value_bytes // 8)),
                    (),
                )
                for number in range(start, start + per_batch)
            ]
        )
    return batches


def encode_ours(batches: Batches) -> list[bytes]:
    out = []
    for records in batches:
        builder = BatchBuilder()
        for timestamp, key, value, headers in records:
            builder.append(timestamp, key, value, headers)
        out.append(builder.build())
    return out


def encode_kafka_python(batches: Batches) -> list[bytes]:
    out = []
    for records in batches:
        builder = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 30)
        for number, (timestamp, key, value, headers) in enumerate(records):
            builder.append(number, timestamp, key, value, headers)
        out.append(bytes(builder.build()))
    return out


def encode_aiokafka(batches: Batches) -> list[bytes]:
    out = []
    for records in batches:
        builder = AiokafkaBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for number, (timestamp, key, value, _) in enumerate(records):
            builder.append(number, timestamp, key, value, [])
        out.append(bytes(builder.build()))
    return out


def decode_ours(response: bytes) -> None:
    for header, batch in split_batches(response):
        check_crc(batch)
        drain(iter_records(batch, header))


def decode_columns_only(response: bytes) -> None:
    decode_columns(response)


def decode_to_arrow(response: bytes) -> None:
    columns = decode_columns(response)
    key_array(columns), value_array(columns), timestamp_array(columns)


def decode_peer(batch_class: Any) -> Callable[[bytes], None]:
    """Decode the same response with the peer's batch class; our code splits it, so splitting costs the peer nothing."""

    def decode(response: bytes) -> None:
        for _, view in split_batches(response):
            batch = batch_class(bytes(view))
            batch.validate_crc()
            for record in batch:
                record.key, record.value  # noqa: B018 - both peers may make them only now

    return decode


def drain(iterable: Iterable[object]) -> None:
    deque(iterable, 0)


def rates(count: int, ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return records per second of each way, the best of `ROUNDS`; they take turns, so that noise affects all."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: count / seconds for name, seconds in best.items()}


def run() -> list[dict[str, Any]]:
    """Return one row per comparison: what, ours, peer, peer_name, ratio, unit."""
    rows: list[dict[str, Any]] = []

    def add(what: str, ours: float, peers: dict[str, float]) -> None:
        for name, peer in peers.items():
            rows.append(
                {"what": what, "ours": ours, "peer": peer, "peer_name": name, "ratio": ours / peer, "unit": UNIT}
            )

    for value_bytes, value_name in ((100, "100 B"), (1024, "1 KiB")):
        for batch_bytes, batch_name in ((16 * 1024, "16 KiB"), (1024 * 1024, "1 MiB")):
            batches = records_of(value_bytes, batch_bytes)
            count = sum(len(records) for records in batches)
            case = f"{value_name} records, {batch_name} batches"
            encoded = rates(
                count,
                {
                    "ours": lambda batches=batches: encode_ours(batches),  # type: ignore[misc]
                    "kafka-python": lambda batches=batches: encode_kafka_python(batches),  # type: ignore[misc]
                    "aiokafka (C)": lambda batches=batches: encode_aiokafka(batches),  # type: ignore[misc]
                },
            )
            add(f"encode, {case}", encoded.pop("ours"), encoded)
            response = join(encode_ours(batches))
            readers = {
                "iter_records": decode_ours,
                "columns": decode_columns_only,
                "columns to Arrow": decode_to_arrow,
                "kafka-python": decode_peer(KafkaPythonBatch),
                "aiokafka (C)": decode_peer(AiokafkaBatch),
            }
            decoded = rates(count, {n: (lambda r=r, data=response: r(data)) for n, r in readers.items()})  # type: ignore[misc]
            ours = {name: decoded.pop(name) for name in ("iter_records", "columns", "columns to Arrow")}
            for name, rate in ours.items():
                add(f"decode ({name}), {case}", rate, decoded)
    return rows


def join(batches: list[bytes]) -> bytes:
    """Join the batches to one response, with rising offsets as a broker assigns them."""
    out, offset = [], 0
    for batch in batches:
        stamped = bytearray(batch)
        stamp(stamped, offset, 0)
        offset = read_header(stamped).next_offset
        out.append(bytes(stamped))
    return b"".join(out)


def main() -> None:
    """Print the table."""
    print(f"{'what':<62} {'ours':>12} {'peer':>12} {'ratio':>7}  peer")
    for row in run():
        print(f"{row['what']:<62} {row['ours']:>12,.0f} {row['peer']:>12,.0f} {row['ratio']:>7.2f}  {row['peer_name']}")


if __name__ == "__main__":
    main()
