"""Rights, credentials and quotas that change, while an outsider and a user with few rights try everything.

The administrator connects to the listener without a login, on which every client is a super user here. It creates
topics and groups, grants the user `limited` rights on some of them and revokes them, for all hosts, for the user's own
or for another one, sets and deletes a SCRAM password, and sets quotas. No right is ever granted on resources called
`vault-...`. Those called `lent-...-denied` are covered by bindings that allow, and before any of these, by one that
denies everything.

The two intruders log in with PLAIN at the other listener, and send requests by hand (`intrusions`). Each answer is
searched for names, ids and records that its request did not contain: the history has those found, the errors, and the
rights that the request needs. Some attempts come without a login, with a wrong password, or with one that may have
changed.

When all is quiet, `audit` sets a last password and takes a survey as the administrator, and each intruder tries every
right on every broker once more (`probe`).

Left out: TLS, names in certificates. Delegation tokens are in `tokens`, and whether quotas hold is in `rates`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from chaos.history import Recorder, Type
from chaos.workloads import rates, tokens
from chaos.workloads.clients import Setting
from chaos.workloads.intrusions import INTRUDER, INTRUSIONS, PROBES, Intrusion, Target
from chaos.workloads.single_requests import SingleRequests
from chaos.workloads.wire import Wire
from kraftpy.client import Admin, NewTopic, Producer, ResourceType, TopicPartition
from kraftpy.client.admin.acls import AclBinding, AclFilter, AclOperation, AclPattern, AclPermission, AclResource
from kraftpy.client.model import OffsetSpec
from kraftpy.protocol import schema
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, ScramClient, salted_password

ADMINISTRATOR: Final = "administrator"
OUTSIDER, LIMITED, ROTATING = "outsider", "limited", "rotating-user"
PLAIN_USERS: Final = {OUTSIDER: "outside", LIMITED: "limits"}
HOSTS: Final = {OUTSIDER: "10.7.0.1", LIMITED: "10.7.0.2"}
"""The addresses of the intruders."""
SCRAM: Final = "SCRAM-SHA-512"
ADMINISTRATOR_PROCESS: Final = 3_000_000
FIRST_PROCESSES: Final = {OUTSIDER: 3_100_000, LIMITED: 3_200_000}
LAST_PROCESSES: Final = {OUTSIDER: 3_400_000, LIMITED: 3_500_000}
AUDIT_PROCESS: Final = 3_300_000
LAST_PASSWORD: Final = "the last"
ADMINISTRATOR_PAUSE_SECONDS: Final = 0.7
HOST_WEIGHTS: Final = (8, 1, 1)
INTRUDER_PAUSE_SECONDS: Final = 0.25

_TOPICS: Final = ("vault-topic", "lent-topic-a", "lent-topic-b", "lent-topic-denied")
_GROUPS: Final = ("vault-group", "lent-group-a", "lent-group-b", "lent-group-denied")
_RECORDS: Final = 5
_COMMITTED: Final = 2
_SETTINGS: Final = {"retention.ms": "3600000000"}
_SETTLE_SECONDS: Final = 3.0
_WAIT_SECONDS: Final = 0.5
_PROBE_PAUSE_SECONDS: Final = 0.05
_MOST_TRIES: Final = 10
_PROBED: Final = 0.3
"""The share of attempts that are probes, so that many questions are asked again."""
_NONCE: Final = "a-nonce-that-anybody-may-know"

_PATTERNS: Final[tuple[tuple[AclResource, AclPattern, str], ...]] = (
    (AclResource.TOPIC, AclPattern.LITERAL, "lent-topic-a"),
    (AclResource.TOPIC, AclPattern.LITERAL, "lent-topic-b"),
    (AclResource.TOPIC, AclPattern.LITERAL, "lent-topic-denied"),
    (AclResource.TOPIC, AclPattern.PREFIXED, "lent-topic-"),
    (AclResource.TOPIC, AclPattern.PREFIXED, "lent-"),
    (AclResource.GROUP, AclPattern.LITERAL, "lent-group-a"),
    (AclResource.GROUP, AclPattern.LITERAL, "lent-group-denied"),
    (AclResource.GROUP, AclPattern.PREFIXED, "lent-group-"),
)
_OPERATIONS: Final = {
    AclResource.TOPIC: (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS),
    AclResource.GROUP: (AclOperation.READ, AclOperation.DESCRIBE),
}
_ALWAYS_DENIED: Final = (
    AclBinding(
        resource_type=AclResource.TOPIC,
        name="lent-topic-denied",
        pattern_type=AclPattern.PREFIXED,
        principal=f"User:{LIMITED}",
        operation=AclOperation.ALL,
        permission=AclPermission.DENY,
    ),
    AclBinding(
        resource_type=AclResource.GROUP,
        name="lent-group-denied",
        pattern_type=AclPattern.PREFIXED,
        principal=f"User:{LIMITED}",
        operation=AclOperation.ALL,
        permission=AclPermission.DENY,
    ),
)
_HOSTS: Final = ("*", HOSTS[LIMITED], HOSTS[OUTSIDER])
"""The hosts of bindings: all, that of `LIMITED`, which is always the principal or one of all, and another one."""
_RATES: Final = (20_000.0, 100_000.0, 1_000_000.0, None)


@dataclass(slots=True)
class Protected:
    """The resources that intruders must not see or change, as the workload has made them."""

    ids: dict[str, bytes] = field(default_factory=dict)
    """The topics' ids."""
    is_ready: bool = False
    """True once all of them exist."""
    passwords: list[str] = field(default_factory=list)
    """The passwords given to `ROTATING`, oldest first: some were never set, and some are replaced."""

    def targets(self, user: str) -> list[Target]:
        """Return the targets of a user's requests."""
        return [
            Target(topic, group, "vault-transaction", self.ids[topic], user)
            for topic, group in zip(_TOPICS, _GROUPS, strict=True)
        ]

    def secrets(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield the secrets that only a right shows: kind, name, and the bytes by which an answer gives each away."""
        for number, topic in enumerate(_TOPICS):
            yield "topic", topic, topic.encode()
            yield "topic", topic, self.ids[topic]
            yield "record", topic, _record(number)
        for group in _GROUPS:
            yield "group", group, group.encode()
        yield "user", ROTATING, ROTATING.encode()
        yield "acl", f"User:{LIMITED}", f"User:{LIMITED}".encode()

    def seen(self, request: bytes, answer: bytes) -> list[list[str]]:
        """Return kind and name of each secret that an answer gives away and its request did not contain."""
        found = [(kind, name) for kind, name, mark in self.secrets() if mark in answer and mark not in request]
        return [list(each) for each in dict.fromkeys(found)]


def broker_settings() -> dict[str, str]:
    """Return the settings of a broker with a listener `SECURE` for the intruders; its address is added elsewhere."""
    passwords = {**PLAIN_USERS, tokens.HOLDER: tokens.PASSWORD, **rates.PASSWORDS}
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
        "listener.name.secure.plain.sasl.jaas.config": f"{module} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **tokens.broker_settings(),
    }


class Administrator:
    """Acts as one process of a history at a time; its client never repeats a request."""

    def __init__(self, setting: Setting, recorder: Recorder, chance: Random, protected: Protected) -> None:
        self.process = ADMINISTRATOR_PROCESS
        self._setting = setting
        self._recorder = recorder
        self._chance = chance
        self._protected = protected
        self._bindings: dict[AclBinding, bool] = {}
        self._has_password = False
        self._requests = SingleRequests(setting)

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Create the protected resources, then change rights until `is_over`."""
        self._recorder.note(self._setting.now_ns(), ADMINISTRATOR, "plain-users", PLAIN_USERS)
        self._recorder.note(self._setting.now_ns(), ADMINISTRATOR, "hosts", HOSTS)
        while not is_over() and not self._protected.is_ready:
            with contextlib.suppress(KafkaError):
                await self._set_up()
            await asyncio.sleep(pause())
        try:
            while not is_over():
                changes = (self._change_binding, self._change_password, self._change_quota)
                await self._chance.choices(changes, (8, 1, 1))[0]()
                await asyncio.sleep(pause())
        finally:
            await self._requests.close()

    async def _set_up(self) -> None:
        async with Admin(bootstrap_servers=self._setting.bootstrap_servers, runtime=self._setting.runtime) as admin:
            for topic in _TOPICS:
                await _have_topic(admin, topic, self._setting.replication_factor)
            self._protected.ids = {each.name: each.topic_id for each in await admin.describe_topics(_TOPICS)}
            async with Producer(
                bootstrap_servers=self._setting.bootstrap_servers, runtime=self._setting.runtime, acks="all"
            ) as producer:
                for number, topic in enumerate(_TOPICS):
                    for _ in range(_RECORDS):
                        await producer.send_and_wait(topic, _record(number), partition=0)
            for group, topic in zip(_GROUPS, _TOPICS, strict=True):
                await admin.alter_group_offsets(group, {TopicPartition(topic, 0): _COMMITTED})
            for binding in _ALWAYS_DENIED:
                granting = partial(admin.create_acls, [binding])
                if not await self._recorded("grant", _binding_value(binding), granting):
                    return
            if await survey(self._setting, self._recorder, self.process, admin):
                self._protected.is_ready = True
            else:
                self.process += 1

    async def _change_binding(self) -> None:
        present = [binding for binding, is_there in self._bindings.items() if is_there]
        if present and self._chance.random() < 0.45:
            binding = self._chance.choice(present)
        else:
            kind, pattern, name = self._chance.choice(_PATTERNS)
            is_denied = self._chance.random() < 0.3
            everybody = is_denied and self._chance.random() < 0.3
            binding = AclBinding(
                resource_type=kind,
                name=name,
                pattern_type=pattern,
                principal="User:*" if everybody else f"User:{LIMITED}",
                operation=self._chance.choice(_OPERATIONS[kind]),
                permission=AclPermission.DENY if is_denied else AclPermission.ALLOW,
                host=self._chance.choices(_HOSTS, HOST_WEIGHTS)[0],
            )
        admin, value = await self._requests.admin(self.process), _binding_value(binding)
        if self._bindings.get(binding):
            await self._recorded("revoke", value, lambda: admin.delete_acls(_exactly(binding)))
            self._bindings[binding] = False
        else:
            await self._recorded("grant", value, lambda: admin.create_acls([binding]))
            self._bindings[binding] = True

    async def _change_password(self) -> None:
        admin = await self._requests.admin(self.process)
        if self._has_password and self._chance.random() < 0.3:
            value: dict[str, Any] = {"user": ROTATING, "password": None}
            await self._recorded("password", value, lambda: admin.delete_scram_passwords(ROTATING, [SCRAM]))
            self._has_password = False
            return
        password = f"password {len(self._protected.passwords)}"
        self._protected.passwords.append(password)
        value = {"user": ROTATING, "password": password}
        await self._recorded("password", value, lambda: admin.set_scram_password(ROTATING, password, mechanism=SCRAM))
        self._has_password = True

    async def _change_quota(self) -> None:
        admin = await self._requests.admin(self.process)
        key, rate = self._chance.choice(("producer_byte_rate", "consumer_byte_rate")), self._chance.choice(_RATES)
        value = {"user": LIMITED, "key": key, "value": rate}
        await self._recorded("quota", value, lambda: admin.alter_client_quotas({"user": LIMITED}, {key: rate}))

    async def _recorded(self, f: str, value: dict[str, Any], change: Callable[[], Awaitable[object]]) -> bool:
        """Carry out a change; return whether it was answered. The effect of one that was not is unknown."""
        self._recorder.invoke(self._setting.now_ns(), self.process, f, value)
        try:
            await change()
        except KafkaError as error:
            said = error.code.name
            self._recorder.complete(self._setting.now_ns(), self.process, Type.INFO, value, error=said)
            self.process += 1
            await self._requests.close()
            return False
        self._recorder.complete(self._setting.now_ns(), self.process, Type.OK, value)
        return True


class Intruder:
    """A user that sends any request to any broker, as one process of a history at a time."""

    def __init__(
        self,
        setting: Setting,
        recorder: Recorder,
        chance: Random,
        protected: Protected,
        *,
        user: str,
        process: int,
        brokers: Sequence[tuple[str, int]],
    ) -> None:
        """`brokers` are the addresses (host, port) of the listeners with a login."""
        self.user = user
        self.process = process
        self._setting = setting
        self._recorder = recorder
        self._chance = chance
        self._protected = protected
        self._brokers = list(brokers)
        self._wires: dict[tuple[str, int], Wire] = {}

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Send requests and log in until `is_over`."""
        while not is_over():
            await asyncio.sleep(pause())
            if not self._protected.is_ready:
                continue
            broker = self._chance.choice(self._brokers)
            match self._chance.choices(("attempt", "rotating", "wrong", "none"), (20, 2, 1, 1))[0]:
                case "attempt":
                    target = self._chance.choice(self._protected.targets(self.user))
                    some = PROBES if self._chance.random() < _PROBED else INTRUSIONS
                    await self.attempt(self._chance.choice(some), target, broker)
                case "rotating":
                    password = self._chance.choice([*self._protected.passwords[-3:], "never set"])
                    await self.log_in(broker, ROTATING, password, SCRAM)
                case "wrong":
                    await self.log_in(broker, self.user, "wrong", "PLAIN")
                case _:
                    await self.log_in(broker, None, None, None)
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    async def attempt(self, intrusion: Intrusion, target: Target, broker: tuple[str, int], **extra: Any) -> bool:
        """Send a request, and record its errors and the secrets it gave away; return False without an answer."""
        if not await self._has_session(broker):
            return False
        wire, key, version = self._wires[broker], intrusion.key, intrusion.in_version
        value: dict[str, Any] = {"user": self.user, "api": intrusion.title, "node": broker[0]}
        value["needs"] = intrusion.rights(target)
        request = intrusion.request(target)
        self._recorder.invoke(self._setting.now_ns(), self.process, "attempt", value, **extra)
        try:
            body = await wire.body(key, version, request, self.user)
        except (EOFError, TimeoutError):
            self._wires.pop(broker).close()
            self._unknown(value, extra)
            return False
        asked = schema.encode(request, version)
        errors = _errors(schema.decode(APIS[key].response, memoryview(body), version))
        told = {**value, "errors": errors, "seen": self._protected.seen(asked, body)}
        self._recorder.complete(self._setting.now_ns(), self.process, Type.OK, told, **extra)
        return True

    async def log_in(
        self, broker: tuple[str, int], user: str | None, password: str | None, mechanism: str | None, **extra: Any
    ) -> bool:
        """Log in on a connection of its own, and record whether that was accepted; return False without an answer.

        Without a user, a request is sent without a login: any answer to it counts as accepted.
        """
        tried = await self._tried(broker, user, password, mechanism, extra)
        if tried is not None:
            tried[0].close()
        return tried is not None

    async def _has_session(self, broker: tuple[str, int]) -> bool:
        """Log in under its own name, unless it has a connection to the broker; return False if that fails."""
        if broker not in self._wires:
            tried = await self._tried(broker, self.user, PLAIN_USERS[self.user], "PLAIN", {})
            if tried is None:
                return False
            wire, is_accepted = tried
            if not is_accepted:
                wire.close()
                return False
            self._wires[broker] = wire
        return True

    async def _tried(
        self,
        broker: tuple[str, int],
        user: str | None,
        password: str | None,
        mechanism: str | None,
        extra: dict[str, Any],
    ) -> tuple[Wire, bool] | None:
        """Return a new connection, and whether the login was accepted; None if there was no answer."""
        wire: Wire | None = None
        value: dict[str, Any] = {"user": user, "password": password, "mechanism": mechanism, "node": broker[0]}
        self._recorder.invoke(self._setting.now_ns(), self.process, "login", value, **extra)
        try:
            wire = await self._setting.runtime.connect(Wire, *broker)
            is_accepted = await self._is_accepted(wire, user, password, mechanism)
        except (OSError, EOFError, TimeoutError):
            if wire is not None:
                wire.close()
            self._unknown(value, extra)
            return None
        told = {**value, "accepted": is_accepted}
        self._recorder.complete(self._setting.now_ns(), self.process, Type.OK, told, **extra)
        return wire, is_accepted

    async def _is_accepted(self, wire: Wire, user: str | None, password: str | None, mechanism: str | None) -> bool:
        if user is None or password is None or mechanism is None:
            try:
                await wire.body(ApiKey.METADATA, 12, MetadataRequest(topics=None), self.user)
            except EOFError:
                return False
            return True
        answer = await wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism), self.user)
        if answer.error_code:
            return False
        if mechanism == "PLAIN":
            return not (await self._token(wire, plain_message(user, password))).error_code
        client = ScramClient(MECHANISMS[mechanism], user, _NONCE)
        answer = await self._token(wire, client.first())
        if answer.error_code:
            return False
        salt, iterations = client.challenged(answer.auth_bytes)
        salted = await asyncio.to_thread(salted_password, MECHANISMS[mechanism], password, salt, iterations)
        answer = await self._token(wire, client.final(salted))
        if answer.error_code:
            return False
        with contextlib.suppress(AuthenticationFailed):
            client.verify(answer.auth_bytes)
            return True
        return False

    async def _token(self, wire: Wire, token: bytes) -> Any:
        key = ApiKey.SASL_AUTHENTICATE
        return await wire.ask(key, APIS[key].last, SaslAuthenticateRequest(auth_bytes=token), self.user)

    def _unknown(self, value: dict[str, Any], extra: dict[str, Any]) -> None:
        self._recorder.complete(self._setting.now_ns(), self.process, Type.INFO, value, **extra)
        self.process += 1


async def survey(setting: Setting, recorder: Recorder, process: int, admin: Admin, **extra: Any) -> bool:
    """Record the state of everything that an intruder could change; return False if some of it could not be read."""
    recorder.invoke(setting.now_ns(), process, "survey", None, **extra)
    try:
        acls = [_binding_value(binding) for binding in await admin.describe_acls()]
        quotas = [
            [", ".join(map(str, each.entity.values())), key, value]
            for each in await admin.describe_client_quotas()
            for key, value in each.values.items()
        ]
        value = {
            "acls": sorted(acls, key=lambda each: list(map(str, each.values()))),
            "users": sorted(await admin.describe_scram_users()),
            "quotas": sorted(quotas, key=str),
            "made": sorted(name for name in await admin.list_topics() if name.startswith(INTRUDER)),
            "protected": await _state(admin),
        }
    except KafkaError as error:
        recorder.complete(setting.now_ns(), process, Type.INFO, None, error=error.code.name, **extra)
        return False
    recorder.complete(setting.now_ns(), process, Type.OK, value, **extra)
    return True


async def _state(admin: Admin) -> dict[str, Any]:
    """Return the state of topics and groups that only the administrator may change."""
    found: dict[str, Any] = {}
    for topic, group in ((_TOPICS[0], _GROUPS[0]), (_TOPICS[-1], _GROUPS[-1])):
        partition, resource = TopicPartition(topic, 0), (ResourceType.TOPIC, topic)
        (info,) = await admin.describe_topics([topic])
        configs = (await admin.describe_configs([resource], names=list(_SETTINGS)))[resource]
        first = (await admin.list_offsets({partition: OffsetSpec.EARLIEST}))[partition]
        end = (await admin.list_offsets({partition: OffsetSpec.LATEST}))[partition]
        committed = (await admin.list_group_offsets(group, [partition])).get(partition)
        found[topic] = {
            "id": info.topic_id.hex(),
            "partitions": len(info.partitions),
            "settings": {name: entry.value for name, entry in configs.items()},
            "offsets": [None if first is None else first.offset, None if end is None else end.offset],
        }
        found[group] = {"committed": None if committed is None else committed.offset}
    return found


async def audit(setting: Setting, recorder: Recorder, protected: Protected) -> None:
    """Change a password for the last time, and take the last survey, once brokers have had time to catch up."""
    if not protected.is_ready:
        return
    process, last = AUDIT_PROCESS, {"user": ROTATING, "password": LAST_PASSWORD}
    async with Admin(bootstrap_servers=setting.bootstrap_servers, runtime=setting.runtime) as admin:
        recorder.invoke(setting.now_ns(), process, "password", last, final=True)
        await admin.set_scram_password(ROTATING, LAST_PASSWORD, mechanism=SCRAM)
        recorder.complete(setting.now_ns(), process, Type.OK, last, final=True)
        await asyncio.sleep(_SETTLE_SECONDS)
        for _ in range(_MOST_TRIES):
            if await survey(setting, recorder, process, admin, final=True):
                break
            process += 1
            await asyncio.sleep(_WAIT_SECONDS)


async def probe(intruder: Intruder, protected: Protected, brokers: Sequence[tuple[str, int]]) -> None:
    """After the audit, try every right on every broker, and the last two passwords."""
    if not protected.is_ready:
        return
    for broker in brokers:
        for target in protected.targets(intruder.user):
            for each in PROBES:
                await _until_answered(intruder.attempt, each, target, broker)
        for password in (LAST_PASSWORD, *protected.passwords[-1:]):
            await _until_answered(intruder.log_in, broker, ROTATING, password, SCRAM)
    intruder.close()


async def _until_answered(ask: Callable[..., Awaitable[bool]], *what: Any) -> None:
    await asyncio.sleep(_PROBE_PAUSE_SECONDS)
    for _ in range(_MOST_TRIES):
        if await ask(*what, final=True):
            return
        await asyncio.sleep(_WAIT_SECONDS)


async def _have_topic(admin: Admin, topic: str, replicas: int) -> None:
    new = NewTopic(name=topic, num_partitions=1, replication_factor=replicas, config=_SETTINGS)
    try:
        await admin.create_topics([new])
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _record(number: int) -> bytes:
    """Return the value of a topic's records."""
    return f"treasure {number};".encode()


def _binding_value(binding: AclBinding) -> dict[str, Any]:
    return {
        "type": AclResource(binding.resource_type).name,
        "pattern": AclPattern(binding.pattern_type).name,
        "name": binding.name,
        "principal": binding.principal,
        "operation": AclOperation(binding.operation).name,
        "permission": AclPermission(binding.permission).name,
        "host": binding.host,
    }


def _exactly(binding: AclBinding) -> AclFilter:
    return AclFilter(
        resource_type=binding.resource_type,
        name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        operation=binding.operation,
        permission=binding.permission,
        host=binding.host,
    )


def _errors(message: Any) -> list[str]:
    """Return the names of all errors in a response, however deep."""
    found: set[str] = set()
    kind: Any = type(message)
    for one in schema.fields(kind):
        value = getattr(message, one.name)
        if one.name.endswith("error_code") and value:
            found.add(ErrorCode.of(value).name)
        for each in value if isinstance(value, list) else [value]:
            if hasattr(type(each), "__annotations__") and not isinstance(each, int | str | bytes):
                found.update(_errors(each))
    return sorted(found)
