"""Decisions about SCRAM credentials (KIP-554)."""

from __future__ import annotations

from kraftpy.metadata.credentials import NOTHING_TO_DELETE, ScramCredentialChanged, ScramResult, SetScramCredentials
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
            error = ErrorCode.RESOURCE_NOT_FOUND
            results.append(ScramResult(name=change.name, error=error, message=NOTHING_TO_DELETE))
            continue
        records.append(ScramCredentialChanged(change=change))
        results.append(ScramResult(name=change.name))
    return Decision(records=tuple(records), result=tuple(results))
