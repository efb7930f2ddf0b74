"""The public methods of core NATS.

Validates arguments, documents each method, and passes the work to the engine. It has no state of its own except
shortcuts into the engine for hot paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from time import perf_counter  # uvloop's clock knows only milliseconds
from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._core.cut_off_watch import CutOffWatch
from natsproto._core.deadline import Deadline
from natsproto._core.engine.engine import Engine, State
from natsproto._core.events import Event
from natsproto._core.inbox.handler import Handler
from natsproto._core.inbox.inbox_limits import SlowPolicy, SlowPolicyLike, check_policy
from natsproto._core.inbox.subscription import Subscription, check_max_messages
from natsproto._core.instrumentation import Instrumentation
from natsproto._core.replies.pending_replies import Resending
from natsproto._core.replies.reply_guard import ReplyGuard, reply_subject
from natsproto._core.replies.reply_handler import ReplyHandler
from natsproto._core.seam import Seam
from natsproto._core.socket.wire import Runtime
from natsproto._core.stats import Stats, read_stats
from natsproto._durations import DEFAULT, NO_LIMIT_S, Default, positive_seconds
from natsproto._handlers import check_handler
from natsproto._help.async_hints import items
from natsproto._help.introspection import import_late_types
from natsproto._options.options import Options
from natsproto.errors._base import hide_arguments
from natsproto.protocol.frames import Message, Payload, ServerInfo, as_bytes
from natsproto.protocol.headers import HeadersLike, block_of

if TYPE_CHECKING:
    from natsproto._core.request_many import Sentinel
    from natsproto._handler_threads import Executor


class Connection:
    """A client of a NATS server or cluster, created by ``natsproto.connect``.

    Use it from the event loop where it was created: elsewhere (another loop or thread, a forked process) its methods
    raise LocalProtocolError, and after the end of that loop, ConnectionClosed. Every coroutine may be cancelled at any
    time; the client keeps working.
    """

    def __init__(self, options: Options, runtime: Runtime) -> None:
        self._options, self._runtime = options, runtime
        self._instrumentation: Instrumentation | None = None
        self._engine = engine = Engine(options, runtime, self)
        self._outbox = self._engine.outbox  # an attribute because every acknowledgement reads it
        self._registry, self._control_lines = engine.registry, engine.outbox.lines
        self._check_loop = engine.check_loop
        self._reply_guard = ReplyGuard(engine.event_bus, allow_apis=options.allow_api_replies)
        self._outages = engine.outages
        self._round_trips = engine.round_trips
        self._event_bus, self._readers, self._cleanups = engine.event_bus, engine.readers, engine.cleanups
        cut_off = CutOffWatch(engine, self, lambda: Connection(options._for_probe(), runtime))
        engine.event_bus.on_error, engine.outages.cut_off = cut_off.on_error, cut_off

    def _options_again(self) -> Options:
        """Return the options for a client that takes the place of this one: once TLS, TLS from then on."""
        return self._options._requiring_tls() if self._engine.supervisor.requires_tls else self._options

    async def _start(self) -> None:
        """Connect, for the function ``connect``: raises its errors."""
        await self._engine.start()

    # ---------------------------------------------------------------- state

    @property
    def state(self) -> State:
        """One of connecting, open, reconnecting, draining and closed; a State is a str."""
        return self._engine.state

    @property
    def is_connected(self) -> bool:
        """True if the client is connected now."""
        session = self._engine.session
        return session is not None and not session.ended.done()

    @property
    def connected_url(self) -> str:
        """The URL of the connected server without user and password; empty when not connected."""
        session = self._engine.session
        return "" if session is None else session.address.url

    @property
    def server_info(self) -> ServerInfo:
        """The last INFO of the server; all fields are empty before the first connection."""
        return self._engine.info

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server accepts in one message."""
        return self._engine.info.max_payload

    @property
    def client_id(self) -> int:
        """The number of this connection in the server's log and monitoring; another one after a reconnect."""
        return self._engine.info.client_id

    @property
    def servers(self) -> tuple[str, ...]:
        """All known servers as ``host:port``."""
        return tuple(str(address) for address in self._engine.supervisor.pool.servers)

    @property
    def discovered_servers(self) -> tuple[str, ...]:
        """The servers announced by the cluster, as ``host:port``."""
        return tuple(str(address) for address in self._engine.supervisor.pool.discovered_servers)

    @property
    def stats(self) -> Stats:
        """Messages, bytes and reconnects since the client was created; a snapshot."""
        return read_stats(self._engine)

    def new_inbox(self) -> str:
        """Return a unique subject for replies."""
        return f"{self._options.inbox_prefix}.{self._runtime.new_id()}"

    # ---------------------------------------------------------------- publishing

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publish a message: hand it to the outbox, which sends it at once or at the end of this turn of the event
        loop.

        Waits only while the connection is congested. ``payload`` is bytes (a bytearray or memoryview is copied). While
        disconnected, messages wait for the next connection, up to ``outbox_limit`` bytes; then OutboxFull.
        InvalidSubject, InvalidHeader, PayloadTooLarge, TypeError for bad arguments and ConnectionClosed are raised
        before a byte is written. Returning does not mean that the server has the message; ``flush`` confirms that.
        Cancelling while it waits publishes nothing.

        Args:
            subject: The subject to publish to, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            reply: The subject for responses, which receivers see as ``message.reply``; None: none.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        outbox = self._outbox
        if self._instrumentation is not None:
            with self._instrumentation.sending("send", subject, payload, headers) as sending:
                await outbox.yield_if_needed()
                outbox.put_message(subject, payload, reply, sending.headers)
            return
        if outbox.must_wait:
            await outbox.wait_writable()
        outbox.put_message(subject, payload, reply, headers)

    def publish_nowait(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publish a message without waiting: OutboxFull when the limit is reached, otherwise as ``publish``.

        Args:
            subject: The subject to publish to, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            reply: The subject for responses, which receivers see as ``message.reply``; None: none.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        if self._instrumentation is not None:
            with self._instrumentation.sending("send", subject, payload, headers) as sending:
                self._outbox.put_message(subject, payload, reply, sending.headers)
        else:
            self._outbox.put_message(subject, payload, reply, headers)

    async def _send_reply(self, reply: str, payload: Payload, headers: HeadersLike | None) -> None:
        """Publish to a subject that is used once, for ``Message.respond``."""
        if reply[:1] == "$" and self._reply_guard.is_refused(reply):
            return
        if self._outbox.must_wait:
            await self._outbox.wait_writable()
        payload = as_bytes(payload)
        headers = headers if self._instrumentation is None else self._instrumentation.responding(headers)
        block = None if headers is None else block_of(headers)
        lines = self._control_lines
        try:
            self._outbox.put(lines.message_line(reply_subject(reply), None, block, len(payload)), payload)
        except errors.InvalidSubject as exc:  # the choice of the sender, not of the caller
            self._reply_guard.refuse(reply, exc.rule)

    def _add_reply_handler(self, handler: ReplyHandler) -> Callable[[], None]:
        """Subscribe a handler for many replies, each to a message of its own; return a function that unsubscribes it.

        ConnectionClosed when the client is closed.
        """
        self._registry.add_reply_handler(handler)
        return lambda: self._registry.remove_reply_handler(handler)

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Publish a message and wait for the first reply.

        ``timeout`` in seconds (default: the option ``request_timeout``, 5 s). NoResponders at once when the subject has
        no subscribers; RequestTimeout; PermissionDenied when the server rejects the subject; ConnectionLost when the
        connection breaks meanwhile (unless ``fail_requests_on_disconnect`` is off); ConnectionClosed; and the errors of
        ``publish``. After a timeout or a lost connection the request may have been handled, unless there was no
        connection all the time: then RequestTimeout has ``sent=False``, and the request is not sent later. Cancelling
        drops a late reply, and a request that was not sent.

        Args:
            subject: The subject to publish to, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            timeout: Seconds to wait for the reply; None: the option ``request_timeout``.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        wait = self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout)
        if self._instrumentation is None:
            return await self._request_resending(subject, payload, timeout=wait, headers=headers)
        with self._instrumentation.sending("request", subject, payload, headers) as sending:
            return await self._request_resending(subject, payload, timeout=wait, headers=sending.headers)

    def _request_resending(
        self,
        subject: str,
        payload: Payload,
        *,
        timeout: float,
        headers: HeadersLike | None,
        resending: Resending | None = None,
    ) -> Awaitable[Message]:
        """``request``, sent again as ``resending`` says (None: never) until any copy gets a reply. ``timeout`` in
        checked seconds. The caller reports it. Await the result at once.
        """
        encoded = self._control_lines.encode_subject(subject)
        if self._outbox.must_wait:
            return self._in_turn(subject, encoded, payload, Deadline(timeout), headers, resending)
        return self._send_request(subject, encoded, payload, timeout, headers, resending)

    async def _further_reply(self, first: Message, timeout: float) -> Message | None:
        """Wait up to ``timeout`` seconds for another reply to the request that got ``first``; else return None."""
        return await self._registry.request_mux().further_reply(first, timeout)

    def _request_encoded(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: Payload = b"",
        *,
        timeout: float,
        headers: HeadersLike | None = None,
        resending: Resending | None = None,
    ) -> Awaitable[Message]:
        """``request`` to a checked subject, in which ``*`` and a final ``>`` are literal: subjects of the JetStream API
        have filters. ``timeout`` in checked seconds.

        Await the result at once: the request was sent unless the connection is congested. Other bad arguments raise at
        the call.
        """
        if self._outbox.must_wait:
            return self._in_turn(subject, encoded_subject, payload, Deadline(timeout), headers, resending)
        return self._send_request(subject, encoded_subject, payload, timeout, headers, resending)

    async def _in_turn(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: Payload,
        deadline: Deadline,
        headers: HeadersLike | None,
        resending: Resending | None,
    ) -> Message:
        """Send a request when the connection takes it, and return the reply."""
        await self._outbox.wait_writable(deadline, f"request to {subject!r}")
        return await self._send_request(subject, encoded_subject, payload, deadline.left, headers, resending)

    def _send_request(
        self,
        subject: str,
        encoded_subject: bytes,
        payload: Payload,
        timeout: float,
        headers: HeadersLike | None,
        resending: Resending | None = None,
    ) -> asyncio.Future[Message]:
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        block = None if headers is None else block_of(headers)
        # Checked here already: a message that is too large must not subscribe the inbox.
        size = len(payload) if block is None else len(payload) + len(block)
        if size > self._control_lines.max_payload:
            self._control_lines.check_size(size)
        mux = self._registry.mux
        if mux is None:
            mux = self._registry.request_mux()
        return mux.send_request(subject, encoded_subject, payload, block, timeout, resending)

    @items
    def request_many(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | Default | None = DEFAULT,
        stall: float | timedelta | None = None,
        max_messages: int | None = None,
        sentinel: Sentinel | None = None,
        headers: HeadersLike | None = None,
    ) -> AsyncGenerator[Message]:
        """Publish a message and yield every reply until the first of these (ADR-47):

        * ``timeout`` seconds have passed since the request (default: the option ``request_timeout``; None: no limit).
        * ``stall`` seconds have passed without another reply after the first, or without a timeout after the request.
        * ``max_messages`` replies have come.
        * ``sentinel`` has returned True for a reply ("empty": a reply without payload has come).
        * A status of the server has come instead of a reply.

        Replies that came within ``timeout`` are yielded even to a slow reader, whose own time does not count for
        ``stall``. The reply that meets ``sentinel`` is not yielded; a status is. Getting no reply is not an error.

        The request is sent when the first reply is awaited. NoResponders at once when the subject has no subscribers;
        PermissionDenied when the server rejects the subject; ConnectionLost after the received replies when the
        connection breaks (unless ``fail_requests_on_disconnect`` is off); RequestTimeout when the request could not be
        sent; SlowConsumer after the received replies when more arrive than the pending limits hold; ConnectionClosed;
        and the errors of ``publish``; bad arguments raise at the call. Cancelling, or leaving the loop, ends receiving:
        at once under ``contextlib.aclosing``, else in the next turn of the event loop.

        Args:
            subject: The subject to publish to, without wildcards.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            timeout: Seconds for all replies together. Left out: the option ``request_timeout``; None: until ``stall``
                or ``max_messages`` ends it, of which one is needed.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            max_messages: Replies after which it ends; None: no such limit.
            sentinel: Ends the replies: a function of a reply that returns True for the last one, which is not yielded,
                or "empty" for one without payload.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        wait = self._options.request_timeout if timeout is DEFAULT else timeout
        if wait is not None:
            wait = positive_seconds("timeout", wait)
        elif stall is None and max_messages is None and sentinel is None:
            raise errors.ConfigError(
                "timeout", None, "needs stall, max_messages or sentinel, which then end the replies"
            )
        pause = None if stall is None else positive_seconds("stall", stall)
        check_max_messages(max_messages)
        if sentinel is not None and sentinel != "empty" and not callable(sentinel):
            raise errors.ConfigError("sentinel", sentinel, 'must be "empty" or a callable with one message')
        payload = as_bytes(payload)
        encoded_subject = self._control_lines.encode_subject(subject)
        block = None if headers is None else block_of(headers)

        def open_inbox() -> Subscription:
            return self._subscribe(
                self.new_inbox(), max_messages=max_messages, slow_policy=SlowPolicy.ERROR, expects_replies=True
            )

        def send(inbox: str) -> None:
            self._outbox.put(
                self._control_lines.message_line(encoded_subject, inbox.encode(), block, len(payload)), payload
            )

        from natsproto._core.request_many import RequestMany  # not everybody needs it; importing natsproto is fast

        request = RequestMany(self._engine, subject, wait, pause, max_messages, sentinel)
        return request.replies(open_inbox, send)

    # ---------------------------------------------------------------- subscribing

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Handler | None = None,
        executor: Executor = None,
        timeout: float | timedelta | None = None,
        max_messages: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
    ) -> Subscription:
        """Subscribe to a subject (``*`` and ``>`` are wildcards); use with ``await`` or ``async with``.

        ``queue`` is the queue group that shares the messages. ``cb`` (def or async def) is called with every message,
        one after the other; its errors are logged and reported as HandlerFailed events. Without it, read the
        subscription. ``executor`` is for a ``def`` callback that blocks: True calls it in a daemon thread, or give a
        ThreadPoolExecutor. ``max_messages`` ends it after that many messages. The pending limits (messages, bytes; 0
        for none; default: the options, 65,536 and 64 MiB) bound the unread messages; ``slow_policy`` is the reaction at
        the limits: drop_newest, drop_oldest, error (it ends) or pause (stop reading from the server, which may close
        it).

        InvalidSubject, ConfigError, TypeError and ConnectionClosed are raised at once. While disconnected, the
        subscription is sent with the next connection.

        Args:
            subject: The subject to listen to; ``*`` stands for one token, ``>`` at the end for any number.
            queue: The queue group: each message goes to one of its subscribers. None: to all.
            cb: The handler, ``def`` or ``async def``, called with one message after the other. None: read the
                subscription yourself.
            executor: For a ``def`` callback that blocks: True calls it in a daemon thread, or give a
                ThreadPoolExecutor. None: the callback is called on the event loop.
            timeout: Seconds for a call of ``cb``, which then ends with HandlerTimeout: an ``async def`` is cancelled, a
                thread of ``executor`` goes on. None: no limit.
            max_messages: Messages after which the subscription ends; None: no limit.
            pending_msgs_limit: Messages that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            pending_bytes_limit: Bytes that may wait for the reader, 0: any number; None: the option of the same name.
                Beyond it ``slow_policy`` applies.
            slow_policy: What happens to messages beyond the limits: "drop_newest" (default), "drop_oldest", "error",
                which ends the subscription, or "pause", which stops reading from the server.
        """
        wait = None if timeout is None else positive_seconds("timeout", timeout)
        if executor or wait is not None:
            from natsproto._handler_threads import with_executor, with_timeout  # with Python's threads, 5 ms

            cb = with_timeout(with_executor("cb", cb, executor), wait)
        elif cb is not None:
            check_handler("cb", cb, "message")
        return self._subscribe(
            subject,
            queue=queue,
            cb=cb,
            max_messages=max_messages,
            pending_msgs_limit=pending_msgs_limit,
            pending_bytes_limit=pending_bytes_limit,
            slow_policy=slow_policy,
        )

    def _subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Handler | None = None,
        max_messages: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
        message_type: type[Message] = Message,
        message_note: object = None,
        expects_replies: bool = False,
    ) -> Subscription:
        """Subscribe with a subclass of Message, whose objects get the note. ``expects_replies``: for one call, which
        ends the subscription.
        """
        options = self._options
        subscription: Subscription = Subscription(
            self._registry,
            subject,
            queue,
            cb,
            msgs_limit=_limit("pending_msgs_limit", pending_msgs_limit, options.pending_msgs_limit),
            bytes_limit=_limit("pending_bytes_limit", pending_bytes_limit, options.pending_bytes_limit),
            policy=slow_policy if isinstance(slow_policy, SlowPolicy) else check_policy(slow_policy),
            instrumentation=None if self._instrumentation is None else self._instrumentation.of_subscription(subject),
        )
        if max_messages is not None:
            check_max_messages(max_messages)
        self._registry.subscribe(subscription, message_type, message_note)
        if expects_replies:
            self._registry.reading_hold.inboxes.add(subscription)
        if max_messages is not None:
            self._registry.unsubscribe(subscription, max_messages)
        return subscription

    # ---------------------------------------------------------------- the server

    async def flush(self, timeout: float | timedelta | None = None) -> None:
        """Wait until the server has handled everything published and subscribed so far.

        ``timeout`` in seconds (default: the option ``request_timeout``). Waits for a reconnect if needed.
        RequestTimeout; ConnectionLost when the connection breaks before the server's answer: messages may or may not
        have been handled. Cancelling changes nothing.

        Args:
            timeout: Seconds to wait for the server's confirmation; None: the option ``request_timeout``.
        """
        wait = self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout)
        await self._engine.flush(wait)

    async def rtt(self, timeout: float | timedelta | None = None) -> float:
        """Return the seconds of a round trip to the server; raises the errors of ``flush``.

        Args:
            timeout: Seconds to wait for the server's PONG; None: the option ``request_timeout``.
        """
        deadline = Deadline(self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout))
        await self._engine.flush(deadline.seconds)
        started = perf_counter()
        await self._engine.flush(deadline.left)
        return perf_counter() - started

    async def reconnect(self) -> None:
        """Drop the current connection and connect to the next server at once.

        Waits up to 2 seconds for the server to confirm earlier messages. Does not wait for the new connection: use
        ``events`` or ``flush``. While disconnected, skips the wait for the next attempt. ConnectionClosed;
        LocalProtocolError with ``allow_reconnect=False``. Cancelling skips the confirmation.
        """
        self._engine.check_open("reconnect")
        if not self._options.allow_reconnect:
            raise errors.LocalProtocolError(
                "allow_reconnect is False, so reconnect() would close the client: use close()"
            )
        await self._engine.reconnect()

    @hide_arguments
    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Replace all known servers, discovered ones included. The connection in use stays (ADR-40).

        A tls or wss URL requires TLS of all servers from now on; no later list lifts that. ConfigError for an invalid
        server URL, and for ``ws://`` when TLS is required; nothing is changed then.
        ConnectionClosed when the client is closed.

        Args:
            servers: One URL, a comma-separated list or a sequence, for the next attempts to connect.
        """
        if self._engine.state is State.CLOSED:
            raise self._outbox.closed_error("set_servers")
        self._engine.supervisor.set_servers(self._options.replace(servers=servers))

    @items
    def events(self) -> AsyncGenerator[Event]:
        """Yield the events of the client from now on, up to Closed. Cancelling ends this reader only."""
        self._engine.check_loop()
        return self._engine.event_bus.open_stream().read()

    def add_listener(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``callback`` for every event, synchronously, before the code that caused it continues.

        Returns a function that stops it. For code that must react at once; otherwise read ``events()``. Errors of the
        callback are logged. TypeError for an object that is not callable.

        Args:
            callback: Called with every Event on the event loop; it must not block.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable with one event, not {type(callback).__name__}")
        return self._engine.event_bus.listen(callback)

    # ---------------------------------------------------------------- ending

    async def drain(self, timeout: float | timedelta | Default | None = DEFAULT) -> None:
        """End subscriptions, consumers and watches, handle the received messages, send the waiting ones, then close.

        ``timeout`` in seconds (default: the option ``drain_timeout``, 25 s; None: no limit); then DrainTimeout lists
        the unfinished work. It waits for callbacks, handlers of ``consume``, running ``async for`` loops and an
        asynchronous ``on_event``; it does not wait for the messages of a ``fetch``. At the timeout, and when cancelled,
        handlers of ``consume`` are cancelled and their messages returned to the server. The client is closed in any
        case.

        It does not wait for the handler or loop that calls it, nor for others that drain. There, use ``timeout`` and
        not ``asyncio.wait_for``, which makes another task of it on Python 3.11.

        Args:
            timeout: Seconds for handlers and buffered messages. Left out: the option ``drain_timeout``; None: no limit.
        """
        wait = self._options.drain_timeout if timeout is DEFAULT else timeout
        await self._engine.drain(NO_LIMIT_S if wait is None else positive_seconds("timeout", wait))

    async def close(self) -> None:
        """Close the client: pending requests end with ConnectionClosed, readers end, callbacks stop.

        Locks that are being released, and objects and ordered consumers that are being deleted, get up to 2 seconds
        before that; meanwhile no other message is received or published: ConnectionClosed. Messages already published
        get up to 2 seconds to leave, and an asynchronous ``on_event`` up to 2 seconds for the last events. Never raises
        because the server is gone.
        """
        await self._engine.close()

    async def wait_closed(self) -> Exception | None:
        """Wait for the end of the client; return None when the application closed it, else the final error."""
        self._engine.check_loop()
        return await asyncio.shield(self._engine.closed)

    def __repr__(self) -> str:
        where = self.connected_url
        return f"<{type(self).__name__} {self.state}{' to ' + where if where else ''}>"


if TYPE_CHECKING:

    def _seam_of(connection: Connection) -> Seam:
        return connection


def _limit(name: str, value: int | None, default: int) -> int:
    if value is not None and (type(value) is not int or value < 0):
        raise errors.ConfigError(name, value, "must be a whole number, 0 for no limit")
    return default if value is None else value


import_late_types(__name__)
