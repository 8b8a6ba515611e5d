"""Who may do what: every API without rights, with exactly those it needs, and with each of them denied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.authorization.guards import ASKED_BY_HANDLERS, GUARDS
from kraftpy.broker.authorization.policy import RIGHTS, Need, Refusal
from kraftpy.broker.handlers.table import HANDLERS
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import metadata
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.schema import fields
from kraftpy.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    operation_bits,
)
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.broker.compacted_topics import eventually
from tests.security.asked import ASKED, VERSIONS, Named
from tests.security.wire import Session

HOST = "127.0.0.1"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
REFUSALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
BROKERS_ONLY = frozenset(key for key, needs in RIGHTS.items() if needs and "proved" in needs[0].when)


class World:
    """A broker with an authorizer; a super user, a user with few rights, and one with none."""

    def __init__(self, ports: ReservedPorts, directory: Path) -> None:
        self.audit = directory / "audit.log"
        users = " ".join(f'user_{name}="{name}"' for name in ("admin", "alice", "mallory"))
        self.address = (HOST, ports.reserve())
        self.broker = EmbeddedBroker(
            settings={
                "listeners": f"CLIENT://{HOST}:{self.address[1]}",
                "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.client.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:admin",
                "kraftpy.audit.log.file": str(self.audit),
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "delegation.token.secret.key": "secret",
            }
        )
        self.broker.start()
        self.admin = self.session("admin")
        self._numbers = count(1)
        for key_type in (0, 1):
            self.admin.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]))

    def session(self, user: str) -> Session:
        return Session(self.address, user, user)

    def stop(self) -> None:
        self.admin.close()
        self.broker.stop()

    def new(self, *, exists: bool = True) -> Named:
        """Resources with names of one length; if they exist, the topic does, and the transactional id."""
        number = f"{next(self._numbers):04d}"
        named = Named(f"topic-{number}", f"group-{number}", f"transaction-{number}")
        if exists:
            topic = CreatableTopic(name=named.topic, num_partitions=1, replication_factor=1)
            (created,) = self.admin.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic])).topics
            assert not created.error_code, created
            named = named._replace(topic_id=created.topic_id)
            self.admin.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=named.transaction))
        return named

    def grant(self, need: Need, named: Named, permission: Permission = Permission.ALLOW, user: str = "alice") -> None:
        self.add(need.resource, name_of(need, named), need.operation, permission, user)

    def add(
        self,
        kind: ResourceType,
        name: str,
        operation: Operation,
        permission: Permission = Permission.ALLOW,
        user: str = "alice",
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        creation = AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{user}",
            host=WILDCARD,
            operation=operation,
            permission_type=permission,
        )
        (result,) = self.admin.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[creation])).results
        assert not result.error_code, result

    def forget(self) -> None:
        """Delete all ACLs."""
        everything = DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        (result,) = self.admin.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[everything])).filter_results
        assert not result.error_code, result


def name_of(need: Need, named: Named) -> str:
    names = {
        ResourceType.TOPIC: named.topic,
        ResourceType.GROUP: named.group,
        ResourceType.TRANSACTIONAL_ID: named.transaction,
        ResourceType.USER: f"User:{named.group}",
        ResourceType.DELEGATION_TOKEN: named.topic,
    }
    return names.get(need.resource, CLUSTER_NAME)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ReservedPorts() as ports:
        made = World(ports, tmp_path_factory.mktemp("audit"))
        yield made
        made.stop()


def codes_in(message: Any) -> set[int]:
    """Every error code of a response, however deep."""
    found: set[int] = set()
    for field in fields(type(message)):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        for each in value if isinstance(value, list) else [value]:
            if hasattr(type(each), "__annotations__") and not isinstance(each, (int, str, bytes)):
                found |= codes_in(each)
    return found - {0}


def version_of(key: ApiKey) -> int:
    return VERSIONS.get(key, APIS[key].last)


def needed(key: ApiKey) -> list[Need]:
    """The needs that the request of a client in `ASKED` has, of those that make up for each other the first."""
    needs = [each for each in RIGHTS[key] if not each.instead_of and "proved" not in each.when]
    if key is ApiKey.FIND_COORDINATOR:
        return needs[:1]
    if key is ApiKey.INIT_PRODUCER_ID:
        return needs[:1]
    if key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER):
        return [each for each in needs if each.refusal is Refusal.EACH and each.operation is Operation.DESCRIBE]
    if key is ApiKey.CREATE_TOPICS:
        return needs[:1]
    return [each for each in needs if each.refusal in (Refusal.WHOLE, Refusal.EACH)]


SETUPS = {
    ApiKey.OFFSET_DELETE: ApiKey.OFFSET_COMMIT,
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE: ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE: ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.SHARE_ACKNOWLEDGE: ApiKey.SHARE_FETCH,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiKey.SHARE_GROUP_HEARTBEAT,
}
"""What the super user asks first, so that there is something to refuse."""


def error_of(key: ApiKey, need: Need) -> ErrorCode:
    """The error if this need is not met: that of the last one that could make up for it, except for an id."""
    others = [each for each in RIGHTS[key] if each.instead_of and RIGHTS[key][each.instead_of - 1] == need]
    return others[-1].error if others else need.error


def asked(world: World, session: Session, key: ApiKey, named: Named) -> set[int]:
    """Ask, after what has to be there, and return the error codes."""
    if key in SETUPS:
        before = SETUPS[key]
        codes = codes_in(world.admin.ask(before, ASKED[before](named), version_of(before)))
        assert not codes, codes
    if key is ApiKey.DELETE_SHARE_GROUP_OFFSETS:  # of a group without members
        leaving = ASKED[ApiKey.SHARE_GROUP_HEARTBEAT](named)
        leaving.member_epoch = -1
        assert not codes_in(world.admin.ask(ApiKey.SHARE_GROUP_HEARTBEAT, leaving))
    if key is ApiKey.SHARE_GROUP_DESCRIBE:  # its members are assigned partitions once these have a state
        eventually(lambda: _is_assigned(world, named), "the member is assigned partitions")
    return codes_in(session.ask(key, ASKED[key](named), version_of(key)))


def _is_assigned(world: World, named: Named) -> bool:
    world.admin.ask(ApiKey.SHARE_GROUP_HEARTBEAT, ASKED[ApiKey.SHARE_GROUP_HEARTBEAT](named))
    (group,) = world.admin.ask(ApiKey.SHARE_GROUP_DESCRIBE, ASKED[ApiKey.SHARE_GROUP_DESCRIBE](named)).groups
    (member,) = group.members
    return bool(member.assignment.topic_partitions)


CLIENTS = sorted(set(ASKED) - BROKERS_ONLY)


def test_every_api_that_is_served_is_in_the_table() -> None:
    """One forgotten API is all that an attacker needs (Redpanda CVE-2023-50976, Karapace CVE-2025-61673)."""
    assert set(RIGHTS) == {ApiKey(key) for key in HANDLERS}
    asking = {key for key, needs in RIGHTS.items() if needs}
    assert set(GUARDS) | ASKED_BY_HANDLERS == asking
    assert not set(GUARDS) & ASKED_BY_HANDLERS
    assert set(ASKED) == asking - BROKERS_ONLY


@pytest.mark.parametrize("key", CLIENTS, ids=lambda key: key.name.lower())
def test_an_outsider_is_refused_and_learns_nothing(world: World, key: ApiKey) -> None:
    """What is answered about resources that exist differs in nothing from what is answered about others."""
    there, nowhere = world.new(), world.new(exists=False)
    session = world.session("mallory")
    answers = []
    for named in (there, nowhere):
        body = session.ask_bytes(key, ASKED[key](named), version_of(key))
        for name, other in zip(named[:3], there[:3], strict=True):
            body = body.replace(name.encode(), other.encode())
        answers.append(body)
    if key not in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):  # these name topics by their ids
        assert answers[0] == answers[1]
    found = codes_in(session.ask(key, ASKED[key](there), version_of(key)))
    needs = needed(key)
    if needs:
        assert found & REFUSALS, found
    assert found <= REFUSALS | {ErrorCode.OPERATION_NOT_ATTEMPTED}
    session.close()


@pytest.mark.parametrize("key", CLIENTS, ids=lambda key: key.name.lower())
def test_exactly_the_rights_of_the_table_are_needed(world: World, key: ApiKey) -> None:
    session = world.session("alice")
    needs = needed(key)
    world.forget()
    named = world.new()
    for need in needs:
        world.grant(need, named)
    assert not asked(world, session, key, named) & REFUSALS
    for missing in needs:
        world.forget()
        named = world.new()
        for need in needs:
            if need != missing:
                world.grant(need, named)
        assert error_of(key, missing) in asked(world, session, key, named), missing
    for denied in needs:
        world.forget()
        named = world.new()
        for need in needs:
            world.grant(need, named)
        world.grant(denied, named, Permission.DENY)
        assert error_of(key, denied) in asked(world, session, key, named), denied
    session.close()


@pytest.mark.parametrize("key", sorted(BROKERS_ONLY), ids=lambda key: key.name.lower())
def test_what_brokers_ask_each_other_is_refused_to_clients_whatever_their_rights(world: World, key: ApiKey) -> None:
    world.forget()
    world.add(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALL)
    session = world.session("alice")
    kind = APIS[key].request
    named = world.new()
    parts = {field.name: [] if field.struct else 0 for field in fields(_partition_of(kind))}
    topic = _topic_of(kind)(topic_id=named.topic_id, partitions=[_partition_of(kind)(**parts)])
    answer = session.ask(key, kind(group_id=named.group, topics=[topic]))
    assert codes_in(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    session.close()


def _topic_of(kind: type[Any]) -> Any:
    return next(field.struct for field in fields(kind) if field.name == "topics")


def _partition_of(kind: type[Any]) -> Any:
    return next(field.struct for field in fields(_topic_of(kind)) if field.name == "partitions")


ALTERNATIVES = [(key, need) for key, needs in RIGHTS.items() if key in ASKED for need in needs if need.instead_of]


@pytest.mark.parametrize(("key", "need"), ALTERNATIVES, ids=lambda each: getattr(each, "name", ""))
def test_one_right_makes_up_for_another(world: World, key: ApiKey, need: Need) -> None:
    world.forget()
    session = world.session("alice")
    first = RIGHTS[key][need.instead_of - 1]
    named = world.new()
    for each in RIGHTS[key]:
        if each is not first and each.refusal is not Refusal.LEFT_OUT:
            world.grant(each, named)
    world.grant(need, named)
    request = ASKED[key](named)
    if key is ApiKey.INIT_PRODUCER_ID:
        request.transactional_id = None
    assert not codes_in(session.ask(key, request, version_of(key))) & REFUSALS
    session.close()


def test_lists_leave_out_what_may_not_be_seen(world: World) -> None:
    world.forget()
    seen, hidden = world.new(), world.new()
    session = world.session("alice")
    world.add(ResourceType.TOPIC, seen.topic, Operation.READ)  # which implies DESCRIBE
    world.add(ResourceType.TRANSACTIONAL_ID, seen.transaction, Operation.WRITE)
    everything = metadata.MetadataRequest(topics=None)
    assert [topic.name for topic in session.ask(ApiKey.METADATA, everything).topics] == [seen.topic]
    listed = session.ask(ApiKey.LIST_TRANSACTIONS, ASKED[ApiKey.LIST_TRANSACTIONS](seen)).transaction_states
    assert [each.transactional_id for each in listed] == [seen.transaction]
    pages = APIS[ApiKey.DESCRIBE_TOPIC_PARTITIONS].request(topics=[])
    described = session.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, pages).topics
    assert [topic.name for topic in described] == [seen.topic]
    assert hidden.topic not in str(described)
    session.close()


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.PRODUCE, 13), (ApiKey.FETCH, 13), (ApiKey.OFFSET_COMMIT, 10), (ApiKey.OFFSET_FETCH, 10)],
    ids=lambda each: getattr(each, "name", ""),
)
@pytest.mark.parametrize("topic_id", [bytes(16), bytes(15) + b"x"], ids=["no id", "unknown"])
def test_an_id_that_no_topic_has_is_nobodys_secret(world: World, key: ApiKey, version: int, topic_id: bytes) -> None:
    world.forget()
    named = world.new()._replace(topic_id=topic_id)
    session = world.session("alice")
    world.add(ResourceType.GROUP, named.group, Operation.READ)
    world.add(ResourceType.TRANSACTIONAL_ID, named.transaction, Operation.WRITE)
    request = ASKED[key](named)
    for topic in topics_of(request):
        topic.topic_id = topic_id
    codes = codes_in(session.ask(key, request, version))
    assert ErrorCode.UNKNOWN_TOPIC_ID in codes
    assert not codes & REFUSALS
    session.close()


def topics_of(request: Any) -> list[Any]:
    """Return the topics that a request of such an API names."""
    if hasattr(request, "topic_data"):
        return list(request.topic_data)
    of_groups = [topic for group in getattr(request, "groups", ()) for topic in group.topics]
    return of_groups or list(request.topics)


def test_authorized_operations_are_those_allowed(world: World) -> None:
    world.forget()
    named = world.new()
    session = world.session("alice")
    world.add(ResourceType.TOPIC, named.topic, Operation.ALL)
    world.add(ResourceType.TOPIC, named.topic, Operation.DELETE, Permission.DENY)
    (topic,) = session.ask(ApiKey.METADATA, ASKED[ApiKey.METADATA](named)).topics
    expected = [each for each in OPERATIONS[ResourceType.TOPIC] if each is not Operation.DELETE]
    assert topic.topic_authorized_operations == operation_bits(expected)
    cluster = session.ask(ApiKey.DESCRIBE_CLUSTER, ASKED[ApiKey.DESCRIBE_CLUSTER](named))
    assert cluster.cluster_authorized_operations == 0, "without DESCRIBE of the cluster"
    world.add(ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
    cluster = session.ask(ApiKey.DESCRIBE_CLUSTER, ASKED[ApiKey.DESCRIBE_CLUSTER](named))
    assert cluster.cluster_authorized_operations == operation_bits([Operation.DESCRIBE])
    group = world.admin.ask(ApiKey.DESCRIBE_GROUPS, ASKED[ApiKey.DESCRIBE_GROUPS](named)).groups[0]
    assert group.authorized_operations in (operation_bits(OPERATIONS[ResourceType.GROUP]), -(2**31))
    session.close()


async def test_a_fetch_that_waits_ends_if_the_right_is_taken_away(world: World) -> None:
    world.forget()
    named = world.new()
    world.add(ResourceType.TOPIC, named.topic, Operation.READ)
    session = world.session("alice")
    request = ASKED[ApiKey.FETCH](named)
    request.min_bytes, request.max_wait_ms = 1, 15_000
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = loop.run_in_executor(None, session.ask, ApiKey.FETCH, request, 12)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await loop.run_in_executor(None, world.forget)
    answer = await waiting
    assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes_in(answer)
    assert loop.time() - began < 14, "not only when its time was up"
    session.close()
