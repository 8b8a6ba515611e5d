import org.apache.kafka.common.protocol.Errors;

/** Prints what Kafka's clients say of each error code: number, name, whether it can be retried, words. */
public class ErrorWords {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            boolean isRetriable = error.exception() instanceof org.apache.kafka.common.errors.RetriableException;
            System.out.println(error.code() + " " + error.name() + " " + isRetriable + " " + error.message());
        }
    }
}
