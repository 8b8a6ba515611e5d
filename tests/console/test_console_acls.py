"""The console's page of ACLs, with a broker that has an authorizer."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.client import AclOperation, AclPattern, Admin
from kraftpy.testing.cluster import EmbeddedBroker
from tests.console.console_browser import browsing

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
EVIL = "<script>alert(1)</script>"


async def test_acls_are_listed_added_and_deleted(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker(settings=AUTHORIZER)
    async with browsing(broker.bootstrap) as browser, Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert "No ACL matches." in await browser.get("/acls")
        rule = {
            "principal": "User:alice",
            "permission": "ALLOW",
            "operation": "DESCRIBE_CONFIGS",
            "resource": "TOPIC",
            "name": EVIL,
            "pattern": "PREFIXED",
            "host": "",
        }
        text = await browser.post("/acls/add", **rule)
        assert "The ACL was added." in text
        assert f"User:alice allow describe configs topic {EVIL} prefixed *" in text
        assert EVIL not in browser.source
        await browser.post("/acls/add", **{**rule, "resource": "CLUSTER", "pattern": "LITERAL", "name": "any"})
        found = {each.name: each for each in await admin.describe_acls()}
        assert found.keys() == {EVIL, "kafka-cluster"}
        assert (found[EVIL].operation, found[EVIL].pattern_type) == (AclOperation.DESCRIBE_CONFIGS, AclPattern.PREFIXED)
        assert "kafka-cluster" not in await browser.get("/acls", find="script")
        for wrong, problem in (
            ({"principal": "alice"}, "User:name"),
            ({"operation": "ANY"}, "operation is not one of"),
            ({"pattern": "MATCH"}, "pattern is not one of"),
            ({"resource": "nothing"}, "resource is not one of"),
            ({"name": ""}, "name is missing"),
        ):
            assert problem in await browser.post("/acls/add", **{**rule, **wrong})
            assert browser.status == 400
        assert "The ACL was deleted." in await browser.post("/acls/delete", **rule)
        assert "nothing was deleted" in await browser.post("/acls/delete", **rule)
        assert [each.name for each in await admin.describe_acls()] == ["kafka-cluster"]
