"""The pages of the sign-in: the form, the way to a provider and back, and the sign-out.

A form's token is checked by `guard` before a page sees it. A sign-in begins a session under a new id and ends the
browser's previous one. Refusals say the same for a wrong password and an unknown name.
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kraftpy.console.access.answers import page
from kraftpy.console.access.audit import address_of
from kraftpy.console.access.cookies import WAY_SECONDS
from kraftpy.console.access.guard import FROM_PROVIDER, SIGN_IN, SIGN_OUT, TO_PROVIDER
from kraftpy.console.access.kept import Access
from kraftpy.console.access.origins import safe_path, with_destination
from kraftpy.console.access.passwords import Unavailable, WrongPassword
from kraftpy.console.access.provider import NotSignedIn
from kraftpy.console.access.users import Proof, Role, SignedIn, User
from kraftpy.security.principal import USER, Principal

logger = logging.getLogger(__name__)

MOST_FIELDS: Final = 10
_WRONG: Final = "The name or the password is wrong."


class Pages:
    """The pages of one console's sign-in."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes; a console without a sign-in has none."""
        settings = self._access.settings
        if not settings.has_sign_in:
            return []
        routes = [
            Route(SIGN_IN, self._show, methods=["GET"], name="sign in"),
            Route(SIGN_OUT, self._sign_out, methods=["POST"], name="sign out"),
        ]
        if self._access.passwords is not None:
            routes.append(Route(SIGN_IN, self._sign_in, methods=["POST"], name="sign in with a password"))
        if self._access.provider is not None:
            routes += [
                Route(TO_PROVIDER, self._to_provider, methods=["GET"], name="to the provider"),
                Route(FROM_PROVIDER, self._from_provider, methods=["GET"], name="from the provider"),
            ]
        return routes

    async def _show(self, request: Request) -> Response:
        """Show the sign-in page, or go on if there is a session."""
        destination = safe_path(request.query_params.get("next"))
        if self._access.session_of(request) is not None:
            return RedirectResponse(destination, 303)
        return self._form(request, destination)

    async def _sign_in(self, request: Request) -> Response:
        access = self._access
        assert access.passwords is not None
        try:
            body = (await request.body()).decode("ascii")
            fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
        except ValueError:
            fields = {}
        name, destination = fields.get("name", ""), safe_path(fields.get("next"))
        address, user = address_of(request), User(name=name, role=Role.VIEWER, proof=Proof.PASSWORD)
        if wait := access.attempts.begin(address, name):
            access.audit.sign_in(request, user, 429, "too many attempts")
            text = f"Too many attempts. Try again in {wait:.0f} seconds."
            return self._form(request, destination, 429, text, {"Retry-After": f"{wait + 1:.0f}"})
        try:
            await access.passwords.check(name, fields.get("password", ""))
        except WrongPassword:
            access.audit.sign_in(request, user, 403, "wrong name or password")
            return self._form(request, destination, 403, _WRONG)
        except Unavailable as error:
            access.attempts.succeeded(address, name)
            access.audit.sign_in(request, user, 503, "the cluster could not be asked")
            return self._form(request, destination, 503, str(error))
        access.attempts.succeeded(address, name)
        role = Role.OPERATOR if Principal(USER, name) in access.settings.operators else Role.VIEWER
        options = access.passwords.client_options(name, fields["password"])
        signed_in = SignedIn(user=User(name=name, role=role, proof=Proof.PASSWORD), client_options=options)
        return self._begin(request, signed_in, destination)

    async def _to_provider(self, request: Request) -> Response:
        access = self._access
        assert access.provider is not None
        destination = safe_path(request.query_params.get("next"))
        way, value = access.cookies.new_way(destination)
        try:
            url = await access.provider.url(way, self._return_url(request))
        except NotSignedIn as error:
            return self._form(request, destination, 503, str(error))
        answer = RedirectResponse(url, 303)
        answer.headers.append("Set-Cookie", access.cookies.header(access.cookies.way, value, seconds=WAY_SECONDS))
        return answer

    async def _from_provider(self, request: Request) -> Response:
        access = self._access
        assert access.provider is not None
        nobody = User(name="", role=Role.VIEWER, proof=Proof.OIDC)
        way = access.cookies.find_way(request.cookies)
        try:
            if way is None:
                raise NotSignedIn("This sign-in did not begin in this browser, or too long ago. Begin again.")
            if wait := access.attempts.begin(address_of(request)):
                raise NotSignedIn(f"Too many attempts. Try again in {wait:.0f} seconds.")
            signed_in = await access.provider.signed_in(way, request.query_params, self._return_url(request))
        except NotSignedIn as error:
            access.audit.sign_in(request, nobody, 403, "not signed in by the provider")
            answer = self._form(request, safe_path(None), 403, str(error))
        else:
            access.attempts.succeeded(address_of(request))
            answer = self._begin(request, signed_in, way.destination)
        answer.headers.append("Set-Cookie", access.cookies.header(access.cookies.way, "", seconds=0))
        return answer

    async def _sign_out(self, request: Request) -> Response:
        access = self._access
        session = request.state.session
        access.audit.sign_out(request, session.user)
        access.sessions.end(session)
        answer = RedirectResponse(SIGN_IN, 303)
        answer.headers.append("Set-Cookie", access.cookies.header(access.cookies.session, "", seconds=0))
        return answer

    def _begin(self, request: Request, signed_in: SignedIn, destination: str) -> Response:
        """Begin a session under a new id, and end the one that the browser had."""
        access = self._access
        previous = access.session_of(request)
        if previous is not None:
            access.sessions.end(previous)
        session = access.sessions.begin(signed_in)
        access.audit.sign_in(request, signed_in.user, 303)
        answer = RedirectResponse(destination, 303)
        answer.headers.append("Set-Cookie", access.cookies.header(access.cookies.session, session.id))
        answer.headers.append("Set-Cookie", access.cookies.header(access.cookies.visitor, "", seconds=0))
        return answer

    def _form(
        self,
        request: Request,
        destination: str,
        status: int = 200,
        problem: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Response:
        return page(
            "sign_in.html",
            status,
            headers,
            csrf_token=request.state.csrf_token,
            destination=destination,
            problem=problem,
            has_passwords=self._access.passwords is not None,
            provider_url=None if self._access.provider is None else with_destination(TO_PROVIDER, destination),
        )

    def _return_url(self, request: Request) -> str:
        return self._access.origins.own(request.headers["host"]) + FROM_PROVIDER
