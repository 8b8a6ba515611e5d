"""Group commit: each log directory runs one round of syncs at a time, shared by all waiting requests.

A sync that is requested while a round runs goes into the next one, which begins when the round has ended; waiters are
answered when the round with their records ends. So an append waits for two rounds at most, and a round serves all the
requests that came during the one before: the more producers wait for the disk, the fewer syncs each of them costs.

A round is one `FlushJob` for each log that is due (or for as many as may have files open at once), made when the round
begins, so that it covers all that was appended until then. The jobs run in a few threads of the directory's own: syncs
of files on one disk that overlap share a commit of its journal. A failure of one file affects its log alone.

Invariants: a log is in one round at a time, and in none while something else holds it (`Log.is_taken`); no waiter is
told that its records are synced unless a sync that began after their append has succeeded.

A process that is out of descriptors, memory or threads cannot sync, but that is not a failed sync: the logs stay due,
their waiters keep waiting while it is retried, and receive KAFKA_STORAGE_ERROR if that takes too long.

Left out: `syncfs`, one call for all of a round: it would also write what every other log, and every other program, has
in the page cache of that file system, and its error would name no file (decision 15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kraftpy.broker.containment import Incidents
from kraftpy.broker.threads import Threads
from kraftpy.log.flushing import FlushJob
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.metrics.histograms import Histogram

_THREADS_PER_DISK = 4
_LOGS_PER_ROUND = 64
_FILES_PER_ROUND = 128
"""Each log keeps files open from the round's beginning to its end; this bounds them when thousands are due."""
_PAUSE_SECONDS = 0.1
_MOST_PAUSES = 100
"""How often a sync is tried without descriptors before its waiters get an error."""


class Log(Protocol):
    """A log that can be synced: the interface of `Replica` towards the rounds."""

    topic_partition: TopicPartition

    @property
    def is_taken(self) -> bool:
        """True if something holds the log or waits to; it calls `Rounds.let_go` when it is done."""
        ...

    @property
    def synced_end_offset(self) -> int:
        """Everything before this offset is synced."""
        ...

    def begin_sync(self) -> FlushJob | None:
        """Return the job of syncing this log; None if all is synced.

        Raises KafkaError if the log cannot be synced any more, OSError if there are no resources for it now.
        """
        ...

    def end_sync(self, job: FlushJob, failure: Exception | None) -> Exception | None:
        """Apply the result of a job; return the error for the waiters, if it failed.

        An OSError does not count as a failure: there were no resources, and the sync must be repeated.
        """
        ...


class _Waiter(NamedTuple):
    end_offset: int
    told: asyncio.Future[None]


class Rounds:
    """The syncs of one log directory. For the event loop; only jobs run in threads."""

    def __init__(self, path: str, incidents: Incidents | None = None, files_per_round: int = _FILES_PER_ROUND) -> None:
        self._incidents = incidents
        self.durations: Histogram | None = None
        """The microseconds that rounds took; None if there are no metrics."""
        self._began_at = 0.0
        self.rounds = 0
        """How many rounds synced something."""
        self._pool = Threads(_THREADS_PER_DISK, thread_name_prefix=f"sync {path}")
        self._files_per_round = files_per_round
        self._pauses = 0  # consecutive ones
        self._due: dict[Log, None] = {}
        self._parked: dict[Log, None] = {}
        self._waiting: dict[Log, list[_Waiter]] = {}
        self._is_busy = False

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return sum(map(len, self._waiting.values()))

    def request(self, log: Log) -> None:
        """Sync all that the log holds when the next round begins. Requests made in the same loop iteration share it."""
        self._due[log] = None
        if not self._is_busy:
            self._is_busy = True
            asyncio.get_running_loop().call_soon(self._begin)

    async def wait(self, log: Log, end_offset: int) -> None:
        """Wait until everything before `end_offset` is synced. Raises KafkaError if it cannot be.

        A waiter that is cancelled (its client has gone) holds up no other.
        """
        if log.synced_end_offset >= end_offset:
            return
        told = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(log, []).append(_Waiter(end_offset, told))
        self.request(log)
        await told

    def let_go(self, log: Log) -> None:
        """Resume syncing a log that is no longer held, if a sync was requested meanwhile."""
        if log in self._parked:
            del self._parked[log]
            self.request(log)

    def hand_over(self, log: Log, to: Rounds) -> None:
        """Move a held log to another disk's rounds; its waiters wait there until it is free."""
        waiting = self._waiting.pop(log, [])
        is_due = bool(waiting) or log in self._parked or log in self._due
        self._parked.pop(log, None)
        self._due.pop(log, None)
        if waiting:
            to._waiting.setdefault(log, []).extend(waiting)
        if is_due:
            to._parked[log] = None

    def stop(self) -> None:
        """Stop: every log is closed."""
        self._pool.shutdown(wait=False)

    # --- a round -----------------------------------------------------------------------------

    def _begin(self) -> None:
        jobs: list[tuple[Log, FlushJob]] = []
        shortage: OSError | None = None
        files = 0
        for log in list(islice(self._due, _LOGS_PER_ROUND)):
            if files >= self._files_per_round:
                break
            del self._due[log]
            if log.is_taken:
                self._parked[log] = None
                continue
            try:
                job = log.begin_sync()
            except KafkaError as error:
                self._tell(log, error)
                continue
            except OSError as error:
                shortage = error
                self._due[log] = None
                break
            except Exception as error:
                self._tell(log, self._unexpected(log, error))
                continue
            if job is None:
                self._tell(log, None)
            else:
                jobs.append((log, job))
                files += job.open_files
        if not jobs:
            self._go_on(shortage)
            return
        self.rounds += 1
        self._began_at = asyncio.get_running_loop().time()
        shares = [jobs[number::_THREADS_PER_DISK] for number in range(min(_THREADS_PER_DISK, len(jobs)))]
        loop = asyncio.get_running_loop()
        running = asyncio.gather(
            *(self._run(loop, [job for _, job in share]) for share in shares), return_exceptions=True
        )
        running.add_done_callback(partial(self._end, shares))

    def _run(self, loop: asyncio.AbstractEventLoop, jobs: list[FlushJob]) -> asyncio.Future[list[Exception | None]]:
        try:
            return loop.run_in_executor(self._pool, _run, jobs)
        except OSError as error:  # no thread can be started
            for job in jobs:
                job.give_up()
            failed: asyncio.Future[list[Exception | None]] = loop.create_future()
            failed.set_result([error] * len(jobs))
            return failed

    def _end(
        self,
        shares: Sequence[Sequence[tuple[Log, FlushJob]]],
        running: asyncio.Future[list[list[Exception | None] | BaseException]],
    ) -> None:
        """Answer the waiters of the round, and begin the next. An unexpected error affects its log alone."""
        if self.durations is not None:
            self.durations.record(int(1e6 * (asyncio.get_running_loop().time() - self._began_at)))
        shortage: OSError | None = None
        outcomes = [RuntimeError("the round was cancelled")] * len(shares) if running.cancelled() else running.result()
        for share, outcome in zip(shares, outcomes, strict=True):
            failures = outcome if isinstance(outcome, list) else [RuntimeError(repr(outcome))] * len(share)
            for (log, job), failure in zip(share, failures, strict=True):
                try:
                    end_offset = job.promised_end_offset
                    error = log.end_sync(job, failure)
                    if isinstance(error, OSError):
                        self._due[log], shortage = None, error
                        continue
                    if error is None and (log.synced_end_offset < end_offset or job.is_partial):
                        self._due[log] = None  # the job's promise was lowered, or there is more to sync
                except Exception as unexpected:
                    error = self._unexpected(log, unexpected)
                self._tell(log, error)
        self._go_on(shortage)

    def _unexpected(self, log: Log, error: Exception) -> KafkaError:
        """Record an unexpected error of a sync; return the error for its waiters."""
        if self._incidents is not None:
            self._incidents.note(f"{log.topic_partition}: sync", error, kind="sync")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{log.topic_partition} could not be synced")

    def _go_on(self, shortage: OSError | None) -> None:
        """Begin the next round, if one is due; after a pause, if resources are short."""
        if shortage is None:
            self._pauses = 0
        else:
            self._pauses += 1
            if self._pauses > _MOST_PAUSES:
                why = shortage.strerror or str(shortage)
                for log in list(self._due):
                    self._tell(log, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot sync the log: {why}"))
        self._is_busy = bool(self._due)
        if not self._due:
            return
        loop = asyncio.get_running_loop()
        if shortage is None:
            loop.call_soon(self._begin)
        else:
            loop.call_later(_PAUSE_SECONDS, self._begin)

    def _tell(self, log: Log, error: Exception | None) -> None:
        """Answer the waiters whose records are synced, or all of them if the sync failed."""
        waiting = self._waiting.pop(log, None)
        if waiting is None:
            return
        later: list[_Waiter] = []
        for waiter in waiting:
            if waiter.told.done():
                continue
            if log.synced_end_offset >= waiter.end_offset:
                waiter.told.set_result(None)
            elif error is not None:
                waiter.told.set_exception(error)
            elif log in self._due:
                later.append(waiter)
            else:
                message = f"{log.topic_partition} was truncated before it was synced"
                waiter.told.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message))
        if later:
            self._waiting[log] = later


class Syncs:
    """The rounds of every log directory."""

    def __init__(self, incidents: Incidents | None = None, files_per_round: int = _FILES_PER_ROUND) -> None:
        self._incidents = incidents
        self._files_per_round = files_per_round
        self._rounds: dict[str, Rounds] = {}
        self.durations: Histogram | None = None
        """The microseconds that rounds take on all disks; None if there are no metrics."""

    def __iter__(self) -> Iterator[tuple[str, Rounds]]:
        return iter(self._rounds.items())

    def of(self, path: str) -> Rounds:
        """Return the rounds of one log directory."""
        rounds = self._rounds.get(path)
        if rounds is None:
            rounds = self._rounds[path] = Rounds(path, self._incidents, self._files_per_round)
            rounds.durations = self.durations
        return rounds

    def stop(self) -> None:
        """Stop all rounds: every log is closed."""
        for rounds in self._rounds.values():
            rounds.stop()


def _run(jobs: list[FlushJob]) -> list[Exception | None]:
    """Run jobs one after the other, whether or not earlier ones failed; return their failures. Runs in a thread."""
    failures: list[Exception | None] = []
    for job in jobs:
        try:
            job.run()
        except Exception as error:  # the log accepts nothing more, and its waiters get an error
            failures.append(error)
        else:
            failures.append(None)
    return failures
