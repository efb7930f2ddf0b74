"""Values instead of bytes for streams: one type and one codec, used with any publisher and any consumer.

Owns the pairing of a type with a codec and the handling of a payload that cannot be decoded. It uses publishers and
consumers through their callables and iterators, so it works with all kinds of them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto._handlers import HandlerResult, add_layer, check_handler, finish
from natsproto._help.async_hints import items
from natsproto.codecs import Codec, TypedCodec
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._values.info import PubAck
from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

log = logging.getLogger("natsproto")

OnInvalid: TypeAlias = Callable[[JsMessage, errors.InvalidPayload], Awaitable[object]]
"""Called with a message whose payload cannot be decoded; ``Retry.failed`` is such a function."""

_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0


class Received(NamedTuple, Generic[T]):
    """A value and its message, which must be acknowledged."""

    value: T
    """The decoded payload."""
    message: JsMessage


class TypedJetStream(Generic[T]):
    """Streams whose messages hold a ``T``. Created by ``JetStream.typed``; create it once and keep it."""

    def __init__(
        self,
        connection: Connection,
        publish: Callable[..., Coroutine[Any, Any, PubAck]],
        kind: type[T],
        codec: Codec,
    ) -> None:
        self.codec = codec
        self._connection, self._publish, self._values = connection, publish, TypedCodec(kind, codec)

    def __repr__(self) -> str:
        return f"TypedJetStream({self._values.kind!r}, {self.codec!r})"

    def encode(self, value: T) -> bytes:
        """Return the payload for a value. InvalidPayload when the codec cannot encode it.

        Args:
            value: Any value of a type that the codec knows.
        """
        return self._values.encode(value)

    def decode(self, payload: bytes) -> T:
        """Return the value in a payload. InvalidPayload when it is not of the type.

        Args:
            payload: The bytes, as ``message.data`` has them.
        """
        return self._values.decode(payload)

    # ---------------------------------------------------------------- publishing

    async def publish(
        self, subject: str, value: T, *, headers: HeadersLike | None = None, **args: Unpack[MessageArgs]
    ) -> PubAck:
        """Publish a value and wait until a stream has it: ``JetStream.publish``.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            value: The value to send; the codec converts it.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        return await self._publish(subject, self.encode(value), headers=headers, **args)

    def sender(self, publish: Callable[Concatenate[str, bytes, P], R]) -> Callable[Concatenate[str, T, P], R]:
        """Wrap a method that publishes a payload so that it takes a value: ``send = orders.sender(publisher.publish)``.

        It may be the method of a publisher, a fast publisher or a batch; the other arguments are unchanged.
        InvalidPayload for a value that the codec cannot encode, before anything is sent.

        Args:
            publish: The method to call with the payload, such as ``publisher.publish``.
        """

        def send(subject: str, value: T, /, *args: P.args, **given: P.kwargs) -> R:
            return publish(subject, self.encode(value), *args, **given)

        return send

    # ---------------------------------------------------------------- reading

    @items
    async def read(
        self, messages: AsyncIterable[JsMessage], *, on_invalid: OnInvalid | None = None
    ) -> AsyncGenerator[Received[T]]:
        """Yield (value, message) for each message of ``messages()`` or ``fetch()`` of any consumer.

        A payload that cannot be decoded is logged, reported as a HandlerFailed event and skipped. Its message is passed
        to ``on_invalid``, for example ``Retry.failed``, which moves it to a dead-letter subject. Without ``on_invalid``
        the message is redelivered, after 1 s at first, doubling up to 60 s.

        Args:
            messages: Messages of a consumer or subscription, read with ``async for``.
            on_invalid: Called with a message whose payload cannot be decoded, and with the error; None: the error is
                raised.
        """
        async for message in messages:
            received = await self._received(message, on_invalid)
            if received is not None:
                yield received

    async def read_all(
        self, messages: Iterable[JsMessage], *, on_invalid: OnInvalid | None = None
    ) -> list[Received[T]]:
        """Do as ``read`` for messages already received: ``await orders.read_all(await consumer.fetch(10))``.

        Args:
            messages: A list of messages, such as that of ``fetch``.
            on_invalid: Called with a message whose payload cannot be decoded, and with the error; None: the error is
                raised.
        """
        found = [await self._received(message, on_invalid) for message in messages]
        return [one for one in found if one is not None]

    def handler(
        self, function: Callable[[T, JsMessage], HandlerResult]
    ) -> Callable[[JsMessage], Coroutine[Any, Any, None]]:
        """Return a handler for ``consume`` that calls ``function`` (def or async def) with the value and the message.

        A payload that cannot be decoded raises InvalidPayload, as if the function had: ``Retry`` makes the message a
        dead letter at once.

        Args:
            function: Called with the value and its message, ``def`` or ``async def``.
        """

        check_handler("handler", function, "value and message", 2)

        async def handle(message: JsMessage) -> None:
            await finish(function(self.decode(message.data), message))

        handle.__name__ = getattr(function, "__name__", handle.__name__)
        handle.__doc__ = function.__doc__
        add_layer(handle, function, self.handler)
        return handle

    async def _received(self, message: JsMessage, on_invalid: OnInvalid | None) -> Received[T] | None:
        try:
            return Received(self.decode(message.data), message)
        except errors.InvalidPayload as exc:
            log.error("a message of %r cannot be read: %s", message.subject, exc)
            self._connection._event_bus.emit(
                HandlerFailed(handler=f"payload of a message of {message.subject!r}", error=exc)
            )
            if on_invalid is not None:
                await on_invalid(message, exc)
            else:
                await self._nak_with_delay(message)
        return None

    async def _nak_with_delay(self, message: JsMessage) -> None:
        before = message.metadata.num_delivered - 1
        try:
            await message.nak(min(_FIRST_DELAY_S * 2.0 ** min(before, 10), _MAX_DELAY_S))
        except errors.NatsError as exc:  # the server delivers it again after ack_wait
            log.warning("nak of a message of %r failed: %s", message.subject, exc)
