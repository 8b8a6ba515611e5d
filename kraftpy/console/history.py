"""The last half hour of a cluster: samples of rates and lags, taken in the background.

A sample is that of `kraftpy top`; only its sums are kept. Invariants: at most `MOST_POINTS` points of the cluster and
of each group are kept, and at most `MOST_GROUPS` groups and `MOST_SHARE_GROUPS` share groups; a group that is gone is
forgotten with its last point. A cluster that cannot be asked leaves a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kraftpy.console.cluster import SHARE, Cluster, now_ms
from kraftpy.diagnosis.sampling import NO_ENDPOINTS, MetricsEndpoints, Sample, rows, sample
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 1.0
"""The first sample gives way to the first page."""
MOST_POINTS: Final = 360
MOST_SHARE_GROUPS: Final = 50


class Point(NamedTuple):
    """A value at a time, in milliseconds since 1970."""

    time_ms: int
    value: float


class History:
    """The samples of one cluster, and what changed between the last two."""

    def __init__(
        self, cluster: Cluster, seconds: float = SAMPLE_SECONDS, endpoints: MetricsEndpoints = NO_ENDPOINTS
    ) -> None:
        """`endpoints` are asked for the times of requests."""
        self.seconds = seconds
        self._endpoints = endpoints
        self.last_error: str | None = None
        """Why the last sample could not be taken."""
        self._cluster = cluster
        self._written: deque[Point] = deque(maxlen=MOST_POINTS)
        self._lags: dict[str, deque[Point]] = {}
        self._before: Sample | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take samples while the block runs."""
        task = asyncio.create_task(self._run(), name="console history")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        await asyncio.sleep(min(FIRST_SECONDS, self.seconds))
        while True:
            try:
                await self.take()
                self.last_error = None
            except KafkaError as error:
                self.last_error, self._before = str(error), None
            except Exception as error:
                logger.exception("a sample of the cluster could not be taken")
                self.last_error, self._before = str(error), None
            await asyncio.sleep(self.seconds)

    async def take(self) -> None:
        """Take a sample now. Raises KafkaError if the cluster cannot be asked."""
        taken = await sample(self._cluster.admin, self._endpoints)
        lags: dict[str, float] = {name: group.lag for name, group in taken.groups.items()}
        lags |= await self._share_lags()
        if self._before is not None:
            self._rows = rows(self._before, taken)
            self._written.append(Point(taken.time_ms, self._rows[0]["written_per_second"]))
        self._before = taken
        self._lags = {name: self._lags.get(name) or deque(maxlen=MOST_POINTS) for name in lags}
        for name, lag in lags.items():
            self._lags[name].append(Point(taken.time_ms, lag))

    async def _share_lags(self) -> dict[str, float]:
        """Return the lags of the first share groups, as far as their leaders have reported them."""
        lags: dict[str, float] = {}
        shared = [each.group_id for each in await self._cluster.groups() if each.group_type == SHARE]
        for name in shared[:MOST_SHARE_GROUPS]:
            with contextlib.suppress(KafkaError):
                offsets = (await self._cluster.admin.list_share_group_offsets(name)).values()
                lags[name] = sum(each.lag for each in offsets if each.lag is not None)
        return lags

    @property
    def written(self) -> Sequence[Point]:
        """The records written per second to all topics, the oldest first."""
        return tuple(self._written)

    def lag(self, group: str) -> Sequence[Point]:
        """Return the lags of a group, the oldest first; none if it is not sampled."""
        return tuple(self._lags.get(group, ()))

    def last_lag(self, group: str) -> int | None:
        """Return a group's lag in the last sample; None if it is not sampled."""
        points = self._lags.get(group)
        return int(points[-1].value) if points else None

    @property
    def cluster(self) -> Mapping[str, Any] | None:
        """The cluster's counts and rate between the last two samples; None before there are two."""
        return self._rows[0] if self._rows else None

    def busiest(self, kind: str, most: int) -> list[Mapping[str, Any]]:
        """Return the first rows of a kind: topics by what is written to them, groups by lag, requests by their time."""
        return [row for row in self._rows if row["kind"] == kind][:most]

    def rates(self) -> dict[str, float]:
        """Return the records written per second to each topic, as far as they are known."""
        return {row["topic"]: row["written_per_second"] for row in self._rows if row["kind"] == "topic"}

    @property
    def age_ms(self) -> int | None:
        """The age of the last sample, in ms; None before the first."""
        return None if self._before is None else max(0, now_ms() - self._before.time_ms)
