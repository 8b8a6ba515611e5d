"""Puts of keyed records into a compacted topic, and a read of what remains at the end.

`PutCalls` draws them: a new value for a record key, or a tombstone. `Client` carries them out; `read_compacted` reads
the topic from its start to its end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from chaos.generator import Call
from chaos.history import Op, Recorder, Type
from chaos.workloads.clients import Setting, key_of
from kraftpy.client import Consumer, TopicPartition

TOPIC: Final = "compacted"
PARTITIONS: Final = 2
SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "5000",
}
"""Topic settings: it is cleaned whenever a few records are rolled."""
FIRST_PROCESS: Final = 700_000
_RECORD_KEYS: Final = 8
_TOMBSTONES: Final = 0.2
_POLL_MS: Final = 500
_READ_SECONDS: Final = 120.0


class PutCalls:
    """Never draw a value twice."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._value = 0

    def call(self, process: int) -> Call:
        """Return a put."""
        chance = self._chance
        self._value += 1
        value = None if chance.random() < _TOMBSTONES else self._value
        record_key = f"k{chance.randrange(_RECORD_KEYS)}"
        return Call(
            f="put",
            value={"key": f"{TOPIC}-{chance.randrange(PARTITIONS)}", "record_key": record_key, "value": value},
        )

    def observe(self, op: Op) -> None:
        """Do nothing."""


async def read_compacted(setting: Setting, recorder: Recorder, process: int) -> None:
    """Read each partition whole."""
    runtime = setting.runtime
    async with Consumer(bootstrap_servers=setting.bootstrap_servers, runtime=runtime) as consumer:
        for number in range(PARTITIONS):
            partition = TopicPartition(TOPIC, number)
            asked = {"key": key_of(partition)}
            recorder.invoke(setting.now_ns(), process, "compacted", asked)
            end = (await consumer.end_offsets([partition]))[partition]
            consumer.assign([partition])
            consumer.seek(partition, 0)
            records: list[list[Any]] = []
            deadline = runtime.monotonic_ms() + _READ_SECONDS * 1000
            while await consumer.position(partition) < end:
                if runtime.monotonic_ms() > deadline:
                    raise TimeoutError(f"{partition} cannot be read to its end, {end}")
                for record in (await consumer.getmany(timeout_ms=_POLL_MS)).get(partition, ()):
                    value = None if record.value is None else int(record.value)
                    records.append([record.offset, (record.key or b"").decode(), value])
            recorder.complete(setting.now_ns(), process, Type.OK, {**asked, "records": records})
