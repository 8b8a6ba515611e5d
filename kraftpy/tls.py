"""Makes OpenSSL contexts from a listener's TLS settings, reading the files with keys and certificates.

OpenSSL gets a private key and its certificates through a file that only this process sees, because the standard library
accepts only files. A key may be in PKCS#8, as Kafka demands, or in one of the older forms; an encrypted one is
decrypted with `ssl.key.password`.

Cipher suites have IANA's names, as in Java. The standard library cannot choose among those of TLS 1.3: a list without
any of them turns TLS 1.3 off, a list of exactly these turns TLS 1.2 off, and a list with only some of them is refused.

Every certificate in a trust store is trusted by itself, as in Java: it may be of an intermediate authority or of a
single peer, and several may have the same name.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kraftpy.config.security import Store, TlsSettings

MOST_STORE_BYTES: Final = 4 << 20
"""The largest file of keys or certificates; the certificates of all public authorities take 0.3 MB."""
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[^-]*-----END \1-----")
_SUITES_OF_1_3 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_MOST_ROUNDS: Final = 10
"""More than a handshake takes."""
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsError(Exception):
    """Keys, certificates or cipher suites cannot be used. The message is one line, and does not quote any file."""


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
    context.verify_mode = _VERIFY[tls.client_auth]
    if tls.client_auth != "none":
        _trust(context, tls.trusted, ssl.Purpose.CLIENT_AUTH)
    _set_up(context, tls)
    return context


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the context for connections to other brokers' listeners. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.is_host_checked
    _trust(context, tls.trusted, ssl.Purpose.SERVER_AUTH)
    _set_up(context, tls)
    return context


def refusal_between(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Return why one of the ends would not accept the other, whatever the host; None if both would. Uses no network."""
    sent, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(answered, sent), server.wrap_bio(sent, answered, server_side=True)]
    for _ in range(_MOST_ROUNDS):
        left = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                left.append(end)
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            except (ssl.SSLError, ValueError) as error:
                return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
        if not left:
            return None
    return "the handshake does not end"


def check_trusted(store: Store) -> None:
    """Check that a trust store can be used. Raises TlsError."""
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), store, ssl.Purpose.SERVER_AUTH)


def own_certificate(tls: TlsSettings) -> bytes:
    """Return the certificate that this node shows to peers, as DER. Raises TlsError."""
    assert tls.keys is not None
    where, text = _text_of_keys(tls.keys)
    for match in _BLOCK.finditer(text):
        if match[1] == "CERTIFICATE":
            return ssl.PEM_cert_to_DER_cert(match[0])
    raise TlsError(f"{where}: expected at least one certificate in PEM")


def files_of(tls: TlsSettings) -> tuple[str, ...]:
    """Return the paths of the files with the keys and the trusted certificates."""
    return tuple(store.location for store in (tls.keys, tls.trusted) if store is not None and store.location)


def _set_up(context: ssl.SSLContext, tls: TlsSettings) -> None:
    versions = {ssl.TLSVersion[version.replace(".", "_")] for version in tls.versions}
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    _choose_ciphers(context, tls.cipher_suites)
    if tls.keys is not None:
        _load_keys(context, tls.keys, tls.key_password)


def _load_keys(context: ssl.SSLContext, store: Store, password: str | None) -> None:
    where, text = _text_of_keys(store)
    blocks = [(match[1], match[0]) for match in _BLOCK.finditer(text)]
    keys = [block for kind, block in blocks if kind.endswith("PRIVATE KEY")]
    chain = [block for kind, block in blocks if kind == "CERTIFICATE"]
    if len(keys) != 1:
        raise TlsError(f"{where}: expected one private key in PEM, found {len(keys)}")
    if not chain:
        raise TlsError(f"{where}: expected at least one certificate in PEM")
    with _unseen_file("\n".join([*keys, *chain, ""])) as path:
        try:
            context.load_cert_chain(path, password=lambda: password or "")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "not valid"
            hint = "" if password else "; if it is encrypted, set ssl.key.password"
            raise TlsError(f"{where}: the key or its certificates cannot be used ({reason}){hint}") from None


def _text_of_keys(store: Store) -> tuple[str, str]:
    """Return the name of a key store, for messages, and its text. Raises TlsError."""
    if store.location is None:
        return "ssl.keystore.key", f"{store.key}\n{store.certificates}".replace("\r\n", "\n")
    where = f"ssl.keystore.location={store.location}"
    return where, _read(where, store.location).replace("\r\n", "\n")


def _trust(context: ssl.SSLContext, store: Store | None, purpose: ssl.Purpose) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if store is None:
        context.load_default_certs(purpose)
        return
    if store.location is None:
        where, text = "ssl.truststore.certificates", store.certificates or ""
    else:
        where = f"ssl.truststore.location={store.location}"
        text = _read(where, store.location)
    blocks = [match[0] for match in _BLOCK.finditer(text.replace("\r\n", "\n")) if match[1] == "CERTIFICATE"]
    if not blocks:
        raise TlsError(f"{where}: expected at least one certificate in PEM")
    try:
        context.load_verify_locations(cadata="\n".join(blocks) + "\n")
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{where}: a certificate cannot be used ({getattr(error, 'reason', None)})") from None


def _read(where: str, location: str) -> str:
    try:
        with Path(location).open("rb") as file:
            content = file.read(MOST_STORE_BYTES + 1)
    except OSError as error:
        raise TlsError(f"{where}: {error.strerror}") from None
    if len(content) > MOST_STORE_BYTES:
        raise TlsError(f"{where}: the file has more than {MOST_STORE_BYTES >> 20} MiB")
    return content.decode("latin-1")


@contextmanager
def _unseen_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with this text: in memory if possible, else readable only by this user."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        descriptor = os.memfd_create("keys", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "w", encoding="latin-1", closefd=False) as file:
                file.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()  # of mode 0600
    try:
        with open(descriptor, "w", encoding="latin-1") as file:
            file.write(text)
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


def _choose_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    if not names:
        return
    of_1_3 = _SUITES_OF_1_3.intersection(names)
    older = [name for name in names if name not in of_1_3]
    if of_1_3 and of_1_3 != _SUITES_OF_1_3:
        missing = ", ".join(sorted(_SUITES_OF_1_3 - of_1_3))
        raise TlsError(
            f"ssl.cipher.suites: the suites of TLS 1.3 cannot be chosen individually, and the list lacks {missing}"
        )
    if older:
        found = []
        for name in older:
            try:
                context.set_ciphers(openssl_name(name))
            except ssl.SSLError:
                raise TlsError(f"ssl.cipher.suites: {name} is not known") from None
            found.append(openssl_name(name))
        context.set_ciphers(":".join(found))
    if not of_1_3:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise TlsError("ssl.cipher.suites has no suite for a version in ssl.enabled.protocols")


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name for a cipher suite of TLS 1.2, given IANA's; any other name is returned unchanged."""
    exchange, found, rest = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", rest).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305").replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"
