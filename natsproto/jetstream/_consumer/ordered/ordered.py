"""The handle of an ordered consumer, which replaces the server's consumer when that fails (ADR-17)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Unpack

from natsproto import errors
from natsproto._help.async_hints import items
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.consume import ConsumeContext, HandlerTasks
from natsproto.jetstream._consumer.handle import no_message_error
from natsproto.jetstream._consumer.handler_options import CallArgs, Handler, HandlerOptions, OrderedArgs, split
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import Fetch, Messages
from natsproto.jetstream._consumer.ordered.ordered_reader import OrderedReader
from natsproto.jetstream._consumer.ordered.ordered_state import OrderedState
from natsproto.jetstream._consumer.pull_options import (
    PrefetchArgs,
    PullMode,
    PullOptions,
    check_names,
    fetch_options,
    pull_options,
)
from natsproto.jetstream._values.codec import NEVER, Duration
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.timestamp import Timestamp

_NO_LIMITS: Final = pull_options()


class OrderedConsumer:
    """Reads a stream in order, each message once. Created by ``stream.ordered_consumer``; sends nothing until it is
    read.

    ``fetch``, ``next``, ``messages``, ``until_drained`` and ``consume`` continue where the last of them ended; only one
    may be active.
    Messages need no acknowledgement. There is no gap, duplicate or disorder when the consumer on the server is deleted,
    the server restarts, the stream is purged or its leader changes; a missing message was removed from the stream.
    Reading ends with StreamNotFound (also when the stream was recreated), with PermissionDenied, and with the server's
    error for a configuration.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        *,
        push: bool = False,
        stream_created: Timestamp = NEVER,
        name_prefix: str = "",
    ) -> None:
        config.check()
        self.stream_name: str = stream
        """The stream that it reads."""
        self._state = OrderedState(
            api, stream, config, push=push, stream_created=stream_created, name_prefix=name_prefix
        )

    # ---------------------------------------------------------------- properties

    @property
    def name(self) -> str:
        """The name of the consumer in use, which changes when it is replaced."""
        return self._state.cursor.name

    @property
    def last_seq(self) -> int:
        """The stream sequence of the last message received, 0 before the first."""
        return self._state.cursor.stream_seq

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info of the consumer in use, from its creation. LocalProtocolError before the first consumer."""
        if self._state.info is None:
            raise self._not_created_error()
        return self._state.info

    async def wait_created(self) -> ConsumerInfo:
        """Wait for the first consumer; its ``num_pending`` is the number of messages to read at that time.

        Raises the error that ends reading; SubscriptionClosed when its reader stops before, LocalProtocolError when it
        has no reader. Cancelling ends the wait.
        """
        if self._state.has_no_reader:
            raise errors.LocalProtocolError(
                f"{self._description} has no reader that could create a consumer: read it first"
            )
        return await self._state.wait_created()

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Get the info of the consumer in use. LocalProtocolError before the first consumer; ConsumerNotFound when it
        is gone.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if self._state.info is None:
            raise self._not_created_error()
        return await self._state.api.call_for(
            ConsumerInfo,
            f"CONSUMER.INFO.{self.stream_name}.{self.name}",
            operation=f"info of {self._description}",
            timeout=timeout,
        )

    # ---------------------------------------------------------------- reading

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """Fetch up to ``max_messages`` of the next messages; see PullConsumer.fetch. ConfigError with ``push``.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait until the list is full; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit. PullRefused when the next
                message alone has more.
            no_wait: Return what is there now. The same as ``timeout=0``.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
        """
        mode = PullMode.NO_WAIT if no_wait else PullMode.BOUNDED
        return self._fetch(mode, max_messages, timeout, max_bytes, heartbeat)

    def fetch_available(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        heartbeat: Duration | None = None,
    ) -> Fetch:
        """Fetch the messages that are available, at least one; see PullConsumer.fetch_available.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait for the first one; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit. PullRefused when the next
                message alone has more.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
        """
        return self._fetch(PullMode.AVAILABLE, max_messages, timeout, max_bytes, heartbeat)

    def _fetch(
        self,
        mode: PullMode,
        max_messages: int | None,
        timeout: Duration | None,
        max_bytes: int | None,
        heartbeat: Duration | None,
    ) -> Fetch:
        if self._state.push:
            raise errors.ConfigError(
                "push", True, "nothing can be fetched from a push consumer: use messages() or consume()"
            )
        options = fetch_options(mode, max_messages, timeout, self._state.api.timeout, max_bytes, heartbeat)
        return Fetch(OrderedReader(self._state, options), self._state.put_back)

    async def next(self, timeout: Duration | None = 5.0) -> JsMessage:
        """Return the next message; RequestTimeout when none came within ``timeout`` seconds (None: no limit),
        ConnectionClosed when the client is closed or drained meanwhile, SubscriptionClosed when this is stopped.

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that is there now.
        """
        messages = await self.fetch(1, timeout=timeout)
        if not messages:
            raise no_message_error(self._state.connection, self._description, timeout)
        return messages[0]

    def messages(self, **options: Unpack[PrefetchArgs]) -> Messages:
        """Return all messages from here on. Use it with ``async with``, then iterate it. The arguments are those of
        PullConsumer.messages.

        Without a limit or threshold, 500 messages are prefetched at first, and for a fast reader as many as it handles
        within 0.1 s (up to 4,096), but not more than about 16 MiB. With ``push`` the server's flow control is the limit
        instead of ``prefetch`` and ``prefetch_bytes``.

        Args:
            **options: What waits ahead of the reader and when it ends, by keyword: those of PrefetchArgs.
        """
        check_names(options, PrefetchArgs)
        return self._messages(pull_options(**options))

    def _messages(self, options: PullOptions = _NO_LIMITS) -> Messages:
        """``messages`` with checked options. For watches."""
        return Messages(OrderedReader(self._state, options), self._state.description, self._state.put_back)

    @items
    async def until_drained(self) -> AsyncGenerator[JsMessage]:
        """Yield the messages that wait in the stream, and end when the server has no further one.

        Messages that are stored meanwhile are among them. Reading continues after the last one that was yielded; leave
        it early within ``contextlib.aclosing``. Raises what ``fetch`` raises; ConfigError with ``push``.

        The consumer's info confirms the end: a user without permission for ``CONSUMER.INFO`` gets PermissionDenied
        after the last message, never an end that is not certain.
        """
        while True:
            number, batch = 0, self.fetch(no_wait=True)
            try:
                async for message in batch:
                    number += 1
                    yield message
            finally:
                batch.stop()  # what was not yielded is read next
            if not number and not await self._pending():
                return

    async def _pending(self) -> int:
        """Ask the server, as an empty fetch may be one whose end was lost; 1 while the consumer is replaced."""
        try:
            return (await self.info()).num_pending
        except errors.ConsumerNotFound:
            return 1

    def consume(self, handler: Handler, **options: Unpack[OrderedArgs]) -> ConsumeContext:
        """Call ``handler`` with every message from here on; see Consumer.consume. Nothing is acknowledged.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            **options: How messages are handled and what waits ahead of the handler, by keyword: those of OrderedArgs.
        """
        reading, handling = split(options, CallArgs)
        messages = self.messages(**reading)
        handler_options = HandlerOptions(on_success="nothing", on_error="nothing", **handling)
        tasks = HandlerTasks(self._state.connection, self._description, messages, handler, handler_options)
        return ConsumeContext(self._description, messages, tasks)

    async def stop(self) -> None:
        """End its reader and delete the server's consumer, if there is one.

        ``messages`` and ``consume`` end after the messages that have arrived. ``fetch`` returns those; ``fetch`` and
        ``next`` raise SubscriptionClosed when there are none. Reading again creates another consumer, which continues
        after the last message.
        """
        self._state.connection._check_loop()
        if (reader := self._state.reader) is not None:
            await reader.finish()
        self._state.drop_kept_consumer()

    async def __aenter__(self) -> OrderedConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"OrderedConsumer(stream_name={self.stream_name!r}, last_seq={self.last_seq})"

    def _not_created_error(self) -> errors.LocalProtocolError:
        return errors.LocalProtocolError(f"{self._description} has created no consumer yet: read it first")

    @property
    def _description(self) -> str:
        return self._state.description
