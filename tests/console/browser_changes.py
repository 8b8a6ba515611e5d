"""Every change of the console, made through its forms as a person would, and seen in the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from kraftpy.client import BlockingAdmin, OffsetSpec, TopicPartition
from tests.console.browser_window import Watched


def until(condition: Callable[[], bool]) -> None:
    """Wait until the cluster says so: a broker may learn of a change later than the one that made it."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def row_of(watched: Watched, text: str) -> Locator:
    """Return the row with a text. The page is loaded again until it has one: a broker may learn of a change later."""
    row = watched.page.get_by_role("row").filter(has_text=text)
    deadline = time.monotonic() + 20
    while not row.count():
        assert time.monotonic() < deadline, text
        watched.page.reload()
    return row


def produce(watched: Watched, value: str, topic: str = "orders") -> None:
    watched.open("/messages/new", {"topic": topic})
    watched.page.get_by_label("Key", exact=True).fill("customer-1")
    watched.page.get_by_label("Value", exact=True).fill(value)
    watched.page.get_by_label("Headers").fill("trace: abc")
    watched.page.get_by_role("button", name="Produce").click()
    watched.done()


def _create(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/topics")
    watched.page.get_by_role("link", name="Create a topic").click()
    watched.page.get_by_label("Name").fill("made here")
    watched.page.get_by_role("button", name="Create").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("made here")
    watched.check_accessible()
    watched.page.get_by_label("Name").fill("made-here")
    watched.page.get_by_label("Partitions").fill("2")
    watched.page.get_by_label("Settings").fill("retention.ms=86400000")
    watched.page.get_by_role("button", name="Create").click()
    watched.done()
    until(lambda: len(admin.describe_topics(["made-here"])[0].partitions) == 2)


def _alter_topic(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/topic", {"name": "made-here"})
    watched.page.get_by_role("link", name="Change retention.ms").click()
    watched.page.get_by_label("Value").fill("3600000")
    watched.page.get_by_role("button", name="Set").click()
    watched.done()
    row_of(watched, "3600000")


def _add_partitions(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/topic", {"name": "made-here"})
    watched.page.get_by_label("New total").fill("5")
    watched.page.get_by_role("button", name="Add").click()
    watched.done()
    until(lambda: len(admin.describe_topics(["made-here"])[0].partitions) == 5)


def _delete_records(watched: Watched, admin: BlockingAdmin) -> None:
    for number in range(3):
        produce(watched, f"record {number}", topic="made-here")
    watched.open("/topic", {"name": "made-here"})
    watched.page.get_by_label("Before").select_option(label="an offset")
    watched.page.get_by_label("Which").fill("2")
    watched.page.get_by_role("button", name="Preview").click()
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Delete records: preview")
    expect(watched.page.get_by_role("heading", level=2)).to_have_text("2 offsets of 1 partition would be deleted")
    watched.check_accessible()
    watched.page.get_by_label("Type made-here to delete these records").fill("made")
    watched.page.get_by_role("button", name="Delete these records").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("nothing was deleted")
    assert _first_offsets(admin, "made-here") == {0}
    watched.page.go_back()
    watched.page.get_by_label("Type made-here to delete these records").fill("made-here")
    watched.page.get_by_role("button", name="Delete these records").click()
    watched.done()
    until(lambda: _first_offsets(admin, "made-here") == {0, 2})


def _first_offsets(admin: BlockingAdmin, topic: str) -> set[int]:
    (info,) = admin.describe_topics([topic])
    places = admin.list_offsets({each.topic_partition: OffsetSpec.EARLIEST for each in info.partitions})
    return {place.offset for place in places.values() if place is not None}


def _delete_topic(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/topic", {"name": "to-delete"})
    watched.page.get_by_label("Type to-delete to delete").fill("to-del")
    watched.page.get_by_role("button", name="Delete").click()
    expect(watched.page.get_by_role("alert")).to_contain_text("nothing was deleted")
    assert "to-delete" in admin.list_topics()
    watched.open("/topic", {"name": "to-delete"})
    watched.page.get_by_label("Type to-delete to delete").fill("to-delete")
    watched.page.get_by_role("button", name="Delete").click()
    watched.done()
    until(lambda: "to-delete" not in admin.list_topics())


def _produce_one(watched: Watched, admin: BlockingAdmin) -> None:
    value = f"made at {time.time()}"
    produce(watched, value)
    expect(watched.page.get_by_text(value).first).to_be_visible()


def _alter_broker(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/broker", {"id": "default"})
    watched.page.get_by_label("Setting", exact=True).fill("log.retention.ms")
    watched.page.get_by_label("Value").fill("604800001")
    watched.page.get_by_role("button", name="Set").click()
    watched.done()
    row_of(watched, "604800001")


def _reset_group(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/group", {"id": "shipping"})
    watched.page.get_by_label("To", exact=True).select_option(label="the beginning")
    watched.page.get_by_role("button", name="Preview").click()
    expect(watched.page.get_by_role("heading", level=1)).to_have_text("Reset offsets: preview")
    watched.check_accessible()
    watched.page.get_by_role("button", name="Reset these offsets").click()
    watched.done()
    offsets = admin.list_group_offsets("shipping")
    assert {each.offset for each in offsets.values()} == {0}


def _alter_group(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/group", {"id": "packing"})
    watched.page.get_by_label("Setting", exact=True).fill("share.session.timeout.ms")
    watched.page.get_by_label("Value").fill("46000")
    watched.page.get_by_role("button", name="Set").click()
    watched.done()
    row_of(watched, "46000")


def _delete_group(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/group", {"id": "shipping"})
    watched.page.get_by_label("Type shipping to delete").fill("shipping")
    watched.page.get_by_role("button", name="Delete").click()
    watched.done()
    until(lambda: "shipping" not in [each.group_id for each in admin.list_groups()])


def _set_user(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/users")
    watched.page.get_by_label("User", exact=True).fill("bob")
    watched.page.locator("#password").fill("bob's password")
    watched.page.get_by_role("button", name="Set").click()
    watched.done()
    until(lambda: set(admin.describe_scram_users(["bob"])["bob"]) == {"SCRAM-SHA-256", "SCRAM-SHA-512"})


def _delete_user(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/users")
    row = row_of(watched, "bob")
    row.get_by_label("Type bob to delete the user").fill("bob")
    row.get_by_role("button", name="Delete").click()
    watched.done()
    until(lambda: "bob" not in admin.describe_scram_users())


def _add_acl(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/acls")
    watched.page.get_by_label("Principal", exact=True).fill("User:bob")
    watched.page.get_by_label("Operation").select_option("READ")
    watched.page.get_by_label("Resource", exact=True).select_option("TOPIC")
    watched.page.get_by_label("Name", exact=True).fill("orders")
    watched.page.get_by_role("button", name="Add").click()
    watched.done()
    until(lambda: "User:bob" in {each.principal for each in admin.describe_acls()})


def _delete_acl(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/acls", {"find": "bob"})
    row_of(watched, "User:bob").get_by_role("button", name="Delete the ACL of User:bob on orders").click()
    watched.done()
    until(lambda: "User:bob" not in {each.principal for each in admin.describe_acls()})


def _set_quota(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/quotas")
    watched.page.locator("input[name=user]").last.fill("bob")
    watched.page.get_by_label("Quota", exact=True).select_option("producer_byte_rate")
    watched.page.get_by_label("Value").fill("2048")
    watched.page.get_by_role("button", name="Set").click()
    watched.done()
    until(lambda: {"user": "bob"} in [dict(each.entity) for each in admin.describe_client_quotas()])
    row_of(watched, "bob").get_by_role("button", name="Remove").click()
    watched.done()
    until(lambda: {"user": "bob"} not in [dict(each.entity) for each in admin.describe_client_quotas()])


def _abort(watched: Watched, admin: BlockingAdmin) -> None:
    watched.open("/transactions")
    watched.page.get_by_label("Topic").fill("payments")
    watched.page.get_by_role("button", name="Search").click()
    watched.page.get_by_role("row").filter(has_text="999999").get_by_role("button", name="Abort").click()
    watched.done()
    (producers,) = admin.describe_producers([TopicPartition("payments", 0)]).values()
    assert all(each.current_transaction_start_offset < 0 for each in producers if each.producer_id == 999_999)


CHANGES: dict[str, Callable[[Watched, BlockingAdmin], None]] = {
    "/topics/create": _create,
    "/topic/alter": _alter_topic,
    "/topic/records/delete": _delete_records,
    "/topic/partitions": _add_partitions,
    "/topic/delete": _delete_topic,
    "/messages/produce": _produce_one,
    "/broker/alter": _alter_broker,
    "/group/reset/apply": _reset_group,
    "/group/alter": _alter_group,
    "/group/delete": _delete_group,
    "/users/set": _set_user,
    "/users/delete": _delete_user,
    "/acls/add": _add_acl,
    "/acls/delete": _delete_acl,
    "/quotas/set": _set_quota,
    "/transactions/abort": _abort,
}
"""Every change by its path, in an order in which they work."""
