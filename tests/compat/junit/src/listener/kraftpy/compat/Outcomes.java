package kraftpy.compat;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.TestTag;
import org.junit.platform.engine.UniqueId;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;

/**
 * Writes what came of each test as it ends, a JSON line each, to {@code -Dkraftpy.outcomes=FILE}; so it is known even if
 * the JVM does not live to make its report. Other lines say that a test has begun, and the last one that all are done:
 * without it the JVM has ended itself.
 *
 * <p>A test's name is {@code class#method}, or {@code class#method[n]} for the n-th run of a template. A class that fails
 * as a whole is {@code class#}.
 */
public final class Outcomes implements TestExecutionListener {
    private static final String FILE = System.getProperty("kraftpy.outcomes");
    private static final int LONGEST = 400;
    private final ObjectMapper json = new ObjectMapper();
    private final Map<String, Long> begun = new ConcurrentHashMap<>();

    @Override
    public void executionStarted(TestIdentifier test) {
        begun.put(test.getUniqueId(), System.nanoTime());
        if (test.isTest()) {
            append(json.createObjectNode().put("begun", name(test)));
        }
    }

    @Override
    public void testPlanExecutionFinished(TestPlan plan) {
        append(json.createObjectNode().put("is_done", true));
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        write(test, "disabled", reason, List.of());
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        List<String> notes = Notes.take();
        boolean isPassed = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (test.isTest() || !isPassed || !notes.isEmpty()) {
            String outcome = switch (result.getStatus()) {
                case SUCCESSFUL -> "passed";
                case ABORTED -> "aborted";
                case FAILED -> "failed";
            };
            write(test, outcome, result.getThrowable().map(Outcomes::cause).orElse(""), notes);
        }
    }

    /** Return the exception and, if it is another, the one at the bottom, in one line. */
    private static String cause(Throwable top) {
        Throwable bottom = top;
        while (bottom.getCause() != null && bottom.getCause() != bottom) {
            bottom = bottom.getCause();
        }
        String line = oneLine(top);
        return bottom == top ? line : line + " | " + oneLine(bottom);
    }

    private static String oneLine(Throwable error) {
        String text = error.toString().replaceAll("\\s+", " ").strip();
        return text.length() > LONGEST ? text.substring(0, LONGEST) + "..." : text;
    }

    private void write(TestIdentifier test, String outcome, String cause, List<String> notes) {
        ObjectNode line = json.createObjectNode()
            .put("test", name(test))
            .put("shown", test.getDisplayName())
            .put("outcome", outcome)
            .put("cause", cause)
            .put("is_flaky_in_kafka", test.getTags().contains(TestTag.create("flaky")))
            .put("seconds", seconds(test));
        notes.forEach(line.withArray("notes")::add);
        append(line);
    }

    private static synchronized void append(ObjectNode line) {
        if (FILE == null) {
            return;
        }
        try {
            Files.writeString(Path.of(FILE), line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private double seconds(TestIdentifier test) {
        Long start = begun.remove(test.getUniqueId());
        return start == null ? 0 : (System.nanoTime() - start) / 1_000_000 / 1000.0;
    }

    private static String name(TestIdentifier test) {
        var source = test.getSource().orElse(null);
        if (source instanceof MethodSource method) {
            return method.getClassName() + "#" + method.getMethodName() + run(test.getUniqueIdObject());
        }
        if (source instanceof ClassSource type) {
            return type.getClassName() + "#";
        }
        return test.getUniqueId();
    }

    private static String run(UniqueId id) {
        UniqueId.Segment last = id.getLastSegment();
        return last.getType().endsWith("-invocation") ? "[" + last.getValue().replace("#", "") + "]" : "";
    }
}
