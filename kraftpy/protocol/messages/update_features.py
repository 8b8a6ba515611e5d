"""Change the levels of features that the cluster has agreed on.

KIP-584, KIP-778 (downgrades, a dry run), KIP-1022 (no results per feature).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, string, struct

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


@struct
class FeatureUpdateKey:
    """A feature and the level it is to have; below 1 takes it away."""

    feature: Annotated[str, string]
    max_version_level: Annotated[int, int16]
    allow_downgrade: Annotated[bool, boolean, "0"] = False
    upgrade_type: Annotated[int, int8, "1+"] = UPGRADE  # KIP-778


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Ask for other levels: all of them, or none."""

    timeout_ms: Annotated[int, int32] = 60000
    feature_updates: Annotated[list[FeatureUpdateKey], array] = []
    validate_only: Annotated[bool, boolean, "1+"] = False


@struct
class UpdatableFeatureResult:
    """A feature."""

    feature: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """What came of it."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    results: Annotated[list[UpdatableFeatureResult], array, "0-1", ignorable] = []
