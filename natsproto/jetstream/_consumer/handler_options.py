"""The options of handlers: the arguments of ``consume`` for how messages are handled, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, cast

from natsproto import errors
from natsproto._durations import positive_seconds
from natsproto._handler_threads import Executor, with_executor, with_timeout
from natsproto._handlers import HandlerResult
from natsproto._value import Value
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.pull_options import PrefetchArgs, ReadArgs
from natsproto.jetstream._values.codec import Duration, accept_seconds

FIRST_NAK_DELAY_S, MAX_NAK_DELAY_S = 0.25, 30.0
"""Seconds until a message whose handler failed is redelivered: the first delay, which doubles with every delivery, and
the longest.
"""

MAX_CONCURRENCY = 65_536
"""The most messages handled at a time; each has a task of its own from the start."""

Handler: TypeAlias = Callable[[JsMessage], HandlerResult]
"""The handler of a consumer: ``def`` or ``async def``. ``consume`` settles its message by how it ends."""
OnSuccess: TypeAlias = Literal["ack", "ack_sync", "nothing"]
"""After a handler returns: acknowledge, acknowledge and wait for the server's confirmation, or leave it to the handler.
"""
OnError: TypeAlias = Literal["nak", "term", "nothing"]
"""After a handler raises: redeliver, never deliver again, or wait for the redelivery after ``ack_wait``."""
NakDelay: TypeAlias = Duration | Callable[[JsMessage], Duration | None]
"""Seconds before the redelivery of a failed message, or a function of the message; None: by the consumer's ``backoff``,
or at once.
"""


class CallArgs(TypedDict, total=False):
    """The arguments of everything that calls a handler: how many calls run, in which order, and for how long."""

    concurrency: int
    """How many messages are handled at a time; 1 (default) keeps their order."""
    key: Callable[[JsMessage], Hashable] | None
    """Returns the key of a message: those of one key are handled one after the other. None (default): any order."""
    error_cb: Callable[[JsMessage, BaseException], object] | None
    """Called with a message and the exception of its handler, beside the log and the HandlerFailed event; None
    (default): not called.
    """
    executor: Executor
    """For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a time, or give a
    ThreadPoolExecutor. None (default): the handler is called on the event loop.
    """
    timeout: Duration | None
    """Seconds for a call of the handler, which then ends with HandlerTimeout, an error of the handler: an ``async def``
    is cancelled, a thread of ``executor`` goes on, and its message is left alone until it ends. None (default): no
    limit.
    """


class HandlerArgs(CallArgs, total=False):
    """The same with how a message is acknowledged when its handler has ended."""

    on_success: OnSuccess
    """When the handler returns: "ack" (default), "ack_sync", which waits for the server's confirmation, or "nothing".
    """
    on_error: OnError
    """When the handler raises: "nak" (default), "term", which ends the deliveries of the message, or "nothing"."""
    nak_delay: NakDelay | None
    """Seconds before a failed message is delivered again, or a function of the message that returns them; None
    (default): the consumer's ``backoff``, or else 0.25 s, doubled with each delivery up to 30 s.
    """
    keep_alive: bool | Duration
    """Report to the server that work goes on, so that ``ack_wait`` does not pass while the handler runs: True, or the
    seconds between two such notes. False by default.
    """


H = TypeVar("H", CallArgs, HandlerArgs)


class ConsumeArgs(HandlerArgs, ReadArgs, total=False):
    """The arguments of ``consume`` of a pull consumer."""


class OrderedArgs(CallArgs, PrefetchArgs, total=False):
    """The arguments of ``consume`` of an ordered consumer, which acknowledges nothing."""


def split(options: Mapping[str, Any], kind: type[H]) -> tuple[dict[str, Any], H]:
    """Divide arguments into those that are not of this kind, with all that are unknown, and those that are."""
    names = kind.__annotations__
    rest = {name: value for name, value in options.items() if name not in names}
    return rest, cast("H", {name: options[name] for name in options.keys() - rest.keys()})


class HandlerOptions(Value):
    """How messages are handled: the concurrency, the order, and the acknowledgement.

    ``backoff`` of the consumer, if known: the server ignores it for a nak.
    """

    concurrency: int = 1
    key: Callable[[JsMessage], Hashable] | None = None
    on_success: OnSuccess = "ack"
    on_error: OnError = "nak"
    nak_delay: NakDelay | None = None
    keep_alive: bool | Duration = False
    error_cb: Callable[[JsMessage, BaseException], object] | None = None
    backoff: Sequence[float] = ()
    executor: Executor = None
    timeout: Duration | None = None

    def _check(self) -> None:
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise errors.ConfigError("concurrency", self.concurrency, f"must be from 1 to {MAX_CONCURRENCY:,} messages")
        if self.on_success not in ("ack", "ack_sync", "nothing"):
            raise errors.ConfigError("on_success", self.on_success, 'must be "ack", "ack_sync" or "nothing"')
        if self.on_error not in ("nak", "term", "nothing"):
            raise errors.ConfigError("on_error", self.on_error, 'must be "nak", "term" or "nothing"')
        if self.nak_delay is not None and not callable(self.nak_delay):
            accept_seconds("nak_delay", self.nak_delay)
        if not isinstance(self.keep_alive, bool):
            positive_seconds("keep_alive", self.keep_alive)

    def wrap(self, handler: Handler) -> Handler:
        """Return the checked handler, which runs in threads if there is an ``executor``, for at most ``timeout``
        seconds. TypeError, ConfigError.
        """
        wrapped = with_executor("handler", handler, self.executor, self.concurrency)
        return with_timeout(wrapped, None if self.timeout is None else positive_seconds("timeout", self.timeout))

    def nak_delay_for(self, message: JsMessage) -> float:
        """Return the seconds until a failed message is redelivered. Raises the errors of a callable ``nak_delay``."""
        delay = self.nak_delay(message) if callable(self.nak_delay) else self.nak_delay
        if delay is not None:
            return cast("float", accept_seconds("nak_delay", delay))
        before = message.metadata.num_delivered - 1
        if self.backoff:
            return self.backoff[min(before, len(self.backoff) - 1)]
        return min(FIRST_NAK_DELAY_S * 2.0 ** min(before, 10), MAX_NAK_DELAY_S)
