"""The asker: sends each question to both clusters, and compares what they say.

It has two sides, Kafka's and ours, or one: then what Kafka said is read from a recording, and everything else is the
same, so that scenarios do not know. A node knows what it has promised when it answers, or soon after: a question that
is asked `eventually` is repeated until both sides agree, for a bounded time; the last answers count.
"""

from __future__ import annotations

import struct
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from answer_differences import Difference, differences
from both import Body, Both, build, resolve
from leftovers import clean, existing
from of_kafka import APIS
from outcomes import Outcomes
from peer_clusters import PeerCluster
from plain_answers import Plain
from recording import Answers, Kept
from scenario_table import Scenario
from side import PATIENCE, Heard, ScramLogin, Side, parse
from surroundings import BETWEEN_SECONDS, SETTLING_SECONDS, can_be_used, is_gone, wait
from worlds import OPEN

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import encode_request

EVENTUALLY_SECONDS = 3.0
HARDLY_SECONDS = 0.5
"""The patience with a scenario of which something never became equal."""
SLOW_SECONDS = 20.0
RECORDED_ANSWER_SECONDS = 60.0
RECORDED_SILENCE_SECONDS = 0.2
"""Where Kafka never answered, the silence of ours is not waited for any longer than this."""
CLIENT_ID = "differ"

Versions = Iterable[int]
Answer = Mapping[str, Plain]


class Question:
    """A request that both sides were sent. `answers` waits for what they say."""

    def __init__(
        self, differ: Differ, key: int, version: int | None, body: Body, client: str, node: int | Both
    ) -> None:
        self._differ = differ
        self._key = key
        self._version = version
        self._body = body
        self._client = client
        self._node = node
        self.number = differ.count()
        self.has_own_header = False
        """True if the request was sent as bytes, with a correlation id of their own."""

    @property
    def api(self) -> str:
        return self._key.name if isinstance(self._key, ApiKey) else f"API {self._key}"

    def answers(self, note: str = "", *, seconds: float = PATIENCE, compare: bool = True) -> Both:
        """Wait for the answers; compare them, unless they are only wanted."""
        if compare:
            seconds = self._differ.patience(seconds)
        heard = self.heard(seconds)
        if compare:
            self._differ.judge(self, self._version, note, self._body, self.plain(heard))
        return self.learned(heard)

    def heard(self, seconds: float) -> list[Heard]:
        """Wait for both. If Kafka has answered, ours is waited for longer: a busy machine is no difference."""
        found: list[Heard] = []
        for side in self._differ.sides:
            if found and found[0].outcome != "silent":
                seconds = max(seconds, SLOW_SECONDS)
            frame = side.frame(self._client, resolve(self._node, side.index), seconds)
            if isinstance(frame, str):
                found.append(Heard(outcome=frame))
            else:
                correlation = None if self.has_own_header else self.number
                found.append(parse(self._key, self._version, correlation, frame))
        return found

    def learned(self, heard: Sequence[Heard]) -> Both:
        for side, each in zip(self._differ.sides, heard, strict=True):
            if each.message is not None:
                side.names.learn(self.number, each.message)
        return Both(each.message for each in heard)

    def plain(self, heard: Sequence[Heard]) -> list[Answer]:
        self.learned(heard)
        return [
            {"outcome": each.outcome} | (side.names.plain(each.message, each.version) if each.message else {})
            for side, each in zip(self._differ.sides, heard, strict=True)
        ]


class Differ:
    """Asks both sides, or one and a recording."""

    def __init__(self, clusters: Sequence[PeerCluster], outcomes: Outcomes, seed: int, world: str = OPEN) -> None:
        self.sides = [Side(index, cluster, world) for index, cluster in enumerate(clusters)]
        self.outcomes = outcomes
        self.seed = seed
        self.kept: list[Kept] = []
        """The answers of the first side in this scenario."""
        self._recorded: Answers | None = None
        self._scenario = ""
        self._questions = 0
        self._settling_seconds = EVENTUALLY_SECONDS

    # A scenario

    def run(self, scenario: Scenario, recorded: Sequence[Kept] | None = None) -> None:
        """Ask what a scenario asks, and remove what it has made."""
        self._scenario, self._questions, self.kept = scenario.name, 0, []
        self._settling_seconds = EVENTUALLY_SECONDS if recorded is None else RECORDED_ANSWER_SECONDS
        self._recorded = None if recorded is None else Answers(scenario.name, recorded)
        now = int(time.time() * 1000)
        for side in self.sides:
            side.names.begin(now)
            side.names.elders = existing(side)
        try:
            scenario.ask(self)
            if self._recorded is not None:
                self._recorded.end()
        except Exception:
            self.outcomes.failed[scenario.name] = traceback.format_exc()
        for side in self.sides:
            try:
                clean(side)
            except (OSError, EOFError) as error:
                self.outcomes.failed.setdefault(scenario.name, f"cleaning up after it: {error}")

    def now(self, offset_ms: int = 0) -> int:
        """Return the time at which the scenario began, and so much more."""
        for side in self.sides:
            moment = side.names.moment(offset_ms)
        return moment

    def count(self) -> int:
        self._questions += 1
        return self._questions

    def close(self) -> None:
        for side in self.sides:
            side.close()

    # Asking

    def send(
        self,
        api: str,
        body: Body | None = None,
        version: int | None = None,
        *,
        client: str = "main",
        node: int | Both = 1,
    ) -> Question:
        """Send a request to both, without waiting for what they say. `version` is the latest unless given."""
        key = ApiKey[api.upper()]
        used = APIS[key].last if version is None else version
        question = Question(self, key, used, body or {}, client, node)
        for side in self.sides:
            request = build(APIS[key].request, body or {}, used, side.index)
            side.send(client, resolve(node, side.index), encode_request(key, used, question.number, CLIENT_ID, request))
        return question

    def ask(
        self,
        api: str,
        body: Body | None = None,
        version: int | None = None,
        *,
        note: str = "",
        client: str = "main",
        node: int | Both = 1,
        seconds: float = PATIENCE,
        compare: bool = True,
        eventually: bool = False,
    ) -> Both:
        """Send a request to both and compare what they say; `note` tells apart what is asked of the same API."""
        if eventually:
            return self._ask_until_equal(api, body or {}, version, note, client, node)
        sent = self.send(api, body, version, client=client, node=node)
        return sent.answers(note, seconds=seconds, compare=compare)

    def _ask_until_equal(
        self, api: str, body: Body, version: int | None, note: str, client: str, node: int | Both
    ) -> Both:
        number = self._questions
        deadline = time.monotonic() + self._settling_seconds
        used = APIS[ApiKey[api.upper()]].last if version is None else version
        while True:
            self._questions = number
            question = self.send(api, body, version, client=client, node=node)
            heard = question.heard(self.patience(PATIENCE))
            plain = question.plain(heard)
            found = self._compared(question.api, used, note, plain, keep=False)
            equal = not self.outcomes.unexplained(question.api, used, note, found)
            if equal or time.monotonic() > deadline:
                self.judge(question, used, note, body, plain)
                if not equal:
                    self._settling_seconds = HARDLY_SECONDS
                return question.learned(heard)
            time.sleep(BETWEEN_SECONDS)

    def each_version(
        self,
        api: str,
        body: Body | Callable[[int], Body],
        note: str = "",
        versions: Versions | None = None,
        **how: Any,
    ) -> dict[int, Both]:
        """Ask in every version that can say it; `body` may be a function of the version."""
        described = APIS[ApiKey[api.upper()]]
        found: dict[int, Both] = {}
        for version in versions or range(described.first, described.last + 1):
            try:
                found[version] = self.ask(api, body(version) if callable(body) else body, version, note=note, **how)
            except KafkaError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
        return found

    def ask_bytes(
        self,
        key: int,
        frames: bytes | Sequence[bytes],
        note: str,
        *,
        version: int | None = None,
        only_outcome: bool = False,
        seconds: float = PATIENCE,
    ) -> None:
        """Send bytes as they are, the same to each or each its own; compare all, or only whether there is an answer."""
        api = ApiKey(key) if key in APIS else key
        question = Question(self, api, version, {}, "bytes", 1)
        question.has_own_header = True
        for side in self.sides:
            frame = frames if isinstance(frames, bytes) else frames[side.index]
            side.send("bytes", 1, struct.pack(">i", len(frame)) + frame)
        heard = question.heard(self.patience(seconds))
        if only_outcome:
            heard = [Heard(outcome=each.outcome.partition(" ")[0].rstrip(":")) for each in heard]
        request = {"bytes": frames if isinstance(frames, bytes) else frames[0]}
        self.judge(question, version, note, request, question.plain(heard))

    def ask_without_answer(self, api: str, body: Body, version: int, *, note: str, client: str = "unanswered") -> None:
        """Send a request that is not to be answered, and another behind it: its answer has to come first."""
        key = ApiKey[api.upper()]
        question = self.send(api, body, version, client=client)
        behind = encode_request(ApiKey.API_VERSIONS, 0, -1, CLIENT_ID, APIS[ApiKey.API_VERSIONS].request())
        heard = []
        for side in self.sides:
            side.send(client, 1, behind)
            frame = side.frame(client, 1, self.patience(PATIENCE))
            if isinstance(frame, str):
                heard.append(Heard(outcome=frame))
            elif struct.unpack_from(">i", frame)[0] == -1:
                heard.append(Heard(outcome="no answer"))
            else:
                heard.append(parse(key, version, question.number, frame))
                side.frame(client, 1, PATIENCE)
        self.judge(question, version, note, body, question.plain(heard))

    # Comparing

    def patience(self, seconds: float) -> float:
        """Return how long to wait for an answer: if it is known what Kafka did, until there is one, or not long."""
        if self._recorded is None:
            return seconds
        return RECORDED_SILENCE_SECONDS if self._recorded.peek_outcome() == "silent" else RECORDED_ANSWER_SECONDS

    def _compared(
        self, api: str, version: int | None, note: str, plain: Sequence[Answer], *, keep: bool
    ) -> list[Difference]:
        if self._recorded is None:
            kafka = plain[0]
        elif keep:
            kafka = self._recorded.next(api, version, note)
        else:
            kafka = self._recorded.peek(api, version, note)
        if keep:
            self.kept.append(Kept(api=api, version=version, case=note, answer=kafka))
        return differences(kafka, plain[-1])

    def judge(self, question: Question, version: int | None, note: str, request: Body, plain: Sequence[Answer]) -> None:
        """Compare two answers, and count what is found."""
        found = self._compared(question.api, version, note, plain, keep=True)
        self.outcomes.add(self._scenario, note, question.api, version, request, found)

    def log_in(self, client: str, note: str, *, mechanism: str, name: Any, password: Any, is_by_token: bool) -> None:
        """Log a client in by SCRAM, and compare what comes of it. `name` and `password` may be each side's own."""
        outcomes = []
        for side in self.sides:
            own = resolve(name, side.index), resolve(password, side.index)
            login = ScramLogin(mechanism=mechanism, name=own[0], password=own[1], is_by_token=is_by_token)
            outcomes.append(side.log_in(client, login))
        self.compare_outcomes(f"login by {mechanism}", note, outcomes)

    def compare_outcomes(self, what: str, note: str, outcomes: Sequence[str]) -> None:
        """Compare what was seen of each side by other means than a request."""
        found = self._compared(what, None, note, [{"outcome": outcome} for outcome in outcomes], keep=True)
        self.outcomes.add(self._scenario, note, what, None, {}, found)

    # --- steps that many scenarios need

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, **more: Any) -> Both:
        """Create a topic, wait until it can be used, and return its id."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
            **more,
        }
        body = {"topics": [topic], "timeout_ms": 20000}
        created = self.ask("create_topics", body, compare=False, seconds=SLOW_SECONDS)
        self.settle(name)
        return created.topics[0].topic_id

    def settle(self, *names: str) -> None:
        """Wait until every partition of these topics can be used at its leader; learn the topics' ids."""
        self.wait("the topics can be used", lambda side: can_be_used(side, names))

    def wait_until_gone(self, topic: str) -> None:
        """Wait until no node knows a topic."""
        self.wait("the topic is gone", lambda side: is_gone(side, topic))

    def wait(self, what: str, is_so: Callable[[Side], bool], seconds: float = SETTLING_SECONDS) -> None:
        """Wait until something is so on each side."""
        for side in self.sides:
            wait(side, what, lambda side=side: is_so(side), seconds)  # type: ignore[misc]

    def own(self, function: Callable[[Side], Any]) -> Both:
        """Return a value of each side."""
        return Both(function(side) for side in self.sides)
