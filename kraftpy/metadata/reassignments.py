"""Decisions about moving partitions to other replicas (KIP-455).

During a reassignment, a partition's replicas are the target replicas, in their order, followed by those to be removed.
It completes as soon as all added replicas are in sync and enough members remain without the removed ones
(`elections.next_state`): in the decision that started it, or in the one that adds the last of them to the ISR. A second
reassignment replaces the first: a replica that only the first added is removed, immediately if it is not in sync.
Cancelling a reassignment removes the replicas that it added.

Left out: limits on concurrent reassignments; throttles, which are settings of topics and brokers.
"""

from __future__ import annotations

from collections import Counter

from kraftpy.metadata.commands import AlterReassignments, Reassignment
from kraftpy.metadata.decision import Decision, ReassignmentResult, Refused
from kraftpy.metadata.elections import PartitionUpdate, Replicas, Rules, change_records, next_state
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.metadata.records import PartitionChanged, Record
from kraftpy.metadata.topics import cordon_problem
from kraftpy.protocol.errors import ErrorCode


def alter_reassignments(command: AlterReassignments, image: Image) -> Decision[tuple[ReassignmentResult, ...]]:
    """Start, replace or cancel the reassignment of each partition, independently."""
    times_named = Counter((wanted.topic, wanted.partition) for wanted in command.reassignments)
    rules = Rules(image)
    records: list[Record] = []
    results = []
    for wanted in command.reassignments:
        error, message = ErrorCode.NONE, None
        try:
            if times_named[wanted.topic, wanted.partition] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request names this partition more than once.")
            records += _altered(wanted, command, image, rules)
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(ReassignmentResult(topic=wanted.topic, partition=wanted.partition, error=error, message=message))
    return Decision(records=tuple(records), result=tuple(results))


def _altered(wanted: Reassignment, command: AlterReassignments, image: Image, rules: Rules) -> list[PartitionChanged]:
    topic, partition = _found(wanted.topic, wanted.partition, image)
    if wanted.replicas is None:
        update = _ended(topic.name, partition, rules)
    else:
        _check_target(wanted.replicas, partition, image, may_differ=command.allow_replication_factor_change)
        update = _begun(wanted.replicas, partition)
    return change_records(topic, wanted.partition, partition, next_state(topic.name, partition, update, rules))


def _found(name: str, number: int, image: Image) -> tuple[Topic, Partition]:
    """Return a partition by name. Raises `Refused` in Kafka's words for reassignments."""
    topic = image.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
    return topic, topic.partitions[number]


def _begun(target: Replicas, partition: Partition) -> PartitionUpdate:
    established = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    holding = {*established, *partition.isr, *partition.eligible_leader_replicas}
    removing = tuple(replica for replica in partition.replicas if replica not in target and replica in holding)
    return PartitionUpdate(
        replicas=(*target, *removing),
        adding=tuple(replica for replica in target if replica not in established),
        removing=removing,
    )


def _ended(topic: str, partition: Partition, rules: Rules) -> PartitionUpdate:
    """Return the update that removes the added replicas; the others keep their order."""
    if not partition.is_reassigning:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    adding = partition.adding_replicas
    replicas = tuple(replica for replica in partition.replicas if replica not in adding)
    isr = tuple(member for member in partition.isr if member not in adding)
    if isr or not partition.isr:
        return PartitionUpdate(replicas=replicas, adding=(), removing=(), isr=isr)
    available = [
        replica for replica in replicas if replica in rules.active and replica not in partition.offline_replicas
    ]
    if not available or not rules.allows_unclean(topic):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "None of the original replicas is in sync: cancelling the reassignment would lose committed records.",
        )
    return PartitionUpdate(replicas=replicas, adding=(), removing=(), isr=(available[0],), is_recovering=True)


def _check_target(target: Replicas, partition: Partition, image: Image, *, may_differ: bool) -> None:
    problem = None
    if not target:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(frozenset(target)) != len(target):
        twice = next(broker_id for broker_id in target if target.count(broker_id) > 1)
        problem = f"The manual partition assignment includes the broker {twice} more than once."
    elif unknown := [broker_id for broker_id in target if image.broker(broker_id) is None]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    else:
        problem = cordon_problem([broker_id for broker_id in target if broker_id not in partition.replicas], image)
    if problem:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    factor = len(partition.target_replicas)
    if not may_differ and len(target) != factor:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(target)}",
        )
