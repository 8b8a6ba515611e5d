"""The admin client's calls about ACLs: who may do what (KIP-140, prefixed patterns KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kraftpy.client.admin.base import AdminBase
from kraftpy.client.admin.messages import check
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kraftpy.protocol.messages.describe_acls import DescribeAclsRequest
from kraftpy.security.acls import AclBinding, AclFilter
from kraftpy.security.acls import Operation as AclOperation
from kraftpy.security.acls import PatternType as AclPattern
from kraftpy.security.acls import Permission as AclPermission
from kraftpy.security.acls import ResourceType as AclResource

__all__ = ["AclAdmin", "AclBinding", "AclFilter", "AclOperation", "AclPattern", "AclPermission", "AclResource"]


class AclAdmin(AdminBase):
    """Admin calls about ACLs. They raise KafkaError: SECURITY_DISABLED from a cluster without an authorizer."""

    async def describe_acls(self, wanted: AclFilter | None = None) -> list[AclBinding]:
        """Return the bindings that a filter selects, all without one."""
        request = DescribeAclsRequest(**_fields(wanted or AclFilter()))
        answer = await self._ask(None, ApiKey.DESCRIBE_ACLS, request, _check_description)
        return [_binding(resource, acl) for resource in answer.resources for acl in resource.acls]

    async def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Create bindings; those that exist are left as they are. Raises the error of the first that is refused."""
        wanted = list(bindings)
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )
        answer = await self._ask_controller(ApiKey.CREATE_ACLS, request)
        for each, result in zip(wanted, answer.results, strict=True):
            check(result.error_code, f"ACL of {each.principal} on {each.name}", result.error_message)

    async def delete_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the bindings that a filter selects, and return them."""
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(wanted))])
        answer = await self._ask_controller(ApiKey.DELETE_ACLS, request)
        (result,) = answer.filter_results
        check(result.error_code, "ACLs", result.error_message)
        return [_binding(each, each) for each in result.matching_acls]


def _binding(pattern: Any, rule: Any) -> AclBinding:
    """Return the binding of a response's pattern and rule; DeleteAcls has both in one struct."""
    return AclBinding(
        resource_type=pattern.resource_type,
        name=pattern.resource_name,
        pattern_type=pattern.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission=rule.permission_type,
    )


def _fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _check_description(answer: Any) -> None:
    check(answer.error_code, "ACLs", answer.error_message)
