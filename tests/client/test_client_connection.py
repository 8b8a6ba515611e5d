"""One connection against a broker played by the test, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.connection import BrokerUnreachable, Connection, ResponseLimit, ResponseTooLarge, UnsupportedVersion
from kraftpy.client.model import Node
from kraftpy.client.options import ClientOptions
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.runtime import RealRuntime
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import decode_request_header, encode_response
from kraftpy.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from kraftpy.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

Answer = Callable[[int, int, int], Awaitable[bytes | None]]

OFFERED = ApiVersionsResponse(
    api_keys=[
        ApiVersion(api_key=18, min_version=0, max_version=2),
        ApiVersion(api_key=12, min_version=1, max_version=3),
    ]
)
NO_OTHER_LIMIT = ResponseLimit()
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@contextlib.asynccontextmanager
async def broker(answer: Answer) -> AsyncIterator[int]:
    """Answers with what `answer(api key, version, correlation id)` gives, hangs up for None. Yields the port."""
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(serve(reader, writer)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                header, _ = decode_request_header(await reader.readexactly(size))
                frame = await answer(header.api_key, header.api_version, header.correlation_id)
                if frame is None:
                    break
                writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()  # from Python 3.12 on, connections are waited for too


async def old_broker(key: int, version: int, correlation_id: int) -> bytes | None:
    """Knows ApiVersions up to 2 and answers a newer one in version 0, as KIP-511 says."""
    if key == ApiKey.API_VERSIONS:
        if version > 2:
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=OFFERED.api_keys)
            return encode_response(key, 0, correlation_id, refusal)
        return encode_response(key, version, correlation_id, OFFERED)
    return encode_response(key, version, correlation_id, HeartbeatResponse())


async def connect(
    port: int,
    request_timeout_ms: float = 5_000,
    setup_timeout_ms: float = 5_000,
    limit: ResponseLimit = NO_OTHER_LIMIT,
) -> Connection:
    return await Connection.open(
        RealRuntime(),
        "127.0.0.1",
        port,
        client_id="test",
        request_timeout_ms=request_timeout_ms,
        setup_timeout_ms=setup_timeout_ms,
        limit=limit,
    )


async def test_an_older_broker_is_asked_again_in_a_version_it_knows() -> None:
    async with broker(old_broker) as port:
        connection = await connect(port)
        assert connection.versions == {18: (0, 2), 12: (1, 3)}
        assert connection.version(ApiKey.HEARTBEAT) == 3
        with pytest.raises(UnsupportedVersion):
            connection.version(ApiKey.FETCH)
        with pytest.raises(UnsupportedVersion):
            connection.version(ApiKey.HEARTBEAT, low=4)
        connection.close()
        await connection.wait_closed()


async def test_requests_are_pipelined_and_answers_find_their_own() -> None:
    async def numbered(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.API_VERSIONS:
            return await old_broker(key, version, correlation_id)
        return encode_response(key, version, correlation_id, HeartbeatResponse(throttle_time_ms=correlation_id))

    async with broker(numbered) as port:
        connection = await connect(port)
        futures = [connection.send(ApiKey.HEARTBEAT, HEARTBEAT, 3) for _ in range(50)]
        futures[7].cancel()
        answers = [await future for place, future in enumerate(futures) if place != 7]
        times = [answer.throttle_time_ms for answer in answers]
        assert times == sorted(times)
        assert connection.in_flight == 0
        assert connection.throttled_until_ms > RealRuntime().monotonic_ms()
        connection.close()
        await connection.wait_closed()


async def test_a_request_that_is_not_answered_in_time_takes_the_connection_with_it() -> None:
    async def silent(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.API_VERSIONS:
            return await old_broker(key, version, correlation_id)
        return await asyncio.Event().wait() and None

    async with broker(silent) as port:
        connection = await connect(port)
        late = connection.send(ApiKey.HEARTBEAT, HEARTBEAT, 3, timeout_ms=50)
        behind = connection.send(ApiKey.HEARTBEAT, HEARTBEAT, 3)
        with pytest.raises(KafkaError) as failure:
            await late
        assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(KafkaError):
            await behind
        assert connection.closed
        with pytest.raises(KafkaError):
            connection.send(ApiKey.HEARTBEAT, HEARTBEAT, 3)


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x02\x00\x00"])
async def test_who_does_not_speak_kafka_is_found_out(garbage: bytes) -> None:
    async def other(key: int, version: int, correlation_id: int) -> bytes | None:
        return garbage

    async with broker(other) as port:
        with pytest.raises(KafkaError) as failure:
            await connect(port)
        assert failure.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.NETWORK_EXCEPTION)


async def test_an_answer_that_cannot_be_read_fails_its_request_and_the_connection() -> None:
    async def torn(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.API_VERSIONS:
            return await old_broker(key, version, correlation_id)
        return struct.pack(">ii", 5, correlation_id) + b"\x00"

    async with broker(torn) as port:
        connection = await connect(port)
        with pytest.raises(KafkaError) as failure:
            await connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        assert failure.value.code is ErrorCode.CORRUPT_MESSAGE
        assert connection.closed


async def test_nobody_there_and_nobody_answering_are_told_apart_from_success() -> None:
    async def silent(key: int, version: int, correlation_id: int) -> bytes | None:
        return await asyncio.Event().wait() and None

    async with broker(old_broker) as port:
        pass
    with pytest.raises(BrokerUnreachable):
        await connect(port)
    async with broker(silent) as port:
        with pytest.raises(BrokerUnreachable):
            await connect(port, setup_timeout_ms=100)


async def test_a_blocking_connection_agrees_and_times_out_alike() -> None:
    async def halfway(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.API_VERSIONS:
            return await old_broker(key, version, correlation_id)
        return struct.pack(">i", 100)  # a size, and then nothing

    async with broker(halfway) as port:

        def talk() -> None:
            connection = BlockingConnection(
                "127.0.0.1", port, client_id="test", request_timeout_ms=100, setup_timeout_ms=5_000
            )
            assert connection.versions == {18: (0, 2), 12: (1, 3)}
            with pytest.raises(KafkaError) as failure:
                connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
            assert failure.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert connection.closed

        await asyncio.to_thread(talk)


async def test_a_cluster_that_cannot_be_reached_says_so_and_leaves_no_task_behind() -> None:
    async with broker(old_broker) as port:
        pass
    before = asyncio.all_tasks()
    cluster = Cluster(ClientOptions(bootstrap_servers=f"127.0.0.1:{port}"))
    await cluster.start()
    with pytest.raises(KafkaError):
        await cluster.refresh()
    await cluster.close()
    assert asyncio.all_tasks() == before
    with pytest.raises(RuntimeError):
        await cluster.refresh()


async def test_a_coordinator_that_metadata_does_not_list_is_connected_where_it_is() -> None:
    """A broker may coordinate, and lead, and not be listed yet: who fetched connected to it again and again."""
    async with broker(old_broker) as port:
        cluster = Cluster(ClientOptions(bootstrap_servers=f"127.0.0.1:{port}"))
        await cluster.start()
        cluster._coordinator_nodes[7] = Node(node_id=7, host="127.0.0.1", port=port)
        assert cluster.connected(7) is None
        connection = await cluster.connect(7)
        assert cluster.connected(7) is connection
        await cluster.close()


# --- the size of a response --------------------------------------------------------------------------------------

LIMIT = ResponseLimit(1_000_000)
ASKED = 500_000


def fetch_request(max_bytes: int = ASKED) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=[])


def announcing(key: ApiKey, size: int) -> Answer:
    """A broker that answers requests of one kind with the beginning of a response of `size` bytes."""

    async def answer(asked: int, version: int, correlation_id: int) -> bytes | None:
        if asked == ApiKey.API_VERSIONS:
            offered = [ApiVersion(api_key=each, min_version=12, max_version=12) for each in (ApiKey.FETCH,)]
            offered += [ApiVersion(api_key=18, min_version=0, max_version=2), *OFFERED.api_keys[1:]]
            return encode_response(asked, version, correlation_id, ApiVersionsResponse(api_keys=offered))
        assert asked == key
        return struct.pack(">ii", size, correlation_id) + bytes(100)

    return answer


@pytest.mark.parametrize(
    ("key", "request_", "version", "allowed"),
    [
        (ApiKey.HEARTBEAT, HEARTBEAT, 3, LIMIT.bytes),
        (ApiKey.FETCH, fetch_request(), 12, LIMIT.bytes + ASKED),
    ],
)
async def test_a_response_above_the_limit_is_refused_at_its_size(
    key: ApiKey, request_: object, version: int, allowed: int
) -> None:
    """A broker could announce 2 GiB, and clients took them."""
    async with broker(announcing(key, allowed + 1)) as port:
        connection = await connect(port, limit=LIMIT)
        with pytest.raises(ResponseTooLarge) as failure:
            await connection.send(key, request_, version)
        assert f"receive_message_max_bytes={LIMIT.bytes}" in str(failure.value)
        assert str(allowed + 1) in str(failure.value)
        assert connection.closed

        def talk() -> None:
            blocking = BlockingConnection(
                "127.0.0.1", port, client_id="t", request_timeout_ms=5_000, setup_timeout_ms=5_000, limit=LIMIT
            )
            blocking.send(key, request_, version)
            tracemalloc.start()
            try:
                with pytest.raises(ResponseTooLarge, match="receive_message_max_bytes"):
                    blocking.receive()
                assert tracemalloc.get_traced_memory()[1] < allowed
            finally:
                tracemalloc.stop()
            assert blocking.closed

        await asyncio.to_thread(talk)


async def test_a_fetch_may_bring_what_it_asks_for_beyond_the_limit() -> None:
    records = bytes(LIMIT.bytes + ASKED - 1_000)
    whole = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=0, records=records)])]
    )

    async def answer(key: int, version: int, correlation_id: int) -> bytes | None:
        if key == ApiKey.FETCH:
            return encode_response(key, version, correlation_id, whole)
        return await announcing(ApiKey.FETCH, 0)(key, version, correlation_id)

    async with broker(answer) as port:
        connection = await connect(port, limit=LIMIT)
        answered = await connection.send(ApiKey.FETCH, fetch_request(), 12)
        assert len(answered.responses[0].partitions[0].records) == len(records)
        connection.close()
        await connection.wait_closed()
