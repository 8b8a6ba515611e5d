"""Reports to the cluster how failed disks affected this broker's replicas, and whether it is cordoned (KIP-1066).

It compares states instead of reacting to events: every second, and at once when a log directory fails, the actual
states (`ReplicaManager.reports`) are compared with the image, and the difference is submitted as one `ChangeReplicas`.
So nothing is lost when a command is refused, or the quorum has no leader for a while. Kafka's broker names its failed
directories in its heartbeats (KIP-858); here the broker names the replicas, in a command of its own, as leaders do with
their in-sync replicas. Nor does it name cordoned directories: it says whether all are (`CordonBroker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable

from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.replication.replica_manager import ReplicaManager
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.config import BrokerConfig
from kraftpy.metadata.commands import ChangeReplicas, CordonBroker, ReplicaChange
from kraftpy.ports import Clock, Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import BrokerId

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_MOST_AT_ONCE = 1000


class ReplicaReports:
    """The reports of one broker."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: Callable[[], int],
        metadata: MetadataLog,
        clock: Clock,
        directories: LogDirectories,
        manager: ReplicaManager,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._clock = clock
        self._directories = directories
        self._manager = manager
        self._due = asyncio.Event()
        self._is_accounted = False
        self._has_complained = False

    def wake(self) -> None:
        """Report now: something has failed."""
        self._due.set()

    def configure(self, config: BrokerConfig) -> None:
        """Take over which directories are cordoned, and report now whether all are."""
        self._directories.configure(config)
        self._due.set()

    async def run(self) -> None:
        """Report changes until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._due.wait()
            self._due.clear()
            await self.report()

    async def report(self) -> None:
        """Tell the cluster what it does not know yet. A report that fails is repeated with the next."""
        await self.report_cordon()
        reports = self._manager.reports()
        if not reports:
            await self._account()
            return
        some = dict(itertools.islice(reports.items(), _MOST_AT_ONCE))
        command = ChangeReplicas(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            changes=tuple(
                ReplicaChange(topic_id=topic_id, partition=partition, state=state)
                for (topic_id, partition), state in some.items()
            ),
            time_ms=self._clock.now(),
        )
        try:
            decision = await self._metadata.submit(command)
        except KafkaError as error:
            self._complain(len(some), str(error))
            return
        if decision.error != ErrorCode.NONE:
            self._complain(len(some), decision.message or decision.error.name)
            return
        self._has_complained = False
        for number, state in some.items():
            logger.info("topic %s partition %d: told the cluster that it is %s", *number, state.name)
            self._manager.offline.reported(number, self._metadata.image)
        if len(reports) > len(some):
            self._due.set()

    async def report_cordon(self) -> None:
        """Tell the cluster whether all directories are cordoned, if it does not know. Repeated with the next report."""
        is_cordoned, broker = self._directories.are_all_cordoned, self._metadata.image.broker(self._broker_id)
        if broker is None or broker.broker_epoch != self._broker_epoch() or broker.is_cordoned == is_cordoned:
            return
        command = CordonBroker(
            broker_id=self._broker_id,
            broker_epoch=broker.broker_epoch,
            is_cordoned=is_cordoned,
            time_ms=self._clock.now(),
        )
        try:
            decision = await self._metadata.submit(command)
        except KafkaError as error:
            if not self._has_complained:
                logger.warning("the cluster does not know yet whether this broker is cordoned: %s", error)
                self._has_complained = True
            return
        if decision.error == ErrorCode.NONE:
            self._has_complained = False
            effect = "are all cordoned: it gets no new replicas" if is_cordoned else "are not all cordoned any more"
            logger.info("the log directories of this broker %s", effect)

    def _complain(self, count: int, why: str) -> None:
        if not self._has_complained:
            logger.warning("%d replicas: their state is not reported to the cluster yet: %s", count, why)
            self._has_complained = True

    async def _account(self) -> None:
        """Record the present directories as complete, now that nothing is in doubt."""
        if self._is_accounted:
            return
        self._is_accounted = True
        try:
            await asyncio.to_thread(self._directories.account)
        except OSError as error:
            if failure_of(error) is Failure.RESOURCES:
                self._is_accounted = False  # with the next report
                return
            logger.warning("%s: its directories' ids are not written: %s", self._directories.paths[0], error)
