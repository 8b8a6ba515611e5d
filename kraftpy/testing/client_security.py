"""TLS and SASL for the clients of a test cluster: throw-away certificates and users, and clients' options for them.

Users have SCRAM credentials from the cluster's first moment on. If ACLs are given, they say who may do what. The nodes
among themselves stay in clear text on the loopback interface, so that faults between them work as in any cluster; the
test asks and administers there, as a super user.

Needs the package cryptography (the extra `security`), except for SASL_PLAINTEXT.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kraftpy.config.broker import AUTHORIZER
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.describe_acls import DescribeAclsRequest
from kraftpy.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from kraftpy.security.principal import ANONYMOUS
from kraftpy.testing.asking import ask
from kraftpy.testing.ports import HOST

LISTENER: Final = "CLIENTS"
PROTOCOLS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISM: Final = "SCRAM-SHA-512"
_POLL_SECONDS: Final = 0.02
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class ClientSecurity:
    """The security of a cluster's client listeners. `users` are passwords by name; without `acls`, all may do all."""

    def __init__(self, protocol: str, users: Mapping[str, str], acls: Iterable[AclBinding] | None = None) -> None:
        self.protocol = protocol.upper()
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"security must be one of {', '.join(PROTOCOLS).lower()}, not {protocol!r}")
        if self._has_sasl != bool(users):
            raise ValueError(f"security={protocol!r} {'needs users' if self._has_sasl else 'has no users'}")
        if acls is not None and not users:
            raise ValueError(f"security={protocol!r} has no users, so that ACLs could not tell clients apart")
        self._users = dict(users)
        self._acls = None if acls is None else tuple(acls)
        self._directory = Path()
        self._cluster_id = secrets.token_urlsafe(16)

    @property
    def _has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def _has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def open(self, directory: Path) -> None:
        """Make the certificates, unless the directory has some from before."""
        self._directory = directory / "security"
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if not self._has_tls or self._keys.exists():
            return
        from kraftpy.certificates import Authority

        authority = Authority("a test's authority")
        self._trusted.write_text(authority.own.certificate)
        self._keys.touch(mode=0o600)
        self._keys.write_text(authority.issue("broker", ["localhost", HOST, "::1"]).store)

    @property
    def _trusted(self) -> Path:
        return self._directory / "ca.pem"

    @property
    def _keys(self) -> Path:
        return self._directory / "keys.pem"

    def settings(self, super_users: str = "") -> dict[str, str]:
        """Return the settings of every node. `super_users` are those that the test wants."""
        settings: dict[str, str] = {}
        if self._acls is not None:
            everyone = [str(ANONYMOUS), *filter(None, [super_users])]  # anonymous are those at the nodes' own listener
            settings |= {"authorizer.class.name": AUTHORIZER, "super.users": ";".join(everyone)}
        if self._has_tls:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._keys)}
        if self._has_sasl:
            settings["sasl.enabled.mechanisms"] = MECHANISM
        return settings

    def format(self, settings: Mapping[str, str]) -> None:
        """Give a new node's directory the cluster's id, and the users."""
        if not self._has_sasl or Path(settings["log.dirs"], "meta.properties").exists():
            return
        from kraftpy.broker.storage.format import format_directories
        from kraftpy.config import BrokerConfig
        from kraftpy.metadata.credentials import ScramChange
        from kraftpy.security.scram import LEAST_ITERATIONS, MECHANISMS, SALT_BYTES, credential_of, salted_password

        mechanism = MECHANISMS[MECHANISM]
        credentials = []
        for name, password in self._users.items():
            salt = secrets.token_bytes(SALT_BYTES)
            salted = salted_password(mechanism, password, salt, LEAST_ITERATIONS)
            made = credential_of(mechanism, salted, salt, LEAST_ITERATIONS)
            credentials.append(
                ScramChange(
                    name=name,
                    mechanism=mechanism.code,
                    iterations=made.iterations,
                    salt=salt,
                    stored_key=made.stored_key,
                    server_key=made.server_key,
                )
            )
        format_directories(BrokerConfig.of(settings), self._cluster_id, tuple(credentials))

    def apply(self, brokers: Sequence[tuple[str, int]], timeout: float) -> None:
        """Create the ACLs; those that exist already stay. Returns when all brokers have them.

        `brokers` are the addresses of the nodes' own listeners. Raises TimeoutError after `timeout` seconds.
        """
        if not self._acls:
            return
        from kraftpy.client import BlockingAdmin

        deadline = time.monotonic() + timeout
        with BlockingAdmin(bootstrap_servers=",".join(f"{host}:{port}" for host, port in brokers)) as admin:
            admin.create_acls(self._acls)
        for address in brokers:
            while not set(self._acls) <= _acls_at(address, timeout):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the broker at port {address[1]} has not got the ACLs within {timeout:g} s")
                time.sleep(_POLL_SECONDS)

    def client_options(self, user: str | None) -> dict[str, Any]:
        """Return keyword arguments of our clients; `user` defaults to the first one."""
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self._has_tls:
            options["ssl_truststore_location"] = str(self._trusted)
        if self._has_sasl:
            name = next(iter(self._users)) if user is None else user
            if name not in self._users:
                raise ValueError(f"there is no user {name!r}, but {', '.join(self._users)}")
            options |= {"sasl_mechanism": MECHANISM, "sasl_username": name, "sasl_password": self._users[name]}
        elif user is not None:
            raise ValueError(f"{self.protocol} has no users")
        return options

    def client_properties(self, user: str | None) -> dict[str, str]:
        """Return settings of clients by Kafka's names, for `--command-config` and clients in Java."""
        options = self.client_options(user)
        settings = {"security.protocol": self.protocol}
        if self._has_tls:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._trusted)}
        if self._has_sasl:
            password = options["sasl_password"].replace("\\", "\\\\").replace('"', '\\"')
            jaas = f'{_MODULE} required username="{options["sasl_username"]}" password="{password}";'
            settings |= {"sasl.mechanism": MECHANISM, "sasl.jaas.config": jaas}
        return settings


def _acls_at(address: tuple[str, int], timeout: float) -> set[AclBinding]:
    """Return the bindings that one broker has."""
    request = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        pattern_type_filter=PatternType.ANY,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    answer = ask(address, ApiKey.DESCRIBE_ACLS, 3, request, timeout=timeout)
    return {
        AclBinding(
            resource_type=resource.resource_type,
            name=resource.resource_name,
            pattern_type=resource.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission=acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    }
