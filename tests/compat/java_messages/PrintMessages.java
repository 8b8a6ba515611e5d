import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.message.ApiVersionsRequestData;
import org.apache.kafka.common.message.DeleteGroupsResponseData;
import org.apache.kafka.common.message.StreamsGroupDescribeRequestData;
import org.apache.kafka.common.message.StreamsGroupDescribeResponseData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatResponseData;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateRequestData;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateRequestData.TopologyDescription;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateRequestData.TopologyDescriptionGlobalStore;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateRequestData.TopologyDescriptionNode;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateRequestData.TopologyDescriptionSubtopology;
import org.apache.kafka.common.message.StreamsGroupTopologyDescriptionUpdateResponseData;
import org.apache.kafka.common.message.UnregisterControllerRequestData;
import org.apache.kafka.common.message.UnregisterControllerResponseData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Prints messages in versions that came with Apache Kafka 4.4, as it encodes them: name, version, hexadecimal bytes.
 * Kept in tests/protocol/kafka_4_4_messages.txt; tests/protocol/test_messages_of_kafka_4_4.py has the same messages.
 *
 *     javac -cp "LIB/*" -d OUT PrintMessages.java && java -cp "LIB/*:OUT" PrintMessages
 */
public class PrintMessages {
    private static void print(ApiMessage message, int version) {
        ByteBuffer bytes = MessageUtil.toByteBufferAccessor(message, (short) version).buffer();
        byte[] found = new byte[bytes.remaining()];
        bytes.get(found);
        String name = message.getClass().getSimpleName().replaceAll("Data$", "");
        System.out.println(name + " " + version + " " + HexFormat.of().formatHex(found));
    }

    private static TopologyDescriptionNode node(String name, int type) {
        return new TopologyDescriptionNode().setName(name).setNodeType((byte) type);
    }

    public static void main(String[] arguments) {
        print(new ApiVersionsRequestData().setClientSoftwareName("a").setClientSoftwareVersion("1")
            .setClusterId("cluster").setNodeId(3), 5);
        print(new ApiVersionsRequestData().setClientSoftwareName("a").setClientSoftwareVersion("1"), 5);
        DeleteGroupsResponseData.DeletableGroupResultCollection results =
            new DeleteGroupsResponseData.DeletableGroupResultCollection();
        results.add(new DeleteGroupsResponseData.DeletableGroupResult().setGroupId("g").setErrorCode((short) 134)
            .setErrorMessage("why"));
        results.add(new DeleteGroupsResponseData.DeletableGroupResult().setGroupId("h"));
        print(new DeleteGroupsResponseData().setResults(results), 3);
        print(new StreamsGroupHeartbeatRequestData().setGroupId("g").setMemberId("m").setMemberEpoch(1), 1);
        print(new StreamsGroupHeartbeatResponseData().setMemberId("m").setMemberEpoch(2).setHeartbeatIntervalMs(3)
            .setAcceptableRecoveryLag(1L << 40).setTaskOffsetIntervalMs(5).setStatus(List.of())
            .setTopologyDescriptionRequired(true).setEndpointInformationEpoch(7), 1);
        print(new StreamsGroupDescribeRequestData().setGroupIds(List.of("g")).setIncludeTopologyDescription(true), 1);
        print(new StreamsGroupDescribeResponseData().setGroups(List.of(
            new StreamsGroupDescribeResponseData.DescribedGroup().setGroupId("g").setGroupState("Empty")
                .setTopologyDescriptionStatus((byte) 1).setAssignorName("sticky"),
            new StreamsGroupDescribeResponseData.DescribedGroup().setGroupId("h").setErrorCode((short) 69)
                .setTopologyDescription(new StreamsGroupDescribeResponseData.TopologyDescription()
                    .setSubtopologies(List.of()).setGlobalStores(List.of())))), 1);
        print(new StreamsGroupTopologyDescriptionUpdateRequestData().setGroupId("g").setMemberId("m")
            .setTopologyEpoch(4).setTopologyDescription(new TopologyDescription()
                .setSubtopologies(List.of(new TopologyDescriptionSubtopology().setSubtopologyId("0").setNodes(List.of(
                    node("source", 1).setSourceTopics(List.of("in")).setSuccessors(List.of("sink")),
                    node("sink", 3).setSinkTopic("out")))))
                .setGlobalStores(List.of(new TopologyDescriptionGlobalStore()
                    .setSource(node("global", 1)).setProcessor(node("store", 2).setStores(List.of("s")))))), 0);
        print(new StreamsGroupTopologyDescriptionUpdateResponseData().setErrorCode((short) 35)
            .setErrorMessage("none"), 0);
        print(new UnregisterControllerRequestData().setControllerId(9), 0);
        print(new UnregisterControllerResponseData().setErrorCode((short) 136).setErrorMessage(null), 0);
    }
}
