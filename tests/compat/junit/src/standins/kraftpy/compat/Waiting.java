package kraftpy.compat;

import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/** Waits for conditions, each with a bound. */
final class Waiting {
    private static final long BOUND_SECONDS = 60;
    private static final long PAUSE_MS = 20;

    private Waiting() {
    }

    /** Ask until the answer is yes. An exception counts as no, except that a node did not start. */
    static void until(String what, Callable<Boolean> condition) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(BOUND_SECONDS);
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (condition.call()) {
                    return;
                }
                last = null;
            } catch (ServerProcess.DidNotStart error) {
                throw error;
            } catch (Exception error) {
                last = error;
            }
            pause(what);
        }
        throw new AssertionError("waited in vain for " + BOUND_SECONDS + " s: " + what, last);
    }

    private static void pause(String what) {
        try {
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting: " + what, error);
        }
    }
}
