"""Changes the finalized levels of the cluster's features.

KIP-584, KIP-778 (downgrades, dry runs), KIP-1022 (no results per feature).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, string, struct

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


@struct
class FeatureUpdateKey:
    """A feature and its new level; a level below 1 removes it."""

    feature: Annotated[str, string]
    max_version_level: Annotated[int, int16]
    allow_downgrade: Annotated[bool, boolean, "0"] = False
    upgrade_type: Annotated[int, int8, "1+"] = UPGRADE  # KIP-778


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """The new levels: either all take effect, or none."""

    timeout_ms: Annotated[int, int32] = 60000
    feature_updates: Annotated[list[FeatureUpdateKey], array] = []
    validate_only: Annotated[bool, boolean, "1+"] = False


@struct
class UpdatableFeatureResult:
    """The result for one feature."""

    feature: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """The result, with one part per feature up to version 1."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    results: Annotated[list[UpdatableFeatureResult], array, "0-1", ignorable] = []
