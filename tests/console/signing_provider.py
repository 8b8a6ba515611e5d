"""An OpenID Connect provider on this machine: whoever follows the link on its page is signed in as a given user."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.security.tokens import Issuer

CLIENT = "console"


class SigningProvider:
    """The provider's state: its URL, the claims of the next user, and the codes that it has given."""

    def __init__(self) -> None:
        self.url = ""
        self.claims: dict[str, Any] = {"sub": "olga", "groups": ["kafka-operators"]}
        self._issuer = Issuer()
        self._given: dict[str, tuple[str, str]] = {}

    def page(self, path: str, query: dict[str, str]) -> tuple[str, bytes]:
        """Answer a GET with a type and a content."""
        if path == "/.well-known/openid-configuration":
            endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            described = {"issuer": self.url} | {name: f"{self.url}/{each}" for name, each in endpoints.items()}
            return "application/json", json.dumps(described).encode()
        if path == "/keys":
            return "application/json", self._issuer.jwks("rsa")
        code = f"code-{len(self._given)}"
        self._given[code] = query["code_challenge"], query["nonce"]
        back = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
        return "text/html", f'<a href="{html.escape(back)}">I am Olga</a>'.encode()

    def token(self, form: dict[str, str]) -> bytes:
        """Answer the exchange of a code."""
        challenge, nonce = self._given.pop(form["code"])
        shown = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        assert shown.decode() == challenge
        token = self._issuer.token(iss=self.url, aud=CLIENT, nonce=nonce, **self.claims)
        return json.dumps({"access_token": "x", "token_type": "Bearer", "id_token": token}).encode()


@contextmanager
def signing_provider() -> Iterator[SigningProvider]:
    """Run a provider on localhost: another site than 127.0.0.1."""
    provider = SigningProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._answer(*provider.page(parts.path, {name: each for name, (each,) in parse_qs(parts.query).items()}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: each for name, (each,) in parse_qs(body).items()}
            self._answer("application/json", provider.token(form))

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    provider.url = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
