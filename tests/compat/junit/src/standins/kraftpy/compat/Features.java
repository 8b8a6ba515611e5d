package kraftpy.compat;

import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.SupportedVersionRange;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.common.metadata.FeatureLevelRecord;
import org.apache.kafka.metadata.bootstrap.BootstrapMetadata;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.common.KRaftVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** The features with which Kafka's test kit would have formatted a cluster (KIP-584, KIP-1022). */
public final class Features {
    private Features() {
    }

    /**
     * Throw {@link Missing} if the cluster is to begin with a much older metadata version than kraftpy has. With one of
     * Kafka 4, it begins with kraftpy's: those that were added since only allow more.
     */
    public static void checkMetadataVersion(BootstrapMetadata bootstrap) {
        MetadataVersion wanted = bootstrap.metadataVersion();
        if (wanted.isLessThan(MetadataVersion.IBP_4_0_IV1)) {
            throw new Missing("metadata version " + wanted);
        }
    }

    /**
     * Give the running cluster the levels that the bootstrap metadata names, except those that come with the metadata
     * version: a cluster of kraftpy begins with the highest that it has.
     */
    public static void apply(BootstrapMetadata bootstrap, Admin admin) {
        for (ApiMessageAndVersion record : bootstrap.records()) {
            if (record.message() instanceof FeatureLevelRecord feature
                && !isQuorumFeature(feature.name())
                && feature.featureLevel() != usual(feature.name(), bootstrap.metadataVersion())) {
                apply(feature.name(), feature.featureLevel(), admin);
            }
        }
    }

    private static short usual(String name, MetadataVersion version) {
        return Feature.featureFromName(name).defaultLevel(version);
    }

    private static boolean isQuorumFeature(String name) {
        return name.equals(MetadataVersion.FEATURE_NAME) || name.equals(KRaftVersion.FEATURE_NAME);
    }

    /** Give the running cluster this level of a feature. */
    public static void apply(String name, short level, Admin admin) {
        try {
            FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
            FinalizedVersionRange finalized = features.finalizedFeatures().get(name);
            short before = finalized == null ? 0 : finalized.maxVersionLevel();
            if (before == level) {
                return;
            }
            SupportedVersionRange supported = features.supportedFeatures().get(name);
            if (supported == null || level > supported.maxVersion() || level < supported.minVersion()) {
                throw new Missing(name + " " + level);
            }
            FeatureUpdate.UpgradeType type = level > before
                ? FeatureUpdate.UpgradeType.UPGRADE
                : FeatureUpdate.UpgradeType.SAFE_DOWNGRADE;
            admin.updateFeatures(Map.of(name, new FeatureUpdate(level, type)), new UpdateFeaturesOptions()).all().get();
        } catch (ExecutionException error) {
            throw new IllegalStateException(name + " " + level, error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(name + " " + level, error);
        }
    }
}
