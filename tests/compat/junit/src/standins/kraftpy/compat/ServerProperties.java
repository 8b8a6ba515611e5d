package kraftpy.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.security.plain.PlainLoginModule;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.test.TestKitNode;
import org.apache.kafka.common.test.TestKitNodes;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;

/**
 * The settings of each node of a cluster: those that Kafka's own test kit would give it, with ports that are known
 * before the node starts.
 */
public final class ServerProperties {
    /** Those that Kafka's test kit has. */
    private static final String LOGINS = String.format(
        "%1$s required username=\"%2$s\" password=\"%3$s\" user_%2$s=\"%3$s\" user_%4$s=\"%5$s\";",
        PlainLoginModule.class.getName(), JaasUtils.KAFKA_PLAIN_ADMIN, JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD,
        JaasUtils.KAFKA_PLAIN_USER1, JaasUtils.KAFKA_PLAIN_USER1_PASSWORD);

    private final TestKitNodes nodes;
    private final Map<String, Object> common;
    private final boolean isFormattedWithVoters;
    private final SortedMap<Integer, Integer> brokerPorts = new TreeMap<>();
    private final SortedMap<Integer, Integer> controllerPorts = new TreeMap<>();

    /** {@code common} are the settings that the test gives to all nodes. */
    public ServerProperties(TestKitNodes nodes, Map<String, Object> common) {
        this(nodes, common, false);
    }

    /** With {@code isFormattedWithVoters}, the settings name where the quorum is found, and no voters. */
    public ServerProperties(TestKitNodes nodes, Map<String, Object> common, boolean isFormattedWithVoters) {
        this.nodes = nodes;
        this.common = common;
        this.isFormattedWithVoters = isFormattedWithVoters;
        nodes.brokerNodes().keySet().forEach(id -> brokerPorts.put(id, Ports.free()));
        nodes.controllerNodes().keySet().forEach(id -> controllerPorts.put(id, Ports.free()));
    }

    /** Return the port of each broker's listener. */
    public SortedMap<Integer, Integer> brokerPorts() {
        return brokerPorts;
    }

    /** Return the port of each controller's listener. */
    public SortedMap<Integer, Integer> controllerPorts() {
        return controllerPorts;
    }

    /** Return the settings of the node with this id. */
    public Map<String, String> of(int id) {
        TestKitNode broker = nodes.brokerNodes().get(id);
        TestKitNode controller = nodes.controllerNodes().get(id);
        String brokerListener = nodes.brokerListenerName().value();
        String controllerListener = nodes.controllerListenerName().value();
        Map<String, String> settings = new TreeMap<>();
        common.forEach((name, value) -> settings.put(name, string(value)));
        settings.put("process.roles", roles(id));
        settings.put("node.id", String.valueOf(id));
        settings.put("log.dirs", broker == null
            ? controller.metadataDirectory()
            : String.join(",", broker.logDataDirectories()));
        SecurityProtocol protocol = nodes.brokerListenerProtocol();
        settings.putIfAbsent("listener.security.protocol.map",
            brokerListener + ":" + protocol.name + "," + controllerListener + ":PLAINTEXT");
        if (protocol == SecurityProtocol.SASL_PLAINTEXT) {
            settings.putIfAbsent("sasl.enabled.mechanisms", "PLAIN");
            settings.putIfAbsent("sasl.mechanism.inter.broker.protocol", "PLAIN");
            settings.putIfAbsent("authorizer.class.name", StandardAuthorizer.class.getName());
            settings.putIfAbsent("super.users", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN);
            settings.putIfAbsent(
                "listener.name." + brokerListener.toLowerCase(Locale.ROOT) + ".plain.sasl.jaas.config", LOGINS);
        }
        settings.putIfAbsent("inter.broker.listener.name", brokerListener);
        settings.putIfAbsent("controller.listener.names", controllerListener);
        if (isFormattedWithVoters) {
            settings.put("controller.quorum.bootstrap.servers", controllers());
        } else {
            settings.put("controller.quorum.voters", voters());
        }
        if (broker != null) {
            settings.remove("controller.quorum.auto.join.enable");
        }
        settings.putIfAbsent("log.cleaner.dedupe.buffer.size", "2097152");
        if (broker != null) {
            settings.putAll(broker.propertyOverrides());
        }
        if (controller != null) {
            settings.putAll(controller.propertyOverrides());
        }
        settings.put("listeners", listeners(id));
        if (settings.getOrDefault("advertised.listeners", ":0").endsWith(":0")) {
            settings.remove("advertised.listeners");
        }
        return withoutDescriptions(settings);
    }

    /** Return the value of a setting as a properties file has it. */
    static String string(Object value) {
        if (value instanceof Password secret) {
            return secret.value();
        }
        return value instanceof Collection<?> all
            ? all.stream().map(Object::toString).collect(Collectors.joining(","))
            : String.valueOf(value);
    }

    /** Leave out what has a setting's description for its name: a slip in one of Kafka's tests, which Kafka ignores. */
    static Map<String, String> withoutDescriptions(Map<String, String> settings) {
        settings.keySet().removeIf(name -> name.contains(" "));
        return settings;
    }

    private String roles(int id) {
        List<String> roles = new ArrayList<>();
        if (brokerPorts.containsKey(id)) {
            roles.add("broker");
        }
        if (controllerPorts.containsKey(id)) {
            roles.add("controller");
        }
        return String.join(",", roles);
    }

    private String listeners(int id) {
        List<String> listeners = new ArrayList<>();
        if (brokerPorts.containsKey(id)) {
            listeners.add(nodes.brokerListenerName().value() + "://localhost:" + brokerPorts.get(id));
        }
        if (controllerPorts.containsKey(id)) {
            listeners.add(nodes.controllerListenerName().value() + "://localhost:" + controllerPorts.get(id));
        }
        return String.join(",", listeners);
    }

    private String controllers() {
        return controllerPorts.values().stream().map(port -> "localhost:" + port).collect(Collectors.joining(","));
    }

    private String voters() {
        return controllerPorts.entrySet().stream()
            .map(port -> port.getKey() + "@localhost:" + port.getValue())
            .collect(Collectors.joining(","));
    }
}
