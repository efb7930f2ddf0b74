"""The connection: the verbs of core NATS.

Validates what the user gives, says what each verb promises, and hands the work to the engine. It owns no
state of its own but shortcuts into the engine for the paths on which every call counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from time import perf_counter  # uvloop's clock knows only milliseconds
from typing import ClassVar

from natsproto._async_hints import items
from natsproto._core.engine import Engine, State
from natsproto._core.events import Event
from natsproto._core.reply_handler import ReplyHandler
from natsproto._core.request_many import RequestMany, Sentinel
from natsproto._core.subscription import Handler, SlowPolicy, SlowPolicyLike, Subscription
from natsproto._core.wire import Runtime, nuid
from natsproto._durations import positive_seconds, seconds
from natsproto._options import Options
from natsproto._value import Value
from natsproto.errors import ConfigError, ConnectionClosed, LocalProtocolError
from natsproto.protocol.frames import Message, Payload, ServerInfo
from natsproto.protocol.headers import HeadersLike, block_of
from natsproto.protocol.subject import publish_subject, subscribe_subject


class Stats(Value):
    """Counters of a client since it was made.

    ``in_bytes`` adds up what ``Message.size`` says: subjects, reply subjects, headers and payloads. ``out_bytes`` and
    ``waiting_bytes`` are those of whole messages as they stand on the wire.
    """

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    reconnects: int
    pings_outstanding: int
    dropped: int
    waiting_msgs: int
    waiting_bytes: int


_ACK_SUFFIX = b" 4\r\n+ACK"


class Connection:
    """A client of a NATS server or cluster. Made by ``natsproto.connect``.

    Use it from the event loop it was made in: elsewhere (another loop or thread, a forked process) its verbs raise
    LocalProtocolError, and when that loop has ended, ConnectionClosed. Every coroutine may be cancelled at any time;
    the client goes on working.
    """

    # What it makes; a client that is instrumented makes its own.
    _subscription: ClassVar[type[Subscription]] = Subscription

    def __init__(self, options: Options, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self._engine = Engine(options, runtime, self)
        self._outbox = self._engine.outbox
        """JetStream puts whole frames into it; an attribute because every acknowledgement reads it."""
        self._control_lines = self._engine.control_lines
        self._pub_prefixes, self._pub_sizes = self._control_lines.pub_prefixes, self._control_lines.pub_sizes

    # ---------------------------------------------------------------- what it is

    @property
    def state(self) -> State:
        """Where the client is in its life."""
        return self._engine.state

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now."""
        session = self._engine.session
        return session is not None and not session.ended.done()

    @property
    def connected_url(self) -> str:
        """The URL of the connected server without user and password; empty when there is none."""
        session = self._engine.session
        return "" if session is None else session.address.url

    @property
    def server_info(self) -> ServerInfo:
        """What the server said last of itself; all empty before the first connection."""
        return self._engine.info

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server accepts in one message."""
        return self._engine.info.max_payload

    @property
    def client_id(self) -> int:
        """The number the server knows this connection by."""
        return self._engine.info.client_id

    @property
    def servers(self) -> tuple[str, ...]:
        """Every known server as ``host:port``."""
        return tuple(str(address) for address in self._engine.pool.servers)

    @property
    def discovered_servers(self) -> tuple[str, ...]:
        """The servers that the cluster announced, as ``host:port``."""
        return tuple(str(address) for address in self._engine.pool.discovered_servers)

    @property
    def stats(self) -> Stats:
        """The counters as they are now."""
        engine = self._engine
        return Stats(
            in_msgs=engine.in_msgs,
            in_bytes=engine.in_bytes,
            out_msgs=engine.outbox.frames_out,
            out_bytes=engine.outbox.bytes_out,
            reconnects=engine.reconnects,
            pings_outstanding=0 if engine.session is None else engine.session.link.pings_in_flight,
            dropped=engine.dropped,
            waiting_msgs=engine.outbox.frames,
            waiting_bytes=engine.outbox.size,
        )

    def new_inbox(self) -> str:
        """A subject that nobody else uses."""
        return f"{self._options.inbox_prefix}.{self._new_id()}"

    def _new_id(self) -> str:
        """22 letters and digits that nobody else uses (a NUID)."""
        return nuid(self._runtime.rng)

    # ---------------------------------------------------------------- publishing

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publishes a message: hands it to the outbox, from where it leaves at once or at the end of this turn
        of the event loop. Waits only while the connection is congested.

        ``payload`` is bytes (a bytearray or memoryview is copied). While there is no connection messages wait
        for the next one, up to ``outbox_limit`` bytes; then OutboxFull. InvalidSubject, InvalidHeader,
        PayloadTooLarge, TypeError for bad arguments and ConnectionClosed are raised before a byte is written.
        Returning does not mean that the server has it: ``flush`` tells. Cancelling while it waits publishes
        nothing.
        """
        outbox = self._outbox
        if outbox.must_wait:
            await outbox.wait_writable()
        if reply is None and headers is None and type(payload) is bytes:
            # The way of nearly every message; publish_nowait holds the same lines, as a call costs 15 %.
            size = len(payload)
            if size > self._control_lines.max_payload:
                self._control_lines.check_size(size)  # as long as nothing is known of it, any is allowed
            try:
                start, end = self._pub_prefixes.get(subject), self._pub_sizes.get(size)
            except TypeError:
                raise _not_a_subject(subject) from None
            outbox.put(start + end if start and end else self._control_lines.pub_line(subject, size), payload)
        else:
            self._publish_full(subject, payload, reply, headers)

    def publish_nowait(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str | None = None,
        headers: HeadersLike | None = None,
    ) -> None:
        """Publishes a message without ever waiting: OutboxFull when the bound is reached, else as ``publish``."""
        if reply is None and headers is None and type(payload) is bytes:
            size = len(payload)
            if size > self._control_lines.max_payload:
                self._control_lines.check_size(size)  # as long as nothing is known of it, any is allowed
            try:
                start, end = self._pub_prefixes.get(subject), self._pub_sizes.get(size)
            except TypeError:
                raise _not_a_subject(subject) from None
            self._outbox.put(start + end if start and end else self._control_lines.pub_line(subject, size), payload)
        else:
            self._publish_full(subject, payload, reply, headers)

    async def _send_reply(self, reply: str, payload: Payload, headers: HeadersLike | None) -> None:
        """Publishes to a subject that will not come again, for layers on top; use ``Message.respond``."""
        if self._outbox.must_wait:
            await self._outbox.wait_writable()
        payload = _payload(payload)
        block = None if headers is None else block_of(headers)
        self._outbox.put(self._control_lines.message_line(publish_subject(reply), None, block, len(payload)), payload)

    def _unsubscribe_nowait(self, subscription: Subscription) -> None:
        """Ends a subscription from where nothing can be awaited: for layers on top."""
        if not subscription.closed:
            self._engine.unsubscribe(subscription, None)

    def _stop_interest_nowait(self, subscription: Subscription) -> None:
        """Tells the server now to send no more, for layers on top; ``drain`` takes in what it has sent and ends it."""
        if not subscription.closed:
            self._engine.stop_interest(subscription)

    def _add_reply_handler(self, inbox: ReplyHandler) -> None:
        """Subscribes an inbox of a layer on top: for thousands of replies, each to a message of its own.

        ConnectionClosed when the client is draining or closed.
        """
        self._engine.add_reply_handler(inbox)

    def _remove_reply_handler(self, inbox: ReplyHandler) -> None:
        """Unsubscribes an inbox of a layer on top. Harmless when it has ended."""
        self._engine.remove_reply_handler(inbox)

    async def _yield_if_needed(self) -> None:
        """Gives the event loop its turn when one is due, and waits for room while the connection is congested:
        what a coroutine of layers on top does before it calls one of the verbs that never wait.
        """
        if self._outbox.must_wait:
            await self._outbox.wait_writable()

    def _send_reply_nowait(self, reply: bytes, payload: bytes) -> None:
        """Publishes to the reply subject of a message as it came off the wire, without waiting and without
        looking at it again: for layers on top, which acknowledge with it.
        """
        if 10 in reply or 13 in reply:  # numbers: looking for bytes costs eight times as much
            raise LocalProtocolError(
                f"cannot respond: the reply subject {reply!r} contains a line end, so the message is forged"
            )
        behind = _ACK_SUFFIX if payload == b"+ACK" else b" %d\r\n%b" % (len(payload), payload)
        self._outbox.put(b"PUB ", reply + behind)

    def _publish_full(self, subject: str, payload: Payload, reply: str | None, headers: HeadersLike | None) -> None:
        if type(payload) is not bytes:
            payload = _payload(payload)
        wire_reply = None if reply is None else publish_subject(reply, "reply subject")
        block = None if headers is None else block_of(headers)
        lines = self._control_lines
        self._outbox.put(lines.message_line(lines.encode_subject(subject), wire_reply, block, len(payload)), payload)

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Publishes a message and waits for the first reply.

        ``timeout`` in seconds (default: the option ``request_timeout``, 5 s). NoResponders at once when nobody
        listens; RequestTimeout; PermissionDenied when the server refuses the subject; ConnectionLost when the
        connection breaks meanwhile (unless ``fail_requests_on_disconnect`` is off); ConnectionClosed; and what
        ``publish`` raises. After a timeout or a lost connection the request may have been handled all the same.
        Cancelling drops a late reply.
        """
        wire = self._control_lines.encode_subject(subject)
        if self._outbox.must_wait:
            await self._outbox.wait_writable()
        return await self._send_request(subject, wire, payload, timeout, headers)

    def _request_resending(
        self,
        subject: str,
        payload: Payload,
        *,
        timeout: float,
        headers: HeadersLike | None,
        interval: float,
    ) -> Awaitable[Message]:
        """``request``, sent again every ``interval`` seconds until there is a reply to any of the copies: for layers on
        top that know that this does no harm. Await what it returns, at once.
        """
        wire = self._control_lines.encode_subject(subject)
        if self._outbox.must_wait:
            return self._in_turn(partial(self._send_request, subject, wire, payload, timeout, headers, interval))
        return self._send_request(subject, wire, payload, timeout, headers, interval)

    @property
    def _request_timeout(self) -> float:
        """Seconds that a request waits unless it says otherwise. For layers on top."""
        return self._options.request_timeout

    def _request_literal(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | timedelta | None = None,
        headers: HeadersLike | None = None,
    ) -> Awaitable[Message]:
        """``request`` to a subject in which ``*`` and a final ``>`` stand for themselves: for layers on top, as the
        API of JetStream has filters in its subjects. Await what it returns, at once: the request has been sent
        unless the connection is congested. What is wrong with the arguments is told at the call.
        """
        wire = subscribe_subject(subject)
        if self._outbox.must_wait:
            return self._in_turn(partial(self._send_request, subject, wire, payload, timeout, headers))
        return self._send_request(subject, wire, payload, timeout, headers)

    def _request_encoded(self, subject: str, wire: bytes, timeout: float | timedelta) -> Awaitable[Message]:
        """``_request_literal`` with nothing to check, for layers on top: ``wire`` is the subject as it is sent."""
        if self._outbox.must_wait:
            return self._in_turn(partial(self._send_request, subject, wire, b"", timeout, None))
        return self._engine.request_mux().send_request(subject, wire, b"", None, positive_seconds("timeout", timeout))

    async def _in_turn(self, send: Callable[[], asyncio.Future[Message]]) -> Message:
        await self._outbox.wait_writable()
        return await send()

    def _send_request(
        self,
        subject: str,
        wire: bytes,
        payload: Payload,
        timeout: float | timedelta | None,
        headers: HeadersLike | None,
        resend_after: float = 0.0,
    ) -> asyncio.Future[Message]:
        wait = self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout)
        if type(payload) is not bytes:
            payload = _payload(payload)
        block = None if headers is None else block_of(headers)
        # Checked here already: a message that is too large must not subscribe the inbox.
        self._control_lines.check_size(len(payload) + (0 if block is None else len(block)))
        return self._engine.request_mux().send_request(subject, wire, payload, block, wait, resend_after)

    @items
    def request_many(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        max_wait: float | timedelta | None = None,
        stall: float | timedelta | None = None,
        max_msgs: int | None = None,
        sentinel: Sentinel | None = None,
        headers: HeadersLike | None = None,
    ) -> AsyncGenerator[Message]:
        """Publishes a message and yields every reply until the first of these (ADR-47):

        ``max_wait`` seconds have passed since the request (default: the option ``request_timeout``, 5 s); replies
        that came in time are yielded however slow the reader is. ``stall`` seconds passed without another reply
        after the first (None and 0: no such limit); time the reader takes does not count. ``max_msgs`` replies
        came. ``sentinel`` said True of a reply, which is not yielded ("empty": a reply without payload). A status
        of the server came instead of a reply: it is yielded as the last one. No reply at all is no error.

        The request goes out when the first reply is asked for. NoResponders at once when nobody listens;
        PermissionDenied when the server refuses the subject; ConnectionLost behind the replies that came when the
        connection breaks meanwhile (unless ``fail_requests_on_disconnect`` is off); RequestTimeout when there was
        no connection to send it on; SlowConsumer behind the replies when more arrive than the pending limits
        of the options hold; ConnectionClosed; and what ``publish`` raises, bad arguments at the call.
        Cancelling, or leaving the loop, ends the interest in replies: at once under ``contextlib.aclosing``, else
        in the next turn of the event loop.
        """
        options = self._options
        wait = options.request_timeout if max_wait is None else positive_seconds("max_wait", max_wait)
        pause = 0.0 if stall is None else seconds("stall", stall)
        if max_msgs is not None and (type(max_msgs) is not int or max_msgs < 1):
            raise ConfigError("max_msgs", max_msgs, "must be a positive number of messages")
        if sentinel is not None and sentinel != "empty" and not callable(sentinel):
            raise ConfigError("sentinel", sentinel, 'must be "empty" or a callable with one message')
        payload = _payload(payload)
        wire = self._control_lines.encode_subject(subject)
        block = None if headers is None else block_of(headers)

        def open_inbox() -> Subscription:
            return self.subscribe(self.new_inbox(), max_msgs=max_msgs, slow_policy=SlowPolicy.ERROR)

        def send(inbox: str) -> None:
            self._outbox.put(self._control_lines.message_line(wire, inbox.encode(), block, len(payload)), payload)

        request = RequestMany(self._engine, subject, max_wait=wait, stall=pause, max_msgs=max_msgs, sentinel=sentinel)
        return request.replies(open_inbox, send)

    # ---------------------------------------------------------------- subscribing

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Handler | None = None,
        max_msgs: int | None = None,
        pending_msgs_limit: int | None = None,
        pending_bytes_limit: int | None = None,
        slow_policy: SlowPolicyLike = SlowPolicy.DROP_NEWEST,
        message_type: type[Message] = Message,
        message_note: object = None,
    ) -> Subscription:
        """Subscribes to a subject (``*`` and ``>`` are wildcards); use with ``await`` or ``async with``.

        ``queue`` shares the messages with the other members of the queue group. ``cb`` is called with every
        message, one after the other; def or async def. What it raises is reported and harms nothing. Without it
        the subscription is read. ``max_msgs`` ends it after so many. The pending limits (messages, bytes; 0 for
        none; default: the options, 65,536 and 64 MiB) bound what waits to be read; ``slow_policy`` says what
        happens beyond: drop_newest, drop_oldest, error (the subscription ends with SlowConsumer) or pause (stop
        reading from the server, which may cut the connection). ``message_type`` is for layers on top: a subclass of
        Message, whose ``__init__`` is not called and whose own slots nobody fills; each is given ``message_note``.

        InvalidSubject, ConfigError, TypeError and ConnectionClosed are raised at once. While there is no connection
        the server is told when there is one.
        """
        if cb is not None and not callable(cb):
            raise TypeError(f"cb must be callable with one message, not {type(cb).__name__}")
        if message_type is not Message and not _is_message_class(message_type):
            raise TypeError(f"message_type must be a subclass of Message, not {message_type!r:.80}")
        options = self._options
        subscription = self._subscription(
            self._engine,
            subject,
            queue,
            cb,
            msgs_limit=_limit("pending_msgs_limit", pending_msgs_limit, options.pending_msgs_limit),
            bytes_limit=_limit("pending_bytes_limit", pending_bytes_limit, options.pending_bytes_limit),
            policy=_policy(slow_policy),
        )
        if max_msgs is not None and (type(max_msgs) is not int or max_msgs < 1):
            raise ConfigError("max_msgs", max_msgs, "must be a positive number of messages")
        self._engine.subscribe(subscription, message_type, message_note)
        if max_msgs is not None:
            self._engine.unsubscribe(subscription, max_msgs)
        return subscription

    # ---------------------------------------------------------------- the server

    async def flush(self, timeout: float | timedelta | None = None) -> None:
        """Waits until the server has handled everything published and subscribed so far.

        ``timeout`` in seconds (default: the option ``request_timeout``). Waits for a reconnect if need be.
        RequestTimeout; ConnectionLost when the connection breaks before the server's answer: what was sent may
        or may not have been handled. Cancelling changes nothing.
        """
        await self._engine.flush(
            self._options.request_timeout if timeout is None else positive_seconds("timeout", timeout)
        )

    async def rtt(self, timeout: float | timedelta | None = None) -> float:
        """Seconds from here to the server and back; raises what ``flush`` raises."""
        await self.flush(timeout)
        started = perf_counter()
        await self.flush(timeout)
        return perf_counter() - started

    async def reconnect(self) -> None:
        """Gives up the current connection; the next server is dialled at once.

        Waits up to 2 seconds for the server to confirm what was published before. Does not wait for the new
        connection: ``events`` and ``flush`` tell. While there is none, ends the wait for the next attempt.
        ConnectionClosed; LocalProtocolError with ``allow_reconnect=False``. Cancelling skips the confirmation.
        """
        self._engine.check_open("reconnect")
        if not self._options.allow_reconnect:
            raise LocalProtocolError("allow_reconnect is False, so reconnect() would close the client: use close()")
        await self._engine.reconnect()

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Replaces every known server, discovered ones included. The connection in use stays (ADR-40).

        ConfigError for what is no server URL, and for ``ws://`` when TLS is demanded; nothing is changed then.
        ConnectionClosed when the client is closed.
        """
        if self._engine.state is State.CLOSED:
            raise ConnectionClosed("set_servers")
        self._engine.pool.set_servers(self._options.but(servers=servers).addresses)

    @items
    def events(self) -> AsyncGenerator[Event]:
        """Yields what happens to the client from the moment of this call, up to Closed. Cancelling ends this
        reader only.
        """
        self._engine.check_loop()
        return self._engine.event_bus.open_stream().read()

    def listen(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Calls back at every event, in the step in which it happens; returns what ends that. For layers on top
        that have to act at once; applications read ``events()``. What it raises is logged. TypeError for what cannot
        be called.
        """
        if not callable(callback):
            raise TypeError(f"callback must be callable with one event, not {type(callback).__name__}")
        return self._engine.event_bus.listen(callback)

    def _emit(self, event: Event) -> None:
        """Puts an event of a layer on top among the client's own."""
        self._engine.event_bus.emit(event)

    # ---------------------------------------------------------------- ending

    async def drain(self, timeout: float | timedelta | None = None) -> None:
        """Ends subscriptions, handles what they have received, sends what is waiting, then closes.

        ``timeout`` in seconds (default: the option ``drain_timeout``, 30 s); after it DrainTimeout says what was
        left undone. A callback, a running ``async for`` and an asynchronous ``on_event`` are waited for; nothing else
        is. The client is closed afterwards in any case, cancelling included.
        """
        await self._engine.drain(
            self._options.drain_timeout if timeout is None else positive_seconds("timeout", timeout)
        )

    async def close(self) -> None:
        """Closes the client: pending requests end with ConnectionClosed, readers end, callbacks stop.

        Messages already published get up to 2 seconds to leave, and an asynchronous ``on_event`` up to 2 seconds to
        handle the last events. Never raises because the peer is gone.
        """
        await self._engine.close()

    async def closed(self) -> Exception | None:
        """Waits for the end; returns why it came: None when the application closed, else the final error."""
        self._engine.check_loop()
        return await asyncio.shield(self._engine.closed)

    def __repr__(self) -> str:
        where = self.connected_url
        return f"<{type(self).__name__} {self.state}{' to ' + where if where else ''}>"


def _not_a_subject(subject: object) -> TypeError:
    return TypeError(f"subject must be a str, not {type(subject).__name__}")


def _payload(payload: object) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise TypeError(f"payload must be bytes, not {type(payload).__name__}: encode it first")


def _limit(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if type(value) is not int or value < 0:
        raise ConfigError(name, value, "must be a whole number, 0 for no limit")
    return value


def _is_message_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)


def _policy(policy: SlowPolicyLike) -> SlowPolicy:
    try:
        return SlowPolicy(policy)
    except ValueError:
        raise ConfigError("slow_policy", policy, f"must be one of {', '.join(SlowPolicy)}") from None
