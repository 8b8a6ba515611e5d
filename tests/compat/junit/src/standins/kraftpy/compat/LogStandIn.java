package kraftpy.compat;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import kafka.cluster.Partition;
import kafka.log.LogManager;
import kafka.server.ReplicaManager;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.common.errors.NotLeaderOrFollowerException;
import org.apache.kafka.common.message.DescribeLogDirsResponseData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.requests.MetadataResponse.PartitionMetadata;
import org.apache.kafka.server.HostedPartition;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * In the place of a broker's partitions and logs: its directories on the disk, and what the broker itself answers about
 * them, each time.
 */
final class LogStandIn {
    private static final String FUTURE = "-future";

    private LogStandIn() {
    }

    static LogManager logManager(ServerProcess node) {
        return Mockito.mock(LogManager.class, call -> switch (call.getMethod().getName()) {
            case "getLog" -> log(node, call.getArgument(0), call.getArgument(1));
            case "getLog$default$2" -> false;
            case "liveLogDirs" -> CollectionConverters.asScala(directories(node)).toSeq();
            case "isLogDirOnline" -> isOnline(node, call.getArgument(0));
            default -> StandIns.otherwise(call, "log manager of broker " + node.id());
        });
    }

    static ReplicaManager replicaManager(ServerProcess node) {
        return Mockito.mock(ReplicaManager.class, call -> switch (call.getMethod().getName()) {
            case "logManager" -> logManager(node);
            case "metadataCache" -> MetadataStandIn.cache(node);
            case "localLog", "getLog" -> log(node, call.getArgument(0), false);
            case "localLogOrException" -> logOrThrow(node, call.getArgument(0));
            case "getPartition" -> log(node, call.getArgument(0), false).isDefined()
                ? new HostedPartition.Online<>(partition(node, call))
                : new HostedPartition.None<>();
            case "onlinePartition" -> log(node, call.getArgument(0), false).map(log -> partition(node, call));
            case "futureLogExists" -> log(node, call.getArgument(0), true).isDefined();
            default -> StandIns.otherwise(call, "replica manager of broker " + node.id());
        });
    }

    private static UnifiedLog logOrThrow(ServerProcess node, TopicPartition partition) {
        Option<UnifiedLog> found = log(node, partition, false);
        if (found.isEmpty()) {
            throw new NotLeaderOrFollowerException("broker " + node.id() + " has no log of " + partition);
        }
        return found.get();
    }

    private static Partition partition(ServerProcess node, InvocationOnMock asked) {
        TopicPartition partition = asked.getArgument(0);
        return Mockito.mock(Partition.class, call -> {
            Optional<PartitionMetadata> found =
                MetadataStandIn.partition(node, partition.topic(), partition.partition());
            Optional<Integer> leader = found.flatMap(each -> each.leaderId);
            boolean leads = leader.isPresent() && leader.get() == node.id();
            return switch (call.getMethod().getName()) {
                case "topicPartition" -> partition;
                case "getLeaderEpoch" -> found.flatMap(each -> each.leaderEpoch).orElse(-1);
                case "leaderReplicaIdOpt" -> Option.apply(leader.orElse(null));
                case "isLeader" -> leads;
                case "leaderIdIfLocal" -> Option.apply(leads ? leader.get() : null);
                case "leaderLogIfLocal" -> leads ? log(node, partition, false) : Option.empty();
                case "localLogOrException" -> logOrThrow(node, partition);
                case "log" -> log(node, partition, false);
                case "inSyncReplicaIds" -> CollectionConverters.asScala(
                    found.map(each -> each.inSyncReplicaIds).orElse(List.of())).toSet();
                default -> StandIns.otherwise(call, "partition " + partition + " of broker " + node.id());
            };
        });
    }

    private static Option<UnifiedLog> log(ServerProcess node, TopicPartition partition, boolean isFuture) {
        return Option.apply(directory(node, partition, isFuture).map(found -> logIn(node, partition, found)).orElse(null));
    }

    private static UnifiedLog logIn(ServerProcess node, TopicPartition partition, File directory) {
        return Mockito.mock(UnifiedLog.class, call -> {
            try {
                return answer(node, partition, directory, call);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        });
    }

    private static Object answer(
        ServerProcess node, TopicPartition partition, File directory, InvocationOnMock call) throws IOException {
        return switch (call.getMethod().getName()) {
            case "topicPartition" -> partition;
            case "dir" -> directory;
            case "parentDir" -> directory.getParent();
            case "parentDirFile" -> directory.getParentFile();
            case "config" -> config(node, partition.topic());
            case "logStartOffset" -> fetched(node, partition).logStartOffset();
            case "highWatermark" -> fetched(node, partition).highWatermark();
            case "logEndOffset" -> end(node, partition);
            case "numberOfSegments" -> segments(directory).size();
            case "logSegments" -> segments(directory);
            case "size" -> FromOutside.logDirectories(node).stream()
                .filter(found -> found.logDir().equals(directory.getParent()))
                .flatMap(found -> found.topics().stream())
                .filter(found -> found.name().equals(partition.topic()))
                .flatMap(found -> found.partitions().stream())
                .filter(found -> found.partitionIndex() == partition.partition())
                .mapToLong(DescribeLogDirsResponseData.DescribeLogDirsPartition::partitionSize)
                .sum();
            default -> StandIns.otherwise(call, "log of " + partition + " of broker " + node.id());
        };
    }

    /**
     * Return where the log ends, if this broker leads the partition. A follower tells only how far its log is committed,
     * which is never further.
     */
    private static long end(ServerProcess node, TopicPartition partition) throws IOException {
        long end = FromOutside.endOfLog(node, partition,
            MetadataStandIn.partition(node, partition.topic(), partition.partition())
                .flatMap(found -> found.leaderEpoch).orElse(0));
        return end >= 0 ? end : fetched(node, partition).highWatermark();
    }

    private static FetchResponseData.PartitionData fetched(ServerProcess node, TopicPartition partition)
        throws IOException {
        FetchResponseData.PartitionData found = FromOutside.fetchNothing(node, partition);
        if (found.highWatermark() < 0) {
            throw new KafkaStorageException("broker " + node.id() + " does not tell of " + partition);
        }
        return found;
    }

    private static LogConfig config(ServerProcess node, String topic) {
        Map<String, String> settings = new HashMap<>(
            FromOutside.settings(node, new ConfigResource(ConfigResource.Type.TOPIC, topic)));
        settings.keySet().retainAll(LogConfig.configNames());
        return new LogConfig(settings);
    }

    /** Return the segments that there are; only where they begin and their sizes are known. */
    private static List<LogSegment> segments(File directory) {
        String[] names = Optional.ofNullable(directory.list((in, name) -> name.endsWith(".log"))).orElse(new String[0]);
        return Arrays.stream(names).sorted().map(name -> Mockito.mock(LogSegment.class, call ->
            switch (call.getMethod().getName()) {
                case "baseOffset" -> Long.parseLong(name.substring(0, name.length() - ".log".length()));
                case "size" -> (int) new File(directory, name).length();
                default -> StandIns.otherwise(call, "segment " + name);
            })).toList();
    }

    private static Collection<File> directories(ServerProcess node) {
        String all = node.settings().getOrDefault("log.dirs", node.settings().get("log.dir"));
        return Arrays.stream(all.split(",")).map(each -> new File(each.strip()).getAbsoluteFile())
            .filter(each -> isOnline(node, each.getPath())).collect(Collectors.toList());
    }

    private static boolean isOnline(ServerProcess node, String directory) {
        try {
            return FromOutside.logDirectories(node).stream()
                .anyMatch(found -> found.errorCode() == 0 && found.logDir().equals(directory));
        } catch (IOException error) {
            return new File(directory).isDirectory();
        }
    }

    private static Optional<File> directory(ServerProcess node, TopicPartition partition, boolean isFuture) {
        String all = node.settings().getOrDefault("log.dirs", node.settings().get("log.dir"));
        return Arrays.stream(all.split(",")).flatMap(each -> {
            File[] found = new File(each.strip()).getAbsoluteFile().listFiles((in, name) -> isFuture
                ? name.startsWith(partition + ".") && name.endsWith(FUTURE)
                : name.equals(partition.toString()));
            return found == null ? Stream.empty() : Arrays.stream(found);
        }).findFirst();
    }
}
