"""Cordoned brokers in commands and snapshots: earlier versions read both while no broker is cordoned.

`cordoned.script` says what is decided.
"""

from __future__ import annotations

import msgpack

from kraftpy.metadata.commands import CordonBroker, RegisterBroker, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.image import Image
from kraftpy.types import BrokerId, Millis

NODE = BrokerId(1)


def test_only_metadata_with_a_cordoned_broker_needs_the_newest_version() -> None:
    machine = MetadataStateMachine()
    registered = RegisterBroker(broker_id=NODE, incarnation_id=bytes(16), endpoints=(), time_ms=Millis(0))
    epoch = machine.apply(1, 1, encode_command(registered)).decision.result.broker_epoch
    schemas = []
    for index, is_cordoned in enumerate((True, False), 2):
        command = CordonBroker(broker_id=NODE, broker_epoch=epoch, is_cordoned=is_cordoned, time_ms=Millis(0))
        assert msgpack.unpackb(encode_command(command))[0] == 7
        assert not machine.apply(index, 1, encode_command(command)).decision.error
        schemas.append(msgpack.unpackb(machine.snapshot())[0])
        restored = Image.from_bytes(machine.snapshot()).broker(NODE)
        assert restored is not None
        assert restored.is_cordoned == is_cordoned
    assert schemas == [7, 4]
