"""A command line of one of Kafka's tools: which there are, how one is run and compared, and the files they get."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

_TOOLS = "org.apache.kafka.tools."


@dataclass(frozen=True, slots=True)
class Tool:
    """The class of a script, and its option for the cluster's address."""

    name: str
    option: str = "--bootstrap-server"
    controller_option: str = "--bootstrap-controller"
    is_first: bool = False
    """True if the option stands before the subcommand."""


TOOLS = {
    "acls": Tool(f"{_TOOLS}AclCommand"),
    "broker-api-versions": Tool(f"{_TOOLS}BrokerApiVersionsCommand"),
    "client-compatibility": Tool(f"{_TOOLS}ClientCompatibilityTest"),
    "client-metrics": Tool(f"{_TOOLS}ClientMetricsCommand"),
    "cluster": Tool(f"{_TOOLS}ClusterTool"),
    "configs": Tool("kafka.admin.ConfigCommand"),
    "console-consumer": Tool(f"{_TOOLS}consumer.ConsoleConsumer"),
    "console-producer": Tool(f"{_TOOLS}ConsoleProducer"),
    "console-share-consumer": Tool(f"{_TOOLS}consumer.ConsoleShareConsumer"),
    "consumer-groups": Tool(f"{_TOOLS}consumer.group.ConsumerGroupCommand"),
    "consumer-perf-test": Tool(f"{_TOOLS}ConsumerPerformance"),
    "delegation-tokens": Tool(f"{_TOOLS}DelegationTokenCommand"),
    "delete-records": Tool(f"{_TOOLS}DeleteRecordsCommand"),
    "dump-log": Tool(f"{_TOOLS}DumpLogSegments", ""),
    "e2e-latency": Tool(f"{_TOOLS}EndToEndLatency"),
    "features": Tool(f"{_TOOLS}FeatureCommand", is_first=True),
    "get-offsets": Tool(f"{_TOOLS}GetOffsetShell"),
    "groups": Tool(f"{_TOOLS}GroupsCommand"),
    "leader-election": Tool(f"{_TOOLS}LeaderElectionCommand"),
    "log-dirs": Tool(f"{_TOOLS}LogDirsCommand"),
    "metadata-quorum": Tool(f"{_TOOLS}MetadataQuorumCommand", is_first=True),
    "producer-perf-test": Tool(f"{_TOOLS}ProducerPerformance"),
    "reassign-partitions": Tool(f"{_TOOLS}reassign.ReassignPartitionsCommand"),
    "replica-verification": Tool(f"{_TOOLS}ReplicaVerificationTool", "--broker-list"),
    "share-consumer-perf-test": Tool(f"{_TOOLS}ShareConsumerPerformance"),
    "share-groups": Tool(f"{_TOOLS}consumer.group.ShareGroupCommand"),
    "streams-application-reset": Tool(f"{_TOOLS}StreamsResetter"),
    "streams-groups": Tool(f"{_TOOLS}streams.StreamsGroupCommand"),
    "topics": Tool(f"{_TOOLS}TopicCommand"),
    "transactional-copier": Tool(f"{_TOOLS}TransactionalMessageCopier", "--broker-list"),
    "transactions": Tool(f"{_TOOLS}TransactionsCommand", is_first=True),
    "verifiable-consumer": Tool(f"{_TOOLS}VerifiableConsumer"),
    "verifiable-producer": Tool(f"{_TOOLS}VerifiableProducer"),
    "verifiable-share-consumer": Tool(f"{_TOOLS}VerifiableShareConsumer"),
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, and how it is run and compared."""

    line: str
    _: KW_ONLY
    given: str = ""
    """The text that it reads from standard input."""
    until: str = ""
    """A regular expression: it is run again until its output has a match, within a time limit."""
    masks: tuple[str, ...] = ()
    """Regular expressions whose first group (or match) is no part of the comparison."""
    is_unordered: bool = False
    """True if the order of its lines is undefined."""
    is_compared: bool = True
    """True if its output is compared; a tool that was broken off may have printed anything."""
    drops: tuple[str, ...] = ()
    """Regular expressions of whole lines that are printed or not, as threads of the tool happen to run."""
    are_repeated: bool = False
    """True if it prints lines again and again."""
    seconds: float = 60.0
    starts: str = ""
    """A name: it is started, and runs until a later command line `ends` it."""
    ends: str = ""
    keeps: str = ""
    """A regular expression: later command lines get the first group of its match in place of `%kept`."""


FILES = {
    "aside.properties": "client.id=aside\n",
    "quick.properties": "default.api.timeout.ms=4000\nrequest.timeout.ms=3000\n",
    "odd.properties": "not.a.setting=1\nclient.id=odd\n",
    "topic.properties": "retention.ms=123456\nmax.message.bytes=654321\n",
    "move.json": """{"version": 1, "partitions": [
        {"topic": "moving", "partition": 0, "replicas": [2, 3]},
        {"topic": "moving", "partition": 1, "replicas": [3, 1]}]}""",
    "move-back.json": '{"version": 1, "partitions": [{"topic": "moving", "partition": 0, "replicas": [1, 2]}]}',
    "move-missing-topic.json": '{"version": 1, "partitions": [{"topic": "missing", "partition": 0, "replicas": [1]}]}',
    "move-missing-broker.json": """{"version": 1, "partitions": [
        {"topic": "moving", "partition": 0, "replicas": [1, 9]}]}""",
    "move-twice.json": """{"version": 1, "partitions": [
        {"topic": "moving", "partition": 0, "replicas": [1, 1]}]}""",
    "move-broken.json": '{"version": 1, "partitions": [',
    "move-version-2.json": '{"version": 2, "partitions": []}',
    "move-empty.json": '{"version": 1, "partitions": []}',
    "to-move.json": '{"version": 1, "topics": [{"topic": "moving"}]}',
    "to-move-missing.json": '{"version": 1, "topics": [{"topic": "missing"}]}',
    "delete.json": '{"version": 1, "partitions": [{"topic": "lines", "partition": 0, "offset": 2}]}',
    "delete-all.json": '{"version": 1, "partitions": [{"topic": "lines", "partition": 0, "offset": -1}]}',
    "delete-beyond.json": '{"version": 1, "partitions": [{"topic": "lines", "partition": 0, "offset": 999}]}',
    "delete-missing.json": '{"version": 1, "partitions": [{"topic": "missing", "partition": 0, "offset": 1}]}',
    "delete-twice.json": """{"version": 1, "partitions": [
        {"topic": "lines", "partition": 0, "offset": 1}, {"topic": "lines", "partition": 0, "offset": 1}]}""",
    "elect.json": '{"partitions": [{"topic": "plain", "partition": 0}, {"topic": "plain", "partition": 1}]}',
    "elect-missing.json": '{"partitions": [{"topic": "missing", "partition": 0}]}',
    "reset.csv": "lines,0,1\n",
    "reset-missing.csv": "missing,0,1\n",
    "reset-broken.csv": "lines,zero,1\n",
}
