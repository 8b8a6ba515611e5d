"""The console's page of ACLs, with a broker that has an authorizer."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.client import AclOperation, AclPattern, Admin, NewTopic, TopicPartition
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


async def test_the_rights_of_a_group_s_members_are_explained(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = start_broker(settings=AUTHORIZER)
    async with browsing(broker.bootstrap) as browser, Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(name="orders", num_partitions=1, replication_factor=1)])
        await admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
        rule = {"permission": "ALLOW", "operation": "READ", "principal": "User:app", "pattern": "LITERAL", "host": ""}
        await browser.post("/acls/add", **rule, resource="GROUP", name="billing")
        explained = {"id": "billing", "seconds": 0}
        assert "no-right" not in await browser.get("/group/explain", **explained)
        text = await browser.get("/group/explain", **explained, principal=" User:app ")
        assert "User:app has no right to READ topic orders: no ACL covers the resource no-right" in text
        assert 'value="User:app"' in browser.source
        await browser.post("/acls/add", **rule, resource="TOPIC", name="orders")
        assert "no-right" not in await browser.get("/group/explain", **explained, principal="User:app")
        assert "principalType:principalName" in await browser.get("/group/explain", **explained, principal="app")
        assert browser.status == 400
