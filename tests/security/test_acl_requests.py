"""CreateAcls, DescribeAcls and DeleteAcls: refusals and filters; groups see topics by their members' rights."""

from __future__ import annotations

import json
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import admin as confluent

from kraftpy.cli import cli
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import streams_group_heartbeat as streams
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kraftpy.protocol.messages.describe_acls import DescribeAclsRequest
from kraftpy.security.acls import Operation, PatternType, Permission, ResourceType
from kraftpy.testing import EmbeddedBroker
from tests.security.api_requests import EVERY_ACL, REQUESTS
from tests.security.guarded_broker import GuardedBroker
from tests.security.wire import BOUND_SECONDS, Closed, Session
from tests.waiting import eventually

GOOD = {
    "resource_type": int(ResourceType.TOPIC),
    "resource_name": "orders",
    "resource_pattern_type": int(PatternType.LITERAL),
    "principal": "User:alice",
    "host": "*",
    "operation": int(Operation.READ),
    "permission_type": int(Permission.ALLOW),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": -1}, "Invalid patternType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": -1}, "Invalid permissionType UNKNOWN"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
        ({"host": "example.org"}, "Invalid host example.org"),
        ({"host": "10.0.0.0/8"}, "Invalid host"),
        ({"resource_name": "x" * 2_000}, "must not exceed 1024 characters"),
    ],
)
def test_a_binding_that_means_nothing_is_refused_and_others_are_made(
    guarded: GuardedBroker, change: dict[str, Any], message: str
) -> None:
    guarded.forget()
    creations = [AclCreation(**{**GOOD, **change}), AclCreation(**GOOD)]
    bad, good = guarded.admin.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=creations)).results
    assert bad.error_code == ErrorCode.INVALID_REQUEST
    assert message in bad.error_message
    assert good.error_code == ErrorCode.NONE
    (resource,) = guarded.admin.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**EVERY_ACL)).resources
    assert (resource.resource_name, len(resource.acls)) == ("orders", 1)


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_the_code_of_what_is_unknown_ends_the_connection(guarded: GuardedBroker, field: str) -> None:
    session = guarded.session("admin")
    with pytest.raises(Closed):
        session.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[AclCreation(**{**GOOD, field: 0})]))
    session.close()


def test_a_binding_that_is_there_is_made_again(guarded: GuardedBroker) -> None:
    guarded.forget()
    for _ in range(2):
        (result,) = guarded.admin.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[AclCreation(**GOOD)])).results
        assert result.error_code == ErrorCode.NONE
    deleting = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERY_ACL), DeleteAclsFilter(**EVERY_ACL)])
    for result in guarded.admin.ask(ApiKey.DELETE_ACLS, deleting).filter_results:
        assert len(result.matching_acls) == 1, "each filter tells what it selected"


def test_without_an_authorizer_nobody_is_left_to_believe_in_acls() -> None:
    with EmbeddedBroker() as broker:
        host, port = broker.bootstrap.split(":")
        session = Session((host, int(port)))
        described = session.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**EVERY_ACL))
        assert (described.error_code, described.error_message) == (
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured on the broker",
        )
        (made,) = session.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[AclCreation(**GOOD)])).results
        assert made.error_code == ErrorCode.SECURITY_DISABLED
        assert made.error_message == "No Authorizer is configured."
        deleting = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERY_ACL)])
        (deleted,) = session.ask(ApiKey.DELETE_ACLS, deleting).filter_results
        assert deleted.error_code == ErrorCode.SECURITY_DISABLED
        assert deleted.error_message == "No Authorizer is configured."
        session.close()


def test_a_prefix_is_no_expression(guarded: GuardedBroker) -> None:
    """Signs that have a meaning in regular expressions have none in a name (RabbitMQ CVE-2026-44838)."""
    guarded.forget()
    named = guarded.new()
    session = guarded.session("alice")
    for name in ("topic.*", "t?", ".*", "topic-[0-9]", "%", "topi_"):
        guarded.add(ResourceType.TOPIC, name, Operation.ALL, pattern=PatternType.PREFIXED)
        guarded.add(ResourceType.TOPIC, name, Operation.ALL)
    (topic,) = session.ask(ApiKey.METADATA, REQUESTS[ApiKey.METADATA](named)).topics
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    guarded.add(ResourceType.TOPIC, "topic-", Operation.DESCRIBE, pattern=PatternType.PREFIXED)
    (topic,) = session.ask(ApiKey.METADATA, REQUESTS[ApiKey.METADATA](named)).topics
    assert topic.error_code == ErrorCode.NONE
    session.close()


def heartbeat(session: Session, group: str, member: str, regex: str | None, epoch: int = 0) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_regex=regex,
        subscribed_topic_names=None,
        topic_partitions=[] if epoch == 0 else None,
    )
    answer = session.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer


def test_an_expression_matches_only_what_its_member_may_see(guarded: GuardedBroker) -> None:
    """Also after an ACL has changed, and after more topics were created."""
    guarded.forget()
    seen, hidden = guarded.new(), guarded.new()
    group = f"regex-{seen.group}"
    guarded.add(ResourceType.GROUP, group, Operation.READ)
    guarded.add(ResourceType.TOPIC, seen.topic, Operation.DESCRIBE)
    session = guarded.session("alice")

    def assigned() -> set[bytes]:
        answer = heartbeat(session, group, "m", "topic-.*")
        return set() if answer.assignment is None else {each.topic_id for each in answer.assignment.topic_partitions}

    eventually(lambda: assigned() == {seen.topic_id}, "only what may be seen is assigned")
    guarded.new()
    for _ in range(3):
        assert assigned() <= {seen.topic_id}
    guarded.add(ResourceType.TOPIC, hidden.topic, Operation.DESCRIBE)
    eventually(lambda: assigned() == {seen.topic_id, hidden.topic_id}, "it is seen as soon as it may be")
    session.close()


def test_internal_topics_are_created_for_those_who_may_create_them(guarded: GuardedBroker) -> None:
    guarded.forget()
    named = guarded.new()
    group = f"streams-{named.group}"
    changelog = f"{group}-store-changelog"
    session = guarded.session("alice")
    guarded.add(ResourceType.GROUP, group, Operation.READ)
    guarded.add(ResourceType.TOPIC, named.topic, Operation.READ)
    guarded.add(ResourceType.TOPIC, changelog, Operation.DESCRIBE)
    request = REQUESTS[ApiKey.STREAMS_GROUP_HEARTBEAT](named._replace(group=group))
    request.topology.subtopologies[0].state_changelog_topics = [streams.TopicInfo(name=changelog)]

    def details() -> list[str]:
        answer = session.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, request)
        assert answer.error_code == ErrorCode.NONE, answer
        return [each.status_detail for each in answer.status or ()]

    expected = f"Unauthorized to CREATE on topics {changelog}."
    eventually(lambda: any(expected in detail for detail in details()), "it is said why")
    described = confluent.AdminClient(options(guarded, "admin")).list_topics(timeout=BOUND_SECONDS).topics
    assert changelog not in described
    guarded.add(ResourceType.TOPIC, f"{group}-", Operation.CREATE, pattern=PatternType.PREFIXED)
    eventually(lambda: not any("missing" in detail for detail in details()), "it is created")
    session.close()


def options(guarded: GuardedBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": ":".join(map(str, guarded.address)),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
    }


def test_with_clients_that_are_not_ours(guarded: GuardedBroker) -> None:
    """librdkafka's producer and consumer work once its admin client has created the ACLs that they need."""
    guarded.forget()
    named = guarded.new()
    admin = confluent.AdminClient(options(guarded, "admin"))

    def binding(kind: Any, name: str, operation: Any) -> confluent.AclBinding:
        literal, allow = confluent.ResourcePatternType.LITERAL, confluent.AclPermissionType.ALLOW
        return confluent.AclBinding(kind, name, literal, "User:alice", "*", operation, allow)

    producer = confluent_kafka.Producer({**options(guarded, "alice"), "message.timeout.ms": 5_000})
    errors: list[Any] = []
    producer.produce(named.topic, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(BOUND_SECONDS)
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    wanted = [
        binding(confluent.ResourceType.TOPIC, named.topic, confluent.AclOperation.WRITE),
        binding(confluent.ResourceType.TOPIC, named.topic, confluent.AclOperation.READ),
        binding(confluent.ResourceType.GROUP, named.group, confluent.AclOperation.READ),
    ]
    for future in admin.create_acls(wanted).values():
        future.result(BOUND_SECONDS)
    everything = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert set(admin.describe_acls(everything).result(BOUND_SECONDS)) == set(wanted)
    producer = confluent_kafka.Producer({**options(guarded, "alice"), "message.timeout.ms": 5_000})  # one remembers
    producer.produce(named.topic, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(BOUND_SECONDS)
    assert errors[1] is None
    consumer = confluent_kafka.Consumer(
        {**options(guarded, "alice"), "group.id": named.group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([named.topic])
    message = consumer.poll(BOUND_SECONDS)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"v")
    consumer.close()
    outsider = confluent_kafka.Consumer({**options(guarded, "mallory"), "group.id": named.group})
    outsider.subscribe([named.topic])
    refused = outsider.poll(BOUND_SECONDS)
    assert refused is not None
    assert refused.error().code() in (
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
    outsider.close()
    deleted = [future.result(BOUND_SECONDS) for future in admin.delete_acls([everything]).values()]
    assert [set(each) for each in deleted] == [set(wanted)]


def test_refusals_and_administrative_operations_are_noted(guarded: GuardedBroker) -> None:
    guarded.forget()
    named = guarded.new()
    session = guarded.session("mallory")
    before = len(guarded.audit.read_text())
    forged = named._replace(topic='x", "decision": "ALLOWED\nforged')
    session.ask(ApiKey.DELETE_TOPICS, REQUESTS[ApiKey.DELETE_TOPICS](forged))
    session.ask(ApiKey.LIST_GROUPS, REQUESTS[ApiKey.LIST_GROUPS](named))
    guarded.admin.ask(ApiKey.DELETE_TOPICS, REQUESTS[ApiKey.DELETE_TOPICS](named))

    def noted() -> list[Any]:
        return [json.loads(line) for line in guarded.audit.read_text()[before:].splitlines()]

    eventually(lambda: any(line["principal"] == "User:admin" for line in noted()), "it is noted")
    refused = [line for line in noted() if line["principal"] == "User:mallory"]
    assert [(line["decision"], line["operation"], line["request"]) for line in refused] == [
        ("DENIED", "DESCRIBE", "DELETE_TOPICS")
    ]
    assert refused[0]["resource"] == forged.topic
    assert refused[0]["host"] == "127.0.0.1"
    assert refused[0]["time"].endswith("Z")
    done = [line for line in noted() if line["principal"] == "User:admin"]
    assert [(line["decision"], line["operation"]) for line in done] == [("ALLOWED", "DELETE")]
    session.close()


def test_the_command_line(guarded: GuardedBroker, tmp_path: Any) -> None:
    guarded.forget()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="admin" password="admin";\n'
    )

    def kraftpy(*arguments: str) -> str:
        address = ":".join(map(str, guarded.address))
        command = ["acl", *arguments, "-b", address, "--command-config", str(config)]
        result = CliRunner(env={"COLUMNS": "120"}).invoke(cli, command)
        assert result.exit_code == 0, result.output
        return result.output

    alice = ("--principal", "User:alice")
    added = kraftpy("add", *alice, "--consumer", "--topic", "orders", "--group", "billing")
    assert "added: User:alice: allow read on topic orders" in added
    kraftpy("add", *alice, "--operation", "all", "--topic", "private-", "--prefixed", "--deny", "--host", "10.0.0.1")
    kraftpy("add", *alice, "--operation", "describe", "--cluster")
    listed = [json.loads(line) for line in kraftpy("list", *alice).splitlines()]
    assert {(row["resource"], row["name"], row["operation"], row["permission"]) for row in listed} == {
        ("topic", "orders", "read", "allow"),
        ("topic", "orders", "describe", "allow"),
        ("group", "billing", "read", "allow"),
        ("topic", "private-", "all", "deny"),
        ("cluster", "kafka-cluster", "describe", "allow"),
    }
    assert kraftpy("list", "--cluster", "--format", "json") == (
        '{"resource":"cluster","name":"kafka-cluster","pattern":"literal","principal":"User:alice","host":"*",'
        '"operation":"describe","permission":"allow"}\n'
    )
    assert [line.split() for line in kraftpy("list", "--cluster", "--format", "table").splitlines()] == [
        ["resource", "name", "pattern", "principal", "host", "operation", "permission"],
        ["cluster", "kafka-cluster", "literal", "User:alice", "*", "describe", "allow"],
    ]
    matching = [json.loads(line) for line in kraftpy("list", "--topic", "private-1", "--matching").splitlines()]
    assert [(row["pattern"], row["host"]) for row in matching] == [("prefixed", "10.0.0.1")]
    removed = kraftpy("remove", *alice, "--operation", "read", "--topic", "orders")
    assert removed == "removed: User:alice: allow read on topic orders\n"
    assert "there is no such ACL" in kraftpy("remove", *alice, "--operation", "read", "--topic", "orders")
    wrong = CliRunner().invoke(cli, ["acl", "add", *alice, "--topic", "x"])
    assert wrong.exit_code == 2
