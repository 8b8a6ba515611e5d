"""The pages that monitors read: `/metrics`, `/livez`, `/readyz`, `/clusterz`.

The listener is open from the node's start to the end of its stop, so that a monitor can see why a node is not ready.
Answers about health have status 200 or 503, and JSON that says why not. `/metrics` is in OpenMetrics if the request
accepts it (RFC 9110's quality values are not weighed), else in Prometheus's text format.

If there is a file of users, requests need a login; `/livez` and `/readyz` do not if `kraftpy.metrics.open.health` is
set. Changed files of users and certificates are used within seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kraftpy.broker.metrics.checks import clusterz, livez, readyz
from kraftpy.broker.metrics.login import Login
from kraftpy.broker.metrics.loop_watch import LoopWatch
from kraftpy.broker.metrics.own import RECOVERY, RUNNING, STARTING, STOPPING
from kraftpy.broker.metrics.quorum import QuorumWatch
from kraftpy.broker.metrics.scraping import Scraper
from kraftpy.broker.metrics.server import Answer, HttpServer, Request
from kraftpy.broker.security.certificate import Certificate
from kraftpy.config.metrics import LISTENER
from kraftpy.config.security import metrics_tls
from kraftpy.metrics.families import OPEN_METRICS, PROMETHEUS

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node
    from kraftpy.metadata.records import Record

PATHS: Final = ("/metrics", "/livez", "/readyz", "/clusterz")
_OPEN_PATHS: Final = ("/livez", "/readyz")
_LOOK_S: Final = 2.0


class Monitoring:
    """A node's listener for monitors. Raises TlsError or UsersError."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        tls, users = metrics_tls(config), config.kraftpy_metrics_users_file
        self._certificate = None if tls is None else Certificate(LISTENER, tls)
        self._login = None if users is None else Login(users, node.complaints)
        self._open_paths = _OPEN_PATHS if config.kraftpy_metrics_open_health else ()
        admits = None if self._login is None else self._admits
        self._server = HttpServer(self._answer, node.tasks, admits, self._certificate)
        self._loop_watch = LoopWatch(node)
        self._quorum_watch = QuorumWatch()
        self._scraper = Scraper(node, self._loop_watch, self._quorum_watch, lambda: self.state)
        self._background: list[asyncio.Task[None]] = []
        self._is_started = self._is_stopping = False
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Begin to serve, before anything else of the node. Raises OSError."""
        self.port = await self._server.listen(host, port)
        keep_running = self._node.tasks.keep_running
        self._background.append(keep_running(self._loop_watch.run, name="watch of the event loop"))
        if self._certificate is not None or self._login is not None:
            self._background.append(keep_running(self._renew, name="monitors' certificate and users"))
        self._node.metadata.on_leadership(lambda is_leader, term: self._look())

    def _look(self) -> None:
        self._quorum_watch.look(self._node.metadata.leader_id, self._node.metadata.leader_epoch)

    def started(self) -> None:
        """Note that the node's start is complete."""
        self._is_started = True

    def stopping(self) -> None:
        """Note that the node begins to stop."""
        self._is_stopping = True

    def follow(self, records: Sequence[Record] | None) -> None:
        """Look at changes of the metadata."""
        self._quorum_watch.follow(records)

    def close(self) -> None:
        """End the listener."""
        for task in self._background:
            task.cancel()
        if self._login is not None:
            self._login.close()
        self._server.close()

    @property
    def state(self) -> int:
        """Kafka's number for how far the node has started."""
        if self._is_stopping:
            return STOPPING
        if self._is_started:
            return RUNNING
        return STARTING if self._node.lifecycle.broker_epoch < 0 else RECOVERY

    async def _renew(self) -> None:
        """Look for changed files every few seconds."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.renew()

    async def renew(self) -> None:
        """Use changed files from now on."""
        for each in (self._certificate, self._login):
            if each is not None:
                await asyncio.to_thread(each.renew)

    async def _admits(self, request: Request, host: str) -> bool:
        if request.path in self._open_paths:
            return True
        return self._login is None or await self._login.admits(request.authorization, host)

    async def _answer(self, request: Request) -> Answer:
        match request.path:
            case "/metrics":
                content_type = OPEN_METRICS if "application/openmetrics-text" in request.accept else PROMETHEUS
                as_confluent = "rules=confluent" in request.query.split("&")
                return Answer(200, content_type, await self._scraper.page(content_type, as_confluent=as_confluent))
            case "/livez":
                return _json(livez(self._node))
            case "/readyz":
                return _json(readyz(self._node, self.state))
            case "/clusterz":
                found: list[dict[str, object]] = []
                for _ in clusterz(self._node, found):
                    await asyncio.sleep(0)
                return _json(found[0])
        return Answer(404, "text/plain; charset=utf-8", [f"there are {', '.join(PATHS)}\n".encode()])


def _json(found: dict[str, object]) -> Answer:
    body = json.dumps(found, ensure_ascii=True, indent=2).encode()
    return Answer(200 if found["status"] == "ok" else 503, "application/json", [body + b"\n"])
