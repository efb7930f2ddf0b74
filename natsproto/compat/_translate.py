"""The errors of natsproto as those of nats-py.

Owns which exception stands for which. The original is the ``__cause__`` of what is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from natsproto import NatsError
from natsproto import errors as ours
from natsproto.compat.nats import errors
from natsproto.compat.nats.js import errors as js_errors

P = ParamSpec("P")
T = TypeVar("T")

_CLASSES: tuple[tuple[type[NatsError], type[errors.Error]], ...] = (
    (ours.DrainTimeout, errors.DrainTimeoutError),
    (ours.PublishUncertain, errors.TimeoutError),
    (ours.RequestTimeout, errors.TimeoutError),
    (ours.NoResponders, errors.NoRespondersError),
    (ours.NoStream, js_errors.NoStreamResponseError),
    (ours.ConsumerGone, js_errors.ServiceUnavailableError),
    (ours.AlreadyBound, js_errors.Error),
    (ours.KeyNotFound, js_errors.KeyNotFoundError),
    (ours.BucketNotFound, js_errors.BucketNotFoundError),
    (ours.ObjectNotFound, js_errors.ObjectNotFoundError),
    (ours.ObjectExists, js_errors.ObjectAlreadyExists),
    (ours.ObjectLinkError, js_errors.LinkIsABucketError),
    (ours.DigestMismatch, js_errors.DigestMismatchError),
    (ours.ConnectionClosed, errors.ConnectionClosedError),
    (ours.StaleConnection, errors.StaleConnectionError),
    (ours.ConnectionLost, errors.UnexpectedEOF),
    (ours.ConnectFailed, errors.NoServersError),
    (ours.NotAuthorized, errors.AuthorizationError),
    (ours.OutboxFull, errors.OutboundBufferLimitError),
    (ours.PayloadTooLarge, errors.MaxPayloadError),
    (ours.SubscriptionClosed, errors.BadSubscriptionError),
    (ours.InvalidSubject, errors.BadSubjectError),
    (ours.InvalidCredentials, errors.InvalidUserCredentialsError),
    (ours.RemoteProtocolError, errors.ProtocolError),
)


def translated(error: BaseException) -> BaseException:
    """What nats-py raises where natsproto raises this; what is not natsproto's own stays as it is."""
    if not isinstance(error, NatsError):
        return error
    made = _translated(error)
    made.__cause__ = error
    return made


def _translated(error: NatsError) -> BaseException:
    if isinstance(error, ours.ApiError):
        return js_errors.BY_CODE.get(error.code, js_errors.APIError)(
            code=error.code, description=error.description, err_code=error.err_code
        )
    if isinstance(error, ours.WrongRevision):
        return js_errors.KeyWrongLastSequenceError(description=getattr(error.__cause__, "description", str(error)))
    if isinstance(error, ours.ServerError):
        return errors.Error(f"nats: {error.text.lower()}")
    if isinstance(error, ours.PullRefused):
        return js_errors.APIError(code=error.code, description=error.description)
    if isinstance(error, ours.InvalidHeader):
        return errors.BadHeaderError(str(error))
    if isinstance(error, (ours.TlsFailed, ours.ConnectionLost)) and isinstance(error.__cause__, OSError):
        return error.__cause__  # what programs look for: ssl.SSLError, ConnectionRefusedError
    for known, kind in _CLASSES:
        if isinstance(error, known):
            return kind()
    return errors.Error(f"nats: {error}")


def translating(verb: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A coroutine function that raises the errors of nats-py."""

    @wraps(verb)
    async def translated_verb(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await verb(*args, **kwargs)
        except NatsError as exc:
            raise translated(exc) from exc

    return translated_verb
