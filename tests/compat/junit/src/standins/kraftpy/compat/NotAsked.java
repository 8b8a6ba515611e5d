package kraftpy.compat;

import org.apache.kafka.common.test.api.ClusterConfig;
import org.opentest4j.TestAbortedException;

/** This run leaves the test out: {@code -Dkraftpy.roles=combined} leaves out the isolated twins of combined tests. */
public final class NotAsked extends TestAbortedException {
    /** The beginning of the message, by which the run knows it. */
    private static final String PREFIX = "not asked: ";
    private static final boolean ONLY_COMBINED = "combined".equals(System.getProperty("kraftpy.roles"));

    private NotAsked(String message) {
        super(PREFIX + message);
    }

    /** Throw this if the test is to be left out. */
    public static void check(ClusterConfig config, boolean isCombined) {
        if (ONLY_COMBINED && !isCombined && config.clusterTypes().size() > 1) {
            throw new NotAsked("the isolated twin of a combined test");
        }
    }
}
