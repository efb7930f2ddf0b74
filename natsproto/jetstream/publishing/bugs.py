"""Bugs of ours in what the event loop and the engine call: they end the publisher in words, and nobody waits for ever.

Whoever publishes hears of them. The connection, over which others publish, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from natsproto.errors import JetStreamError, NatsError


class Endable(Protocol):
    """Something that a bug can end."""

    def broken(self, bug: Exception) -> None:
        """It is over, because of this."""
        ...


B = TypeVar("B", bound=Endable)
P = ParamSpec("P")


def ends_on_bugs(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """For a method that nobody waits for: what it raises would reach the log and nobody else."""

    @wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as exc:
            self.broken(exc)

    return guarded


def ending(bug: Exception) -> NatsError:
    """What whoever publishes is told."""
    if isinstance(bug, NatsError):
        return bug
    error = JetStreamError(f"publishing was ended by a bug, which is the cause of this error: {bug!r}")
    error.__cause__ = bug
    return error
