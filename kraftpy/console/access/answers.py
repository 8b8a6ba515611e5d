"""Short pages that need nothing of the console: refusals, and the sign-in page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

_TEMPLATES: Final = Environment(
    loader=PackageLoader("kraftpy.console.access", "templates"),
    autoescape=select_autoescape(default=True),
    trim_blocks=True,
    lstrip_blocks=True,
)


def compile_templates() -> None:
    """Compile the templates now rather than when they are first used."""
    for name in _TEMPLATES.list_templates():
        _TEMPLATES.get_template(name)


def page(template: str, status: int = 200, headers: Mapping[str, str] | None = None, **shown: Any) -> HTMLResponse:
    """Return a page of a template."""
    return HTMLResponse(_TEMPLATES.get_template(template).render(shown), status, headers)


def plain_page(status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Return a page that says one thing."""
    return page("plain.html", status, headers, title=title, text=text)


def go_to(request: Request, url: str) -> Response:
    """Return an answer that makes the browser open a URL: also if htmx asked for a part of a page."""
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": url})
    return RedirectResponse(url, 303)
