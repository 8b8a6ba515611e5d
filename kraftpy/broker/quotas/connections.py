"""Limits how fast connections are created (KIP-612): `max.connection.creation.rate`, and quotas of IP entities.

A connection that waits is open but muted: it is not read, and takes a descriptor and little memory. On each listener,
at most `socket.listen.backlog.size` connections wait to be served, as many as a full backlog of the kernel would hold,
and at most as many again wait to be closed because of their address's rate. Any more are closed at once.

With several listeners, the one for other brokers is exempt from the broker's rate, as in Kafka. A listener's own rate
is `listener.name.<name>.max.connection.creation.rate`, from the file or the metadata, for this broker or all. Without
any rate, a new connection costs a few comparisons.

Host names are resolved when their quota is set or when the broker starts. Addresses are compared in one form.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.broker.containment import Complaints, Tasks
from kraftpy.broker.dynamic_settings import DynamicSettings
from kraftpy.broker.quotas.hosts import addresses_of, normal_address
from kraftpy.broker.slicing import in_slices
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.quotas.connections import ConnectionRates
from kraftpy.quotas.entities import CONNECTION_CREATION_RATE
from kraftpy.quotas.limits import Limits

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection

logger = logging.getLogger(__name__)

NO_LIMIT: Final = 2**31 - 1
_LOOKED_UP_AT_ONCE: Final = 1_000
"""How many addresses are brought into their one form in one go: some 5 ms."""


class _Found(NamedTuple):
    """The rates of addresses, and the names of hosts to resolve."""

    rates: dict[str, float]
    hosts: list[str]

    def add(self, names: Sequence[str], limits: Limits) -> None:
        """Add the quotas of these addresses and hosts."""
        for name in names:
            rate, address = limits.of_ip(name, CONNECTION_CREATION_RATE), normal_address(name)
            if address is None:
                self.hosts.append(name)
            elif rate is not None:
                self.rates[address] = rate


class ConnectionQuotas:
    """Admits connections at the rates that are in force."""

    def __init__(
        self,
        settings: DynamicSettings,
        clock: Clock,
        image: Callable[[], Image],
        tasks: Tasks,
        complaints: Complaints,
    ) -> None:
        first = settings.config
        self._settings, self._clock, self._image = settings, clock, image
        self._tasks, self._complaints = tasks, complaints
        self._rates = ConnectionRates(first.quota_window_num, first.quota_window_size_seconds * 1000)
        self._waiting: Counter[tuple[str, bool]] = Counter()
        self._most_waiting = max(1, first.socket_listen_backlog_size)
        self._protected = first.inter_broker_listener if len(first.client_listeners) > 1 else None
        self._by_address: dict[str, float] = {}
        self._default: float | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._found_in: tuple[Limits | None, int] = (None, 0)

    def opened(self, listener: str, connection: Connection) -> bool:
        """Make a new connection wait if it comes too soon; return False if it has to be closed at once."""
        config, image = self._settings.config, self._image()
        limits = image.quotas.limits
        of_broker = None if listener == self._protected else _limited(config.max_connection_creation_rate)
        own_rate = self._settings.limits_of(listener).creation_rate
        of_listener = None if own_rate is None else _limited(own_rate)
        of_address, address = None, ""
        if limits.of_ips:
            if self._found_in != (limits, limits.changes):
                self._look_up(limits)
            address = normal_address(connection.client_host.removeprefix("/")) or ""
            of_address = self._by_address.get(address, self._default)
        if of_broker is None and of_listener is None and of_address is None:
            return True
        now = self._clock.monotonic_ms()
        is_full = self._waiting[listener, False] >= self._most_waiting
        if is_full:
            self._complain("backlog", connection, "too many connections are waiting")
            return False
        verdict = self._rates.arrive(
            listener, address, now, of_broker=of_broker, of_listener=of_listener, of_address=of_address
        )
        if verdict.is_refused:
            self._complain(CONNECTION_CREATION_RATE, connection, f"{CONNECTION_CREATION_RATE}={of_address:g}")
            if self._waiting[listener, True] >= self._most_waiting:
                return False
        if verdict.wait_ms > 0:
            self._hold(listener, connection, verdict.wait_ms / 1000, is_refused=verdict.is_refused)
        return True

    def _hold(self, listener: str, connection: Connection, seconds: float, *, is_refused: bool) -> None:
        place = listener, is_refused
        self._waiting[place] += 1
        connection.mute(seconds)

        def end() -> None:
            self._waiting[place] -= 1
            if is_refused:
                connection.abort()

        asyncio.get_running_loop().call_later(seconds, end)

    def _look_up(self, limits: Limits) -> None:
        """Take over changed quotas of addresses, many of them in slices; until then the earlier ones hold.

        Those of hosts follow as soon as their names are resolved.
        """
        self._found_in = limits, limits.changes
        self._default = limits.of_ip("", CONNECTION_CREATION_RATE)
        if self._looking_up is not None:
            return
        names = limits.ips()
        if len(names) > _LOOKED_UP_AT_ONCE:
            self._looking_up = self._tasks.create_task(self._look_up_in_slices(), name="addresses with quotas")
            return
        found = _Found({}, [])
        found.add(names, limits)
        self._take_over(found, limits, limits.changes)

    async def _look_up_in_slices(self) -> None:
        """Look up until nothing has changed meanwhile."""
        try:
            is_outdated = True
            while is_outdated:
                limits, changes = self._found_in
                assert limits is not None
                found = _Found({}, [])
                async for names in in_slices(limits.ips(), _LOOKED_UP_AT_ONCE):
                    found.add(names, limits)
                self._take_over(found, limits, changes)
                is_outdated = self._found_in != (limits, changes)
        finally:
            self._looking_up = None

    def _take_over(self, found: _Found, limits: Limits, changes: int) -> None:
        self._by_address = found.rates
        if found.hosts:
            self._tasks.create_task(self._resolve(found.hosts, limits, changes), name="hosts with quotas")

    async def _resolve(self, names: list[str], limits: Limits, changes: int) -> None:
        for name in names:
            addresses = await addresses_of(name)
            if self._found_in != (limits, changes):
                return
            rate = limits.of_ip(name, CONNECTION_CREATION_RATE)
            if not addresses:
                self._complaints.own(logger, "hosts", "the host %s has a quota, but its name does not resolve", name)
            if rate is not None:
                self._by_address |= {each: rate for each in addresses if each not in self._by_address}

    def _complain(self, kind: str, connection: Connection, why: str) -> None:
        host = connection.client_host
        self._complaints.write(logger, logging.WARNING, kind, host, "connection %s refused: %s", host, why)


def _limited(rate: int) -> float | None:
    return None if rate >= NO_LIMIT else float(rate)
