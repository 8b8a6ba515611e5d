"""Messages between members of a classic group: subscriptions, assignments, sticky user data.

The only error allowed is ProtocolError, and a message that was read can be written.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.protocol import consumer_protocol
from kraftpy.protocol.consumer_protocol import Subscription
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import TopicPartition

ALLOWED = (ProtocolError,)


def one(data: bytes) -> None:
    """Try one input. It chooses a form and holds its bytes."""
    if not data:
        return
    body = data[1:]
    match data[0] % 5:
        case 0:
            found = consumer_protocol.decode_subscription(body)
            again = consumer_protocol.decode_subscription(consumer_protocol.encode_subscription(found))
            assert again.topics == found.topics
        case 1:
            partitions = consumer_protocol.decode_assignment(body)
            written = consumer_protocol.encode_assignment(partitions)
            assert sorted(set(consumer_protocol.decode_assignment(written))) == sorted(set(partitions))
        case 2:
            consumer_protocol.assignment_user_data(body)
        case 3:
            consumer_protocol.decode_sticky_user_data(body)
        case _:
            consumer_protocol.decode_generation(body)


def seeds() -> Iterator[tuple[str, bytes]]:
    """One of each form."""
    owned = (TopicPartition("odd", 0), TopicPartition("odd", 1), TopicPartition("żółw", 7))
    full = Subscription(topics=("odd", "żółw"), owned=owned, generation_id=5, rack_id="r", user_data=b"u")
    yield "subscription", b"\0" + consumer_protocol.encode_subscription(full)
    yield "subscription-least", b"\0" + consumer_protocol.encode_subscription(Subscription(topics=()))
    yield "assignment", b"\1" + consumer_protocol.encode_assignment(owned, b"user data")
    yield "user-data", b"\2" + consumer_protocol.encode_assignment((), b"user data")
    yield "sticky", b"\3" + consumer_protocol.encode_sticky_user_data(owned, 7)
    yield "generation", b"\4" + consumer_protocol.encode_generation(3)
