package kraftpy.compat;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.function.Supplier;
import kafka.network.SocketServer;
import kafka.raft.KafkaRaftManager;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaApis;
import kafka.server.KafkaConfig;
import kafka.server.SharedServer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.image.loader.MetadataLoader;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.raft.KafkaRaftClient;
import org.apache.kafka.raft.LogOffsetMetadata;
import org.apache.kafka.raft.RaftLog;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/**
 * Objects in the place of Kafka's servers: they know what can be known from outside, and can be started and stopped.
 *
 * <p>Every other method throws {@link LooksInside}.
 */
public final class StandIns {
    private StandIns() {
    }

    /** Return a broker that is this process. */
    public static BrokerServer broker(ServerProcess node, String clusterId, Runnable afterStart) {
        return broker(node, config(node), clusterId, afterStart);
    }

    /** Return a broker that is this process, and tells of this configuration. */
    static BrokerServer broker(ServerProcess node, KafkaConfig config, String clusterId, Runnable afterStart) {
        SocketServer socketServer = socketServer(node);
        return Mockito.mock(BrokerServer.class, call -> switch (call.getMethod().getName()) {
            case "startup" -> {
                node.start();
                node.awaitListening();
                afterStart.run();
                yield null;
            }
            case "shutdown" -> {
                node.stop();
                yield null;
            }
            case "awaitShutdown" -> null;
            case "isShutdown" -> node.hasStarted() && !node.isAlive();
            case "brokerState" -> node.isAlive() ? BrokerState.RUNNING : BrokerState.NOT_RUNNING;
            case "boundPort" -> node.port(call.getArgument(0));
            case "socketServer" -> socketServer;
            case "clusterId" -> clusterId;
            case "config" -> config;
            case "metadataCache" -> MetadataStandIn.cache(node);
            case "dataPlaneRequestProcessor" -> requestProcessor(node, clusterId);
            case "logManager" -> LogStandIn.logManager(node);
            case "replicaManager" -> LogStandIn.replicaManager(node);
            case "groupConfigManager" -> groupConfigManager(node);
            case "sharedServer" -> sharedServer(node);
            case "groupCoordinator" -> groupCoordinator(node, config);
            case "authorizerPlugin" -> AuthorizerStandIn.of(node, () -> List.of(node));
            default -> otherwise(call, "broker " + node.id());
        });
    }

    /** Return a controller that is in this process, of a cluster whose running brokers can be asked for. */
    public static ControllerServer controller(
        ServerProcess node, String clusterId, Supplier<List<ServerProcess>> brokers) {
        KafkaConfig config = config(node);
        SocketServer socketServer = socketServer(node);
        return Mockito.mock(ControllerServer.class, call -> switch (call.getMethod().getName()) {
            case "startup" -> {
                node.start();
                node.awaitListening();
                yield null;
            }
            case "shutdown" -> {
                node.stop();
                yield null;
            }
            case "awaitShutdown" -> null;
            case "socketServer" -> socketServer;
            case "clusterId" -> clusterId;
            case "config" -> config;
            case "raftManager" -> raftManager(node);
            case "controller" -> MetadataStandIn.controller(node, brokers);
            case "authorizerPlugin" -> AuthorizerStandIn.of(node, brokers);
            default -> otherwise(call, "controller " + node.id());
        });
    }

    private static SocketServer socketServer(ServerProcess node) {
        return Mockito.mock(SocketServer.class, call -> switch (call.getMethod().getName()) {
            case "boundPort" -> node.port(call.getArgument(0));
            default -> otherwise(call, "listeners of node " + node.id());
        });
    }

    /** Knows the settings of groups, which it asks the broker for. */
    private static GroupConfigManager groupConfigManager(ServerProcess node) {
        return Mockito.mock(GroupConfigManager.class, call -> switch (call.getMethod().getName()) {
            case "groupConfig" -> groupConfig(node, call.getArgument(0));
            default -> otherwise(call, "settings of groups of broker " + node.id());
        });
    }

    private static Optional<GroupConfig> groupConfig(ServerProcess node, String group) {
        Map<String, String> own =
            FromOutside.ownSettings(node, new ConfigResource(ConfigResource.Type.GROUP, group));
        return own.isEmpty() ? Optional.empty() : Optional.of(new GroupConfig(own));
    }

    /** Knows what the broker knows of the cluster. */
    private static KafkaApis requestProcessor(ServerProcess node, String clusterId) {
        return Mockito.mock(KafkaApis.class, call -> switch (call.getMethod().getName()) {
            case "metadataCache" -> MetadataStandIn.cache(node);
            case "clusterId" -> clusterId;
            case "brokerId" -> node.id();
            case "authorizerPlugin" -> AuthorizerStandIn.of(node, () -> List.of(node));
            default -> otherwise(call, "request processor of broker " + node.id());
        });
    }

    /** Knows with which settings its topic is made, and those of groups. */
    private static GroupCoordinator groupCoordinator(ServerProcess node, KafkaConfig config) {
        return Mockito.mock(GroupCoordinator.class, call -> switch (call.getMethod().getName()) {
            case "groupMetadataTopicConfigs" -> {
                Properties settings = new Properties();
                settings.put("cleanup.policy", "compact");
                settings.put("compression.type", "producer");
                settings.put("segment.bytes", config.getInt("offsets.topic.segment.bytes").toString());
                yield settings;
            }
            case "groupConfig" -> groupConfig(node, call.getArgument(0));
            default -> otherwise(call, "group coordinator");
        });
    }

    /** Knows up to where the broker has the metadata log. */
    private static SharedServer sharedServer(ServerProcess node) {
        MetadataLoader loader = Mockito.mock(MetadataLoader.class, call -> switch (call.getMethod().getName()) {
            case "lastAppliedOffset" -> FromOutside.metadataOf(node) - 1;
            default -> otherwise(call, "metadata loader of broker " + node.id());
        });
        return Mockito.mock(SharedServer.class, call -> switch (call.getMethod().getName()) {
            case "loader" -> loader;
            default -> otherwise(call, "shared server of broker " + node.id());
        });
    }

    /** Knows where the metadata log ends, and who leads the quorum. */
    public static KafkaRaftManager<ApiMessageAndVersion> raftManager(ServerProcess node) {
        RaftLog log = Mockito.mock(RaftLog.class, call -> switch (call.getMethod().getName()) {
            case "endOffset", "highWatermark" -> new LogOffsetMetadata(FromOutside.endOfMetadata(node));
            default -> otherwise(call, "metadata log");
        });
        return Mockito.mock(KafkaRaftManager.class, call -> switch (call.getMethod().getName()) {
            case "raftLog" -> log;
            case "client" -> raftClient(node);
            default -> otherwise(call, "raft manager");
        });
    }

    private static KafkaRaftClient<?> raftClient(ServerProcess node) {
        return Mockito.mock(KafkaRaftClient.class, call -> switch (call.getMethod().getName()) {
            case "leaderAndEpoch" -> FromOutside.leader(node);
            default -> otherwise(call, "raft client of node " + node.id());
        });
    }

    /** Return the settings as Kafka's test kit gives them: its brokers pick their ports. */
    private static KafkaConfig config(ServerProcess node) {
        Map<String, String> settings = new HashMap<>(node.settings());
        settings.computeIfPresent("listeners", (name, all) -> all.replaceAll(":\\d+(,|$)", ":0$1"));
        return new KafkaConfig(settings, false);
    }

    static Object otherwise(InvocationOnMock call, String name) {
        return switch (call.getMethod().getName()) {
            case "toString" -> name;
            case "hashCode" -> System.identityHashCode(call.getMock());
            case "equals" -> call.getArgument(0) == call.getMock();
            default -> {
                Class<?> owner = call.getMethod().getDeclaringClass();
                throw new LooksInside(owner.getSimpleName() + "." + call.getMethod().getName());
            }
        };
    }
}
