package kraftpy.compat;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import kafka.server.KRaftQuorumImplementation;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import kafka.server.QuorumTestHarness;
import org.apache.kafka.common.DirectoryId;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.MetaPropertiesVersion;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.metadata.storage.Formatter;
import org.apache.kafka.server.common.MetadataVersion;
import scala.Option;

/** The cluster behind {@link QuorumTestHarness}: a controller and brokers, each a process. */
public final class ProcessQuorum extends KRaftQuorumImplementation {
    private static final String CONTROLLER = "CONTROLLER";
    private final ServerProcess controller;
    private final Path directory;
    private final List<ServerProcess> brokers;

    private ProcessQuorum(
        QuorumTestHarness harness,
        ServerProcess controller,
        List<ServerProcess> brokers,
        Path directory,
        String clusterId) {
        super(
            StandIns.controller(controller, clusterId, () -> running(brokers)),
            harness.faultHandlerFactory(),
            directory.toFile(),
            CompletableFuture.completedFuture(
                Map.of(controller.id(), new InetSocketAddress("localhost", controller.port()))),
            clusterId,
            harness,
            harness.faultHandler());
        this.controller = controller;
        this.brokers = brokers;
        this.directory = directory;
    }

    private static List<ServerProcess> running(List<ServerProcess> brokers) {
        return brokers.stream().filter(ServerProcess::isAlive).toList();
    }

    /** Start the controller, with these settings of the test. */
    public static ProcessQuorum start(QuorumTestHarness harness, Properties given) {
        if (harness.metadataVersion().isLessThan(MetadataVersion.latestProduction())) {
            throw new Missing("metadata version " + harness.metadataVersion());
        }
        Map<String, String> settings = strings(given);
        String id = settings.computeIfAbsent("node.id", name -> "1000");
        String address = "localhost:" + Ports.free();
        String clusterId = Uuid.randomUuid().toString();
        try {
            Path directory = Files.createTempDirectory("quorum");
            settings.put("process.roles", "controller");
            settings.put("log.dirs", directory.resolve("metadata").toString());
            settings.put("listeners", CONTROLLER + "://" + address);
            settings.put("listener.security.protocol.map", CONTROLLER + ":PLAINTEXT");
            settings.put("controller.listener.names", CONTROLLER);
            settings.put("controller.quorum.voters", id + "@" + address);
            settings.put("log.segment.delete.delay.ms", "1000");
            ServerProcess controller = new ServerProcess(Integer.parseInt(id), settings, directory);
            List<String> credentials = credentials(harness);
            if (credentials.isEmpty()) {
                format(settings, clusterId);
            } else {
                controller.format(clusterId, credentials);
            }
            ProcessQuorum quorum = new ProcessQuorum(harness, controller, new ArrayList<>(), directory, clusterId);
            controller.start();
            controller.awaitListening();
            return quorum;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Return the credentials of SCRAM that the test formats its cluster with. */
    @SuppressWarnings("unchecked")
    private static List<String> credentials(QuorumTestHarness harness) {
        try {
            Formatter formatter = new Formatter();
            harness.addFormatterSettings(formatter);
            Field arguments = Formatter.class.getDeclaredField("scramArguments");
            arguments.setAccessible(true);
            List<String> found = (List<String>) arguments.get(formatter);
            return found == null ? List.of() : found;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public KafkaBroker createBroker(KafkaConfig config, Time time, boolean isStarted, Option<String> threadNamePrefix) {
        Map<String, String> settings = strings(config.originals());
        settings.put("controller.quorum.voters", controller.settings().get("controller.quorum.voters"));
        settings.put("process.roles", "broker");
        settings.put("listeners", withPorts(settings.get("listeners")));
        settings.computeIfPresent("listener.security.protocol.map", (name, all) -> withController(all));
        settings.remove("advertised.listeners");
        try {
            format(settings, clusterId());
            ServerProcess node = new ServerProcess(config.nodeId(), settings, directory);
            brokers.add(node);
            KafkaBroker broker = StandIns.broker(node, config, clusterId(), () -> FromOutside.awaitKnown(List.of(node)));
            if (isStarted) {
                broker.startup();
            }
            return broker;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Stop all processes, look through their logs, and delete what is not the test's own. */
    @Override
    public void shutdown() {
        List<ServerProcess> all = new ArrayList<>(brokers);
        all.add(controller);
        all.forEach(ServerProcess::tellToStop);
        all.forEach(ServerProcess::stop);
        all.forEach(ServerProcess::close);
        try {
            for (ServerProcess node : all) {
                ServerLogs.check(directory.getFileName().toString(), node);
            }
            Utils.delete(directory.toFile());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Map<String, String> strings(Map<?, ?> given) {
        Map<String, String> settings = new TreeMap<>();
        given.forEach((name, value) -> settings.put(name.toString(), ServerProperties.string(value)));
        return ServerProperties.withoutDescriptions(settings);
    }

    /** Give each listener a port. */
    private static String withPorts(String listeners) {
        return Arrays.stream(listeners.split(",")).map(listener -> {
            String name = listener.substring(0, listener.indexOf(':')).strip();
            return name + "://localhost:" + Ports.free();
        }).collect(Collectors.joining(","));
    }

    /** Return the map with the controller's listener, which has no security here. */
    private static String withController(String protocols) {
        String others = protocols.replaceAll(",?" + CONTROLLER + ":\\w+", "").replaceAll("^,", "");
        return CONTROLLER + ":PLAINTEXT" + (others.isEmpty() ? "" : "," + others);
    }

    private static void format(Map<String, String> settings, String clusterId) throws IOException {
        for (String path : settings.getOrDefault("log.dirs", settings.getOrDefault("log.dir", "")).split(",")) {
            File properties = new File(path, "meta.properties");
            if (!properties.exists()) {
                Files.createDirectories(Path.of(path));
                MetaProperties written = new MetaProperties.Builder()
                    .setVersion(MetaPropertiesVersion.V1)
                    .setClusterId(clusterId)
                    .setNodeId(Integer.parseInt(settings.get("node.id")))
                    .setDirectoryId(DirectoryId.random())
                    .build();
                PropertiesUtils.writePropertiesFile(written.toProperties(), properties.getPath(), false);
            }
        }
    }
}
