import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools within one JVM, as if each had one of its own.
 *
 * A request is a line of JSON on standard input, and so is its answer on standard output:
 * {"do": "run", "tool": class, "arguments": [...], "input": text, "seconds": n} is answered with
 * {"status": n, "out": text, "err": text} when the tool ends, or with status -1 when its time is over; it has then been
 * told to end, as Ctrl-C does. {"do": "start", "as": name, ...} starts a tool and is answered at once; {"do": "end",
 * "as": name} has it end, and is answered as `run` is.
 *
 * A tool's standard streams and shutdown hooks belong to its thread and to those that this one starts. Output
 * after an exit is dropped: the exit unwinds the stack, which closes clients, as the end of a process would.
 */
public final class Tools {
    private static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();
    private static final PrintStream ANSWERS = System.out;
    private static final InputStream REQUESTS = System.in;
    private static final int STILL_RUNNING = -1;

    /** Unwinds the stack of a tool that exits. */
    private static final class Exited extends Error {
        Exited() {
            super("exited", null, false, false);
        }
    }

    /** One run of a tool. */
    private static final class Run implements Runnable {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final InputStream input;
        final List<Runnable> hooks = new ArrayList<>();
        final CountDownLatch over = new CountDownLatch(1);
        final CountDownLatch exit = new CountDownLatch(1);
        final String tool;
        final String[] arguments;
        Integer status = null;
        Thread thread;

        Run(JsonNode request) {
            tool = request.get("tool").asText();
            arguments = new String[request.get("arguments").size()];
            for (int i = 0; i < arguments.length; i++)
                arguments[i] = request.get("arguments").get(i).asText();
            input = new ByteArrayInputStream(request.path("input").asText("").getBytes(StandardCharsets.UTF_8));
        }

        synchronized void end(int code) {
            if (status == null)
                status = code;
            exit.countDown();
        }

        synchronized void print(ByteArrayOutputStream stream, byte[] bytes, int from, int length) {
            if (status == null)
                stream.write(bytes, from, length);
        }

        @Override
        public void run() {
            CURRENT.set(this);
            try {
                Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
                awaitThreads();
                interrupt();
                end(0);
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Exited)) {
                    System.err.print("Exception in thread \"main\" ");
                    error.getCause().printStackTrace();
                }
                end(1);
            } catch (InterruptedException error) {
                end(STILL_RUNNING);
            } catch (ReflectiveOperationException error) {
                System.err.println("no such tool: " + error);
                end(1);
            } finally {
                over.countDown();
            }
        }

        /** Waits for the threads that would keep the tool's process alive. */
        private void awaitThreads() throws InterruptedException {
            Thread[] threads = new Thread[64];
            int count = thread.getThreadGroup().enumerate(threads);
            for (int i = 0; i < count; i++)
                if (threads[i] != thread && !threads[i].isDaemon())
                    threads[i].join();
        }

        /** Runs what the tool wants to be run when its process ends. */
        void interrupt() {
            List<Runnable> told;
            synchronized (hooks) {
                told = new ArrayList<>(hooks);
                hooks.clear();
            }
            told.forEach(Runnable::run);
            for (Thread hook : hooksOfTheProcess(thread.getThreadGroup())) {
                hook.start();
                try {
                    hook.join(10_000);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
        }
    }

    /** Prints into the run that the thread belongs to. */
    private static final class Printing extends OutputStream {
        private final boolean isError;

        Printing(boolean isError) {
            this.isError = isError;
        }

        @Override
        public void write(int letter) {
            write(new byte[] {(byte) letter}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int length) {
            Run run = CURRENT.get();
            if (run != null)
                run.print(isError ? run.err : run.out, bytes, from, length);
        }
    }

    /** Reads what the run of the thread was given. */
    private static final class Reading extends InputStream {
        @Override
        public int read() throws IOException {
            Run run = CURRENT.get();
            return run == null ? -1 : run.input.read();
        }

        @Override
        public int read(byte[] bytes, int from, int length) throws IOException {
            Run run = CURRENT.get();
            return run == null ? -1 : run.input.read(bytes, from, length);
        }

        @Override
        public int available() throws IOException {
            Run run = CURRENT.get();
            return run == null ? 0 : run.input.available();
        }
    }

    /** Keeps a tool's `System.exit` from ending the process: argparse4j calls it when it prints help or an error. */
    @SuppressWarnings("removal")
    private static final class NoExit extends SecurityManager {
        @Override
        public void checkPermission(java.security.Permission permission) {
        }

        @Override
        public void checkPermission(java.security.Permission permission, Object context) {
        }

        @Override
        public void checkExit(int status) {
            exit(status);
        }
    }

    private static void exit(int status) {
        Run run = CURRENT.get();
        if (run != null)
            run.end(status);
        throw new Exited();
    }

    private static void start(Run run) {
        run.thread = new Thread(new ThreadGroup(run.tool), run, "main");
        run.thread.start();
    }

    /** Takes the hooks that threads of a group have given to `Runtime.addShutdownHook`. */
    private static List<Thread> hooksOfTheProcess(ThreadGroup group) {
        try {
            java.lang.reflect.Field field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
            field.setAccessible(true);
            List<Thread> found = new ArrayList<>();
            for (Object hook : new ArrayList<>(((Map<?, ?>) field.get(null)).keySet()))
                if (((Thread) hook).getThreadGroup() == group && Runtime.getRuntime().removeShutdownHook((Thread) hook))
                    found.add((Thread) hook);
            return found;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static ObjectNode finished(ObjectMapper json, Run run, long seconds, boolean isTold)
            throws InterruptedException {
        if (isTold)
            new Thread(run::interrupt).start();
        if (!run.exit.await(seconds, TimeUnit.SECONDS)) {
            run.interrupt();
            run.over.await(5, TimeUnit.SECONDS);
            run.end(STILL_RUNNING);
        }
        run.over.await(10, TimeUnit.SECONDS);
        ObjectNode answer = json.createObjectNode();
        synchronized (run) {
            answer.put("status", run.status);
            answer.put("out", run.out.toString(StandardCharsets.UTF_8));
            answer.put("err", run.err.toString(StandardCharsets.UTF_8));
        }
        return answer;
    }

    @SuppressWarnings("removal")
    public static void main(String[] arguments) throws Exception {
        org.slf4j.LoggerFactory.getILoggerFactory(); // says once, before anybody listens, that nothing is logged
        System.setOut(new PrintStream(new Printing(false), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Printing(true), true, StandardCharsets.UTF_8));
        System.setIn(new Reading());
        System.setSecurityManager(new NoExit());
        Exit.setExitProcedure((status, message) -> exit(status));
        Exit.setHaltProcedure((status, message) -> exit(status));
        Exit.setShutdownHookAdder((name, hook) -> {
            Run run = CURRENT.get();
            synchronized (run.hooks) {
                run.hooks.add(hook);
            }
        });
        ObjectMapper json = new ObjectMapper();
        Map<String, Run> started = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(REQUESTS, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = json.readTree(line);
            ObjectNode answer;
            switch (request.get("do").asText()) {
                case "start": {
                    Run run = new Run(request);
                    started.put(request.get("as").asText(), run);
                    start(run);
                    answer = json.createObjectNode();
                    break;
                }
                case "end":
                    answer = finished(json, started.remove(request.get("as").asText()), request.get("seconds").asLong(), true);
                    break;
                default: {
                    Run run = new Run(request);
                    start(run);
                    answer = finished(json, run, request.get("seconds").asLong(), false);
                }
            }
            ANSWERS.println(json.writeValueAsString(answer));
            ANSWERS.flush();
        }
        System.setSecurityManager(null);
        Runtime.getRuntime().halt(0);
    }
}
