"""ApiVersions (18), UpdateFeatures (57), DescribeCluster (60), UnregisterBroker (64).

They describe this broker and its cluster. ApiVersions: KIP-35, KIP-511, features KIP-584 and KIP-1022.
DescribeCluster: KIP-700, endpoint types KIP-919, fenced brokers KIP-1073. UpdateFeatures: KIP-584, KIP-778.
UnregisterBroker: KIP-631.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.broker_proof import SOFTWARE, who_asks
from kraftpy.broker.handlers.table import served
from kraftpy.broker.metadata.client_commands import decided_within
from kraftpy.broker.view import View
from kraftpy.metadata.commands import PARTITIONS_AT_ONCE, FeatureUpdate, UnregisterBroker, UpdateFeatures
from kraftpy.metadata.features import SUPPORTED
from kraftpy.protocol.apis import APIS
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kraftpy.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kraftpy.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kraftpy.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.connection_limits import ConnectionLimits
    from kraftpy.broker.handlers.services import HasControllerId, HasMetadata, HasProof
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasNodeId

    class Broker(HasClock, HasConfig, HasControllerId, HasImage, HasMetadata, HasNodeId, HasProof, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def connection_limits(self) -> ConnectionLimits:
            """The limits on connections."""


_LEVEL_ZERO_VERSION = 4
_BROKERS = 1
_CONTROLLERS = 2


async def api_versions(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """List every API that this broker serves, with its versions."""
    if context.api_version >= 3 and not (
        _is_software_name(request.client_software_name) and _is_software_name(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    if context.connection is not None and request.client_software_name == SOFTWARE:
        context.connection.broker_claim = request.client_software_version
        if broker.connection_limits.must_prove(context.connection):
            found = await who_asks(broker, context)
        else:
            found = broker.proof.proved(context.connection)
        if found is not None:
            broker.connection_limits.proved(context.connection)
    response = api_versions_response(ErrorCode.NONE)
    image = broker.image
    # Older clients reject a minimum level of 0 (KIP-1022).
    lowest = 0 if context.api_version >= _LEVEL_ZERO_VERSION else 1
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=first, max_version=last)
        for name, (first, last) in SUPPORTED.items()
        if first >= lowest and last > 0
    ]
    response.finalized_features = [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in sorted(image.features().items())
    ]
    response.finalized_features_epoch = image.version
    return response


def api_versions_response(error_code: ErrorCode) -> ApiVersionsResponse:
    """Return the table of handlers as a response."""
    keys = [ApiVersion(api_key=key, min_version=APIS[key].first, max_version=APIS[key].last) for key in served()]
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def _is_software_name(name: str) -> bool:
    """KIP-511's pattern: letters, digits, '-' and '.', none of the last two at the ends."""
    inner = name.replace("-", "").replace(".", "")
    return bool(name) and inner.isascii() and inner.isalnum() and name[0].isalnum() and name[-1].isalnum()


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Describe the cluster's id, controller and brokers; fenced ones only on request (KIP-1073)."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker listener; it describes brokers",
            cluster_id=broker.image.cluster_id or "",
            brokers=[],
        )
    view = View(broker.image, context.listener)
    return DescribeClusterResponse(
        cluster_id=broker.image.cluster_id or "",
        controller_id=view.controller(broker.controller_id, broker.node_id),
        brokers=[
            DescribeClusterBroker(
                broker_id=seen.broker_id, host=seen.host, port=seen.port, rack=seen.rack, is_fenced=seen.is_fenced
            )
            for seen in (view.brokers if request.include_fenced_brokers else view.live_brokers)
        ],
    )


async def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Change the levels of features: all of them, or none."""
    command = UpdateFeatures(
        updates=tuple(
            FeatureUpdate(
                name=update.feature,
                level=update.max_version_level,
                upgrade_type=SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type,
            )
            for update in request.feature_updates
        ),
        time_ms=broker.clock.now(),
        validate_only=request.validate_only,
        min_insync_replicas=broker.config.min_insync_replicas,
    )
    response = UpdateFeaturesResponse()
    try:
        decision = await decided_within(broker.metadata, command, request.timeout_ms)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, shortened(error.message)
        return response
    response.error_code, response.error_message = decision.error, shortened(decision.message)
    response.results = [
        UpdatableFeatureResult(feature=result.name, error_code=result.error, error_message=shortened(result.message))
        for result in decision.result or ()
    ]
    return response


async def unregister_broker(
    broker: Broker, request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """Unregister a broker that has stopped; a live one would lose its place in the cluster, so it is refused.

    One with many partitions is unregistered in parts, unless it comes back meanwhile.
    """
    broker_id = BrokerId(request.broker_id)
    while True:
        registered = broker.image.broker(broker_id)
        if registered is not None and not registered.fenced:
            return UnregisterBrokerResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"broker {request.broker_id} is alive; a live broker cannot be unregistered",
            )
        now = broker.clock.now()
        command = UnregisterBroker(broker_id=broker_id, time_ms=now, max_partitions=PARTITIONS_AT_ONCE)
        try:
            decision = await broker.metadata.submit(command)
        except KafkaError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=shortened(error.message))
        if decision.result is None or not decision.result.is_partial:
            return UnregisterBrokerResponse(error_code=decision.error, error_message=shortened(decision.message))
