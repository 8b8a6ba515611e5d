"""Faults of a node that a test asks for: requests that go wrong, disks that are slow, full or broken.

`Cluster` and `EmbeddedBroker` have the methods of `Faulty`. Each begins a fault and gives a `Fault`, which ends with
its `with` block, or with `heal`:

    with cluster.drop("Produce", response=True, count=1) as fault:
        producer.send("events", b"written, and the answer is lost")
        fault.wait()
    slow = cluster.slow_disk(1, seconds=0.2)
    slow.heal()

A fault is in force when the method returns; on a node that is killed or stopped, again when it starts; on one that is
paused as soon as it goes on. Several may be in force at once: a request meets them in the order they were begun.

Left out: faults of what the nodes of a quorum say to each other, but for `Cluster.partition`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kraftpy.testing.rules import Hit, Rule, Sender, read_hits
from kraftpy.testing.server_process import ServerProcess

Nodes = int | Iterable[int] | None
"""One broker, several, or all of them."""

Api = str | int | None
"""Its name, as Kafka's documentation spells it or as `ApiKey` does, or its number; None for every API."""

_POLL_SECONDS = 0.005


class Fault:
    """Something that goes wrong until it is healed; by the end of its `with` block at the latest."""

    def __init__(self, what: str, heal: Callable[[], None], hits: Callable[[], list[Hit]] = lambda: []) -> None:
        self.what = what
        """What it is, for people."""
        self._heal: Callable[[], None] | None = heal
        self._hits: Callable[[], list[Hit]] = hits

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()

    def __repr__(self) -> str:
        return f"<{self.what}{'' if self._heal is not None else ', healed'}>"

    def heal(self) -> None:
        """End it; nothing happens where it has ended."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()
            found = self._hits()
            self._hits = lambda: found

    @property
    def is_over(self) -> bool:
        """Whether it was healed."""
        return self._heal is None

    @property
    def hits(self) -> list[Hit]:
        """Each time that it was met: on which node, which API or file, and whose request.

        None are counted of faults that are not met one by one: nodes that are killed, or cut off from each other.
        """
        return self._hits()

    def wait(self, hits: int = 1, timeout: float = 30.0) -> None:
        """Until it was met so many times. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while (found := len(self.hits)) < hits:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.what}: met {found} times in {timeout:g} s, not {hits}")
            time.sleep(_POLL_SECONDS)


class Faults:
    """The faults of some nodes that are in force, and telling the nodes.

    `processes` are those that run, by node id, and `paused` those of them that cannot answer now. `directory` is where
    hits are noted.
    """

    def __init__(
        self, processes: Mapping[int, ServerProcess], paused: Iterable[int], directory: Callable[[], Path]
    ) -> None:
        self._processes = processes
        self._paused = paused
        self._directory = directory
        self._lock = threading.RLock()
        self._rules: dict[int, tuple[frozenset[int], Rule]] = {}
        self._faults: dict[int, Fault] = {}
        self._begun = 0

    def begin(self, nodes: Iterable[int], what: str, kind: str, **settings: Any) -> Fault:
        """Have a rule in force on these nodes."""
        hit = frozenset(nodes)
        with self._lock:
            self._begun += 1
            number = self._begun
            hits = self._directory() / f"{number}.hits"
            hits.parent.mkdir(parents=True, exist_ok=True)
            hits.unlink(missing_ok=True)
            self._rules[number] = hit, Rule(id=number, kind=kind, hits=str(hits), **settings)
            where = "" if not hit else f" on {', '.join(map(str, sorted(hit)))}"
            fault = self._faults[number] = Fault(
                f"{what}{where}", lambda: self._end(number), lambda: read_hits(str(hits))
            )
            self._tell(hit)
        return fault

    def of(self, node: int) -> list[Rule]:
        """What a node does wrong."""
        with self._lock:
            return [rule for nodes, rule in self._rules.values() if node in nodes]

    def heal(self) -> None:
        """End all of them."""
        for fault in list(self._faults.values()):
            fault.heal()

    def _end(self, number: int) -> None:
        with self._lock:
            nodes, _ = self._rules.pop(number)
            del self._faults[number]
            self._tell(nodes)

    def _tell(self, nodes: Iterable[int]) -> None:
        for node in sorted(nodes):
            if (process := self._processes.get(node)) is not None:
                process.obey(node, self.of(node), wait=node not in self._paused)


class Faulty(ABC):
    """What can go wrong in a node. `broker` is a node id or several; without it, it is every broker."""

    _faults: Faults

    @abstractmethod
    def _hit(self, broker: Nodes) -> tuple[int, ...]:
        """The nodes that are meant."""

    # --- requests -------------------------------------------------------------------------------------------------

    def drop(
        self,
        api: Api = None,
        broker: Nodes = None,
        *,
        response: bool = False,
        count: int | None = None,
        client_id: str | None = None,
        sender: Sender = "clients",
    ) -> Fault:
        """Close the connection of such a request without an answer: the request is lost, and has no effect.

        With `response` it is the answer that is lost: the request has taken effect. With `count` so many are dropped
        and no more, by all brokers together; only those of `client_id`, if given. Requests of the other brokers are
        spared, unless `sender` is "brokers" or "all".
        """
        return self._request_fault("drop", "drop", api, broker, response, count, client_id, sender)

    def delay(
        self,
        api: Api = None,
        broker: Nodes = None,
        *,
        seconds: float,
        response: bool = False,
        count: int | None = None,
        client_id: str | None = None,
        sender: Sender = "clients",
    ) -> Fault:
        """Let such a request wait before it is served, or with `response` its answer before it is sent.

        What is behind it on its connection waits too. As `drop` otherwise.
        """
        what = f"delay by {seconds:g} s"
        return self._request_fault("delay", what, api, broker, response, count, client_id, sender, seconds=seconds)

    def hold(
        self,
        api: Api = None,
        broker: Nodes = None,
        *,
        response: bool = False,
        count: int | None = None,
        client_id: str | None = None,
        sender: Sender = "clients",
    ) -> Fault:
        """Let such a request wait until the fault is healed; with `response`, its answer. As `drop` otherwise.

        A request whose client goes away meanwhile is never served.
        """
        return self._request_fault("hold", "hold", api, broker, response, count, client_id, sender)

    def fail(
        self,
        api: Api,
        error: str | int,
        broker: Nodes = None,
        *,
        response: bool = False,
        count: int | None = None,
        client_id: str | None = None,
        sender: Sender = "clients",
    ) -> Fault:
        """Answer such a request with an error, by its name ("NOT_LEADER_OR_FOLLOWER") or number, and do nothing.

        With `response` the request takes effect, and is answered as if it had not. Metadata is always answered with
        the brokers as they are, and the error for each topic. As `drop` otherwise. Raises ValueError for an API whose
        answer has no place for an error.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.errors import ErrorCode
        from kraftpy.testing.bad_answers import can_fail

        code = ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode.of(error)
        number = _number(api)
        if number is None or not can_fail(ApiKey(number)):
            raise ValueError(f"{api}: its answer has no place for an error")
        response = response or number == ApiKey.METADATA
        what = f"fail with {code.name}"
        return self._request_fault("fail", what, api, broker, response, count, client_id, sender, error=int(code))

    def _request_fault(
        self,
        kind: str,
        what: str,
        api: Api,
        broker: Nodes,
        response: bool,
        count: int | None,
        client_id: str | None,
        sender: Sender,
        **settings: Any,
    ) -> Fault:
        number = _number(api)
        if count is not None and count < 1:
            raise ValueError(f"count={count}")
        if sender not in ("clients", "brokers", "all"):
            raise ValueError(f"sender={sender!r}; it is clients, brokers or all")
        requests = "requests" if number is None else f"{_api_name(number)} {'answers' if response else 'requests'}"
        return self._faults.begin(
            self._hit(broker),
            f"{what} {requests}",
            kind,
            api=number,
            is_response=response,
            count=count,
            client_id=client_id,
            sender=sender,
            **settings,
        )

    # --- disks ----------------------------------------------------------------------------------------------------

    def slow_disk(
        self, broker: Nodes = None, *, seconds: float, topic: str | None = None, count: int | None = None
    ) -> Fault:
        """Every fsync takes that much longer; with `topic`, those of its partitions' files."""
        what = f"fsync slower by {seconds:g} s"
        return self._faults.begin(self._hit(broker), what, "sync", seconds=seconds, topic=topic, count=count)

    def hold_fsync(self, broker: Nodes = None, *, topic: str | None = None, count: int | None = None) -> Fault:
        """Every fsync waits until the fault is healed; with `topic`, those of its partitions' files.

        A node does not stop cleanly meanwhile. One that keeps the metadata gets nowhere without a `topic`.
        """
        return self._faults.begin(self._hit(broker), "hold fsync", "sync", topic=topic, count=count)

    def fail_fsync(self, broker: Nodes = None, *, topic: str | None = None, count: int | None = None) -> Fault:
        """An fsync fails with EIO. A broker takes the log directory out of use then, and ends where it has no other.

        Each one fails until the fault is healed, or `count` of them.
        """
        return self._faults.begin(self._hit(broker), "fail fsync", "eio", topic=topic, count=count)

    def disk_full(self, broker: Nodes = None, *, topic: str | None = None) -> Fault:
        """There is no room: what makes a file, or makes one longer, fails with ENOSPC; with `topic`, of its partitions.

        A node that keeps the metadata ends where it cannot write those; a `topic` spares them.
        """
        return self._faults.begin(self._hit(broker), "disk full", "full", topic=topic)


def _number(api: Api) -> int | None:
    """The API's number. Raises ValueError for one that is not spoken."""
    from kraftpy.protocol.apis import APIS, ApiKey

    if api is None:
        return None
    if isinstance(api, str):
        wanted = api.replace("_", "").lower()
        found = next((key for key in APIS if ApiKey(key).name.replace("_", "").lower() == wanted), None)
    else:
        found = int(api) if int(api) in APIS else None
    if found is None:
        raise ValueError(f"there is no API {api!r}; there are {', '.join(_api_name(key) for key in sorted(APIS))}")
    return int(found)


def _api_name(number: int) -> str:
    """As Kafka spells it."""
    from kraftpy.protocol.apis import ApiKey

    return ApiKey(number).name.replace("_", " ").title().replace(" ", "")


def several(broker: Nodes, every: Iterable[int]) -> tuple[int, ...]:
    """The node ids that are meant."""
    if broker is None:
        return tuple(every)
    return (broker,) if isinstance(broker, int) else tuple(broker)
