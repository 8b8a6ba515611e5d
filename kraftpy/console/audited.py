"""What each change of the console does, for the audit log: the operation, and the resource that its form names."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from kraftpy.console.access.audit import changes
from kraftpy.console.forms import MOST_FIELDS
from kraftpy.security.acls import CLUSTER_NAME, Operation, ResourceType


class Audited(NamedTuple):
    """A change's operation, the type of its resource, and the form's field with the name; "" for the cluster's."""

    operation: Operation
    resource_type: ResourceType
    field: str = ""


AUDITED: Final = {
    "/broker/alter": Audited(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
    "/messages/produce": Audited(Operation.WRITE, ResourceType.TOPIC, "topic"),
    "/topic/alter": Audited(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "name"),
    "/topic/delete": Audited(Operation.DELETE, ResourceType.TOPIC, "name"),
    "/topic/partitions": Audited(Operation.ALTER, ResourceType.TOPIC, "name"),
    "/topics/create": Audited(Operation.CREATE, ResourceType.TOPIC, "name"),
}
"""Every change, by its path."""


async def tell_audit(request: Request, path: str) -> None:
    """Tell the audit log what a change is about to do."""
    audited = AUDITED.get(path)
    if audited is None:
        return
    name = CLUSTER_NAME
    if audited.field:
        try:
            body = (await request.body()).decode("ascii")  # kept by the request, for the page
            fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            return
        name = fields.get(audited.field, "")
    changes(request, audited.operation, audited.resource_type, name)
