"""The topic settings, under Kafka's names, and the broker settings their defaults come from.

The form of the table is that of `broker_settings`.
"""

from __future__ import annotations

TOPIC_TABLE = """
cleanup.policy                                   list     delete {compact,delete}
    What happens to old segments: delete, compact, or both.
compression.type                                 string   producer {uncompressed,zstd,lz4,snappy,gzip,producer}
    Codec of stored batches; producer keeps the one they came in.
compression.gzip.level                           int      -1 -1,1..9
    Level of gzip where the broker compresses; -1 is its default.
compression.lz4.level                            int      9 1..17
    Level of lz4 where the broker compresses.
compression.zstd.level                           int      3 -131072..22
    Level of zstd where the broker compresses.
delete.retention.ms                              long     86400000 0..
    How long a tombstone stays for readers to see.
file.delete.delay.ms                             long     60000 0..
    Time between taking a segment out of the log and deleting its files.
flush.messages                                   long     9223372036854775807 1..
    Records after which the log is synced to disk.
flush.ms                                         long     9223372036854775807 0..
    Longest a record waits to be synced.
index.interval.bytes                             int      4096 0..
    Bytes of log between two entries of an index.
internal.segment.bytes                           int      null
    Segment size without the lower bound, for tests; before segment.bytes.
kraftpy.flush.before.ack                         boolean  none->false
    Sync records to disk before they are acknowledged, replicated ones too.
max.compaction.lag.ms                            long     9223372036854775807 1..
    Age above which a record must be compacted.
max.message.bytes                                int      1048588 0..
    Largest record batch a producer may send.
message.timestamp.after.max.ms                   long     3600000 0..
    How far ahead of the broker's clock a record may be stamped.
message.timestamp.before.max.ms                  long     9223372036854775807 0..
    How far behind the broker's clock a record may be stamped.
message.timestamp.type                           string   CreateTime {CreateTime,LogAppendTime}
    Whose clock stamps records: the producer's or the broker's.
min.cleanable.dirty.ratio                        double   0.5 0..1
    Share of uncleaned bytes from which the log is cleaned.
min.compaction.lag.ms                            long     0 0..
    Age below which a record is not compacted.
min.insync.replicas                              int      1 1..
    Replicas that must have a record before acks=all is answered.
preallocate                                      boolean  false
    Give a new segment the space for its full size at once.
retention.bytes                                  long     -1
    Size of a partition above which old segments go; -1 is no limit.
retention.ms                                     long     604800000 -1..
    Age at which a segment goes; -1 is never.
segment.bytes                                    int      1073741824 1048576..
    Size at which a segment is closed and the next begun.
segment.index.bytes                              int      10485760 4..
    Largest index of a segment.
segment.jitter.ms                                long     0 0..
    Most to subtract from segment.ms at random, so that logs do not roll at once.
segment.ms                                       long     604800000 1..
    Age at which a segment is closed.
unclean.leader.election.enable                   boolean  false
    Let a replica that lags become leader, losing records.
follower.replication.throttled.replicas          list     "" throttled
    Replicas that fetch under the replication quota.
leader.replication.throttled.replicas            list     "" throttled
    Replicas that are fetched from under the replication quota.
local.retention.bytes                            long     -2 -2..
    Bytes kept here of a log that also has a remote tier.
local.retention.ms                               long     -2 -2..
    Age kept here of a log that also has a remote tier.
remote.log.copy.disable                          boolean  false
    Stop copying to the remote tier.
remote.log.delete.on.disable                     boolean  false
    Delete the remote tier's files once it is disabled.
remote.storage.enable                            boolean  false
    Keep old segments in a remote tier. (no remote tier here)
"""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "kraftpy.flush.before.ack": ("kraftpy.flush.before.ack",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
"""Topic setting -> the broker settings that give its default, the first that has a value winning."""

NO_EFFECT = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)
"""Topic settings that are kept and shown, and change nothing here."""
