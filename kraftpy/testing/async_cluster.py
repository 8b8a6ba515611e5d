"""`AsyncCluster`: a `Cluster` for tests with an event loop. Its methods are coroutines that run in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from kraftpy.testing.faults import Fault, Faulty, Nodes
from kraftpy.testing.rules import Hit

if TYPE_CHECKING:
    from kraftpy.testing.chaos import AsyncChaos
    from kraftpy.testing.nodes import Cluster

P = ParamSpec("P")


class AsyncFault:
    """A `Fault` whose methods are coroutines; its `async with` block heals it."""

    def __init__(self, blocking: Fault) -> None:
        self.blocking = blocking
        """The blocking fault."""

    async def __aenter__(self) -> AsyncFault:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.heal()

    def __repr__(self) -> str:
        return repr(self.blocking)

    async def heal(self) -> None:
        """Like `Fault.heal`."""
        await asyncio.to_thread(self.blocking.heal)

    async def wait(self, hits: int = 1, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - handed on
        """Like `Fault.wait`."""
        await asyncio.to_thread(self.blocking.wait, hits, timeout)

    @property
    def is_over(self) -> bool:
        """Like `Fault.is_over`."""
        return self.blocking.is_over

    @property
    def hits(self) -> list[Hit]:
        """Like `Fault.hits`."""
        return self.blocking.hits


Entered = TypeVar("Entered", bound=AsyncFault)


class Pending(Coroutine[Any, Any, Entered], Generic[Entered]):
    """A coroutine that returns a context manager. Await it, or enter it at once with `async with`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Entered]) -> None:
        self._coroutine = coroutine
        self._entered: Entered | None = None

    def __await__(self) -> Generator[Any, Any, Entered]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Like a coroutine's `send`."""
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        """Like a coroutine's `throw`."""
        return self._coroutine.throw(*args)

    def close(self) -> None:
        """Like a coroutine's `close`."""
        self._coroutine.close()

    async def __aenter__(self) -> Entered:
        self._entered = await self._coroutine
        await self._entered.__aenter__()
        return self._entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._entered is not None
        await self._entered.__aexit__(kind, error, trace)


def _fault(begin: Callable[[], Fault]) -> Pending[AsyncFault]:
    async def in_a_thread() -> AsyncFault:
        return AsyncFault(await asyncio.to_thread(begin))

    return Pending(in_a_thread())


def _begins(
    method: Callable[Concatenate[Any, P], Fault],
) -> Callable[Concatenate[AsyncCluster, P], Pending[AsyncFault]]:
    """Turn a cluster's method that begins a fault into one of `AsyncCluster`."""

    @functools.wraps(method)
    def begin(self: AsyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> Pending[AsyncFault]:
        return _fault(lambda: method(self.blocking, *args, **kwargs))

    return begin


class AsyncCluster:
    """A `Cluster` whose methods are coroutines, as returned by `async with Cluster() as cluster`.

    A method that begins a fault gives an `AsyncFault` if awaited, or can be entered: `async with
    cluster.drop("Produce"):`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.blocking = cluster
        """The blocking cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, separated by commas, whether they are running or not."""
        return self.blocking.bootstrap_servers

    @property
    def bootstrap_controllers(self) -> str:
        """The addresses of all controllers, for administrators (`bootstrap.controllers`, KIP-919)."""
        return self.blocking.bootstrap_controllers

    def client_options(self, user: str | None = None) -> dict[str, Any]:
        """Like `Cluster.client_options`."""
        return self.blocking.client_options(user)

    def client_properties(self, user: str | None = None) -> dict[str, str]:
        """Like `Cluster.client_properties`."""
        return self.blocking.client_properties(user)

    def address(self, node: int) -> str:
        """Return the host and port at which clients reach this broker."""
        return self.blocking.address(node)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The node ids of the brokers."""
        return self.blocking.brokers

    @property
    def controllers(self) -> tuple[int, ...]:
        """The node ids of the quorum's voters."""
        return self.blocking.controllers

    # --- nodes ----------------------------------------------------------------------------------------------------

    async def start(self, node: int, *, wait: bool = True) -> None:
        """Like `Cluster.start`."""
        await asyncio.to_thread(self.blocking.start, node, wait=wait)

    def kill(self, node: int) -> Pending[AsyncFault]:
        """Like `Cluster.kill`."""
        return _fault(lambda: self.blocking.kill(node))

    def stop(self, node: int) -> Pending[AsyncFault]:
        """Like `Cluster.stop`."""
        return _fault(lambda: self.blocking.stop(node))

    def pause(self, node: int) -> Pending[AsyncFault]:
        """Like `Cluster.pause`."""
        return _fault(lambda: self.blocking.pause(node))

    async def resume(self, node: int) -> None:
        """Like `Cluster.resume`."""
        self.blocking.resume(node)

    async def wait_ended(self, node: int, timeout: float | None = None) -> int:  # noqa: ASYNC109 - handed on
        """Like `Cluster.wait_ended`."""
        return await asyncio.to_thread(self.blocking.wait_ended, node, timeout)

    # --- faults ---------------------------------------------------------------------------------------------------

    def partition(self, some: Nodes | str, others: Nodes | str, *, one_way: bool = False) -> Pending[AsyncFault]:
        """Like `Cluster.partition`."""
        return _fault(lambda: self.blocking.partition(some, others, one_way=one_way))

    drop = _begins(Faulty.drop)
    delay = _begins(Faulty.delay)
    hold = _begins(Faulty.hold)
    fail = _begins(Faulty.fail)
    slow_disk = _begins(Faulty.slow_disk)
    hold_fsync = _begins(Faulty.hold_fsync)
    fail_fsync = _begins(Faulty.fail_fsync)
    disk_full = _begins(Faulty.disk_full)

    def chaos(
        self,
        seed: int | None = None,
        *,
        faults: int | None = None,
        kinds: Sequence[str] | None = None,
        most_nodes: int | None = None,
        lasts: tuple[float, float] = (0.5, 3.0),
        pause: tuple[float, float] = (0.2, 1.0),
        settle: float = 60.0,
    ) -> AsyncChaos:
        """Like `Cluster.chaos`, for `async with`."""
        from kraftpy.testing.chaos import AsyncChaos

        return AsyncChaos(
            self.blocking.chaos(
                seed,
                faults=faults,
                kinds=kinds,
                most_nodes=most_nodes,
                lasts=lasts,
                pause=pause,
                settle=settle,
            )
        )

    async def heal(self) -> None:
        """Like `Cluster.heal`."""
        await asyncio.to_thread(self.blocking.heal)

    # --- what it says ---------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - handed on
        """Like `Cluster.wait_ready`."""
        await asyncio.to_thread(self.blocking.wait_ready, timeout)

    async def wait_in_sync(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - handed on
        """Like `Cluster.wait_in_sync`."""
        await asyncio.to_thread(self.blocking.wait_in_sync, timeout)

    async def leader_of(self, topic: str, partition: int = 0, *, ask: int | None = None) -> int | None:
        """Like `Cluster.leader_of`."""
        return await asyncio.to_thread(self.blocking.leader_of, topic, partition, ask=ask)

    async def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Like `Cluster.move_leader`."""
        return await asyncio.to_thread(self.blocking.move_leader, topic, partition, to=to)

    async def coordinator_of(self, group: str) -> int | None:
        """Like `Cluster.coordinator_of`."""
        return await asyncio.to_thread(self.blocking.coordinator_of, group)

    async def quorum_leader(self) -> int | None:
        """Like `Cluster.quorum_leader`."""
        return await asyncio.to_thread(self.blocking.quorum_leader)

    def logs(self, node: int) -> str:
        """Like `Cluster.logs`."""
        return self.blocking.logs(node)
