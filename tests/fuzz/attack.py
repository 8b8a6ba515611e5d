"""The attacker of a fuzz: many connections that play plots (`plots`), each to one broker of the world.

A plot of a family waits for each answer, because the next request is made from it; other plots send all their requests
at once. If an answer is late, the connection is closed and the plot continues on a new one: some requests, such as a
join, wait for others. The honest client detects a node that hangs. Answers must be decodable and in order.

`crowd` holds up to `most_crowd` connections open at once, with half a frame each or with nothing. `unread` sends
requests with long answers and reads none.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from typing import Any

import link_frames
import plots
from hostile import Plot
from plots import PLOT, Ask

from kraftpy.config import Address
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.schema import decode

WORKERS = 32
ANSWER_SECONDS = 0.4
LARGE_ANSWER_BYTES = 200_000
"""Longer answers are not decoded, to save the attacker's time."""
_TRIES = 3


class Stopped(Exception):
    """The run ended before its last index."""


@dataclass(slots=True)
class Sent:
    """A request that was sent, or a frame that is no request and is never answered."""

    at: float
    index: int
    text: str
    is_answered: bool = False


class Attack:
    """Plays the plots from index `first` up to, and without, `end`."""

    def __init__(
        self,
        *,
        seed: int,
        first: int,
        end: int,
        brokers: list[Address],
        for_brokers: list[Address],
        controllers: dict[int, Address],
        secret: str | None,
        most_crowd: int,
        topic_ids: dict[str, bytes],
        homes: dict[str, int],
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        self.seed, self.first, self.end = seed, first, end
        self.brokers, self.for_brokers = brokers, for_brokers
        self.controllers, self.secret = controllers, secret
        self.most_crowd = most_crowd
        self.topic_ids = topic_ids
        self.homes = homes
        self.left_out = left_out
        self.next = first
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        """Faults found in answers, each with its request."""
        self.lately: deque[Sent] = deque(maxlen=20_000)
        self.should_stop = False
        self._crowds: list[asyncio.StreamWriter] = []

    async def run(self) -> None:
        """Run until the last index, or until `should_stop` is set."""
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*workers)
        except Stopped:
            pass
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for writer in self._crowds:
                writer.close()

    async def _work(self) -> None:
        worker = Worker(self)
        try:
            while self.next < self.end:
                number, self.next = self.next // PLOT, (self.next // PLOT + 1) * PLOT
                if number in self.left_out:
                    continue
                kind, chance = plots.kind_of(self.seed, number)
                indexes = range(max(self.first, number * PLOT), min(self.end, (number + 1) * PLOT))
                await worker.play(kind, chance, indexes)
        finally:
            worker.close()

    def note_sent(self, asked: Ask) -> None:
        """Note a request that is now open."""
        self.note(str(asked), asked.index)

    def note(self, text: str, index: int) -> None:
        """Count something that was sent, and remember it for a while."""
        self.sent += 1
        self.lately.append(Sent(time.monotonic(), index, text))

    def note_gone(self, asked: Ask, outcome: str) -> None:
        """Note that it was answered, or never will be."""
        self.outcomes[outcome] += 1
        if outcome == "answered":
            for each in reversed(self.lately):
                if each.index == asked.index:
                    each.is_answered = True
                    break

    def suspects(self, since: float, until: float) -> list[str]:
        """Return the requests sent between two times and not answered, newest first."""
        found = [each for each in self.lately if since <= each.at <= until and not each.is_answered]
        return [each.text for each in reversed(found)]

    def check_stop(self) -> None:
        """Raise Stopped if the run is over."""
        if self.should_stop:
            raise Stopped

    async def crowd(self, chance: Random, indexes: range) -> None:
        """Hold many connections at once; they stay until the next crowd comes."""
        for writer in self._crowds:
            writer.close()
        self._crowds = []
        self.note(f"{indexes[0]} a crowd", indexes[0])
        count, broker = int(self.most_crowd * chance.choice((0.1, 0.3, 1.0))), chance.choice(self.brokers)
        said = chance.choice((b"", b"\0", struct.pack(">i", 100_000_000) + b"\0", struct.pack(">i", 50) + b"\0\3\0\5"))

        async def one() -> None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    _, writer = await asyncio.open_connection(*broker)
                self._crowds.append(writer)
                writer.write(said)

        for start in range(0, count, 100):
            await asyncio.gather(*(one() for _ in range(min(100, count - start))))
        self.outcomes["crowds"] += 1

    async def link(self, chance: Random, indexes: range) -> None:
        """Send hellos of a stranger, or frames of a false node."""
        if not self.controllers:
            self.outcomes["no links here"] += len(indexes)
            return
        node = chance.choice(sorted(self.controllers))
        for index in indexes:
            self.note(f"{index} to the link of node {node}", index)
        if self.secret is not None and chance.random() < 0.5:
            frames = [link_frames.message(Random(f"{self.seed}/{index}")) for index in indexes for _ in range(4)]
            async with link_frames.Impostor(self.secret, {node: self.controllers[node]}) as impostor:
                self.outcomes["link frames"] += await impostor.say(frames, node)
            return
        for index in indexes:
            said = link_frames.hello(Random(f"{self.seed}/{index}"))
            try:
                reader, writer = await asyncio.open_connection(*self.controllers[node])
                writer.write(said[: chance.choice((len(said), len(said), 3, 20))])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await reader.read(1000)
                writer.close()
                self.outcomes["hellos"] += 1
            except OSError:
                self.outcomes["links refused"] += 1


class Worker:
    """Plays plots over one connection to each broker."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self.streams: dict[Address, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self.streams.values():
            writer.close()
        self.streams.clear()

    def drop(self, broker: Address) -> None:
        """Abort the connection to a broker, even with open requests."""
        if (found := self.streams.pop(broker, None)) is not None:
            found[1].transport.abort()

    async def connected(self, broker: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection to a broker."""
        if broker not in self.streams:
            for attempt in range(_TRIES):
                self.attack.check_stop()
                try:
                    async with asyncio.timeout(5):
                        self.streams[broker] = await asyncio.open_connection(*broker, limit=1 << 20)
                    break
                except (OSError, TimeoutError):
                    self.attack.outcomes["not connected"] += 1
                    await asyncio.sleep(0.1 * (attempt + 1))
            else:
                raise ConnectionError("nobody there")
        return self.streams[broker]

    async def play(self, kind: str, chance: Random, indexes: range) -> None:
        """Play one plot."""
        attack = self.attack
        attack.check_stop()
        plot = Plot(chance)
        broker = chance.choice(attack.for_brokers if kind == "replica" or chance.random() < 0.05 else attack.brokers)
        home = attack.homes.get(plot.transactional_id if kind == "transaction" else plot.group)
        if home is not None and chance.random() < 0.9:
            broker = attack.brokers[home]
        try:
            match kind:
                case "crowd":
                    await attack.crowd(chance, indexes)
                case "link":
                    await attack.link(chance, indexes)
                case "frames":
                    await self._frames(broker, indexes)
                case "unread":
                    await self._unread(broker, chance, indexes)
                case "any":
                    await self._ahead(broker, kind, plot, indexes)
                case _:
                    await self._one_by_one(broker, kind, plot, indexes)
        except (OSError, asyncio.IncompleteReadError):
            attack.outcomes["closed"] += 1
            self.drop(broker)

    async def _one_by_one(self, broker: Address, kind: str, plot: Plot, indexes: range) -> None:
        for index in indexes:
            self.attack.check_stop()
            asked = plots.request(self.attack.seed, index, kind, plot, self.attack.topic_ids)
            reader, writer = await self.connected(broker)
            self.attack.note_sent(asked)
            writer.write(asked.frame)
            if not asked.is_answered:
                self.attack.note_gone(asked, "unanswered")
                continue
            await self._answer(reader, broker, asked, plot)

    async def _ahead(self, broker: Address, kind: str, plot: Plot, indexes: range) -> None:
        reader, writer = await self.connected(broker)
        asked = [plots.request(self.attack.seed, index, kind, plot, self.attack.topic_ids) for index in indexes]
        for each in asked:
            self.attack.note_sent(each)
        writer.write(b"".join(each.frame for each in asked))
        is_open = True
        for each in asked:
            if not each.is_answered or not is_open:
                self.attack.note_gone(each, "unanswered")
            else:
                is_open = await self._answer(reader, broker, each, None)

    async def _answer(self, reader: asyncio.StreamReader, broker: Address, asked: Ask, plot: Plot | None) -> bool:
        """Read an answer; return True if the connection continues."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        except TimeoutError:
            self.attack.note_gone(asked, "waiting")
            self.drop(broker)
            return False
        except (OSError, asyncio.IncompleteReadError):
            self.attack.note_gone(asked, f"closed {asked.key.name}")
            self.drop(broker)
            return False
        self.attack.note_gone(asked, "answered")
        if len(frame) <= LARGE_ANSWER_BYTES and (plot is not None or asked.index % 4 == 0):
            self._look(frame, asked, plot)
        return True

    def _look(self, frame: bytes, asked: Ask, plot: Plot | None) -> None:
        version = asked.version
        try:
            correlation_id, body = decode_response_header(asked.key, version, frame)
            answer = decode(APIS[asked.key].response, body, version)
        except ProtocolError as error:
            self.attack.problems.setdefault(f"an answer that cannot be decoded: {error}"[:200], str(asked))
            return
        if correlation_id != asked.index & 0x7FFFFFFF:
            self.attack.problems.setdefault("an answer that is not to this request", str(asked))
        if plot is not None:
            plot.harvest(answer)
            if asked.key == ApiKey.CREATE_TOPICS and version >= 7:
                for topic in answer.topics:
                    if topic.name in self.attack.topic_ids and any(topic.topic_id):
                        self.attack.topic_ids[topic.name] = topic.topic_id

    async def _frames(self, broker: Address, indexes: range) -> None:
        for index in indexes:
            self.attack.check_stop()
            reader, writer = await self.connected(broker)
            said = plots.frame(self.attack.seed, index)
            self.attack.note(f"{index} a frame of {len(said)} bytes", index)
            writer.write(said)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await writer.drain()
                    await reader.read(1 << 16)
            self.attack.outcomes["frames"] += 1
            self.drop(broker)

    async def _unread(self, broker: Address, chance: Random, indexes: range) -> None:
        """Send requests with long answers, and close the connection without reading any."""
        _, writer = await self.connected(broker)
        resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        whole = MetadataRequest(topics=None)
        long: list[tuple[ApiKey, int, Any]] = [
            (ApiKey.METADATA, 9, whole),
            (ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource], include_documentation=True)),
        ]
        key, version, made = chance.choice(long)
        writer.transport.set_write_buffer_limits(1 << 20)
        writer.write(encode_request(key, version, 1, "odd", made) * 60)
        self.attack.note(f"{indexes[0]} 60 requests {key.name}, unread", indexes[0])
        self.attack.outcomes["unread"] += 1
        await asyncio.sleep(chance.choice((0.05, 0.3, 1.0)))
        self.drop(broker)
