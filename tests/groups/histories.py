"""The common parts of random histories of groups that the coordinator assigns to: their members."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from group_world import World

from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import GroupRequest, GroupResponse
from kraftpy.groups.group import Group
from kraftpy.protocol.errors import ErrorCode

SESSION_MS = 45_000
REVOCATION_MS = 30_000


@dataclass(kw_only=True)
class Client:
    """A member as it sees itself."""

    member_id: str
    epoch: int = 0
    reports: bool = True  # its next heartbeat says everything
    waiting: list[int] = field(default_factory=list)
    is_gone: bool = False
    heard_at: int = 0


C = TypeVar("C", bound=Client)
R = TypeVar("R", bound=GroupResponse)


class Clients(World, Generic[C, R]):
    """The members of one group, and what happens to them."""

    beaten: type[R]
    """The type of the response to a heartbeat."""

    def __init__(self, chance: random.Random, config: GroupConfig | None = None) -> None:
        self.chance = chance
        self.clients: list[C] = []
        self.made = 0
        super().__init__(config)

    def alive(self) -> list[C]:
        return [client for client in self.clients if not client.is_gone]

    # ---- what differs

    def beat(self, client: C) -> None:
        """Send the client's next heartbeat, unless it waits for an answer."""
        raise NotImplementedError

    def _heard(self, client: C, answer: R) -> None:
        raise NotImplementedError

    def happen(self) -> None:
        """Something by chance."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let nothing happen any more but heartbeats."""
        raise NotImplementedError

    def check_owners(self) -> None:
        """Check the members' actions against each other."""

    # ---- what does not

    def send(self, client: C, message: GroupRequest, version: int) -> None:
        """Send a heartbeat, and expect an answer to it."""
        client.heard_at = self.now
        client.waiting.append(len(self.requests) + 1)
        self.request(message, version, client.member_id)

    def hear(self, *, losing: float = 0.0) -> None:
        """Clients take their answers in, or never get them and send everything the next time."""
        for client in self.clients:
            for request_id in [each for each in client.waiting if each in self.answers]:
                client.waiting.remove(request_id)
                if self.chance.random() < losing:
                    client.reports = True
                    continue
                answer = self.answers[request_id]
                assert isinstance(answer, self.beaten)
                self._heard(client, answer)
        self.check_owners()

    def end_append(self) -> None:
        """Complete the oldest append, with success or failure."""
        codes = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS)
        self.appended(self.held[0].token, self.chance.choice(codes))

    def stop_holding(self) -> None:
        """Let appends proceed."""
        self.hold = False
        self.go_on()

    def come_to_rest(self, happenings: int) -> Group | None:
        """Return the group after everything has settled; None if no members are left."""
        for _ in range(happenings):
            self.happen()
        self.settle()
        self.check_replay()
        group = self.coordinator.groups.get("g")
        if not self.alive():
            assert group is None or group.is_empty
            return None
        assert group is not None
        return group
