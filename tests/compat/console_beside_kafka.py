"""The console at Apache Kafka: every page shows that cluster, and changes are made there. Part of `make compat`.

    python tests/compat/console_beside_kafka.py              exit status 1 if anything is not as it should be
    python tests/compat/console_beside_kafka.py --nodes 1    at one node instead of three

Needs a JDK, Maven and a repository that has Apache Kafka. Its topics, records, groups and transactions are made by
librdkafka, and so are most looks at what the console has changed; `kraftpy console --allow-changes` runs as a user
starts it. At a console with a sign-in, Kafka's users then see and change what Kafka lets each of them. Nothing is
clicked in a browser: `make test-console` does that, with our own nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import confluent_kafka  # noqa: E402
import httpx  # noqa: E402
from compat.checks import Checks  # noqa: E402
from confluent_kafka.admin import (  # noqa: E402
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from peer_clusters import PeerCluster, running  # noqa: E402
from waiting import BOUND_SECONDS, eventually  # noqa: E402

from kraftpy.client import BlockingAdmin, BlockingShareConsumer  # noqa: E402
from tests.console.console_browser import text_of  # noqa: E402
from tests.console.served import Served, served  # noqa: E402

RECORDS: Final = 30
PARTITIONS: Final = 3
COMMITTED: Final = 4
"""The offset of the group `billing` in the first partition of `orders`, which has a third of the records."""
QUIET: Final = {"log_level": 0}
"""For librdkafka's clients, which would tell that the nodes end."""
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORDS: Final = {"ada": "a-secret", "console": "c-secret", "root": "r-secret"}
"""The users of the listener with a login. Ada may read `orders`; root is a super user."""
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:root",
    "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "share.coordinator.state.topic.num.partitions": "5",
}


class Pages:
    """The pages of a console, as a browser asks for them."""

    def __init__(self, url: str, checks: Checks) -> None:
        self._url = url
        self._client = httpx.Client(base_url=url, timeout=30)
        self._checks = checks
        self.source = ""
        """The last page, as it was sent."""

    def close(self) -> None:
        self._client.close()

    def shows(self, path: str, *expected: str, **query: object) -> None:
        """Check that a page is there and that its text has all that is expected, at once or soon.

        Answers of the cluster are kept for some seconds, and samples are taken in the background.
        """
        shown = "nothing"
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            answer = self._client.get(path, params={name: str(value) for name, value in query.items()})
            self.source, text = answer.text, text_of(answer.text)
            lacking = [each for each in expected if not re.search(each, text)]
            shown = f"status {answer.status_code}, without {lacking}: {text}"
            if answer.status_code != 200 or not lacking or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        told = f"{path}{''.join(f' {value}' for value in query.values())}: {', '.join(expected)}"
        self._checks.see(told, None if answer.status_code == 200 and not lacking else shown)

    def changes(
        self, path: str, done: str, is_so: Callable[[], object], *, status: int = 200, **fields: object
    ) -> None:
        """Check that a form is taken, that the page it leads to says so, and that the cluster is changed soon."""
        form = self._client.get("/topics/new", follow_redirects=True).text  # or that of the sign-in, for strangers
        token = re.search(r'name="csrf_token" value="([^"]+)"', form)
        assert token is not None
        data = {"csrf_token": html.unescape(token[1]), **{name: str(value) for name, value in fields.items()}}
        answer = self._client.post(path, data=data, headers={"Origin": self._url}, follow_redirects=True)
        text = text_of(answer.text)
        shown = None if answer.status_code == status and done in text else f"status {answer.status_code}: {text}"
        if shown is None:
            try:
                eventually(is_so, "the cluster does not show it")
            except AssertionError as never:
                shown = str(never)
        self._checks.see(f"{path}: {done}", shown)


# --- what is there to see ---------------------------------------------------------------------------------------------


def value_of(number: int) -> str:
    return json.dumps({"id": number, "customer": ("Ada", "Grace", "Edsger")[number % 3]})


def stock(bootstrap: str, nodes: int) -> AdminClient:
    """Make topics with records, a group that lags, a user and a right."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    topics = [
        NewTopic("orders", PARTITIONS, nodes, config={"retention.ms": "86400000"}),
        NewTopic("payments", 1, nodes),
    ]
    for made in admin.create_topics(topics).values():
        made.result(BOUND_SECONDS)
    producer = confluent_kafka.Producer({**QUIET, "bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(RECORDS):
        headers = [("trace", f"t-{number}".encode())]
        producer.produce("orders", value_of(number), f"k-{number}", partition=number % PARTITIONS, headers=headers)
    assert producer.flush(BOUND_SECONDS) == 0
    commit(bootstrap)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    users = [UserScramCredentialUpsertion(name, credential, text.encode()) for name, text in PASSWORDS.items()]
    for user in admin.alter_user_scram_credentials(users).values():
        user.result(BOUND_SECONDS)
    for added in admin.create_acls([right("User:ada")]).values():
        added.result(BOUND_SECONDS)
    return admin


def commit(bootstrap: str) -> None:
    """Commit offsets of the group `billing`, once the new topic of offsets has leaders."""
    consumer = confluent_kafka.Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "billing"})
    places = [confluent_kafka.TopicPartition("orders", 0, COMMITTED), confluent_kafka.TopicPartition("orders", 1, 0)]

    def is_done() -> bool:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return True

    eventually(is_done)
    consumer.close()


def right(principal: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, principal, "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip


@contextlib.contextmanager
def active(bootstrap: str) -> Iterator[None]:
    """Keep members of three kinds of groups reading, and a transaction open, until the block ends."""
    done = threading.Event()

    def consume(protocol: str) -> None:
        options = {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": f"{protocol}-readers",
            "group.protocol": protocol,
        }
        consumer = confluent_kafka.Consumer({**options, "client.id": f"reads-{protocol}"})
        consumer.subscribe(["orders"])
        while not done.is_set():
            consumer.poll(0.1)
        consumer.close()

    def share() -> None:
        with BlockingShareConsumer("orders", bootstrap_servers=bootstrap, group_id="packing", client_id="packs") as one:
            while not done.is_set():
                one.getmany(timeout_ms=200)

    producer = confluent_kafka.Producer(
        {**QUIET, "bootstrap.servers": bootstrap, "transactional.id": "payer", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(BOUND_SECONDS)
    producer.begin_transaction()
    producer.produce("payments", b"not committed yet")
    assert producer.flush(BOUND_SECONDS) == 0
    threads = [threading.Thread(target=consume, args=(each,)) for each in ("classic", "consumer")]
    threads.append(threading.Thread(target=share))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(BOUND_SECONDS)
        producer.abort_transaction(BOUND_SECONDS)


# --- the checks -------------------------------------------------------------------------------------------------------


def look(pages: Pages, kafka: PeerCluster) -> None:
    """Look at every page that only shows."""
    nodes, each = kafka.count, RECORDS // PARTITIONS
    lag = each - COMMITTED + each
    pages.shows("/", f"Brokers {nodes} ", "Offline 0", re.escape(kafka.data_directory(1)), f"billing Empty {lag} ")
    pages.shows("/brokers", *(f"127.0.0.1:{port}" for port in kafka.ports), r"alive controller", r"Leader \d+, epoch",
                "metadata.version")  # fmt: skip
    pages.shows("/broker", re.escape(kafka.data_directory(1)), "default", id=1, find="log.dir", settings="all")
    pages.shows("/broker", "Settings of All brokers", id="default")
    pages.shows(
        "/topics", rf"orders {PARTITIONS} {nodes} \S+ \S+ \d+ in sync", rf"payments 1 {nodes} ", "2 of 2|2 topics"
    )
    pages.shows("/topics", "__consumer_offsets internal", "__transaction_state internal", internal="yes")
    pages.shows("/topic", f"Offsets {RECORDS} ", rf" 0 {each} {each} ", "86400000 this topic", name="orders")
    pages.shows(
        "/topic", "segment.bytes .* 1073741824 default", "Specifies the minimum number", name="orders", settings="all"
    )
    pages.shows("/messages", "orders", "payments")
    wanted = {"topic": "orders", "from": "earliest", "limit": 100}
    values = ('"id": 0, "customer": "Ada"', f'"id": {RECORDS - 1}, "customer": "Edsger"', f"trace: t-{RECORDS - 1}")
    pages.shows("/messages", f"{RECORDS} shown", *values, **wanted)
    pages.shows("/messages", "10 shown", "Ada", **wanted, jsonpath='$.customer == "Ada"')
    pages.shows("/messages", "1 shown", "k-7", **wanted, key="k-7")
    pages.shows("/messages", "1 shown", **{**wanted, "from": "offset"}, offset=each - 1, partition=2)
    pages.shows("/messages", "Stop", **{**wanted, "from": "live"})
    pages.shows("/messages/download", '"key": "k-0"', f'"key": "k-{RECORDS - 1}"', **wanted)
    pages.shows("/messages", "0 shown", **{**wanted, "topic": "payments"})
    pages.shows("/messages", "1 shown", "not committed yet", **{**wanted, "topic": "payments"}, uncommitted="yes")
    pages.shows(
        "/message", "Partition 1, offset 2", '"id": 7', "k-7", "trace t-7", topic="orders", partition=1, offset=2
    )
    pages.shows("/groups", f"billing classic \\S+ Empty {lag} ", "classic-readers classic consumer Stable",
                "consumer-readers consumer consumer Stable", "packing share share Stable")  # fmt: skip
    pages.shows("/group", "Kind classic", f"Lag {lag} ", "Members 0",
                f"orders 0 {COMMITTED} 0 {each} {each - COMMITTED} ", id="billing")  # fmt: skip
    for kind in ("classic", "consumer"):
        pages.shows("/group", f"Kind {kind} ", "Members 1", f"reads-{kind}", "orders-0 orders-1 orders-2",
                    id=f"{kind}-readers")  # fmt: skip
    pages.shows("/group", "Kind share", "Members 1", "packs", "orders-0 orders-1 orders-2", id="packing")
    pages.shows("/group/explain", "no-members", "no consumer with group.id=billing runs", id="billing", seconds=0)
    pages.shows("/transactions", "1 open", "payer Ongoing")
    pages.shows("/transaction", "payer State Ongoing", "payments 0", id="payer")
    pages.shows("/transactions/hanging", "0 found in", "None that were last written")
    pages.shows("/users", *(f"{name} SCRAM-SHA-256 4,096" for name in PASSWORDS))
    pages.shows("/acls", r"User:ada allow read topic orders literal \*")
    pages.shows("/quotas", "No quotas")
    pages.shows("/books", "Audit books")


def change(pages: Pages, admin: AdminClient, bootstrap: str, nodes: int) -> None:
    """Make changes by forms, and look with another client whether they were made."""
    topics, groups = Topics(admin), Groups(admin)
    pages.changes("/topics/create", "The topic was created.", lambda: topics.partitions("made") == 2,
                  name="made", partitions=2, replicas=nodes, settings="retention.ms=5000000\n")  # fmt: skip
    pages.changes("/topic/alter", "The settings were changed.",
                  lambda: topics.setting("made", "retention.ms") == "6000000",
                  name="made", setting="retention.ms", value="6000000")  # fmt: skip
    pages.changes("/topic/partitions", "The partitions were added.", lambda: topics.partitions("made") == 4,
                  name="made", total=4)  # fmt: skip
    pages.changes("/messages/produce", "The message was produced.",
                  lambda: topics.records(bootstrap, "made", 3) == [(b"k", b"by the console", [("trace", b"abc")])],
                  topic="made", partition=3, key="k", value="by the console", headers="trace: abc")  # fmt: skip
    pages.shows("/messages", "1 shown", "by the console", "trace: abc", topic="made")
    pages.shows("/topic/records", "1 offset of 1 partition would be deleted", name="made", before="end")
    plan, topic_id = hidden(pages.source, "plan"), hidden(pages.source, "topic_id")
    pages.changes("/topic/records/delete", "The records were deleted.", lambda: topics.first("made", 3) == 1,
                  name="made", typed="made", plan=plan, topic_id=topic_id)  # fmt: skip
    pages.changes("/topic/delete", "The topic was deleted.", lambda: topics.partitions("made") == 0,
                  name="made", typed="made")  # fmt: skip

    pages.shows("/group/reset", "orders 0 4 0 ", id="billing", to="earliest")
    pages.changes("/group/reset/apply", "The offsets were reset.", lambda: groups.offset("billing", 0) == 0,
                  id="billing", plan=hidden(pages.source, "plan"))  # fmt: skip
    pages.shows("/group", "orders 0 0 0 10 10 ", f"Lag {2 * RECORDS // PARTITIONS} ", id="billing")
    pages.changes("/group/alter", "The settings were changed.",
                  lambda: groups.setting("consumer-readers", "consumer.session.timeout.ms") == "50000",
                  id="consumer-readers", setting="consumer.session.timeout.ms", value="50000")  # fmt: skip
    pages.changes("/group/delete", "The group was deleted.", lambda: "billing" not in groups.names(),
                  id="billing", typed="billing")  # fmt: skip

    brokers = {"id": "default", "setting": "log.retention.ms"}
    pages.changes("/broker/alter", "The settings were changed.",
                  lambda: broker_setting(admin, "log.retention.ms") == "777000000",
                  **brokers, value="777000000")  # fmt: skip
    pages.shows("/broker", "777000000 all brokers, while they run", id="default")
    pages.changes("/broker/alter", "The settings were changed.",
                  lambda: broker_setting(admin, "log.retention.ms") != "777000000",
                  **brokers, restore="yes")  # fmt: skip

    users = {"name": "grace"}
    pages.changes("/users/set", "The password was set.", lambda: "grace" in scram_users(admin), **users, password="p")
    pages.changes("/users/delete", "credentials were deleted.", lambda: "grace" not in scram_users(admin),
                  **users, typed="grace")  # fmt: skip
    binding = {"resource": "TOPIC", "name": "orders", "pattern": "LITERAL", "principal": "User:grace", "host": "*",
               "operation": "READ", "permission": "ALLOW"}  # fmt: skip
    pages.changes("/acls/add", "The ACL was added.", lambda: right("User:grace") in rights(admin), **binding)
    pages.changes("/acls/delete", "The ACL was deleted.", lambda: right("User:grace") not in rights(admin), **binding)
    with BlockingAdmin(bootstrap_servers=bootstrap) as own:

        def quotas() -> list[Mapping[str, float]]:
            return [each.values for each in own.describe_client_quotas()]

        quota = {"user": "ada", "quota": "producer_byte_rate"}
        pages.changes("/quotas/set", "The quota was set.", lambda: quotas() == [{"producer_byte_rate": 5_000.0}],
                      **quota, value=5_000)  # fmt: skip
        pages.shows("/quotas", "user ada producer_byte_rate 5,000")
        pages.changes("/quotas/set", "The quota was removed.", lambda: not quotas(), **quota, remove="yes")


def sign_in(pages: Pages, admin: AdminClient, nodes: int) -> None:
    """Have Kafka's own users sign in: each sees and changes what Kafka lets that user."""
    pages.changes("/sign-in", "Sign in", lambda: True, status=403, name="ada", password="wrong")
    pages.changes("/sign-in", "Overview", lambda: True, name="ada", password=PASSWORDS["ada"])
    pages.shows("/topics", "orders", "1 of 1 topics|1 topics")
    pages.shows("/messages", f"{RECORDS} shown", '"customer": "Ada"', topic="orders", limit=100)
    pages.changes(
        "/topic/delete",
        "You are a viewer: nothing was changed",
        lambda: True,
        status=403,
        name="orders",
        typed="orders",
    )
    pages.changes("/sign-out", "Sign in", lambda: True)
    pages.changes("/sign-in", "Overview", lambda: True, name="root", password=PASSWORDS["root"])
    topics = Topics(admin)
    pages.changes("/topics/create", "The topic was created.", lambda: topics.partitions("of-root") == 1,
                  name="of-root", partitions=1, replicas=nodes)  # fmt: skip


def hidden(source: str, name: str) -> str:
    """Return the value of a hidden field; "" if the page has none."""
    found = re.search(rf'name="{name}" value="([^"]*)"', source)
    return html.unescape(found[1]) if found else ""


class Topics:
    """Topics as librdkafka sees them."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def partitions(self, name: str) -> int:
        """The number of its partitions; 0 if there is no such topic."""
        found = self._admin.list_topics(timeout=BOUND_SECONDS).topics.get(name)
        return 0 if found is None else len(found.partitions)

    def setting(self, name: str, key: str) -> str:
        return described(self._admin, ConfigResource(ConfigResource.Type.TOPIC, name), key)

    def first(self, name: str, partition: int) -> int:
        place = confluent_kafka.TopicPartition(name, partition)
        (found,) = self._admin.list_offsets({place: confluent_kafka.admin.OffsetSpec.earliest()}).values()
        return int(found.result(BOUND_SECONDS).offset)

    def records(self, bootstrap: str, name: str, partition: int) -> list[Any]:
        """The keys, values and headers of all records of a partition."""
        options = {**QUIET, "bootstrap.servers": bootstrap, "group.id": "looks", "enable.partition.eof": True}
        consumer = confluent_kafka.Consumer(options)
        consumer.assign([confluent_kafka.TopicPartition(name, partition, 0)])
        found: list[Any] = []
        while (message := consumer.poll(BOUND_SECONDS)) is not None and message.error() is None:
            found.append((message.key(), message.value(), message.headers()))
        consumer.close()
        return found


class Groups:
    """Groups as librdkafka sees them."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def names(self) -> set[str]:
        return {each.group_id for each in self._admin.list_consumer_groups().result(BOUND_SECONDS).valid}

    def offset(self, name: str, partition: int) -> int:
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(name)]
        (found,) = self._admin.list_consumer_group_offsets(asked).values()
        return {each.partition: int(each.offset) for each in found.result(BOUND_SECONDS).topic_partitions}[partition]

    def setting(self, name: str, key: str) -> str:
        return described(self._admin, ConfigResource(ConfigResource.Type.GROUP, name), key)


def described(admin: AdminClient, resource: ConfigResource, key: str) -> str:
    (found,) = admin.describe_configs([resource]).values()
    return str(found.result(BOUND_SECONDS)[key].value)


def broker_setting(admin: AdminClient, key: str) -> str:
    return described(admin, ConfigResource(ConfigResource.Type.BROKER, "1"), key)


def scram_users(admin: AdminClient) -> set[str]:
    return set(admin.describe_user_scram_credentials().result(BOUND_SECONDS))


def rights(admin: AdminClient) -> list[AclBinding]:
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    found: list[AclBinding] = admin.describe_acls(every).result(BOUND_SECONDS)
    return found


def no_failures(checks: Checks, what: str, console: Served) -> None:
    """Check that a console has logged nothing but what its users did."""
    lines = console.log.read_text().splitlines()
    failures = [line for line in lines if " INFO kafka.authorizer.logger: " not in line]
    checks.see(f"{what} logs changes, and no failure", "\n".join(failures) or None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3), help="of Apache Kafka")
    nodes = parser.parse_args().nodes
    checks = Checks()
    with (
        running("kafka", nodes, SETTINGS, {"LOGIN": "SASL_PLAINTEXT"}) as kafka,
        tempfile.TemporaryDirectory() as scratch,
    ):
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in kafka.ports)
        admin = stock(bootstrap, nodes)
        with active(bootstrap), served(bootstrap, Path(scratch), None, "--allow-changes") as console:
            pages = Pages(console.url, checks)
            look(pages, kafka)
            change(pages, admin, bootstrap, nodes)
            pages.close()
            no_failures(checks, "the open console", console)
        login = f'{SCRAM_MODULE} required username="console" password="{PASSWORDS["console"]}";'
        secured = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": login,
            "kraftpy.console.sign.in": "password",
            "kraftpy.console.sasl.mechanism": "SCRAM-SHA-256",
            "kraftpy.console.operators": "User:root",
        }
        with served(f"127.0.0.1:{kafka.more_ports['LOGIN'][0]}", Path(scratch), secured) as console:
            pages = Pages(console.url, checks)
            sign_in(pages, admin, nodes)
            pages.close()
            no_failures(checks, "the console with a sign-in", console)
    for each in checks.wrong:
        print(each, file=sys.stderr)
    print(f"{checks.right} right, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
