import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Share groups in the hands of Apache Kafka's own client. The values of the records are numbers.
 *
 * <pre>
 *   read BOOTSTRAP GROUP TOPIC SECONDS   until nothing has come for so long: those that end with 7 are released when
 *                                      they come for the first time, those that end with 9 rejected, the others accepted;
 *                                      a line for each delivery: its number, which delivery it is, what became of it
 *   describe BOOTSTRAP GROUP           a line for the group: type, state, members; one for each partition: where the
 *                                      group begins, and its lag
 *   move BOOTSTRAP GROUP TOPIC OFFSET  of partition 0
 *   forget BOOTSTRAP GROUP TOPIC       where it begins
 *   delete BOOTSTRAP GROUP
 * </pre>
 */
public final class ShareReader {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        String group = arguments[2];
        if (arguments[0].equals("read")) {
            read(bootstrap, group, arguments[3], Integer.parseInt(arguments[4]));
            return;
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            switch (arguments[0]) {
                case "describe" -> describe(admin, group);
                case "move" -> {
                    Map<TopicPartition, Long> offsets =
                        Map.of(new TopicPartition(arguments[3], 0), Long.parseLong(arguments[4]));
                    admin.alterShareGroupOffsets(group, offsets).all().get();
                }
                case "forget" -> admin.deleteShareGroupOffsets(group, Set.of(arguments[3])).all().get();
                case "delete" -> admin.deleteShareGroups(List.of(group)).all().get();
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        }
    }

    private static void read(String bootstrap, String group, String topic, int seconds) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        try (KafkaShareConsumer<byte[], String> consumer =
                 new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long quietSince = System.nanoTime();
            while (System.nanoTime() - quietSince < Duration.ofSeconds(seconds).toNanos()) {
                for (ConsumerRecord<byte[], String> record : consumer.poll(Duration.ofMillis(200))) {
                    AcknowledgeType type = type(record);
                    consumer.acknowledge(record, type);
                    System.out.println(record.value() + " " + delivery(record) + " " + type);
                    quietSince = System.nanoTime();
                }
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
                    each.getValue().ifPresent(error -> {
                        throw error;
                    });
                }
            }
        }
    }

    private static int delivery(ConsumerRecord<byte[], String> record) {
        return record.deliveryCount().orElseThrow();
    }

    private static AcknowledgeType type(ConsumerRecord<byte[], String> record) {
        if (record.value().endsWith("7") && delivery(record) == 1) {
            return AcknowledgeType.RELEASE;
        }
        return record.value().endsWith("9") ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
    }

    private static void describe(Admin admin, String group) throws Exception {
        for (GroupListing listed : admin.listGroups().all().get()) {
            if (listed.groupId().equals(group)) {
                System.out.println("listed " + listed.type().orElseThrow() + " " + listed.groupState().orElseThrow());
            }
        }
        ShareGroupDescription described = admin.describeShareGroups(List.of(group)).all().get().get(group);
        System.out.println("described " + described.groupState() + " " + described.members().size());
        var offsets = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()));
        offsets.partitionsToOffsetInfo(group).get().forEach((partition, info) ->
            System.out.println(partition + " " + info.startOffset() + " " + info.lag().map(String::valueOf).orElse("?")));
    }
}
