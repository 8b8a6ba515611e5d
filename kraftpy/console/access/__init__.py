"""The console's access control: sign-in, sessions, roles, protection of forms, headers, and the audit log.

    access = install(app, AccessSettings(has_passwords=True, client_options=options))

`install` wraps an application in two layers and gives it the pages of the sign-in:

    SecureAnswers    headers on every answer, and an answer for every unexpected error
    Guard            host and origin, session, role, and the token of a form; an audit line for each change
    the pages        find `request.state.user` and `request.state.csrf_token`

By default everything is read-only: without a sign-in everyone is a viewer and the console must listen on this machine
only; with one, every user of the cluster is a viewer, and operators are named. See decision 50.

Needs the extra `console`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.applications import Starlette

from kraftpy.console.access.guard import TOKEN_FIELD, Guard
from kraftpy.console.access.headers import SecureAnswers
from kraftpy.console.access.kept import Access
from kraftpy.console.access.pages import Pages
from kraftpy.console.access.settings import AccessSettings as AccessSettings
from kraftpy.console.access.settings import OidcSettings as OidcSettings
from kraftpy.console.access.users import Role as Role
from kraftpy.console.access.users import User as User

if TYPE_CHECKING:
    from kraftpy.console.access.passwords import PasswordCheck
    from kraftpy.console.access.provider import Provider

__all__ = ["Access", "AccessSettings", "OidcSettings", "Role", "User", "csrf_field", "install"]


def install(
    app: Starlette,
    settings: AccessSettings,
    *,
    passwords: PasswordCheck | None = None,
    provider: Provider | None = None,
    **more: Any,
) -> Access:
    """Put the access control in front of an application that has not started; return its state.

    `passwords` and `provider` replace those that the settings describe.
    """
    access = Access(settings, passwords=passwords, provider=provider, **more)
    app.router.routes[:0] = Pages(access).routes()
    app.add_middleware(Guard, access=access)
    app.add_middleware(SecureAnswers, is_secure=settings.is_secure)
    app.state.access = access
    return access


@pass_context
def csrf_field(context: Context) -> Markup:
    """Return the hidden field of a form: a function for templates, which finds the request in their context."""
    token = getattr(context["request"].state, TOKEN_FIELD, "")
    return Markup('<input type="hidden" name="{}" value="{}">').format(TOKEN_FIELD, token)
