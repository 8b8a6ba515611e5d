import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;

/**
 * Segments in the hands of Apache Kafka's own classes.
 *
 * <pre>
 *   read FILE...       each batch and record of segment files, a JSON line each, as tests/compat/segment_rows.py has
 *                      them; before each file a line {"kind":"file"}
 *   write DIRECTORY    segments with indexes, each in a directory of its own, and beside it what `read` says of it
 * </pre>
 */
public final class Segments {
    private static final long NOW = 1_700_000_000_000L;
    private static final short EPOCH = 3;

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "read" -> {
                for (int number = 1; number < arguments.length; number++) {
                    System.out.println("{\"kind\":\"file\"}");
                    read(new File(arguments[number]), System.out);
                }
            }
            case "write" -> write(Path.of(arguments[1]));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    // --- reading

    private static void read(File file, PrintStream out) throws IOException {
        try (FileRecords records = FileRecords.open(file, false)) {
            int bytes = 0;
            for (RecordBatch batch : records.batches()) {
                batch.ensureValid();
                bytes += batch.sizeInBytes();
                out.println(row(batch));
                for (Record record : batch) {
                    record.ensureValid();
                    out.println(row(record));
                }
            }
            if (bytes != file.length()) {
                throw new IOException(file + ": " + bytes + " of " + file.length() + " bytes are batches");
            }
        }
    }

    private static String row(RecordBatch batch) {
        return "{\"kind\":\"batch\",\"base_offset\":" + batch.baseOffset()
            + ",\"last_offset\":" + batch.lastOffset()
            + ",\"records_count\":" + batch.countOrNull()
            + ",\"size_bytes\":" + batch.sizeInBytes()
            + ",\"crc\":" + batch.checksum()
            + ",\"compression\":\"" + batch.compressionType().name + "\""
            + ",\"timestamp_type\":\"" + (batch.timestampType() == TimestampType.LOG_APPEND_TIME
                ? "log_append_time" : "create_time") + "\""
            + ",\"max_timestamp\":" + batch.maxTimestamp()
            + ",\"partition_leader_epoch\":" + batch.partitionLeaderEpoch()
            + ",\"producer_id\":" + batch.producerId()
            + ",\"producer_epoch\":" + batch.producerEpoch()
            + ",\"base_sequence\":" + batch.baseSequence()
            + ",\"is_transactional\":" + batch.isTransactional()
            + ",\"is_control\":" + batch.isControlBatch()
            + ",\"delete_horizon_ms\":" + (batch.deleteHorizonMs().isPresent()
                ? String.valueOf(batch.deleteHorizonMs().getAsLong()) : "null") + "}";
    }

    private static String row(Record record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(headers.length() == 0 ? "" : ",");
            headers.append("[").append(text(header.key().getBytes(StandardCharsets.UTF_8)));
            headers.append(",").append(text(header.value())).append("]");
        }
        return "{\"kind\":\"record\",\"offset\":" + record.offset()
            + ",\"timestamp\":" + record.timestamp()
            + ",\"key\":" + text(record.hasKey() ? bytes(record.key()) : null)
            + ",\"value\":" + text(record.hasValue() ? bytes(record.value()) : null)
            + ",\"headers\":[" + headers + "]}";
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    /** Bytes as base64; a lot of them as their number and their SHA-256. */
    private static String text(byte[] bytes) {
        if (bytes == null) {
            return "null";
        }
        if (bytes.length <= 48) {
            return "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
        }
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            return "\"" + bytes.length + " " + HexFormat.of().formatHex(digest) + "\"";
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    // --- writing

    private static void write(Path directory) throws IOException {
        for (CompressionType codec : CompressionType.values()) {
            List<MemoryRecords> batches = new ArrayList<>();
            long offset = 0;
            for (int number = 0; number < 6; number++) {
                MemoryRecordsBuilder builder = builder(codec, TimestampType.CREATE_TIME, offset, -1L, -1, false, number / 2);
                offset = fill(builder, offset, number);
                batches.add(builder.build());
            }
            MemoryRecordsBuilder large = builder(codec, TimestampType.CREATE_TIME, offset, -1L, -1, false, 3);
            large.appendWithOffset(offset, NOW + 100, bytes("large"), compressible(codec == CompressionType.NONE ? 10_000 : 150_000));
            large.appendWithOffset(offset + 1, NOW + 99, null, noise(3_000));
            batches.add(large.build());
            store(directory, codec.name, 0, batches);
        }
        store(directory, "log-append-time", 5_000_000_000L, List.of(
            filled(CompressionType.GZIP, TimestampType.LOG_APPEND_TIME, 5_000_000_000L, -1L, -1, false, 7),
            filled(CompressionType.NONE, TimestampType.LOG_APPEND_TIME, 5_000_000_008L, -1L, -1, false, 8)));
        store(directory, "idempotent", 0, List.of(
            filled(CompressionType.LZ4, TimestampType.CREATE_TIME, 0, 4711, Integer.MAX_VALUE - 3, false, 0),
            filled(CompressionType.LZ4, TimestampType.CREATE_TIME, 8, 4711, 4, false, 0),
            filled(CompressionType.NONE, TimestampType.CREATE_TIME, 16, 4712, 0, false, 1)));
        store(directory, "transactional", 0, List.of(
            filled(CompressionType.ZSTD, TimestampType.CREATE_TIME, 0, 1, 0, true, 0),
            filled(CompressionType.SNAPPY, TimestampType.CREATE_TIME, 8, 2, 0, true, 0),
            marker(16, 1, ControlRecordType.COMMIT, 0),
            filled(CompressionType.NONE, TimestampType.CREATE_TIME, 17, -1, -1, false, 0),
            marker(25, 2, ControlRecordType.ABORT, 1),
            filled(CompressionType.NONE, TimestampType.CREATE_TIME, 26, 2, 8, true, 2)));
        store(directory, "compacted", 0, compacted());
    }

    private static MemoryRecordsBuilder builder(CompressionType codec, TimestampType type, long offset, long producerId,
                                                int sequence, boolean transactional, int leaderEpoch) {
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 16), RecordBatch.MAGIC_VALUE_V2, Compression.of(codec).build(),
            type, offset, type == TimestampType.LOG_APPEND_TIME ? NOW + 5_000 : RecordBatch.NO_TIMESTAMP, producerId,
            producerId < 0 ? RecordBatch.NO_PRODUCER_EPOCH : EPOCH, sequence, transactional, leaderEpoch);
    }

    private static MemoryRecords filled(CompressionType codec, TimestampType type, long offset, long producerId,
                                        int sequence, boolean transactional, int leaderEpoch) {
        MemoryRecordsBuilder builder = builder(codec, type, offset, producerId, sequence, transactional, leaderEpoch);
        fill(builder, offset, (int) (offset % 1000));
        return builder.build();
    }

    /** Eight records, of every kind there is; the offset after them. */
    private static long fill(MemoryRecordsBuilder builder, long offset, int number) {
        long time = NOW + number * 10L;
        builder.appendWithOffset(offset, time, bytes("key " + number), bytes("value " + number));
        builder.appendWithOffset(offset + 1, time + 7, (byte[]) null, bytes("no key"));
        builder.appendWithOffset(offset + 2, time - 3, bytes("no value"), (byte[]) null);
        builder.appendWithOffset(offset + 3, time, (byte[]) null, (byte[]) null);
        builder.appendWithOffset(offset + 4, time, new byte[0], new byte[0]);
        builder.appendWithOffset(offset + 5, time + 1, noise(20), noise(400));
        builder.appendWithOffset(offset + 6, time + 1, bytes("headers"), bytes("\u00e4\u20ac\ud83d\ude00"), new Header[] {
            new RecordHeader("name", bytes("value")), new RecordHeader("name", null),
            new RecordHeader("\u00fc", noise(10)), new RecordHeader("", new byte[0])});
        builder.appendWithOffset(offset + 7, time + 2, bytes("long"), compressible(3_000));
        return offset + 8;
    }

    private static MemoryRecords marker(long offset, long producerId, ControlRecordType type, int leaderEpoch) {
        return MemoryRecords.withEndTransactionMarker(offset, NOW + offset, leaderEpoch, producerId, EPOCH,
            new EndTransactionMarker(type, 9));
    }

    /** As the log cleaner writes them: records that are gone, a delete horizon, a batch that is kept empty. */
    private static List<MemoryRecords> compacted() {
        List<MemoryRecords> cleaned = new ArrayList<>();
        List<MemoryRecords> sources = List.of(
            filled(CompressionType.NONE, TimestampType.CREATE_TIME, 0, 4711, 0, false, 0),
            filled(CompressionType.ZSTD, TimestampType.CREATE_TIME, 8, 4711, 8, false, 0),
            filled(CompressionType.GZIP, TimestampType.CREATE_TIME, 16, 4711, 16, false, 1),
            filled(CompressionType.NONE, TimestampType.CREATE_TIME, 24, -1, -1, false, 1));
        for (MemoryRecords source : sources) {
            MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(NOW + 60_000, 86_400_000) {
                @Override
                protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                    return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, false);
                }

                @Override
                protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                    return batch.baseOffset() != 16 && record.hasKey() && record.offset() % 3 != 0;
                }
            };
            ByteBuffer to = ByteBuffer.allocate(1 << 16);
            ByteBuffer written = source.filterTo(filter, to, BufferSupplier.NO_CACHING).outputBuffer();
            written.flip();
            cleaned.add(MemoryRecords.readableRecords(written));
        }
        return cleaned;
    }

    private static void store(Path directory, String name, long baseOffset, List<MemoryRecords> batches) throws IOException {
        Path own = Files.createDirectories(directory.resolve(name));
        LogConfig config = new LogConfig(Map.of("segment.bytes", 1 << 20, "index.interval.bytes", 1000));
        LogSegment segment = LogSegment.open(own.toFile(), baseOffset, config, Time.SYSTEM, 0, false);
        for (MemoryRecords batch : batches) {
            long last = 0;
            for (RecordBatch each : batch.batches()) {
                last = each.lastOffset();
            }
            segment.append(last, batch);
        }
        segment.onBecomeInactiveSegment();
        segment.flush();
        File file = segment.log().file();
        segment.close();
        try (PrintStream out = new PrintStream(own.resolve("records.jsonl").toFile(), StandardCharsets.UTF_8)) {
            read(file, out);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] compressible(int length) {
        byte[] bytes = new byte[length];
        for (int place = 0; place < length; place++) {
            bytes[place] = (byte) ("flights go on time, or late, or not at all. ".charAt((place + place / 997) % 44));
        }
        return bytes;
    }

    private static byte[] noise(int length) {
        byte[] bytes = new byte[length];
        long state = length;
        for (int place = 0; place < length; place++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            bytes[place] = (byte) (state >>> 56);
        }
        return bytes;
    }

    private Segments() { }
}
