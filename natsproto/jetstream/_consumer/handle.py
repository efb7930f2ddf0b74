"""The consumer handle: its info, the calls that change or delete it, and the methods that read its messages.

Holds the names of the stream and the consumer, and the last info. ``pull`` pulls messages; ``messages`` and
``consume`` read and handle them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.engine.engine import State
from natsproto._durations import time_limit
from natsproto._handler_threads import Executor
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.consume import ConsumeContext, HandlerTasks
from natsproto.jetstream._consumer.consume_batches import BatchHandler, BatchTasks
from natsproto.jetstream._consumer.delivery.batch_window import check_window
from natsproto.jetstream._consumer.delivery.delivery_terms import DeliveryTerms
from natsproto.jetstream._consumer.handler_options import (
    ConsumeArgs,
    Handler,
    HandlerArgs,
    HandlerOptions,
    NakDelay,
    split,
)
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._consumer.messages import Fetch, Messages
from natsproto.jetstream._consumer.pull.pull import PullSource
from natsproto.jetstream._consumer.pull.pull_inbox import PullInbox
from natsproto.jetstream._consumer.pull_options import (
    PriorityArgs,
    PullMode,
    ReadArgs,
    cached_fetch_options,
    check_names,
    fetch_options,
    pull_options,
)
from natsproto.jetstream._values.asset_names import check_consumer_name, check_priority_group
from natsproto.jetstream._values.codec import UINT64, Duration, server_time
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo, ConsumerPause, ConsumerReset


class Consumer:
    """A handle of a consumer, with the methods that manage it. Created by the methods of its stream.

    Every call of the API takes ``timeout`` in seconds (default: that of the JetStream context) and raises
    ConsumerNotFound, StreamNotFound, and the errors of every call of the JetStream API: ApiError, JetStreamNotEnabled,
    RequestTimeout, PermissionDenied, ConnectionLost, ConnectionClosed. A cancelled call may still take effect.
    """

    def __init__(self, api: Api, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self._api = api
        self._info = info
        self.stream_name: str = stream
        """The stream it belongs to."""
        self.name: str = check_consumer_name(name)
        """The name, which is the durable name if it has one."""

    @property
    def cached_info(self) -> ConsumerInfo:
        """The last info. LocalProtocolError for a handle that was bound without a request."""
        if self._info is None:
            raise errors.LocalProtocolError(
                f"{self._description} was bound without asking the server: call info() first"
            )
        return self._info

    async def info(self, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Get the configuration and state of the consumer.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        self._info = await self._api.call_for(
            ConsumerInfo, self._endpoint("INFO"), operation=f"info of {self._description}", timeout=timeout
        )
        return self._info

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Delete the consumer with its acknowledgement state.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._api.call_expecting_success(
            self._endpoint("DELETE"), operation=f"delete {self._description}", timeout=timeout
        )

    async def pause(self, until: datetime, *, timeout: Duration | None = None) -> ConsumerPause:
        """Pause delivery until an aware datetime. ConfigError for a naive one.

        Needs nats-server 2.11, else UnsupportedByServer.

        Args:
            until: Deliver nothing before this time.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        moment = server_time("until", until)
        operation = f"pause {self._description}"
        await self._api.require_api_level(1, "2.11", operation, timeout)
        body = {"pause_until": moment.rfc3339()}
        return await self._api.call_for(
            ConsumerPause, self._endpoint("PAUSE"), body, operation=operation, timeout=timeout
        )

    async def resume(self, *, timeout: Duration | None = None) -> ConsumerPause:
        """End a pause; does nothing when there is none. Needs nats-server 2.11, else UnsupportedByServer.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        operation = f"resume {self._description}"
        await self._api.require_api_level(1, "2.11", operation, timeout)
        return await self._api.call_for(ConsumerPause, self._endpoint("PAUSE"), operation=operation, timeout=timeout)

    async def unpin(self, priority_group: str, *, timeout: Duration | None = None) -> None:
        """Unpin a priority group from its client (ADR-42).

        Needs nats-server 2.11, else UnsupportedByServer.

        Args:
            priority_group: The priority group whose client is unpinned.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body = {"group": check_priority_group(priority_group)}
        operation = f"unpin {self._description}"
        await self._api.require_api_level(1, "2.11", operation, timeout)
        await self._api.call(self._endpoint("UNPIN"), body, operation=operation, timeout=timeout)

    async def reset(self, seq: int | None = None, *, timeout: Duration | None = None) -> ConsumerReset:
        """Restart delivery at a stream ``seq``, or after the last acknowledged message (ADR-60).

        Only consumers that deliver all, or from a start sequence or time on. Needs nats-server 2.14, else
        UnsupportedByServer.

        Args:
            seq: The sequence to deliver from; None: the first message after the acknowledged ones.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body = {} if seq is None else {"seq": check_stream_sequence("seq", seq)}
        operation = f"reset {self._description}"
        await self._api.require_api_level(4, "2.14", operation, timeout)
        reset = await self._api.call_for(
            ConsumerReset, self._endpoint("RESET"), body, operation=operation, timeout=timeout
        )
        self._info = reset
        return reset

    # ---------------------------------------------------------------- internals

    def _known_config(self) -> ConsumerConfig | None:
        return None if self._info is None else self._info.config

    def _endpoint(self, verb: str) -> str:
        return f"CONSUMER.{verb}.{self.stream_name}.{self.name}"

    @property
    def _description(self) -> str:
        return f"consumer {self.name!r} of stream {self.stream_name!r}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(stream_name={self.stream_name!r}, name={self.name!r})"


class PullConsumer(Consumer):
    """A pull consumer of a stream. Created by the stream's ``create_consumer`` and ``consumer``.

    ``fetch`` and ``next`` pull a limited number of messages, ``messages`` reads continuously, ``consume`` calls a
    handler. They only send pulls; if there is no responder, they look up the consumer once a second, if the account has
    the permission. Reading ends with ConsumerGone when the consumer was deleted or is a push consumer, PullRefused when
    its pulls are invalid, PermissionDenied when the account may not pull.

    All of them take the options of priority groups (ADR-42): ``priority_group``, for an overflow group ``min_pending``
    and ``min_ack_pending``, for a prioritized one ``priority`` (0 is served first, 9 last). The handle keeps the pin of
    a pinned client.
    """

    def __init__(self, api: Api, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        super().__init__(api, stream, name, info)
        self._inbox: PullInbox | None = None

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: Duration | None = None,
        **options: Unpack[PriorityArgs],
    ) -> Fetch:
        """Pull up to ``max_messages`` (default 500) and ``max_bytes``: ``await`` it for a list, or iterate it.

        The list is returned when it is full, or after ``timeout`` seconds (None: no limit) with the received messages,
        possibly none.
        With ``no_wait`` (or a timeout of 0) it has the messages that are available now; ``fetch_available`` waits for
        at least one. ``max_bytes`` counts subject, ack subject, headers and payload; without ``max_messages`` it is the
        only limit. ``heartbeat`` (seconds, 0 for none, default 2 at most) is the interval of the server's heartbeats;
        after two missed ones the pull is sent again.

        ConfigError at once for invalid arguments. It also waits during outages and elections, and raises only the
        errors that end reading (see the class), if no message was received before. Cancelling ends the pull on the
        server and loses nothing: the next reader of this handle gets the received and late messages first; without a
        reader they return to the server.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait until the list is full; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit. PullRefused when the next
                message alone has more.
            no_wait: Return what is there now. The same as ``timeout=0``.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
            **options: For a consumer with priority groups, by keyword: those of PriorityArgs.
        """
        return self._fetch(
            PullMode.NO_WAIT if no_wait else PullMode.BOUNDED, max_messages, timeout, max_bytes, heartbeat, options
        )

    def fetch_available(
        self,
        max_messages: int | None = None,
        *,
        timeout: Duration | None = 5.0,
        max_bytes: int | None = None,
        heartbeat: Duration | None = None,
        **options: Unpack[PriorityArgs],
    ) -> Fetch:
        """Pull up to ``max_messages`` (default 500) as soon as there is at least one.

        Returns the messages that are available now. If there are none, it waits for one, at most ``timeout`` seconds;
        the list is empty when none arrives. Otherwise as ``fetch``.

        Args:
            max_messages: The most messages to get; None: 500, or no limit with ``max_bytes``.
            timeout: Seconds to wait for the first one; None: no limit, 0: only those that are there now.
            max_bytes: The most bytes to get, with subjects and headers; None: no limit. PullRefused when the next
                message alone has more.
            heartbeat: Seconds between two heartbeats of the server, 0: none; two missing ones make the client pull
                again. None: 2 at most.
            **options: For a consumer with priority groups, by keyword: those of PriorityArgs.
        """
        return self._fetch(PullMode.AVAILABLE, max_messages, timeout, max_bytes, heartbeat, options)

    def _fetch(
        self,
        mode: PullMode,
        max_messages: int | None,
        timeout: Duration | None,
        max_bytes: int | None,
        heartbeat: Duration | None,
        priority: PriorityArgs,
        acking: JsMessage | None = None,
    ) -> Fetch:
        try:
            options = cached_fetch_options(
                mode, max_messages, timeout, self._api.timeout, max_bytes, heartbeat, **priority
            )
        except TypeError:  # one is unknown, cannot be hashed, or is of a wrong type
            check_names(priority, PriorityArgs)
            options = fetch_options(mode, max_messages, timeout, self._api.timeout, max_bytes, heartbeat, **priority)
        inbox = self._inbox or self._make_inbox()
        source = PullSource(inbox, options, acking=acking)
        return Fetch(source, source.put_back)

    async def next(
        self,
        timeout: Duration | None = 5.0,
        *,
        acking: JsMessage | None = None,
        **options: Unpack[PriorityArgs],
    ) -> JsMessage:
        """Pull one message; RequestTimeout when none came within ``timeout`` seconds (0: when there is none now;
        None: no limit), ConnectionClosed when the client is closed or drained meanwhile.

        ``acking`` is a message of this consumer to acknowledge with the same command (AlreadyAcked when it was
        acknowledged).

        Args:
            timeout: Seconds to wait for a message; None: no limit, 0: only one that is there now.
            acking: A message of this consumer to acknowledge with the same command; None: none.
            **options: For a consumer with priority groups, by keyword: those of PriorityArgs.
        """
        if acking is not None and acking.is_acked:
            acking.ack_nowait()  # raises
        messages = await self._fetch(PullMode.BOUNDED, 1, timeout, None, None, options, acking)
        if not messages:
            raise no_message_error(self._api.connection, self._description, timeout)
        return messages[0]

    def messages(self, **options: Unpack[ReadArgs]) -> Messages:
        """Return an endless sequence of prefetched messages. Use it with ``async with``, then iterate it.

        Up to ``prefetch`` messages (default 500) and ``prefetch_bytes`` are buffered or requested; ``prefetch_bytes``
        may be the only limit. It pulls again when no more than ``refill_at`` messages or ``refill_at_bytes`` of them
        are left (default: half). Each pull waits ``expires`` seconds. ``stop_after`` is the number of messages after
        which it ends. With ``stop_when_empty`` it ends when the server has no more messages for now, as a batch job
        does: those that fail, or that others hold, come with the next run. ``heartbeat`` as in ``fetch``. With
        ``prefetch=1`` a message is pulled when the previous one was consumed.

        ConfigError at once for invalid arguments. Problems that do not end it are emitted as ConsumerNotice events.

        Args:
            **options: What waits ahead of the reader and when it ends, by keyword: those of ReadArgs.
        """
        inbox = self._inbox or self._make_inbox()
        return Messages(PullSource(inbox, pull_options(**options)), self._description, inbox.return_unread)

    def consume(self, handler: Handler, **options: Unpack[ConsumeArgs]) -> ConsumeContext:
        """Call ``handler`` (def or async def) with every message. Use it with ``async with``, or ``await`` its
        ``run()``.

        ``concurrency`` messages are handled at a time; 1 keeps their order. With ``key`` (a function of the message)
        messages of one key are handled in order. A handled message is acknowledged with ``on_success`` ("ack",
        "ack_sync" or "nothing"), one whose handler raised with ``on_error`` ("nak", "term" or "nothing"), unless the
        handler has acknowledged it. A nak requests redelivery after ``nak_delay`` seconds, which may be a function of
        the message; by default (None) it is the delay in the consumer's ``backoff`` for the number of deliveries, and
        without a backoff 0.25 s, doubling up to 30 s. An error of the handler is logged, emitted as a HandlerFailed
        event and passed to ``error_cb`` (message, error). ``keep_alive`` sends in_progress while the handler runs (see
        JsMessage.keep_alive; seconds or True). ``executor`` is for a ``def`` handler that blocks: True calls it in
        daemon threads, as many as ``concurrency``, or give a ThreadPoolExecutor (see ``middleware.in_threads``). A call
        that takes longer than ``timeout`` ends with HandlerTimeout, which is an error of the handler.
        ``stop_after`` is the number of messages after which it ends. The other arguments are those of ``messages``.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            **options: How messages are handled and what waits ahead of the handler, by keyword: those of ConsumeArgs.
        """
        reading, handling = split(options, HandlerArgs)
        messages = self.messages(**reading)
        handler_options = HandlerOptions(backoff=() if self._info is None else self._info.config.backoff, **handling)
        tasks = HandlerTasks(self._api.connection, self._description, messages, handler, handler_options)
        return ConsumeContext(self._description, messages, tasks)

    def consume_batches(
        self,
        handler: BatchHandler,
        *,
        max_messages: int = 500,
        max_wait: Duration = 0.5,
        concurrency: int = 1,
        nak_delay: NakDelay | None = None,
        executor: Executor = None,
        timeout: Duration | None = None,
        stop_after: int = 0,
        stop_when_empty: bool = False,
    ) -> ConsumeContext:
        """Call ``handler`` (def or async def) with a list of up to ``max_messages`` messages, when it is full or the
        oldest one has waited for ``max_wait`` seconds. Use it as ``consume``.

        All of them are acknowledged when the handler returns. If it raises BatchFailed, those at its ``indexes`` are
        redelivered and the others acknowledged; with any other exception all are redelivered, after ``nak_delay`` as in
        ``consume``. ``concurrency`` batches are handled at a time. ``executor`` is for a ``def`` handler that blocks.

        ConfigError at once for invalid arguments, also for a ``max_wait`` of 0.1 of ``ack_wait`` or more, after which
        messages wait too long.

        Args:
            handler: Called with each list of messages, ``def`` or ``async def``; BatchFailed says which of them failed.
            max_messages: Messages that fill a list.
            max_wait: Seconds after which a list that is not full is handled, counted from its oldest message; less than
                a tenth of ``ack_wait``.
            concurrency: How many lists may be handled at a time.
            nak_delay: Seconds before a failed message is delivered again, or a function of the message that returns
                them; None: the consumer's ``backoff``, or else 0.25 s, doubled with each delivery up to 30 s.
            executor: For a ``def`` handler that blocks: True calls it in daemon threads, as many as are handled at a
                time, or give a ThreadPoolExecutor. None: the handler is called on the event loop.
            timeout: Seconds for a call of the handler, which then ends with HandlerTimeout, an error of the handler: an
                ``async def`` is cancelled, a thread of ``executor`` goes on, and its message is left alone until it
                ends. None: no limit.
            stop_after: End after this many messages; 0: no limit.
            stop_when_empty: End when the server has no more messages for now; False waits for more.
        """
        wait = check_window(max_messages, max_wait, DeliveryTerms.of(self._info).known_shortest)
        options = HandlerOptions(
            concurrency=concurrency,
            nak_delay=nak_delay,
            executor=executor,
            timeout=timeout,
            backoff=() if self._info is None else self._info.config.backoff,
        )
        messages = self.messages(stop_after=stop_after, stop_when_empty=stop_when_empty)
        tasks = BatchTasks(
            self._api.connection,
            self._description,
            messages,
            handler,
            options,
            max_messages=max_messages,
            max_wait=wait,
        )
        return ConsumeContext(self._description, messages, tasks)

    def _make_inbox(self) -> PullInbox:
        self._inbox = PullInbox(self._api, self.stream_name, self.name, self)
        return self._inbox


def create_endpoint(stream: str, config: ConsumerConfig) -> str:
    """Return the API endpoint that creates a consumer; a single filter is its last part, so that permissions can match
    it.
    """
    name = config.durable_name or config.name
    endpoint = f"CONSUMER.CREATE.{stream}.{name}" if name else f"CONSUMER.CREATE.{stream}"
    return f"{endpoint}.{config.filter_subject}" if name and config.filter_subject else endpoint


def no_message_error(connection: Connection, what: str, timeout: Duration | None) -> errors.NatsError:
    """Return the error of ``next`` when no message arrived."""
    operation = f"next message of {what}"
    if connection.state in (State.DRAINING, State.CLOSED):
        return connection._outbox.closed_error(operation)
    return errors.RequestTimeout(operation, time_limit("timeout", timeout), missing="message")


def check_stream_sequence(what: str, sequence: int) -> int:
    """Return a valid stream sequence; raise ConfigError or TypeError."""
    if not isinstance(sequence, int) or isinstance(sequence, bool):
        raise TypeError(f"{what} must be an int, not {type(sequence).__name__}")
    if not 1 <= sequence <= UINT64:
        raise errors.ConfigError(what, sequence, "must be from 1 to 2**64 - 1: sequences begin with 1")
    return sequence
