package kraftpy.compat;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.regex.Pattern;

/** Looks through what nodes logged, and keeps the logs that tell of an error in {@code -Dkraftpy.logs=DIRECTORY}. */
public final class ServerLogs {
    private static final Path KEPT = Path.of(System.getProperty("kraftpy.logs", "logs"));
    private static final Pattern TROUBLE = Pattern.compile("Traceback|\\b(ERROR|CRITICAL)\\b");
    private static final int MOST_NOTES = 5;

    private ServerLogs() {
    }

    /** Look through the log of one node of the cluster with this name. */
    public static void check(String cluster, ServerProcess node) throws IOException {
        if (!Files.exists(node.log())) {
            return;
        }
        List<String> trouble = new String(Files.readAllBytes(node.log()), StandardCharsets.UTF_8).lines()
            .filter(line -> TROUBLE.matcher(line).find())
            .toList();
        if (!trouble.isEmpty()) {
            Path kept = KEPT.resolve(cluster + "-" + node.log().getFileName());
            Files.createDirectories(KEPT);
            Files.copy(node.log(), kept, StandardCopyOption.REPLACE_EXISTING);
            trouble.stream().distinct().limit(MOST_NOTES).forEach(line ->
                Notes.add(kept.getFileName() + ": " + line.strip()));
        }
    }
}
