package kraftpy.compat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.network.ListenerName;

/** One node: a process of {@code kraftpy server}, which may be stopped and started again. */
public final class ServerProcess {
    private static final String PYTHON = System.getProperty("kraftpy.python", "python3");
    private static final int STOP_SECONDS = 20;
    private static final int TOLD_OF_LOG = 600;
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroyForcibly)));
    }

    private final int id;
    private final Map<String, Integer> ports;
    private final int port;
    private final Map<String, String> settings;
    private final Path properties;
    private final Path log;
    private final Map<String, Relay> relays;
    private Process process;

    /**
     * {@code settings} name a port for each listener; the node has started when it listens on the first. Those of a
     * broker with security are changed to such as the server takes.
     */
    public ServerProcess(int id, Map<String, String> settings, Path directory) throws IOException {
        this.id = id;
        if (settings.get("process.roles").contains("broker")) {
            this.relays = Security.apply(settings, directory);
        } else {
            this.relays = Map.of();
            Security.applyToAuthorizer(settings);
        }
        this.ports = ports(settings.get("listeners"));
        this.port = ports.values().iterator().next();
        this.settings = settings;
        this.properties = directory.resolve("node-" + id + ".properties");
        this.log = directory.resolve("node-" + id + ".log");
        Properties written = new Properties();
        written.putAll(settings);
        try (Writer writer = Files.newBufferedWriter(properties)) {
            written.store(writer, null);
        }
    }

    public int id() {
        return id;
    }

    /** Return the port of the first listener. */
    public int port() {
        return port;
    }

    /** Return the port of the listener where this process asks, in clear and with all rights. */
    int askedPort() {
        return ports.getOrDefault(ListenerName.normalised(Security.LISTENER).value(), port);
    }

    /** Return the port of the listener with this name, as clients know it. */
    public int port(ListenerName listener) {
        String name = ListenerName.normalised(listener.value()).value();
        Relay relay = relays.get(name);
        Integer found = relay == null ? ports.get(name) : Integer.valueOf(relay.port());
        if (found == null) {
            throw new IllegalArgumentException("node " + id + " has no listener " + listener.value());
        }
        return found;
    }

    private static Map<String, Integer> ports(String listeners) {
        Map<String, Integer> ports = new LinkedHashMap<>();
        for (String listener : listeners.split(",")) {
            String name = listener.substring(0, listener.indexOf(':')).strip();
            ports.put(ListenerName.normalised(name).value(), Integer.parseInt(listener.replaceFirst(".*:", "")));
        }
        return ports;
    }

    public Map<String, String> settings() {
        return settings;
    }

    /** Return the file with the node's output. */
    public Path log() {
        return log;
    }

    public boolean hasStarted() {
        return process != null;
    }

    public boolean isAlive() {
        return process != null && process.isAlive();
    }

    /** Format the node's directories, with credentials of SCRAM that the cluster begins with. */
    public void format(String clusterId, List<String> credentials) throws IOException {
        List<String> options = new ArrayList<>();
        credentials.forEach(each -> options.addAll(List.of("--add-scram", each)));
        formatWith(clusterId, options);
    }

    /** Format the node's directories with these options. */
    public void formatWith(String clusterId, List<String> options) throws IOException {
        List<String> command =
            new ArrayList<>(List.of(PYTHON, "-m", "kraftpy", "format", properties.toString(), "-t", clusterId));
        command.addAll(options);
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()));
        setRealm(builder);
        try {
            if (builder.start().waitFor() != 0) {
                throw new DidNotStart("node " + id + " was not formatted: " + endOfLog());
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** Start the process, and do not wait for it. */
    public void start() {
        ProcessBuilder builder = new ProcessBuilder(PYTHON, "-m", "kraftpy", "server", properties.toString())
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()));
        setRealm(builder);
        try {
            process = builder.start();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        RUNNING.add(process);
    }

    /** Tell a process of the realm that a KDC in this JVM serves. */
    private static void setRealm(ProcessBuilder builder) {
        String realm = System.getProperty("java.security.krb5.conf");
        if (realm != null) {
            builder.environment().put("KRB5_CONFIG", realm);
        }
    }

    /** Wait until the node listens. */
    public void awaitListening() {
        Waiting.until("node " + id + " listens on port " + port, () -> {
            if (!process.isAlive()) {
                throw new DidNotStart("node " + id + " did not start: " + endOfLog());
            }
            return listens();
        });
    }

    private boolean listens() {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress("localhost", port), 200);
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    /** Tell the process to stop, and do not wait for it. */
    public void tellToStop() {
        if (process != null) {
            process.destroy();
        }
    }

    /** Stop the process. */
    public void stop() {
        if (process == null) {
            return;
        }
        process.destroy();
        try {
            if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        } catch (InterruptedException error) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
        RUNNING.remove(process);
    }

    /** End what stands before the listeners: the process is not started again. */
    public void close() {
        relays.values().forEach(Relay::close);
    }

    private String endOfLog() {
        try {
            String all = Files.readString(log).strip();
            return all.substring(Math.max(0, all.length() - TOLD_OF_LOG)).replace('\n', ' ');
        } catch (IOException error) {
            return error.toString();
        }
    }

    /** The process ended where it had to start. Not a condition to wait for. */
    public static final class DidNotStart extends IllegalStateException {
        DidNotStart(String message) {
            super(message);
        }
    }
}
