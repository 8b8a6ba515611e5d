"""Decisions about SCRAM credentials (KIP-554)."""

from __future__ import annotations

from kraftpy.metadata.credentials import ScramCredentialChanged, ScramResult, SetScramCredentials
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import Image
from kraftpy.metadata.records import Record
from kraftpy.protocol.errors import ErrorCode


def set_scram_credentials(command: SetScramCredentials, image: Image) -> Decision[tuple[ScramResult, ...]]:
    """Change each credential independently; one that does not exist cannot be deleted."""
    records: list[Record] = []
    results = []
    for change in command.changes:
        if not change.iterations and change.mechanism not in image.credentials.iterations(change.name):
            message = "Attempt to delete a user credential that does not exist"
            results.append(ScramResult(name=change.name, error=ErrorCode.RESOURCE_NOT_FOUND, message=message))
            continue
        records.append(ScramCredentialChanged(change=change))
        results.append(ScramResult(name=change.name))
    return Decision(records=tuple(records), result=tuple(results))
