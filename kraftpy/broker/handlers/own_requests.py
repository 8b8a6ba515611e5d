"""Requests that a broker sends on its own behalf, to itself or to another broker, as a client would.

Requests to other brokers use separate connections, so that waiting for replication delays no other requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kraftpy.broker.peers import Outgoing, Peers
from kraftpy.broker.request import RequestContext
from kraftpy.protocol.apis import ApiKey
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.broker_proof import BrokerProof
    from kraftpy.broker.handlers.produce import Broker as Producing
    from kraftpy.protocol.messages.produce import ProduceRequest, ProduceResponse

    class Broker(Producing, Protocol):
        """The part of a broker that is needed here."""

        @property
        def node_id(self) -> BrokerId:
            """This broker's id."""

        @property
        def proof(self) -> BrokerProof:
            """Proves this broker's identity to others."""

        @property
        def outgoing(self) -> Outgoing:
            """The security of connections to other brokers."""


_FIRST_TOPIC_ID_VERSION: Final = 13
"""The version of Produce that names topics by id, so that nothing is written to another topic of that name."""


class OwnRequests:
    """The requests of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers = Peers(broker.config, lambda: broker.image, broker.proof, broker.outgoing)

    async def produce(self, broker_id: BrokerId, request: ProduceRequest) -> ProduceResponse:
        """Produce to a partition's leader, with acknowledgement. Raises KafkaError (NETWORK_EXCEPTION)."""
        if broker_id == self._broker.node_id:
            from kraftpy.broker.handlers.produce import produce  # here: handlers are loaded on first use

            context = RequestContext(
                api_key=ApiKey.PRODUCE,
                api_version=_FIRST_TOPIC_ID_VERSION,
                client_id=f"broker-{broker_id}",
                client_host="",
                listener=self._broker.config.inter_broker_listener,
            )
            answered = await produce(self._broker, request, context)
            assert answered is not None
            return answered
        found: ProduceResponse = await self._peers.ask(broker_id, ApiKey.PRODUCE, request, low=_FIRST_TOPIC_ID_VERSION)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._peers.close()
