"""Delegation tokens on a broker with an authorizer: the rights of bearers, and rights to tokens (KIP-373)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.client import BlockingAdmin, ErrorCode, KafkaError, NewTopic
from kraftpy.client.admin.tokens import DelegationToken
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.security.acls import WILDCARD, Operation, PatternType, Permission, ResourceType
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.guarded_broker import AUTHORIZER
from tests.security.listeners import PLAIN_MODULE, SCRAM_MODULE
from tests.security.wire import Session

HOST = "127.0.0.1"


class TokenBroker:
    """A broker with an authorizer and delegation tokens; a super user, and users with the rights that a test grants."""

    def __init__(self, port: int) -> None:
        self.port = port

    def user(self, name: str) -> BlockingAdmin:
        return BlockingAdmin(**self._options("PLAIN"), sasl_username=name, sasl_password=name)

    def bearer(self, token: DelegationToken) -> BlockingAdmin:
        login = f'username="{token.token_id}" password="{token.password}" tokenauth="true"'
        return BlockingAdmin(**self._options("SCRAM-SHA-256"), sasl_jaas_config=f"{SCRAM_MODULE} required {login};")

    def _options(self, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"{HOST}:{self.port}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }

    def grant(self, user: str, operation: Operation, kind: ResourceType, name: str) -> None:
        creation = AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL,
            principal=f"User:{user}",
            host=WILDCARD,
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        session = Session((HOST, self.port), "admin", "admin")
        (result,) = session.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[creation])).results
        session.close()
        assert not result.error_code, result


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenBroker]:
    users = " ".join(f'user_{name}="{name}"' for name in ("admin", "alice", "bob", "carol", "dora"))
    with ReservedPorts() as ports:
        port = ports.reserve()
        settings = {
            "listeners": f"SASL_PLAINTEXT://{HOST}:{port}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:admin",
            "delegation.token.secret.key": "secret",
        }
        with EmbeddedBroker(settings=settings):
            yield TokenBroker(port)


def seen(tokens: TokenBroker, user: str, owners: list[str] | None = None) -> set[str]:
    with tokens.user(user) as admin:
        return {token.token_id for token in admin.describe_delegation_tokens(owners)}


def test_a_bearer_has_the_rights_of_the_owner(tokens: TokenBroker) -> None:
    tokens.grant("alice", Operation.CREATE, ResourceType.TOPIC, "alices")
    with tokens.user("alice") as alice:
        token = alice.create_delegation_token()
    with tokens.bearer(token) as bearer:
        bearer.create_topics([NewTopic(name="alices", num_partitions=1)])
        with pytest.raises(KafkaError) as refused:
            bearer.create_topics([NewTopic(name="others", num_partitions=1)])
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_token_for_somebody_else_needs_a_right(tokens: TokenBroker) -> None:
    with tokens.user("bob") as bob:
        with pytest.raises(KafkaError) as refused:
            bob.create_delegation_token(owner="User:alice")
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert bob.create_delegation_token(owner="User:bob").owner == "User:bob"
        tokens.grant("bob", Operation.CREATE_TOKENS, ResourceType.USER, "User:alice")
        assert bob.create_delegation_token(owner="User:alice").owner == "User:alice"
        with pytest.raises(KafkaError) as refused:
            bob.create_delegation_token(owner="User:admin")
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_tokens_are_seen_by_those_with_a_part_or_a_right(tokens: TokenBroker) -> None:
    with tokens.user("carol") as carol:
        first, second = (carol.create_delegation_token(renewers=renewers) for renewers in ([], ["User:bob"]))
    both = {first.token_id, second.token_id}
    assert both <= seen(tokens, "carol")
    assert both <= seen(tokens, "admin")
    assert seen(tokens, "bob", ["User:carol"]) == {second.token_id}
    assert seen(tokens, "dora") == set()
    tokens.grant("dora", Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, first.token_id)
    assert seen(tokens, "dora") == {first.token_id}
    tokens.grant("dora", Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:carol")
    assert seen(tokens, "dora") == both
    with tokens.user("dora") as dora:
        with pytest.raises(KafkaError) as refused:
            dora.renew_delegation_token(first.hmac)  # seeing a token is enough to log in with it, not to renew it
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
