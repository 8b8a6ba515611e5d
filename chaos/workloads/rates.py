"""Users under quotas of producers on each broker (KIP-13, KIP-219): of users, and of a client id that two users share.

A greedy and a polite user have a quota each; two more have none of their own, and share that of their client id. All
log in with a password and send Produce requests, one at a time: the greedy ones as fast as they get answers, which
tell them to wait and which they ignore, the polite one at a fifth of its quota. They may not write anywhere: a broker
counts the bytes of a request before it decides about rights, so even a refusal stands for bytes that got
through. The administrator's side of it, setting the quotas, is done first; it also sets those of `arrivals`.

When all is quiet, `final_sends` lets each send to each broker once more, and those who share a quota at the same time.

Left out: other quotas, and those of defaults, which `tests/quotas` and `tests/broker` test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.history import Recorder, Type
from chaos.workloads import arrivals
from chaos.workloads.clients import Setting
from chaos.workloads.wire import Wire
from kraftpy.client import Admin
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import KafkaError
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import decode
from kraftpy.security.plain import plain_message

GREEDY, POLITE = "greedy", "polite"
SHARING: Final = ("ann", "ben")
"""The users without a quota of their own."""
PASSWORDS: Final = {GREEDY: "more", POLITE: "please", **dict.fromkeys(SHARING, "ours")}
CLIENT_ID: Final = "shared"
"""The client id of those users; others have their own names for client ids."""
RATE: Final = 20_000
"""The quota of each user and of the client id on each broker, in bytes per second."""
FIRST_PROCESSES: Final = {GREEDY: 3_800_000, POLITE: 3_900_000, SHARING[0]: 4_200_000, SHARING[1]: 4_300_000}
LAST_PROCESSES: Final = {GREEDY: 4_000_000, POLITE: 4_100_000, SHARING[0]: 4_400_000, SHARING[1]: 4_500_000}
AT_ONCE: Final = ((GREEDY,), (POLITE,), SHARING)
"""The users whose final sends are made at the same time."""

_KEY: Final = "producer_byte_rate"
_ENTITIES: Final = {GREEDY: {"user": GREEDY}, POLITE: {"user": POLITE}, CLIENT_ID: {"client-id": CLIENT_ID}}
"""The entities that have a quota, by the name in the history."""
_BYTES: Final = {GREEDY: 10_000, POLITE: 2_000, **dict.fromkeys(SHARING, 10_000)}
"""The size of each record: two that are polite come in a second."""
_PAUSE_SECONDS: Final = {GREEDY: 0.05, POLITE: 0.5, **dict.fromkeys(SHARING, 0.1)}
"""Without a quota, the greedy user sends ten times as much as it allows, and so do those who share one together."""
_ANSWER_SECONDS: Final = 20.0
"""Longer than a request waits until its connection is read again."""
_RETRY_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 6.0
_LAST_REQUESTS: Final = 80
"""Without its quota, the greedy user sends more than this in that time."""


class Sender:
    """One of the two users on one broker, as one process of a history at a time."""

    def __init__(self, setting: Setting, recorder: Recorder, user: str, broker: tuple[str, int], process: int) -> None:
        self.process = process
        self._user = user
        self._client_id = CLIENT_ID if user in SHARING else user
        self._broker = broker
        self._setting = setting
        self._recorder = recorder
        self._wire: Wire | None = None
        self._session = 0
        """The number of the connection: a broker that was restarted has forgotten what it counted."""
        batch = bytes(encode_batch([(0, None, bytes(_BYTES[user]), ())]))
        data = TopicProduceData(name="rates", partition_data=[PartitionProduceData(index=0, records=batch)])
        self._request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])

    async def work(self, is_over: Callable[[], bool], **extra: Any) -> None:
        """Send until `is_over`."""
        while not is_over():
            if await self._has_session():
                await self._send(**extra)
                await asyncio.sleep(_PAUSE_SECONDS[self._user])
            else:
                await asyncio.sleep(_RETRY_SECONDS)
        self._close()

    def _close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _has_session(self) -> bool:
        if self._wire is not None:
            return True
        wire: Wire | None = None
        try:
            wire = await self._setting.runtime.connect(Wire, *self._broker)
            await wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"), self._client_id)
            token = SaslAuthenticateRequest(auth_bytes=plain_message(self._user, PASSWORDS[self._user]))
            answer = await wire.ask(ApiKey.SASL_AUTHENTICATE, 2, token, self._client_id)
            if answer.error_code:
                raise EOFError
        except (OSError, EOFError, TimeoutError):
            if wire is not None:
                wire.close()
            return False
        self._wire = wire
        self._session += 1
        return True

    async def _send(self, **extra: Any) -> None:
        wire, key, version = self._wire, ApiKey.PRODUCE, 9
        assert wire is not None
        frame = encode_request(key, version, 1, self._client_id, self._request)
        value: dict[str, Any] = {"user": self._user, "node": self._broker[0], "session": self._session}
        value["bytes"] = len(frame)
        if self._client_id != self._user:
            value["client_id"] = self._client_id
        self._recorder.invoke(self._setting.now_ns(), self.process, "rated-send", value, **extra)
        wire.write(frame)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answered = await wire.frames.get()
        except TimeoutError:
            answered = None
        if answered is None:
            self._close()
            self._recorder.complete(self._setting.now_ns(), self.process, Type.INFO, value, **extra)
            self.process += 1
            return
        answer = decode(APIS[key].response, memoryview(decode_response_header(key, version, answered)[1]), version)
        told = {**value, "throttle_ms": answer.throttle_time_ms}
        self._recorder.complete(self._setting.now_ns(), self.process, Type.OK, told, **extra)


async def set_quotas(setting: Setting, recorder: Recorder, process: int, is_over: Callable[[], bool]) -> None:
    """Set all quotas, as the administrator."""
    recorder.note(setting.now_ns(), "administrator", "rates", dict.fromkeys(_ENTITIES, RATE))
    recorder.note(setting.now_ns(), "administrator", "arrivals", dict.fromkeys(arrivals.ADDRESSES, arrivals.RATE))
    quotas = [(name, entity, _KEY, float(RATE)) for name, entity in _ENTITIES.items()]
    quotas += [(address, {"ip": address}, arrivals.KEY, arrivals.RATE) for address in arrivals.ADDRESSES]
    async with Admin(bootstrap_servers=setting.bootstrap_servers, runtime=setting.runtime) as admin:
        for name, entity, key, rate in quotas:
            is_set = False
            while not is_set and not is_over():
                value = {"user": name, "key": key, "value": rate}
                recorder.invoke(setting.now_ns(), process, "quota", value)
                try:
                    await admin.alter_client_quotas(entity, {key: rate})
                    is_set = True
                    recorder.complete(setting.now_ns(), process, Type.OK, value)
                except KafkaError as error:
                    recorder.complete(setting.now_ns(), process, Type.INFO, value, error=error.code.name)
                    process += 1
                    await asyncio.sleep(_RETRY_SECONDS)


async def final_sends(
    setting: Setting, recorder: Recorder, user: str, brokers: Sequence[tuple[str, int]], process: int
) -> None:
    """Once brokers have caught up, send to each of them for some seconds."""
    for broker in brokers:
        sender = Sender(setting, recorder, user, broker, process)
        until_ns, sent = setting.now_ns() + int(_LAST_SECONDS * 1e9), 0

        def is_over(until_ns: int = until_ns) -> bool:
            nonlocal sent
            sent += 1
            return setting.now_ns() >= until_ns or sent > _LAST_REQUESTS

        await sender.work(is_over, final=True)
        process = sender.process
