"""Errors for the texts of ``-ERR``.

The server closes the connection after some errors by itself, so the text only selects the error class; an unknown one
is reported as a ServerError.
"""

from __future__ import annotations

import re

from natsproto import errors

MAX_ERROR_TEXT_LENGTH = 8192
"""Maximum length of a text: room for a quoted subject of 4,096 bytes. It bounds the memory that a server can use in the
errors that a client keeps."""

_AUTH_ERRORS = (
    "authorization violation",
    "user authentication expired",
    "user authentication revoked",
    "account authentication expired",
)
"""The credentials are rejected or revoked: the same ones will be rejected again."""

_FATAL_ERRORS = (
    "authentication timeout",  # the credentials came late, or the server was busy; they may be right
    "unknown protocol operation",
    "maximum payload violation",
    "maximum control line exceeded",
    "invalid client protocol",
    "no responders requires headers support",
    "maximum connections exceeded",
    "maximum account active connections exceeded",
    "connection throttling is active",
    "secure connection - tls required",
    "stale connection",
    "slow consumer",
    "failed account registration",
    "server shutdown",
)
"""The server closes the connection after these; another attempt may succeed."""

_TOO_MANY_SUBSCRIPTIONS = "maximum subscriptions exceeded"

_PERMISSION = re.compile(
    r'permissions violation for (publish with reply of|publish to|subscription to) "((?:[^"\\]|\\.)*)"'
    r'(?: using queue "((?:[^"\\]|\\.)*)")?(?: \(sid "([^"]*)"\))?',
    re.IGNORECASE | re.ASCII,
)
_PUBLISH_OPERATIONS = {"publish to": "publish to", "publish with reply of": "publish with reply"}


class SubscriptionDenied(errors.PermissionDenied):
    """The server rejected or revoked a subscription; ``sid`` is empty when the server does not name it."""

    def __init__(self, text: str, subject: str, queue: str, sid: str) -> None:
        self.sid = sid
        super().__init__(text, "subscribe to", subject, queue)


def parse_server_error(text: str) -> errors.NatsError:
    """Return the error for a text; a ServerError for unknown ones."""
    text = text[:MAX_ERROR_TEXT_LENGTH]
    folded = text.casefold()
    if folded.startswith(_AUTH_ERRORS):
        return errors.NotAuthorized(text)
    if folded.startswith(_TOO_MANY_SUBSCRIPTIONS):
        return errors.TooManySubscriptions(text)
    found = _PERMISSION.match(text)
    if found:
        operation, subject, queue, sid = found.groups(default="")
        subject, queue = _unescaped(subject), _unescaped(queue)
        if operation.casefold() == "subscription to":
            return SubscriptionDenied(text, subject, queue, sid)
        return errors.PermissionDenied(text, _PUBLISH_OPERATIONS[operation.casefold()], subject)
    return errors.ServerError(text)


def ends_connection(text: str) -> bool:
    """Return True if the server is known to close the connection after this text."""
    return text.casefold().startswith(_FATAL_ERRORS + _AUTH_ERRORS)


def is_too_long_line(error: object) -> bool:
    """Return True if this is the error for a control line above the server's ``max_control_line``."""
    return isinstance(error, errors.ServerError) and error.text.casefold().startswith("maximum control line exceeded")


def is_final(error: object) -> bool:
    """Return True if this is the error for a text after which the server is known to close the connection."""
    return isinstance(error, errors.NotAuthorized) or (
        isinstance(error, errors.ServerError) and ends_connection(error.text)
    )


_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _unescaped(quoted: str) -> str:
    """Undo Go's %q, which the server uses for subjects."""
    return _ESCAPE.sub(_escape, quoted) if "\\" in quoted else quoted


def _escape(found: re.Match[str]) -> str:
    body = found[1]
    if len(body) == 1:
        return _PLAIN.get(body, body)
    number = int(body[1:], 16)
    if body[0] == "x":  # a byte; above 0x7f one that is not UTF-8, kept as Message keeps it
        return bytes([number]).decode("utf-8", "surrogateescape")
    return chr(number) if number < 0x110000 else body
