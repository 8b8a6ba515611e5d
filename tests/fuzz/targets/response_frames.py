"""A broker's frame as a client reads it: header and body are decoded, and the body is written again.

Two bytes before it give the API and version that it answers. The only error allowed is ProtocolError.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from odd_requests import Words, odd

from kraftpy.protocol.apis import APIS
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import decode_response_header, encode_response
from kraftpy.protocol.schema import decode, encode

ALLOWED = (ProtocolError,)
_APIS = [APIS[key] for key in sorted(APIS)]


def one(data: bytes) -> None:
    """API and version, in a byte each, and a frame without its size."""
    if len(data) < 2:
        return
    api = _APIS[data[0] % len(_APIS)]
    version = api.first + data[1] % (api.last - api.first + 1)
    _, body = decode_response_header(api.key, version, data[2:])
    response = decode(api.response, body, version)
    written = encode(response, version)
    assert encode(decode(api.response, written, version), version) == written


def seeds() -> Iterator[tuple[str, bytes]]:
    """An answer of each API, in its first and last version."""
    for place, api in enumerate(_APIS):
        for version in sorted({api.first, api.last}):
            chance = Random(f"{api.name} {version}")
            frame = encode_response(api.key, version, 1, odd(api.response, version, chance, Words()))
            if len(frame) < 4000:
                yield f"{api.name}-{version}", bytes((place, version - api.first)) + frame[4:]
