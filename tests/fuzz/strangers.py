"""Strangers at secure listeners: generated input before any login, against one node.

    python tests/fuzz/strangers.py --inputs 100000 --seed 1

Three kinds, so many inputs of each: what arrives where a TLS handshake is expected; requests before SASL; and tokens of
SASL, for PLAIN and both SCRAM mechanisms, behind a good handshake. An input is a function of the seed and its number:
a good conversation with bytes changed, cut, repeated or put in, or bytes that are none. Behind each input stands a
request that only somebody who is in gets an answer to. The run fails if anybody gets one, if the node ends or notes an
incident, if an honest client is not served meanwhile and afterwards, or if the memory is not back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kraftpy.client import Admin
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, ScramClient
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.wire import Session

AT_ONCE = 64
QUIET_SECONDS = 0.5
"""How long a node may say nothing before the next input: it may wait for more of this one."""
BACK_MB = 60.0
"""How much more memory than before the node may have afterwards: caches and the allocator keep some."""
SETTLING_SECONDS = 30.0
USER, PASSWORD = "alice", "the right one"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_PROBE = encode_request(ApiKey.METADATA, 9, 7, "stranger", MetadataRequest(topics=[]))


class Node:
    """A broker with a TLS listener, one with SASL, and a plain one to see how it is."""

    def __init__(self, directory: Path, ports: ReservedPorts) -> None:
        self.certificates = Certificates(directory)
        self.plain, self.tls, self.sasl = (ports.reserve() for _ in range(3))
        self.broker = EmbeddedBroker(
            settings={
                "listeners": f"PLAINTEXT://{HOST}:{self.plain},SSL://{HOST}:{self.tls},SASL_PLAINTEXT://{HOST}:{self.sasl}",
                "ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_{USER}="{PASSWORD}";',
                "connection.failed.authentication.delay.ms": "0",
                "max.connections": "1000",
                **self.certificates.settings(),
            }
        )

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def changed(chance: Random, data: bytes) -> bytes:
    """Return bytes that differ from these in one to three places."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0 if place < len(found):
                found[place] = chance.randrange(256)
            case 1:
                del found[place:]
            case 2:
                found[place:place] = chance.randbytes(chance.choice((1, 2, 7, 300)))
            case 3 if place < len(found):
                found[place] ^= 1 << chance.randrange(8)
            case 4:
                found[place:place] = found[: chance.randrange(40)]
            case _:
                width = chance.choice((1, 2, 4))
                found[place : place + width] = chance.choice((b"\x00", b"\xff", b"\x7f")) * width
    return bytes(found)


# --- the three kinds --------------------------------------------------------------------------------------------------


def greeting() -> bytes:
    """A good ClientHello."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="example.org").do_handshake()
    return outgoing.read()


GREETING = greeting()


def at_tls(chance: Random) -> list[bytes]:
    """Bytes in place of a handshake."""
    match chance.randrange(5):
        case 0:
            return [chance.randbytes(chance.choice((1, 5, 100, 20_000)))]
        case 1:
            return [_PROBE]
        case 2:
            kind, size = chance.choice((0, 20, 21, 22, 23, 24, 255)), chance.choice((0, 1, 100, 16_384, 65_535))
            return [struct.pack(">BHH", kind, chance.choice((0x301, 0x303, 0x304, 0)), size) + chance.randbytes(100)]
        case 3:
            return [GREETING, changed(chance, GREETING)]
        case _:
            return [changed(chance, GREETING)]


def before_sasl(chance: Random) -> list[bytes]:
    """Requests of a client that has not logged in."""
    good = [
        encode_request(ApiKey.API_VERSIONS, 3, 1, "c", ApiVersionsRequest(client_software_name="x"))
        if chance.random() < 0.5
        else encode_request(ApiKey.API_VERSIONS, 0, 1, "c", ApiVersionsRequest()),
        encode_request(ApiKey.SASL_HANDSHAKE, 1, 2, "c", SaslHandshakeRequest(mechanism="PLAIN")),
        encode_request(ApiKey.SASL_AUTHENTICATE, 2, 3, "c", SaslAuthenticateRequest(auth_bytes=b"\0x\0y")),
    ]
    match chance.randrange(5):
        case 0:
            key = chance.choice(list(APIS))
            header = struct.pack(">hhih", key, chance.randrange(-1, 15), 1, -1)
            body = header + chance.randbytes(chance.randrange(60))
            return [struct.pack(">i", len(body)) + body]
        case 1:
            return [struct.pack(">i", chance.choice((0, -1, 3, 600_000, 1 << 30))) + chance.randbytes(20)]
        case 2:
            return [chance.choice(good) for _ in range(chance.randint(2, 6))]
        case _:
            place = chance.randrange(len(good))
            return [*good[:place], changed(chance, good[place]), *good[place + 1 :]]


def tokens(chance: Random) -> list[bytes]:
    """Tokens behind a good handshake, of a client that does not know the password."""
    mechanism = chance.choice(("PLAIN", *MECHANISMS))
    version = chance.choice((0, 1))
    shake = encode_request(ApiKey.SASL_HANDSHAKE, version, 1, "c", SaslHandshakeRequest(mechanism=mechanism))
    sent = []
    for number in range(chance.randint(1, 4)):
        if mechanism == "PLAIN":
            token = plain_message(chance.choice((USER, "", "bob")), chance.choice(("", "wrong", PASSWORD[:-4])))
        else:
            client = ScramClient(MECHANISMS[mechanism], chance.choice((USER, "bob")), "n" * chance.randint(1, 40))
            token = client.first() if not number else b"c=biws,r=nnn,p=" + chance.randbytes(30).hex().encode()
        token = token if chance.random() < 0.3 else changed(chance, token)
        if version == 0:
            sent.append(struct.pack(">i", len(token)) + token)
        else:
            request = SaslAuthenticateRequest(auth_bytes=token)
            sent.append(encode_request(ApiKey.SASL_AUTHENTICATE, 2, number + 2, "c", request))
    return [shake, *sent]


# --- the run ----------------------------------------------------------------------------------------------------------


async def one(port: int, sent: list[bytes]) -> bytes:
    """Send, and the probe behind it; return what came back before the connection ended or there was nothing more."""
    reader, writer = await asyncio.open_connection(HOST, port)
    found = b""
    try:
        writer.write(b"".join(sent) + _PROBE)
        while more := await asyncio.wait_for(reader.read(65_536), QUIET_SECONDS):
            found += more
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return found


def cluster_id(node: Node) -> bytes:
    """Return the cluster's id, by which an answer to an authenticated client is recognized."""
    told = set()
    for session in (Session((HOST, node.plain)), Session((HOST, node.sasl), USER, PASSWORD)):
        told.add(session.ask_bytes(ApiKey.METADATA, MetadataRequest(topics=[]), 9))
        found: str = session.ask(ApiKey.METADATA, MetadataRequest(topics=[])).cluster_id
        session.close()
    assert found
    assert all(found.encode() in each for each in told)
    return found.encode()


async def kind_of_input(
    name: str, port: int, make: Callable[[Random], list[bytes]], secret: bytes, options: argparse.Namespace
) -> Counter[str]:
    seen: Counter[str] = Counter()
    numbers = iter(range(options.inputs))

    async def work() -> None:
        for number in numbers:
            sent = make(Random(f"{options.seed} {name} {number}"))
            answer = await one(port, sent)
            if secret in answer:
                raise SystemExit(f"{name} {number} of seed {options.seed} got in: {sent!r}")
            seen["answered" if answer else "closed"] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return seen


async def honest(node: Node, over: asyncio.Event) -> int:
    """Be served by password all along; return how often."""
    served = 0
    while not over.is_set():
        async with Admin(
            bootstrap_servers=f"{HOST}:{node.sasl}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username=USER,
            sasl_password=PASSWORD,
        ) as admin:
            await admin.list_topics()
        served += 1
        await asyncio.sleep(0.2)
    return served


async def attack(node: Node, options: argparse.Namespace) -> None:
    secret = cluster_id(node)
    kinds = {"tls": (node.tls, at_tls), "before": (node.sasl, before_sasl), "tokens": (node.sasl, tokens)}
    for name, (port, make) in kinds.items():
        await kind_of_input("warming up", port, make, secret, argparse.Namespace(inputs=500, seed=0))
        before_mb, began = node.resident_mb(), time.monotonic()
        over = asyncio.Event()
        serving = asyncio.create_task(honest(node, over))
        seen = await kind_of_input(name, port, make, secret, options)
        over.set()
        served = await serving
        after_mb = await _settled(node, before_mb)
        if after_mb > before_mb + BACK_MB:
            raise SystemExit(f"{name}: {before_mb:.0f} MB before, {after_mb:.0f} MB after")
        print(
            f"{name}: {options.inputs} inputs in {time.monotonic() - began:.0f} s, {dict(seen)}, nobody got in; an "
            f"honest client was served {served} times; {before_mb:.0f} MB before, {after_mb:.0f} MB after",
            flush=True,
        )


async def _settled(node: Node, before_mb: float) -> float:
    deadline = time.monotonic() + SETTLING_SECONDS
    while node.resident_mb() > before_mb + BACK_MB and time.monotonic() < deadline:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.5)
    return node.resident_mb()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ReservedPorts() as ports:
        node = Node(Path(directory), ports)
        with node.broker:
            asyncio.run(attack(node, options))
            incidents = [line for line in node.broker.log_text.splitlines() if "unexpected error" in line]
        if incidents:
            raise SystemExit("\n".join(incidents[:5]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
