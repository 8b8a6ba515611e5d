"""A broker with an authorizer, for the tests of rights: its users, names that no other test uses, and ACLs."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from kraftpy.broker.authorization.policy import Need
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.security.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.api_requests import EVERY_ACL, Named
from tests.security.certificates import HOST
from tests.security.listeners import PLAIN_MODULE
from tests.security.wire import Session

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class GuardedBroker:
    """A broker with an authorizer; a super user, a user with the rights that a test grants, and one without any."""

    def __init__(self, ports: ReservedPorts, directory: Path, **more: str) -> None:
        """`more` are other settings, with underscores for dots."""
        self.audit = directory / "audit.log"
        users = " ".join(f'user_{name}="{name}"' for name in ("admin", "alice", "mallory"))
        self.address = (HOST, ports.reserve())
        self.broker = EmbeddedBroker(
            settings={
                "listeners": f"CLIENT://{HOST}:{self.address[1]}",
                "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.client.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:admin",
                "kraftpy.audit.log.file": str(self.audit),
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "delegation.token.secret.key": "secret",
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        self.broker.start()
        self.admin = self.session("admin")
        self._numbers = count(1)
        for key_type in (0, 1):
            self.admin.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]))

    def session(self, user: str) -> Session:
        return Session(self.address, user, user)

    def stop(self) -> None:
        self.admin.close()
        self.broker.close()

    def new(self, *, exists: bool = True) -> Named:
        """New names of one length. If they exist, the topic and the transactional id are created."""
        number = f"{next(self._numbers):04d}"
        named = Named(f"topic-{number}", f"group-{number}", f"transaction-{number}")
        if exists:
            topic = CreatableTopic(name=named.topic, num_partitions=1, replication_factor=1)
            (created,) = self.admin.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic])).topics
            assert not created.error_code, created
            named = named._replace(topic_id=created.topic_id)
            self.admin.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=named.transaction))
        return named

    def grant(self, need: Need, named: Named, permission: Permission = Permission.ALLOW, user: str = "alice") -> None:
        self.add(need.resource, name_of(need, named), need.operation, permission, user)

    def add(
        self,
        kind: ResourceType,
        name: str,
        operation: Operation,
        permission: Permission = Permission.ALLOW,
        user: str = "alice",
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        creation = AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{user}",
            host=WILDCARD,
            operation=operation,
            permission_type=permission,
        )
        (result,) = self.admin.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[creation])).results
        assert not result.error_code, result

    def forget(self) -> None:
        """Delete all ACLs."""
        everything = DeleteAclsFilter(**EVERY_ACL)
        (result,) = self.admin.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[everything])).filter_results
        assert not result.error_code, result


def name_of(need: Need, named: Named) -> str:
    names = {
        ResourceType.TOPIC: named.topic,
        ResourceType.GROUP: named.group,
        ResourceType.TRANSACTIONAL_ID: named.transaction,
        ResourceType.USER: f"User:{named.group}",
        ResourceType.DELEGATION_TOKEN: named.topic,
    }
    return names.get(need.resource, CLUSTER_NAME)
