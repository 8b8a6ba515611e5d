"""Names and addresses of the network of one run in namespaces: nothing here touches the machine.

Everything has the run's process id in its name, so that who finds it knows whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.nemesis import NodeId

PREFIX: Final = "kraftpy-chaos"
RUN_DIRECTORY: Final = Path("/run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of one run's nodes."""

    run: int
    """The process id of the run."""
    subnet: int
    """The third byte of its addresses."""

    @property
    def directory(self) -> Path:
        """Return the directory of the lock and the mounts."""
        return RUN_DIRECTORY / f"{PREFIX}-{self.run}"

    @property
    def switch(self) -> str:
        """Return the namespace of the bridge."""
        return f"{PREFIX}-{self.run}-switch"

    def namespace(self, node: NodeId) -> str:
        """Return a node's namespace."""
        return f"{PREFIX}-{self.run}-{node}"

    def cable(self) -> str:
        """The interface of this process's namespace; 15 characters at most, as the kernel wants it."""
        return f"kch{self.run}"

    def host(self, node: NodeId) -> str:
        """Return a node's address."""
        return f"198.18.{self.subnet}.{node}"

    @property
    def client(self) -> str:
        """Return this process's address among the nodes."""
        return f"198.18.{self.subnet}.254"

    def laying(self, nodes: Sequence[NodeId]) -> list[list[str]]:
        """Return the arguments of the `ip` commands that create all this, in order."""
        made = [
            ["netns", "add", self.switch],
            ["-n", self.switch, "link", "add", "switch", "type", "bridge"],
            ["-n", self.switch, "link", "set", "switch", "up"],
            ["link", "add", self.cable(), "type", "veth", "peer", "name", "client", "netns", self.switch],
            ["-n", self.switch, "link", "set", "client", "master", "switch", "up"],
            ["addr", "add", f"{self.client}/24", "dev", self.cable()],
            ["link", "set", self.cable(), "up"],
        ]
        for node in nodes:
            name, port = self.namespace(node), f"node{node}"
            made += [
                ["netns", "add", name],
                ["link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch],
                ["-n", self.switch, "link", "set", port, "master", "switch", "up"],
                ["-n", name, "addr", "add", f"{self.host(node)}/24", "dev", "eth0"],
                ["-n", name, "link", "set", "eth0", "up"],
                ["-n", name, "link", "set", "lo", "up"],
            ]
        return made


def free_subnet(addresses: str, first: int) -> int:
    """Return a third byte that none of these addresses has (the output of `ip -o addr`), tried from `first` on."""
    taken = {int(found) for found in re.findall(r"inet 198\.18\.(\d+)\.", addresses)}
    return next(number % 250 for number in range(first, first + 250) if number % 250 not in taken)


def run_of(name: str) -> int | None:
    """Return the number of the run that a namespace, directory or interface belongs to by its name."""
    found = re.fullmatch(rf"(?:{PREFIX}-(\d+)(?:-\w+)?|kch(\d+))", name)
    return None if found is None else int(found[1] or found[2])
