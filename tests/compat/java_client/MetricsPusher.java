import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer and a consumer of Apache Kafka's own client, for as long as it takes: they push their metrics if the broker
 * asks for them (KIP-714).
 *
 * <pre>
 *   BOOTSTRAP GROUP TOPIC PROTOCOL SECONDS   sends and reads a record every 100 ms; prints the id by which the broker
 *                                            knows each of the two, and a line for each of their metrics: group, name
 *                                            and the names of its tags, between tabs
 * </pre>
 */
public final class MetricsPusher {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", arguments[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("client.id", "java");
        long until = System.nanoTime() + Duration.ofSeconds(Integer.parseInt(arguments[4])).toNanos();
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            while (System.nanoTime() < until) {
                producer.send(new ProducerRecord<>(arguments[2], new byte[100])).get();
                consumer.poll(Duration.ofMillis(100));
                consumer.commitSync();
            }
            System.out.println("producer " + producer.clientInstanceId(Duration.ofSeconds(30)));
            System.out.println("consumer " + consumer.clientInstanceId(Duration.ofSeconds(30)));
            TreeSet<String> names = new TreeSet<>();
            for (Map<MetricName, ? extends Metric> metrics : List.of(producer.metrics(), consumer.metrics())) {
                for (MetricName name : metrics.keySet()) {
                    String tags = String.join(",", new TreeSet<>(name.tags().keySet()));
                    names.add(name.group() + "\t" + name.name() + "\t" + tags);
                }
            }
            names.forEach(System.out::println);
        }
    }
}
