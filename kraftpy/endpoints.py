"""Requests to an identity provider's HTTP endpoints, limited in time and size. Blocks.

A server's certificate must be valid for the URL's host. Redirects and proxies are not used: only the configured URL is
contacted. Error messages do not quote responses.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from kraftpy import __version__

MOST_SECONDS: Final = 10.0
_OK: Final = 200
_REFUSALS: Final = (400, 500)
_TOO_MANY: Final = 429
_PIECE_BYTES: Final = 64 * 1024


class EndpointError(Exception):
    """The endpoint gave no usable answer. The message is one line."""

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal
        """True if the server refused the request, so that a retry would not help."""


def https_context(trusted: str | None = None) -> ssl.SSLContext:
    """Return what a client of an https URL trusts: the authorities in a PEM file, by default the system's.

    Intermediate authorities are trusted without their root. From Python 3.13 on, certificates would also have to name
    the key of their issuer, which those of many in-house authorities do not; they are trusted with all versions alike.
    """
    context = ssl.create_default_context(cafile=trusted)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def fetch(
    url: str, most_bytes: int, *, trusted: str | None = None, headers: Mapping[str, str] | None = None, body: str = ""
) -> bytes:
    """Return the content of a URL (https, http or file), or if there is a `body`, the answer to a POST of it.

    `trusted` is a PEM file with the authorities to trust; None for the system's. Raises EndpointError.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _read(unquote(parts.path), most_bytes)
    deadline = time.monotonic() + MOST_SECONDS
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = {"Accept": "application/json", "User-Agent": f"kraftpy/{__version__}", **(headers or {})}
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    try:
        if parts.scheme == "https":
            context = https_context(trusted)
            connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=MOST_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=MOST_SECONDS)
        try:
            connection.request("POST" if body else "GET", path, body.encode() if body else None, sent)
            with connection.getresponse() as answer:
                if answer.status != _OK:
                    is_refusal = _REFUSALS[0] <= answer.status < _REFUSALS[1] and answer.status != _TOO_MANY
                    raise EndpointError(f"{url} answered with status {answer.status}", is_refusal=is_refusal)
                return _content(url, answer, most_bytes, deadline)
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise EndpointError(f"{url}: the certificate cannot be trusted: {error.verify_message}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EndpointError(f"{url}: {type(error).__name__}") from None


def _content(url: str, answer: http.client.HTTPResponse, most_bytes: int, deadline: float) -> bytes:
    found = bytearray()
    while piece := answer.read1(_PIECE_BYTES):
        found += piece
        if len(found) > most_bytes:
            raise EndpointError(f"{url} answered with more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise EndpointError(f"{url} did not answer within {MOST_SECONDS:g} s")
    return bytes(found)


def _read(path: str, most_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            found = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise EndpointError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(found) > most_bytes:
        raise EndpointError(f"{path} has more than {most_bytes} bytes")
    return found
