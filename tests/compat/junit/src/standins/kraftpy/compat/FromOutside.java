package kraftpy.compat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.DescribeLogDirsRequestData;
import org.apache.kafka.common.message.DescribeLogDirsResponseData;
import org.apache.kafka.common.message.DescribeQuorumResponseData;
import org.apache.kafka.common.message.DescribeQuorumResponseData.ReplicaState;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.OffsetForLeaderEpochRequestData.OffsetForLeaderPartition;
import org.apache.kafka.common.message.OffsetForLeaderEpochRequestData.OffsetForLeaderTopic;
import org.apache.kafka.common.message.OffsetForLeaderEpochRequestData.OffsetForLeaderTopicCollection;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.DescribeLogDirsRequest;
import org.apache.kafka.common.requests.DescribeLogDirsResponse;
import org.apache.kafka.common.requests.DescribeQuorumRequest;
import org.apache.kafka.common.requests.DescribeQuorumResponse;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.requests.FetchResponse;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.requests.OffsetsForLeaderEpochRequest;
import org.apache.kafka.common.requests.OffsetsForLeaderEpochResponse;
import org.apache.kafka.raft.LeaderAndEpoch;
import org.apache.kafka.server.IntegrationTestUtils;

/**
 * Asks the nodes of a cluster, one by one, for what Kafka's own test kit reads in their memory.
 *
 * <p>Requests go to the named node, over a connection of their own: a client would pick a node itself.
 */
public final class FromOutside {
    private static final TopicPartition METADATA = new TopicPartition("__cluster_metadata", 0);

    private FromOutside() {
    }

    /** Wait until each of these brokers names all of them as brokers of the cluster. */
    public static void awaitKnown(Collection<ServerProcess> brokers) {
        Set<Integer> ids = brokers.stream().map(ServerProcess::id).collect(Collectors.toSet());
        for (ServerProcess broker : brokers) {
            Waiting.until("broker " + broker.id() + " knows brokers " + ids, () ->
                metadata(broker, List.of()).brokersById().keySet().containsAll(ids));
        }
    }

    /** Wait until each of these brokers knows the topic with exactly this many partitions, which all have leaders. */
    static void awaitTopic(Collection<ServerProcess> brokers, String topic, int partitions) {
        for (ServerProcess broker : brokers) {
            Waiting.until("broker " + broker.id() + " knows topic " + topic, () ->
                metadata(broker, List.of(topic)).topicMetadata().stream().allMatch(found ->
                    found.error() == Errors.NONE && found.partitionMetadata().size() == partitions));
        }
    }

    /** Wait until none of these brokers knows the topic. */
    static void awaitNoTopic(Collection<ServerProcess> brokers, String topic) {
        for (ServerProcess broker : brokers) {
            Waiting.until("broker " + broker.id() + " has forgotten topic " + topic, () ->
                metadata(broker, List.of(topic)).errors().get(topic) == Errors.UNKNOWN_TOPIC_OR_PARTITION);
        }
    }

    /**
     * Wait until these nodes have all that is in the metadata log now, and the brokers among them say the same of all
     * topics.
     */
    static void awaitSameMetadata(Collection<ServerProcess> nodes, List<ServerProcess> brokers) {
        if (brokers.isEmpty()) {
            return;
        }
        ServerProcess first = brokers.get(0);
        long[] end = {-1};
        Waiting.until("broker " + first.id() + " describes the quorum", () -> {
            end[0] = quorum(first).highWatermark();
            return true;
        });
        Set<Integer> ids = nodes.stream().map(ServerProcess::id).collect(Collectors.toSet());
        Waiting.until("nodes " + ids + " have the metadata log up to " + end[0], () -> {
            DescribeQuorumResponseData.PartitionData quorum = quorum(first);
            Set<Integer> there = there(quorum.currentVoters(), end[0]);
            there.addAll(there(quorum.observers(), end[0]));
            return there.containsAll(ids);
        });
        Waiting.until("brokers say the same of all topics", () -> {
            String said = topics(first);
            for (ServerProcess broker : brokers) {
                if (!topics(broker).equals(said)) {
                    return false;
                }
            }
            return true;
        });
    }

    /** Return the end of the metadata log as this controller, or the leader that it asks, has committed it. */
    static long endOfMetadata(ServerProcess node) {
        try {
            return quorum(node).highWatermark();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Return how far this node has the metadata log, as far as the quorum's leader has heard. */
    static long metadataOf(ServerProcess node) {
        try {
            DescribeQuorumResponseData.PartitionData quorum = quorum(node);
            return Stream.concat(quorum.currentVoters().stream(), quorum.observers().stream())
                .filter(replica -> replica.replicaId() == node.id())
                .mapToLong(ReplicaState::logEndOffset)
                .findFirst()
                .orElse(0);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Set<Integer> there(List<ReplicaState> replicas, long end) {
        return replicas.stream()
            .filter(replica -> replica.logEndOffset() >= end)
            .map(ReplicaState::replicaId)
            .collect(Collectors.toSet());
    }

    private static String topics(ServerProcess broker) throws IOException {
        return metadata(broker, null).topicMetadata().stream().map(Object::toString).sorted().toList().toString();
    }

    /** Ask this broker for these topics, or for all of them where the list is null. */
    static MetadataResponse metadata(ServerProcess broker, List<String> topics) throws IOException {
        MetadataRequest.Builder builder = topics == null
            ? MetadataRequest.Builder.allTopics()
            : new MetadataRequest.Builder(topics, false);
        return IntegrationTestUtils.connectAndReceive(builder.build(), broker.askedPort());
    }

    /** Read no records of a partition on this broker: the answer tells where the log begins and what is committed. */
    static FetchResponseData.PartitionData fetchNothing(ServerProcess broker, TopicPartition partition)
        throws IOException {
        FetchResponseData.PartitionData found = fetchNothing(broker, partition, 0);
        return found.errorCode() == Errors.OFFSET_OUT_OF_RANGE.code()
            ? fetchNothing(broker, partition, startOfLog(broker, partition))
            : found;
    }

    /** Return where the log of a partition begins, on its leader. */
    private static long startOfLog(ServerProcess broker, TopicPartition partition) {
        try (Admin admin = admin(broker)) {
            return admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).partitionResult(partition).get().offset();
        } catch (ExecutionException error) {
            throw new IllegalStateException(error.getCause());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private static FetchResponseData.PartitionData fetchNothing(
        ServerProcess broker, TopicPartition partition, long offset) throws IOException {
        Uuid id = metadata(broker, List.of(partition.topic())).topicMetadata().iterator().next().topicId();
        Map<TopicPartition, FetchRequest.PartitionData> asked =
            Map.of(partition, new FetchRequest.PartitionData(id, offset, -1, 0, Optional.empty()));
        FetchResponse answer = IntegrationTestUtils.connectAndReceive(
            FetchRequest.Builder.forConsumer(ApiKeys.FETCH.latestVersion(), 0, 0, asked).build(), broker.askedPort());
        return answer.data().responses().get(0).partitions().get(0);
    }

    /** Return where a partition's log ends, as its leader tells it; -1 if this broker does not lead it. */
    static long endOfLog(ServerProcess broker, TopicPartition partition, int epoch) throws IOException {
        OffsetForLeaderTopicCollection asked = new OffsetForLeaderTopicCollection();
        asked.add(new OffsetForLeaderTopic().setTopic(partition.topic()).setPartitions(List.of(
            new OffsetForLeaderPartition().setPartition(partition.partition()).setLeaderEpoch(epoch))));
        OffsetsForLeaderEpochResponse answer = IntegrationTestUtils.connectAndReceive(
            OffsetsForLeaderEpochRequest.Builder.forConsumer(asked).build(), broker.askedPort());
        return answer.data().topics().iterator().next().partitions().get(0).endOffset();
    }

    static List<DescribeLogDirsResponseData.DescribeLogDirsResult> logDirectories(ServerProcess broker)
        throws IOException {
        DescribeLogDirsResponse answer = IntegrationTestUtils.connectAndReceive(
            new DescribeLogDirsRequest.Builder(new DescribeLogDirsRequestData().setTopics(null)).build(),
            broker.askedPort());
        return answer.data().results();
    }

    /** Return all settings of a resource as this broker tells them. */
    static Map<String, String> settings(ServerProcess broker, ConfigResource resource) {
        return described(broker, resource).stream().filter(each -> each.value() != null)
            .collect(Collectors.toMap(ConfigEntry::name, ConfigEntry::value));
    }

    /** Return the settings that a topic or a group has of its own. */
    static Map<String, String> ownSettings(ServerProcess broker, ConfigResource resource) {
        return described(broker, resource).stream()
            .filter(each -> each.source() == ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG
                || each.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
            .collect(Collectors.toMap(ConfigEntry::name, ConfigEntry::value));
    }

    /** Return an administrator with all rights. */
    public static Admin admin(ServerProcess broker) {
        return Admin.create(Map.of("bootstrap.servers", "localhost:" + broker.askedPort()));
    }

    /** Return the leader of the quorum as this node knows it. */
    static LeaderAndEpoch leader(ServerProcess node) {
        try {
            DescribeQuorumResponseData.PartitionData quorum = quorum(node);
            return quorum.leaderId() < 0
                ? LeaderAndEpoch.UNKNOWN
                : new LeaderAndEpoch(OptionalInt.of(quorum.leaderId()), quorum.leaderEpoch());
        } catch (IOException error) {
            return LeaderAndEpoch.UNKNOWN;
        }
    }

    private static Collection<ConfigEntry> described(ServerProcess broker, ConfigResource resource) {
        try (Admin admin = admin(broker)) {
            return admin.describeConfigs(List.of(resource)).all().get().get(resource).entries();
        } catch (ExecutionException error) {
            throw new IllegalStateException(error.getCause());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private static DescribeQuorumResponseData.PartitionData quorum(ServerProcess broker) throws IOException {
        DescribeQuorumResponse answer = IntegrationTestUtils.connectAndReceive(
            new DescribeQuorumRequest.Builder(DescribeQuorumRequest.singletonRequest(METADATA)).build(), broker.askedPort());
        return answer.data().topics().get(0).partitions().get(0);
    }
}
