"""The APIs and versions that a broker supports: the first request of every client.

An unsupported version of this request is answered with UNSUPPORTED_VERSION in version 0, and the response header is
never flexible (KIP-511).

KIP-35, KIP-511 (the client's name), KIP-584 (features), KIP-866 (migration), KIP-1022 (features from version 0),
KIP-1242 (the cluster and node that the client expects).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int16, int32, int64, message, string, struct, tag


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """Names the client's software, and asks for the broker's APIs."""

    client_software_name: Annotated[str, string, "3+", ignorable] = ""  # KIP-511
    client_software_version: Annotated[str, string, "3+", ignorable] = ""
    cluster_id: Annotated[str | None, string, "5+", ignorable] = None  # KIP-1242: the cluster the client expects
    node_id: Annotated[int, int32, "5+", ignorable] = -1


@struct
class ApiVersion:
    """One API and its range of versions."""

    api_key: Annotated[int, int16]
    min_version: Annotated[int, int16]
    max_version: Annotated[int, int16]


@struct
class SupportedFeatureKey:
    """A feature, and the levels of it that the broker supports."""

    name: Annotated[str, string]
    min_version: Annotated[int, int16]
    max_version: Annotated[int, int16]


@struct
class FinalizedFeatureKey:
    """A feature, and the level of it at which the cluster runs."""

    name: Annotated[str, string]
    max_version_level: Annotated[int, int16] = 0
    min_version_level: Annotated[int, int16] = 0


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """The broker's APIs with their versions, and the features of the cluster."""

    error_code: Annotated[int, int16] = 0
    api_keys: Annotated[list[ApiVersion], array] = []
    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    supported_features: Annotated[list[SupportedFeatureKey], array, "3+", tag(0), ignorable] = []  # KIP-584
    finalized_features_epoch: Annotated[int, int64, "3+", tag(1), ignorable] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], array, "3+", tag(2), ignorable] = []
    zk_migration_ready: Annotated[bool, boolean, "3+", tag(3), ignorable] = False  # KIP-866
