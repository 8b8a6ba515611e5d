package kraftpy.compat;

import org.opentest4j.TestAbortedException;

/**
 * A test asked for an object inside Kafka's process, and there is none: the node is another process.
 *
 * <p>JUnit counts the test as aborted. A test that swallows this (most loops that wait for a condition do) fails in its
 * own words instead; {@link Notes} tell what it looked for all the same.
 */
public final class LooksInside extends TestAbortedException {
    public LooksInside(String what) {
        super("looks inside Kafka's process: " + what);
        Notes.add("looked for " + what);
    }
}
