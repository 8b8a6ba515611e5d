"""The metadata log of this node: commands in, agreed decisions out, in order.

    submit(command) -> journal -> sync -> decide on the image -> replay -> tell the broker -> Decision

One task takes whatever has been submitted, makes it durable with one sync (in a thread), and applies it in order; a
decision is known only after its command is on disk. That is the order of a replicated log too, with the quorum's
commit in the sync's place. A command that the present image already refuses is answered at once and never written.

Invariants: the image is exactly the replay of snapshot and journal; `submit` returns after the broker has acted on
what was decided (a created topic can be written to).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kraftpy.metadata.records import Record

SNAPSHOT_AFTER_ENTRIES = 10_000
_SOLE_TERM = 1

Apply = Callable[[Sequence[Record]], Awaitable[None]]
