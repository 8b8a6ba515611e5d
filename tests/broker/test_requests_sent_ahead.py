"""A client that sends ahead gets every answer, in order, none of them later than it has to be."""

from __future__ import annotations

from broker_wire import answer, connect, create_topic, fetch_request, produce_values

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.testing.cluster import EmbeddedBroker

AHEAD = 300


def api_versions(correlation_id: int) -> bytes:
    return encode_request(ApiKey.API_VERSIONS, 0, correlation_id, "test", ApiVersionsRequest())


def test_answers_do_not_wait_for_the_long_poll_behind_them(kraftpy_server: EmbeddedBroker) -> None:
    with connect(kraftpy_server.bootstrap) as reader, connect(kraftpy_server.bootstrap) as writer:
        create_topic(writer, "sent-ahead")
        poll = encode_request(ApiKey.FETCH, 12, AHEAD, "test", fetch_request("sent-ahead", 0, max_wait_ms=60_000))
        reader.sendall(b"".join(map(api_versions, range(AHEAD))) + poll + api_versions(AHEAD + 1))
        for number in range(AHEAD):
            answer(reader, ApiKey.API_VERSIONS, 0, number)
        produce_values(writer, "sent-ahead", b"value")
        fetched = answer(reader, ApiKey.FETCH, 12, AHEAD)
        assert fetched.responses[0].partitions[0].records
        answer(reader, ApiKey.API_VERSIONS, 0, AHEAD + 1)


def test_requests_in_any_pieces(kraftpy_server: EmbeddedBroker) -> None:
    with connect(kraftpy_server.bootstrap) as connection:
        sent = b"".join(map(api_versions, range(40)))
        for start in range(0, len(sent), 7):
            connection.sendall(sent[start : start + 7])
        for number in range(40):
            answer(connection, ApiKey.API_VERSIONS, 0, number)
