"""What an authentication ends with if it does not end well."""

from __future__ import annotations


class AuthenticationFailed(Exception):
    """The client has not proved who it is. The message is for the client, and does not say which names exist."""


class InvalidCredentials(AuthenticationFailed):
    """The client's messages prove nothing; why is for this process's log, and the client gets one text for all."""
