"""The base of all errors, and the errors of arguments and options.

Constructors take facts, which become fields, and format the message from them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def escaped(text: str) -> str:
    """Return a text without characters that a terminal or a log would obey, such as line ends and ESC."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Transience(IntEnum):
    """Which events end the cause of an error."""

    NEVER = 0
    """No: the same call fails again."""
    ELECTION = 1
    """The election of a leader; nothing was done."""
    OUTAGE = 2
    """The outage of a server or of the connection."""


class NatsError(Exception):
    """Base of all errors that natsproto raises on purpose. Pickling keeps the fields.

    ``str()`` escapes control characters, which a server or a peer may have sent; the fields are as received.
    """

    _transience: Transience = Transience.NEVER
    """The call may succeed after this; see ``is_transient``."""
    _means_absent: ClassVar[bool] = False
    """Nothing answered: at the first contact that is an error of the caller, later it is an outage."""

    def __str__(self) -> str:
        return escaped(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


def is_transient(error: BaseException, *, existed: bool = True) -> bool:
    """Return True if the same call may succeed later. ``existed``: what it calls has been there before.

    The classes of errors decide; no caller has a list of its own.
    """
    return isinstance(error, NatsError) and error._transience > 0 and (existed or not error._means_absent)


class Unavailable(NatsError):
    """Base of errors of the connection, and of streams without a leader."""


class ConfigError(NatsError, ValueError):
    """An argument or option is invalid; nothing was sent.

    ``name`` is its name, ``value`` is the value given, ``rule`` the rule it breaks.
    """

    name: str
    value: object
    rule: str

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.name, self.value, self.rule = name, value, rule
        super().__init__(f"{name} {shown(value)}: {rule}")


class InvalidSubject(ConfigError):
    """A subject, reply subject, queue group or other name breaks its rule (ADR-6); nothing was sent."""


class InvalidHeader(ConfigError):
    """A header name or value is invalid (ADR-4); nothing was sent."""


class InvalidCredentials(ConfigError):
    """Credentials cannot be read or used. The value is never part of the message."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, HIDDEN, rule)
        if " file " in name:  # the name of a file is no secret
            self.args: tuple[str, ...] = (f"{name}: {rule}",)


class NotFound(NatsError):
    """Base of the errors for a stream, consumer, message, bucket, key, object or group that does not exist."""


class AlreadyExists(NatsError):
    """Base of the errors for a stream, consumer, bucket, key or object that exists; nothing was changed."""


class RequestTimeout(NatsError, TimeoutError):
    """No response came within ``timeout`` seconds; the request may or may not have been handled, unless ``sent`` is
    false.
    """

    _transience = Transience.OUTAGE

    operation: str
    """The call that waited, in words, with its subject or names."""
    timeout: float
    sent: bool
    """False: the request never left the client, and never will. True: it was sent, or that is unknown."""
    disconnected: float
    """For how many of the seconds the client had no connection."""

    def __init__(
        self,
        operation: str,
        timeout: float,
        *,
        advice: str = "",
        sent: bool = True,
        disconnected: float = 0.0,
        missing: str = "answer",
    ) -> None:
        self.operation, self.timeout = operation, timeout
        self.sent, self.disconnected = sent, disconnected
        what = f"{f'no {missing}' if sent else 'not sent'} within {round(timeout, 3):g} s"
        if outage := round(disconnected, 2):
            share = f"for {outage:g} s of which" if outage < 0.99 * timeout else "as"
            what += f", {share} the client was not connected to a server"
            advice = "check the server and the network, or raise timeout= to wait out an outage"
        super().__init__(f"{operation}: {what}{': ' if advice else ''}{advice}")


def _unpickle(kind: type[NatsError], args: tuple[object, ...], fields: dict[str, object]) -> NatsError:
    """Rebuild a pickled error without calling its constructor, which takes facts instead of ``args``."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


HIDDEN = "(hidden)"
"""Replaces the value in a ConfigError when the value may be a secret."""


def shown(value: object) -> str:
    """The repr of a value, cut to 80 characters."""
    if value is HIDDEN:
        return HIDDEN
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


MAX_SHOWN_BYTES = 60
"""Bytes of a payload that the repr of its message shows."""


def shown_payload(data: bytes) -> str:
    """Return a payload for a repr: the beginning, and the size if it is longer."""
    if len(data) <= MAX_SHOWN_BYTES:
        return f"data={bytes(data)!r}"
    return f"data={bytes(data[:MAX_SHOWN_BYTES])!r}... of {len(data)} bytes"


def without_frames(error: E) -> E:
    """Return an error without the frames that it came through. A cause keeps its own."""
    if error.__cause__ is None:
        error.__context__ = None
    return error.with_traceback(None)


def hide_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that gets secrets: the frames of its errors do not contain them.

    Tools for error reports, such as Sentry, send the local variables of every frame.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        error: Exception
        try:
            return function(*args, **kwargs)
        except (NatsError, TypeError, ValueError) as exc:
            error = without_frames(exc)
        del args, kwargs
        try:
            raise error
        finally:
            del error  # it refers to this frame

    return call


def hide_locals(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function that reads secrets, as ``hide_arguments`` does a function."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except NatsError as exc:
            error = without_frames(exc)
        try:
            raise error
        finally:
            del error

    return call
