"""Consumers and their messages for threads without an event loop.

Owns the messages that were taken over and not read yet. Every verb is that of ``natsproto.jetstream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from natsproto.jetstream import _message as message
from natsproto.jetstream._consumer import handle, messages, ordered, push
from natsproto.sync._facade import Block, Facade, Watcher, blocking, making
from natsproto.sync._messaging import Received

if TYPE_CHECKING:
    from natsproto.errors import NatsError
    from natsproto.jetstream._codec import Duration
    from natsproto.jetstream._consumer.messages import Fetch
    from natsproto.jetstream._info import ConsumerInfo
    from natsproto.jetstream._message import Metadata

V = TypeVar("V")
P = ParamSpec("P")
C = TypeVar("C", bound=handle.Consumer, covariant=True)


class JsMessage(Received[message.JsMessage]):
    """A message that a consumer delivered; answer for it once."""

    ack: Final = blocking(message.JsMessage.ack)
    ack_sync: Final = blocking(message.JsMessage.ack_sync)
    nak: Final = blocking(message.JsMessage.nak)
    term: Final = blocking(message.JsMessage.term)
    in_progress: Final = blocking(message.JsMessage.in_progress)

    @property
    def metadata(self) -> Metadata:
        """Where the message stands in its stream."""
        return self._inner.metadata

    @property
    def is_acked(self) -> bool:
        """Whether this object was answered for."""
        return self._inner.is_acked

    @contextmanager
    def keep_alive(self, interval: Duration | None = None) -> Iterator[None]:
        """Says ``in_progress`` every ``interval`` seconds while the block runs, so that long work is not delivered to
        somebody else. Ends with the block or the answer. The default is a third of the consumer's ack_wait; see the
        async client.
        """
        manager = self._inner.keep_alive(interval)
        self._portal.enter(manager)
        try:
            yield
        finally:
            if not self._portal.stopped:
                self._portal.call(manager.__aexit__, None, None, None)


class Messages(Watcher[messages.Messages, message.JsMessage]):
    """An endless, pre-buffered stream of messages: enter it, then iterate it, or ask for the ``next``.

    Threads may share one. It survives restarts, reconnects and changes of leader. Leaving stops: what was not read goes
    back to the server, or to the consumer handle, whose next reader gets it first. A loop over one that was not entered
    enters it, and leaves it when it ends.
    """

    drain: Final = blocking(messages.Messages.drain)

    @property
    def pending(self) -> int:
        """Messages that are here and not read yet."""
        return self._inner.pending + len(self._taken)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come; what is pending can be read all the same."""
        return self._inner.closed

    @property
    def error(self) -> NatsError | None:
        """What ended it, if that was not its owner."""
        return self._inner.error

    def next(self, timeout: float | timedelta | None = None) -> JsMessage:
        """The next message; waits at most ``timeout`` seconds (None: for ever).

        RequestTimeout when none came in time; SubscriptionClosed when none will come any more, or what ended it.
        """
        return JsMessage(self._portal, self._next(timeout))

    def stop(self) -> None:
        """Ends it now; what was not read goes back. Never raises but ConnectionClosed."""
        self._portal.call(self._stop)

    def __iter__(self) -> Iterator[JsMessage]:
        enters = not self._entered
        if enters:
            self.__enter__()
        try:
            for one in self._each():
                yield JsMessage(self._portal, one)
        finally:
            if enters:
                self._portal.part(self._stop, wait=True)

    async def _one(self, wait: float | None) -> message.JsMessage:
        return await self._inner.next(wait)

    def _rest(self) -> list[message.JsMessage]:
        return self._inner.take_all()

    async def _stop(self) -> None:
        left = list(self._taken)
        self._taken.clear()
        self._inner.put_back(left)
        await self._inner.stop()


class fetching(Generic[V, P]):
    """A verb that fetches, waited for. What an interrupt prevents from being returned is for the next reader."""

    def __init__(self, verb: Callable[Concatenate[V, P], Fetch]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, facade: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, facade: Facade[V], owner: type[object]) -> Callable[P, list[JsMessage]]: ...

    def __get__(self, facade: Facade[V] | None, owner: type[object]) -> Self | Callable[P, list[JsMessage]]:
        if facade is None:
            return self
        return partial(self._call, facade)

    def _call(self, facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> list[JsMessage]:
        portal, inner = facade._reach()

        async def fetched() -> list[message.JsMessage]:  # the verb is to be called on the loop
            return await self._verb(inner, *args, **kwargs)

        def lost(messages: list[message.JsMessage]) -> None:
            self._verb(inner, *args, **kwargs).put_back(messages)

        return [JsMessage(portal, one) for one in portal.obtain(fetched, lost)]


class Consumer(Facade[C], Generic[C]):
    """What all consumers have."""

    info: Final = blocking(handle.Consumer.info)
    delete: Final = blocking(handle.Consumer.delete)
    pause: Final = blocking(handle.Consumer.pause)
    resume: Final = blocking(handle.Consumer.resume)
    unpin: Final = blocking(handle.Consumer.unpin)
    reset: Final = blocking(handle.Consumer.reset)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The stream it belongs to."""
        return self._inner.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info that was heard last. LocalProtocolError for a handle that was bound without asking."""
        return self._inner.cached_info


class PullConsumer(Consumer[handle.PullConsumer]):
    """A consumer of a stream: ``fetch``, ``next``, ``messages``."""

    fetch: Final = fetching(handle.PullConsumer.fetch)
    fetch_available: Final = fetching(handle.PullConsumer.fetch_available)
    messages: Final = making(handle.PullConsumer.messages, Messages)

    def next(
        self,
        timeout: Duration = 5.0,
        *,
        group: str = "",
        min_pending: int = 0,
        min_ack_pending: int = 0,
        priority: int = 0,
        acking: JsMessage | None = None,
    ) -> JsMessage:
        """Pulls one message; RequestTimeout when none came within ``timeout`` seconds (0: when there is none now).

        With ``acking``, a message of this consumer, that one is acknowledged in the same trip; see the async client.
        An interrupt loses nothing: what had just come is what the next reader of this handle gets first.
        """

        async def pulled() -> message.JsMessage:
            return await self._inner.next(
                timeout,
                group=group,
                min_pending=min_pending,
                min_ack_pending=min_ack_pending,
                priority=priority,
                acking=None if acking is None else acking._inner,
            )

        def lost(one: message.JsMessage) -> None:
            self._inner.fetch(1, group=group).put_back([one])

        return JsMessage(self._portal, self._portal.obtain(pulled, lost))


class PushConsumer(Consumer[push.PushConsumer]):
    """A consumer whose messages the server sends without being asked: ``messages``."""

    messages: Final = making(push.PushConsumer.messages, Messages)

    @property
    def deliver_subject(self) -> str:
        """Where the server sends messages to."""
        return self._inner.deliver_subject

    @property
    def deliver_group(self) -> str:
        """The queue group that shares them, if any."""
        return self._inner.deliver_group


class OrderedConsumer(Block[ordered.OrderedConsumer]):
    """A stream read in order, each message once: ``fetch``, ``next``, ``messages``; one at a time.

    They go on where the last of them ended. Leaving ``with`` deletes what is kept of it on the server.
    """

    created: Final = blocking(ordered.OrderedConsumer.created)
    info: Final = blocking(ordered.OrderedConsumer.info)
    fetch: Final = fetching(ordered.OrderedConsumer.fetch)
    fetch_available: Final = fetching(ordered.OrderedConsumer.fetch_available)
    messages: Final = making(ordered.OrderedConsumer.messages, Messages)
    close: Final = blocking(ordered.OrderedConsumer.close)

    @property
    def name(self) -> str:
        """The name of the consumer in use, which changes whenever another one takes its place."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The stream it reads."""
        return self._inner.stream_name

    @property
    def last_sequence(self) -> int:
        """The stream sequence of the last message that came, 0 before the first."""
        return self._inner.last_sequence

    def next(self, timeout: Duration = 5.0) -> JsMessage:
        """The next message; RequestTimeout when none came within ``timeout`` seconds, ConnectionClosed when the client
        is closed meanwhile. An interrupt loses nothing: what had just come is what is read next.
        """

        def lost(one: message.JsMessage) -> None:
            self._inner.fetch(1).put_back([one])

        return JsMessage(self._portal, self._portal.obtain(partial(self._inner.next, timeout), lost))

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said of the consumer when it was made last. LocalProtocolError before the first one."""
        return self._inner.cached_info
