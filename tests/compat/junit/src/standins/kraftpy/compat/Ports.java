package kraftpy.compat;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;

/**
 * Ports for listeners, each given out once in a turn of the range {@code -Dkraftpy.ports=FIRST-LAST}.
 *
 * <p>Every JVM has a range of its own, outside the one from which the system picks ports of outgoing connections. So a
 * port stays free until its node listens.
 */
final class Ports {
    private static final String[] RANGE = System.getProperty("kraftpy.ports", "20000-20999").split("-");
    private static final int FIRST = Integer.parseInt(RANGE[0]);
    private static final int LAST = Integer.parseInt(RANGE[1]);
    private static int next = FIRST;

    private Ports() {
    }

    static synchronized int free() {
        for (int tried = FIRST; tried <= LAST; tried++) {
            int port = next;
            next = next == LAST ? FIRST : next + 1;
            if (isFree(port)) {
                return port;
            }
        }
        throw new IllegalStateException("no port of " + FIRST + "-" + LAST + " is free");
    }

    private static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket()) {
            socket.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
            return true;
        } catch (IOException error) {
            return false;
        }
    }
}
