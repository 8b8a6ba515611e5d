"""The exceptions with which an authentication fails, with the text that its client may read."""

from __future__ import annotations


class AuthenticationFailed(Exception):
    """The client has not proved who it is. The message is sent to the client, and does not reveal which names exist."""


class InvalidCredentials(AuthenticationFailed):
    """The client's messages are invalid. The reason goes to the log only; the client gets the same text every time."""
