package kraftpy.compat;

import java.util.HashMap;
import kafka.network.SocketServer;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaConfig;
import org.apache.kafka.metadata.BrokerState;
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
        KafkaConfig config = config(node);
        SocketServer socketServer = socketServer(node.port());
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
            case "boundPort" -> node.port();
            case "socketServer" -> socketServer;
            case "clusterId" -> clusterId;
            case "config" -> config;
            default -> otherwise(call, "broker " + node.id());
        });
    }

    /** Return a controller that is in this process, and listens on this port. */
    public static ControllerServer controller(ServerProcess node, int port, String clusterId) {
        KafkaConfig config = config(node);
        SocketServer socketServer = socketServer(port);
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
            default -> otherwise(call, "controller " + node.id());
        });
    }

    private static SocketServer socketServer(int port) {
        return Mockito.mock(SocketServer.class, call -> switch (call.getMethod().getName()) {
            case "boundPort" -> port;
            default -> otherwise(call, "listener on port " + port);
        });
    }

    private static KafkaConfig config(ServerProcess node) {
        return new KafkaConfig(new HashMap<>(node.settings()), false);
    }

    private static Object otherwise(InvocationOnMock call, String name) {
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
