"""The command lines that are given to both clusters, in order, and what about their output is even.

A line begins with the name of Kafka's script without `kafka-` and `.sh`; `TOOLS` maps it to its class and to the option
that takes the cluster's address. `@name` is the path of a file of `FILES`, `%data1` the data directory of node 1.
`%kept` is what an earlier one `keeps`. `:controller` after a tool's name has it connect to the controllers.

The topics have assigned replicas, so that leaders are the same in both clusters; where a random choice of the cluster
shows all the same, `masks` make it even.
"""

from __future__ import annotations

from command_line import CommandLine as Line
from quota_lines import QUOTAS, WITHOUT_SECURITY

_LOCAL_CONTROLLER = (r"Local controller (\d)",)
_QUORUM = (
    r"^(?:LeaderId|LeaderEpoch|HighWatermark|Max\w+): (.*)",
    r"^(\d) (?:ID|A{22}) \d+ ",
    r" (\d+ \d+) (?:TIME|-?\d+)",
    r" (\d+) ms ago",
    r"(Leader|Follower)$",
)
"""Masks for output that depends on the leader of the quorum, and on how long it has led."""
_GENERATED = (r"(?:console|perf|share)-(?:share-)?consumer-(\d+)",)
"""Names of groups that tools make up."""
_TRIES = (r"tries=(\d+)", r"after (\d+) attempt", r"missing-0(?: on leader| error)?: (.*)")
"""A tool's text about a call that timed out, which depends on how far the call was by then."""
_SIZE = (r"\"size\": (\d+)",)
_TRANSACTION = (r"^(\d) (?:perf|open) ", r"(?:perf|open) (\d+ \d+) ", r"TIME (\d+)(?: |$)")
_THROUGHPUT = (r"\"avg_throughput\": ?([\d.]+)",)
_RATES = (r"\d[\d,]*\.\d+", r"(\d+) (?:ms|records/sec)")
"""Measured numbers."""
_COORDINATOR = (r"(broker-\d:PORT \(\d\))",)
_UNRESOLVED = (r"\{\"name\": \"partitions_assigned\", \"partitions\": \[\], .*",)
"""A consumer that hears the ids of topics from its coordinator before it knows their names."""


CLUSTER = (
    Line("cluster cluster-id"),
    Line("cluster:controller cluster-id"),
    Line("cluster list-endpoints"),
    Line("cluster list-endpoints --include-fenced-brokers"),
    Line("cluster:controller list-endpoints"),
    Line("cluster:controller list-endpoints --include-fenced-brokers"),
    Line("cluster unregister --id 9"),
    Line("cluster:controller unregister --id 9"),
    Line("cluster cluster-id --command-config @odd.properties"),
    Line("broker-api-versions", is_unordered=True),
    Line("broker-api-versions:controller", is_unordered=True),
    Line("features describe", masks=(r"Epoch: (\d+)",)),
    Line("features:controller describe", masks=(r"Epoch: (\d+)",)),
    Line("features version-mapping --release-version 4.1-IV0"),
    Line("features version-mapping --release-version 9.9"),
    Line("features feature-dependencies --feature transaction.version=2"),
    Line("features upgrade --feature group.version=1 --dry-run"),
    Line("features upgrade --feature group.version=9", masks=_LOCAL_CONTROLLER),
    Line("features upgrade --feature nonsense.version=1", masks=_LOCAL_CONTROLLER),
    Line("features upgrade --feature share.version=1"),
    # kraft.version 1 has to wait until every voter has told Kafka's controller which versions it supports.
    Line("features upgrade --release-version 4.3", until=r"(?s)\A(?!.*not all of the voters support it)"),
    Line("features downgrade --feature transaction.version=1 --dry-run"),
    Line("features downgrade --feature metadata.version=1", masks=_LOCAL_CONTROLLER),
    Line("features downgrade --metadata 3.2"),
    Line("features disable --feature metadata.version", masks=_LOCAL_CONTROLLER),
    Line("features disable --feature group.version --dry-run"),
    Line("features:controller upgrade --feature group.version=9 --dry-run", masks=_LOCAL_CONTROLLER),
    Line("metadata-quorum describe --status", masks=_QUORUM),
    Line("metadata-quorum:controller describe --status", masks=_QUORUM),
    Line("metadata-quorum describe --replication", masks=_QUORUM, is_unordered=True),
    Line("metadata-quorum:controller describe --replication", masks=_QUORUM, is_unordered=True),
    Line("metadata-quorum describe --replication --human-readable", masks=_QUORUM, is_unordered=True),
    Line("metadata-quorum describe"),
    Line(
        "metadata-quorum remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ",
        masks=(r"set of voters (.*)",),
    ),
    Line(
        "metadata-quorum remove-controller --controller-id 9 --controller-directory-id nonsense",
        masks=(r"set of voters (.*)",),
    ),
    Line(
        "metadata-quorum:controller remove-controller --controller-id 9 "
        "--controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ",
        masks=(r"set of voters (.*)",),
    ),
)

TOPICS = (
    Line("topics --list"),
    Line("topics --create --topic plain --replica-assignment 1:2:3,2:3:1,3:1:2"),
    Line("topics --create --topic plain --partitions 1"),
    Line("topics --create --topic plain --partitions 1 --if-not-exists"),
    Line(
        "topics --create --topic lines --replica-assignment 1:2:3 --config retention.ms=100000000 "
        "--config max.message.bytes=2000"
    ),
    Line("topics --create --topic moving --replica-assignment 1:2,2:3"),
    Line("topics --create --topic single --replica-assignment 2"),
    Line("topics --create --topic compacted --replica-assignment 1:2:3 --config cleanup.policy=compact"),
    Line("topics --create --topic in.transactions --replica-assignment 1:2:3"),
    Line("topics --create --topic copies --replica-assignment 1:2:3"),
    Line("topics --create --topic small --replica-assignment 1:2:3 --config max.message.bytes=2000"),
    Line("topics --create --topic compat --replica-assignment 1:2:3"),
    Line("topics --create --topic producing --replica-assignment 1:2:3"),
    Line("topics --create --topic shared --replica-assignment 1:2:3"),
    Line("topics --create --topic with.dots_and_underscores --replica-assignment 1"),
    Line("topics --create --topic with_dots.and.underscores --replica-assignment 1"),
    Line("topics --create --topic 'not allowed'"),
    Line("topics --create --topic ."),
    Line(f"topics --create --topic {'x' * 250}"),
    Line("topics --create --topic many --replication-factor 9 --partitions 1"),
    Line("topics --create --topic none --replication-factor 0 --partitions 1"),
    Line("topics --create --topic none --partitions 0"),
    Line("topics --create --topic none --partitions 1 --config nonsense=1"),
    Line("topics --create --topic none --partitions 1 --config retention.ms=soon"),
    Line("topics --create --topic none --partitions 1 --config cleanup.policy=burn"),
    Line("topics --create --topic none --partitions 1 --config segment.bytes=1"),
    Line("topics --create --topic none --partitions 1 --config remote.storage.enable=true"),
    Line("topics --create --topic none --replica-assignment 1:1"),
    Line("topics --create --topic none --replica-assignment 1:9"),
    Line("topics --create --topic none --replica-assignment 1:2,3"),
    Line("topics --create --topic none --partitions 2 --replica-assignment 1:2"),
    Line("topics --create"),
    Line("topics --list"),
    Line("topics --list --topic 'p.*'"),
    Line("topics --list --exclude-internal"),
    Line("topics --describe --topic plain"),
    Line("topics --describe --topic lines"),
    Line("topics --describe --topic 'plain|lines' --partition-size-limit-per-response 1"),
    Line("topics --describe --topic missing"),
    Line("topics --describe --topic missing --if-exists"),
    Line("topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
    Line("topics --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ --if-exists"),
    Line("topics --describe --topics-with-overrides"),
    Line("topics --describe --under-replicated-partitions"),
    Line("topics --describe --unavailable-partitions"),
    Line("topics --describe --at-min-isr-partitions --topic 'plain|single'"),
    Line("topics --describe --under-min-isr-partitions --topic 'plain|single'"),
    Line("topics --describe --topic plain --exclude-internal --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
    Line("topics --alter --topic single --partitions 2 --replica-assignment 2,3"),
    Line("topics --alter --topic single --partitions 1"),
    Line("topics --alter --topic single --partitions 2"),
    Line("topics --alter --topic single --partitions 3 --replica-assignment 2,3,9"),
    Line("topics --alter --topic missing --partitions 2"),
    Line("topics --alter --topic missing --partitions 2 --if-exists"),
    Line("topics --describe --topic single"),
    Line("topics --create --topic gone --replica-assignment 1"),
    Line("topics --delete --topic gone"),
    Line("topics --delete --topic gone"),
    Line("topics --delete --topic gone --if-exists"),
    Line("topics --delete"),
    Line("topics --describe --topic gone"),
)

SETTINGS = (
    Line("configs --describe --topic lines"),
    Line("configs --describe --topic lines --all", is_unordered=True),
    Line("configs --describe --topic missing"),
    Line("configs --describe --topic missing --all"),
    Line("configs --describe --entity-type topics", is_unordered=True),
    Line("configs --alter --topic lines --add-config retention.ms=200000000,flush.ms=70000"),
    Line("configs --describe --topic lines", is_unordered=True),
    Line("configs --alter --topic lines --delete-config flush.ms"),
    Line("configs --alter --topic lines --delete-config flush.ms"),
    Line("configs --alter --topic lines --add-config-file @topic.properties"),
    Line("configs --describe --topic lines", is_unordered=True),
    Line("configs --alter --topic lines --add-config nonsense=1"),
    Line("configs --alter --topic lines --add-config retention.ms=soon"),
    Line("configs --alter --topic lines --add-config retention.ms=-5"),
    Line("configs --alter --topic lines --add-config cleanup.policy=[compact,delete]"),
    Line("configs --alter --topic lines --add-config cleanup.policy=delete"),
    Line("configs --alter --topic lines --add-config min.insync.replicas=0"),
    Line("configs --alter --topic missing --add-config retention.ms=1"),
    Line("configs --alter --topic lines"),
    Line("configs --describe --broker 1", is_unordered=True),
    Line("configs --describe --broker 1 --all", is_unordered=True),
    Line("configs --describe --broker-defaults"),
    Line("configs --describe --broker 9 --command-config @quick.properties"),
    Line("configs --alter --broker 1 --add-config leader.replication.throttled.rate=1000000"),
    Line("configs --alter --broker-defaults --add-config unclean.leader.election.enable=true"),
    Line("configs --describe --broker 1", is_unordered=True),
    Line("configs --describe --broker-defaults", is_unordered=True),
    Line("configs --alter --broker 1 --delete-config leader.replication.throttled.rate"),
    Line("configs --alter --broker-defaults --delete-config unclean.leader.election.enable"),
    Line("configs --alter --broker 1 --add-config node.id=2"),
    Line("configs --alter --broker 1 --add-config log.retention.ms=-7"),
    Line("configs --alter --broker 1 --add-config nonsense.here=1"),
    Line("configs --alter --broker 1 --delete-config log.retention.ms,nonsense.here"),
    Line(
        "configs --alter --broker 9 --add-config leader.replication.throttled.rate=1 --command-config @quick.properties"
    ),
    Line("configs --alter --broker-defaults --add-config log.cleaner.threads=2"),
    Line("configs --alter --broker-defaults --delete-config log.cleaner.threads"),
    Line("configs:controller --describe --broker 1", is_unordered=True),
    Line("configs:controller --alter --broker 1 --add-config leader.replication.throttled.rate=2000000"),
    Line("configs:controller --describe --broker 1", is_unordered=True),
    Line("configs:controller --alter --broker 1 --delete-config leader.replication.throttled.rate"),
    Line("configs:controller --alter --broker 1 --add-config nonsense.here=1"),
    Line("configs:controller --alter --broker 1 --delete-config nonsense.here"),
    Line("configs:controller --describe --topic lines"),
    Line("configs --describe --broker-logger 1", is_unordered=True),
    Line("configs --describe --group billing"),
    Line("configs --describe --group billing --all", is_unordered=True),
    Line("configs --alter --group billing --add-config consumer.session.timeout.ms=50000"),
    Line("configs --describe --group billing"),
    Line("configs --alter --group billing --add-config consumer.session.timeout.ms=1"),
    Line("configs --alter --group billing --add-config nonsense=1"),
    Line("configs --alter --group billing --delete-config consumer.session.timeout.ms"),
    Line("configs --describe --client-metrics slow"),
    Line("client-metrics --list"),
    Line("client-metrics --alter --name slow --metrics org.apache.kafka --interval 60000"),
    Line("client-metrics --describe --name slow"),
    Line("client-metrics --delete --name slow"),
    Line("client-metrics --alter --name slow --interval 1"),
)

RECORDS = (
    Line(
        "console-producer --topic lines --sync --reader-property parse.key=true --reader-property key.separator=:",
        given="a:one\nb:two\nc:three\nd:four\ne:five\n",
    ),
    Line(
        "console-producer --topic lines --sync --reader-property parse.headers=true",
        given="h1:v1,h2:v2\twith headers\n",
    ),
    Line(
        "console-producer --topic lines --reader-property parse.key=true --reader-property key.separator=:",
        given="no\n",
    ),
    Line("console-producer --topic small --sync", given="x" * 3000 + "\n"),
    Line("console-producer --topic 'not allowed' --sync --max-block-ms 5000", given="x\n"),
    Line("console-producer --topic lines --sync --request-required-acks 5", given="x\n"),
    Line("console-producer --topic compacted --sync", given="without a key\n"),
    Line("console-producer --topic lines --compression-codec rot13", given="x\n"),
    Line("console-producer --topic producing --sync --compression-codec zstd", given="a\nb\n"),
    Line(
        "console-consumer --topic lines --from-beginning --timeout-ms 5000 --formatter-property print.key=true "
        "--formatter-property print.offset=true --formatter-property print.partition=true "
        "--formatter-property print.headers=true --formatter-property print.timestamp=true"
    ),
    Line("console-consumer --topic lines --partition 0 --offset 3 --max-messages 2"),
    Line("console-consumer --topic lines --partition 0 --offset 999 --timeout-ms 4000"),
    Line("console-consumer --topic lines --partition 7 --offset 0 --timeout-ms 4000"),
    Line("console-consumer --topic lines --offset 0 --timeout-ms 4000"),
    Line("console-consumer --include 'li.*' --from-beginning --max-messages 2"),
    Line("console-consumer --topic lines --from-beginning --max-messages 1 --isolation-level read_committed"),
    Line("console-consumer --topic lines --isolation-level nonsense --max-messages 1"),
    Line("console-consumer --topic 'not allowed' --timeout-ms 3000"),
    Line("get-offsets --topic 'lines|plain'"),
    Line("get-offsets --topic lines --time earliest"),
    Line("get-offsets --topic lines --time max-timestamp"),
    Line("get-offsets --topic lines --time earliest-local"),
    Line("get-offsets --topic lines --time latest-tiered"),
    Line("get-offsets --topic lines --time earliest-pending-upload"),
    Line("get-offsets --topic lines --time 0"),
    Line("get-offsets --topic lines --time 99999999999999"),
    Line("get-offsets --topic lines --time soon"),
    Line("get-offsets --topic-partitions lines:0,plain:1-"),
    Line("get-offsets --topic-partitions lines:7"),
    Line("get-offsets --topic missing"),
    Line("get-offsets --topic plain --partitions 0,2 --exclude-internal-topics"),
    Line("delete-records --offset-json-file @delete.json"),
    Line("delete-records --offset-json-file @delete-beyond.json"),
    Line("delete-records --offset-json-file @delete-missing.json --command-config @quick.properties", masks=_TRIES),
    Line("delete-records --offset-json-file @delete-twice.json"),
    Line("get-offsets --topic lines --time earliest"),
    Line("console-consumer --topic lines --partition 0 --offset 0 --max-messages 2 --timeout-ms 3000"),
    Line("verifiable-producer --topic copies --max-messages 5 --acks -1", masks=_THROUGHPUT),
    Line("verifiable-producer --topic copies --max-messages 3 --value-prefix 7 --repeating-keys 2", masks=_THROUGHPUT),
    Line(
        "verifiable-consumer --topic copies --group-id verifying --max-messages 8 --reset-policy earliest --verbose",
        masks=(r"offsets_committed.*",),
    ),
    Line(
        "verifiable-consumer --topic copies --group-id verifying-new --group-protocol consumer --max-messages 8 "
        "--reset-policy earliest --verbose",
        masks=(r"offsets_committed.*",),
        drops=_UNRESOLVED,
    ),
    Line("producer-perf-test --topic producing --num-records 200 --throughput -1 --record-size 100", masks=_RATES),
    Line(
        "producer-perf-test --topic in.transactions --num-records 1 --throughput -1 --record-size 20 "
        "--transactional-id perf --transaction-duration-ms 20",
        masks=_RATES,
    ),
    Line(
        "producer-perf-test --topic in.transactions --num-records 50 --throughput -1 --record-size 20 "
        "--transactional-id perf --transaction-duration-ms 20",
        masks=_RATES,
    ),
    Line("producer-perf-test --topic producing --num-records 1 --throughput -1", masks=_RATES),
    Line("consumer-perf-test --topic producing --num-records 200 --timeout 20000", masks=(r"\d[\d.]*",)),
    Line("consumer-perf-test --topic lines --num-records 999 --timeout 3000", masks=(r"\d[\d.]*",)),
    Line("e2e-latency --topic producing --num-records 20 --producer-acks 1 --record-size 20", masks=(r"\d[\d.]*",)),
    Line("replica-verification --topics-include lines --report-interval-ms 200", seconds=10, are_repeated=True),
    Line(
        "transactional-copier --input-topic copies --input-partition 0 --output-topic in.transactions "
        "--max-messages 5 --consumer-group copying --transaction-size 2 --transactional-id copier",
        masks=(r"\"(?:progress|remaining|consumed)\" ?: ?(\"?\w+\"?)",),
    ),
    Line(
        "client-compatibility --topic compat --offsets-for-times-supported true --cluster-id-supported true "
        "--expect-record-too-large-exception false --num-cluster-nodes 3 --create-topics-supported true "
        "--describe-acls-supported true --describe-configs-supported true --idempotent-producer-supported true",
        is_unordered=True,
    ),
    Line(
        "dump-log --files %data1/lines-0/00000000000000000000.log --print-data-log --deep-iteration",
        masks=(r"crc: (\d+)", r"(?:producerId|partitionLeaderEpoch): (-?\d+)"),
    ),
    Line("dump-log --files %data1/lines-0/00000000000000000000.index,%data1/lines-0/00000000000000000000.timeindex"),
    Line("dump-log --files %data1/missing.log"),
    Line(
        "dump-log --files %data1/in.transactions-0/00000000000000000000.log --print-data-log --max-bytes 170",
        masks=(r"crc: (\d+)", r"(?:producerId|producerEpoch|partitionLeaderEpoch|coordinatorEpoch): (-?\d+)"),
    ),
)

GROUPS = (
    Line("groups --list", is_unordered=True, masks=_GENERATED),
    Line("console-consumer --topic lines --from-beginning --max-messages 3 --group billing"),
    Line(
        "console-consumer --topic producing --from-beginning --max-messages 2 --group newer "
        "--command-property group.protocol=consumer"
    ),
    Line("groups --list", is_unordered=True, masks=_GENERATED),
    Line("groups --list --consumer", is_unordered=True, masks=_GENERATED),
    Line("groups --list --group-type classic", is_unordered=True, masks=_GENERATED),
    Line("groups --list --protocol consumer", is_unordered=True, masks=_GENERATED),
    Line("groups --list --share"),
    Line("groups --list --streams"),
    Line("groups --list --group-type nonsense"),
    Line("consumer-groups --list", is_unordered=True, masks=_GENERATED),
    Line("consumer-groups --list --state", is_unordered=True, masks=_GENERATED),
    Line("consumer-groups --list --state Empty", is_unordered=True, masks=_GENERATED),
    Line("consumer-groups --list --state nonsense", masks=(r"Valid states are: (.*)",)),
    Line("consumer-groups --list --type", is_unordered=True, masks=_GENERATED),
    Line("consumer-groups --list --type consumer,classic", is_unordered=True, masks=_GENERATED),
    Line("consumer-groups --describe --group billing"),
    Line("consumer-groups --describe --group billing --verbose"),
    Line("consumer-groups --describe --group billing --state", masks=_COORDINATOR),
    Line("consumer-groups --describe --group billing --state --verbose", masks=_COORDINATOR),
    Line("consumer-groups --describe --group billing --members"),
    Line("consumer-groups --describe --group billing --members --verbose"),
    Line("consumer-groups --describe --group newer"),
    Line("consumer-groups --describe --group newer --state --verbose", masks=_COORDINATOR),
    Line("consumer-groups --describe --group missing"),
    Line("consumer-groups --describe --group missing --members"),
    Line("consumer-groups --describe --group missing --state"),
    Line("consumer-groups --describe --all-groups --state", is_unordered=True, masks=_COORDINATOR + _GENERATED),
    Line("consumer-groups --describe --group ''"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-earliest --dry-run"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-earliest --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-latest --export --dry-run"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --shift-by 2 --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --shift-by -100 --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-offset 3 --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-offset 999 --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic lines --to-current --execute"),
    Line(
        "consumer-groups --reset-offsets --group billing --all-topics --to-datetime 2020-01-01T00:00:00.000 --execute"
    ),
    Line("consumer-groups --reset-offsets --group billing --all-topics --by-duration PT0S --execute"),
    Line("consumer-groups --reset-offsets --group billing --from-file @reset.csv --execute"),
    Line("consumer-groups --reset-offsets --group billing --from-file @reset-missing.csv --execute"),
    Line("consumer-groups --reset-offsets --group billing --from-file @reset-broken.csv --execute"),
    Line("consumer-groups --reset-offsets --group billing --topic missing --to-earliest --execute --timeout 5000"),
    Line("consumer-groups --reset-offsets --group billing --topic lines:7 --to-earliest --execute --timeout 5000"),
    Line("consumer-groups --reset-offsets --group missing --topic lines --to-earliest --execute"),
    Line("consumer-groups --reset-offsets --group newer --topic producing:0 --to-offset 1 --execute"),
    Line("consumer-groups --describe --group missing"),
    Line("consumer-groups --delete-offsets --group billing --topic lines"),
    Line("consumer-groups --delete-offsets --group billing --topic missing"),
    Line("consumer-groups --delete-offsets --group nobody --topic lines"),
    Line("consumer-groups --describe --group billing"),
    Line("console-consumer --topic plain --group active", starts="active"),
    Line(
        "console-consumer --topic plain --group active-new --command-property group.protocol=consumer",
        starts="active-new",
    ),
    Line("consumer-groups --describe --group active --state", until="Stable +1|Stable *1", masks=_COORDINATOR),
    Line("consumer-groups --describe --group active-new --state", until="Stable +1", masks=_COORDINATOR),
    Line("consumer-groups --describe --group active", until="(?s)plain.*plain.*plain", is_unordered=True),
    Line("consumer-groups --describe --group active --members"),
    Line("consumer-groups --describe --group active --members --verbose"),
    Line("consumer-groups --describe --group active-new --members --verbose"),
    Line("consumer-groups --describe --group active-new --state --verbose", masks=_COORDINATOR),
    Line("consumer-groups --describe --group active-new --verbose", until="(?s)plain.*plain.*plain", is_unordered=True),
    Line("consumer-groups --reset-offsets --group active --topic plain --to-earliest --execute"),
    Line("consumer-groups --reset-offsets --group active-new --topic plain --to-earliest --execute"),
    Line("consumer-groups --delete --group active"),
    Line("consumer-groups --delete --group active-new"),
    Line("consumer-groups --delete-offsets --group active --topic plain"),
    Line("consumer-groups --delete-offsets --group active-new --topic plain"),
    Line("console-consumer --topic plain --group active", ends="active"),
    Line(
        "console-consumer --topic plain --group active-new --command-property group.protocol=consumer",
        ends="active-new",
    ),
    Line("consumer-groups --delete --group missing"),
    Line("consumer-groups --delete --group billing"),
    Line("consumer-groups --delete --group newer --group missing", is_unordered=True),
    Line("consumer-groups --describe --group billing"),
    Line("consumer-groups --validate-regex 'a.*'"),
    Line("consumer-groups --validate-regex '['"),
    Line("streams-groups --list"),
    Line("streams-groups --describe --group missing"),
    Line("streams-groups --describe --group verifying"),
    Line("streams-groups --delete --group missing"),
    Line("streams-groups --reset-offsets --group missing --all-input-topics --to-earliest --dry-run"),
    Line("streams-application-reset --application-id missing --input-topics plain --dry-run"),
    Line("streams-application-reset --application-id missing --input-topics missing"),
)

SHARE = (
    Line("share-groups --list"),
    Line("configs --alter --group sharing --add-config share.auto.offset.reset=earliest"),
    Line("console-producer --topic shared --sync", given="1\n2\n3\n4\n5\n"),
    Line("console-share-consumer --topic shared --group sharing --max-messages 5 --timeout-ms 20000"),
    Line("share-groups --list"),
    Line("share-groups --list --state"),
    Line("groups --list --share"),
    Line("share-groups --describe --group sharing", until=r"shared +0 +[05] +0"),
    Line("share-groups --describe --group sharing --verbose"),
    Line("share-groups --describe --group sharing --members"),
    Line("share-groups --describe --group sharing --state", masks=_COORDINATOR),
    Line("share-groups --describe --group sharing --state --verbose", masks=_COORDINATOR),
    Line("share-groups --describe --group missing"),
    Line("share-groups --describe --group missing --members"),
    Line("share-groups --describe --group verifying"),
    Line("share-groups --reset-offsets --group sharing --topic shared --to-earliest --dry-run"),
    Line("share-groups --reset-offsets --group sharing --topic shared --to-earliest --execute"),
    Line("share-groups --reset-offsets --group sharing --topic missing --to-earliest --execute --timeout 5000"),
    Line("share-groups --reset-offsets --group missing --topic shared --to-earliest --execute"),
    Line("share-groups --describe --group sharing"),
    Line("console-share-consumer --topic shared --group sharing --max-messages 2 --reject"),
    Line(
        "verifiable-share-consumer --topic shared --group-id sharing-more --max-messages 5 "
        "--offset-reset-strategy earliest --verbose",
        masks=(r"\"count\": ?(\d+)", r"offsets_acknowledged.*", r"records_consumed.*"),
    ),
    Line("share-consumer-perf-test --topic shared --num-records 5 --group perf --timeout 4000", masks=(r"\d[\d.]*",)),
    Line("share-groups --delete-offsets --group sharing --topic shared"),
    Line("share-groups --delete-offsets --group sharing --topic missing"),
    Line("share-groups --delete-offsets --group missing --topic shared"),
    Line("share-groups --delete --group sharing"),
    Line("share-groups --delete --group missing"),
    Line("share-groups --describe --group sharing"),
)

TRANSACTIONS = (
    Line("transactions list", until="perf", is_unordered=True, masks=(r"^\S+ (\d+ \d+) ",)),
    Line("transactions list --transactional-id-pattern 'pe.*'", masks=(r"^\S+ (\d+ \d+) ",)),
    Line("transactions list --transactional-id-pattern '['", masks=(r"sent to broker (\d)",)),
    Line("transactions list --duration-filter 100000"),
    Line("transactions describe --transactional-id perf", masks=_TRANSACTION),
    Line("transactions describe --transactional-id missing"),
    Line(
        "transactions describe-producers --topic in.transactions --partition 0",
        is_unordered=True,
        masks=(r"^(\d+ \d+ -?\d+ -?\d+) ",),
    ),
    Line(
        "transactions describe-producers --topic in.transactions --partition 0 --broker-id 2",
        is_unordered=True,
        masks=(r"^(\d+ \d+ -?\d+ -?\d+) ",),
    ),
    Line(
        "transactions --command-config @quick.properties describe-producers --topic in.transactions --partition 0 "
        "--broker-id 9",
        masks=_TRIES,
    ),
    Line(
        "transactions --command-config @quick.properties describe-producers --topic missing --partition 0", masks=_TRIES
    ),
    Line(
        "producer-perf-test --topic producing --num-records 100000 --throughput 20 --record-size 10 "
        "--transactional-id open --transaction-duration-ms 500000",
        starts="open",
    ),
    Line("transactions list --transactional-id-pattern open", until="Ongoing", masks=(r"^\S+ (\d+ \d+) ",)),
    Line("transactions describe --transactional-id open", masks=_TRANSACTION),
    Line("transactions find-hanging --broker-id 1"),
    Line("transactions find-hanging --topic producing"),
    Line("transactions find-hanging --topic missing"),
    Line("transactions find-hanging --partition 0"),
    Line("transactions abort --topic plain --partition 0 --start-offset 99999"),
    Line(
        "transactions --command-config @quick.properties abort --topic missing --partition 0 --start-offset 0",
        masks=_TRIES,
    ),
    Line("transactions forceTerminateTransaction --transactional-id open"),
    Line("transactions forceTerminateTransaction --transactional-id missing"),
    Line(
        "transactions describe --transactional-id open",
        until="Complete",
        masks=_TRANSACTION,
    ),
    Line(
        "producer-perf-test --topic producing --num-records 100000 --throughput 20 --record-size 10 "
        "--transactional-id open --transaction-duration-ms 500000",
        ends="open",
        seconds=1,
        is_compared=False,
    ),
)

MOVES = (
    Line("reassign-partitions --list"),
    Line("reassign-partitions:controller --list"),
    Line(
        "reassign-partitions --generate --topics-to-move-json-file @to-move.json --broker-list 1,2,3", masks=(r"^\{.*",)
    ),
    Line("reassign-partitions --generate --topics-to-move-json-file @to-move-missing.json --broker-list 1,2"),
    Line("reassign-partitions --generate --topics-to-move-json-file @to-move.json --broker-list 9"),
    Line("reassign-partitions --execute --reassignment-json-file @move-missing-topic.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move-missing-broker.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move-twice.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move-broken.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move-version-2.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move-empty.json"),
    Line("reassign-partitions --execute --reassignment-json-file @move.json --throttle 100000000"),
    Line(
        "reassign-partitions --verify --reassignment-json-file @move.json --preserve-throttles",
        until="(?s)complete.*complete",
    ),
    Line("configs --describe --topic moving"),
    Line("configs --describe --broker 2", is_unordered=True),
    Line("reassign-partitions --verify --reassignment-json-file @move.json"),
    Line("configs --describe --topic moving"),
    Line("configs --describe --broker 2", is_unordered=True),
    Line("topics --describe --topic moving", until=r"(?s)Isr: 2,3|Isr: 3,2", masks=(r"Isr: (\S+)",)),
    Line("reassign-partitions --verify --reassignment-json-file @move-back.json"),
    Line("reassign-partitions --cancel --reassignment-json-file @move.json"),
    Line("reassign-partitions:controller --cancel --reassignment-json-file @move.json"),
    Line("reassign-partitions:controller --execute --reassignment-json-file @move.json"),
    Line("leader-election --election-type preferred --topic moving --partition 0"),
    Line("leader-election --election-type preferred --path-to-json-file @elect.json", is_unordered=True),
    Line("leader-election --election-type preferred --path-to-json-file @elect-missing.json"),
    Line("leader-election --election-type unclean --topic plain --partition 0"),
    Line("leader-election --election-type preferred --topic plain --partition 9"),
    Line("leader-election --election-type nonsense --all-topic-partitions"),
    Line("log-dirs --describe --topic-list lines,plain", masks=_SIZE),
    Line("log-dirs --describe --broker-list 1,9 --topic-list lines", masks=_SIZE),
    Line("log-dirs --describe --broker-list 2 --topic-list missing"),
    Line("topics --delete --topic 'moving|single'"),
    Line("topics --list"),
)

STORIES = {
    "cluster": CLUSTER,
    "topics": TOPICS,
    "settings": SETTINGS,
    "without-security": WITHOUT_SECURITY,
    "records": RECORDS,
    "groups": GROUPS,
    "share": SHARE,
    "transactions": TRANSACTIONS,
    "moves": MOVES,
    "quotas": QUOTAS,
}
