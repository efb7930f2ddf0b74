"""Unexpected errors (bugs) in the background: they end the reader or publisher with an error, so that no caller waits
forever.

The error reaches the callers of the reader or publisher, and not the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from natsproto import errors


class UnexpectedErrorHandler(Protocol):
    """A reader or publisher that an unexpected error ends."""

    def on_unexpected_error(self, bug: Exception) -> None:
        """End the reader or publisher with this exception."""
        ...


B = TypeVar("B", bound=UnexpectedErrorHandler)
P = ParamSpec("P")


def fail_on_unexpected(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """Decorate a method that runs in the background, where an exception would only reach the log."""

    @wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as exc:
            self.on_unexpected_error(exc)

    return guarded


def wrap_unexpected(operation: str, cause: Exception) -> errors.NatsError:
    """Return the error for users when a background step (a task, a timer, a callback) fails.

    ``operation`` names the step. A NatsError is returned as it is; any other exception is wrapped as a bug.
    """
    if isinstance(cause, errors.NatsError):
        return cause
    error = errors.JetStreamError(f"{operation} ended because of a bug in natsproto: {cause!r}")
    error.__cause__ = cause
    return error
