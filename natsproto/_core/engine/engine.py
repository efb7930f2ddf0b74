"""The engine: the life of a client, over all its connections.

Owns the state and the session in use. Whenever that session ends the client is disconnected; the supervisor finds the
sessions, and its task always watches the one in use. The registry owns the receivers of messages, which every new
connection gets. ``Connection`` documents the guarantees of the public methods.

::

    CONNECTING ──▶ OPEN ⇄ RECONNECTING        OPEN, RECONNECTING ──▶ DRAINING        any ──▶ CLOSED

Rules:

1. ``_set_state`` alone changes the state; ``TRANSITIONS`` lists what may follow, and anything else is a bug.
2. One session is in use, or none. A session that has ended is not in use from that step on, so that requests made in
   the same turn of the event loop already wait for the next one.
3. A new session first gets the subscriptions and is then put to use; waiting messages follow.
4. In a move between servers both sessions are open for a while. Nothing is published on the new one until the old
   server has handled everything that it was sent, so that nothing is overtaken; the old one is still read.
5. Messages wait without a connection. They are dropped, and that is reported, only where the new server would close
   the connection for their size or their line.
6. Written messages are confirmed by a PING within a second. Those that are not confirmed when a connection is lost are
   counted as uncertain in the event.
7. Draining ends subscriptions, lets handlers finish, sends what waits, and closes. At the deadline it cuts what is
   left, names it, and closes all the same.
8. Closing gives cleanups, then published bytes, then ``on_event`` two seconds each. It never raises because a server
   is gone.
9. However the client ends, ``_finish`` runs once: it sets ``closed`` and emits Closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import StrEnum

from natsproto import errors
from natsproto._core import events
from natsproto._core.cleanups import Cleanups
from natsproto._core.ending import CUT_TIMEOUT_S
from natsproto._core.engine.drain import Drain
from natsproto._core.engine.ping_tokens import FlushToken, OldConnectionDrained, RoundTrips
from natsproto._core.engine.registry import SubscriptionRegistry
from natsproto._core.engine.rejected_subs import RejectionProbe
from natsproto._core.engine.supervisor import Supervisor
from natsproto._core.event_bus import EventBus
from natsproto._core.inbox.readers import ActiveReaders, give_turns
from natsproto._core.notifier import Notifier, running_loop, wrong_loop_error
from natsproto._core.outbox import Outbox
from natsproto._core.replies.outages import Outages
from natsproto._core.replies.pending_replies import RequestMux
from natsproto._core.socket.session import Session
from natsproto._core.socket.wire import Runtime, nuid
from natsproto._durations import NO_LIMIT_S
from natsproto._options.options import Options
from natsproto.protocol.commands import arguments_length, subjects_of
from natsproto.protocol.frames import NO_INFO, Responder, ServerInfo
from natsproto.protocol.link import InfoChanged, Link, LinkEvent, PongFor, ServerErr
from natsproto.protocol.server_errors import is_too_long_line

log = logging.getLogger("natsproto")

CONFIRM_INTERVAL_S = 1.0
"""Seconds between the pings that confirm published messages."""

CLOSE_TIMEOUT_S = 2.0
"""Seconds that close() waits for written bytes to leave before it aborts, and for on_event to finish."""

_CLOSED = events.Closed(reason=None)


class State(StrEnum):
    """The stages of a client, from its first attempt to connect to its end."""

    CONNECTING = "connecting"
    """No connection has been made yet."""
    OPEN = "open"
    """Connected; messages go out as they are published."""
    RECONNECTING = "reconnecting"
    """The connection was lost, or the first one is retried; what is published waits."""
    DRAINING = "draining"
    """``drain`` lets handlers and readers finish; nothing new can be subscribed."""
    CLOSED = "closed"
    """The end: connect again for another client."""


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.CONNECTING: frozenset({State.OPEN, State.RECONNECTING, State.DRAINING, State.CLOSED}),
    State.OPEN: frozenset({State.RECONNECTING, State.DRAINING, State.CLOSED}),
    State.RECONNECTING: frozenset({State.OPEN, State.DRAINING, State.CLOSED}),
    State.DRAINING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Engine:
    """Keeps a client connected. Messages respond through ``origin``, the Connection."""

    def __init__(self, options: Options, runtime: Runtime, origin: Responder) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.state = State.CONNECTING
        self.info = NO_INFO
        self.outbox = Outbox(options.outbox_limit, loop, self._schedule_confirm_ping)
        self.control_lines = self.outbox.lines
        self.event_bus = EventBus(options.on_event, options.name)
        self.registry = SubscriptionRegistry(self, self.outbox, self.event_bus, origin)
        self.on_messages = self.registry.on_messages
        """An attribute, because the session calls it for every chunk."""
        self.readers, self.cleanups = ActiveReaders(), Cleanups()
        self.round_trips = RoundTrips(lambda: self.session, self.registry.stood_still)
        self.time_slice = self.registry.time_slice
        self.outages = Outages(loop.time, self.wait_connected)
        self.session: Session | None = None
        """The connection in use; None while there is none."""
        self._new_session: Session | None = None  # while its subscriptions are sent
        self.supervisor = Supervisor(options, runtime, self, self.event_bus)
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        """Its result is the final reason; None when the application closed the client."""
        self._loop = loop
        self._runtime = runtime
        self.random = runtime.rng.random
        self.on_alone: Callable[[], None] | None = None
        """Called when INFO lists no other server any more."""
        self.state_changed = Notifier()
        self._old_session: Session | None = None  # of a move, until its server has handled everything published on it
        self._lame_duck_session: Session | None = None  # whose server has announced its end
        self._drain: Drain | None = None
        self._confirm_timer: asyncio.TimerHandle | None = None  # runs while messages are unconfirmed

    # ---------------------------------------------------------------- connecting

    async def start(self) -> None:
        """Connect to the first server of the pool that accepts.

        One pass over the pool; then ConnectFailed with every cause, unless retry_on_failed_connect leaves it to the
        supervisor and returns at once. Cancelling closes everything.
        """
        try:
            session = await self.supervisor.first()
        except BaseException as exc:
            self._finish(exc if isinstance(exc, Exception) else None)
            if tasks := self.supervisor.cancel():
                await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
            if isinstance(exc, Exception):
                await self.event_bus.wait_handled(CLOSE_TIMEOUT_S)
            raise
        if session is None or not await self.on_connected(session):
            self._set_state(State.RECONNECTING)
        elif self.event_bus.wants(events.Connected):
            self.event_bus.emit(events.Connected(server=str(session.address)))
        self.supervisor.run(session)

    # ---------------------------------------------------------------- callbacks of the supervisor

    @property
    def wants_connection(self) -> bool:
        """True until the client is closed."""
        return self.state is not State.CLOSED

    @property
    def can_move(self) -> bool:
        """True if the client may change servers now."""
        return self.state is State.OPEN

    @property
    def progress(self) -> int:
        """Messages that were received, or were sent and confirmed."""
        return self.registry.in_msgs + self.outbox.confirmed

    def make_link(self, *, tls_required: bool, secured: bool) -> Link:
        """Create the protocol side of a new connection."""
        return Link(
            self.registry.table.routes,
            tls_required=tls_required,
            secured=secured,
            max_message=self.options.max_message_size,
        )

    async def on_connected(self, session: Session) -> bool:
        """Make a session the current one: send its subscriptions first, then the waiting messages.

        Many subscriptions are sent in slices, between which the event loop runs. False if the session ended meanwhile.
        """
        self._new_session = session
        self.control_lines.line_limit.on_connected(session.link.info.server_id)
        try:
            for index, lines in enumerate(self.registry.table.resubscribe()):
                if index and self.session is None:  # a move is one step, so that nothing is sent to both servers
                    await asyncio.sleep(0)
                if session.wire is not None:
                    session.wire.write(lines)
        except BaseException:
            session.end(errors.ConnectionClosed())
            raise
        finally:
            self._new_session = None
        if session.wire is None or session.ended.done() or self.state is State.CLOSED:
            session.end(errors.ConnectionClosed())
            self._end_too_long(session.ended.result())
            return False
        self.supervisor.on_session_adopted(session)
        self.session = session
        self._on_info(session, session.link.info)
        self._cancel_confirm_ping()  # a pending answer would come from another server
        self.outages.end()
        if self.registry.mux is not None:
            self.registry.mux.on_connect()
        self._drop_too_long()
        self.outbox.attach(session.wire, paused=session.write_paused or self._old_session is not None)
        self.registry.on_connected(session)
        if self.state in (State.DRAINING, State.OPEN):  # OPEN: after a move between servers
            self.state_changed.wake()
        else:
            self._set_state(State.OPEN)
        session.start_events()
        for handler in list(self.registry.reply_handlers):
            handler.on_reconnect()
        return True

    def on_move_started(self, session: Session) -> None:
        """The session is about to be replaced while it still works.

        Messages that its server has already sent are still received: its subscriptions are ended, and the connection
        closes when the server confirms that. Only inboxes for replies are on both servers for a moment, since duplicate
        replies do no harm.
        """
        if session.wire is not None:
            self.outbox.flush()
            session.wire.write(self.registry.unsubscribe_lines())
            self._old_session = session
            session.ping(OldConnectionDrained(session))

    def on_old_session_ended(self, session: Session) -> None:
        """The old session of a move has ended."""
        self._finish_move(session)
        self._fail_flush_tokens(session, _lost_error(session))

    def _finish_move(self, session: Session) -> None:
        """Resume writing: the old server has handled everything it was sent, so nothing can overtake it."""
        if self._old_session is session:
            self._old_session = None
            if self.session is not None and not self.session.write_paused:
                self.outbox.resume()

    def on_give_up(self, reason: Exception | None, *, quiet: bool = False) -> None:
        """There will be no other connection; ``quiet`` is set when the event loop ends."""
        if reason is not None and not isinstance(reason, errors.NatsError):
            cause, reason = reason, errors.ConnectionLost(f"{type(reason).__name__}: {reason}")
            reason.__cause__ = cause
        self._finish(reason, quiet=quiet)

    def _on_session_lost(self, session: Session, cause: Exception) -> None:
        """Notify everything that depends on the session of its end."""
        server = str(session.address)
        self.session = None
        self._cancel_confirm_ping()
        self.outbox.detach()
        self.supervisor.on_session_lost(session)
        self._fail_flush_tokens(session, _lost_error(session))
        self._end_too_long(cause)
        self.outages.begin()
        reason = cause.reason if isinstance(cause, errors.ConnectionLost) else cause
        self.registry.on_disconnect(
            (lambda subject: errors.ConnectionLost(f"request to {subject!r} unanswered: {reason}", server))
            if self.options.fail_requests_on_disconnect
            else None
        )
        for handler in list(self.registry.reply_handlers):
            handler.on_disconnect(_lost_error(session))
        if self.state is State.OPEN:
            self._set_state(State.RECONNECTING)
        in_flight, buffered = self.outbox.unconfirmed, self.outbox.frames
        self.event_bus.emit(events.Disconnected(server=server, cause=cause, in_flight=in_flight, buffered=buffered))

    @staticmethod
    def _fail_flush_tokens(session: Session, error: errors.NatsError) -> None:
        """Fail the waiters for pings of this session."""
        for token in session.link.take_pending_pings():
            if isinstance(token, FlushToken) and token.answered is not None and not token.answered.done():
                token.answered.set_exception(error)

    async def reconnect(self) -> None:
        """Drop the current connection, or skip the wait for the next attempt.

        Messages published before are sent first: the server confirms them, within CLOSE_TIMEOUT_S seconds, before the
        connection ends. Messages published meanwhile wait for the next connection.
        """
        session = self.session
        if session is None:
            self.supervisor.skip_wait()
            return
        answered: asyncio.Future[None] = self._loop.create_future()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.outbox.wait_flushed()
                if session is self.session:
                    self.outbox.detach()
                    session.ping(FlushToken(answered, self.outbox.frames_out, self.registry.table.last_sid))
                    await answered
        except (TimeoutError, errors.NatsError):
            self.event_bus.log.info("%s did not confirm the sent messages before reconnect()", session.address)
        finally:
            session.end(errors.ConnectionLost("reconnect() was called", str(session.address)))

    # ---------------------------------------------------------------- callbacks of a session

    def on_link_event(self, session: Session, event: LinkEvent) -> None:
        """A control frame came."""
        if isinstance(event, PongFor):
            if isinstance(event.token, OldConnectionDrained):
                self._finish_move(session)
                # Replies to earlier requests may still come here; OLD_CONNECTION_TIMEOUT_S ends it then.
                if not self.registry.expects_replies:
                    self.supervisor.end_old_session(event.token.session)
            elif isinstance(event.token, FlushToken):
                self._on_flush_pong(session, event.token)
            elif isinstance(event.token, RejectionProbe) and session is self.session:
                self.registry.rejected_subs.on_pong(event.token)
        elif isinstance(event, InfoChanged):
            if session is self.session:
                self._on_info(session, event.info)
        elif isinstance(event, ServerErr):
            if not isinstance(event.error, errors.TooManySubscriptions):
                self.registry.on_server_error(event.error)
            elif session is self.session:
                self.registry.rejected_subs.on_error()

    def on_write_paused(self, session: Session) -> None:
        """The wire accepts no data for now."""
        if session is self.session:
            self.outbox.pause()

    def on_write_resumed(self, session: Session) -> None:
        """The wire accepts data again."""
        if session is self.session and self._old_session is None:
            self.outbox.resume()

    def on_session_ended(self, session: Session) -> None:
        """Report the end of the connection in this step, so that requests from now on wait for the next one."""
        if session is self.session:
            if self.state is State.CLOSED:
                self.outbox.detach()  # close() must not wait for a wire that has ended
            else:
                self._on_session_lost(session, session.ended.result())

    def _on_flush_pong(self, session: Session, token: FlushToken) -> None:
        if session is self.session:
            self.outbox.confirm(token.frames_out)
            self.round_trips.on_pong(token.sent_at)
            self.registry.rejected_subs.accepted(token.last_sid)
            if token.answered is None:
                self._cancel_confirm_ping()
                if self.outbox.unconfirmed:
                    self._schedule_confirm_ping()
        if token.answered is not None and not token.answered.done():
            token.answered.set_result(None)

    def _schedule_confirm_ping(self) -> None:
        """Find out within a second whether the server got what was written, so that an outage can report the number of
        uncertain messages. An idle client sends nothing.
        """
        if self._confirm_timer is None:
            self._confirm_timer = self._loop.call_later(CONFIRM_INTERVAL_S, self._send_confirm_ping)
            self.outbox.confirm_scheduled = True

    def _send_confirm_ping(self) -> None:
        if self.session is not None and self.outbox.unconfirmed:
            self.outbox.flush()
            token = FlushToken(None, self.outbox.frames_out, self.registry.table.last_sid)
            if self.outbox.size:
                token.sent_at = 0.0  # the PING overtakes messages
            self.session.ping(token)
        else:
            self._confirm_timer = None
            self.outbox.confirm_scheduled = False

    def _cancel_confirm_ping(self) -> None:
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None
            self.outbox.confirm_scheduled = False

    def _on_info(self, session: Session, info: ServerInfo) -> None:
        self.info = info
        self.control_lines.set_max_payload(info.max_payload)
        self._drop_too_large(info.max_payload)
        if session.link.info_in_clear:
            return  # not authenticated: the server sends it again after CONNECT
        found = self.supervisor.pool.discovered(info.connect_urls, session.address)
        if found.added:
            self.event_bus.emit(events.ServersDiscovered(servers=tuple(str(address) for address in found.added)))
        if found.dropped and len(info.connect_urls) == 1 and self.on_alone is not None:
            self.on_alone()
        if not info.ldm:
            return
        self.supervisor.start_move()  # also when repeated: new servers may be known now
        if self._lame_duck_session is not session:
            self._lame_duck_session = session
            self.event_bus.emit(events.LameDuck(server=str(session.address)))

    def _drop_too_large(self, limit: int) -> None:
        """Drop waiting messages that exceed the limit of this server; it would close the connection."""
        for line, size in self.outbox.take_back_larger(limit) if limit else ():
            self.registry.on_message_dropped(*subjects_of(line), errors.PayloadTooLarge(size, limit))

    def _drop_too_long(self) -> None:
        """Drop waiting messages whose line this server has shown to be too long."""
        limit = self.control_lines.line_limit
        if limit.is_learned:
            for head in self.outbox.take_back(b"", lambda head: arguments_length(head) > limit.max):
                subject, reply = subjects_of(head.partition(b"\r\n")[0])
                rule = f"makes a control line longer than {limit.max} bytes"
                self.registry.on_message_dropped(subject, reply, errors.InvalidSubject("subject", subject, rule))

    def _end_too_long(self, cause: Exception) -> None:
        """The connection has ended: if for a line that was too long, end the subscriptions that are surely too long."""
        refused = is_too_long_line(cause)
        length = self.control_lines.line_limit.on_disconnected(refused=refused, waiting=self.outbox.size > 0)
        if length is not None:
            self.registry.end_too_long(length)

    # ---------------------------------------------------------------- callbacks of the registry

    def make_request_mux(self) -> RequestMux:
        """Create the request inbox. ConnectionClosed if the client is closed."""
        if self.state is State.CLOSED:
            raise self.outbox.closed_error("request")
        self.check_loop()
        prefix = f"{self.options.inbox_prefix}.{nuid(self._runtime.rng)}."
        return RequestMux(
            *(prefix, self._loop, self.control_lines, self.outbox, self._runtime.random_bits(), self.outages),
            connected=self.session is not None,
        )

    def send_control_line(self, line: bytes) -> None:
        """Send a control line after the waiting messages. Without a connection nothing is sent: a new one gets the
        whole table.
        """
        session = self._new_session or self.session
        if line and session is not None and session.wire is not None:
            self.outbox.flush()
            session.wire.write(line)

    @property
    def waits_for_pong(self) -> bool:
        """True if a call waits for the server's answer to a PING."""
        session = self.session
        return session is not None and any(
            isinstance(token, FlushToken) and token.is_waited_for for token in session.link.pings
        )

    # ---------------------------------------------------------------- waiting

    def check_open(self, operation: str, *, may_drain: bool = False) -> None:
        """Raise ConnectionClosed if the client is closed, or is draining unless it ``may_drain``."""
        if self.state is State.CLOSED or (self.state is State.DRAINING and not may_drain):
            raise self.outbox.closed_error(operation)
        self.check_loop()

    def check_loop(self) -> None:
        """Raise LocalProtocolError in another event loop than the client's, unless it is closed."""
        if running_loop() is not self._loop and self.state is not State.CLOSED:
            raise wrong_loop_error()

    async def wait_connected(self, deadline: float, *, in_drain: bool = False) -> None:
        """Wait until there is a connection, the client drains or is closed, or the deadline (loop time) has passed.
        ``in_drain``: a drain does not end the wait, for what need not be sent before it ends.
        """

        def is_away() -> bool:
            return self.state is State.RECONNECTING or (
                in_drain and self.state is State.DRAINING and self.session is None
            )

        while is_away() and self._loop.time() < deadline:
            await self.state_changed.wait(deadline)

    async def flush(self, timeout: float) -> None:
        """Wait until the server has handled everything sent so far, over a reconnect if needed.

        RequestTimeout after ``timeout`` seconds, ConnectionLost when the connection breaks before the answer,
        ConnectionClosed when the client is closed.
        """
        self.check_loop()
        answered: asyncio.Future[None] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self.state is State.CLOSED:
                        raise self.outbox.closed_error("flush")
                    await self.outbox.wait_flushed()
                    if self.session is not None and not self.session.ended.done():
                        break
                    await self.state_changed.wait()
                self.session.ping(FlushToken(answered, self.outbox.frames_out, self.registry.table.last_sid))
                await answered
        except TimeoutError as exc:
            if isinstance(exc, errors.NatsError):
                raise
            raise self.outages.timeout_error("flush", timeout) from None

    async def flush_connection(self) -> None:
        """flush() without a limit, but return when the connection ends, as no more messages come from it then.

        ConnectionClosed when the client is closed.
        """
        self.check_open("flush", may_drain=True)
        while (session := self._new_session or self.session) is not None and not session.ended.done():
            flushing = self._loop.create_task(self.flush(NO_LIMIT_S))
            try:
                await asyncio.wait((flushing, session.ended), return_when=asyncio.FIRST_COMPLETED)
                if flushing.done():
                    await flushing
                    return
            except errors.ConnectionLost:
                pass
            finally:
                flushing.cancel()

    @property
    def is_running(self) -> bool:
        """True while the client is open and its own task is not being cancelled."""
        return self.state is not State.CLOSED and self.supervisor.running

    # ---------------------------------------------------------------- ending

    @property
    def reconnects(self) -> int:
        """The number of reconnects so far."""
        return self.supervisor.reconnects

    async def drain(self, timeout: float) -> None:
        """End subscriptions, handle their messages, send what is waiting, then close.

        DrainTimeout lists the work that is unfinished at the deadline. In any case the client is closed afterwards.
        """
        self.check_loop()
        left: list[str] = []
        ending_at = self._loop.time() + timeout
        if (drain := self._begin_drain(timeout)) is not None:
            try:
                if not await drain.wait():
                    return
            except errors.DrainTimeout as exc:
                left = list(exc.unfinished)
            timeout, ending_at = drain.ending.seconds, drain.ending.deadline
        unhandled = await self.event_bus.wait_handled(max(CLOSE_TIMEOUT_S, ending_at - self._loop.time()))
        if unhandled:
            left.append(f"{unhandled} events not handled by on_event")
        if left:
            raise errors.DrainTimeout("drain", timeout, left)

    def _begin_drain(self, timeout: float) -> Drain | None:
        """Begin to drain, or bring the deadline forward. None for a client that was closed."""
        if self._drain is None:
            if self.state is State.CLOSED:
                return None
            self._drain = Drain(self, self._close_drained)
            if self.state is not State.DRAINING:
                self._set_state(State.DRAINING)
        self._drain.ending.begin(timeout)
        return self._drain

    async def _close_drained(self) -> None:
        """Cancel what still handles messages, while these can still be returned, and close."""
        try:
            if self._drain is not None and (handlers := [*self._drain.cut(), *self.readers.cancel()]):
                await asyncio.wait(handlers, timeout=CUT_TIMEOUT_S)
        finally:
            await self._close()

    async def close(self) -> None:
        """Close the client; never raises. Cleanups, published bytes, on_event get CLOSE_TIMEOUT_S seconds each."""
        await self._close()
        unhandled = await self.event_bus.wait_handled(CLOSE_TIMEOUT_S)
        if unhandled:
            self.event_bus.log.warning("closed with %d events that on_event has not handled", unhandled)

    async def _close(self) -> None:
        """close() without the wait for event callbacks."""
        self.check_loop()
        cancelled: list[asyncio.Task[None]] = []
        try:
            if cancelled := self.registry.cut_services():
                await give_turns(cancelled)  # in which they answer
            if self.cleanups.running:
                if self.state is State.OPEN:
                    self._set_state(State.DRAINING)
                self.registry.end_subscriptions()
                cancelled += [*self.registry.cancel_callbacks(), *self.readers.cancel()]
                await give_turns(cancelled)  # in which handlers return their messages
                self.outbox.accept_only_cleanups()
                await self.cleanups.wait(0.0 if self.session is None else CLOSE_TIMEOUT_S)
        finally:
            await self._close_now(cancelled)

    async def _close_now(self, cancelled: list[asyncio.Task[None]]) -> None:
        if self.state is State.CLOSED:
            await asyncio.shield(self.closed)
            return
        session = self.session
        self._end_all(None)
        tasks = self.supervisor.cancel()
        try:
            if session is not None:
                await self._flush_and_close(session)
        finally:
            tasks += [*cancelled, *self.registry.cancel_callbacks(), *self.readers.cancel(), *self.cleanups.running]
            self._finish(None)
        if tasks:
            # They end within a few turns of the loop, unless a callback suppresses the cancellation.
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)

    async def _flush_and_close(self, session: Session) -> None:
        if not self.outbox.frames and session.closes_immediately:
            session.close()
            await session.wire_closed
            return
        cut = self._loop.call_later(CLOSE_TIMEOUT_S, self._abort_close, session)
        try:
            if self.outbox.frames or session.write_paused:
                await self.outbox.wait_flushed()
            session.close()
            await session.wire_closed
        finally:
            cut.cancel()

    def _abort_close(self, session: Session) -> None:
        self.event_bus.log.warning(
            "%s accepts no data; connection cut with %d unsent messages", session.address, self.outbox.frames
        )
        session.end(errors.ConnectionClosed())

    def _end_all(self, reason: Exception | None) -> None:
        """Refuse new work and end all waiters: the client was closed, or the reason."""
        self._set_state(State.CLOSED)
        self.outbox.close(reason)
        if self.session is not None:
            self._fail_flush_tokens(self.session, self.outbox.closed_error("flush"))
        error = reason if reason is None or isinstance(reason, errors.NatsError) else errors.ConnectionLost(str(reason))
        if isinstance(error, errors.ConnectFailed) and not isinstance(error, errors.NotAuthorized):
            error = errors.ConnectionLost(f"no server is left: {error}")  # an established connection has ended
            error.__cause__ = reason
        self.registry.end_all(error)

    def _finish(self, reason: Exception | None, *, quiet: bool = False) -> None:
        """Finish closing. Every way to end the client comes here, once."""
        if self.closed.done():
            return
        if self.state is not State.CLOSED:
            self._end_all(reason)
        self.outbox.detach()
        if self.outbox.frames:
            self.event_bus.log.warning("closed with %d unsent messages", self.outbox.frames)
        if self.session is not None:
            if not self.session.ended.done():
                self.session.end(errors.ConnectionClosed())
            self.session = None
        self.supervisor.end_old_sessions()
        self._cancel_confirm_ping()  # its timer would keep the client alive for a second
        self.closed.set_result(reason)
        self.state_changed.wake()
        # A failed first connect is raised to the caller; at the end of a program the event is not worth a warning.
        end = _CLOSED if reason is None else events.Closed(reason=reason)
        self.event_bus.emit(end, level=None if self.supervisor.started and not quiet else logging.INFO)

    def _set_state(self, state: State) -> None:
        """Change the state. Nothing else assigns it."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.state_changed.wake()


def _lost_error(session: Session) -> errors.ConnectionLost:
    """Return the error for calls that waited for an answer on a session that has ended."""
    cause = session.ended.result()
    return (
        cause if isinstance(cause, errors.ConnectionLost) else errors.ConnectionLost(str(cause), str(session.address))
    )
