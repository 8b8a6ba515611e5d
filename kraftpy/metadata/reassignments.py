"""What is decided about moving partitions to other replicas (KIP-455).

While a partition is reassigned its replicas are the target's, in their order, and then those that will be removed. It
is done as soon as all that were added are in sync and enough are left without the removed ones (`elections.settle`):
in the decision that began it, or in the one that took the last of them into the ISR. A second reassignment replaces
the first: what the first added and the second does not want goes, at once where it is not in sync. Ending one removes
what it added.

Left out: limits on how many run at once; throttles, which are settings of topics and brokers.
"""

from __future__ import annotations

from collections import Counter

from kraftpy.metadata.commands import AlterReassignments, Reassignment
from kraftpy.metadata.decision import Decision, ReassignmentResult, Refused
from kraftpy.metadata.elections import Replicas, Rules, Wish, changed, settle
from kraftpy.metadata.image import Image, Partition
from kraftpy.metadata.partitions import found_by_name
from kraftpy.metadata.records import PartitionChanged, Record
from kraftpy.protocol.errors import ErrorCode


def alter_reassignments(command: AlterReassignments, image: Image) -> Decision[tuple[ReassignmentResult, ...]]:
    """Begin, replace or end the reassignment of each partition, each by itself."""
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
    topic, partition = found_by_name(wanted.topic, wanted.partition, image)
    if wanted.replicas is None:
        wish = _ended(topic.name, partition, rules)
    else:
        _check_target(wanted.replicas, partition, image, may_differ=command.allow_replication_factor_change)
        wish = _begun(wanted.replicas, partition)
    return changed(topic, wanted.partition, partition, settle(topic.name, partition, wish, rules))


def _begun(target: Replicas, partition: Partition) -> Wish:
    settled = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    holding = {*settled, *partition.isr, *partition.eligible_leader_replicas}
    removing = tuple(replica for replica in partition.replicas if replica not in target and replica in holding)
    return Wish(
        replicas=(*target, *removing),
        adding=tuple(replica for replica in target if replica not in settled),
        removing=removing,
    )


def _ended(topic: str, partition: Partition, rules: Rules) -> Wish:
    """Without what was added: the others keep their order."""
    if not partition.is_reassigning:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "Its replicas are not being moved.")
    adding = partition.adding_replicas
    replicas = tuple(replica for replica in partition.replicas if replica not in adding)
    isr = tuple(member for member in partition.isr if member not in adding)
    if isr or not partition.isr:
        return Wish(replicas=replicas, adding=(), removing=(), isr=isr)
    available = [
        replica for replica in replicas if replica in rules.active and replica not in partition.offline_replicas
    ]
    if not available or not rules.allows_unclean(topic):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "None of the replicas that it had is in sync: to go back to them would lose what is committed.",
        )
    return Wish(replicas=replicas, adding=(), removing=(), isr=(available[0],), is_recovering=True)


def _check_target(target: Replicas, partition: Partition, image: Image, *, may_differ: bool) -> None:
    problem = None
    if not target:
        problem = "The list of replicas is empty."
    elif len(frozenset(target)) != len(target):
        problem = f"The replicas {list(target)} name a broker twice."
    elif unknown := [broker_id for broker_id in target if image.broker(broker_id) is None]:
        problem = f"Broker {unknown[0]} is not registered."
    if problem:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    factor = len(partition.target_replicas)
    if not may_differ and len(target) != factor:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"It has {factor} replicas and would have {len(target)}, which the request does not allow.",
        )
