"""SCRAM credentials for controller listeners, until a controller that has started has up-to-date metadata.

After a start, a voter applies its journal only once it learns from a leader what is committed. With SCRAM between
controllers, there is no leader before they have logged in to each other. Until then, a controller uses the credentials
of its snapshot and of its whole journal, including entries that may not be committed, and in a new cluster those of
`kraftpy format --add-scram`. Once it has up-to-date metadata, only these count.
"""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import decode_command
from kraftpy.metadata.credentials import Credentials, ScramChange, SetScramCredentials
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import Entry
from kraftpy.metadata.quorum_messages import command_in
from kraftpy.metadata.submissions import decode_submission
from kraftpy.security.scram import ScramCredential


class EarlyCredentials:
    """The credentials of one controller, from its start on."""

    def __init__(self, initial: tuple[ScramChange, ...], image: Image, entries: Sequence[Entry]) -> None:
        """`initial` are those of a new cluster, `image` is the snapshot's, `entries` are the journal's after it."""
        self._until = entries[-1].index if entries else 0
        changes = [*initial, *image.credentials.saved()]
        for entry in entries:
            changes += _changes_in(entry)
        self._early: Credentials | None = Credentials(tuple(changes))

    def of(
        self, name: str, mechanism: int, image: Image, *, has_leader: bool, applied_index: int
    ) -> ScramCredential | None:
        """Return a user's credential for a mechanism, according to the metadata if they are up to date."""
        if self._early is not None and has_leader and image.cluster_id is not None and applied_index >= self._until:
            self._early = None
        return (image.credentials if self._early is None else self._early).of(name, mechanism)


def _changes_in(entry: Entry) -> tuple[ScramChange, ...]:
    data = command_in(entry.data)
    if data is None:
        return ()
    try:
        command = decode_command(decode_submission(data)[1])
    except CodecError:  # an unusable entry changes nothing; that is reported when it is applied
        return ()
    return command.changes if isinstance(command, SetScramCredentials) else ()
