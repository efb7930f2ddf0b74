"""Values instead of bytes around streams: one type, one codec, and whatever publishes and reads.

Owns the pairing of a type with a codec and what becomes of a payload that does not fit. Publishers and consumers are
used as they are, through the callables and iterators that they offer, so all kinds of them can be.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, Unpack

from natsproto._async_hints import items
from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto.codecs import Codec
from natsproto.errors import ConfigError, InvalidPayload, NatsError
from natsproto.jetstream._info import PubAck
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

log = logging.getLogger("natsproto")

OnInvalid: TypeAlias = Callable[[JsMessage, InvalidPayload], Awaitable[object]]
"""Called with a message whose payload does not fit; ``Retry.failed`` is such a function."""

_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0


class Received(NamedTuple, Generic[T]):
    """A value, and the message that it came in, which is to be answered for."""

    value: T
    message: JsMessage


class TypedJetStream(Generic[T]):
    """Streams whose messages hold a ``T``. Made by ``JetStream.typed``; make it once and keep it."""

    def __init__(
        self,
        connection: Connection,
        publish: Callable[..., Coroutine[Any, Any, PubAck]],
        kind: type[T],
        codec: Codec,
    ) -> None:
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise ConfigError("codec", codec, f"has no method {name}")
        self.codec = codec
        self._connection, self._publish, self._kind = connection, publish, kind

    def __repr__(self) -> str:
        return f"TypedJetStream({self._kind!r}, {self.codec!r})"

    def encode(self, value: T) -> bytes:
        """The payload for a value. InvalidPayload when the codec cannot."""
        return self.codec.encode(value)

    def decode(self, payload: bytes) -> T:
        """The value in a payload. InvalidPayload when it is not of the type."""
        return self.codec.decode(payload, self._kind)

    # ---------------------------------------------------------------- publishing

    async def publish(
        self, subject: str, value: T, *, headers: HeadersLike | None = None, **args: Unpack[MessageArgs]
    ) -> PubAck:
        """Publishes a value and waits until a stream has it: ``JetStream.publish``."""
        return await self._publish(subject, self.encode(value), headers=headers, **args)

    def sender(self, publish: Callable[Concatenate[str, bytes, P], R]) -> Callable[Concatenate[str, T, P], R]:
        """A ``publish`` that takes a value where the one it is made of takes a payload, be it that of a publisher, a
        fast publisher or a batch: ``send = orders.sender(publisher.publish)``. The rest is as there; InvalidPayload for
        a value that the codec cannot encode, before anything is sent.
        """

        def send(subject: str, value: T, /, *args: P.args, **given: P.kwargs) -> R:
            return publish(subject, self.encode(value), *args, **given)

        return send

    # ---------------------------------------------------------------- reading

    @items
    async def read(
        self, messages: AsyncIterable[JsMessage], *, on_invalid: OnInvalid | None = None
    ) -> AsyncGenerator[Received[T]]:
        """Yields (value, message) for each message: of ``messages()`` and ``fetch()`` of any consumer.

        A payload that does not fit ends nothing: it is logged, told by a HandlerFailed event and skipped, its message
        given to ``on_invalid``, as ``Retry.failed``, which buries it. Without that it is delivered again, after
        1 s that double up to 60 s.
        """
        async for message in messages:
            received = await self._received(message, on_invalid)
            if received is not None:
                yield received

    async def read_all(
        self, messages: Iterable[JsMessage], *, on_invalid: OnInvalid | None = None
    ) -> list[Received[T]]:
        """The same for messages that are here: ``await orders.read_all(await consumer.fetch(10))``."""
        found = [await self._received(message, on_invalid) for message in messages]
        return [one for one in found if one is not None]

    def handler(
        self, function: Callable[[T, JsMessage], Awaitable[object] | object]
    ) -> Callable[[JsMessage], Coroutine[Any, Any, None]]:
        """Makes a function (def or async def) of value and message a handler, for ``consume`` of consumers and groups.

        A payload that does not fit raises InvalidPayload as if the function had: ``Retry`` buries such a message at
        once.
        """

        async def handle(message: JsMessage) -> None:
            result = function(self.decode(message.data), message)
            if inspect.isawaitable(result):
                await result

        handle.__name__ = getattr(function, "__name__", handle.__name__)
        handle.__doc__ = function.__doc__
        return handle

    async def _received(self, message: JsMessage, on_invalid: OnInvalid | None) -> Received[T] | None:
        try:
            return Received(self.decode(message.data), message)
        except InvalidPayload as exc:
            log.error("a message of %r cannot be read: %s", message.subject, exc)
            self._connection._emit(HandlerFailed(where=f"payload of a message of {message.subject!r}", error=exc))
            if on_invalid is not None:
                await on_invalid(message, exc)
            else:
                await self._put_off(message)
        return None

    async def _put_off(self, message: JsMessage) -> None:
        before = message.metadata.num_delivered - 1
        try:
            await message.nak(min(_FIRST_DELAY_S * 2.0 ** min(before, 10), _MAX_DELAY_S))
        except NatsError as exc:  # the server delivers it again after ack_wait
            log.warning("nak of a message of %r failed: %s", message.subject, exc)
