"""Limits on client connections: `max.connections`, of the broker and of single listeners, `max.connections.per.ip` and
its overrides.

`max.connections` never exceeds the descriptors that the process has for it (`descriptors`), so that clients cannot take
those that logs, journal and links need. A connection above a limit is closed at once, with one log line per host and
minute.

Other brokers must get in however many connections clients hold, even if they share a listener. A connection that has
proved to be a broker's (`broker_proof`) is not counted. While a `max.connections` is reached, a few more are accepted
(`Descriptors.reserved`), each for `PROOF_SECONDS` and for one purpose: its first request must be the ApiVersions that
proves a broker. If there are too many of these, the oldest is closed: a broker proves itself as soon as it connects.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.broker.containment import Complaints, Tasks
from kraftpy.broker.descriptors import Descriptors
from kraftpy.config import BrokerConfig
from kraftpy.config.consistency import parse_overrides
from kraftpy.config.listener_limits import CONNECTIONS, PREFIX

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection

logger = logging.getLogger(__name__)

PROOF_SECONDS: Final = 5.0


class _Unproved(NamedTuple):
    """A connection beyond a limit, which may only prove that it is a broker's."""

    deadline: asyncio.TimerHandle
    setting: str
    """The setting whose limit is reached."""
    limit: int


class ConnectionLimits:
    """Counts connections by host and listener. Hosts are as in `Connection.client_host`: "/10.0.0.1"."""

    def __init__(
        self,
        config: BrokerConfig,
        shares: Descriptors,
        complaints: Complaints,
        of_listener: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """`of_listener` returns the `max.connections` of a listener as of now; None if it has none of its own."""
        self._complaints = complaints
        self._shares = shares
        self._of_listener = of_listener
        self._listeners: dict[Connection, str] = {}
        """The listener of each connection that is counted."""
        self._by_listener: Counter[str] = Counter()
        self._limit = shares.limit
        self.configure(config)
        self._for_host: dict[str, int] = {}
        self._by_host: Counter[str] = Counter()
        self._count = 0
        self._reserved = shares.reserved
        self._unproved: dict[Connection, _Unproved] = {}
        """Connections beyond a `max.connections`, oldest first."""
        self._refused: set[Connection] = set()
        """Connections beyond a `max.connections` that were closed, until they are gone."""
        self._brokers: set[Connection] = set()
        if "max.connections" in config.given and self._is_by_descriptors:
            logger.warning(
                "max.connections=%d is more than a limit of %d open files allows; it is %d",
                config.max_connections,
                shares.limit,
                self._most,
            )

    def configure(self, config: BrokerConfig) -> None:
        """Take over changed limits. Limits of single hosts apply after `resolve`."""
        self._is_by_descriptors = self._shares.connections < config.max_connections
        self._most = min(config.max_connections, self._shares.connections)
        self._per_host = config.max_connections_per_ip
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)

    def reconfigure(self, tasks: Tasks, config: BrokerConfig) -> None:
        """Take over changed limits now, and limits of single hosts as soon as their names are resolved."""
        self.configure(config)
        tasks.create_task(self._resolve_again(), name="limits of connections")

    async def _resolve_again(self) -> None:
        try:
            await self.resolve()
        except OSError as error:
            logger.error("max.connections.per.ip.overrides: a host was not found, the limits stay: %s", error)

    @property
    def most(self) -> int:
        """The most connections there may be at once."""
        return self._most

    async def resolve(self) -> None:
        """Resolve the host names in `max.connections.per.ip.overrides`. Raises OSError."""
        self._for_host = await _addresses(self._overrides)

    def opened(self, connection: Connection, listener: str = "") -> bool:
        """Admit a connection, perhaps only to prove that it is a broker's; return whether it may stay for now."""
        reached = self._reached(listener)
        if reached is None or not self._reserved:
            return self._admit(connection, listener, reached)
        if len(self._unproved) >= self._reserved:
            self._turn_away(next(iter(self._unproved)))
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(PROOF_SECONDS, self._turn_away, connection)
        self._unproved[connection] = _Unproved(deadline, *reached)
        return True

    def closed(self, connection: Connection) -> None:
        """Forget a connection that was admitted and is now gone."""
        if (unproved := self._unproved.pop(connection, None)) is not None:
            unproved.deadline.cancel()
        elif connection in self._brokers:
            self._brokers.discard(connection)
        elif connection in self._refused:
            self._refused.discard(connection)
        else:
            self.gone(connection.client_host)
            if (listener := self._listeners.pop(connection, None)) is not None:
                self._by_listener[listener] -= 1

    def proved(self, connection: Connection) -> None:
        """Stop counting a connection that has proved to be a broker's."""
        if connection not in self._brokers and connection not in self._refused:
            self.closed(connection)
            self._brokers.add(connection)

    def must_prove(self, connection: Connection) -> bool:
        """Return whether the connection is beyond a `max.connections`, and may only prove that it is a broker's."""
        return bool(self._unproved) and connection in self._unproved

    def _reached(self, listener: str) -> tuple[str, int] | None:
        """Return the limit that one more connection on a listener would exceed, as (setting, limit); None if none."""
        if self._count >= self._most:
            return CONNECTIONS, self._most
        of_listener = self._of_listener(listener)
        if of_listener is not None and self._by_listener[listener] >= of_listener:
            return f"{PREFIX}{listener.lower()}.{CONNECTIONS}", of_listener
        return None

    def _turn_away(self, connection: Connection) -> None:
        unproved = self._unproved.pop(connection, None)
        if unproved is not None:
            unproved.deadline.cancel()
            self._refused.add(connection)
            self._refuse(connection.client_host, unproved.setting, unproved.limit)
            connection.abort()

    def _admit(self, connection: Connection, listener: str, reached: tuple[str, int] | None) -> bool:
        if reached is not None:
            self._refuse(connection.client_host, *reached)
            return False
        if not self.admit(connection.client_host):
            return False
        self._listeners[connection] = listener
        self._by_listener[listener] += 1
        return True

    def admit(self, host: str) -> bool:
        """Count one more connection of a host; return False if that exceeds a limit."""
        if self._count >= self._most:
            self._refuse(host, CONNECTIONS, self._most)
            return False
        per_host = self._for_host.get(host, self._per_host) if self._for_host else self._per_host
        if self._by_host[host] >= per_host:
            self._refuse(host, "max.connections.per.ip", per_host)
            return False
        self._count += 1
        self._by_host[host] += 1
        return True

    def gone(self, host: str) -> None:
        """Stop counting a connection of a host, which has been closed."""
        self._count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _refuse(self, host: str, setting: str, limit: int) -> None:
        why = ""
        if setting == CONNECTIONS and self._is_by_descriptors:
            why = f", as many as a limit of {self._limit} open files leaves"
        self._complaints.write(
            logger, logging.WARNING, setting, host, "connection %s refused: %s=%d%s", host, setting, limit, why
        )


async def _addresses(limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits by host as a connection names it; a name may resolve to several addresses."""
    found: dict[str, int] = {}
    for name, limit in limits.items():
        for *_, address in await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM):
            found[f"/{address[0]}"] = limit
    return found
