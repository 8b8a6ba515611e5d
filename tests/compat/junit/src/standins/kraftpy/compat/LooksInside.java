package kraftpy.compat;

/**
 * A test asked for an object inside Kafka's process, and there is none: the node is another process.
 *
 * <p>An error, because loops that wait for a condition go on after an exception. If a test swallows it all the same,
 * {@link Notes} tell what was looked for.
 */
public final class LooksInside extends Error {
    public LooksInside(String what) {
        super("looks inside Kafka's process: " + what);
        Notes.add("looked for " + what);
    }
}
