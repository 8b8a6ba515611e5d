"""ApiVersions (18), UpdateFeatures (57), DescribeCluster (60), UnregisterBroker (64), UnregisterController (94).

They describe this broker and its cluster. ApiVersions: KIP-35, KIP-511, features KIP-584 and KIP-1022, clients that
expect another cluster or node KIP-1242. DescribeCluster: KIP-700, endpoint types KIP-919, fenced brokers KIP-1073.
UpdateFeatures: KIP-584, KIP-778. UnregisterBroker: KIP-631.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.broker_proof import SOFTWARE, who_asks
from kraftpy.broker.handlers.metadata import cluster_operations
from kraftpy.broker.handlers.table import served
from kraftpy.broker.metadata.client_commands import decided_within
from kraftpy.broker.rights import OPERATIONS_NOT_ASKED
from kraftpy.broker.view import View
from kraftpy.config.quorum import Address, parse_address
from kraftpy.metadata.commands import PARTITIONS_AT_ONCE, FeatureUpdate, UnregisterBroker, UpdateFeatures
from kraftpy.metadata.features import SUPPORTED
from kraftpy.protocol.apis import APIS, ApiKey
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
from kraftpy.protocol.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from kraftpy.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kraftpy.broker.connection_limits import ConnectionLimits
    from kraftpy.broker.handlers.services import HasControllerId, HasMetadata, HasProof
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasNodeId
    from kraftpy.config import Listener

    class Broker(HasClock, HasConfig, HasControllerId, HasImage, HasMetadata, HasNodeId, HasProof, Protocol):
        """The part of a broker that these handlers need."""

        @property
        def connection_limits(self) -> ConnectionLimits:
            """The limits on connections."""

        @property
        def controller_address(self) -> Sequence[Listener]:
            """The addresses at which this node is reached as a controller."""


_LEVEL_ZERO_VERSION = 4
_BROKERS = 1
_CONTROLLERS = 2
_NOBODY = -1
_ENDPOINTS = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}


async def api_versions(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """List every API that this broker serves, with its versions."""
    if context.api_version >= 3 and not (
        _is_software_name(request.client_software_name) and _is_software_name(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        broker.image.cluster_id,
        broker.node_id,
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])
    if context.connection is not None and context.api_version >= 3:
        context.connection.software = (request.client_software_name, request.client_software_version)
    if context.connection is not None and request.client_software_name == SOFTWARE:
        context.connection.broker_claim = request.client_software_version
        if broker.connection_limits.must_prove(context.connection):
            found = await who_asks(broker, context)
        else:
            found = broker.proof.proved(context.connection)
        if found is not None:
            broker.connection_limits.proved(context.connection)
    response = api_versions_response(ErrorCode.NONE, by_controllers=_is_at_controller(broker, context))
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


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the answer to a version of ApiVersions that is not served: the versions of that API alone (KIP-511)."""
    api = APIS[ApiKey.API_VERSIONS]
    own = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=api.first, max_version=api.last)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def api_versions_response(error_code: ErrorCode, *, by_controllers: bool = False) -> ApiVersionsResponse:
    """Return the table of handlers as a response, or the part of it that a controller listener serves."""
    keys = [
        ApiVersion(api_key=key, min_version=APIS[key].first, max_version=APIS[key].last)
        for key in served(by_controllers=by_controllers)
    ]
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def _is_software_name(name: str) -> bool:
    """KIP-511's pattern: letters, digits, '-' and '.', none of the last two at the ends."""
    inner = name.replace("-", "").replace(".", "")
    return bool(name) and inner.isascii() and inner.isalnum() and name[0].isalnum() and name[-1].isalnum()


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Describe the cluster's id, controller and brokers; fenced ones only on request (KIP-1073).

    On a controller listener, describe the controllers instead: every node that votes in the quorum (KIP-919).
    """
    here = _CONTROLLERS if _is_at_controller(broker, context) else _BROKERS
    if request.endpoint_type not in _ENDPOINTS:
        return _refused(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    if request.endpoint_type != here:
        return _refused(
            ErrorCode.INVALID_REQUEST if context.api_version == 0 else ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"The request was sent to an endpoint of type {_ENDPOINTS[here]}, but we wanted an endpoint of type "
            f"{_ENDPOINTS[request.endpoint_type]}",
        )
    if here == _CONTROLLERS:
        return _describe_controllers(broker, context.listener)
    view = View(broker.image, context.listener)
    return DescribeClusterResponse(
        cluster_id=broker.image.cluster_id or "",
        controller_id=view.controller(broker.controller_id, broker.node_id),
        cluster_authorized_operations=(
            cluster_operations(context.rights)
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_ASKED
        ),
        brokers=[
            DescribeClusterBroker(
                broker_id=seen.broker_id, host=seen.host, port=seen.port, rack=seen.rack, is_fenced=seen.is_fenced
            )
            for seen in (view.brokers if request.include_fenced_brokers else view.live_brokers)
        ],
    )


def _refused(error_code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=error_code, error_message=message, cluster_id="", brokers=[])


def _is_at_controller(broker: Broker, context: RequestContext) -> bool:
    return context.listener in broker.config.controller_listener_names


def _describe_controllers(broker: Broker, listener: str) -> DescribeClusterResponse:
    """Describe the quorum's voters, at their controller listeners; each of them forwards changes to the active one."""
    addresses = {voter: parse_address("voters", text) for voter, text in broker.metadata.voters.items() if text}
    for own in broker.controller_address:
        if own.name == listener and broker.node_id not in addresses:
            addresses[broker.node_id] = Address(own.host, own.port)
    leader = broker.metadata.leader_id
    return DescribeClusterResponse(
        endpoint_type=_CONTROLLERS,
        cluster_id=broker.image.cluster_id or "",
        controller_id=_NOBODY if leader is None else leader,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port)
            for node_id, address in sorted(addresses.items())
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
        if request.timeout_ms > 0:
            decision = await decided_within(broker.metadata, command, request.timeout_ms)
        else:  # Kafka sets no time limit for this request
            decision = await broker.metadata.submit(command)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, shortened(error.message)
        return response
    response.error_code, response.error_message = decision.error, shortened(decision.message)
    if decision.error:  # as in Kafka, without results for single features
        return response
    response.results = [
        UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.meaning)
        for update in request.feature_updates
    ]
    return response


async def unregister_broker(
    broker: Broker, request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    """Unregister a broker that has stopped; a live broker would lose its place in the cluster, so it is refused.

    A broker with many partitions is unregistered in parts, unless it comes back meanwhile.
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


async def unregister_controller(
    broker: Broker, request: UnregisterControllerRequest, context: RequestContext
) -> UnregisterControllerResponse:
    """Refuse to unregister a controller, as Kafka does while `metadata.version` is below 4.4-IV2."""
    problem = "The current MetadataVersion is too old to support controller unregistration."
    return UnregisterControllerResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=problem)
