"""Resolves the hosts and addresses that quotas of IP entities name, into addresses in one form."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

RESOLVE_SECONDS: Final = 5.0


def normal_address(text: str) -> str | None:
    """Return an address in the form in which addresses are compared; None if the text is not an address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


async def addresses_of(name: str) -> list[str]:
    """Return the addresses of a host, or the address itself; none if the name does not resolve in time."""
    if (literal := normal_address(name)) is not None:
        return [literal]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError, TimeoutError):  # ValueError: a name with a null character
        return []
    return sorted({address for *_, where in found if (address := normal_address(str(where[0]))) is not None})


async def resolves(name: str) -> bool:
    """Return whether a host name resolves to an address."""
    return bool(await addresses_of(name))
