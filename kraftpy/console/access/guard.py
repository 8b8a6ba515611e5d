"""Lets a request through to the console's pages, or refuses it.

Checked in this order: host and origin (`origins`); the session, or else the browser is sent to the sign-in page; the
role, an operator's for every method but GET and HEAD; and for those methods, the token in the form (`csrf_token`) or in
the header `X-CSRF-Token`. A page finds `csrf_token` in `request.state`, and if the request was let in, `user`. Each
change leaves a line in the audit log, whether it was refused or not.

A change is a form (`application/x-www-form-urlencoded`) of at most `MOST_BODY_BYTES` that arrives within
`MOST_BODY_SECONDS`; it is read before the page sees it. A sign-in has at most `MOST_SIGN_IN_BYTES`. There are no web
sockets.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kraftpy.console.access.answers import go_to, plain_page
from kraftpy.console.access.cookies import VISITOR_SECONDS, same
from kraftpy.console.access.headers import STATIC
from kraftpy.console.access.kept import Access
from kraftpy.console.access.origins import safe_path, with_destination
from kraftpy.console.access.users import Proof, Role, User

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
TO_PROVIDER: Final = "/sign-in/provider"
FROM_PROVIDER: Final = "/sign-in/return"
OPEN: Final = frozenset({SIGN_IN, TO_PROVIDER, FROM_PROVIDER})
"""The paths that need no session."""
TOKEN_FIELD: Final = "csrf_token"
TOKEN_HEADER: Final = "x-csrf-token"
MOST_BODY_BYTES: Final = 2 << 20
MOST_SIGN_IN_BYTES: Final = 16 << 10
MOST_BODY_SECONDS: Final = 30.0
_SAFE: Final = frozenset({"GET", "HEAD"})
_FORM: Final = "application/x-www-form-urlencoded"
_FORM_TOKEN: Final = f"&{TOKEN_FIELD}=".encode()


class Guard:
    """The layer between `SecureAnswers` and the pages."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope["state"] = dict(scope.get("state") or {})
        request = Request(scope, receive)
        is_safe = request.method in _SAFE
        if refusal := self._not_from_here(request, is_safe=is_safe):
            await refusal(scope, receive, send)
            return
        if is_safe and scope["path"].startswith(STATIC):
            await self._app(scope, receive, send)
            return
        user, token, cookie = self._who(request)
        if user is None:
            path = safe_path(_page_of(request) if is_safe else None)
            await go_to(request, with_destination(SIGN_IN, path))(scope, receive, send)
            return
        request.state.csrf_token = token
        if scope["path"] not in OPEN:
            request.state.user = user
        if cookie is not None:
            send = _with_cookie(send, cookie)
        if is_safe:
            await self._app(scope, receive, send)
        elif scope["path"] in (SIGN_IN, SIGN_OUT):
            await self._change(request, token, scope, receive, send)
        elif user.role is not Role.OPERATOR:
            why = "You are a viewer" if user.is_signed_in else "This console is read-only"
            await self._refuse(request, user, 403, f"{why}: nothing was changed.", "not an operator", send)
        else:
            await self._audited_change(request, user, token, scope, receive, send)

    def _not_from_here(self, request: Request, *, is_safe: bool) -> Response | None:
        origins, headers = self._access.origins, request.headers
        if not origins.is_host(headers.get("host", "")):
            return plain_page(421, "Another host", "This console is not at the address that the browser asked for.")
        if not (origins.is_read_from_here(headers) if is_safe else origins.is_change_from_here(headers)):
            return plain_page(403, "From elsewhere", "Another site sent this request, so nothing was done.")
        return None

    def _who(self, request: Request) -> tuple[User | None, str, str | None]:
        """Return who sent a request, the token of their forms, and a cookie to set; None for one who must sign in."""
        access = self._access
        if access.settings.has_sign_in and request.scope["path"] not in OPEN:
            is_use = not (request.method in _SAFE and _is_refresh(request))
            session = access.session_of(request, is_use=is_use)
            if session is None:
                return None, "", None
            request.state.session = session
            return session.user, session.csrf_token, None
        role = Role.OPERATOR if access.settings.allow_changes else Role.VIEWER
        user = User(name="", role=role, proof=Proof.NONE)
        if not (access.settings.allow_changes or access.settings.has_sign_in):
            return user, "", None
        visitor = access.cookies.find_visitor(request.cookies)
        if visitor is not None:
            return user, visitor.csrf_token, None
        visitor, value = access.cookies.new_visitor()
        cookies = access.cookies
        return user, visitor.csrf_token, cookies.header(cookies.visitor, value, seconds=VISITOR_SECONDS)

    async def _audited_change(
        self, request: Request, user: User, token: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Carry a change out, and write what came of it: 500 if it raised."""
        status, reason = 500, None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            reason = await self._change(request, token, scope, receive, noting)
        finally:
            self._access.audit.change(request, user, status, reason)

    async def _change(self, request: Request, token: str, scope: Scope, receive: Receive, send: Send) -> str | None:
        """Let a change through if its token is right; else refuse it, and return why."""
        is_sign_in = scope["path"] in (SIGN_IN, SIGN_OUT)  # which strangers may send
        body, refusal = await _read(request, MOST_SIGN_IN_BYTES if is_sign_in else MOST_BODY_BYTES)
        reason: str | None = None
        if refusal is None and not (token and same(_token(request, body), token)):
            refusal = plain_page(
                403,
                "Not done",
                "This form is not from this session, or too old. Go back, reload the page, and try again.",
            )
            reason = "wrong CSRF token"
        if refusal is not None:
            await refusal(scope, receive, send)
            return reason or "not a form that can be read"
        await self._app(scope, _replayed(body, receive), send)
        return None

    async def _refuse(self, request: Request, user: User, status: int, text: str, reason: str, send: Send) -> None:
        self._access.audit.change(request, user, status, reason)
        await plain_page(status, "Not done", text)(request.scope, request.receive, send)


def _is_refresh(request: Request) -> bool:
    """Return whether a page asks for a new version of itself, which is no use of a session: all that htmx does."""
    return request.headers.get("hx-request") == "true"


def _page_of(request: Request) -> str:
    """Return the path and query of the page that a request is for, as the browser has them; a part has its page's."""
    if _is_refresh(request):
        try:
            parts = urlsplit(request.headers.get("hx-current-url", ""))
        except ValueError:
            return ""
        return parts.path + (f"?{parts.query}" if parts.query else "")
    path, query = request.scope.get("raw_path") or b"", request.scope.get("query_string") or b""
    return (path + (b"?" + query if query else b"")).decode("latin-1")


async def _read(request: Request, most: int) -> tuple[bytes, Response | None]:
    """Return the body, or why it is refused."""
    body = bytearray()
    length = request.headers.get("content-length", "")
    try:
        if not (length.isdecimal() and len(length) < 12 and int(length) > most):
            async with asyncio.timeout(MOST_BODY_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        break
                else:
                    return bytes(body), None
    except TimeoutError:
        return b"", plain_page(408, "Not done", "The form did not arrive in time.", {"Connection": "close"})
    except ClientDisconnect:
        return b"", plain_page(400, "Not done", "The form did not arrive.")
    text = f"The form has more than {most:,} bytes."
    return b"", plain_page(413, "Not done", text, {"Connection": "close"})


def _token(request: Request, body: bytes) -> str:
    """Return the token that a request has in its header or else in its form; an empty text without one."""
    if (given := request.headers.get(TOKEN_HEADER)) is not None:
        return given
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return ""
    _, found, rest = (b"&" + body).partition(_FORM_TOKEN)
    return unquote_to_bytes(rest[:200].partition(b"&")[0]).decode("latin-1") if found else ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that was read, and then what follows it."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_cookie(send: Send, cookie: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"set-cookie", cookie.encode("latin-1"))]
        await send(message)

    return sending
