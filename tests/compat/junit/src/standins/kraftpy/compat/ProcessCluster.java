package kraftpy.compat;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.KafkaClusterTestKit;
import org.apache.kafka.common.test.TestKitNodes;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.metadata.bootstrap.BootstrapMetadata;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.fault.FaultHandlerException;

/** The cluster that a {@code @ClusterTest} is given: processes, seen through {@link KafkaClusterTestKit}. */
public final class ProcessCluster implements ClusterInstance {
    private final ClusterConfig config;
    private final boolean isCombined;
    private final AtomicBoolean isFormatted = new AtomicBoolean();
    private final AtomicBoolean isStarted = new AtomicBoolean();
    private final AtomicBoolean isStopped = new AtomicBoolean();
    private KafkaClusterTestKit kit;

    public ProcessCluster(ClusterConfig config, boolean isCombined) {
        this.config = config;
        this.isCombined = isCombined;
    }

    /** Make the nodes' files, once. */
    public void format() throws Exception {
        if (!isFormatted.compareAndSet(false, true)) {
            return;
        }
        TestKitNodes nodes = new TestKitNodes.Builder()
            .setBootstrapMetadata(BootstrapMetadata.fromVersions(config.metadataVersion(), features(), "testkit"))
            .setCombined(isCombined)
            .setNumBrokerNodes(config.numBrokers())
            .setNumDisksPerBroker(config.numDisksPerBroker())
            .setPerServerProperties(config.perServerOverrideProperties())
            .setNumControllerNodes(config.numControllers())
            .setBrokerListenerName(config.brokerListenerName())
            .setBrokerSecurityProtocol(config.brokerSecurityProtocol())
            .setControllerListenerName(config.controllerListenerName())
            .setControllerSecurityProtocol(config.controllerSecurityProtocol())
            .build();
        KafkaClusterTestKit.Builder builder = new KafkaClusterTestKit.Builder(nodes);
        builder.setStandalone(config.standalone());
        builder.setFeatures(features());
        config.serverProperties().forEach(builder::setConfigProp);
        kit = builder.build();
        kit.format();
    }

    private Map<String, Short> features() {
        return config.features().entrySet().stream()
            .collect(Collectors.toMap(feature -> feature.getKey().featureName(), Map.Entry::getValue));
    }

    @Override
    public void start() {
        try {
            format();
            if (isStarted.compareAndSet(false, true)) {
                kit.startup();
            }
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException("the cluster did not start", error);
        }
    }

    @Override
    public boolean started() {
        return isStarted.get();
    }

    @Override
    public void stop() {
        if (kit != null && isStopped.compareAndSet(false, true)) {
            kit.close();
        }
    }

    @Override
    public boolean stopped() {
        return isStopped.get();
    }

    @Override
    public void shutdownBroker(int id) {
        broker(id).shutdown();
    }

    @Override
    public void startBroker(int id) {
        broker(id).startup();
    }

    private BrokerServer broker(int id) {
        return Optional.ofNullable(kit.brokers().get(id))
            .orElseThrow(() -> new IllegalArgumentException("Unknown brokerId " + id));
    }

    @Override
    public void waitForReadyBrokers() {
        kit.waitForReadyBrokers();
    }

    @Override
    public void waitTopicCreation(String topic, int partitions) {
        if (partitions <= 0) {
            throw new IllegalArgumentException("Partition count must be > 0, but was " + partitions);
        }
        FromOutside.awaitTopic(kit.runningBrokers(), topic, partitions);
        ensureConsistentMetadata();
    }

    @Override
    public void waitTopicDeletion(String topic) {
        FromOutside.awaitNoTopic(kit.runningBrokers(), topic);
        ensureConsistentMetadata();
    }

    @Override
    public void ensureConsistentMetadata() {
        FromOutside.awaitSameMetadata(kit.runningNodes(), kit.runningBrokers());
    }

    @Override
    public void ensureConsistentMetadata(Collection<KafkaBroker> brokers, Collection<ControllerServer> controllers) {
        ensureConsistentMetadata();
    }

    @Override
    public Type type() {
        return isCombined ? Type.CO_KRAFT : Type.KRAFT;
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public String clusterId() {
        return kit.nodes().clusterId();
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public ListenerName controllerListenerName() {
        return config.controllerListenerName();
    }

    @Override
    public String bootstrapServers() {
        return kit.bootstrapServers();
    }

    @Override
    public String bootstrapControllers() {
        return kit.bootstrapControllers();
    }

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        return kit.brokers().entrySet().stream().collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
    }

    @Override
    public Map<Integer, ControllerServer> controllers() {
        return kit.controllers();
    }

    @Override
    public Set<Integer> controllerIds() {
        return kit.controllers().keySet();
    }

    @Override
    public List<Integer> brokerBoundPorts() {
        return List.copyOf(kit.brokerPorts().values());
    }

    @Override
    public List<Integer> controllerBoundPorts() {
        return List.copyOf(kit.controllerPorts().values());
    }

    /** Both, unless the test takes the consumer protocol (KIP-848) from the cluster. */
    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        short level = config.features().getOrDefault(Feature.GROUP_VERSION, (short) 1);
        String protocols = config.serverProperties().getOrDefault("group.coordinator.rebalance.protocols", "consumer");
        return level > 0 && protocols.contains("consumer")
            ? Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER)
            : Set.of(GroupProtocol.CLASSIC);
    }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }
}
