package kraftpy.compat;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;

/**
 * Makes the settings of a broker whose listeners have TLS, SASL, or a principal builder of the test's own such as
 * {@code kraftpy server} takes them.
 *
 * <p>Key stores become PEM files, the JVM's logins settings of the listeners. A principal builder runs in this JVM, in a
 * {@link Relay}. A further listener without security, whose anonymous clients are super users, is for
 * {@link FromOutside}; brokers speak to one another over it if there is a relay, or if clients have unsecured tokens.
 */
final class Security {
    /** The name of the further listener. */
    static final String LISTENER = "STANDIN";
    private static final String BUILDER = "principal.builder.class";
    private static final String AUTHORIZER = "authorizer.class.name";
    private static final String SUPER_USERS = "super.users";
    private static final String PROTOCOLS = "listener.security.protocol.map";
    private static final String ANONYMOUS = "User:ANONYMOUS";
    private static final Map<String, List<String>> MECHANISMS = Map.of(
        "Krb5LoginModule", List.of("GSSAPI"),
        "PlainLoginModule", List.of("PLAIN"),
        "ScramLoginModule", List.of("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "OAuthBearerLoginModule", List.of("OAUTHBEARER"));

    private final Map<String, String> settings;
    private final Map<String, Relay> relays = new HashMap<>();
    private boolean isInsideInClear;

    private Security(Map<String, String> settings) {
        this.settings = settings;
    }

    /** Change the settings of a broker, whose listeners have ports; return its relays by the listeners' names. */
    static Map<String, Relay> apply(Map<String, String> settings, Path directory) throws IOException {
        Security security = new Security(settings);
        if (security.isNeeded()) {
            KeyStores.toPem(settings, directory);
            for (String listener : settings.get("listeners").split(",")) {
                security.secure(listener.substring(0, listener.indexOf(':')).strip(), port(listener));
            }
            security.addListener();
        }
        applyToAuthorizer(settings);
        return security.relays;
    }

    /** Change the settings of a node's authorizer: anonymous clients are super users. */
    static void applyToAuthorizer(Map<String, String> settings) {
        settings.keySet().removeIf(name -> name.endsWith(BUILDER));
        String authorizer = settings.getOrDefault(AUTHORIZER, "");
        if (authorizer.isEmpty()) {
            return;
        }
        if (authorizer.endsWith("AlterCredentialsTest$TestStandardAuthorizer")) {
            settings.put(AUTHORIZER, StandardAuthorizer.class.getName());
            settings.merge(SUPER_USERS, "User:Authorized", (known, more) -> known + ";" + more);
        }
        settings.merge(SUPER_USERS, ANONYMOUS, (known, more) -> known.contains(more) ? known : known + ";" + more);
    }

    private boolean isNeeded() {
        boolean hasBuilder = settings.keySet().stream().anyMatch(name -> name.endsWith(BUILDER));
        return hasBuilder || Arrays.stream(settings.get("listeners").split(","))
            .anyMatch(each -> protocol(each.substring(0, each.indexOf(':')).strip()) != SecurityProtocol.PLAINTEXT);
    }

    private static int port(String listener) {
        return Integer.parseInt(listener.substring(listener.lastIndexOf(':') + 1));
    }

    private SecurityProtocol protocol(String listener) {
        return SecurityProtocol.forName(protocols().getOrDefault(listener, listener));
    }

    private Map<String, String> protocols() {
        return Arrays.stream(settings.getOrDefault(PROTOCOLS, "").split(","))
            .filter(each -> each.contains(":"))
            .map(each -> each.strip().split(":"))
            .collect(Collectors.toMap(each -> each[0], each -> each[1], (first, second) -> first));
    }

    private void secure(String listener, int port) throws IOException {
        SecurityProtocol protocol = protocol(listener);
        String prefix = "listener.name." + listener.toLowerCase(Locale.ROOT) + ".";
        String builder = settings.getOrDefault(prefix + BUILDER, settings.getOrDefault(BUILDER, ""));
        boolean isBuilt = !builder.isEmpty() && !builder.endsWith(".DefaultKafkaPrincipalBuilder");
        if (isBuilt && protocol != SecurityProtocol.PLAINTEXT) {
            throw new Missing("a principal builder of the test's own");
        }
        if (isBuilt) {
            Relay relay = new Relay(builder, new ListenerName(listener), port);
            relays.put(ListenerName.normalised(listener).value(), relay);
            Map<String, String> protocols = protocols();
            protocols.put(listener, SecurityProtocol.SASL_PLAINTEXT.name);
            settings.put(PROTOCOLS, joined(protocols));
            settings.put(prefix + "sasl.enabled.mechanisms", "PLAIN");
            settings.put(prefix + "plain.sasl.jaas.config", relay.logins());
        } else if (protocol.name.startsWith("SASL_")) {
            Map<String, String> logins = logins(listener);
            logins.forEach((mechanism, login) -> settings.putIfAbsent(
                prefix + mechanism.toLowerCase(Locale.ROOT) + ".sasl.jaas.config", login));
            if (logins.getOrDefault("OAUTHBEARER", "").contains("unsecuredLogin")) { // which Kafka takes unasked
                settings.putIfAbsent(prefix + "oauthbearer.kraftpy.sasl.oauthbearer.allow.unsecured.tokens", "true");
                isInsideInClear = true; // a broker has no login of that kind
            }
        }
    }

    private static String joined(Map<String, String> protocols) {
        return protocols.entrySet().stream().map(each -> each.getKey() + ":" + each.getValue())
            .collect(Collectors.joining(","));
    }

    /** Return the logins that the JVM has for a listener, by mechanism. */
    private static Map<String, String> logins(String listener) {
        Map<String, String> logins = new HashMap<>();
        for (String context : List.of(listener.toLowerCase(Locale.ROOT) + ".KafkaServer", "KafkaServer")) {
            AppConfigurationEntry[] entries = entries(context);
            for (AppConfigurationEntry entry : entries) {
                String module = entry.getLoginModuleName();
                String options = entry.getOptions().entrySet().stream()
                    .map(each -> " " + each.getKey() + "=\"" + each.getValue() + "\"").collect(Collectors.joining());
                for (String mechanism : MECHANISMS.getOrDefault(module.replaceFirst(".*\\.", ""), List.of())) {
                    logins.put(mechanism, module + " required" + options + ";");
                }
            }
            if (entries.length > 0) {
                break;
            }
        }
        return logins;
    }

    private static AppConfigurationEntry[] entries(String context) {
        try {
            AppConfigurationEntry[] found = Configuration.getConfiguration().getAppConfigurationEntry(context);
            return found == null ? new AppConfigurationEntry[0] : found;
        } catch (SecurityException error) { // there is no file of logins
            return new AppConfigurationEntry[0];
        }
    }

    private void addListener() {
        Map<String, String> protocols = protocols();
        List<String> advertised = new ArrayList<>();
        for (String listener : settings.get("listeners").split(",")) {
            String name = listener.substring(0, listener.indexOf(':')).strip();
            Relay relay = relays.get(ListenerName.normalised(name).value());
            protocols.putIfAbsent(name, name);
            if (!settings.getOrDefault("controller.listener.names", "").equals(name)) {
                advertised.add(relay == null ? listener : name + "://localhost:" + relay.port());
            }
        }
        String own = LISTENER + "://localhost:" + Ports.free();
        advertised.add(own);
        protocols.put(LISTENER, SecurityProtocol.PLAINTEXT.name);
        settings.put("listeners", settings.get("listeners") + "," + own);
        settings.put(PROTOCOLS, joined(protocols));
        settings.put("advertised.listeners", String.join(",", advertised));
        if (isInsideInClear || !relays.isEmpty()) {
            settings.put("inter.broker.listener.name", LISTENER);
            settings.remove("security.inter.broker.protocol");
        }
    }
}
