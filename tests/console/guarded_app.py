"""A small application behind the console's access control, a browser for it, and passwords that a test sets."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kraftpy.console.access import Access, AccessSettings, install
from kraftpy.console.access.audit import changes
from kraftpy.console.access.passwords import Unavailable, WrongPassword
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.security.principal import parse_principal

CLUSTER = {"bootstrap_servers": "127.0.0.1:9", "security_protocol": "SASL_PLAINTEXT"}
HOST = "console.example:8443"


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, and let the loop turn meanwhile."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - conditions have no events
            await asyncio.sleep(0.01)


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Passwords:
    """Users with passwords, in place of a cluster's."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.users = dict(users)
        self.is_reachable = True
        self.tried = 0

    async def check(self, name: str, password: str) -> None:
        self.tried += 1
        if not self.is_reachable:
            raise Unavailable("The cluster cannot be asked.")
        if not password or self.users.get(name) != password:
            raise WrongPassword

    def client_options(self, name: str, password: str) -> Mapping[str, Any]:
        return {**CLUSTER, "sasl_username": name, "sasl_password": password}


class App:
    """The application: `/` says who one is, POST `/delete` changes something, `/fail` raises."""

    def __init__(self, settings: AccessSettings, **more: Any) -> None:
        self.deleted: list[str] = []
        self.clock = Clock()
        self.starlette = Starlette(
            routes=[
                Route("/", self._home),
                Route("/topic", self._home),
                Route("/delete", self._delete, methods=["POST"]),
                Route("/fail", self._fail, methods=["GET", "POST"]),
                Route("/static/console.css", lambda request: PlainTextResponse("body {}", media_type="text/css")),
            ]
        )
        self.access: Access = install(self.starlette, settings, clock=self.clock, **more)

    async def _home(self, request: Request) -> Response:
        user = request.state.user
        return PlainTextResponse(f"{user.name}|{user.role}|{request.state.csrf_token}")

    async def _delete(self, request: Request) -> Response:
        name = dict(httpx.QueryParams((await request.body()).decode())).get("name", "")
        changes(request, Operation.DELETE, ResourceType.TOPIC, name)
        self.deleted.append(name)
        return Response(status_code=204)

    async def _fail(self, request: Request) -> Response:
        raise RuntimeError("the secret is swordfish")


class Browser(httpx.AsyncClient):
    """A browser that keeps cookies, and follows no redirects by itself."""

    def __init__(self, app: App, *, host: str = HOST, scheme: str = "https", address: str = "192.0.2.7") -> None:
        transport = httpx.ASGITransport(app.starlette, raise_app_exceptions=False, client=(address, 50_000))
        super().__init__(transport=transport, base_url=f"{scheme}://{host}")
        self.origin = f"{scheme}://{host}"

    async def token(self) -> str:
        """The token of a form on the sign-in page."""
        page = (await self.get("/sign-in")).text
        found = re.search(r'name="csrf_token" value="([^"]+)"', page)
        assert found is not None, page
        return html.unescape(found[1])

    async def sign_in(self, name: str, password: str, **fields: str) -> httpx.Response:
        """Fill in the form of the sign-in page."""
        form = {"csrf_token": await self.token(), "name": name, "password": password, **fields}
        return await self.post("/sign-in", data=form, headers=self.from_here)

    async def me(self) -> tuple[str, str, str]:
        """The name, the role and the token that pages have."""
        answer = await self.get("/")
        assert answer.status_code == 200, answer
        name, role, token = answer.text.split("|")
        return name, role, token

    @property
    def from_here(self) -> dict[str, str]:
        """The headers that a browser sends with a form of the console."""
        return {"Origin": self.origin, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}

    async def delete_topic(self, name: str = "orders", **more: Any) -> httpx.Response:
        """Send the form of a change."""
        token = (await self.me())[2]
        return await self.post("/delete", data={"name": name, "csrf_token": token}, headers=self.from_here, **more)


def with_passwords(**more: Any) -> AccessSettings:
    """Settings with a sign-in by password, over TLS; alice is an operator."""
    return AccessSettings(
        **{
            "host": "console.example",
            "port": 8443,
            "is_tls": True,
            "has_passwords": True,
            "client_options": CLUSTER,
            "operators": frozenset({parse_principal("User:alice")}),
            **more,
        }
    )


def passwords_app(**more: Any) -> tuple[App, Passwords]:
    """The application with its users: alice is an operator, vera a viewer."""
    passwords = Passwords({"alice": "alice's", "vera": "vera's", "bob": "bob's"})
    return App(with_passwords(**more), passwords=passwords), passwords


@contextmanager
def audit_lines() -> Iterator[list[dict[str, Any]]]:
    """The lines that the audit log gets meanwhile."""
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            assert text.isascii()
            assert text.isprintable()
            lines.append(json.loads(text))

    logger, handler = logging.getLogger("kafka.authorizer.logger"), Kept()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
