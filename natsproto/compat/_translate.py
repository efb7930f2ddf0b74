"""Translation of natsproto's errors to those of nats-py.

The original error is the ``__cause__`` of the translated one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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


def translate_error(error: BaseException) -> BaseException:
    """Return the error that nats-py raises in place of this one. Errors that are not natsproto's are returned
    unchanged.
    """
    if not isinstance(error, NatsError):
        return error
    made = _translate(error)
    made.__cause__ = error
    return made


def _translate(error: NatsError) -> BaseException:
    if isinstance(error, ours.BucketNotFound) and isinstance(error.__cause__, ours.NoStream):
        error = error.__cause__  # a write, after which nobody looks whether the bucket exists
    if isinstance(error, ours.ConsumerGone):
        return js_errors.ServiceUnavailableError(description=error.reason)
    if isinstance(error, ours.ApiError):
        return js_errors.BY_CODE.get(error.code, js_errors.APIError)(
            code=error.code, description=error.description, err_code=error.err_code
        )
    if isinstance(error, ours.WrongRevision):
        return js_errors.KeyWrongLastSequenceError(description=getattr(error.__cause__, "description", str(error)))
    if isinstance(error, ours.ServerError):
        return errors.Error(f"nats: {NatsError(error.text.lower())}")  # which escapes control characters
    if isinstance(error, ours.PullRefused):
        return js_errors.APIError(code=error.code, description=error.description)
    if isinstance(error, ours.InvalidHeader):
        return errors.BadHeaderError(str(error))
    if isinstance(error, ours.InvalidSubject) and error.name.startswith("key"):
        return js_errors.InvalidKeyError(str(error))
    if isinstance(error, (ours.TlsFailed, ours.ConnectionLost)) and isinstance(error.__cause__, OSError):
        return error.__cause__  # what programs look for: ssl.SSLError, ConnectionRefusedError
    for known, kind in _CLASSES:
        if isinstance(error, known):
            return kind()
    return errors.Error(f"nats: {error}")


def translate_errors(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function to raise the errors of nats-py."""

    @wraps(method)
    async def translated_method(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except NatsError as exc:
            raise translate_error(exc) from exc

    return translated_method
