package org.apache.kafka.common.test.junit;

import java.util.List;
import kraftpy.compat.NotAsked;
import kraftpy.compat.ProcessCluster;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

/** In the place of Kafka's class: one run of a {@code @ClusterTest}, with a cluster of processes. */
public final class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String baseDisplayName;
    private final ClusterConfig config;
    private final boolean isCombined;

    public RaftClusterInvocationContext(String baseDisplayName, ClusterConfig config, boolean isCombined) {
        this.baseDisplayName = baseDisplayName;
        this.config = config;
        this.isCombined = isCombined;
    }

    @Override
    public String getDisplayName(int number) {
        String type = isCombined ? "Combined" : "Isolated";
        String tags = String.join(",", config.displayTags());
        return String.format("%s [%d] Type=Raft-%s, %s", baseDisplayName, number, type, tags);
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        ProcessCluster cluster = new ProcessCluster(config, isCombined);
        BeforeEachCallback before = context -> {
            NotAsked.check(config, isCombined);
            cluster.format();
            if (config.isAutoStart()) {
                cluster.start();
            }
        };
        AfterTestExecutionCallback after = context -> cluster.stop();
        return List.of(before, after, new ClusterInstanceParameterResolver(cluster));
    }
}
