"""Strings of requests that are not UTF-8: they are read as Kafka's Java reads them."""

from __future__ import annotations

import pytest

from kraftpy.protocol.primitives import read_string


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80c", "\ufffdc"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"a\xc3(b", "a\ufffd(b"),
        ("\ud7ff\ue000".encode(), "\ud7ff\ue000"),
    ],
)
def test_bytes_that_are_not_utf_8_are_replaced_as_java_does(data: bytes, text: str) -> None:
    assert read_string(len(data).to_bytes(2, "big") + data, 0) == (text, 2 + len(data))
