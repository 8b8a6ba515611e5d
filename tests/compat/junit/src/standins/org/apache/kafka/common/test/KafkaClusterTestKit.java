package org.apache.kafka.common.test;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.Collectors;
import kafka.raft.KafkaRaftManager;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kraftpy.compat.Features;
import kraftpy.compat.FromOutside;
import kraftpy.compat.Missing;
import kraftpy.compat.ServerLogs;
import kraftpy.compat.ServerProcess;
import kraftpy.compat.ServerProperties;
import kraftpy.compat.StandIns;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.MetaPropertiesEnsemble;
import org.apache.kafka.metadata.properties.MetaPropertiesVersion;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * In the place of Kafka's class: a cluster whose nodes are processes of {@code kraftpy server}.
 *
 * <p>Its methods are those of Kafka's class. A node that has both roles is one process, so its controller stops with
 * its broker.
 */
public final class KafkaClusterTestKit implements AutoCloseable {
    private final TestKitNodes nodes;
    private final boolean isDeletedOnClose;
    private final Map<String, Short> features;
    private final boolean isStandalone;
    private final Optional<SortedMap<Integer, Uuid>> initialVoters;
    private final ServerProperties properties;
    private final SortedMap<Integer, ServerProcess> processes = new TreeMap<>();
    private final Map<Integer, BrokerServer> brokers = new TreeMap<>();
    private final Map<Integer, ControllerServer> controllers = new TreeMap<>();
    private final MockFaultHandler fatalFaultHandler = new MockFaultHandler("fatalFaultHandler");
    private final MockFaultHandler nonFatalFaultHandler = new MockFaultHandler("nonFatalFaultHandler");

    /** In the place of Kafka's builder. */
    public static final class Builder {
        private final TestKitNodes nodes;
        private final Map<String, Object> configProps = new HashMap<>();
        private final Map<String, Short> features = new TreeMap<>();
        private boolean isDeletedOnClose = true;
        private boolean isStandalone;
        private Optional<SortedMap<Integer, Uuid>> initialVoters = Optional.empty();

        public Builder(TestKitNodes nodes) {
            this.nodes = nodes;
        }

        public Builder setConfigProp(String key, Object value) {
            configProps.put(key, value);
            return this;
        }

        public Builder setStandalone(boolean isStandalone) {
            this.isStandalone = isStandalone;
            return this;
        }

        public Builder setInitialVoterSet(Map<Integer, Uuid> voters) {
            initialVoters = Optional.of(new TreeMap<>(voters));
            return this;
        }

        /** Name levels that the cluster is to have; the bootstrap metadata leave out those that are 0. */
        public Builder setFeatures(Map<String, Short> levels) {
            features.putAll(levels);
            return this;
        }

        public Builder setDeleteOnClose(boolean isDeleted) {
            isDeletedOnClose = isDeleted;
            return this;
        }

        public KafkaClusterTestKit build() throws Exception {
            checkProtocol(nodes.brokerListenerProtocol());
            checkProtocol(nodes.controllerListenerProtocol());
            Features.checkMetadataVersion(nodes.bootstrapMetadata());
            return new KafkaClusterTestKit(this);
        }

        private static void checkProtocol(SecurityProtocol protocol) {
            if (protocol != SecurityProtocol.PLAINTEXT && protocol != SecurityProtocol.SASL_PLAINTEXT) {
                throw new Missing("security protocol " + protocol);
            }
        }
    }

    private KafkaClusterTestKit(Builder builder) throws IOException {
        nodes = builder.nodes;
        isDeletedOnClose = builder.isDeletedOnClose;
        features = builder.features;
        isStandalone = builder.isStandalone;
        initialVoters = builder.initialVoters;
        properties = new ServerProperties(nodes, builder.configProps, isStandalone || initialVoters.isPresent());
        Path directory = Path.of(nodes.baseDirectory());
        Files.createDirectories(directory);
        for (int id : nodes.brokerNodes().keySet()) {
            ServerProcess node = new ServerProcess(id, properties.of(id), directory);
            processes.put(id, node);
            brokers.put(id, StandIns.broker(node, nodes.clusterId(), this::waitForReadyBrokers));
        }
        for (int id : nodes.controllerNodes().keySet()) {
            if (!processes.containsKey(id)) {
                processes.put(id, new ServerProcess(id, properties.of(id), directory));
            }
            controllers.put(id, StandIns.controller(processes.get(id), nodes.clusterId(), this::runningBrokers));
        }
    }

    /**
     * Write each log directory's {@code meta.properties}, as {@code kafka-storage format} does. A controller whose quorum
     * begins with voters of its format gets these from {@code kraftpy format}. As in Kafka's kit, its directory keeps the
     * id that the test knows, also if the voters have another one: a disk that was replaced.
     */
    public void format() throws Exception {
        if (isStandalone || initialVoters.isPresent()) {
            for (TestKitNode node : nodes.controllerNodes().values()) {
                processes.get(node.id()).formatWith(nodes.clusterId(), firstVoters(node));
                Path first = Path.of(properties.of(node.id()).get("log.dirs").split(",")[0]);
                var known = new MetaProperties.Builder().setVersion(MetaPropertiesVersion.V1)
                    .setClusterId(nodes.clusterId()).setNodeId(node.id()).setDirectoryId(node.metadataDirectoryId());
                String file = first.resolve("meta.properties").toString();
                PropertiesUtils.writePropertiesFile(known.build().toProperties(), file, false);
            }
        }
        for (Map<Integer, TestKitNode> each : List.of(nodes.controllerNodes(), nodes.brokerNodes())) {
            for (TestKitNode node : each.values()) {
                format(node);
            }
        }
    }

    private List<String> firstVoters(TestKitNode node) {
        if (initialVoters.isPresent()) {
            return List.of("--initial-controllers", voters(initialVoters.get()));
        }
        if (node.id() == properties.controllerPorts().firstKey()) {
            return List.of("--initial-controllers", voters(Map.of(node.id(), node.metadataDirectoryId())));
        }
        return List.of("--no-initial-controllers");
    }

    private String voters(Map<Integer, Uuid> directories) {
        return directories.entrySet().stream()
            .map(each -> each.getKey() + "@localhost:" + properties.controllerPorts().get(each.getKey()) + ":"
                + each.getValue())
            .collect(Collectors.joining(","));
    }

    private void format(TestKitNode node) throws IOException {
        MetaPropertiesEnsemble ensemble = node.initialMetaPropertiesEnsemble();
        List<String> used = List.of(properties.of(node.id()).get("log.dirs").split(","));
        for (var directory : ensemble.logDirProps().entrySet()) {
            Path path = Path.of(directory.getKey());
            if (used.contains(directory.getKey()) && !Files.exists(path.resolve("meta.properties"))) {
                Files.createDirectories(path);
                String file = path.resolve("meta.properties").toString();
                PropertiesUtils.writePropertiesFile(directory.getValue().toProperties(), file, false);
            }
        }
    }

    public void startup() {
        processes.values().forEach(ServerProcess::start);
        processes.values().forEach(ServerProcess::awaitListening);
        waitForReadyBrokers();
        if (!brokers.isEmpty()) {
            try (Admin admin = FromOutside.admin(runningBrokers().get(0))) {
                Features.apply(nodes.bootstrapMetadata(), admin);
                features.forEach((name, level) -> Features.apply(name, level, admin));
            }
        }
    }

    public void waitForReadyBrokers() {
        FromOutside.awaitKnown(runningBrokers());
    }

    public Admin admin() {
        return admin(Map.of(), false);
    }

    public Admin admin(Map<String, Object> configs) {
        return admin(configs, false);
    }

    public Admin admin(Map<String, Object> configs, boolean usingBootstrapControllers) {
        Map<String, Object> all = new HashMap<>(configs);
        if (usingBootstrapControllers) {
            all.putIfAbsent("bootstrap.controllers", bootstrapControllers());
            all.remove("bootstrap.servers");
        } else {
            all.putIfAbsent("bootstrap.servers", bootstrapServers());
            all.remove("bootstrap.controllers");
        }
        return Admin.create(all);
    }

    public String bootstrapServers() {
        return addresses(brokerPorts().values());
    }

    public String bootstrapControllers() {
        return addresses(controllerPorts().values());
    }

    private static String addresses(Collection<Integer> ports) {
        return ports.stream().map(port -> "localhost:" + port).collect(Collectors.joining(","));
    }

    /** Return the port of each broker. */
    public SortedMap<Integer, Integer> brokerPorts() {
        SortedMap<Integer, Integer> ports = new TreeMap<>();
        brokers.keySet().forEach(id -> ports.put(id, processes.get(id).port(nodes.brokerListenerName())));
        return ports;
    }

    /** Return the port of each controller. */
    public SortedMap<Integer, Integer> controllerPorts() {
        return properties.controllerPorts();
    }

    /** Return the brokers whose process runs. */
    public List<ServerProcess> runningBrokers() {
        return runningNodes().stream().filter(node -> brokers.containsKey(node.id())).toList();
    }

    /** Return the nodes whose process runs. */
    public List<ServerProcess> runningNodes() {
        return processes.values().stream().filter(ServerProcess::isAlive).toList();
    }

    public Map<Integer, ControllerServer> controllers() {
        return controllers;
    }

    public Map<Integer, BrokerServer> brokers() {
        return brokers;
    }

    public Map<Integer, KafkaRaftManager<ApiMessageAndVersion>> raftManagers() {
        return processes.values().stream().collect(Collectors.toMap(ServerProcess::id, StandIns::raftManager));
    }

    public Controller waitForActiveController() {
        return controllers.values().iterator().next().controller();
    }

    public TestKitNodes nodes() {
        return nodes;
    }

    public MockFaultHandler fatalFaultHandler() {
        return fatalFaultHandler;
    }

    public MockFaultHandler nonFatalFaultHandler() {
        return nonFatalFaultHandler;
    }

    /** Stop all nodes, look through their logs, and delete their files. */
    @Override
    public void close() {
        List<ServerProcess> stopping = new ArrayList<>(processes.values());
        stopping.forEach(ServerProcess::tellToStop);
        stopping.forEach(ServerProcess::stop);
        stopping.forEach(ServerProcess::close);
        File directory = new File(nodes.baseDirectory());
        try {
            for (ServerProcess node : stopping) {
                ServerLogs.check(directory.getName(), node);
            }
            if (isDeletedOnClose) {
                Utils.delete(directory);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
