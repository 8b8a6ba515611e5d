package kraftpy.compat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.DescribeQuorumResponseData;
import org.apache.kafka.common.message.DescribeQuorumResponseData.ReplicaState;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.DescribeQuorumRequest;
import org.apache.kafka.common.requests.DescribeQuorumResponse;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
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
        return IntegrationTestUtils.connectAndReceive(builder.build(), broker.port());
    }

    private static DescribeQuorumResponseData.PartitionData quorum(ServerProcess broker) throws IOException {
        DescribeQuorumResponse answer = IntegrationTestUtils.connectAndReceive(
            new DescribeQuorumRequest.Builder(DescribeQuorumRequest.singletonRequest(METADATA)).build(), broker.port());
        return answer.data().topics().get(0).partitions().get(0);
    }
}
