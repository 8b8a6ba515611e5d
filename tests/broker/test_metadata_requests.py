"""Metadata requests as different clients put them."""

from __future__ import annotations

import itertools
import socket
import struct

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kraftpy.protocol.schema import decode
from kraftpy.testing.cluster import EmbeddedBroker

VERSION = 12
_names = itertools.count()


def metadata(bootstrap: str, *topics: MetadataRequestTopic) -> MetadataResponse:
    host, port = bootstrap.split(":")
    request = encode_request(ApiKey.METADATA, VERSION, 1, "test", MetadataRequest(topics=list(topics)))
    with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rb") as answers:
        connection.sendall(request)
        (size,) = struct.unpack(">i", answers.read(4))
        _, body = decode_response_header(ApiKey.METADATA, VERSION, answers.read(size))
        return decode(MetadataResponse, body, VERSION)


@pytest.mark.parametrize("name", ["", None, "not-its-name"])
def test_a_topic_is_found_by_id_whatever_the_name_says(kraftpy_server: EmbeddedBroker, name: str | None) -> None:
    own_name = f"by-id-{next(_names)}"
    by_name = metadata(kraftpy_server.bootstrap, MetadataRequestTopic(name=own_name))  # which creates it
    (created,) = by_name.topics
    by_id = metadata(kraftpy_server.bootstrap, MetadataRequestTopic(topic_id=created.topic_id, name=name))
    assert by_id.topics == [created]
    assert created.name == own_name
    assert metadata(kraftpy_server.bootstrap, MetadataRequestTopic(name=own_name)).topics == [created]


@pytest.mark.parametrize("name", ["", None, "not-its-name"])
def test_an_unknown_id_is_no_name_to_create(kraftpy_server: EmbeddedBroker, name: str | None) -> None:
    unknown = MetadataRequestTopic(topic_id=bytes(range(16)), name=name)
    (topic,) = metadata(kraftpy_server.bootstrap, unknown).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown.topic_id)
