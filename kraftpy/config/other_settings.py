"""The settings of Kafka, past or present, that this broker ignores: one in a file is logged at the start, not refused.

The table has the form of `broker_settings`, and is loaded only for a name that is not there.
"""

from __future__ import annotations

from kraftpy.config.group import GROUP_SETTINGS
from kraftpy.config.group_settings import BROKER_SETTINGS_BEHIND
from kraftpy.config.settings import Setting, parse_table
from kraftpy.config.topic import TOPIC_SETTINGS
from kraftpy.config.topic_settings import SYNONYMS

OTHER_TABLE = """
# Authorization, authentication and encryption
client.quota.callback.class                      class    null
    Class that computes client quotas.
early.start.listeners                            list     null
    Listeners opened before the authorizer is ready.
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    Class that names the user behind a connection.
sasl.client.callback.handler.class               class    null
    Class that gives the broker's own credentials as a client.
sasl.kerberos.kinit.cmd                          string   /usr/bin/kinit
    Path of the kinit program.
sasl.kerberos.min.time.before.relogin            long     60000
    Shortest pause between two Kerberos logins.
sasl.kerberos.ticket.renew.jitter                double   0.05
    Random share added to the time of renewal.
sasl.kerberos.ticket.renew.window.factor         double   0.8
    Share of a ticket's lifetime after which it is renewed.
sasl.login.callback.handler.class                class    null
    Class that supplies the credentials of a login.
sasl.login.class                                 class    null
    Class that performs a login.
sasl.login.connect.timeout.ms                    int      null
    Longest a connection to the token provider may take.
sasl.login.read.timeout.ms                       int      null
    Longest a read from the token provider may take.
sasl.login.refresh.buffer.seconds                short    300
    Time before expiry at which a token is renewed at the latest.
sasl.login.refresh.min.period.seconds            short    60
    Shortest time between two renewals of a token.
sasl.login.refresh.window.factor                 double   0.8
    Share of a token's lifetime after which it is renewed.
sasl.login.refresh.window.jitter                 double   0.05
    Random share added to the time of renewal.
sasl.login.retry.backoff.max.ms                  long     10000
    Longest pause between tries to log in.
sasl.login.retry.backoff.ms                      long     100
    First pause between tries to log in.
sasl.oauthbearer.allow.unverified.audience       boolean  false
    Whether a token may be for any audience.
sasl.oauthbearer.allow.unverified.issuer         boolean  false
    Whether a token may be from any issuer.
security.providers                               string   null
    Classes that add security algorithms to the JVM.
ssl.engine.factory.class                         class    null
    Class that makes TLS engines.
ssl.keymanager.algorithm                         string   SunX509
    Algorithm of the key manager.
ssl.protocol                                     string   TLSv1.3
    TLS version preferred.
ssl.provider                                     string   null
    Security provider of the JVM used for TLS.
ssl.secure.random.implementation                 string   null
    Source of random numbers for TLS.
ssl.trustmanager.algorithm                       string   PKIX
    Algorithm of the trust manager.

# Policies, plug-ins and metrics
alter.config.policy.class.name                   class    null
    Class that may refuse changes of settings.
create.topic.policy.class.name                   class    null
    Class that may refuse new topics.
config.providers                                 list     ""
    Sources that fill in variables within settings.
kafka.metrics.polling.interval.secs              int      10 1..
    Pause between reads by the metrics reporters.
kafka.metrics.reporters                          list     ""
    Classes that report metrics of the older kind.
metric.reporters                                 list     org.apache.kafka.common.metrics.JmxReporter
    Classes that report metrics.
metrics.num.samples                              int      2 1..
    Samples kept to compute a metric.
metrics.recording.level                          string   INFO
    How detailed the metrics are.
metrics.sample.window.ms                         long     30000 1..
    Time one sample covers.

# Threads and queues of Kafka's own server
background.threads                               int      10 1..
    Threads for odd jobs.
num.io.threads                                   int      8 1..
    Threads that handle requests.
num.network.threads                              int      3 1..
    Threads per listener that read and write the network.
queued.max.requests                              int      500 1..
    Waiting requests above which no more are read.
delete.records.purgatory.purge.interval.requests int      1
    Requests between clean-ups of waiting deletions of records.
fetch.purgatory.purge.interval.requests          int      1000
    Requests between clean-ups of waiting fetches.
producer.purgatory.purge.interval.requests       int      1000
    Requests between clean-ups of waiting produces.
share.fetch.purgatory.purge.interval.requests    int      1000
    Requests between clean-ups of waiting share fetches.
socket.connection.setup.timeout.max.ms           long     30000
    Longest time to set up a connection, after failures.
socket.connection.setup.timeout.ms               long     10000
    Time to set up a connection.
server.max.startup.time.ms                       long     9223372036854775807 0..
    Longest a start may take.
socket.receive.buffer.bytes                      int      102400
    Receive buffer of a socket; -1 leaves it to the system.
socket.send.buffer.bytes                         int      102400
    Send buffer of a socket; -1 leaves it to the system.

# The metadata quorum
controller.performance.always.log.threshold.ms   long     2000 0..
    Controller events slower than this are always logged.
controller.performance.sample.period.ms          long     60000 100..
    Pause between logs of the controller's performance.
controller.quorum.append.linger.ms               int      25 0..
    Time the quorum's leader gathers writes.
controller.quorum.election.backoff.max.ms        int      1000 0..
    Longest pause between elections.
controller.quorum.fetch.max.bytes                int      1048576 1..
    Most bytes in one fetch of metadata.
controller.quorum.fetch.snapshot.max.bytes       int      1048576 1..
    Most bytes in one fetch of a metadata snapshot.
controller.quorum.request.timeout.ms             int      2000 0..
    Longest wait for an answer within the quorum.
controller.quorum.retry.backoff.ms               int      20 0..
    Pause before a request within the quorum is tried again.
controller.socket.timeout.ms                     int      30000
    Longest wait on a connection to the controller.
internal.metadata.delete.delay.millis            long     60000
    Time before a replaced metadata file is deleted.
internal.metadata.log.segment.bytes              int      null
    Segment size of the metadata log, for tests.
internal.metadata.max.batch.size.in.bytes        int      8388608
    Largest batch of the metadata log.
metadata.log.dir                                 string   null
    Directory of the metadata log.
metadata.log.max.snapshot.interval.ms            long     3600000 0..
    Longest time between snapshots of the metadata.
metadata.log.segment.bytes                       int      1073741824 8388608..
    Segment size of the metadata log.
metadata.log.segment.ms                          long     604800000
    Age at which a segment of the metadata log is closed.
metadata.max.idle.interval.ms                    int      500 0..
    Pause between empty writes to the metadata log.
metadata.max.retention.bytes                     long     104857600
    Size of the metadata log above which old parts go.
metadata.max.retention.ms                        long     604800000
    Age at which parts of the metadata log go.
unstable.api.versions.enable                     boolean  false
    Offer versions of requests still in development.
unstable.feature.versions.enable                 boolean  false
    Allow features still in development.

# Replication
alter.log.dirs.replication.quota.window.num      int      11 1..
    Samples kept of the rate of moves between disks.
alter.log.dirs.replication.quota.window.size.seconds int      1 1..
    Time one such sample covers.
follower.fetch.last.tiered.offset.enable         boolean  false
    Let a new follower start where the remote tier ends.
log.dir.failure.timeout.ms                       long     30000 1..
    Time a broker has to report a failed disk before it stops.
replica.socket.receive.buffer.bytes              int      65536
    Receive buffer of a follower's connection.
replication.quota.window.num                     int      11 1..
    Samples kept of the rate of replication.
replication.quota.window.size.seconds            int      1 1..
    Time one such sample covers.
unclean.leader.election.interval.ms              long     300000 1..
    Pause between looks for unclean elections to hold.

# The remote tier
log.remote.copy.lag.bytes                        long     -1
    Bytes of a log that are kept from the remote tier for a while.
log.remote.copy.lag.ms                           long     0
    Time that records are kept from the remote tier.
log.local.retention.bytes                        long     -2 -2..
    Bytes kept here of a log that also has a remote tier.
log.local.retention.ms                           long     -2 -2..
    Age kept here of a log that also has a remote tier.
remote.fetch.max.wait.ms                         int      500 1..
    Longest a fetch waits for the remote tier.
remote.list.offsets.request.timeout.ms           long     30000 1..
    Longest a look-up of offsets waits for the remote tier.
remote.log.index.file.cache.total.size.bytes     long     1073741824 1..
    Disk space for remote indexes.
remote.log.index.file.cache.ttl.ms               long     900000 -1..
    Time a cached remote index may lie unused.
remote.log.manager.copier.thread.pool.size       int      10 1..
    Threads that copy segments out.
remote.log.manager.copy.max.bytes.per.second     long     9223372036854775807 1..
    Bytes a second copied out.
remote.log.manager.copy.quota.window.num         int      11 1..
    Samples kept of that rate.
remote.log.manager.copy.quota.window.size.seconds int      1 1..
    Time one such sample covers.
remote.log.manager.expiration.thread.pool.size   int      10 1..
    Threads that delete expired remote segments.
remote.log.manager.fetch.max.bytes.per.second    long     9223372036854775807 1..
    Bytes a second fetched back.
remote.log.manager.fetch.quota.window.num        int      11 1..
    Samples kept of that rate.
remote.log.manager.fetch.quota.window.size.seconds int      1 1..
    Time one such sample covers.
remote.log.manager.follower.thread.pool.size     int      2 1..
    Threads for followers' work on the remote tier.
remote.log.manager.task.interval.ms              long     30000 1..
    Pause between rounds of the remote tier's work.
remote.log.manager.task.retry.backoff.max.ms     long     30000 1..
    Longest pause after a failed round.
remote.log.manager.task.retry.backoff.ms         long     500 1..
    First pause after a failed round.
remote.log.manager.task.retry.jitter             double   0.2 0..0.5
    Random share added to that pause.
remote.log.manager.thread.pool.size              int      2 1..
    Threads for the remote tier's work.
remote.log.metadata.custom.metadata.max.bytes    int      128 0..
    Most bytes a plug-in may add to a remote segment's metadata.
remote.log.metadata.manager.class.name string \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager non-empty
    Class that keeps the remote tier's metadata.
remote.log.metadata.manager.class.path           string   null
    Classpath of that class.
remote.log.metadata.manager.impl.prefix          string   rlmm.config. non-empty
    Prefix of settings handed to that class.
remote.log.metadata.manager.listener.name        string   null non-empty
    Listener that class connects to.
remote.log.reader.max.pending.tasks              int      100 1..
    Remote reads that may wait.
remote.log.reader.threads                        int      10 1..
    Threads that read the remote tier.
remote.log.storage.manager.class.name            string   null non-empty
    Class that stores segments remotely.
remote.log.storage.manager.class.path            string   null
    Classpath of that class.
remote.log.storage.manager.impl.prefix           string   rsm.config. non-empty
    Prefix of settings handed to that class.
remote.log.storage.system.enable                 boolean  false
    Turn the remote tier on.

# Consumer groups of the newer protocol, share groups, streams groups
group.streams.assignors                          list     sticky
    Assignors that streams groups may have.
group.streams.rack.aware.assignment.tags         list     ""
    Tags of clients among which standby tasks are spread.
group.streams.topology.description.plugin.class  class    null
    Class that keeps descriptions of topologies.
max.decompressed.message.bytes                   int      2147483639
    Largest size of a batch when it is decompressed.
group.consumer.regex.refresh.interval.ms         int      600000 10000..
    Pause between looks for topics that match a subscription.
group.coordinator.append.linger.ms               int      -1 -1..
    Time the coordinator gathers writes; -1 adapts to the load.
group.coordinator.background.threads             int      2 1..
    Threads for the coordinator's long computations.
group.coordinator.cached.buffer.max.bytes        int      1048588 524288..
    Largest buffer the coordinator keeps for its next write.
group.coordinator.threads                        int      4 1..
    Threads of the coordinator.
group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister
    Class that keeps the state of share groups.
offsets.load.buffer.size                         int      5242880 1..
    Bytes read at a time when committed offsets are loaded.
share.coordinator.append.linger.ms               int      -1 -1..
    Time the share coordinator gathers writes; -1 adapts to the load.
share.coordinator.cached.buffer.max.bytes        int      1048588 524288..
    Largest buffer the share coordinator keeps for its next write.
share.coordinator.load.buffer.size               int      5242880 1..
    Bytes read at a time when share state is loaded.
share.coordinator.threads                        int      1 1..
    Threads of the share coordinator.

# Transactions
transaction.state.log.load.buffer.size           int      5242880 1..
    Bytes read at a time when transactions are loaded.
transaction.two.phase.commit.enable              boolean  false
    Let clients hold a transaction open without a timeout.
"""

_PREFIXES = (
    "config.providers.",
    "listener.name.",
    "metrics.context.",
    "metrics.jmx.",
    "rlmm.config.",
    "rsm.config.",
)
"""Kafka passes settings with these prefixes on to one listener or one plug-in."""

_DROPPED_PREFIX = "zookeeper."
_OTHERS_PREFIXES = ("confluent.", "cruise.control.")
"""Settings with these prefixes belong to software that is often run beside or instead of Kafka."""

_DROPPED = """
advertised.host.name advertised.port auto.include.jmx.reporter broker.id.generation.enable
control.plane.listener.name controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
delegation.token.master.key eligible.leader.replicas.enable group.coordinator.new.enable group.share.enable
group.share.max.groups host.name inter.broker.protocol.version leader.imbalance.per.broker.percentage
log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms
log.unclean.leader.election.enable metadata.log.segment.min.bytes offsets.commit.required.acks
password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret port
quota.consumer.default quota.producer.default reserved.broker.max.id
"""
DROPPED = frozenset(_DROPPED.split())
"""Names of older Kafka versions that 4.x no longer has; old properties files still carry them."""

_OF_TOPICS = """
message.downconversion.enable message.format.version message.timestamp.difference.max.ms
"""
_OF_CLIENTS = """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size
block.on.buffer.full bootstrap.controllers bootstrap.servers buffer.memory check.crcs client.dns.lookup
client.id client.rack consumer_byte_rate controller_mutation_rate default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.wait.ms
fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
interceptor.classes internal.auto.downgrade.txn.commit internal.leave.group.on.close
internal.throw.on.fetch.stable.offset.unsupported interval.ms isolation.level key.deserializer key.serializer
linger.ms match max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes
max.poll.interval.ms max.poll.records max.request.size metadata.fetch.timeout.ms metadata.max.age.ms
metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metrics
partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys producer_byte_rate receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request_percentage retries retry.backoff.max.ms retry.backoff.ms sasl.mechanism
sasl.oauthbearer.header.urlencode security.protocol send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode timeout.ms transaction.timeout.ms transactional.id
value.deserializer value.serializer
"""

OTHER_SETTINGS: dict[str, Setting] = parse_table(OTHER_TABLE)


def why_ignored(name: str) -> str | None:
    """Say why this broker ignores a setting that belongs to Kafka's brokers, topics, groups or clients, now or once.

    Return None for an unknown name.
    """
    if name in DROPPED or name.startswith(_DROPPED_PREFIX):
        return "Kafka 4 no longer has it"
    if name in OTHER_SETTINGS or name.startswith(_PREFIXES):
        return "Kafka has it, but this broker does not use it"
    if name in TOPIC_SETTINGS or name in _OF_TOPICS.split():
        synonyms = SYNONYMS.get(name)
        return "it is a setting of topics" + (f"; for all topics, set {synonyms[0]}" if synonyms else "")
    if name in GROUP_SETTINGS:
        behind = BROKER_SETTINGS_BEHIND.get(name)
        return "it is a setting of groups" + (f"; for all groups, set {behind.default}" if behind else "")
    if name in _OF_CLIENTS.split():
        return "it is a setting of clients"
    if name.startswith(_OTHERS_PREFIXES):
        return "it is not a setting of Kafka"
    return None
