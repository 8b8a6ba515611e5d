package kraftpy.compat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.ApiError;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.requests.MetadataResponse.PartitionMetadata;
import org.apache.kafka.common.requests.MetadataResponse.TopicMetadata;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.controller.ResultOrError;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.metadata.KRaftMetadataCache;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/** In the place of what a node knows of the cluster: what brokers answer to Metadata and DescribeQuorum, each time. */
final class MetadataStandIn {
    /** The answer to Metadata does not tell it. */
    private static final int UNKNOWN_PARTITION_EPOCH = -1;

    private MetadataStandIn() {
    }

    static KRaftMetadataCache cache(ServerProcess node) {
        return Mockito.mock(KRaftMetadataCache.class, call -> {
            try {
                return answer(node, call);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        });
    }

    private static Object answer(ServerProcess node, InvocationOnMock call) throws IOException {
        return switch (call.getMethod().getName()) {
            case "numPartitions" -> topic(node, call.getArgument(0)).map(found -> found.partitionMetadata().size());
            case "contains" -> call.getArgument(0) instanceof TopicPartition asked
                ? partition(node, asked.topic(), asked.partition()).isPresent()
                : topic(node, call.getArgument(0)).isPresent();
            case "getAllTopics" -> all(node).topicMetadata().stream()
                .map(TopicMetadata::topic).collect(Collectors.toSet());
            case "getTopicId" -> topic(node, call.getArgument(0)).map(TopicMetadata::topicId).orElse(Uuid.ZERO_UUID);
            case "getTopicName" -> all(node).topicMetadata().stream()
                .filter(found -> found.topicId().equals(call.getArgument(0))).map(TopicMetadata::topic).findFirst();
            case "getLeaderAndIsr" -> partition(node, call.getArgument(0), call.getArgument(1))
                .map(MetadataStandIn::leaderAndIsr);
            case "getAliveBrokerNodes" -> List.copyOf(FromOutside.metadata(node, List.of()).brokers());
            case "hasAliveBroker" -> brokers(node).contains(call.<Integer>getArgument(0));
            case "getAliveBrokerNode" -> FromOutside.metadata(node, List.of()).brokers().stream()
                .filter(found -> found.id() == call.<Integer>getArgument(0)).findFirst();
            case "getPartitionLeaderEndpoint" -> partition(node, call.getArgument(0), call.getArgument(1))
                .flatMap(found -> found.leaderId)
                .map(leader -> Optional.ofNullable(brokersById(node).get(leader)).orElse(Node.noNode()));
            case "topicNamesToIds" -> all(node).topicMetadata().stream()
                .collect(Collectors.toMap(TopicMetadata::topic, TopicMetadata::topicId));
            case "topicConfig" -> settings(node, ConfigResource.Type.TOPIC, call.getArgument(0));
            case "groupConfig" -> settings(node, ConfigResource.Type.GROUP, call.getArgument(0));
            case "currentImage", "getImage" -> image(node);
            default -> StandIns.otherwise(call, "metadata cache of broker " + node.id());
        };
    }

    /** In the place of a controller: it knows topics' ids, of which it asks a broker. */
    static Controller controller(ServerProcess node, Supplier<List<ServerProcess>> brokers) {
        return Mockito.mock(Controller.class, call -> switch (call.getMethod().getName()) {
            case "isActive" -> FromOutside.leader(node).isLeader(node.id());
            case "findAllTopicIds" -> CompletableFuture.completedFuture(ids(brokers));
            case "findTopicIds" -> {
                Map<String, Uuid> known = ids(brokers);
                Collection<String> names = call.getArgument(1);
                yield CompletableFuture.completedFuture(
                    names.stream().collect(Collectors.toMap(name -> name, name -> idOrError(known.get(name)))));
            }
            default -> StandIns.otherwise(call, "controller");
        });
    }

    private static Map<String, Uuid> ids(Supplier<List<ServerProcess>> brokers) throws IOException {
        return all(brokers.get().get(0)).topicMetadata().stream()
            .collect(Collectors.toMap(TopicMetadata::topic, TopicMetadata::topicId));
    }

    private static ResultOrError<Uuid> idOrError(Uuid id) {
        return id == null
            ? new ResultOrError<>(new ApiError(Errors.UNKNOWN_TOPIC_OR_PARTITION))
            : new ResultOrError<>(id);
    }

    private static LeaderAndIsr leaderAndIsr(PartitionMetadata found) {
        return new LeaderAndIsr(
            found.leaderId.orElse(LeaderAndIsr.NO_LEADER),
            found.leaderEpoch.orElse(LeaderAndIsr.INITIAL_LEADER_EPOCH),
            found.inSyncReplicaIds,
            LeaderRecoveryState.RECOVERED,
            UNKNOWN_PARTITION_EPOCH);
    }

    /** Knows how far the broker has the metadata log. */
    private static MetadataImage image(ServerProcess node) {
        return Mockito.mock(MetadataImage.class, call -> switch (call.getMethod().getName()) {
            case "highestOffsetAndEpoch" -> new OffsetAndEpoch(FromOutside.metadataOf(node) - 1, 0);
            default -> StandIns.otherwise(call, "metadata image of broker " + node.id());
        });
    }

    private static Properties settings(ServerProcess node, ConfigResource.Type type, String name) {
        Properties settings = new Properties();
        settings.putAll(FromOutside.ownSettings(node, new ConfigResource(type, name)));
        return settings;
    }

    private static Set<Integer> brokers(ServerProcess node) {
        return brokersById(node).keySet();
    }

    private static Map<Integer, Node> brokersById(ServerProcess node) {
        try {
            return FromOutside.metadata(node, List.of()).brokersById();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static MetadataResponse all(ServerProcess node) throws IOException {
        return FromOutside.metadata(node, null);
    }

    private static Optional<TopicMetadata> topic(ServerProcess node, String name) throws IOException {
        return FromOutside.metadata(node, List.of(name)).topicMetadata().stream()
            .filter(found -> found.error() == Errors.NONE).findFirst();
    }

    static Optional<PartitionMetadata> partition(ServerProcess node, String name, int number)
        throws IOException {
        return topic(node, name).flatMap(found -> found.partitionMetadata().stream()
            .filter(each -> each.partition() == number).findFirst());
    }
}
