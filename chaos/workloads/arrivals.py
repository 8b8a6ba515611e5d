"""Clients at two addresses that open connections under a quota of the address on each broker (KIP-612).

One opens as many as it can, the other half of what the quota allows. Each connection asks for the broker's versions,
which needs no login, and is closed. One that is answered was admitted; one that the broker closes was refused, or the
broker has ended. The quotas are set with those of `rates`.

When all is quiet, `final_arrivals` lets both open connections to each broker once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.history import Recorder, Type
from chaos.workloads.clients import Setting
from chaos.workloads.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest

KEY: Final = "connection_creation_rate"
RATE: Final = 2.0
"""The quota of each address on each broker, in connections per second."""
MANY, FEW = "10.8.0.1", "10.8.0.2"
ADDRESSES: Final = (MANY, FEW)
FIRST_PROCESSES: Final = {MANY: 4_600_000, FEW: 4_700_000}
LAST_PROCESSES: Final = {MANY: 4_800_000, FEW: 4_900_000}

_PAUSE_SECONDS: Final = {MANY: 0.1, FEW: 1.0}
"""Without the quota, the first opens five times as many connections as it allows."""
_RETRY_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 6.0


class Caller:
    """A client at one of the addresses, for one broker, as one process of a history at a time."""

    def __init__(
        self, setting: Setting, recorder: Recorder, address: str, broker: tuple[str, int], process: int
    ) -> None:
        self.process = process
        self._setting = setting
        self._recorder = recorder
        self._address = address
        self._broker = broker

    async def work(self, is_over: Callable[[], bool], **extra: Any) -> None:
        """Open connections until `is_over`."""
        while not is_over():
            is_known = await self._call(**extra)
            await asyncio.sleep(_PAUSE_SECONDS[self._address] if is_known else _RETRY_SECONDS)

    async def _call(self, **extra: Any) -> bool:
        """Open a connection and ask; return whether it was admitted or closed."""
        try:
            wire = await self._setting.runtime.connect(Wire, *self._broker)
        except (OSError, TimeoutError):
            return False
        value: dict[str, Any] = {"address": self._address, "node": self._broker[0]}
        self._recorder.invoke(self._setting.now_ns(), self.process, "arrival", value, **extra)
        is_answered: bool | None = True
        try:
            await wire.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), self._address)
        except EOFError:
            is_answered = False
        except TimeoutError:
            is_answered = None
        wire.close()
        if is_answered is None:
            self._recorder.complete(self._setting.now_ns(), self.process, Type.INFO, value, **extra)
            self.process += 1
            return False
        told = {**value, "answered": is_answered}
        self._recorder.complete(self._setting.now_ns(), self.process, Type.OK, told, **extra)
        return True


async def final_arrivals(
    setting: Setting, recorder: Recorder, address: str, brokers: Sequence[tuple[str, int]], process: int
) -> None:
    """Once brokers have caught up, open connections to each of them for some seconds."""
    for broker in brokers:
        caller = Caller(setting, recorder, address, broker, process)
        until_ns = setting.now_ns() + int(_LAST_SECONDS * 1e9)
        await caller.work(lambda until_ns=until_ns: setting.now_ns() >= until_ns, final=True)  # type: ignore[misc]
        process = caller.process
