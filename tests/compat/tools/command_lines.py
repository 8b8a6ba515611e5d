"""The command lines that are given to both clusters, in order, and what about their output is even.

A line begins with the name of Kafka's script without `kafka-` and `.sh`; `TOOLS` maps it to its class and to the option
that takes the cluster's address. `@name` is the path of a file of `FILES`, `%data1` the data directory of node 1,
`%brokers` and `%controllers` the addresses of the cluster. `:controller` after a tool's name has it connect to the
controllers.

The topics have assigned replicas, so that leaders are the same in both clusters; where a random choice of the cluster
shows all the same, `masks` make it even.
"""

from __future__ import annotations

from dataclasses import dataclass

_TOOLS = "org.apache.kafka.tools."


@dataclass(frozen=True, slots=True)
class Tool:
    """The class of a script, and its option for the cluster's address."""

    name: str
    option: str = "--bootstrap-server"
    controller_option: str = "--bootstrap-controller"
    is_first: bool = False
    """Whether the option stands before the subcommand."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line, and how it is run and compared."""

    line: str
    given: str = ""
    """What it reads from standard input."""
    until: str = ""
    """A regular expression: it is run again until its output has a match, within a time limit."""
    masks: tuple[str, ...] = ()
    """Regular expressions whose first group (or match) is no part of the comparison."""
    is_unordered: bool = False
    """Whether its lines have no order."""
    is_compared: bool = True
    """Whether what it prints is compared; one that was broken off may have printed anything."""
    are_repeated: bool = False
    """Whether it prints lines again and again."""
    seconds: float = 60.0
    starts: str = ""
    """A name: it is started, and runs until a later command line `ends` it."""
    ends: str = ""

    def __str__(self) -> str:
        return self.line


FILES = {
    "aside.properties": "client.id=aside\n",
    "quick.properties": "default.api.timeout.ms=4000\nrequest.timeout.ms=3000\n",
    "mark.properties": "not.a.setting=1\nclient.id=marked\n",
    "topic.properties": "retention.ms=123456\nmax.message.bytes=654321\n",
    "move.json": """{"version": 1, "partitions": [
        {"topic": "moving", "partition": 0, "replicas": [2, 3]}, {"topic": "moving", "partition": 1, "replicas": [3, 1]}]}""",
    "move-back.json": '{"version": 1, "partitions": [{"topic": "moving", "partition": 0, "replicas": [1, 2]}]}',
    "move-missing-topic.json": '{"version": 1, "partitions": [{"topic": "missing", "partition": 0, "replicas": [1]}]}',
    "move-missing-broker.json": '{"version": 1, "partitions": [{"topic": "moving", "partition": 0, "replicas": [1, 9]}]}',
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

_LOCAL_CONTROLLER = (r"Local controller (\d)",)
_QUORUM = (
    r"^(?:LeaderId|LeaderEpoch|HighWatermark|Max\w+): (.*)",
    r"^(\d) (?:ID|A{22}) \d+ ",
    r" (\d+ \d+) (?:TIME|-?\d+)",
    r" (\d+) ms ago",
    r"(Leader|Follower)$",
)
"""What depends on the leader of the quorum, and on how long it has led."""
_GENERATED = (r"(?:console|perf|share)-(?:share-)?consumer-(\d+)",)
"""Names of groups that tools make up."""
_TRIES = (r"tries=(\d+)", r"after (\d+) attempt")
_SIZE = (r"\"size\": (\d+)",)
_RATES = (r"\d[\d,]*\.\d+", r"(\d+) (?:ms|records/sec)")
"""Measured numbers."""
_COORDINATOR = (r"(broker-\d:PORT \(\d\))",)


def _command(line: str, **how: object) -> CommandLine:
    return CommandLine(line=line, **how)  # type: ignore[arg-type]


_c = _command

CLUSTER = (
    _c("cluster cluster-id"),
    _c("cluster:controller cluster-id"),
    _c("cluster list-endpoints"),
    _c("cluster list-endpoints --include-fenced-brokers"),
    _c("cluster:controller list-endpoints"),
    _c("cluster:controller list-endpoints --include-fenced-brokers"),
    _c("cluster unregister --id 9"),
    _c("cluster:controller unregister --id 9"),
    _c("cluster cluster-id --command-config @mark.properties"),
    _c("broker-api-versions", is_unordered=True),
    _c("broker-api-versions:controller", is_unordered=True),
    _c("features describe", masks=(r"Epoch: (\d+)",)),
    _c("features:controller describe", masks=(r"Epoch: (\d+)",)),
    _c("features version-mapping --release-version 4.1-IV0"),
    _c("features version-mapping --release-version 9.9"),
    _c("features feature-dependencies --feature transaction.version=2"),
    _c("features upgrade --feature group.version=1 --dry-run"),
    _c("features upgrade --feature group.version=9", masks=_LOCAL_CONTROLLER),
    _c("features upgrade --feature nonsense.version=1", masks=_LOCAL_CONTROLLER),
    _c("features upgrade --feature share.version=1"),
    _c("features upgrade --release-version 4.3"),
    _c("features downgrade --feature transaction.version=1 --dry-run"),
    _c("features downgrade --feature metadata.version=1", masks=_LOCAL_CONTROLLER),
    _c("features downgrade --metadata 3.2"),
    _c("features disable --feature metadata.version", masks=_LOCAL_CONTROLLER),
    _c("features disable --feature group.version --dry-run"),
    _c("features:controller upgrade --feature group.version=9 --dry-run", masks=_LOCAL_CONTROLLER),
    _c("metadata-quorum describe --status", masks=_QUORUM),
    _c("metadata-quorum:controller describe --status", masks=_QUORUM),
    _c("metadata-quorum describe --replication", masks=_QUORUM, is_unordered=True),
    _c("metadata-quorum:controller describe --replication", masks=_QUORUM, is_unordered=True),
    _c("metadata-quorum describe --replication --human-readable", masks=_QUORUM, is_unordered=True),
    _c("metadata-quorum describe"),
    _c(
        "metadata-quorum remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ",
        masks=(r"set of voters (.*)",),
    ),
    _c(
        "metadata-quorum remove-controller --controller-id 9 --controller-directory-id nonsense",
        masks=(r"set of voters (.*)",),
    ),
    _c(
        "metadata-quorum:controller remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ",
        masks=(r"set of voters (.*)",),
    ),
)

TOPICS = (
    _c("topics --list"),
    _c("topics --create --topic plain --replica-assignment 1:2:3,2:3:1,3:1:2"),
    _c("topics --create --topic plain --partitions 1"),
    _c("topics --create --topic plain --partitions 1 --if-not-exists"),
    _c(
        "topics --create --topic lines --replica-assignment 1:2:3 --config retention.ms=100000000 --config max.message.bytes=2000"
    ),
    _c("topics --create --topic moving --replica-assignment 1:2,2:3"),
    _c("topics --create --topic single --replica-assignment 2"),
    _c("topics --create --topic compacted --replica-assignment 1:2:3 --config cleanup.policy=compact"),
    _c("topics --create --topic in.transactions --replica-assignment 1:2:3"),
    _c("topics --create --topic copies --replica-assignment 1:2:3"),
    _c("topics --create --topic compat --replica-assignment 1:2:3"),
    _c("topics --create --topic producing --replica-assignment 1:2:3"),
    _c("topics --create --topic shared --replica-assignment 1:2:3"),
    _c("topics --create --topic with.dots_and_underscores --replica-assignment 1"),
    _c("topics --create --topic with_dots.and.underscores --replica-assignment 1"),
    _c("topics --create --topic 'not allowed'"),
    _c("topics --create --topic ."),
    _c(f"topics --create --topic {'x' * 250}"),
    _c("topics --create --topic many --replication-factor 9 --partitions 1"),
    _c("topics --create --topic none --replication-factor 0 --partitions 1"),
    _c("topics --create --topic none --partitions 0"),
    _c("topics --create --topic none --partitions 1 --config nonsense=1"),
    _c("topics --create --topic none --partitions 1 --config retention.ms=soon"),
    _c("topics --create --topic none --partitions 1 --config cleanup.policy=burn"),
    _c("topics --create --topic none --partitions 1 --config segment.bytes=1"),
    _c("topics --create --topic none --partitions 1 --config remote.storage.enable=true"),
    _c("topics --create --topic none --replica-assignment 1:1"),
    _c("topics --create --topic none --replica-assignment 1:9"),
    _c("topics --create --topic none --replica-assignment 1:2,3"),
    _c("topics --create --topic none --partitions 2 --replica-assignment 1:2"),
    _c("topics --create"),
    _c("topics --list"),
    _c("topics --list --topic 'p.*'"),
    _c("topics --list --exclude-internal"),
    _c("topics --describe --topic plain"),
    _c("topics --describe --topic lines"),
    _c("topics --describe --topic 'plain|lines' --partition-size-limit-per-response 1"),
    _c("topics --describe --topic missing"),
    _c("topics --describe --topic missing --if-exists"),
    _c("topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
    _c("topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ --if-exists"),
    _c("topics --describe --topics-with-overrides"),
    _c("topics --describe --under-replicated-partitions"),
    _c("topics --describe --unavailable-partitions"),
    _c("topics --describe --at-min-isr-partitions --topic 'plain|single'"),
    _c("topics --describe --under-min-isr-partitions --topic 'plain|single'"),
    _c("topics --describe --topic plain --exclude-internal --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
    _c("topics --alter --topic single --partitions 2 --replica-assignment 2,3"),
    _c("topics --alter --topic single --partitions 1"),
    _c("topics --alter --topic single --partitions 2"),
    _c("topics --alter --topic single --partitions 3 --replica-assignment 2,3,9"),
    _c("topics --alter --topic missing --partitions 2"),
    _c("topics --alter --topic missing --partitions 2 --if-exists"),
    _c("topics --describe --topic single"),
    _c("topics --create --topic gone --replica-assignment 1"),
    _c("topics --delete --topic gone"),
    _c("topics --delete --topic gone"),
    _c("topics --delete --topic gone --if-exists"),
    _c("topics --delete"),
    _c("topics --describe --topic gone"),
)

SETTINGS = (
    _c("configs --describe --topic lines"),
    _c("configs --describe --topic lines --all", is_unordered=True),
    _c("configs --describe --topic missing"),
    _c("configs --describe --topic missing --all"),
    _c("configs --describe --entity-type topics", is_unordered=True),
    _c("configs --alter --topic lines --add-config retention.ms=200000000,flush.ms=70000"),
    _c("configs --describe --topic lines", is_unordered=True),
    _c("configs --alter --topic lines --delete-config flush.ms"),
    _c("configs --alter --topic lines --delete-config flush.ms"),
    _c("configs --alter --topic lines --add-config-file @topic.properties"),
    _c("configs --describe --topic lines", is_unordered=True),
    _c("configs --alter --topic lines --add-config nonsense=1"),
    _c("configs --alter --topic lines --add-config retention.ms=soon"),
    _c("configs --alter --topic lines --add-config retention.ms=-5"),
    _c("configs --alter --topic lines --add-config cleanup.policy=[compact,delete]"),
    _c("configs --alter --topic lines --add-config cleanup.policy=delete"),
    _c("configs --alter --topic lines --add-config min.insync.replicas=0"),
    _c("configs --alter --topic missing --add-config retention.ms=1"),
    _c("configs --alter --topic lines"),
    _c("configs --describe --broker 1", is_unordered=True),
    _c("configs --describe --broker 1 --all", is_unordered=True),
    _c("configs --describe --broker-defaults"),
    _c("configs --describe --broker 9 --command-config @quick.properties"),
    _c("configs --alter --broker 1 --add-config leader.replication.throttled.rate=1000000"),
    _c("configs --alter --broker-defaults --add-config unclean.leader.election.enable=true"),
    _c("configs --describe --broker 1", is_unordered=True),
    _c("configs --describe --broker-defaults", is_unordered=True),
    _c("configs --alter --broker 1 --delete-config leader.replication.throttled.rate"),
    _c("configs --alter --broker-defaults --delete-config unclean.leader.election.enable"),
    _c("configs --alter --broker 1 --add-config node.id=2"),
    _c("configs --alter --broker 1 --add-config log.retention.ms=-7"),
    _c("configs --alter --broker 1 --add-config nonsense.here=1"),
    _c("configs --alter --broker 1 --delete-config log.retention.ms,nonsense.here"),
    _c(
        "configs --alter --broker 9 --add-config leader.replication.throttled.rate=1 --command-config @quick.properties"
    ),
    _c("configs --alter --broker-defaults --add-config log.cleaner.threads=2"),
    _c("configs --alter --broker-defaults --delete-config log.cleaner.threads"),
    _c("configs:controller --describe --broker 1", is_unordered=True),
    _c("configs:controller --alter --broker 1 --add-config leader.replication.throttled.rate=2000000"),
    _c("configs:controller --describe --broker 1", is_unordered=True),
    _c("configs:controller --alter --broker 1 --delete-config leader.replication.throttled.rate"),
    _c("configs:controller --alter --broker 1 --add-config nonsense.here=1"),
    _c("configs:controller --alter --broker 1 --delete-config nonsense.here"),
    _c("configs:controller --describe --topic lines"),
    _c("configs --describe --broker-logger 1", is_unordered=True),
    _c("configs --describe --group billing"),
    _c("configs --describe --group billing --all", is_unordered=True),
    _c("configs --alter --group billing --add-config consumer.session.timeout.ms=50000"),
    _c("configs --describe --group billing"),
    _c("configs --alter --group billing --add-config consumer.session.timeout.ms=1"),
    _c("configs --alter --group billing --add-config nonsense=1"),
    _c("configs --alter --group billing --delete-config consumer.session.timeout.ms"),
    _c("configs --describe --client-metrics slow"),
    _c("configs --describe --user alice"),
    _c("configs --describe --client-defaults"),
    _c("configs --alter --client aside --add-config consumer_byte_rate=1000000"),
    _c("configs --describe --ip 127.0.0.1"),
    _c("client-metrics --list"),
    _c("client-metrics --alter --name slow --metrics org.apache.kafka --interval 60000"),
    _c("client-metrics --describe --name slow"),
    _c("client-metrics --delete --name slow"),
    _c("client-metrics --alter --name slow --interval 1"),
    _c("acls --list"),
    _c("acls --add --allow-principal User:alice --operation Read --topic plain"),
    _c("delegation-tokens --describe --command-config @aside.properties"),
)

RECORDS = (
    _c(
        "console-producer --topic lines --sync --reader-property parse.key=true --reader-property key.separator=:",
        given="a:one\nb:two\nc:three\nd:four\ne:five\n",
    ),
    _c(
        "console-producer --topic lines --sync --reader-property parse.headers=true",
        given="h1:v1,h2:v2\twith headers\n",
    ),
    _c(
        "console-producer --topic lines --reader-property parse.key=true --reader-property key.separator=:",
        given="no\n",
    ),
    _c("console-producer --topic lines --sync", given="x" * 3000 + "\n"),
    _c("console-producer --topic 'not allowed' --sync --max-block-ms 5000", given="x\n"),
    _c("console-producer --topic lines --sync --request-required-acks 5", given="x\n"),
    _c("console-producer --topic compacted --sync", given="without a key\n"),
    _c("console-producer --topic lines --compression-codec rot13", given="x\n"),
    _c("console-producer --topic producing --sync --compression-codec zstd", given="a\nb\n"),
    _c(
        "console-consumer --topic lines --from-beginning --timeout-ms 5000 --formatter-property print.key=true "
        "--formatter-property print.offset=true --formatter-property print.partition=true "
        "--formatter-property print.headers=true --formatter-property print.timestamp=true"
    ),
    _c("console-consumer --topic lines --partition 0 --offset 3 --max-messages 2"),
    _c("console-consumer --topic lines --partition 0 --offset 999 --timeout-ms 4000"),
    _c("console-consumer --topic lines --partition 7 --offset 0 --timeout-ms 4000"),
    _c("console-consumer --topic lines --offset 0 --timeout-ms 4000"),
    _c("console-consumer --include 'li.*' --from-beginning --max-messages 2"),
    _c("console-consumer --topic lines --from-beginning --max-messages 1 --isolation-level read_committed"),
    _c("console-consumer --topic lines --isolation-level nonsense --max-messages 1"),
    _c("console-consumer --topic 'not allowed' --timeout-ms 3000"),
    _c("get-offsets --topic 'lines|plain'"),
    _c("get-offsets --topic lines --time earliest"),
    _c("get-offsets --topic lines --time max-timestamp"),
    _c("get-offsets --topic lines --time earliest-local"),
    _c("get-offsets --topic lines --time latest-tiered"),
    _c("get-offsets --topic lines --time earliest-pending-upload"),
    _c("get-offsets --topic lines --time 0"),
    _c("get-offsets --topic lines --time 99999999999999"),
    _c("get-offsets --topic lines --time soon"),
    _c("get-offsets --topic-partitions lines:0,plain:1-"),
    _c("get-offsets --topic-partitions lines:7"),
    _c("get-offsets --topic missing"),
    _c("get-offsets --topic plain --partitions 0,2 --exclude-internal-topics"),
    _c("delete-records --offset-json-file @delete.json"),
    _c("delete-records --offset-json-file @delete-beyond.json"),
    _c("delete-records --offset-json-file @delete-missing.json --command-config @quick.properties", masks=_TRIES),
    _c("delete-records --offset-json-file @delete-twice.json"),
    _c("get-offsets --topic lines --time earliest"),
    _c("console-consumer --topic lines --partition 0 --offset 0 --max-messages 2 --timeout-ms 3000"),
    _c("verifiable-producer --topic copies --max-messages 5 --acks -1"),
    _c("verifiable-producer --topic copies --max-messages 3 --value-prefix 7 --repeating-keys 2"),
    _c(
        "verifiable-consumer --topic copies --group-id verifying --max-messages 8 --reset-policy earliest --verbose",
        masks=(r"offsets_committed.*",),
    ),
    _c(
        "verifiable-consumer --topic copies --group-id verifying-new --group-protocol consumer --max-messages 8 "
        "--reset-policy earliest --verbose",
        masks=(r"offsets_committed.*",),
    ),
    _c("producer-perf-test --topic producing --num-records 200 --throughput -1 --record-size 100", masks=_RATES),
    _c(
        "producer-perf-test --topic in.transactions --num-records 50 --throughput -1 --record-size 20 "
        "--transactional-id perf --transaction-duration-ms 20",
        masks=_RATES,
    ),
    _c("producer-perf-test --topic producing --num-records 1 --throughput -1", masks=_RATES),
    _c("consumer-perf-test --topic producing --num-records 200 --timeout 20000", masks=(r"\d[\d.]*",)),
    _c("consumer-perf-test --topic lines --num-records 999 --timeout 3000", masks=(r"\d[\d.]*",)),
    _c("e2e-latency --topic producing --num-records 20 --producer-acks 1 --record-size 20", masks=(r"\d[\d.]*",)),
    _c("replica-verification --topics-include lines --report-interval-ms 500", seconds=4, are_repeated=True),
    _c(
        "transactional-copier --input-topic copies --input-partition 0 --output-topic in.transactions "
        "--max-messages 5 --consumer-group copying --transaction-size 2 --transactional-id copier",
        masks=(r"\"(?:progress|remaining|consumed)\" ?: ?(\"?\w+\"?)",),
    ),
    _c(
        "client-compatibility --topic compat --offsets-for-times-supported true --cluster-id-supported true "
        "--expect-record-too-large-exception true --num-cluster-nodes 3 --create-topics-supported true "
        "--describe-acls-supported true --describe-configs-supported true --idempotent-producer-supported true",
        is_unordered=True,
    ),
    _c(
        "dump-log --files %data1/lines-0/00000000000000000000.log --print-data-log --deep-iteration",
        masks=(r"crc: (\d+)", r"(?:producerId|partitionLeaderEpoch): (-?\d+)"),
    ),
    _c("dump-log --files %data1/lines-0/00000000000000000000.index,%data1/lines-0/00000000000000000000.timeindex"),
    _c("dump-log --files %data1/missing.log"),
    _c(
        "dump-log --files %data1/in.transactions-0/00000000000000000000.log --print-data-log --max-bytes 300",
        masks=(r"crc: (\d+)", r"(?:producerId|producerEpoch|partitionLeaderEpoch|coordinatorEpoch): (-?\d+)"),
    ),
)

GROUPS = (
    _c("groups --list", is_unordered=True, masks=_GENERATED),
    _c("console-consumer --topic lines --from-beginning --max-messages 3 --group billing"),
    _c(
        "console-consumer --topic producing --from-beginning --max-messages 2 --group newer "
        "--command-property group.protocol=consumer"
    ),
    _c("groups --list", is_unordered=True, masks=_GENERATED),
    _c("groups --list --consumer", is_unordered=True, masks=_GENERATED),
    _c("groups --list --group-type classic", is_unordered=True, masks=_GENERATED),
    _c("groups --list --protocol consumer", is_unordered=True, masks=_GENERATED),
    _c("groups --list --share"),
    _c("groups --list --streams"),
    _c("groups --list --group-type nonsense"),
    _c("consumer-groups --list", is_unordered=True, masks=_GENERATED),
    _c("consumer-groups --list --state", is_unordered=True, masks=_GENERATED),
    _c("consumer-groups --list --state Empty", is_unordered=True, masks=_GENERATED),
    _c("consumer-groups --list --state nonsense", masks=(r"Valid states are: (.*)",)),
    _c("consumer-groups --list --type", is_unordered=True, masks=_GENERATED),
    _c("consumer-groups --list --type consumer,classic", is_unordered=True, masks=_GENERATED),
    _c("consumer-groups --describe --group billing"),
    _c("consumer-groups --describe --group billing --verbose"),
    _c("consumer-groups --describe --group billing --state", masks=_COORDINATOR),
    _c("consumer-groups --describe --group billing --state --verbose", masks=_COORDINATOR),
    _c("consumer-groups --describe --group billing --members"),
    _c("consumer-groups --describe --group billing --members --verbose"),
    _c("consumer-groups --describe --group newer"),
    _c("consumer-groups --describe --group newer --state --verbose", masks=_COORDINATOR),
    _c("consumer-groups --describe --group missing"),
    _c("consumer-groups --describe --group missing --members"),
    _c("consumer-groups --describe --group missing --state"),
    _c("consumer-groups --describe --all-groups --state", is_unordered=True, masks=_COORDINATOR + _GENERATED),
    _c("consumer-groups --describe --group ''"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-earliest --dry-run"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-earliest --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-latest --export --dry-run"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --shift-by 2 --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --shift-by -100 --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-offset 3 --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-offset 999 --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic lines --to-current --execute"),
    _c("consumer-groups --reset-offsets --group billing --all-topics --to-datetime 2020-01-01T00:00:00.000 --execute"),
    _c("consumer-groups --reset-offsets --group billing --all-topics --by-duration PT0S --execute"),
    _c("consumer-groups --reset-offsets --group billing --from-file @reset.csv --execute"),
    _c("consumer-groups --reset-offsets --group billing --from-file @reset-missing.csv --execute"),
    _c("consumer-groups --reset-offsets --group billing --from-file @reset-broken.csv --execute"),
    _c("consumer-groups --reset-offsets --group billing --topic missing --to-earliest --execute --timeout 5000"),
    _c("consumer-groups --reset-offsets --group billing --topic lines:7 --to-earliest --execute --timeout 5000"),
    _c("consumer-groups --reset-offsets --group missing --topic lines --to-earliest --execute"),
    _c("consumer-groups --reset-offsets --group newer --topic producing:0 --to-offset 1 --execute"),
    _c("consumer-groups --describe --group missing"),
    _c("consumer-groups --delete-offsets --group billing --topic lines"),
    _c("consumer-groups --delete-offsets --group billing --topic missing"),
    _c("consumer-groups --delete-offsets --group nobody --topic lines"),
    _c("consumer-groups --describe --group billing"),
    _c("console-consumer --topic plain --group active", starts="active"),
    _c(
        "console-consumer --topic plain --group active-new --command-property group.protocol=consumer",
        starts="active-new",
    ),
    _c("consumer-groups --describe --group active --state", until="Stable +1|Stable *1", masks=_COORDINATOR),
    _c("consumer-groups --describe --group active-new --state", until="Stable +1", masks=_COORDINATOR),
    _c("consumer-groups --describe --group active", until="(?s)plain.*plain.*plain", is_unordered=True),
    _c("consumer-groups --describe --group active --members"),
    _c("consumer-groups --describe --group active --members --verbose"),
    _c("consumer-groups --describe --group active-new --members --verbose"),
    _c("consumer-groups --describe --group active-new --state --verbose", masks=_COORDINATOR),
    _c("consumer-groups --describe --group active-new --verbose", until="(?s)plain.*plain.*plain", is_unordered=True),
    _c("consumer-groups --reset-offsets --group active --topic plain --to-earliest --execute"),
    _c("consumer-groups --reset-offsets --group active-new --topic plain --to-earliest --execute"),
    _c("consumer-groups --delete --group active"),
    _c("consumer-groups --delete --group active-new"),
    _c("consumer-groups --delete-offsets --group active --topic plain"),
    _c("consumer-groups --delete-offsets --group active-new --topic plain"),
    _c("console-consumer --topic plain --group active", ends="active"),
    _c(
        "console-consumer --topic plain --group active-new --command-property group.protocol=consumer",
        ends="active-new",
    ),
    _c("consumer-groups --delete --group missing"),
    _c("consumer-groups --delete --group billing"),
    _c("consumer-groups --delete --group newer --group missing", is_unordered=True),
    _c("consumer-groups --describe --group billing"),
    _c("consumer-groups --validate-regex 'a.*'"),
    _c("consumer-groups --validate-regex '['"),
    _c("streams-groups --list"),
    _c("streams-groups --describe --group missing"),
    _c("streams-groups --describe --group verifying"),
    _c("streams-groups --delete --group missing"),
    _c("streams-groups --reset-offsets --group missing --all-input-topics --to-earliest --dry-run"),
    _c("streams-application-reset --application-id missing --input-topics plain --dry-run"),
    _c("streams-application-reset --application-id missing --input-topics missing"),
)

SHARE = (
    _c("share-groups --list"),
    _c("configs --alter --group sharing --add-config share.auto.offset.reset=earliest"),
    _c("console-producer --topic shared --sync", given="1\n2\n3\n4\n5\n"),
    _c("console-share-consumer --topic shared --group sharing --max-messages 5 --timeout-ms 20000"),
    _c("share-groups --list"),
    _c("share-groups --list --state"),
    _c("groups --list --share"),
    _c("share-groups --describe --group sharing", until=r"shared +0 +[05] +0"),
    _c("share-groups --describe --group sharing --verbose"),
    _c("share-groups --describe --group sharing --members"),
    _c("share-groups --describe --group sharing --state", masks=_COORDINATOR),
    _c("share-groups --describe --group sharing --state --verbose", masks=_COORDINATOR),
    _c("share-groups --describe --group missing"),
    _c("share-groups --describe --group missing --members"),
    _c("share-groups --describe --group verifying"),
    _c("share-groups --reset-offsets --group sharing --topic shared --to-earliest --dry-run"),
    _c("share-groups --reset-offsets --group sharing --topic shared --to-earliest --execute"),
    _c("share-groups --reset-offsets --group sharing --topic missing --to-earliest --execute --timeout 5000"),
    _c("share-groups --reset-offsets --group missing --topic shared --to-earliest --execute"),
    _c("share-groups --describe --group sharing"),
    _c("console-share-consumer --topic shared --group sharing --max-messages 2 --reject"),
    _c(
        "verifiable-share-consumer --topic shared --group-id sharing-more --max-messages 5 "
        "--offset-reset-strategy earliest --verbose",
        masks=(r"\"count\":(\d+)", r"offsets_acknowledged.*", r"records_consumed.*"),
    ),
    _c("share-consumer-perf-test --topic shared --num-records 5 --group perf --timeout 4000", masks=(r"\d[\d.]*",)),
    _c("share-groups --delete-offsets --group sharing --topic shared"),
    _c("share-groups --delete-offsets --group sharing --topic missing"),
    _c("share-groups --delete-offsets --group missing --topic shared"),
    _c("share-groups --delete --group sharing"),
    _c("share-groups --delete --group missing"),
    _c("share-groups --describe --group sharing"),
)

TRANSACTIONS = (
    _c("transactions list", until="perf", is_unordered=True, masks=(r"^\S+ (\d+ \d+) ",)),
    _c("transactions list --transactional-id-pattern 'pe.*'", masks=(r"^\S+ (\d+ \d+) ",)),
    _c("transactions list --transactional-id-pattern '['"),
    _c("transactions list --duration-filter 100000"),
    _c("transactions describe --transactional-id perf", masks=(r"^(\d) perf (\d+)", r"perf (\d+ \d+) ")),
    _c("transactions describe --transactional-id missing"),
    _c(
        "transactions describe-producers --topic in.transactions --partition 0",
        is_unordered=True,
        masks=(r"^(\d+ \d+ -?\d+ -?\d+) ",),
    ),
    _c(
        "transactions describe-producers --topic in.transactions --partition 0 --broker-id 2",
        is_unordered=True,
        masks=(r"^(\d+ \d+ -?\d+ -?\d+) ",),
    ),
    _c(
        "transactions --command-config @quick.properties describe-producers --topic in.transactions --partition 0 "
        "--broker-id 9",
        masks=_TRIES,
    ),
    _c(
        "transactions --command-config @quick.properties describe-producers --topic missing --partition 0", masks=_TRIES
    ),
    _c(
        "producer-perf-test --topic producing --num-records 100000 --throughput 20 --record-size 10 "
        "--transactional-id open --transaction-duration-ms 500000",
        starts="open",
    ),
    _c("transactions list --transactional-id-pattern open", until="Ongoing", masks=(r"^\S+ (\d+ \d+) ",)),
    _c(
        "transactions describe --transactional-id open", masks=(r"^(\d) open (\d+)", r"open (\d+ \d+) ", r"TIME (\d+) ")
    ),
    _c("transactions find-hanging --broker-id 1"),
    _c("transactions find-hanging --topic producing"),
    _c("transactions find-hanging --topic missing"),
    _c("transactions find-hanging --partition 0"),
    _c("transactions abort --topic plain --partition 0 --start-offset 99999"),
    _c(
        "transactions --command-config @quick.properties abort --topic missing --partition 0 --start-offset 0",
        masks=_TRIES,
    ),
    _c("transactions forceTerminateTransaction --transactional-id open"),
    _c("transactions forceTerminateTransaction --transactional-id missing"),
    _c(
        "transactions describe --transactional-id open",
        until="Complete",
        masks=(r"^(\d) open (\d+)", r"open (\d+ \d+) "),
    ),
    _c(
        "producer-perf-test --topic producing --num-records 100000 --throughput 20 --record-size 10 "
        "--transactional-id open --transaction-duration-ms 500000",
        ends="open",
        seconds=1,
        is_compared=False,
    ),
)

MOVES = (
    _c("reassign-partitions --list"),
    _c("reassign-partitions:controller --list"),
    _c(
        "reassign-partitions --generate --topics-to-move-json-file @to-move.json --broker-list 1,2,3", masks=(r"^\{.*",)
    ),
    _c("reassign-partitions --generate --topics-to-move-json-file @to-move-missing.json --broker-list 1,2"),
    _c("reassign-partitions --generate --topics-to-move-json-file @to-move.json --broker-list 9"),
    _c("reassign-partitions --execute --reassignment-json-file @move-missing-topic.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move-missing-broker.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move-twice.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move-broken.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move-version-2.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move-empty.json"),
    _c("reassign-partitions --execute --reassignment-json-file @move.json --throttle 100000000"),
    _c(
        "reassign-partitions --verify --reassignment-json-file @move.json --preserve-throttles",
        until="(?s)complete.*complete",
    ),
    _c("configs --describe --topic moving"),
    _c("configs --describe --broker 2", is_unordered=True),
    _c("reassign-partitions --verify --reassignment-json-file @move.json"),
    _c("configs --describe --topic moving"),
    _c("configs --describe --broker 2", is_unordered=True),
    _c("topics --describe --topic moving", until=r"(?s)Isr: 2,3|Isr: 3,2", masks=(r"Isr: (\S+)",)),
    _c("reassign-partitions --verify --reassignment-json-file @move-back.json"),
    _c("reassign-partitions --cancel --reassignment-json-file @move.json"),
    _c("reassign-partitions:controller --cancel --reassignment-json-file @move.json"),
    _c("reassign-partitions:controller --execute --reassignment-json-file @move.json"),
    _c("leader-election --election-type preferred --topic moving --partition 0"),
    _c("leader-election --election-type preferred --path-to-json-file @elect.json", is_unordered=True),
    _c("leader-election --election-type preferred --path-to-json-file @elect-missing.json"),
    _c("leader-election --election-type unclean --topic plain --partition 0"),
    _c("leader-election --election-type preferred --topic plain --partition 9"),
    _c("leader-election --election-type nonsense --all-topic-partitions"),
    _c("log-dirs --describe --topic-list lines,plain", masks=_SIZE),
    _c("log-dirs --describe --broker-list 1,9 --topic-list lines", masks=_SIZE),
    _c("log-dirs --describe --broker-list 2 --topic-list missing"),
    _c("topics --delete --topic 'moving|single'"),
    _c("topics --list"),
)

STORIES = {
    "cluster": CLUSTER,
    "topics": TOPICS,
    "settings": SETTINGS,
    "records": RECORDS,
    "groups": GROUPS,
    "share": SHARE,
    "transactions": TRANSACTIONS,
    "moves": MOVES,
}
