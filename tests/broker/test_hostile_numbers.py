"""Every API, in every version, with the least, the largest and the oddest number in each of its fields.

A request may wait for long and is not waited for: what counts is that others are served at once after each, that the
node met no unexpected error (`incidents` in conftest), and that it stops cleanly.

Left out: other values than numbers, and combinations of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from broker_wire import StartBroker, connect, create_topic, serves

from kraftpy.broker.handlers.table import served
from kraftpy.protocol.apis import APIS
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import REQUIRED, Array, Fixed, Nested, Sized, Wire, fields

NUMBERS = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)
_VERSIONS = range(20)
_BATCH = encode_batch([(1, b"key", b"value", ())])


class _Filled:
    """Makes requests whose numbers all have the same value, if it fits."""

    def __init__(self, number: int, version: int, topic_id: bytes) -> None:
        self._number, self._version, self._topic_id = number, version, topic_id

    def message(self, kind: type) -> Any:
        values = {}
        for field in fields(kind):
            if self._version in field.versions or field.default is REQUIRED:
                values[field.name] = self._value(field.wire, field.struct)
        return kind(**values)

    def _value(self, wire: Wire, struct: type | None) -> Any:
        match wire:
            case Fixed(code="?"):
                return True
            case Fixed(code="16s"):
                return self._topic_id
            case Fixed(code="d"):
                return 1e308
            case Fixed():
                bits = 8 * wire.size - (not wire.code.isupper())
                return max(0 if wire.code.isupper() else -(1 << bits), min(self._number, (1 << bits) - 1))
            case Sized():
                return "t" if wire.name == "string" else _BATCH if wire.name == "records" else b"x"
            case Nested():
                assert struct is not None
                return self.message(struct)
            case Array():
                return [self.message(struct) if wire.element is None and struct else self._value(wire.element, None)]  # type: ignore[arg-type]


@pytest.mark.parametrize("flush", ["false", "true"])
def test_any_number_in_any_field(start_broker: StartBroker, flush: str) -> None:
    broker = start_broker(settings={"offsets.topic.num.partitions": "2", "kraftpy.flush.before.ack": flush})
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "t")
    sent: dict[str, int] = {}
    with ExitStack() as waiting:
        for key in served():
            for version in _VERSIONS:
                for number in NUMBERS:
                    try:
                        request = _Filled(number, version, topic_id).message(APIS[key].request)
                        frame = encode_request(key, version, 7, "test", request)
                    except KafkaError:
                        break  # there is no such version
                    waiting.enter_context(connect(broker.bootstrap)).sendall(frame)
                    sent[key.name] = sent.get(key.name, 0) + 1
                    serves(broker.bootstrap)
            waiting.pop_all().close()
    assert len(sent) == len(served())
    assert sum(sent.values()) > 1_000
    serves(broker.bootstrap)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text, broker.log_text
