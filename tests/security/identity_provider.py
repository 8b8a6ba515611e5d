"""An identity provider for tests: an HTTP server that shows its keys, and grants tokens for secrets and assertions."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt

from tests.security.certificates import HOST
from tests.security.tokens import Issuer

CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ID, CLIENT_SECRET = "robot", "the robot's secret"


class IdentityProvider:
    """Serves `/keys` and `/token`; keeps the requests, and lets a test change the answers."""

    def __init__(self, issuer: Issuer, keys: Path | None = None) -> None:
        self.issuer = issuer
        self.asked: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Answers in place of the usual ones, by path."""
        self.headers: dict[str, str] = {}
        self.lifetime_seconds = 600
        self.credentials: list[str] = []
        """The ids and secrets that clients have shown, as they were sent."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                provider.may_answer.wait(20)
                usual = 200, provider.issuer.jwks(*provider.shown_keys)
                self._answer(*provider.answers.get(self.path, usual))

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.forms.append(form)
                status = 200 if provider.may_grant(form, self.headers["Authorization"]) else 401
                self._answer(*provider.answers.get(self.path, (status, provider.granted() if status == 200 else b"{}")))

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                for name, value in provider.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self.shown_keys: tuple[str, ...] = ()
        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        if keys is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if keys is None else "https"
        self.url = f"{scheme}://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def may_grant(self, form: dict[str, list[str]], authorization: str | None) -> bool:
        """Whether a client has shown its id and secret, or an assertion of one of the issuer's keys."""
        if form["grant_type"] == [JWT_BEARER]:
            return authorization is None and self._is_signed(form["assertion"])
        if "client_assertion" in form:
            is_known = form["client_assertion_type"] == [CLIENT_ASSERTION] and form.get("client_id", [CLIENT_ID]) == [
                CLIENT_ID
            ]
            return authorization is None and is_known and self._is_signed(form["client_assertion"], issuer=CLIENT_ID)
        given = base64.b64decode((authorization or "").removeprefix("Basic ")).decode()
        self.credentials.append(given)
        return given == f"{CLIENT_ID}:{CLIENT_SECRET}"

    def _is_signed(self, assertions: list[str], **expected: str) -> bool:
        """Whether the only one is an assertion about the client, by one of the issuer's keys, and for this provider."""
        (assertion,) = assertions
        key = self.issuer.keys["rsa" if jwt.get_unverified_header(assertion)["alg"] == "RS256" else "ec"]
        try:
            claims = jwt.decode(assertion, key.public_key(), ["RS256", "ES256"], audience=self.url, **expected)
        except jwt.InvalidTokenError:
            return False
        return claims["sub"] == CLIENT_ID

    def granted(self) -> bytes:
        """The answer of the token endpoint."""
        token = self.issuer.token(sub=CLIENT_ID)
        return json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_seconds}).encode()

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
