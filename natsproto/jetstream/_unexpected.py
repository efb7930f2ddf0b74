"""Bugs of ours in what goes on in the background: they end the reader or the publisher in words, and nobody waits for
ever.

Whoever reads or publishes hears of them. The connection, which others use, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from natsproto.errors import JetStreamError, NatsError


class UnexpectedErrorHandler(Protocol):
    """Something that a bug can end."""

    def on_unexpected_error(self, bug: Exception) -> None:
        """It is over, because of this."""
        ...


B = TypeVar("B", bound=UnexpectedErrorHandler)
P = ParamSpec("P")


def fail_on_unexpected(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """For a method that nobody waits for: what it raises would reach the log and nobody else."""

    @wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as exc:
            self.on_unexpected_error(exc)

    return guarded


def wrap_unexpected(doing: str, cause: Exception) -> NatsError:
    """What users are told when something in the background (a task, a timer, what a chunk of messages sets off) ends
    with this what they are ``doing``. What nobody foresaw is a bug of ours, and must not leave them waiting for ever.
    """
    if isinstance(cause, NatsError):
        return cause
    error = JetStreamError(f"{doing} was ended by a bug, which is the cause of this error: {cause!r}")
    error.__cause__ = cause
    return error
