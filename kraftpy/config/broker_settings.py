"""The table of broker settings that this broker acts on, under Kafka's names.

Each entry is a line `name type default allowed`, followed by an indented line of documentation. Defaults are those of
Kafka 4.3; `a->b` means that Kafka's default is `a` and ours is `b`, and they differ only to make a single node
convenient. `none` means no default, `null` no value, `""` an empty value, `"none"` that word. `allowed` is a range
`low..high`, a set of values `{a,b}` (`~{a,b}` ignores case), or absent. `settings.parse_table` parses this.
"""

from __future__ import annotations

BROKER_TABLE = """
# Identity and roles
node.id                                          int      none->1 0..
    The node ID, unique in the cluster.
broker.id                                        int      -1
    The broker ID, an older name for node.id; they must be equal if both are set.
broker.rack                                      string   null
    Rack of the broker, used in rack-aware replica placement and replica selection.
kraftpy.broker.host                              string   null
    Name of the host, if several brokers share it: replicas of a partition are spread over hosts first, then racks.
process.roles                                    list     none->broker,controller {broker,controller}
    The roles of this process: broker, controller, or both.

# Authorization
authorizer.class.name                            string   ""
    Class that authorizes requests; empty for none, which allows every client everything.
super.users                                      string   ""
    Principals that may do everything, as User:name, separated by semicolons.
allow.everyone.if.no.acl.found                   boolean  false
    Whether everyone has access to resources that no ACL covers.
kraftpy.console.listener                         string   null
    Address, as host:port or https://host:port, of the node's console (extra console); by default, nowhere.
kraftpy.console.config                           string   null
    Properties file of the node's console: its settings as a client of the node, and who may sign in.
kraftpy.console.allow.changes                    boolean  false
    Whether everyone on this machine may change the cluster in the console, without a sign-in.
kraftpy.audit.log.file                           string   null
    File of the audit log: a line of JSON for each refusal and administrative operation. Defaults to the broker's log.
kraftpy.audit.log.max.bytes                      long     104857600 4096..
    Size at which a new file of the audit log begins; nine older ones are kept.
kraftpy.metrics.listener                         string   null
    Address, as host:port or https://host:port, at which monitors read metrics and health; by default, nowhere.
kraftpy.metrics.open.health                      boolean  false
    Whether /livez and /readyz are answered without a login.
kraftpy.metrics.users.file                       string   null
    File of the users who may read metrics and health, as kraftpy user hash prints them; by default, everyone may.

# Listeners and connections
listeners                                        list     PLAINTEXT://:9092->PLAINTEXT://127.0.0.1:9092
    Listeners to bind, as NAME://host:port; port 0 picks any free port.
advertised.listeners                             list     null
    Listener addresses that the broker advertises to clients; if not set, the value of listeners.
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
    Map of listener names to security protocols, as NAME:PROTOCOL.
controller.listener.names                        list     none->CONTROLLER
    Names of the listeners used by the controller.
inter.broker.listener.name                       string   null
    Name of the listener used for communication between brokers.
security.inter.broker.protocol                   string   PLAINTEXT {PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL}
    Security protocol between brokers, if inter.broker.listener.name is not set.
socket.listen.backlog.size                       int      50 1..
    Maximum number of pending connections on a listening socket.
socket.request.max.bytes                         int      104857600 1..
    Maximum number of bytes in a request; a larger one closes the connection.
queued.max.request.bytes                         long     -1->268435456
    Maximum memory of all requests and unread responses; -1 means no limit; by default, at least two maximal requests.
connections.max.idle.ms                          long     600000
    Idle connections timeout: connections idle, or not reading their responses, for this long are closed.
max.connections                                  int      2147483647 0..
    Maximum number of connections, also limited by the number of file descriptors.
max.connections.per.ip                           int      2147483647 0..
    Maximum number of connections from each IP address.
max.connections.per.ip.overrides                 string   ""
    Overrides of the maximum number of connections for IPs or hosts, as host:count, comma-separated.
max.connection.creation.rate                     int      2147483647 0..
    Maximum number of connections created per second; further ones wait. A listener can have its own rate.
quota.window.num                                 int      11 1..
    Number of samples from which the rates of client quotas are computed.
quota.window.size.seconds                        int      1 1..
    Time span of each sample of client quotas.
controller.quota.window.num                      int      11 1..
    Number of samples whose tokens fit into the bucket of a controller mutation quota.
controller.quota.window.size.seconds             int      1 1..
    Time span of each such sample.

# Log directories
log.dir                                          list     /tmp/kafka-logs->./kraftpy-data
    The directory in which log data is kept, if log.dirs is not set.
log.dirs                                         list     null
    Comma-separated list of the directories in which log data is kept.
cordoned.log.dirs                                list     ""
    Directories of log.dirs that get no new replicas; * stands for all.
num.recovery.threads.per.data.dir                int      2 1..
    Threads per data directory for log recovery at startup and flushing at shutdown.

# The metadata quorum
controller.quorum.voters                         list     "" non-empty
    Map of id to endpoint of the quorum's voters, as a list of id@host:port.
controller.quorum.bootstrap.servers              list     "" non-empty
    List of endpoints from which to discover the metadata quorum, as host:port.
controller.quorum.auto.join.enable               boolean  false
    Let this controller add itself to the voters of a quorum that was formatted with its first voters.
controller.quorum.election.timeout.ms            int      1000 50..
    Maximum time to wait for votes before starting a new election.
controller.quorum.fetch.timeout.ms               int      2000 100..
    Maximum time without a message from the leader before a new election starts.
metadata.log.max.record.bytes.between.snapshots  long     20971520 1..
    Maximum bytes in the metadata log between the latest snapshot and the end of the log before a new snapshot is taken.
broker.heartbeat.interval.ms                     int      2000 10..
    Interval between a broker's heartbeats to the controller.
broker.session.timeout.ms                        int      9000 20..
    Time without heartbeats after which the controller fences a broker.
initial.broker.registration.timeout.ms           int      60000 1..
    Maximum time to wait for the initial registration with the controller quorum.
request.timeout.ms                               int      30000 1..
    Maximum time to wait for the response to a request of the broker.
controlled.shutdown.enable                       boolean  true
    Enable controlled shutdown: move leadership to other brokers before stopping.
auto.leader.rebalance.enable                     boolean  true
    Enable automatic leader balancing: move leadership back to preferred replicas.
leader.imbalance.check.interval.seconds          long     300 1..
    Interval between checks for leader imbalance.

# Settings that Kafka does not have
kraftpy.quorum.secret                            password null
    Secret with which the cluster's nodes authenticate each other; the same on every node, at least 16 characters.
kraftpy.quorum.secret.file                       string   null
    File that contains the secret; an alternative to kraftpy.quorum.secret.
kraftpy.metadata.cache.max.bytes                 long     none->33554432 0..
    Maximum memory of cached metadata responses for all topics; 0 disables the cache.
kraftpy.request.receive.timeout.ms               int      none->60000 1..
    Maximum time for a request to arrive completely; larger requests get this time for each MiB.
kraftpy.broker.disconnect.grace.ms               int      none->100 0..
    Time in which a disconnected broker must reconnect to the controller before it is fenced.
kraftpy.flush.before.ack                         boolean  none->false
    Sync records to disk before they are acknowledged, including replicated ones.
kraftpy.max.configs.bytes                        long     none->33554432 0..
    Maximum memory of all settings of topics, brokers and groups; changes that would exceed it are refused.

# Delegation tokens (KIP-48)
delegation.token.secret.key                      password null
    Secret from which delegation tokens are made; the same on every node. If not set, there are no delegation tokens.
delegation.token.max.lifetime.ms                 long     604800000 1..
    Maximum lifetime of a delegation token; renewals do not extend it.
delegation.token.expiry.time.ms                  long     86400000 1..
    Time from a delegation token's creation or renewal until it expires.
delegation.token.expiry.check.interval.ms        long     3600000 1..
    Interval between removals of expired delegation tokens.

# Topics
auto.create.topics.enable                        boolean  true
    Enable automatic creation of topics.
delete.topic.enable                              boolean  true
    Enable deletion of topics.
kraftpy.max.partitions                           int      none->50000 1..
    Maximum number of partitions in the cluster; requests that would exceed it are refused.
num.partitions                                   int      1 1..
    Default number of partitions per topic.
default.replication.factor                       int      1
    Default replication factor of topics.
min.insync.replicas                              int      1 1..
    Minimum number of in-sync replicas that must have a record for a write with acks=all to succeed.
unclean.leader.election.enable                   boolean  false
    Allow replicas that are not in sync to be elected leader as a last resort, even though data may be lost.
message.max.bytes                                int      1048588 0..
    The largest record batch size allowed (after compression).
kraftpy.batch.max.bytes                          int      none->16777216 1..
    Upper limit of max.message.bytes, unless message.max.bytes is larger; writing such a batch delays others.
kraftpy.batch.max.records                        int      none->1048576 1..
    Maximum number of records in a producer's batch.
kraftpy.batch.max.headers                        int      none->4194304 0..
    Maximum number of record headers in a producer's batch, if its records are inspected.
kraftpy.batch.max.expanded.bytes                 int      none->134217728 1..
    Maximum decompressed size of a batch, if its records are inspected.
compression.type                                 string   producer {uncompressed,zstd,lz4,snappy,gzip,producer}
    Compression type of stored batches; producer retains the producer's.
compression.gzip.level                           int      -1 -1,1..9
    Compression level if compression.type is gzip; -1 means the default.
compression.lz4.level                            int      9 1..17
    Compression level if compression.type is lz4.
compression.zstd.level                           int      3 -131072..22
    Compression level if compression.type is zstd.

# The log
log.segment.bytes                                int      1073741824 1048576..
    Maximum size of a log segment file.
log.roll.ms                                      long     null
    Maximum time before a new segment is rolled out; takes precedence over log.roll.hours.
log.roll.hours                                   int      168 1..
    Maximum time before a new segment is rolled out.
log.roll.jitter.ms                               long     null
    Maximum random jitter to subtract from log.roll.ms; takes precedence over log.roll.jitter.hours.
log.roll.jitter.hours                            int      0 0..
    Maximum random jitter to subtract from log.roll.hours.
log.retention.bytes                              long     -1
    Maximum size of a partition before old segments are deleted; -1 means no limit.
log.retention.ms                                 long     null
    Time to keep a segment before it is deleted; takes precedence over the minutes; -1 means no limit.
log.retention.minutes                            int      null
    Time to keep a segment before it is deleted; takes precedence over the hours.
log.retention.hours                              int      168
    Time to keep a segment before it is deleted.
log.retention.check.interval.ms                  long     300000 1..
    Interval between checks for segments eligible for deletion.
log.initial.task.delay.ms                        long     30000 0..
    Delay after startup before the log's background tasks begin.
log.cleanup.policy                               list     delete {compact,delete}
    Cleanup policy for old segments: delete, compact, or both.
log.segment.delete.delay.ms                      long     60000 0..
    Time to wait before deleting a segment's files after its removal from the log.
log.index.interval.bytes                         int      4096 0..
    Interval in bytes between index entries.
log.index.size.max.bytes                         int      10485760 4..
    Maximum size of a segment's index.
log.preallocate                                  boolean  false
    Preallocate the file when a new segment is created.
log.message.timestamp.type                       string   CreateTime {CreateTime,LogAppendTime}
    Whether record timestamps are the producer's (CreateTime) or the broker's (LogAppendTime).
log.message.timestamp.before.max.ms              long     9223372036854775807 0..
    Maximum time by which a record's timestamp may be before the broker's clock.
log.message.timestamp.after.max.ms               long     3600000 0..
    Maximum time by which a record's timestamp may be after the broker's clock.
log.flush.interval.messages                      long     9223372036854775807 1..
    Number of records accumulated on a partition before they are flushed to disk.
log.flush.interval.ms                            long     null
    Maximum time before a record is flushed to disk; if not set, log.flush.scheduler.interval.ms.
log.flush.scheduler.interval.ms                  long     9223372036854775807
    Interval between checks for logs to flush.
log.flush.offset.checkpoint.interval.ms          int      60000 0..
    Interval between checkpoints of the log recovery points.
log.flush.start.offset.checkpoint.interval.ms    int      60000 0..
    Interval between checkpoints of the log start offsets.
log.cleaner.enable                               boolean  true
    Enable the log cleaner, which compacts topics with cleanup.policy=compact.
log.cleaner.backoff.ms                           long     15000 0..
    Time to sleep if there are no logs to clean.
log.cleaner.delete.retention.ms                  long     86400000 0..
    Time to retain tombstones and transaction markers of compacted topics.
log.cleaner.min.cleanable.ratio                  double   0.5 0..1
    Minimum ratio of dirty log to total log for a log to be eligible for cleaning.
log.cleaner.min.compaction.lag.ms                long     0 0..
    Minimum time a record remains uncompacted.
log.cleaner.max.compaction.lag.ms                long     9223372036854775807 1..
    Maximum time a record remains ineligible for compaction.
log.cleaner.threads                              int      1 0..
    Number of log cleaner processes, each of which cleans one log at a time.
log.cleaner.dedupe.buffer.size                   long     134217728
    Total memory of all cleaner processes for deduplication; at least 1 MiB for each.
log.cleaner.io.buffer.load.factor                double   0.9 0..1
    Maximum load factor of the deduplication buffer.
log.cleaner.io.buffer.size                       int      524288 0..
    Total memory of all cleaner processes for I/O buffers.
log.cleaner.io.max.bytes.per.second              double   1.7976931348623157E308
    Maximum total reads and writes of the cleaner, in bytes per second.

# Fetching
fetch.max.bytes                                  int      57671680 1024..
    Maximum number of bytes returned for a fetch request.
kraftpy.fetch.check.crcs                         boolean  none->true
    Verify the CRC of every batch that is read, so that corrupt data is reported and never delivered.
kraftpy.fetch.zero.copy.min.bytes                int      none->4194304 0..
    Minimum bytes of a partition to send with sendfile, without copying.
max.incremental.fetch.session.cache.slots        int      1000 0..
    Maximum number of incremental fetch sessions.
kraftpy.fetch.session.partitions.max             int      none->200000 1..
    Maximum number of partitions in the fetch sessions of all clients, and in their share sessions.
max.request.partition.size.limit                 int      2000 1..
    Maximum number of partitions in one response to DescribeTopicPartitions.

# Replication
num.replica.alter.log.dirs.threads               int      null
    Number of replicas that move between log directories at the same time. Defaults to the number of log directories.
num.replica.fetchers                             int      1 1..
    Number of connections on which a follower fetches from each leader.
replica.alter.log.dirs.io.max.bytes.per.second   long     9223372036854775807 0..
    Maximum rate of moving replicas between log directories of a broker, in bytes per second.
replica.fetch.backoff.ms                         int      1000 0..
    Time to wait after a fetch error of a partition.
replica.fetch.max.bytes                          int      1048576 0..
    Number of bytes that a follower tries to fetch for each partition.
replica.fetch.min.bytes                          int      1
    Minimum bytes expected for each fetch response to a follower.
replica.fetch.response.max.bytes                 int      10485760 0..
    Maximum bytes expected for the entire fetch response to a follower.
replica.fetch.wait.max.ms                        int      500
    Maximum wait time for each fetch request of a follower.
replica.lag.time.max.ms                          long     30000
    Time without catching up after which a follower is removed from the ISR.
replica.selector.class                           string   null
    Class that selects the preferred read replica for a consumer.
replica.socket.timeout.ms                        int      30000
    Socket timeout of a follower's fetch requests.
leader.replication.throttled.rate                long     9223372036854775807 0..
    Upper bound on replication traffic sent to throttled replicas, in bytes per second.
follower.replication.throttled.rate              long     9223372036854775807 0..
    Upper bound on replication traffic fetched for throttled replicas, in bytes per second.
replica.high.watermark.checkpoint.interval.ms    long     5000
    Interval between checkpoints of the high watermarks.

# Groups and their offsets
group.initial.rebalance.delay.ms                 int      3000->0
    Time to wait for more members to join a new group before the first rebalance.
group.min.session.timeout.ms                     int      6000
    Minimum session timeout allowed for members.
group.max.session.timeout.ms                     int      1800000
    Maximum session timeout allowed for members.
kraftpy.group.coordinator.max.bytes              long     none->268435456 1..
    Maximum memory of a broker's groups, members and committed offsets; requests that would exceed it are refused.
kraftpy.group.max.bytes                          int      none->8388608 1..
    Maximum memory of the metadata of one classic group's members.
group.max.size                                   int      2147483647 1..
    Maximum number of members of a classic group.
group.consumer.assignment.interval.ms            int      1000 0..
    Least time between two assignments of a consumer group.
group.consumer.max.assignment.interval.ms        int      15000 0..
    Maximum assignment interval of consumer groups.
group.consumer.min.assignment.interval.ms        int      0 0..
    Minimum assignment interval of consumer groups.
group.consumer.assignors                         list     uniform,range {uniform,range}
    Server-side assignors of consumer groups; the first is the default.
group.consumer.heartbeat.interval.ms             int      5000 1..
    Heartbeat interval given to the members of a consumer group.
group.consumer.max.size                          int      2147483647 1..
    Maximum number of members of a consumer group.
kraftpy.group.regex.cache.bytes                  long     none->16777216 1..
    Maximum memory of the cached matches of members' regular expressions, for all groups of a node.
group.consumer.migration.policy                  string   bidirectional ~{DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL}
    Whether groups may be converted between the classic and the consumer protocol.
group.coordinator.rebalance.protocols            list     classic,consumer,streams {consumer,classic,share,streams}
    Group protocols that are served; those of share groups always are.
group.consumer.session.timeout.ms                int      45000 1..
    Timeout to detect failures of a consumer group's members.
group.consumer.max.heartbeat.interval.ms         int      15000 1..
    Maximum heartbeat interval of consumer groups.
group.consumer.max.session.timeout.ms            int      60000 1..
    Maximum session timeout of consumer groups.
group.consumer.min.heartbeat.interval.ms         int      5000 1..
    Minimum heartbeat interval of consumer groups.
group.consumer.min.session.timeout.ms            int      45000 1..
    Minimum session timeout of consumer groups.
errors.deadletterqueue.auto.create.topics.enable boolean  false
    Create the topic of a share group's dead letter queue when the first record is written to it.
errors.deadletterqueue.topic.name.prefix         string   dlq.
    Prefix that the topics of share groups' dead letter queues must have; empty allows any name.
group.share.assignors                            list     simple {simple}
    Server-side assignor of share groups.
group.share.initialize.retry.interval.ms         int      30000 1..
    Time to wait before retrying the initialization of share partitions.
group.share.max.size                             int      200 1..1000
    Maximum number of members of a share group.
offset.metadata.max.bytes                        int      4096
    Maximum size of the metadata of an offset commit.
offsets.commit.timeout.ms                        int      5000 1..
    Maximum time an offset commit waits for the write to be replicated.
offsets.retention.minutes                        int      10080 1..
    Time to retain the offsets of a group after it becomes empty.
offsets.retention.check.interval.ms              long     600000 1..
    Interval between checks for expired offsets.
offsets.topic.num.partitions                     int      50 1..
    Number of partitions of __consumer_offsets.
offsets.topic.replication.factor                 short    3->1 1..
    Replication factor of __consumer_offsets.
offsets.topic.segment.bytes                      int      104857600 1..
    Segment size of __consumer_offsets.
offsets.topic.compression.codec                  int      0
    Compression codec of __consumer_offsets, as its numeric id.

# Defaults and bounds of the settings of single groups
group.share.assignment.interval.ms               int      1000 0..
    Least time between two assignments of a share group.
group.share.max.assignment.interval.ms           int      15000 0..
    Maximum assignment interval of share groups.
group.share.min.assignment.interval.ms           int      0 0..
    Minimum assignment interval of share groups.
group.share.delivery.count.limit                 int      5 2..10
    Maximum number of delivery attempts for a record in a share group.
group.share.heartbeat.interval.ms                int      5000 1..
    Heartbeat interval of a share group.
group.share.max.delivery.count.limit             int      10 5..25
    Maximum delivery count limit of share groups.
group.share.max.heartbeat.interval.ms            int      15000 1..
    Maximum heartbeat interval of share groups.
group.share.max.partition.max.record.locks       int      4000 2000..10000
    Maximum limit of record locks per share partition.
group.share.max.record.lock.duration.ms          int      60000 30000..3600000
    Maximum record lock duration of share groups.
group.share.max.session.timeout.ms               int      60000 1..
    Maximum session timeout of share groups.
group.share.max.share.sessions                   int      2000 1..
    Maximum number of share sessions.
group.share.min.delivery.count.limit             int      2 2..5
    Minimum delivery count limit of share groups.
group.share.min.heartbeat.interval.ms            int      5000 1..
    Minimum heartbeat interval of share groups.
group.share.min.partition.max.record.locks       int      100 100..2000
    Minimum limit of record locks per share partition.
group.share.min.record.lock.duration.ms          int      15000 1000..30000
    Minimum record lock duration of share groups.
group.share.min.session.timeout.ms               int      45000 1..
    Minimum session timeout of share groups.
group.share.partition.max.record.locks           int      2000 100..10000
    Maximum number of record locks per share partition.
group.share.record.lock.duration.ms              int      30000 1000..3600000
    Acquisition lock duration of records in share groups.
group.share.session.timeout.ms                   int      45000 1..
    Session timeout of a share group.
group.streams.assignment.interval.ms             int      1000 0..
    Least time between two assignments of a streams group.
group.streams.max.assignment.interval.ms         int      15000 0..
    Maximum assignment interval of streams groups.
group.streams.min.assignment.interval.ms         int      0 0..
    Minimum assignment interval of streams groups.
group.streams.heartbeat.interval.ms              int      5000 1..
    Heartbeat interval of a streams group.
group.streams.initial.rebalance.delay.ms         int      3000 0..
    Time to wait for more members before a streams group's first assignment.
group.streams.max.heartbeat.interval.ms          int      15000 1..
    Maximum heartbeat interval of streams groups.
group.streams.max.session.timeout.ms             int      60000 1..
    Maximum session timeout of streams groups.
group.streams.max.standby.replicas               int      2 0..
    Maximum number of standby replicas per task of streams groups.
group.streams.min.heartbeat.interval.ms          int      5000 1..
    Minimum heartbeat interval of streams groups.
group.streams.min.session.timeout.ms             int      45000 1..
    Minimum session timeout of streams groups.
group.streams.max.size                           int      2147483647 1..
    Maximum number of members of a streams group.
group.streams.num.standby.replicas               int      0 0..
    Number of standby replicas for each task of a streams group.
group.streams.session.timeout.ms                 int      45000 1..
    Session timeout of a streams group.

# The state of share groups (KIP-932)
kraftpy.share.coordinator.max.bytes              long     none->134217728 1..
    Maximum memory of the state of share partitions; initializing more is refused.
share.coordinator.cold.partition.snapshot.interval.ms int      300000 1..
    Interval between snapshots of idle share partitions.
share.coordinator.snapshot.update.records.per.snapshot int      500 0..500
    Number of share update records between two snapshots.
share.coordinator.state.topic.compression.codec  int      0 0..4
    Compression codec of __share_group_state, as its numeric id.
share.coordinator.state.topic.min.isr            short    2->1 1..
    The min.insync.replicas of __share_group_state.
share.coordinator.state.topic.num.partitions     int      50 1..
    Number of partitions of __share_group_state.
share.coordinator.state.topic.prune.interval.ms  int      300000 1..
    Interval between prunings of __share_group_state.
share.coordinator.state.topic.replication.factor short    3->1 1..
    Replication factor of __share_group_state.
share.coordinator.state.topic.segment.bytes      int      104857600 1..
    Segment size of __share_group_state.
share.coordinator.write.timeout.ms               int      5000 1..
    Maximum time a write of share state waits to be replicated.

# Transactions
add.partitions.to.txn.retry.backoff.max.ms       int      100 0..
    Maximum time that the server retries adding partitions to a transaction.
add.partitions.to.txn.retry.backoff.ms           int      20 1..
    Time between server-side retries of adding partitions to a transaction.
transaction.abort.timed.out.transaction.cleanup.interval.ms int      10000 1..
    Interval between checks for timed-out transactions to roll back.
transaction.partition.verification.enable        boolean  true
    Verify that a partition was added to the transaction before writing transactional records to it.
transaction.remove.expired.transaction.cleanup.interval.ms int      3600000 1..
    Interval between checks for expired transactional ids.
kraftpy.transaction.coordinator.max.bytes        long     none->134217728 1..
    Maximum memory of a broker's transactional ids; new ones that would exceed it are refused.
transaction.max.timeout.ms                       int      900000 1..
    Maximum transaction timeout that a producer may request.
transactional.id.expiration.ms                   int      604800000 1..
    Time without use after which a transactional id expires.
transaction.state.log.num.partitions             int      50 1..
    Number of partitions of __transaction_state.
transaction.state.log.replication.factor         short    3->1 1..
    Replication factor of __transaction_state.
transaction.state.log.min.isr                    int      2->1 1..
    The min.insync.replicas of __transaction_state.
transaction.state.log.segment.bytes              int      104857600 1..
    Segment size of __transaction_state.

# Metrics of clients, and logs
telemetry.max.bytes                              int      1048576 1..
    Maximum size of the metrics that a client pushes, compressed or not.
kraftpy.telemetry.max.bytes                      long     none->67108864 0..
    Maximum memory of the last metrics of clients, which are kept for the metrics endpoint; 0 keeps none.
kraftpy.telemetry.otlp.endpoint                  string   null
    URL of an OpenTelemetry collector that the metrics of clients are sent to, as http://host:4318/v1/metrics.
kraftpy.log.format                               string   none->text {text,json}
    Lines of the log on standard error: text, or json for one JSON object per line.
kraftpy.slow.request.ms                          int      none->-1 -1..
    Time from which a request is logged, with where the time went; -1 logs and measures none.
kraftpy.loop.stall.ms                            int      none->1000 0..
    Time from which a stall of the event loop is logged, with what it does; 0 watches for none.

# Idempotent producers
kraftpy.max.producers                            int      none->200000 100..
    Maximum number of producer ids per broker, counted by partition; beyond it, those idle for longest expire early.
producer.id.expiration.ms                        int      86400000 1..
    Time without writes after which a producer id expires.
producer.id.expiration.check.interval.ms         int      600000 1..
    Interval between checks for expired producer ids.
"""

CHAINS: dict[str, tuple[str, ...]] = {
    name: chain
    for chain in (
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ("log.roll.ms", "log.roll.hours"),
    )
    for name in chain
    if name != "log.flush.scheduler.interval.ms"  # it gives the other its default, but not vice versa
}
"""For each setting that others stand in for: all of these settings, in order of precedence."""

INTERNAL_SETTINGS = frozenset(
    {
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "group.consumer.regex.refresh.interval.ms",
        "group.share.initialize.retry.interval.ms",
        "group.share.persister.class.name",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "log.initial.task.delay.ms",
        "producer.id.expiration.check.interval.ms",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "server.max.startup.time.ms",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.state.topic.prune.interval.ms",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    }
)
"""Settings that Kafka calls internal: they are listed only if they are set."""
