"""Rights: every API without any, with exactly those it needs, and with each of them denied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.authorization.guards import ASKED_BY_HANDLERS, GUARDS
from kraftpy.broker.authorization.policy import RIGHTS, Need, Refusal
from kraftpy.broker.handlers.table import HANDLERS
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import metadata
from kraftpy.protocol.schema import fields
from kraftpy.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Operation,
    Permission,
    ResourceType,
    operation_bits,
)
from kraftpy.testing.ports import ReservedPorts
from tests.security.api_requests import REQUESTS, VERSIONS, Named
from tests.security.guarded_broker import GuardedBroker
from tests.security.wire import Session
from tests.waiting import eventually

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
    """The needs of an API's request in `REQUESTS`; of those that can replace each other, the first."""
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
"""The requests that the super user sends first, so that there is something to refuse."""


def error_of(key: ApiKey, need: Need) -> ErrorCode:
    """The error if this need is not met: that of the last need that can replace it, except for an id."""
    others = [each for each in RIGHTS[key] if each.instead_of and RIGHTS[key][each.instead_of - 1] == need]
    return others[-1].error if others else need.error


def asked(guarded: GuardedBroker, session: Session, key: ApiKey, named: Named) -> set[int]:
    """Ask, after the requests that have to precede it, and return the error codes."""
    if key in SETUPS:
        before = SETUPS[key]
        codes = codes_in(guarded.admin.ask(before, REQUESTS[before](named), version_of(before)))
        assert not codes, codes
    if key is ApiKey.DELETE_SHARE_GROUP_OFFSETS:  # of a group without members
        leaving = REQUESTS[ApiKey.SHARE_GROUP_HEARTBEAT](named)
        leaving.member_epoch = -1
        assert not codes_in(guarded.admin.ask(ApiKey.SHARE_GROUP_HEARTBEAT, leaving))
    if key is ApiKey.SHARE_GROUP_DESCRIBE:  # its members are assigned partitions once these have a state
        eventually(lambda: _is_assigned(guarded, named), "the member is assigned partitions")
    return codes_in(session.ask(key, REQUESTS[key](named), version_of(key)))


def _is_assigned(guarded: GuardedBroker, named: Named) -> bool:
    guarded.admin.ask(ApiKey.SHARE_GROUP_HEARTBEAT, REQUESTS[ApiKey.SHARE_GROUP_HEARTBEAT](named))
    (group,) = guarded.admin.ask(ApiKey.SHARE_GROUP_DESCRIBE, REQUESTS[ApiKey.SHARE_GROUP_DESCRIBE](named)).groups
    (member,) = group.members
    return bool(member.assignment.topic_partitions)


CLIENTS = sorted(set(REQUESTS) - BROKERS_ONLY)


def test_every_api_that_is_served_is_in_the_table() -> None:
    """One forgotten API is all that an attacker needs (Redpanda CVE-2023-50976, Karapace CVE-2025-61673)."""
    assert set(RIGHTS) == {ApiKey(key) for key in HANDLERS}
    asking = {key for key, needs in RIGHTS.items() if needs}
    assert set(GUARDS) | ASKED_BY_HANDLERS == asking
    assert not set(GUARDS) & ASKED_BY_HANDLERS
    assert set(REQUESTS) == asking - BROKERS_ONLY


@pytest.mark.parametrize("key", CLIENTS, ids=lambda key: key.name.lower())
def test_an_outsider_is_refused_and_learns_nothing(guarded: GuardedBroker, key: ApiKey) -> None:
    """Answers about resources that exist are the same as answers about others."""
    there, nowhere = guarded.new(), guarded.new(exists=False)
    session = guarded.session("mallory")
    answers = []
    for named in (there, nowhere):
        body = session.ask_bytes(key, REQUESTS[key](named), version_of(key))
        for name, other in zip(named[:3], there[:3], strict=True):
            body = body.replace(name.encode(), other.encode())
        answers.append(body)
    if key not in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):  # these name topics by their ids
        assert answers[0] == answers[1]
    found = codes_in(session.ask(key, REQUESTS[key](there), version_of(key)))
    needs = needed(key)
    if needs:
        assert found & REFUSALS, found
    assert found <= REFUSALS | {ErrorCode.OPERATION_NOT_ATTEMPTED}
    session.close()


@pytest.mark.parametrize("key", CLIENTS, ids=lambda key: key.name.lower())
def test_exactly_the_rights_of_the_table_are_needed(guarded: GuardedBroker, key: ApiKey) -> None:
    session = guarded.session("alice")
    needs = needed(key)
    guarded.forget()
    named = guarded.new()
    for need in needs:
        guarded.grant(need, named)
    assert not asked(guarded, session, key, named) & REFUSALS
    for missing in needs:
        guarded.forget()
        named = guarded.new()
        for need in needs:
            if need != missing:
                guarded.grant(need, named)
        assert error_of(key, missing) in asked(guarded, session, key, named), missing
    for denied in needs:
        guarded.forget()
        named = guarded.new()
        for need in needs:
            guarded.grant(need, named)
        guarded.grant(denied, named, Permission.DENY)
        assert error_of(key, denied) in asked(guarded, session, key, named), denied
    session.close()


@pytest.mark.parametrize("key", sorted(BROKERS_ONLY), ids=lambda key: key.name.lower())
def test_requests_between_brokers_are_refused_to_clients_whatever_their_rights(
    guarded: GuardedBroker, key: ApiKey
) -> None:
    guarded.forget()
    guarded.add(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALL)
    session = guarded.session("alice")
    kind = APIS[key].request
    named = guarded.new()
    parts = {field.name: [] if field.struct else 0 for field in fields(_partition_of(kind))}
    topic = _topic_of(kind)(topic_id=named.topic_id, partitions=[_partition_of(kind)(**parts)])
    answer = session.ask(key, kind(group_id=named.group, topics=[topic]))
    assert codes_in(answer) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    session.close()


def _topic_of(kind: type[Any]) -> Any:
    return next(field.struct for field in fields(kind) if field.name == "topics")


def _partition_of(kind: type[Any]) -> Any:
    return next(field.struct for field in fields(_topic_of(kind)) if field.name == "partitions")


ALTERNATIVES = [(key, need) for key, needs in RIGHTS.items() if key in REQUESTS for need in needs if need.instead_of]


@pytest.mark.parametrize(("key", "need"), ALTERNATIVES, ids=lambda each: getattr(each, "name", ""))
def test_one_right_makes_up_for_another(guarded: GuardedBroker, key: ApiKey, need: Need) -> None:
    guarded.forget()
    session = guarded.session("alice")
    first = RIGHTS[key][need.instead_of - 1]
    named = guarded.new()
    for each in RIGHTS[key]:
        if each is not first and each.refusal is not Refusal.LEFT_OUT:
            guarded.grant(each, named)
    guarded.grant(need, named)
    request = REQUESTS[key](named)
    if key is ApiKey.INIT_PRODUCER_ID:
        request.transactional_id = None
    assert not codes_in(session.ask(key, request, version_of(key))) & REFUSALS
    session.close()


def test_lists_leave_out_what_may_not_be_seen(guarded: GuardedBroker) -> None:
    guarded.forget()
    seen, hidden = guarded.new(), guarded.new()
    session = guarded.session("alice")
    guarded.add(ResourceType.TOPIC, seen.topic, Operation.READ)  # which implies DESCRIBE
    guarded.add(ResourceType.TRANSACTIONAL_ID, seen.transaction, Operation.WRITE)
    everything = metadata.MetadataRequest(topics=None)
    assert [topic.name for topic in session.ask(ApiKey.METADATA, everything).topics] == [seen.topic]
    listed = session.ask(ApiKey.LIST_TRANSACTIONS, REQUESTS[ApiKey.LIST_TRANSACTIONS](seen)).transaction_states
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
def test_an_id_that_no_topic_has_is_nobodys_secret(
    guarded: GuardedBroker, key: ApiKey, version: int, topic_id: bytes
) -> None:
    guarded.forget()
    named = guarded.new()._replace(topic_id=topic_id)
    session = guarded.session("alice")
    guarded.add(ResourceType.GROUP, named.group, Operation.READ)
    guarded.add(ResourceType.TRANSACTIONAL_ID, named.transaction, Operation.WRITE)
    request = REQUESTS[key](named)
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


def test_authorized_operations_are_those_allowed(guarded: GuardedBroker) -> None:
    guarded.forget()
    named = guarded.new()
    session = guarded.session("alice")
    guarded.add(ResourceType.TOPIC, named.topic, Operation.ALL)
    guarded.add(ResourceType.TOPIC, named.topic, Operation.DELETE, Permission.DENY)
    (topic,) = session.ask(ApiKey.METADATA, REQUESTS[ApiKey.METADATA](named)).topics
    expected = [each for each in OPERATIONS[ResourceType.TOPIC] if each is not Operation.DELETE]
    assert topic.topic_authorized_operations == operation_bits(expected)
    cluster = session.ask(ApiKey.DESCRIBE_CLUSTER, REQUESTS[ApiKey.DESCRIBE_CLUSTER](named))
    assert cluster.cluster_authorized_operations == 0, "without DESCRIBE of the cluster"
    guarded.add(ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
    cluster = session.ask(ApiKey.DESCRIBE_CLUSTER, REQUESTS[ApiKey.DESCRIBE_CLUSTER](named))
    assert cluster.cluster_authorized_operations == operation_bits([Operation.DESCRIBE])
    committed = guarded.admin.ask(
        ApiKey.OFFSET_COMMIT, REQUESTS[ApiKey.OFFSET_COMMIT](named), version_of(ApiKey.OFFSET_COMMIT)
    )
    assert not codes_in(committed), "the group exists from here on"
    group = guarded.admin.ask(ApiKey.DESCRIBE_GROUPS, REQUESTS[ApiKey.DESCRIBE_GROUPS](named)).groups[0]
    assert group.authorized_operations == operation_bits(OPERATIONS[ResourceType.GROUP])
    guarded.add(ResourceType.GROUP, named.group, Operation.READ)
    group = session.ask(ApiKey.DESCRIBE_GROUPS, REQUESTS[ApiKey.DESCRIBE_GROUPS](named)).groups[0]
    assert group.authorized_operations == operation_bits([Operation.READ, Operation.DESCRIBE])
    session.close()


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[GuardedBroker]:
    """A broker on which everybody may do what no ACL is about."""
    with ReservedPorts() as ports:
        made = GuardedBroker(ports, tmp_path, allow_everyone_if_no_acl_found="true")
        yield made
        made.stop()


def test_everybody_may_use_what_no_acl_is_about(open_to_all: GuardedBroker) -> None:
    """`allow.everyone.if.no.acl.found`: an ACL for one user shuts out the others, and no super user."""
    guarded, requests = open_to_all, (ApiKey.PRODUCE, ApiKey.FETCH)
    named, other = guarded.new(), guarded.new()
    sessions = {user: guarded.session(user) for user in ("admin", "alice", "mallory")}

    def refused(user: str, named: Named) -> list[ApiKey]:
        """The requests that a user is refused."""
        found = {key: codes_in(sessions[user].ask(key, REQUESTS[key](named), version_of(key))) for key in requests}
        return [key for key, codes in found.items() if ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes]

    def all_refused() -> dict[str, list[ApiKey]]:
        assert all(refused(user, other) == [] for user in sessions), "nothing changes for the other topic"
        return {user: refused(user, named) for user in sessions}

    assert all_refused() == {"admin": [], "alice": [], "mallory": []}
    guarded.add(ResourceType.TOPIC, named.topic, Operation.READ)
    assert all_refused() == {"admin": [], "alice": [ApiKey.PRODUCE], "mallory": [*requests]}
    guarded.add(ResourceType.TOPIC, named.topic, Operation.ALL, Permission.DENY, "admin")
    assert all_refused() == {"admin": [], "alice": [ApiKey.PRODUCE], "mallory": [*requests]}
    guarded.forget()
    assert all_refused() == {"admin": [], "alice": [], "mallory": []}
    for session in sessions.values():
        session.close()


@pytest.mark.parametrize(
    ("key", "taken_away", "error"),
    [
        (ApiKey.FETCH, ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ApiKey.SHARE_FETCH, ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ApiKey.SHARE_FETCH, ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ],
)
async def test_a_fetch_that_waits_ends_if_the_right_is_taken_away(
    guarded: GuardedBroker, key: ApiKey, taken_away: ResourceType, error: ErrorCode
) -> None:
    guarded.forget()
    named = guarded.new()
    names = {ResourceType.TOPIC: named.topic, ResourceType.GROUP: named.group}
    for kind, name in names.items():
        guarded.add(kind, name, Operation.READ)
    session = guarded.session("alice")
    request = REQUESTS[key](named)
    request.min_bytes, request.max_wait_ms = 1, 15_000
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = loop.run_in_executor(None, session.ask, key, request, 12 if key == ApiKey.FETCH else None)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    denied = partial(guarded.add, taken_away, names[taken_away], Operation.READ, Permission.DENY)
    await loop.run_in_executor(None, denied)
    answer = await waiting
    assert codes_in(answer) == {error}
    assert loop.time() - began < 14, "not only when its time was up"
    session.close()
