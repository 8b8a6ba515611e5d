"""A partition's replicas under every kind of failure, from one seed.

More seeds: `python tests/replication/replication_simulation.py --seeds 5000 [--replicas 5] [--without RULE]`.

Real logs on disks that lose what was not synced, real leaders, followers, fetch plans and fetch sessions; a network
that delays, loses, reorders across reconnects and repeats; a controller that is trusted (`trusted_controller`). Nodes
are killed with and without loss and in the middle of anything they do to their disk, stopped cleanly, cut off;
leadership moves; replicas are reassigned; retention moves the log's start.

The oracle (`Violation`): records below a high watermark never change, on any node at any time; acknowledged records
(acks=all) are below one and stay at their offsets, in order and once; a leader's high watermark never falls within its
epoch; leader epochs never fall along a log; in the end all logs are byte for byte the same, with the same epochs and
producers, and every replica is in sync. A run that does not get there in time is a failure as well.

No more replicas lose data at a time than `min.insync.replicas - 1` promises to bear (KIP-966): a node that lost some is
`tainted` until it has been in the ISR again. If no replica is left that may lead, an operator elects the best log of
those that lost nothing.

`RULES` can be switched off one by one, to see that the oracle notices.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from simulated_node import Node
from simulated_parts import PowerLoss, Violation
from trusted_controller import NOBODY, Controller

from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.memory_files import Loss
from kraftpy.types import BrokerId

RULES = frozenset(
    {
        "truncate by epochs",  # rules 3, 4: else to the high watermark when a leader epoch begins
        "maximal isr",  # rules 9, 14: else a replica counts once the quorum has taken it in
        "acks of the isr",  # rule 9: without it those of the fastest min.insync.replicas, in the ISR or not
        "min isr holds the high watermark",  # rule 9, KIP-966
        "epochs asked for",  # rule 8, KAFKA-18723
        "broker epochs",  # rule 13, KIP-903
        "epoch start",  # rule 13: else the high watermark is enough to join the ISR
        "late answers",  # rule 7: else an answer is taken wherever the log stands
        "doubt",  # a refusal after a lost answer does not prove that nothing was decided
    }
)

CONTROLLER = BrokerId(0)
SESSION_TIMEOUT_MS = 600
CHAOS_MS = 12_000
HEALING_MS = 30_000


class Simulation:
    """One run. `weather`: what is not to be drawn from the seed."""

    def __init__(
        self,
        seed: int,
        *,
        replicas: int = 3,
        without: frozenset[str] = frozenset(),
        chaos_ms: int = CHAOS_MS,
        weather: dict[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.rules = RULES - without
        self.breaks_rules = bool(without)
        self.now = 1_000_000
        self.chaos_ends_at = self.now + chaos_ms
        self.is_healing = False
        self.min_insync_replicas = self.rng.choice([2, 2, 2, 1] if replicas == 3 else [3, 3, 2])
        self.replicas = tuple(BrokerId(1 + number) for number in range(replicas))
        self.brokers = (*self.replicas, *([BrokerId(replicas + 1)] if self.rng.random() < 0.5 else []))
        """One more than the replicas if the partition is to be moved about."""
        # Swarm testing: every seed has a weather of its own.
        self.slow = self.rng.choice([0.02, 0.1, 0.3])
        self.loss = self.rng.choice([0.0, 0.02, 0.1])
        self.holds = self.rng.choice([0.05, 0.2, 0.5])
        self.pauses_ms = self.rng.choice([[5, 50, 200, 600, 1200], [5, 20, 50, 100], [200, 500, 1000]])
        self.restarts_ms = self.rng.choice([[1, 30, 300, 1000, 3000], [1, 5, 20], [1000, 3000]])
        self.heartbeats_ms = self.rng.choice([(20, 100), (20, 100), (50, 400)])
        self.weights = [self.rng.choice([0, 1, 1, 4]) for _ in range(7)] + [1, 1, self.rng.choice([0, 1, 2])]
        for name, value in (weather or {}).items():
            setattr(self, name, value)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.cuts: set[frozenset[BrokerId]] = set()
        self.controller = Controller(
            self.replicas, self.min_insync_replicas, self.rng, checks_broker_epochs="broker epochs" in self.rules
        )
        self.committed: dict[int, tuple[int, bytes]] = {}
        """Offset -> (leader epoch, value) of everything that was ever below a high watermark."""
        self.deleted_before = 0
        """The offset to which a leader has moved its log start; some replica may still have records below it."""
        self.acknowledged: dict[int, bytes] = {}
        self.statistics: dict[str, int] = {}
        self.nodes = {broker: Node(self, broker) for broker in self.brokers}
        self.producers = [Producer(self, number) for number in range(3)]

    # --- time and the network ---

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._sequence, action))

    def run_until(self, end: int) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            try:
                action()
            except PowerLoss as lost:
                self._kill(lost.node, None if self._may_lose(lost.node) else Loss.NOTHING)
        self.now = end

    def count(self, what: str) -> None:
        self.statistics[what] = self.statistics.get(what, 0) + 1

    def delay_ms(self) -> int:
        if self.is_healing or self.rng.random() >= self.slow:
            return self.rng.randrange(1, 6)
        return self.rng.choice([20, 100, 400, 1500, 4000])

    def send(self, sender: BrokerId, receiver: BrokerId, action: Callable[[], None]) -> None:
        """Let something happen at the receiver, later or never. FIFO it is not: connections come and go."""
        if frozenset((sender, receiver)) in self.cuts or (not self.is_healing and self.rng.random() < self.loss):
            return
        self.at(self.delay_ms(), action)

    # --- chaos ---

    def run(self) -> None:
        for node in self.nodes.values():
            node.start(is_clean=False)
        for producer in self.producers:
            self.at(200, producer.send)
        self.at(10, self._control)
        self.at(600, self._disturb)
        self.run_until(self.chaos_ends_at)
        self._heal()
        self.run_until(self.now + HEALING_MS // 3)
        for producer in self.producers:
            producer.is_stopping = True
        end = self.now + HEALING_MS
        while self.now < end and not self.has_converged():
            self.run_until(self.now + 500)
        self.check_end()

    def _control(self) -> None:
        self.controller.tick(self.now, SESSION_TIMEOUT_MS)
        for broker in self.controller.now.isr:  # it has again what it lost
            self.nodes[broker].tainted = self.nodes[broker].tainted and not self._is_back(self.nodes[broker])
        since = self.controller.leaderless_since
        if since is not None and self.now - since > 2_000:
            replicas = self.holders()
            best = max(
                (node for node in replicas if node.is_up and not node.tainted),
                key=lambda node: (node.last_epoch(), node.log.log_end_offset),
                default=None,
            )
            if (
                all(n.is_up for n in self.nodes.values())
                and best is not None
                and best.id in self.controller.now.brokers
            ):
                self.count("operator's elections")
                self.controller.elect_uncleanly(best.id)
        self.at(50, self._control)

    def _is_back(self, node: Node) -> bool:
        return node.is_up and self.controller.now.epochs.get(node.id) == node.broker_epoch

    def _disturb(self) -> None:
        if self.now >= self.chaos_ends_at:
            return
        rng = self.rng
        node = self.nodes[rng.choice(self.brokers)]
        match rng.choices(range(10), self.weights)[0]:
            case 0:
                if node.is_up:
                    self._kill(node, Loss.NOTHING)
            case 1:
                if node.is_up and self._may_lose(node):
                    self._kill(node, None)
            case 2:
                if node.is_up:
                    self.count("clean stops")
                    node.stop()
                    self.at(rng.randrange(1, 1500), lambda: node.start(is_clean=node.stopped_cleanly))
            case 3 | 4 as kind:
                other = (
                    CONTROLLER if kind == 3 else rng.choice([broker for broker in self.brokers if broker != node.id])
                )
                link = frozenset((node.id, other))
                self.count("cuts")
                self.cuts.add(link)
                self.at(rng.randrange(50, 3000), lambda: self.cuts.discard(link))
            case 5:
                self.count("moves of leadership")
                self.controller.prefer(node.id)
            case 6:
                node.advance_log_start()
            case 7:
                node.flush()
            case 8:
                spare = [broker for broker in self.brokers if broker not in self.controller.now.replicas]
                if spare and node.id not in spare and self.controller.target is None:
                    self.count("reassignments")
                    self.controller.reassign(spare[0], node.id)
            case 9:
                node.lose_power_after(rng.choice([0, 1, 2, 3, 5, 8, 13, 40]))
        self.at(rng.choice(self.pauses_ms), self._disturb)

    def _may_lose(self, node: Node) -> bool:
        """Return True if the guarantee holds when this node loses data as well."""
        return sum(other.tainted for other in self.nodes.values() if other is not node) < self.min_insync_replicas - 1

    def _kill(self, node: Node, loss: Loss | None) -> None:
        self.count("kills" if loss is Loss.NOTHING else "power losses")
        if loss is None:
            node.tainted = True
        node.kill(loss)
        self.at(self.rng.choice(self.restarts_ms), lambda: node.start(is_clean=False))

    def _heal(self) -> None:
        self.is_healing = True
        self.cuts.clear()
        for node in self.nodes.values():
            node.disk.on_operation = None
            if not node.is_up:
                self.at(10, lambda node=node: node.start(is_clean=node.stopped_cleanly))  # type: ignore[misc]

    # --- the oracle ---

    def on_committed(self, node: Node, start: int, end: int) -> None:
        """A high watermark of that node has moved: nothing before it may ever have been, or become, anything else."""
        for offset, epoch, value in node.records(max(start, self.deleted_before), end):
            known = self.committed.setdefault(offset, (epoch, value))
            if known != (epoch, value):
                raise Violation(f"node {node.id}: offset {offset} is {value!r}@{epoch}, was committed as {known}")

    def acknowledge(self, offset: int, value: bytes) -> None:
        self.acknowledged[offset] = value
        committed = self.committed.get(offset)
        if committed is not None and committed[1] != value:
            raise Violation(f"offset {offset} acknowledged as {value!r}, committed as {committed}")

    def check_leader(self, node: Node) -> None:
        """A new leader has everything that was committed."""
        found = {offset: value for offset, _, value in node.records(0, node.log.log_end_offset)}
        for offset, (epoch, value) in self.committed.items():
            if offset >= max(node.log.log_start_offset, self.deleted_before) and found.get(offset) != value:
                raise Violation(f"leader {node.id} lacks {value!r}@{epoch} at {offset}: {found.get(offset)!r}")

    def holders(self) -> list[Node]:
        """The partition's replicas."""
        return [self.nodes[broker] for broker in self.controller.now.replicas]

    def has_converged(self) -> bool:
        state = self.controller.now
        nodes = self.holders()
        return (
            all(node.is_up for node in self.nodes.values())
            and state.leader != NOBODY
            and self.controller.target is None
            and set(state.isr) == set(state.replicas)
            and not any(producer.is_waiting for producer in self.producers)
            and len({node.log.log_end_offset for node in nodes}) == 1
            and all(node.high_watermark == node.log.log_end_offset for node in nodes)
        )

    def check_end(self) -> None:
        nodes = self.holders()
        if not self.has_converged():
            raise Violation(f"not converged: {self.controller.now}; " + "; ".join(map(str, self.nodes.values())))
        first = nodes[0]
        start = max(
            self.deleted_before, *(node.log.log_start_offset for node in nodes)
        )  # a leader whose start lags is no mistake
        for node in nodes[1:]:
            if node.bytes_from(start) != first.bytes_from(start):
                raise Violation(f"the logs of {first.id} and {node.id} differ")
            if node.epochs_from(start) != first.epochs_from(start):
                raise Violation(f"epochs {node.log.epochs.entries()} and {first.log.epochs.entries()}")
            if node.producer_states(start) != first.producer_states(start):
                raise Violation(f"producers {node.producer_states(start)} and {first.producer_states(start)}")
        found: dict[bytes, list[int]] = {}
        order: dict[bytes, list[int]] = {}
        for offset, _, value in first.records(0, first.log.log_end_offset):
            found.setdefault(value, []).append(offset)
            producer, _, number = value.partition(b":")
            order.setdefault(producer, []).append(int(number))
        for offset, value in self.acknowledged.items():
            if offset >= max(start, self.deleted_before) and offset not in found.get(value, []):
                raise Violation(f"{value!r} was acknowledged at {offset} and is at {found.get(value)}")
        for producer in self.producers:
            numbers = order.get(b"%d" % producer.number, [])
            if producer.is_idempotent and numbers != sorted(set(numbers)):
                raise Violation(f"producer {producer.number}: {numbers}")
        epochs = [epoch for _, epoch, _ in first.records(0, first.log.log_end_offset)]
        if epochs != sorted(epochs):
            raise Violation("leader epochs fall along the log")


class Producer:
    """Sends one batch after another, and each until it is acknowledged; acks=all."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.is_idempotent = number > 0
        self.next_record = 0
        self.sequence = 0
        self.batch: list[bytes] = []
        self.attempt = 0
        self.leader_epoch = 0
        """The newest it has heard of: a client does not go back to an older leader (KIP-320)."""
        self.is_waiting = False
        self.is_stopping = False

    def send(self) -> None:
        """The next batch, or the same one again."""
        simulation = self.simulation
        rng = simulation.rng
        if not self.batch:
            if self.is_stopping:
                self.is_waiting = False
                return
            for _ in range(rng.randrange(1, 5)):
                self.batch.append(b"%d:%d" % (self.number, self.next_record))
                self.next_record += 1
        self.is_waiting = True
        self.attempt += 1
        attempt = self.attempt
        leading = [
            node
            for node in simulation.nodes.values()
            if node.is_up and node.leader is not None and node.leader.state.leader_epoch >= self.leader_epoch
        ]
        if leading:
            node = rng.choice(leading)
            assert node.leader is not None
            self.leader_epoch = node.leader.state.leader_epoch
            batch, sequence = list(self.batch), self.sequence
            simulation.at(
                rng.randrange(1, 4),
                lambda: node.produce(
                    batch,
                    producer_id=self.number if self.is_idempotent else -1,
                    sequence=sequence if self.is_idempotent else -1,
                    answer=lambda error, offset: self.answered(attempt, error, offset),
                ),
            )
        simulation.at(800, lambda: self.answered(attempt, ErrorCode.REQUEST_TIMED_OUT, -1))

    def answered(self, attempt: int, error: ErrorCode, offset: int) -> None:
        if attempt != self.attempt:
            return
        self.attempt += 1  # any later answer to it is too late
        if error is ErrorCode.NONE:
            self.simulation.count("acknowledged")
            for number, value in enumerate(self.batch):
                self.simulation.acknowledge(offset + number, value)
            self.sequence += len(self.batch)
            self.batch = []
        elif error in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise Violation(f"producer {self.number} at sequence {self.sequence}: {error.name}")
        elif not self.is_idempotent:
            self.batch = []  # its copy may be there or not; the next one is another
        self.simulation.at(self.simulation.rng.randrange(1, 60), self.send)


def run(seed: int, **how: Any) -> Simulation:
    """One seed to its end. Raises what was found, with the line that repeats it."""
    simulation = Simulation(seed, **how)
    try:
        simulation.run()
    except Exception as error:
        error.add_note(f"again: python tests/replication/replication_simulation.py --from {seed} --seeds 1 {how}")
        raise
    return simulation


def main() -> int:
    """Run seeds, count what happened, and say which failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--without", action="append", default=[], choices=sorted(RULES))
    parser.add_argument("--stop", action="store_true", help="at the first failure, with its traceback")
    options = parser.parse_args()
    failed: list[int] = []
    totals: dict[str, int] = {}
    for seed in range(options.first, options.first + options.seeds):
        try:
            simulation = run(seed, replicas=options.replicas, without=frozenset(options.without))
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if options.stop or not isinstance(error, Violation):
                traceback.print_exc()
            if options.stop:
                break
        else:
            for what, number in simulation.statistics.items():
                totals[what] = totals.get(what, 0) + number
    print(f"{options.seeds} seeds, {len(failed)} failed {failed[:20]}; " + str(dict(sorted(totals.items()))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
