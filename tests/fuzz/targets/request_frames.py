"""A client's frame on its way to the handler: header and body are decoded, and the body is written again.

The only error allowed is ProtocolError. A frame that decodes can be encoded, and decodes to the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hostile import Hostile, Plot
from odd_requests import Words, odd

from kraftpy.broker.apis import MAX_REQUEST_ELEMENTS
from kraftpy.protocol.apis import APIS
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import decode_request_header, encode_request
from kraftpy.protocol.schema import decode, encode

ALLOWED = (ProtocolError,)


def one(data: bytes) -> None:
    """`data` is a frame without its size."""
    header, body = decode_request_header(bytearray(data))
    api = APIS.get(header.api_key)
    if api is None or header.api_version not in api:
        return
    request = decode(api.request, body, header.api_version, max_elements=MAX_REQUEST_ELEMENTS, exact=False)
    written = encode(request, header.api_version)
    again = decode(api.request, written, header.api_version)
    assert encode(again, header.api_version) == written


def seeds() -> Iterator[tuple[str, bytes]]:
    """Two requests of each API, in its first and last version."""
    for api in APIS.values():
        for version in sorted({api.first, api.last}):
            chance = Random(f"{api.name} {version}")
            words = Hostile(Plot(chance), {}, 0.9, is_deep=False, has_heavy=False) if version == api.last else Words()
            frame = encode_request(api.key, version, 1, "seed", odd(api.request, version, chance, words))
            if len(frame) < 4000:
                yield f"{api.name}-{version}", frame[4:]
