"""Calls to the addresses of controllers: TLS, the login, and the session of the login for as long as the link lasts.

A session that ends is renewed on its link before that, like a client's (KIP-368). If that fails, the link is closed,
and the next call logs in again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import ssl
from typing import TYPE_CHECKING, Any

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.link import Link
from kraftpy.broker.metadata.link_messages import LinkError
from kraftpy.broker.metadata.secret import is_remote_address
from kraftpy.config import Address
from kraftpy.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links
    from kraftpy.client.security import Login

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
_SECURE_CONNECT_SECONDS = 10.0
"""The same with TLS or SASL, and for a renewal: as long as a handshake may take on client listeners."""
_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 1.0
_KNOCKS = 5
"""Knocks in vain after which this node connects, if its voters come from the log."""


class Dialer:
    """Connects to one address until there is a link, and again if the link is lost."""

    def __init__(self, links: Links, peer: int | None, address: Address, tasks: Tasks) -> None:
        self.address = address
        self.peer = peer
        self._links = links
        self._knocks = 0
        self._retry_soon = asyncio.Event()
        self._task = tasks.create_task(self._run(), name=f"link to {address}")

    def retry_soon(self) -> None:
        """Try again soon: the link was lost, or the peer has knocked."""
        self._retry_soon.set()

    def stop(self) -> None:
        """Stop trying."""
        self._task.cancel()

    async def _run(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            if self._is_connected():
                self._knocks = 0
            else:
                await self._call()
            timeout = None if self._is_connected() else pause * random.uniform(0.8, 1.2)
            try:
                async with asyncio.timeout(timeout):
                    await self._retry_soon.wait()
            except TimeoutError:
                pause = min(pause * 1.5, _MAX_RETRY_SECONDS)
            else:
                self._retry_soon.clear()
                pause = _RETRY_SECONDS
                await asyncio.sleep(_RETRY_SECONDS / 2)  # a limit on the rate, however often `retry_soon` is called

    def _is_connected(self) -> bool:
        return self.peer is not None and self._links.is_connected(self.peer)

    async def _call(self) -> None:
        links, loop = self._links, asyncio.get_running_loop()
        address, login, options = self.address, None, dict[str, Any]()
        is_patient = not links.follows_log or self._knocks < _KNOCKS
        is_knock = self.peer is not None and not links.connects_to(self.peer) and is_patient
        made: list[Link] = []

        def connection() -> Link:
            must_log_in = login is not None
            made.append(Link(links, is_caller=True, expected=self.peer, is_knock=is_knock, must_log_in=must_log_in))
            return made[0]

        if links.forbids_links_to(address.host) and is_remote_address(address.host):
            return  # a name is checked once it is resolved
        try:
            if (security := links.own_security()) is not None:
                login = security.login
                if security.tls is not None:
                    options = {"ssl": security.tls, "server_hostname": address.host}
            async with asyncio.timeout(_CONNECT_SECONDS if security is None else _SECURE_CONNECT_SECONDS):
                await loop.create_connection(connection, *address, **options)
        except (ssl.SSLError, KafkaError) as error:
            links.call_failed(address, f"TLS failed: {error}")
            return
        except (OSError, TimeoutError) as error:
            logger.debug("no link to %s: %s", address, error)
            return
        if login is not None:
            await self._log_in(made[0], login)
        peer = await made[0].ready
        self._knocks += is_knock
        if peer is not None:
            self.peer = peer
        elif made[0].is_to_itself:
            links.forget_bootstrap(address)

    async def _log_in(self, link: Link, login: Login) -> None:
        """Begin or renew the session of a link; if that fails, close the link."""
        from kraftpy.broker.metadata.link_login import prove  # here: most quorums do not need it
        from kraftpy.client.login import renewed_after_ms

        try:
            async with asyncio.timeout(_SECURE_CONNECT_SECONDS):
                lifetime_ms = await prove(login, self.address.host, link.ask)
            link.begin()
        except TimeoutError:
            link.close("it did not answer a login in time")
        except LinkError as error:
            self._links.call_failed(self.address, str(error))
            link.close(str(error))
        else:
            after_ms = renewed_after_ms(lifetime_ms, random.random())
            if after_ms is not None:
                link.renew_after(after_ms / 1000, functools.partial(self._renew, link))

    async def _renew(self, link: Link) -> None:
        """Log in again on a link, as this node does now: its keys and certificates may have changed."""
        security = self._links.own_security()
        assert security is not None
        assert security.login is not None
        await self._log_in(link, security.login)
