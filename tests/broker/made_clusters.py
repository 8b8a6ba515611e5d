"""Clusters that exist only as metadata: an image made by commands, and a broker that has it and nothing else.

For handlers that answer from the image, which must be right for several brokers without starting any.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kraftpy.broker.request import RequestContext
from kraftpy.config import BrokerConfig
from kraftpy.metadata import features
from kraftpy.metadata.commands import (
    ChangeBroker,
    ChangePartitions,
    ConfigChange,
    ConfigOperation,
    ConfigResourceType,
    CreateTopics,
    Endpoint,
    FormatCluster,
    IsrChange,
    IsrMember,
    NewTopic,
    RegisterBroker,
    ReplicaAssignment,
    SetConfigs,
)
from kraftpy.metadata.controller import decide
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import Image
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, Millis, TopicId

NOW = Millis(1_700_000_000_000)


class MadeCluster:
    """An image that grows by commands."""

    def __init__(self, **brokers: tuple[str, ...]) -> None:
        """Brokers `b1=("INSIDE", "OUTSIDE")`: their listeners. Broker n is in rack r<n>."""
        self.image = Image()
        self.decides_after_s = 0.0
        self.submit(FormatCluster(cluster_id="made", time_ms=NOW, features=features.LATEST))
        for name, listeners in brokers.items():
            number = int(name[1:])
            self.submit(
                RegisterBroker(
                    broker_id=BrokerId(number),
                    incarnation_id=bytes([number]) * 16,
                    endpoints=tuple(
                        Endpoint(listener=listener, host=f"{listener.lower()}-{number}", port=9000 + number)
                        for listener in listeners
                    ),
                    time_ms=NOW,
                    rack=f"r{number}",
                    fenced=False,
                )
            )

    def submit(self, command: Any) -> Decision[Any]:
        decision: Decision[Any] = decide(command, self.image)
        for record in decision.records:
            self.image.replay(record)
        return decision

    def topic(self, name: str, *partitions: tuple[int, ...]) -> None:
        """A topic with these replicas."""
        decision = self.submit(
            CreateTopics(
                topics=(
                    NewTopic(
                        name=name,
                        topic_id=TopicId(name.encode().rjust(16, b"t")),
                        assignments=tuple(
                            ReplicaAssignment(partition=number, replicas=tuple(map(BrokerId, replicas)))
                            for number, replicas in enumerate(partitions)
                        ),
                    ),
                ),
                time_ms=NOW,
            )
        )
        assert decision.result[0].message is None, decision

    def submit_config(self, topic: str, name: str, value: str) -> None:
        """Set a topic's setting."""
        change = ConfigChange(
            resource_type=ConfigResourceType.TOPIC,
            resource_name=topic,
            operations=(ConfigOperation(name=name, value=value),),
        )
        assert self.submit(SetConfigs(changes=(change,), time_ms=NOW)).result[0].error == 0

    def isr(self, topic: str, number: int, *isr: int) -> None:
        """The leader proposes this ISR, and gets it."""
        partition = self.image.partition(topic, number)
        assert partition is not None
        leader = self.image.broker(partition.leader)
        assert leader is not None
        found = self.image.topic(topic)
        assert found is not None
        decision = self.submit(
            ChangePartitions(
                broker_id=leader.broker_id,
                broker_epoch=leader.broker_epoch,
                changes=(
                    IsrChange(
                        topic_id=found.topic_id,
                        partition=number,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        isr=tuple(IsrMember(broker_id=BrokerId(member)) for member in isr),
                    ),
                ),
                time_ms=NOW,
            )
        )
        assert decision.result[0].error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED), decision

    def fence(self, number: int, *, fenced: bool = True) -> None:
        broker = self.image.broker(BrokerId(number))
        assert broker is not None
        self.submit(
            ChangeBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced, time_ms=NOW)
        )

    def broker(self, number: int, *, controller: int | None = None) -> Any:
        """Return the stand-in for a broker that handlers are given."""

        async def submit(command: Any) -> Decision[Any]:
            await asyncio.sleep(self.decides_after_s)
            return self.submit(command)

        return SimpleNamespace(
            metadata=SimpleNamespace(submit=submit),
            clock=SimpleNamespace(now=lambda: NOW, monotonic_ms=lambda: NOW),
            image=self.image,
            node_id=BrokerId(number),
            controller_id=number if controller is None else controller,
            config=BrokerConfig(),
        )


def context(key: ApiKey, version: int | None = None, listener: str = "INSIDE") -> RequestContext:
    return RequestContext(
        api_key=key,
        api_version=APIS[key].last if version is None else version,
        client_id="test",
        client_host="127.0.0.1",
        listener=listener,
    )
