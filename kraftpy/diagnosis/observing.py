"""Looks at a group and its partitions for a few seconds, through the admin client of any Kafka cluster.

    observed = await observe(admin, "billing", seconds=5)

Asked are DescribeGroups or the newer protocols' descriptions, several times; OffsetFetch and ListOffsets at the
beginning and at the end; Metadata; and, where readers of committed records cannot reach the end, DescribeProducers and
the transaction coordinators. With a `principal`, its rights are looked up in the ACLs.

An answer that the cluster does not give, because it is not available or the admin client lacks a right, is left out of
the observation; only the group itself is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kraftpy.client.model import IsolationLevel, OffsetSpec, PartitionInfo, ResourceType
from kraftpy.diagnosis.group_causes import Observed, OpenTransaction, Place, Refusal
from kraftpy.groups.routing import partition_for_group
from kraftpy.protocol.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.security.acls import AclIndex, Operation, Verdict, address_of, parse_super_users
from kraftpy.security.acls import ResourceType as AclResource
from kraftpy.security.principal import Principal, parse_principal
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.admin.model import GroupDescription

_OFFSETS_TOPIC: Final = "__consumer_offsets"
_LOOK_SECONDS: Final = 0.5
_SHARE: Final = "share"


async def observe(
    admin: Admin,
    group_id: str,
    *,
    seconds: float,
    principal: str | None = None,
    host: str = "",
    topics: Iterable[str] = (),
) -> Observed:
    """Look at a group for this long. `topics` are read by the group besides those that are known of it.

    Raises KafkaError if no broker answers, and ValueError for a `principal` that is none.
    """
    loop = asyncio.get_running_loop()
    try:
        looks = [(await admin.describe_groups([group_id]))[group_id]]
        committed = await _committed(admin, looks[0])
    except KafkaError as error:
        return Observed(
            group_id=group_id,
            failure=error,
            coordinator_partition=await _home(admin, group_id),
            alive=await _alive(admin),
            principal=principal,
            refusals=await _refusals(admin, group_id, frozenset(topics), principal, host, None),
        )
    names = frozenset(topics) | _topics_of(looks[0], committed)
    partitions = await _partitions(admin, names)
    began = loop.time()
    before = await _places(admin, looks[0], committed, partitions)
    while loop.time() - began < seconds:
        await asyncio.sleep(min(_LOOK_SECONDS, seconds))
        looks.append((await admin.describe_groups([group_id]))[group_id])
    committed = await _committed(admin, looks[-1])
    names |= frozenset().union(*(_topics_of(look, committed) for look in looks))
    partitions = await _partitions(admin, names)
    after = await _places(admin, looks[-1], committed, partitions)
    return Observed(
        group_id=group_id,
        seconds=loop.time() - began,
        looks=looks,
        before=before,
        after=after,
        partitions=partitions,
        topics=names,
        alive=await _alive(admin),
        transactions=await _transactions(admin, after),
        principal=principal,
        refusals=await _refusals(admin, group_id, names, principal, host, looks[-1]),
    )


async def _committed(admin: Admin, group: GroupDescription) -> dict[TopicPartition, int]:
    if group.group_type == _SHARE:
        shared = await admin.list_share_group_offsets(group.group_id)
        return {name: each.start_offset for name, each in shared.items() if each.start_offset is not None}
    return {name: each.offset for name, each in (await admin.list_group_offsets(group.group_id)).items()}


def _topics_of(group: GroupDescription, committed: Mapping[TopicPartition, int]) -> frozenset[str]:
    """Return the topics that a group has offsets in, is assigned to or, if that is known, subscribed to."""
    found = {name.topic for name in committed}
    for member in group.members:
        found.update(name.topic for name in (*member.partitions, *(member.target or ())))
        if group.group_type == "classic" and group.protocol_type == PROTOCOL_TYPE and member.metadata:
            with contextlib.suppress(ProtocolError):
                found.update(decode_subscription(member.metadata).topics)
    return frozenset(found)


async def _partitions(admin: Admin, names: frozenset[str]) -> dict[TopicPartition, PartitionInfo]:
    if not names:
        return {}
    return {
        TopicPartition(each.topic, each.partition): each
        for info in await admin.describe_topics()
        if info.name in names
        for each in info.partitions
    }


async def _places(
    admin: Admin,
    group: GroupDescription,
    committed: Mapping[TopicPartition, int],
    partitions: Mapping[TopicPartition, PartitionInfo],
) -> dict[TopicPartition, Place]:
    """Return the offsets of the partitions that the group has an offset in or a member for."""
    assigned = {name for member in group.members for name in member.partitions}
    wanted = {name for name in assigned | committed.keys() if name in partitions}
    led = {name for name in wanted if partitions[name].leader >= 0}
    first = await _offsets(admin, led, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)
    stable = await _offsets(admin, led, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
    end = await _offsets(admin, led, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
    return {
        name: Place(committed=committed.get(name), first=first.get(name), stable=stable.get(name), end=end.get(name))
        for name in wanted
    }


async def _offsets(
    admin: Admin, names: set[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    if not names:
        return {}
    with contextlib.suppress(KafkaError):
        found = await admin.list_offsets(dict.fromkeys(names, spec), isolation=isolation)
        return {name: each.offset for name, each in found.items() if each is not None}
    return {}


async def _transactions(
    admin: Admin, places: Mapping[TopicPartition, Place]
) -> dict[TopicPartition, list[OpenTransaction]]:
    """Return the transactions that are open where readers of committed records cannot reach the end."""
    held = {name for name, place in places.items() if place.stable is not None and place.stable != place.end}
    if not held:
        return {}
    found: dict[TopicPartition, list[OpenTransaction]] = {}
    with contextlib.suppress(KafkaError):
        for name, producers in (await admin.describe_producers(held)).items():
            opened = [each for each in producers if each.current_transaction_start_offset >= 0]
            if opened:
                listed = await admin.list_transactions(producer_ids=[each.producer_id for each in opened])
                ids = {each.producer_id: each.transactional_id for each in listed}
                described = {
                    each.transactional_id: each for each in await admin.describe_transactions(set(ids.values()))
                }
                found[name] = [
                    OpenTransaction(
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                        start_offset=each.current_transaction_start_offset,
                        last_timestamp_ms=each.last_timestamp_ms,
                        transactional_id=transactional_id if known is not None and name in known.partitions else None,
                        started_at_ms=-1 if known is None else known.started_at_ms,
                        timeout_ms=-1 if known is None else known.timeout_ms,
                    )
                    for each in opened
                    for transactional_id in (ids.get(each.producer_id),)
                    for known in (described.get(transactional_id or ""),)
                ]
    return found


async def _alive(admin: Admin) -> frozenset[int]:
    with contextlib.suppress(KafkaError):
        return frozenset(node.node_id for node in (await admin.describe_cluster()).nodes)
    return frozenset()


async def _home(admin: Admin, group_id: str) -> PartitionInfo | None:
    """Return the partition of __consumer_offsets that keeps the group."""
    with contextlib.suppress(KafkaError):
        for info in await admin.describe_topics():
            if info.name == _OFFSETS_TOPIC:
                return info.partitions[partition_for_group(group_id, len(info.partitions))]
    return None


async def _refusals(
    admin: Admin,
    group_id: str,
    topics: frozenset[str],
    principal: str | None,
    host: str,
    group: GroupDescription | None,
) -> list[Refusal] | None:
    """Return the rights that the principal lacks: none without an authorizer. None if ACLs cannot be seen."""
    if principal is None:
        return []
    who = parse_principal(principal)
    try:
        index = AclIndex(await admin.describe_acls())
    except KafkaError as error:
        return [] if error.code is ErrorCode.SECURITY_DISABLED else None
    supers, everyone = await _broker_rules(admin)
    if who in parse_super_users(supers):
        return []
    members = () if group is None else group.members
    hosts = {address_of(host)} if host else {each.client_host.removeprefix("/") for each in members}
    return list(_missing(index, who, sorted(hosts) or [""], everyone=everyone, group_id=group_id, topics=topics))


def _missing(
    index: AclIndex, who: Principal, hosts: list[str], *, everyone: bool, group_id: str, topics: frozenset[str]
) -> Iterator[Refusal]:
    needs = [(AclResource.GROUP, group_id), *((AclResource.TOPIC, topic) for topic in sorted(topics))]
    for kind, name in needs:
        for host in hosts:
            verdict = index.decide(who, host, Operation.READ, kind, name)
            if verdict is Verdict.DENIED or (verdict is Verdict.NO_BINDING and not everyone):
                at = f" from {host}" if host else ""
                yield Refusal(
                    operation="READ",
                    resource=f"{kind.name.lower()} {name}{at}",
                    is_denied=verdict is Verdict.DENIED,
                )


async def _broker_rules(admin: Admin) -> tuple[str, bool]:
    """Return the super users, and whether resources without ACLs are open to everyone, as a broker's settings say."""
    with contextlib.suppress(KafkaError):
        nodes = (await admin.describe_cluster()).nodes
        names = ["super.users", "allow.everyone.if.no.acl.found"]
        found = await admin.describe_configs([(ResourceType.BROKER, str(nodes[0].node_id))], names=names)
        (entries,) = found.values()
        values = {name: entry.value or "" for name, entry in entries.items()}
        return values.get(names[0], ""), values.get(names[1]) == "true"
    return "", False
