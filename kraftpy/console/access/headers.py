"""The outermost layer of the console: headers on every answer, and an answer for every unexpected error.

Scripts, styles and images come from the console itself, nothing else runs, no other page may frame it, and forms are
sent only to it; a page in a sandbox has its own policy. Pages are kept by no cache. An exception costs its own request
a page with status 500 and the log one line with its traceback.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kraftpy.console.access.answers import plain_page

logger = logging.getLogger(__name__)

STATIC: Final = "/static/"
"""The path of the files that everyone may see and browsers may keep."""
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers would send "Origin: null" with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS: Final = "max-age=31536000"


class SecureAnswers:
    """Adds the headers. `is_secure`: browsers reach the console over TLS."""

    def __init__(self, app: ASGIApp, *, is_secure: bool) -> None:
        self._app = app
        self._added = {**HEADERS, **({"Strict-Transport-Security": HSTS} if is_secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                is_sandbox = headers.get("Content-Security-Policy", "").startswith("sandbox;")
                for name, value in self._added.items():
                    if not is_sandbox or name != "Content-Security-Policy":
                        headers[name] = value
                if not scope["path"].startswith(STATIC) or message["status"] >= 300:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("the console could not answer %s %r", scope["method"], scope["path"][:200])
            if not has_begun:
                page = plain_page(500, "The console failed", "The console's log says why.")
                await page(scope, receive, send_with_headers)
