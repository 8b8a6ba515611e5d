"""The changes of the console as the audit log shows them: the operation, and the resource that the form names."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from kraftpy.console.access.audit import changes
from kraftpy.console.forms import MOST_FIELDS
from kraftpy.security.acls import CLUSTER_NAME, Operation, ResourceType


class Audited(NamedTuple):
    """A change's operation, the type of its resource, and the fields of its form that the audit log shows."""

    operation: Operation
    resource_type: ResourceType
    field: str = ""
    """The field with the resource's name; "" for the cluster itself."""
    details: tuple[str, ...] = ()
    """Other fields to show. Values of settings and messages, and passwords, are none of them."""


_ACL: Final = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
AUDITED: Final = {
    "/acls/add": Audited(Operation.ALTER, ResourceType.CLUSTER, details=_ACL),
    "/acls/delete": Audited(Operation.ALTER, ResourceType.CLUSTER, details=_ACL),
    "/broker/alter": Audited(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, details=("id", "setting", "restore")),
    "/group/alter": Audited(Operation.ALTER_CONFIGS, ResourceType.GROUP, "id", ("setting", "restore")),
    "/group/delete": Audited(Operation.DELETE, ResourceType.GROUP, "id"),
    "/group/reset/apply": Audited(Operation.ALTER, ResourceType.GROUP, "id", ("plan",)),
    "/messages/produce": Audited(Operation.WRITE, ResourceType.TOPIC, "topic", ("partition",)),
    "/quotas/set": Audited(
        Operation.ALTER_CONFIGS,
        ResourceType.CLUSTER,
        details=(
            "user",
            "user-default",
            "client-id",
            "client-id-default",
            "ip",
            "ip-default",
            "quota",
            "value",
            "remove",
        ),
    ),
    "/topic/alter": Audited(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "name", ("setting", "restore")),
    "/topic/delete": Audited(Operation.DELETE, ResourceType.TOPIC, "name"),
    "/topic/partitions": Audited(Operation.ALTER, ResourceType.TOPIC, "name", ("total",)),
    "/topic/records/delete": Audited(Operation.DELETE, ResourceType.TOPIC, "name", ("plan",)),
    "/topics/create": Audited(Operation.CREATE, ResourceType.TOPIC, "name", ("partitions", "replicas")),
    "/transactions/abort": Audited(Operation.ALTER, ResourceType.TOPIC, "topic", ("partition", "producer", "start")),
    "/users/delete": Audited(Operation.DELETE, ResourceType.USER, "name"),
    "/users/set": Audited(Operation.ALTER, ResourceType.USER, "name", ("mechanism",)),
}
"""Every change, by its path."""


async def tell_audit(request: Request, path: str) -> None:
    """Tell the audit log what a change is about to do."""
    audited = AUDITED.get(path)
    if audited is None:
        return
    try:
        body = (await request.body()).decode("ascii")  # kept by the request, for the page
        fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        return  # the page refuses it, too
    name = fields.get(audited.field, "") if audited.field else CLUSTER_NAME
    shown = {each: fields[each] for each in audited.details if fields.get(each)}
    changes(request, audited.operation, audited.resource_type, name, shown)
