package kraftpy.compat;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.KafkaPrincipalBuilder;
import org.apache.kafka.common.security.auth.PlaintextAuthenticationContext;
import org.apache.kafka.common.security.plain.PlainLoginModule;

/**
 * Stands before a listener for which a test has a principal builder: logs each connection in with the name that the
 * builder gives it, and passes bytes on.
 */
final class Relay {
    private static final String PASSWORD = "relayed";
    /** Names that builders of Kafka's tests give. */
    private static final List<String> NAMES =
        List.of("broker", "client", "controller", "Authorized", "Unauthorized", "ANONYMOUS");
    private static final short SASL_HANDSHAKE = 17;
    private static final short SASL_AUTHENTICATE = 36;

    private final KafkaPrincipalBuilder builder;
    private final ListenerName listener;
    private final int target;
    private final int port = Ports.free();
    private final ServerSocket server = new ServerSocket();

    /** Listen, and pass on to the node's port. */
    Relay(String builder, ListenerName listener, int target) throws IOException {
        this.builder = instance(builder);
        this.listener = listener;
        this.target = target;
        name(); // one that cannot be had is told before anything is opened
        server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        start(this::acceptAll);
    }

    private static KafkaPrincipalBuilder instance(String name) {
        try {
            return (KafkaPrincipalBuilder) Class.forName(name).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException error) {
            throw new Missing("principal builder " + name);
        }
    }

    /** Return the port on which clients connect. */
    int port() {
        return port;
    }

    /** Return the logins that the listener is to know. */
    String logins() {
        Set<String> names = new LinkedHashSet<>(NAMES);
        names.add(name());
        return PlainLoginModule.class.getName() + " required" + names.stream()
            .map(name -> " user_" + name + "=\"" + PASSWORD + "\"").collect(Collectors.joining()) + ";";
    }

    void close() {
        try {
            server.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private String name() {
        KafkaPrincipal principal =
            builder.build(new PlaintextAuthenticationContext(InetAddress.getLoopbackAddress(), listener.value()));
        if (!principal.getPrincipalType().equals(KafkaPrincipal.USER_TYPE)) {
            throw new Missing("a principal that is a " + principal.getPrincipalType());
        }
        return principal.getName();
    }

    private static void start(Runnable run) {
        Thread thread = new Thread(run, "relay");
        thread.setDaemon(true);
        thread.start();
    }

    private void acceptAll() {
        try {
            while (true) {
                Socket client = server.accept();
                start(() -> serve(client));
            }
        } catch (IOException error) { // closed
        }
    }

    private void serve(Socket client) {
        try (client; Socket node = new Socket(InetAddress.getLoopbackAddress(), target)) {
            client.setTcpNoDelay(true);
            node.setTcpNoDelay(true);
            logIn(node, name());
            start(() -> pass(node, client));
            pass(client, node);
        } catch (IOException error) { // one of them went
        }
    }

    private static void pass(Socket from, Socket to) {
        try {
            from.getInputStream().transferTo(to.getOutputStream());
            to.shutdownOutput();
        } catch (IOException error) {
            try {
                to.close();
            } catch (IOException again) { // it is closed
            }
        }
    }

    private static void logIn(Socket node, String name) throws IOException {
        ask(node, SASL_HANDSHAKE, (short) 1, ByteBuffer.allocate(7).putShort((short) 5).put("PLAIN".getBytes()));
        byte[] login = ("\0" + name + "\0" + PASSWORD).getBytes(StandardCharsets.UTF_8);
        ask(node, SASL_AUTHENTICATE, (short) 0, ByteBuffer.allocate(4 + login.length).putInt(login.length).put(login));
    }

    private static void ask(Socket node, short api, short version, ByteBuffer body) throws IOException {
        DataOutputStream out = new DataOutputStream(node.getOutputStream());
        out.writeInt(10 + body.position());
        out.writeShort(api);
        out.writeShort(version);
        out.writeInt(0);
        out.writeShort(-1);
        out.write(body.array());
        out.flush();
        DataInputStream in = new DataInputStream(node.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        short error = ByteBuffer.wrap(answer).getShort(4);
        if (error != 0) {
            throw new IOException("the relay's login was refused: " + error);
        }
    }
}
