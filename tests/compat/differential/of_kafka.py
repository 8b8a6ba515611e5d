"""The APIs and versions of the Kafka that is asked, 4.3.1, which are fewer than those that kraftpy serves."""

from __future__ import annotations

from typing import Final

from kraftpy.protocol.apis import APIS as SERVED
from kraftpy.protocol.apis import Api, ApiKey

_LAST: Final = {
    ApiKey.API_VERSIONS: 4,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 0,
    ApiKey.STREAMS_GROUP_DESCRIBE: 0,
}
"""The last versions of APIs that have more since Kafka 4.4."""
OF_KAFKA_4_4: Final = (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, ApiKey.UNREGISTER_CONTROLLER)

APIS: Final[dict[int, Api]] = {
    key: Api(api.key, api.first, _LAST.get(api.key, api.last), api.flexible)
    for key, api in SERVED.items()
    if key not in OF_KAFKA_4_4
}
