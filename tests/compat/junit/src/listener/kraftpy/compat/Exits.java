package kraftpy.compat;

import org.apache.kafka.common.utils.Exit;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestPlan;

/**
 * Keeps Kafka's tools from ending the JVM: what ends the process for a user fails the test that has called it, and the
 * tests after it run.
 */
public final class Exits implements TestExecutionListener {
    @Override
    public void testPlanExecutionStarted(TestPlan plan) {
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("the test would end the JVM with status " + status + ": " + message);
        });
    }
}
