package kafka.server;

import java.util.Properties;
import java.util.stream.Stream;
import kafka.utils.Logging;
import kafka.utils.TestInfoUtils$;
import kafka.utils.TestUtils$;
import kraftpy.compat.ProcessQuorum;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.storage.Formatter;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.MockFaultHandler;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.provider.Arguments;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Seq$;

/**
 * In the place of Kafka's class, which Kafka's older tests extend: one controller, and brokers on demand, all of them
 * processes of {@code kraftpy server}.
 *
 * <p>Its methods are those of Kafka's class, as Scala compiles them.
 */
@Tag("integration")
public abstract class QuorumTestHarness implements Logging {
    private final MockFaultHandler faultHandler = new MockFaultHandler("quorumTestHarnessFaultHandler");
    private final QuorumTestHarnessFaultHandlerFactory faultHandlerFactory =
        new QuorumTestHarnessFaultHandlerFactory(faultHandler);
    private TestInfo testInfo;
    private QuorumImplementation implementation;
    private String logIdent;

    public static Stream<Arguments> getTestGroupProtocolParametersAll() {
        return QuorumTestHarness$.MODULE$.getTestGroupProtocolParametersAll();
    }

    public static Stream<Arguments> getTestGroupProtocolParametersClassicGroupProtocolOnly() {
        return QuorumTestHarness$.MODULE$.getTestGroupProtocolParametersClassicGroupProtocolOnly();
    }

    public static Stream<Arguments> getTestGroupProtocolParametersConsumerGroupProtocolOnly() {
        return QuorumTestHarness$.MODULE$.getTestGroupProtocolParametersConsumerGroupProtocolOnly();
    }

    /** Do nothing: it is about the threads of brokers, and there are none in this process. */
    public static void verifyNoUnexpectedThreads(String context) {
    }

    @Override
    public String logIdent() {
        return logIdent;
    }

    @Override
    public void logIdent_$eq(String ident) {
        logIdent = ident;
    }

    public SecurityProtocol controllerListenerSecurityProtocol() {
        return SecurityProtocol.PLAINTEXT;
    }

    public scala.collection.Seq<SecurityProtocol> extraControllerSecurityProtocols() {
        return empty();
    }

    @SuppressWarnings("unchecked")
    public scala.collection.Seq<Properties> kraftControllerConfigs(TestInfo info) {
        return (Seq<Properties>) empty().appended(new Properties());
    }

    @SuppressWarnings("unchecked")
    private static <T> Seq<T> empty() {
        return (Seq<T>) Seq$.MODULE$.empty();
    }

    public MetadataVersion metadataVersion() {
        return MetadataVersion.latestTesting();
    }

    public QuorumImplementation implementation() {
        return implementation;
    }

    public void implementation_$eq(QuorumImplementation changed) {
        implementation = changed;
    }

    public Option<GroupProtocol> maybeGroupProtocolSpecified() {
        return TestInfoUtils$.MODULE$.maybeGroupProtocolSpecified(testInfo);
    }

    public GroupProtocol groupProtocolFromTestParameters() {
        Option<GroupProtocol> specified = maybeGroupProtocolSpecified();
        if (specified.isEmpty()) {
            throw new RuntimeException("The test does not say which group protocol it wants");
        }
        return specified.get();
    }

    public ControllerServer controllerServer() {
        return ((KRaftQuorumImplementation) implementation).controllerServer();
    }

    @SuppressWarnings("unchecked")
    public scala.collection.Seq<ControllerServer> controllerServers() {
        return (Seq<ControllerServer>) empty().appended(controllerServer());
    }

    public QuorumTestHarnessFaultHandlerFactory faultHandlerFactory() {
        return faultHandlerFactory;
    }

    public MockFaultHandler faultHandler() {
        return faultHandler;
    }

    @BeforeEach
    public void setUp(TestInfo info) {
        testInfo = info;
        implementation = newKRaftQuorum(info, new Properties());
    }

    public KRaftQuorumImplementation newKRaftQuorum(TestInfo info, Properties overriding) {
        Properties settings = new Properties();
        settings.putAll(kraftControllerConfigs(info).head());
        settings.putAll(overriding);
        return ProcessQuorum.start(this, settings);
    }

    public KafkaBroker createBroker(
        KafkaConfig config, Time time, boolean isStarted, Option<String> threadNamePrefix) {
        return implementation.createBroker(config, time, isStarted, threadNamePrefix);
    }

    public Time createBroker$default$2() {
        return Time.SYSTEM;
    }

    public boolean createBroker$default$3() {
        return true;
    }

    public Option<String> createBroker$default$4() {
        return Option.empty();
    }

    public void shutdownKRaftController() {
        controllerServer().shutdown();
    }

    public void addFormatterSettings(Formatter formatter) {
    }

    @AfterEach
    public void tearDown() {
        if (implementation != null) {
            implementation.shutdown();
        }
        TestUtils$.MODULE$.clearYammerMetrics();
    }
}
