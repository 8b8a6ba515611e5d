import java.lang.reflect.AccessibleObject;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.DynamicBrokerConfig;

/**
 * Prints every setting of the Apache Kafka in the class path, one a line: kind, name, type, default, whether it is
 * internal, and for one of brokers, how it can change while they run, with tabs in between. Kept as kafka_settings.tsv, against which the tests hold kraftpy's tables:
 *
 *     javac -cp "LIB/*" -d OUT PrintSettings.java && java -cp "LIB/*:OUT" PrintSettings
 *
 * LIB has the jars of org.apache.kafka:kafka_2.13.
 */
public class PrintSettings {
    private static final String[][] KINDS = {
        {"broker", "kafka.server.KafkaConfig", "configDef"},
        {"topic", "org.apache.kafka.storage.internals.log.LogConfig", "configDefCopy"},
        {"group", "org.apache.kafka.coordinator.group.GroupConfig", "CONFIG_DEF"},
        {"producer", "org.apache.kafka.clients.producer.ProducerConfig", "configDef"},
        {"consumer", "org.apache.kafka.clients.consumer.ConsumerConfig", "configDef"},
        {"admin", "org.apache.kafka.clients.admin.AdminClientConfig", "configDef"},
        {"client-metrics", "org.apache.kafka.server.metrics.ClientMetricsConfigs", "configDef"},
        {"quota", "org.apache.kafka.server.config.QuotaConfig", "userAndClientQuotaConfigs"},
    };

    public static void main(String[] arguments) throws Exception {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        for (String[] kind : KINDS) {
            for (Map.Entry<String, ConfigDef.ConfigKey> entry : new TreeMap<>(settings(kind[1], kind[2]).configKeys()).entrySet()) {
                ConfigDef.ConfigKey key = entry.getValue();
                String text = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
                String shown = text == null ? "null" : '"' + text + '"';
                String visible = key.internalConfig ? "internal" : "public";
                String change = kind[0].equals("broker") ? "\t" + modes.getOrDefault(entry.getKey(), "read-only") : "";
                System.out.println(String.join("\t", kind[0], entry.getKey(), key.type.name(), shown, visible) + change);
            }
        }
    }

    private static ConfigDef settings(String className, String member) throws Exception {
        Class<?> owner = Class.forName(className);
        for (var method : owner.getDeclaredMethods()) {
            if (method.getName().equals(member) && method.getParameterCount() == 0) {
                return (ConfigDef) opened(method).invoke(null);
            }
        }
        return (ConfigDef) opened(owner.getDeclaredField(member)).get(null);
    }

    private static <T extends AccessibleObject> T opened(T member) {
        member.setAccessible(true);
        return member;
    }
}
