"""Faults of a node that a test asks for: failing requests; slow, full or broken disks.

`Cluster` and `EmbeddedBroker` have the methods of `Faulty`. Each begins a fault and returns a `Fault`, which ends with
its `with` block, or with `heal`:

    with cluster.drop("Produce", response=True, count=1) as fault:
        producer.send("events", b"written, and the answer is lost")
        fault.wait()
    slow = cluster.slow_disk(1, seconds=0.2)
    slow.heal()

A fault is in force when the method returns. A node that is killed or stopped has it again when it starts; a paused node
gets it when it resumes. Several may be in force at once: a request meets them in the order they were begun.

Left out: faults of the quorum's own messages, except for `Cluster.partition`.
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
"""The API's name, as in Kafka's documentation or in `ApiKey`, or its number; None for every API."""

_POLL_SECONDS = 0.005


class Fault:
    """Something that goes wrong until it is healed, at the latest by the end of its `with` block."""

    def __init__(self, what: str, heal: Callable[[], None], hits: Callable[[], list[Hit]] = lambda: []) -> None:
        self.what = what
        """A description for people."""
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
        """End the fault. Does nothing if it has ended."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()
            found = self._hits()
            self._hits = lambda: found

    @property
    def is_over(self) -> bool:
        """True once the fault was healed."""
        return self._heal is None

    @property
    def hits(self) -> list[Hit]:
        """Each time that the fault was met: on which node, which API or file, and by which client.

        Faults that are not met one by one (nodes killed, or cut off from each other) have no hits.
        """
        return self._hits()

    def wait(self, hits: int = 1, timeout: float = 30.0) -> None:
        """Wait until the fault was met that many times. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while (found := len(self.hits)) < hits:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.what}: met {found} times in {timeout:g} s, not {hits}")
            time.sleep(_POLL_SECONDS)


class Faults:
    """The faults that are in force on some nodes; notifies the nodes.

    `processes` are the running nodes, by node id, and `paused` those of them that cannot answer now. `directory` is
    where hits are recorded.
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
        """Put a rule in force on these nodes."""
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
            self._send_rules(hit)
        return fault

    def rules_of(self, node: int) -> list[Rule]:
        """Return the rules of a node."""
        with self._lock:
            return [rule for nodes, rule in self._rules.values() if node in nodes]

    def heal(self) -> None:
        """End all faults."""
        for fault in list(self._faults.values()):
            fault.heal()

    def _end(self, number: int) -> None:
        with self._lock:
            nodes, _ = self._rules.pop(number)
            del self._faults[number]
            self._send_rules(nodes)

    def _send_rules(self, nodes: Iterable[int]) -> None:
        for node in sorted(nodes):
            if (process := self._processes.get(node)) is not None:
                process.obey(node, self.rules_of(node), wait=node not in self._paused)


class Faulty(ABC):
    """The faults that a node can have. `broker` is a node id or several; by default, every broker."""

    _faults: Faults

    @abstractmethod
    def _targets(self, broker: Nodes) -> tuple[int, ...]:
        """Return the node ids that `broker` stands for."""

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
        """Drop matching requests: close their connection without an answer. The request is lost and has no effect.

        With `response` the answer is lost instead: the request has taken effect. `count` limits how many are dropped,
        by all brokers together; `client_id` restricts it to requests of that client. Requests of other brokers are
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
        """Delay matching requests before they are served or, with `response`, their answers before they are sent.

        Requests behind it on the same connection wait, too. Otherwise like `drop`.
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
        """Hold matching requests (with `response`, their answers) until the fault is healed. Otherwise like `drop`.

        If the client goes away meanwhile, its request is never served.
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
        """Answer matching requests with an error, given by name ("NOT_LEADER_OR_FOLLOWER") or number, and do nothing.

        With `response` the request takes effect, but is answered as if it had not. A Metadata answer always has the
        real brokers, and the error for each topic. Otherwise like `drop`. Raises ValueError for an API whose answer has
        no field for an error.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.errors import ErrorCode
        from kraftpy.testing.bad_answers import can_fail

        code = ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode.of(error)
        number = _number(api)
        if number is None or not can_fail(ApiKey(number)):
            raise ValueError(f"{api}: its answer has no field for an error")
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
            raise ValueError(f"sender must be clients, brokers or all, not {sender!r}")
        requests = "requests" if number is None else f"{_api_name(number)} {'answers' if response else 'requests'}"
        return self._faults.begin(
            self._targets(broker),
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
        """Make every fsync take that much longer; with `topic`, only those of its partitions' files."""
        what = f"fsync slower by {seconds:g} s"
        return self._faults.begin(self._targets(broker), what, "sync", seconds=seconds, topic=topic, count=count)

    def hold_fsync(self, broker: Nodes = None, *, topic: str | None = None, count: int | None = None) -> Fault:
        """Make every fsync wait until the fault is healed; with `topic`, only those of its partitions' files.

        A node cannot stop cleanly meanwhile. Without a `topic`, a voter of the quorum makes no progress.
        """
        return self._faults.begin(self._targets(broker), "hold fsync", "sync", topic=topic, count=count)

    def fail_fsync(self, broker: Nodes = None, *, topic: str | None = None, count: int | None = None) -> Fault:
        """Make fsyncs fail with EIO. The broker takes the log directory offline, and stops if it has no other.

        Every fsync fails until the fault is healed, or the first `count` of them.
        """
        return self._faults.begin(self._targets(broker), "fail fsync", "eio", topic=topic, count=count)

    def disk_full(self, broker: Nodes = None, *, topic: str | None = None) -> Fault:
        """Fill the disk: creating or extending a file fails with ENOSPC; with `topic`, only files of its partitions.

        A voter stops if it cannot write the metadata; a `topic` spares that.
        """
        return self._faults.begin(self._targets(broker), "disk full", "full", topic=topic)


def _number(api: Api) -> int | None:
    """Return the API's number. Raises ValueError for an unknown API."""
    from kraftpy.protocol.apis import APIS, ApiKey

    if api is None:
        return None
    if isinstance(api, str):
        wanted = api.replace("_", "").lower()
        found = next((key for key in APIS if ApiKey(key).name.replace("_", "").lower() == wanted), None)
    else:
        found = int(api) if int(api) in APIS else None
    if found is None:
        raise ValueError(f"unknown API {api!r}; expected one of {', '.join(_api_name(key) for key in sorted(APIS))}")
    return int(found)


def _api_name(number: int) -> str:
    """Return the API's name as Kafka spells it."""
    from kraftpy.protocol.apis import ApiKey

    return ApiKey(number).name.replace("_", " ").title().replace(" ", "")


def several(broker: Nodes, every: Iterable[int]) -> tuple[int, ...]:
    """Return the node ids that `broker` stands for."""
    if broker is None:
        return tuple(every)
    return (broker,) if isinstance(broker, int) else tuple(broker)
