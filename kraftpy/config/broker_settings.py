"""The broker settings this broker acts on, under Kafka's names, as a table.

Each entry is a line `name type default allowed` and an indented line that says what it means. The default is that of
Kafka 4.3; `a->b` means Kafka has `a` and we have `b`, and only defaults that make a single node pleasant differ. `none`
is no default, `null` is no value, `""` is empty. Allowed is a range `low..high`, values `{a,b}` (`~{a,b}` in any case),
or absent. `settings.parse_table` reads this.
"""

from __future__ import annotations

BROKER_TABLE = """
# Who this node is
node.id                                          int      none->1 0..
    Number of this node, unique in its cluster.
broker.id                                        int      -1
    Older name of node.id; must agree where both are set.
broker.rack                                      string   null
    Place of this broker, told to clients.
process.roles                                    list     none->broker,controller {broker,controller}
    What this process does: serve clients, keep the metadata, or both.

# Where it listens
listeners                                        list     PLAINTEXT://:9092->PLAINTEXT://127.0.0.1:9092
    Addresses to bind, NAME://host:port; port 0 takes any free one.
advertised.listeners                             list     null
    Addresses told to clients; where unset, those of listeners.
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
    Security protocol of each listener name, NAME:PROTOCOL.
controller.listener.names                        list     none->CONTROLLER
    Listeners that serve the metadata quorum, not clients.
inter.broker.listener.name                       string   null
    Listener that other brokers use.
security.inter.broker.protocol                   string   PLAINTEXT {PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL}
    Protocol between brokers where no listener is named for it.
socket.listen.backlog.size                       int      50 1..
    Connections that may wait to be accepted.
socket.request.max.bytes                         int      104857600 1..
    Largest request; a larger one costs the connection.
queued.max.request.bytes                         long     -1->268435456
    Memory of all requests and unread answers together; -1 is no limit; where unset, at least twice the largest request.
connections.max.idle.ms                          long     600000
    A connection silent for longer is closed, and one that does not read its answers for so long.
max.connections                                  int      2147483647 0..
    Connections at once; at most what the limit of open files leaves.
max.connections.per.ip                           int      2147483647 0..
    Connections at once from one address.
max.connections.per.ip.overrides                 string   ""
    The same for some addresses, as address:count, several with commas.

# Where the data are
log.dir                                          list     /tmp/kafka-logs->./kraftpy-data
    Data directory where log.dirs is unset.
log.dirs                                         list     null
    Data directories.
num.recovery.threads.per.data.dir                int      2 1..
    Threads that reopen logs at start and flush them at stop.

# The metadata quorum
controller.quorum.voters                         list     "" non-empty
    Voters of the quorum, id@host:port.
controller.quorum.bootstrap.servers              list     "" non-empty
    Addresses at which the quorum is found.
controller.quorum.election.timeout.ms            int      1000 50..
    Longest an election waits for votes.
controller.quorum.fetch.timeout.ms               int      2000 100..
    Silence of the leader after which an election starts.
metadata.log.max.record.bytes.between.snapshots  long     20971520 1..
    Bytes of changes of the metadata after which a snapshot of it takes their place.
broker.heartbeat.interval.ms                     int      2000 10..
    Pause between a broker's heartbeats to the controller.
broker.session.timeout.ms                        int      9000 20..
    Silence after which the controller takes a broker for dead.
initial.broker.registration.timeout.ms           int      60000 1..
    Longest the first registration of a broker may take.
request.timeout.ms                               int      30000 1..
    Longest wait for an answer to the broker's own requests.
controlled.shutdown.enable                       boolean  true
    Hand leadership over before stopping.
auto.leader.rebalance.enable                     boolean  true
    Give leadership back to preferred replicas.
leader.imbalance.check.interval.seconds          long     300 1..
    Pause between looks for leadership to give back.

# Ours, which Kafka has not
kraftpy.quorum.secret                            password null
    Secret that the nodes of a cluster prove to each other; the same on all of them, 16 characters or more.
kraftpy.quorum.secret.file                       string   null
    File that holds the secret, in place of kraftpy.quorum.secret.
kraftpy.metadata.cache.max.bytes                 long     none->33554432 0..
    Memory of encoded answers about all topics, which many clients ask for; 0 keeps none.
kraftpy.request.receive.timeout.ms               int      none->60000 1..
    Longest a request may take to arrive once it has begun; a large one has as long for each MiB.
kraftpy.broker.disconnect.grace.ms               int      none->100 0..
    Time a broker has to reconnect to the controller before it is taken for dead.
kraftpy.flush.before.ack                         boolean  none->false
    Sync records to disk before they are acknowledged, replicated ones too.
kraftpy.max.configs.bytes                        long     none->33554432 0..
    Most memory for all that clients set for topics, brokers and groups; more is refused.

# Topics
auto.create.topics.enable                        boolean  true
    Create a topic when a client first asks for it.
delete.topic.enable                              boolean  true
    Allow topics to be deleted.
kraftpy.max.partitions                           int      none->50000 1..
    Partitions a cluster may have; what would exceed them is refused.
num.partitions                                   int      1 1..
    Partitions of a topic created without a count.
default.replication.factor                       int      1
    Replicas of a topic created without a count.
min.insync.replicas                              int      1 1..
    Replicas that must have a record before acks=all is answered.
unclean.leader.election.enable                   boolean  false
    Let a replica that lags become leader, losing records.
message.max.bytes                                int      1048588 0..
    Largest record batch a producer may send.
kraftpy.batch.max.bytes                          int      none->16777216 1..
    Largest max.message.bytes of a topic in effect, unless message.max.bytes is larger. Others wait while it is written.
kraftpy.batch.max.records                        int      none->1048576 1..
    Most records in one batch of a producer.
kraftpy.batch.max.headers                        int      none->4194304 0..
    Most headers of all records in one batch of a producer, where its records are looked at.
kraftpy.batch.max.expanded.bytes                 int      none->134217728 1..
    Most bytes the records of one batch may expand to, where they are looked at.
compression.type                                 string   producer {uncompressed,zstd,lz4,snappy,gzip,producer}
    Codec of stored batches; producer keeps the one they came in.
compression.gzip.level                           int      -1 -1,1..9
    Level of gzip where the broker compresses; -1 is its default.
compression.lz4.level                            int      9 1..17
    Level of lz4 where the broker compresses.
compression.zstd.level                           int      3 -131072..22
    Level of zstd where the broker compresses.

# The log
log.segment.bytes                                int      1073741824 1048576..
    Size at which a segment is closed and the next begun.
log.roll.ms                                      long     null
    Age at which a segment is closed; before log.roll.hours.
log.roll.hours                                   int      168 1..
    Age at which a segment is closed.
log.roll.jitter.ms                               long     null
    Most to subtract from that age at random; before log.roll.jitter.hours.
log.roll.jitter.hours                            int      0 0..
    Most to subtract from that age at random.
log.retention.bytes                              long     -1
    Size of a partition above which old segments go; -1 is no limit.
log.retention.ms                                 long     null
    Age at which a segment goes; before the minutes; -1 is never.
log.retention.minutes                            int      null
    Age at which a segment goes; before the hours.
log.retention.hours                              int      168
    Age at which a segment goes.
log.retention.check.interval.ms                  long     300000 1..
    Pause between looks for segments to delete.
log.initial.task.delay.ms                        long     30000 0..
    Pause after start before the log's background work begins.
log.cleanup.policy                               list     delete {compact,delete}
    What happens to old segments: delete, compact, or both.
log.segment.delete.delay.ms                      long     60000 0..
    Time between taking a segment out of the log and deleting its files.
log.index.interval.bytes                         int      4096 0..
    Bytes of log between two entries of an index.
log.index.size.max.bytes                         int      10485760 4..
    Largest index of a segment.
log.preallocate                                  boolean  false
    Give a new segment the space for its full size at once.
log.message.timestamp.type                       string   CreateTime {CreateTime,LogAppendTime}
    Whose clock stamps records: the producer's or the broker's.
log.message.timestamp.before.max.ms              long     9223372036854775807 0..
    How far behind the broker's clock a record may be stamped.
log.message.timestamp.after.max.ms               long     3600000 0..
    How far ahead of the broker's clock a record may be stamped.
log.flush.interval.messages                      long     9223372036854775807 1..
    Records after which a log is synced to disk.
log.flush.interval.ms                            long     null
    Longest a record waits to be synced; log.flush.scheduler.interval.ms where unset.
log.flush.scheduler.interval.ms                  long     9223372036854775807
    Pause between looks for logs to sync.
log.flush.offset.checkpoint.interval.ms          int      60000 0..
    Pause between writes of the recovery points.
log.flush.start.offset.checkpoint.interval.ms    int      60000 0..
    Pause between writes of the log start offsets.
log.cleaner.enable                               boolean  true
    Compact logs whose policy says so.
log.cleaner.backoff.ms                           long     15000 0..
    Pause of the cleaner when there is nothing to clean.
log.cleaner.delete.retention.ms                  long     86400000 0..
    How long a tombstone stays for readers to see.
log.cleaner.min.cleanable.ratio                  double   0.5 0..1
    Share of uncleaned bytes from which a log is cleaned.
log.cleaner.min.compaction.lag.ms                long     0 0..
    Age below which a record is not compacted.
log.cleaner.max.compaction.lag.ms                long     9223372036854775807 1..
    Age above which a record must be compacted.
log.cleaner.threads                              int      1 0..
    Processes that clean, one log each at a time.
log.cleaner.dedupe.buffer.size                   long     134217728
    Memory of the cleaner's maps of keys, all together; at least 1 MiB for each process.
log.cleaner.io.buffer.load.factor                double   0.9 0..1
    How full those maps may get.
log.cleaner.io.buffer.size                       int      524288 0..
    Memory of the cleaner's buffers, all together.
log.cleaner.io.max.bytes.per.second              double   1.7976931348623157e308
    Bytes a second the cleaner may read and write, all together.

# Fetching
fetch.max.bytes                                  int      57671680 1024..
    Most bytes in one fetch response.
kraftpy.fetch.check.crcs                         boolean  none->true
    Check every batch that is read, so that damage on the disk is told and never delivered.
kraftpy.fetch.zero.copy.min.bytes                int      none->4194304 0..
    From how many bytes of a partition on they go from file to socket without being copied (sendfile).
max.incremental.fetch.session.cache.slots        int      1000 0..
    Fetch sessions kept at once.
kraftpy.fetch.session.partitions.max             int      none->200000 1..
    Partitions remembered in the fetch sessions of all clients, and in their share sessions.
max.request.partition.size.limit                 int      2000 1..
    Most partitions in one answer that describes topics.

# Replication
replica.alter.log.dirs.io.max.bytes.per.second   long     9223372036854775807 0..
    Bytes a second that replicas are copied with between the log directories of a broker.
replica.fetch.backoff.ms                         int      1000 0..
    Pause of a follower after an error.
replica.fetch.max.bytes                          int      1048576 0..
    Bytes a follower asks for from one partition.
replica.fetch.min.bytes                          int      1
    Bytes a follower waits for.
replica.fetch.response.max.bytes                 int      10485760 0..
    Most bytes in one answer to a follower.
replica.fetch.wait.max.ms                        int      500
    Longest a follower's fetch waits.
replica.lag.time.max.ms                          long     30000
    Lag after which a follower leaves the in-sync set.
replica.selector.class                           string   null
    Class that chooses the replica a consumer reads.
replica.socket.timeout.ms                        int      30000
    Longest wait on a follower's connection.
leader.replication.throttled.rate                long     9223372036854775807 0..
    Bytes a second sent to followers that are throttled and not in sync.
follower.replication.throttled.rate              long     9223372036854775807 0..
    Bytes a second fetched for replicas that are throttled and not in sync.
replica.high.watermark.checkpoint.interval.ms    long     5000
    Pause between writes of the high watermarks.

# Groups and their offsets
group.initial.rebalance.delay.ms                 int      3000->0
    Wait for more members before a new group's first generation.
group.min.session.timeout.ms                     int      6000
    Shortest session timeout a member may ask for.
group.max.session.timeout.ms                     int      1800000
    Longest session timeout a member may ask for.
kraftpy.group.coordinator.max.bytes              long     none->268435456 1..
    Memory of a broker's groups, their members and committed offsets; what would exceed it is refused.
kraftpy.group.max.bytes                          int      none->8388608 1..
    Memory of what the members of one classic group say of themselves.
group.max.size                                   int      2147483647 1..
    Most members of a group.
group.consumer.assignors                         list     uniform,range {uniform,range}
    Assignors of groups of the newer protocol, the first being the default.
group.consumer.heartbeat.interval.ms             int      5000 1..
    Heartbeat interval of a group of the newer protocol.
group.consumer.max.size                          int      2147483647 1..
    Most members of a group of the newer protocol.
kraftpy.group.regex.cache.bytes                  long     none->16777216 1..
    Bytes of topics that members' regular expressions match, which are remembered for all groups of a node.
group.consumer.migration.policy                  string   bidirectional ~{DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL}
    Whether groups may change between the classic and the newer protocol.
group.consumer.session.timeout.ms                int      45000 1..
    Session timeout of a group of the newer protocol.
group.consumer.max.heartbeat.interval.ms         int      15000 1..
    Upper bound of a group's own heartbeat interval.
group.consumer.max.session.timeout.ms            int      60000 1..
    Upper bound of a group's own session timeout.
group.consumer.min.heartbeat.interval.ms         int      5000 1..
    Lower bound of a group's own heartbeat interval.
group.consumer.min.session.timeout.ms            int      45000 1..
    Lower bound of a group's own session timeout.
group.share.assignors                            list     simple {simple}
    Assignor of share groups.
group.share.initialize.retry.interval.ms         int      30000 1..
    Pause before the set-up of a share partition is tried again.
group.share.max.size                             int      200 1..1000
    Most members of a share group.
offset.metadata.max.bytes                        int      4096
    Longest note beside a committed offset.
offsets.commit.timeout.ms                        int      5000 1..
    Longest a commit waits to be durable.
offsets.retention.minutes                        int      10080 1..
    How long the offsets of an empty group are kept.
offsets.retention.check.interval.ms              long     600000 1..
    Pause between looks for expired offsets.
offsets.topic.num.partitions                     int      50 1..
    Partitions of __consumer_offsets.
offsets.topic.replication.factor                 short    3->1 1..
    Replicas of __consumer_offsets.
offsets.topic.segment.bytes                      int      104857600 1..
    Segment size of __consumer_offsets.
offsets.topic.compression.codec                  int      0
    Codec of __consumer_offsets, by its number.

# Defaults and bounds of the settings of single groups
group.share.delivery.count.limit                 int      5 2..10
    Times a record is delivered to a share group.
group.share.heartbeat.interval.ms                int      5000 1..
    Heartbeat interval of a share group.
group.share.max.delivery.count.limit             int      10 5..25
    Upper bound of a share group's own limit of deliveries.
group.share.max.heartbeat.interval.ms            int      15000 1..
    Upper bound of a share group's own heartbeat interval.
group.share.max.partition.max.record.locks       int      4000 2000..10000
    Upper bound of a share group's own limit of locks.
group.share.max.record.lock.duration.ms          int      60000 30000..3600000
    Upper bound of a share group's own lock duration.
group.share.max.session.timeout.ms               int      60000 1..
    Upper bound of a share group's own session timeout.
group.share.max.share.sessions                   int      2000 1..
    Share sessions kept at once.
group.share.min.delivery.count.limit             int      2 2..5
    Lower bound of a share group's own limit of deliveries.
group.share.min.heartbeat.interval.ms            int      5000 1..
    Lower bound of a share group's own heartbeat interval.
group.share.min.partition.max.record.locks       int      100 100..2000
    Lower bound of a share group's own limit of locks.
group.share.min.record.lock.duration.ms          int      15000 1000..30000
    Lower bound of a share group's own lock duration.
group.share.min.session.timeout.ms               int      45000 1..
    Lower bound of a share group's own session timeout.
group.share.partition.max.record.locks           int      2000 100..10000
    Records of a share partition locked at once.
group.share.record.lock.duration.ms              int      30000 1000..3600000
    How long a record is locked for its consumer.
group.share.session.timeout.ms                   int      45000 1..
    Session timeout of a share group.
group.streams.heartbeat.interval.ms              int      5000 1..
    Heartbeat interval of a streams group.
group.streams.initial.rebalance.delay.ms         int      3000 0..
    Wait for more members before a streams group's first assignment.
group.streams.max.heartbeat.interval.ms          int      15000 1..
    Upper bound of a streams group's own heartbeat interval.
group.streams.max.session.timeout.ms             int      60000 1..
    Upper bound of a streams group's own session timeout.
group.streams.max.standby.replicas               int      2 0..
    Upper bound of a streams group's own number of standby tasks.
group.streams.min.heartbeat.interval.ms          int      5000 1..
    Lower bound of a streams group's own heartbeat interval.
group.streams.min.session.timeout.ms             int      45000 1..
    Lower bound of a streams group's own session timeout.
group.streams.max.size                           int      2147483647 1..
    Most members of a streams group.
group.streams.num.standby.replicas               int      0 0..
    Standby tasks of a streams group.
group.streams.session.timeout.ms                 int      45000 1..
    Session timeout of a streams group.

# The state of share groups (KIP-932)
kraftpy.share.coordinator.max.bytes              long     none->134217728 1..
    Memory of the state of share partitions; to begin more than fit is refused.
share.coordinator.cold.partition.snapshot.interval.ms int      300000 1..
    Pause between snapshots of idle share partitions.
share.coordinator.snapshot.update.records.per.snapshot int      500 0..500
    Updates of share state between two snapshots.
share.coordinator.state.topic.compression.codec  int      0 0..4
    Codec of __share_group_state, by its number.
share.coordinator.state.topic.min.isr            short    2->1 1..
    Replicas that must have a record of __share_group_state.
share.coordinator.state.topic.num.partitions     int      50 1..
    Partitions of __share_group_state.
share.coordinator.state.topic.prune.interval.ms  int      300000 1..
    Pause between prunings of __share_group_state.
share.coordinator.state.topic.replication.factor short    3->1 1..
    Replicas of __share_group_state.
share.coordinator.state.topic.segment.bytes      int      104857600 1..
    Segment size of __share_group_state.
share.coordinator.write.timeout.ms               int      5000 1..
    Longest a write of share state waits to be durable.

# Transactions
add.partitions.to.txn.retry.backoff.max.ms       int      100 0..
    Longest the server itself tries to add partitions to a transaction.
add.partitions.to.txn.retry.backoff.ms           int      20 1..
    Pause between those tries.
transaction.abort.timed.out.transaction.cleanup.interval.ms int      10000 1..
    Pause between looks for transactions that timed out.
transaction.partition.verification.enable        boolean  true
    Check that a partition was added to its transaction.
transaction.remove.expired.transaction.cleanup.interval.ms int      3600000 1..
    Pause between looks for expired transactional ids.
kraftpy.transaction.coordinator.max.bytes        long     none->134217728 1..
    Memory of a broker's transactional ids; new ones that would exceed it are refused.
transaction.max.timeout.ms                       int      900000 1..
    Longest transaction timeout a producer may ask for.
transactional.id.expiration.ms                   int      604800000 1..
    How long an unused transactional id is kept.
transaction.state.log.num.partitions             int      50 1..
    Partitions of __transaction_state.
transaction.state.log.replication.factor         short    3->1 1..
    Replicas of __transaction_state.
transaction.state.log.min.isr                    int      2->1 1..
    Replicas that must have a record of __transaction_state.
transaction.state.log.segment.bytes              int      104857600 1..
    Segment size of __transaction_state.

# Idempotent producers
kraftpy.max.producers                            int      none->200000 100..
    Producers remembered, by partition; beyond them those silent for longest are forgotten early.
producer.id.expiration.ms                        int      86400000 1..
    How long a silent producer's sequence numbers are kept.
producer.id.expiration.check.interval.ms         int      600000 1..
    Pause between looks for expired producers.
"""
