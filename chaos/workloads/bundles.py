"""Records to several partitions at once, which share one request if one broker leads them.

A broker answers such a request when the slowest of its partitions is done; each record has an answer of its own in it.
In the history each is a separate operation of a separate process: the outcome of one says nothing about the others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from chaos.generator import Call
from chaos.history import Key, Op, Recorder, Type
from chaos.workloads.clients import Client, Setting, partition_of
from kraftpy.client.producer.delivery import Delivery
from kraftpy.protocol.errors import KafkaError

FIRST_PROCESS: Final = 600_000
CLIENTS: Final = 3
KEYS: Final[tuple[Key, ...]] = ("b0-0", "t0-0")
"""Their order in a request. Only this workload knows the first topic; every client sends to the second."""
_FIRST_VALUE: Final = 500_000_000
"""Higher than any value that other clients send."""


class _NoCalls:
    """Always asks for the same."""

    def call(self, process: int) -> Call | None:
        """Return nothing."""

    def observe(self, op: Op) -> None:
        """Do nothing."""


class BundlingClient(Client):
    """One producer that acts as one process of the history for each key."""

    def __init__(self, setting: Setting, recorder: Recorder, number: int, values: Iterator[int]) -> None:
        """`values` are shared by all of these clients, so that none is sent twice."""
        stride = CLIENTS * len(KEYS)
        super().__init__(setting, recorder, _NoCalls(), FIRST_PROCESS + number * len(KEYS), stride)
        self._values = values

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Send bundle after bundle until `is_over`."""
        try:
            while not is_over():
                if not await self._bundle(next(self._values)):
                    self.process += self._count
                    await self._throw_away()
                await asyncio.sleep(pause())
        finally:
            await self._throw_away()

    async def _bundle(self, value: int) -> bool:
        """Send one record to each key; return True if all are known to be written."""
        now_ns = self._setting.now_ns
        processes = [self.process + place for place in range(len(KEYS))]
        for process, key in zip(processes, KEYS, strict=True):
            self._recorder.invoke(now_ns(), process, "send", [["send", key, value]])
        sent: list[Delivery] = []
        error: KafkaError | None = None
        try:
            await self._have_topics([partition_of(key).topic for key in KEYS])
            producer = await self._have_producer()
            for key in KEYS:
                topic, partition = partition_of(key)
                sent.append(await producer.send(topic, str(value).encode(), partition=partition))
        except KafkaError as failure:
            error = failure
        is_known = True
        for process, key, delivery in itertools.zip_longest(processes, KEYS, sent):
            try:
                if delivery is None:
                    assert error is not None
                    raise error
                done = ["send", key, [(await delivery).offset, value]]
                self._recorder.complete(now_ns(), process, Type.OK, [done])
            except KafkaError as failure:
                why = f"{failure.code.name}: {failure.message}"
                self._recorder.complete(now_ns(), process, Type.INFO, [["send", key, value]], error=why)
                is_known = False
        return is_known


def values() -> Iterator[int]:
    """Never yield a value twice."""
    return itertools.count(_FIRST_VALUE)
