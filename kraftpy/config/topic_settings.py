"""The topic settings, under Kafka's names, and the broker settings their defaults come from.

The form of the table is that of `broker_settings`.
"""

from __future__ import annotations

TOPIC_TABLE = """
cleanup.policy                                   list     delete {compact,delete}
    Cleanup policy for old segments: delete, compact, or both.
compression.type                                 string   producer {uncompressed,zstd,lz4,snappy,gzip,producer}
    Compression type of stored batches; producer retains the producer's.
compression.gzip.level                           int      -1 -1,1..9
    Compression level if compression.type is gzip; -1 means the default.
compression.lz4.level                            int      9 1..17
    Compression level if compression.type is lz4.
compression.zstd.level                           int      3 -131072..22
    Compression level if compression.type is zstd.
delete.retention.ms                              long     86400000 0..
    Time to retain tombstones and transaction markers of compacted topics.
errors.deadletterqueue.group.enable              boolean  false
    Whether share groups may write dead letters to the topic.
file.delete.delay.ms                             long     60000 0..
    Time to wait before deleting a segment's files after its removal from the log.
flush.messages                                   long     9223372036854775807 1..
    Number of records accumulated on a partition before they are flushed to disk.
flush.ms                                         long     9223372036854775807 0..
    Maximum time before a record is flushed to disk.
index.interval.bytes                             int      4096 0..
    Interval in bytes between index entries.
internal.segment.bytes                           int      null
    Segment size without a lower bound, for tests; takes precedence over segment.bytes.
kraftpy.flush.before.ack                         boolean  none->false
    Sync records to disk before they are acknowledged, including replicated ones.
max.compaction.lag.ms                            long     9223372036854775807 1..
    Maximum time a record remains ineligible for compaction.
max.message.bytes                                int      1048588 0..
    The largest record batch size allowed (after compression).
message.timestamp.after.max.ms                   long     3600000 0..
    Maximum time by which a record's timestamp may be after the broker's clock.
message.timestamp.before.max.ms                  long     9223372036854775807 0..
    Maximum time by which a record's timestamp may be before the broker's clock.
message.timestamp.type                           string   CreateTime {CreateTime,LogAppendTime}
    Whether record timestamps are the producer's (CreateTime) or the broker's (LogAppendTime).
min.cleanable.dirty.ratio                        double   0.5 0..1
    Minimum ratio of dirty log to total log for the log to be eligible for cleaning.
min.compaction.lag.ms                            long     0 0..
    Minimum time a record remains uncompacted.
min.insync.replicas                              int      1 1..
    Minimum number of in-sync replicas that must have a record for a write with acks=all to succeed.
preallocate                                      boolean  false
    Preallocate the file when a new segment is created.
retention.bytes                                  long     -1
    Maximum size of a partition before old segments are deleted; -1 means no limit.
retention.ms                                     long     604800000 -1..
    Time to keep a segment before it is deleted; -1 means no limit.
segment.bytes                                    int      1073741824 1048576..
    Maximum size of a log segment file.
segment.index.bytes                              int      10485760 4..
    Maximum size of a segment's index.
segment.jitter.ms                                long     0 0..
    Maximum random jitter to subtract from segment.ms, to avoid rolling many segments at once.
segment.ms                                       long     604800000 1..
    Maximum time before a new segment is rolled out.
unclean.leader.election.enable                   boolean  false
    Allow replicas that are not in sync to be elected leader as a last resort, even though data may be lost.
follower.replication.throttled.replicas          list     "" throttled
    Replicas whose replication is throttled on the follower side.
leader.replication.throttled.replicas            list     "" throttled
    Replicas whose replication is throttled on the leader side.
local.retention.bytes                            long     -2 -2..
    Maximum size of a log in local storage if it also has a remote tier.
local.retention.ms                               long     -2 -2..
    Time to keep a segment in local storage if the log also has a remote tier.
remote.log.copy.disable                          boolean  false
    Stop copying to the remote tier.
remote.log.delete.on.disable                     boolean  false
    Delete the remote tier's files once it is disabled.
remote.storage.enable                            boolean  false
    Enable tiered storage. (kraftpy has no remote tier)
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
"""For each topic setting, the broker settings that give its default; the first one with a value wins."""

DESCRIBED_SYNONYMS: dict[str, str] = {
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
}
"""Like `SYNONYMS`, for settings without effect: the broker settings appear only in their descriptions."""

NO_EFFECT = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)
"""Topic settings that are stored and described, but have no effect here."""
