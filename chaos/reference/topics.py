"""The metadata of the perfect Kafka: topics change at one instant, brokers' images follow, controllers take turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from chaos.checkers.metadata import EXISTS, UNKNOWN
from chaos.generator import Call
from chaos.history import Type
from chaos.reference.audit import NODES
from chaos.reference.clients import AUDITOR, Clients, Outcome
from chaos.reference.schedule import SECOND


class TopicClients(Clients):
    """Clients that change topics."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._topics: dict[str, dict[str, Any]] = {}
        self._digests = ["nothing"]
        """By metadata offset."""
        self._image: dict[int, int] = dict.fromkeys(NODES, 0)
        self._epoch = 1
        self._known_epoch: dict[int, int] = dict.fromkeys(NODES, 1)

    def run(self, operations: int, finally_: bool = True) -> list[Any]:
        """Work as any client does; in the end every broker's image is looked at."""
        self.schedule.add(self._elect(operations), SECOND)
        ops = super().run(operations, finally_=False)
        if finally_:
            for node in NODES:
                self._image[node] = len(self._digests) - 1
                self.recorder.invoke(self.schedule.now, AUDITOR, "image", {"node": node}, final=True)
                self.recorder.complete(self.schedule.now, AUDITOR, Type.OK, self._look(node), final=True)
        return ops

    def _elect(self, limit: int) -> Iterator[int]:
        while len(self.ops) < limit:
            self._epoch += 1
            yield SECOND

    def _perform(self, process: int, call: Call, extra: dict[str, Any]) -> Generator[int, None, Outcome]:
        yield self._pause(3)
        match call.f:
            case "image":
                node = call.value["node"]
                self._image[node] = self._chance.randint(self._image[node], len(self._digests) - 1)
                seen = self._look(node)
            case "controller":
                node = call.value["node"]
                self._known_epoch[node] = epoch = self._chance.randint(self._known_epoch[node], self._epoch)
                seen = {"node": node, "epoch": epoch, "controller": NODES[epoch % len(NODES)]}
            case "describe-topic":
                seen = {**call.value, "exists": call.value["topic"] in self._topics}
                seen |= self._topics.get(call.value["topic"], {})
            case _:
                outcome = yield from self._change(call, extra)
                return outcome
        yield self._pause(3)
        return Type.OK, seen

    def _look(self, node: int) -> dict[str, Any]:
        offset = self._image[node]
        return {"node": node, "offset": offset, "digest": self._digests[offset]}

    def _change(self, call: Call, extra: dict[str, Any]) -> Generator[int, None, Outcome]:
        if self._chance.random() < self._chances.death:
            if self._chance.random() < 0.5:
                self.schedule.add(self._late(call), self._pause(300))
            return Type.INFO, call.value
        error = self._apply(call)
        yield self._pause(3)
        if error is None:
            return Type.OK, call.value
        extra["error"] = error
        return Type.FAIL, call.value

    def _late(self, call: Call) -> Iterator[int]:
        self._apply(call)
        yield 0

    def _apply(self, call: Call) -> str | None:
        name = call.value["topic"]
        topic = self._topics.get(name)
        if call.f == "create-topic":
            if topic is not None:
                return EXISTS
            self._topics[name] = {"partitions": call.value["partitions"], "config": {}}
        elif topic is None:
            return UNKNOWN
        elif call.f == "delete-topic":
            del self._topics[name]
        elif call.f == "alter-topic":
            topic["config"] = {**topic["config"], **call.value["config"]}
        else:
            self._topics[name] = {**topic, "replicas": call.value["replicas"]}
        self._digests.append(repr(sorted(self._topics.items())))
        return None
