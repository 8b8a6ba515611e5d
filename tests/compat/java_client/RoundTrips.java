import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Apache Kafka's own client with one login after the other: reads commands, a line each, and answers with a line each.
 *
 * <pre>
 *   admit TOPIC FILE    with the settings in the file, a producer writes a record, a consumer of a group reads it, and
 *                       Admin lists the topic: "ok", or what went wrong
 *   refuse TOPIC FILE   Admin, a producer and a consumer begin to do so: the names of the three exceptions
 * </pre>
 *
 * A setting "system.NAME" is a system property of the JVM. Each step has a time limit.
 */
public final class RoundTrips {
    private static final Duration LIMIT = Duration.ofSeconds(60);

    /** One of the clients at work. */
    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // a logger may write there
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", 3);
            Properties settings = settings(words[2]);
            String topic = words[1];
            if (words[0].equals("admit")) {
                answers.println(admitted(settings, topic));
            } else {
                Step produce = () -> produce(settings, topic);
                Step consume = () -> consume(settings, topic);
                answers.println(List.of((Step) () -> list(settings, topic), produce, consume).stream()
                    .map(step -> failure(step)).map(error -> error == null ? "none" : error.getClass().getSimpleName())
                    .collect(Collectors.joining(" ")));
            }
        }
    }

    private static Properties settings(String file) throws IOException {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(file, StandardCharsets.UTF_8)) {
            settings.load(reader);
        }
        for (String name : settings.stringPropertyNames()) {
            if (name.startsWith("system.")) {
                System.setProperty(name.substring("system.".length()), (String) settings.remove(name));
            }
        }
        return settings;
    }

    private static String admitted(Properties settings, String topic) {
        Throwable error = failure(() -> {
            produce(settings, topic);
            consume(settings, topic);
            list(settings, topic);
        });
        if (error == null) {
            return "ok";
        }
        error.printStackTrace();
        return error.toString().replace('\n', ' ');
    }

    private static Throwable failure(Step step) {
        try {
            step.run();
        } catch (ExecutionException error) {
            return error.getCause();
        } catch (Exception error) {
            return error;
        }
        return null;
    }

    private static void produce(Properties settings, String topic) throws Exception {
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "value")).get(LIMIT.toSeconds(), TimeUnit.SECONDS);
        }
    }

    private static void consume(Properties settings, String topic) {
        Properties more = new Properties();
        more.putAll(settings);
        more.put("group.id", topic);
        more.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(more, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long until = System.nanoTime() + LIMIT.toNanos();
            while (System.nanoTime() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    if (!record.value().equals("value")) {
                        throw new IllegalStateException("read " + record.value());
                    }
                    consumer.commitSync();
                    return;
                }
            }
        }
        throw new IllegalStateException("nothing was read");
    }

    private static void list(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            if (!admin.listTopics().names().get(LIMIT.toSeconds(), TimeUnit.SECONDS).contains(topic)) {
                throw new IllegalStateException("the topic is not listed");
            }
        }
    }
}
