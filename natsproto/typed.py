"""Core NATS with typed values instead of bytes.

Owns the pair of a type and a codec. A typed message is a Message made by the receive path like any other. It decodes
its payload when ``value`` is read, so untyped messages have no overhead and an invalid payload affects only its reader.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.inbox.handler import Handler
from natsproto._core.inbox.inbox_limits import SlowPolicy, SlowPolicyLike
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.request_many import Sentinel
from natsproto._durations import DEFAULT, Default
from natsproto._handlers import HandlerResult, add_layer, check_handler, check_result, is_async_generator
from natsproto._help.async_hints import items
from natsproto.codecs import Codec, TypedCodec
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import HeadersLike
from natsproto.service._endpoint import Request
from natsproto.service._responses import error_of
from natsproto.service._stream_request import ResponseStream

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")


class TypedMessage(Message, Generic[T]):
    """A message with a typed ``value``. ``data`` is still the payload."""

    __slots__ = ("_value",)

    _note: TypedCodec[T]

    @property
    def value(self) -> T:
        """The decoded payload; decoded once. InvalidPayload when it is not of the type."""
        try:
            return self._value
        except AttributeError:
            self._value: T = self._note.decode(self.data)
            return self._value

    @classmethod
    def _of(cls, message: Message, codec: TypedCodec[T]) -> TypedMessage[T]:
        """Return a plain message as a typed one, without copying the payload."""
        made = cls(message.subject, None, message.data, None, message._origin)
        made._reply, made._head, made._note = message._reply, message._head, codec
        return made


TypedHandler: TypeAlias = Callable[[TypedMessage[T]], HandlerResult]
"""The handler of a typed subscription: ``def`` or ``async def``, called with messages whose ``value`` is decoded."""


class Typed(Generic[T, R]):
    """Core NATS for messages with a value of type ``T`` and replies of type ``R``. Created by ``Client.typed``.

    Each method raises the errors of the client's method of the same name, and InvalidPayload, before anything is sent,
    for a value that the codec cannot encode.
    """

    def __init__(self, connection: Connection, kind: type[T], reply: type[R], codec: Codec) -> None:
        self.codec = codec
        self._connection = connection
        self._values, self._replies = TypedCodec(kind, codec), TypedCodec(reply, codec)

    def __repr__(self) -> str:
        return f"Typed({self._values.kind!r}, {self._replies.kind!r}, {self.codec!r})"

    def encode(self, value: T) -> bytes:
        """Return the payload for a value.

        Args:
            value: Any value of a type that the codec knows.
        """
        return self._values.encode(value)

    def decode(self, payload: bytes) -> T:
        """Return the value in a payload.

        Args:
            payload: The bytes, as ``message.data`` has them.
        """
        return self._values.decode(payload)

    async def publish(
        self, subject: str, value: T, *, reply: str | None = None, headers: HeadersLike | None = None
    ) -> None:
        """Publish a value; see ``Client.publish``.

        Args:
            subject: The subject to publish to, without wildcards.
            value: The value to send; the codec converts it.
            reply: The subject for responses, which receivers see as ``message.reply``; None: none.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        await self._connection.publish(subject, self._values.encode(value), reply=reply, headers=headers)

    def publish_nowait(
        self, subject: str, value: T, *, reply: str | None = None, headers: HeadersLike | None = None
    ) -> None:
        """Publish a value without waiting; see ``Client.publish_nowait``.

        Args:
            subject: The subject to publish to, without wildcards.
            value: The value to send; the codec converts it.
            reply: The subject for responses, which receivers see as ``message.reply``; None: none.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        self._connection.publish_nowait(subject, self._values.encode(value), reply=reply, headers=headers)

    async def request(
        self,
        subject: str,
        value: T,
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> TypedMessage[R]:
        """Publish a value and wait for the first reply; see ``Client.request``. ServiceError for a service's error
        response.

        Args:
            subject: The subject to publish to, without wildcards.
            value: The value to send; the codec converts it.
            timeout: Seconds to wait for the reply; None: the option ``request_timeout``.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        reply = await self._connection.request(subject, self._values.encode(value), timeout=timeout, headers=headers)
        error = error_of(reply)
        if error is not None:
            raise error
        return TypedMessage._of(reply, self._replies)

    @items
    def request_many(
        self,
        subject: str,
        value: T,
        *,
        timeout: float | timedelta | Default | None = DEFAULT,
        stall: float | timedelta | None = None,
        max_messages: int | None = None,
        sentinel: Sentinel | None = None,
        headers: HeadersLike | None = None,
    ) -> AsyncGenerator[TypedMessage[R]]:
        """Publish a value and yield every reply; see ``Client.request_many``.

        Args:
            subject: The subject to publish to, without wildcards.
            value: The value to send; the codec converts it.
            timeout: Seconds for all replies together. Left out: the option ``request_timeout``; None: until ``stall``
                or ``max_messages`` ends it, of which one is needed.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            max_messages: Replies after which it ends; None: no such limit.
            sentinel: Ends the replies: a function of a reply that returns True for the last one, which is not yielded,
                or "empty" for one without payload.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        replies = self._connection.request_many(
            subject,
            self._values.encode(value),
            timeout=timeout,
            stall=stall,
            max_messages=max_messages,
            sentinel=sentinel,
            headers=headers,
        )
        return self._typed_replies(replies)

    async def _typed_replies(self, replies: AsyncGenerator[Message]) -> AsyncGenerator[TypedMessage[R]]:
        async with aclosing(replies):
            async for reply in replies:
                yield TypedMessage._of(reply, self._replies)

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: TypedHandler[T] | None = None,
        max_messages: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
    ) -> Subscription[TypedMessage[T]]:
        """Subscribe to messages with values of the type; see ``Client.subscribe``.

        Reading ``value`` raises InvalidPayload for a payload of another type; the subscription continues.

        Args:
            subject: The subject to listen to; ``*`` stands for one token, ``>`` at the end for any number.
            queue: The queue group: each message goes to one of its subscribers. None: to all.
            cb: The handler, ``def`` or ``async def``, called with one message after the other. None: read the
                subscription yourself.
            max_messages: Messages after which the subscription ends; None: no limit.
            pending_msgs_limit: Messages that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            pending_bytes_limit: Bytes that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            slow_policy: What happens to messages beyond the limits: "drop_newest" (default), "drop_oldest", "error",
                which ends the subscription, or "pause", which stops reading from the server.
        """
        if cb is not None:
            check_handler("cb", cb, "message")
        subscription = self._connection._subscribe(
            subject,
            queue=queue,
            cb=cast("Handler | None", cb),  # it receives messages of message_type
            max_messages=max_messages,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
            slow_policy=slow_policy,
            message_type=TypedMessage,
            message_note=self._values,
        )
        return cast("Subscription[TypedMessage[T]]", subscription)

    def stream(
        self,
        subject: str,
        value: T,
        *,
        window: int | None = 1 << 20,
        heartbeat: float | timedelta = 5.0,
        headers: HeadersLike | None = None,
    ) -> ResponseStream[TypedMessage[R]]:
        """Send a value and read the parts of the response, each with a value; see ``Client.stream``.

        Args:
            subject: Where the endpoint listens, such as its name after the prefix of its group.
            value: The value to send; the codec converts it.
            window: Bytes that the responder may send ahead of the reading; None: any number, and then it does not learn
                when the reading ends.
            heartbeat: Seconds between two signs of life of each side, 0.05 to 60; three missing ones end it.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        convert = partial(TypedMessage[R]._of, codec=self._replies)
        return ResponseStream(
            self._connection, subject, self._values.encode(value), headers, window, heartbeat, convert
        )

    @overload
    def handler(  # type: ignore[overload-overlap]  # R is never an iterator there
        self, function: Callable[[T], AsyncIterator[R]]
    ) -> Callable[[Request], AsyncIterator[bytes]]: ...

    @overload
    def handler(self, function: Callable[[T], Awaitable[R]]) -> Callable[[Message], Awaitable[None]]: ...

    @overload
    def handler(self, function: Callable[[T], R]) -> Callable[[Message], Awaitable[None]]: ...

    def handler(self, function: Callable[[T], Any]) -> Callable[..., Any]:
        """Return a handler for ``subscribe(cb=...)`` and for endpoints that calls a function with each message's value.

        The function's return value becomes the response, if one is expected; the values that an async generator yields
        become the parts of an endpoint's response. An endpoint responds to a payload of another type with error 400.

        Args:
            function: Called with the value, ``def`` or ``async def``; it returns the value of the response.
        """
        if may_yield := is_async_generator(function):
            check_handler("handler", function, "value", may_yield=True)
        else:
            check_handler("handler", function, "value")
        values, replies = self._values, self._replies

        def decoded(message: Message) -> T:
            try:
                return values.decode(message.data)
            except errors.InvalidPayload as exc:
                if isinstance(message, Request):
                    raise errors.ServiceError(400, str(exc)) from exc
                raise

        async def respond(message: Message) -> None:
            result = function(decoded(message))
            if inspect.isawaitable(result):
                result = await result
            check_result(result)
            if message.has_reply:
                await message.respond(replies.encode(result))

        respond.__name__ = getattr(function, "__name__", "handle")
        handle: Callable[..., Any] = respond
        if may_yield:
            handle = partial(_encoded_parts, decoded, function, replies.encode)
            handle.__dict__["__name__"] = respond.__name__
        handle.__doc__ = function.__doc__
        if not may_yield:
            add_layer(handle, function, self.handler)
        return handle


async def _encoded_parts(
    decoded: Callable[[Message], T],
    function: Callable[[T], AsyncGenerator[R]],
    encode: Callable[[R], bytes],
    request: Request,
) -> AsyncGenerator[bytes]:
    """Encode the parts that a function yields. Errors of encoding and sending are raised where it has yielded."""
    values = function(decoded(request))
    async with aclosing(values):
        async for value in values:
            while True:
                try:
                    yield encode(value)
                    break
                except Exception as exc:
                    try:
                        value = await values.athrow(exc)
                    except StopAsyncIteration:
                        return
