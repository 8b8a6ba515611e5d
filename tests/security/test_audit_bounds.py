"""A request that names tens of thousands of resources does not fill the audit log."""

from __future__ import annotations

import json
import logging

import pytest
from lone_connections import lone_connection

from kraftpy.broker.request import RequestContext
from kraftpy.broker.security.audit import NAME
from kraftpy.broker.security.authorizer import MOST_LINES, Authorizer
from kraftpy.metadata.acls import Acls
from kraftpy.protocol.apis import ApiKey
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.security.principal import USER, Principal

MALLORY, ADMIN = Principal(USER, "mallory"), Principal(USER, "admin")


@pytest.mark.parametrize(
    ("principal", "operation", "decision"),
    [(MALLORY, Operation.READ, "DENIED"), (ADMIN, Operation.DELETE, "ALLOWED")],
    ids=["refused", "of a super user"],
)
def test_lines_of_one_request_are_bounded(
    principal: Principal, operation: Operation, decision: str, caplog: pytest.LogCaptureFixture
) -> None:
    acls = Acls()
    authorizer = Authorizer(lambda: acls, super_users=frozenset({ADMIN}), allow_everyone_if_no_acl_found=False)
    context = RequestContext(
        api_key=ApiKey.METADATA,
        api_version=12,
        client_id="c",
        client_host="/10.0.0.1",
        listener="L",
        connection=lone_connection(principal),
    )
    with caplog.at_level(logging.INFO, NAME):
        for _ in range(2):
            caplog.clear()
            rights = authorizer.rights_of(context)
            for number in range(3 * MOST_LINES):
                assert rights.allows(operation, ResourceType.TOPIC, f"t{number}") is (decision == "ALLOWED")
            lines = [json.loads(record.getMessage()) for record in caplog.records]
            assert len(lines) == MOST_LINES, "the next request has its own"
            assert {line["decision"] for line in lines} == {decision}
            assert ["is_truncated" in line for line in lines] == [False] * (MOST_LINES - 1) + [True]
            assert lines[-1]["is_truncated"] is True
