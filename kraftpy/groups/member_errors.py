"""Errors for members of groups that the coordinator assigns to, in Kafka's words."""

from __future__ import annotations

from typing import Final

from kraftpy.protocol.errors import ErrorCode, KafkaError

NO_GROUP_ID: Final = "GroupId can't be empty."
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java trims from the ends of a text: ASCII's blanks and control characters, no other spaces."""


def is_blank(text: str) -> bool:
    """Return whether an id or a name consists only of characters that Kafka counts as blank."""
    return not text.strip(_TRIMMED)


def unknown_member(member_id: str, group_id: str) -> KafkaError:
    """Return the error for a request from a member that the group does not have."""
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def group_is_full(kind: str, max_size: int) -> KafkaError:
    """Return the error for a member that cannot join because the group has its maximum size."""
    text = f"The {kind} group has reached its maximum capacity of {max_size} members."
    return KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def fenced_member(kind: str, epoch: int, known_epoch: int) -> KafkaError:
    """Return the error for a heartbeat at an epoch that is not the member's."""
    relation = "greater" if epoch > known_epoch else "smaller"
    text = (
        f"The {kind} group member has a {relation} member epoch ({epoch}) than the one known by the group coordinator "
        f"({known_epoch}). The member must abandon all its partitions and rejoin."
    )
    return KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
