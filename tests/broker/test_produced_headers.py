"""The header of a produced batch is read and judged once on its way from the request into the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_broker import context, create, running

from kraftpy.broker.handlers import produce as handler
from kraftpy.log import appending, partition_log, timestamps
from kraftpy.protocol import record_batch
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import TopicPartition

PARTITIONS = 3


@pytest.mark.parametrize("compression", ["producer", "lz4"], ids=["as sent", "recompressed"])
@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
async def test_the_header_of_a_produced_batch_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_transactional: bool, compression: str
) -> None:
    reads: list[bytes] = []
    read_header, split_batches, one_batch = record_batch.read_header, record_batch.split_batches, record_batch.one_batch

    def noted_read(buffer: Any, position: int = 0) -> record_batch.BatchHeader:
        header = read_header(buffer, position)
        if not header.compression:  # the batch as sent, not what it was recompressed to
            reads.append(bytes(buffer)[61:])
        return header

    def noted_split(records: Any, **how: bool) -> Any:
        reads.append(bytes(records)[61:])
        return split_batches(records, **how)

    def noted_one(records: Any, version: int) -> Any:
        header, batch = one_batch(records, version)
        reads.append(bytes(batch)[61:])
        return header, batch

    judged: list[bytes] = []
    are_doubtful = timestamps.are_doubtful

    def noted_judgment(header: Any, batch: Any, *others: Any) -> bool:
        judged.append(bytes(batch)[61:])
        return are_doubtful(header, batch, *others)

    async def all_added(*_: object, **__: object) -> dict[TopicPartition, ErrorCode]:
        return {TopicPartition("a", number): ErrorCode.NONE for number in range(PARTITIONS)}

    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": is_transactional}
    async with running(tmp_path, f"compression.type={compression}") as broker:
        await create(broker, ["a"], partitions=PARTITIONS)
        batches = [encode_batch([(0, b"k", b"%d" % number, ())], **producer) for number in range(PARTITIONS)]
        request = ProduceRequest(
            transactional_id="t" if is_transactional else None,
            acks=1,
            timeout_ms=1_000,
            topic_data=[
                TopicProduceData(
                    name="a",
                    partition_data=[
                        PartitionProduceData(index=number, records=memoryview(bytearray(batch)))
                        for number, batch in enumerate(batches)
                    ],
                )
            ],
        )
        with monkeypatch.context() as patched:
            patched.setattr(broker.transactions, "begin_writing", all_added, raising=False)
            for module in (record_batch, appending, handler, partition_log):
                noting = {
                    "read_header": noted_read,
                    "split_batches": noted_split,
                    "one_batch": noted_one,
                    "are_doubtful": noted_judgment,
                }
                for name, noted in noting.items():
                    if hasattr(module, name):
                        patched.setattr(module, name, noted)
            response = await handler.produce(broker, request, context(ApiKey.PRODUCE, 12))
        assert response is not None
        answers = response.responses[0].partition_responses
        assert [(each.error_code, each.base_offset) for each in answers] == [(ErrorCode.NONE, 0)] * PARTITIONS
        assert sorted(reads) == sorted(batch[61:] for batch in batches)
        if compression == "producer":
            assert sorted(judged) == sorted(batch[61:] for batch in batches)
