"""The subscriptions of a client: which receiver gets the messages of which sid.

Owns the table of sids, the open subscriptions, the request inbox and the reply handlers, the counters of received
messages, and the errors of the server that concern one of them. A new connection gets the whole table.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

from natsproto import errors
from natsproto._core import events
from natsproto._core.engine.loop_watch import LoopWatch
from natsproto._core.engine.rejected_subs import RejectedSubFinder, RejectionProbe
from natsproto._core.engine.slow_consumers import SlowConsumers
from natsproto._core.event_bus import EventBus
from natsproto._core.inbox.reading_hold import ReadingHold
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.inbox.subscription_readers import SubscriptionReaders
from natsproto._core.outbox import Outbox
from natsproto._core.replies.pending_replies import RequestMux
from natsproto._core.replies.reply_handler import ReplyHandler
from natsproto._core.socket.session import Session
from natsproto._core.time_slice import TimeSlice
from natsproto.protocol import commands
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.frames import Message, Responder, Route
from natsproto.protocol.server_errors import SubscriptionDenied, is_final
from natsproto.protocol.subscription_table import SubscriptionEntry, SubscriptionTable

Owner: TypeAlias = Subscription | RequestMux | ReplyHandler
"""The receiver of the messages of a sid."""


class RegistryCallbacks(Protocol):
    """Callbacks that the registry needs from the engine."""

    @property
    def session(self) -> Session | None:
        """The connection in use; None while there is none."""
        ...

    @property
    def control_lines(self) -> ControlLines:
        """The lines of outgoing messages, and their limits."""
        ...

    @property
    def is_running(self) -> bool:
        """True while the client is open and its own task is not being cancelled."""
        ...

    def check_loop(self) -> None:
        """LocalProtocolError in another event loop, thread or process."""
        ...

    @property
    def waits_for_pong(self) -> bool:
        """True if a call waits for the server's answer to a PING."""
        ...

    def check_open(self, operation: str, *, may_drain: bool = False) -> None:
        """Raise ConnectionClosed if the client is closed, or is draining unless it ``may_drain``."""
        ...

    def make_request_mux(self) -> RequestMux:
        """Create the request inbox. ConnectionClosed if the client is closed."""
        ...

    def send_control_line(self, line: bytes) -> None:
        """Send a control line after the waiting messages, if there is a connection."""
        ...

    async def flush_connection(self) -> None:
        """Wait until the server has handled everything sent so far, or the connection ends."""
        ...


class SubscriptionRegistry:
    """The receivers of one client.

    ``origin`` is the Connection: messages respond through it.
    """

    def __init__(self, engine: RegistryCallbacks, outbox: Outbox, event_bus: EventBus, origin: Responder) -> None:
        self.table: SubscriptionTable[Owner] = SubscriptionTable(engine.control_lines.line_limit)
        self.in_msgs = 0
        self.in_bytes = 0
        self.reply_handlers: dict[ReplyHandler, SubscriptionEntry[Owner]] = {}
        self.rejected_subs = RejectedSubFinder(self.table, self._send_rejection_probes, self._on_subscription_refused)
        self._engine, self._outbox, self._event_bus, self._origin = engine, outbox, event_bus, origin
        self._subscriptions: dict[Subscription, SubscriptionEntry[Owner]] = {}
        self._ended: weakref.WeakSet[Subscription] | None = None  # slow to create; their readers may still be busy
        self.mux: RequestMux | None = None
        """The request inbox, after its first use."""
        self.reading_hold = ReadingHold(lambda: engine.session, self._waits_for_replies)
        self._slow_consumers = SlowConsumers(event_bus)
        self._loop_watch = LoopWatch(event_bus)
        self.time_slice = TimeSlice.of(asyncio.get_running_loop())
        self._dropped_by_ended = 0

    # ---------------------------------------------------------------- receiving

    def on_messages(self, touched: list[Route]) -> bool:
        """Account for the messages of one chunk in every subscription, and call its ``def`` callback.

        Callbacks run in the order of each subscription's first message in the chunk. Returns True if a task has to run
        before all messages are handled.
        """
        waiting = False
        self.time_slice.begin()
        for entry in cast("list[SubscriptionEntry[Owner]]", touched):
            ended, excess, owner = False, 0, entry.owner
            if entry.max_msgs is None:
                count, nbytes = entry.arrived, entry.nbytes
                entry.arrived = entry.nbytes = 0
                entry.received += count
            else:
                count, nbytes, excess, ended = self.table.take_arrived(entry)
            self.in_msgs += count
            self.in_bytes += nbytes
            if isinstance(owner, Subscription):
                if ended:
                    self._unregister(owner)
                if count and owner._account(count, nbytes, excess):
                    waiting = True
                if ended:
                    owner._close(None)
            elif type(owner) is RequestMux:
                if count > 1:
                    self._outbox.cork()  # the requesters are about to send again
            else:
                assert not isinstance(owner, RequestMux)
                owner.on_replies_handled()
        if waiting and len(touched) > 1:
            self.time_slice.begin()  # reading took a part of it
        return waiting

    # ---------------------------------------------------------------- subscriptions

    @property
    def subscriptions(self) -> list[Subscription]:
        """The open subscriptions."""
        return list(self._subscriptions)

    @property
    def readers(self) -> list[SubscriptionReaders]:
        """The readers of the open subscriptions, and of ended ones whose messages are still being handled."""
        ended = [subscription._readers for subscription in self._ended or () if subscription._readers.is_busy]
        return [subscription._readers for subscription in self._subscriptions] + ended

    @property
    def dropped(self) -> int:
        """Messages dropped by all subscriptions, ended ones included. May be read in any thread."""
        return self._dropped_by_ended + sum(subscription.dropped for subscription in self.subscriptions)

    def subscribe(
        self, subscription: Subscription, message_class: type[Message] = Message, note: object = None
    ) -> None:
        """Register a subscription. SUB is sent now, or with the next connection."""
        self._engine.check_open("subscribe")
        entry, sub_line = self.table.add(
            subscription.subject,
            subscription.queue,
            subscription._inbox.append,
            subscription,
            message_class=message_class,
            origin=self._origin,
            note=note,
        )
        subscription._route = self._subscriptions[subscription] = entry
        self._engine.send_control_line(sub_line)

    def stood_still(self, now: float) -> float:
        """Seconds for which the event loop has stood still until now."""
        return self._loop_watch.stood_still(now)

    def unsubscribe(self, subscription: Subscription, max_messages: int | None) -> None:
        """End a subscription now, or after ``max_messages`` messages in all."""
        entry = self._subscriptions.get(subscription)
        if entry is None:
            return
        if max_messages is None:
            self._engine.send_control_line(self.table.remove(entry))
            self._unregister(subscription)
            subscription._close(None, discard=True)
            return
        self._engine.send_control_line(self.table.limit(entry, max_messages))
        if entry.received >= max_messages:
            self._unregister(subscription)
            subscription._close(None)

    def stop_delivery(self, subscription: Subscription) -> None:
        """Send UNSUB; messages that the server has already sent are still received."""
        entry = self._subscriptions.get(subscription)
        if entry is not None:
            self._engine.send_control_line(self.table.stop_delivery(entry))
            subscription._disable_pause()

    def remove(self, subscription: Subscription) -> None:
        """Stop receiving messages of a subscription."""
        entry = self._unregister(subscription)
        if entry is not None:
            self._engine.send_control_line(self.table.remove(entry))

    def _unregister(self, subscription: Subscription) -> SubscriptionEntry[Owner] | None:
        entry = self._subscriptions.pop(subscription, None)
        if entry is not None:
            del subscription._route  # it leads back here: a subscription that nobody has is collected at once
            self._dropped_by_ended += subscription.dropped
            self.reading_hold.on_ended(subscription)
            self._slow_consumers.on_ended(subscription)
            if subscription._readers:
                if self._ended is None:
                    self._ended = weakref.WeakSet()
                self._ended.add(subscription)
        return entry

    def cut_services(self) -> list[asyncio.Task[None]]:
        """Cut off the requests of services, which can still be answered, and return their tasks."""
        services = [readers for readers in self.readers if readers.on_cut is not None]
        return [task for readers in services for task in readers.cut()]

    def cancel_callbacks(self) -> list[asyncio.Task[None]]:
        """Cancel the running callbacks, those of ended subscriptions too, and return their tasks."""
        subscriptions = [*self._subscriptions, *(self._ended or ())]
        return [task for subscription in subscriptions if (task := subscription._readers.cancel_callback())]

    # ---------------------------------------------------------------- callbacks of a subscription

    def check_loop(self) -> None:
        """LocalProtocolError in another event loop, thread or process."""
        self._engine.check_loop()

    @property
    def is_running(self) -> bool:
        """True while the client is open and its own task is not being cancelled."""
        return self._engine.is_running

    async def flush_connection(self) -> None:
        """Wait until the server has handled everything sent so far, or the connection ends."""
        await self._engine.flush_connection()

    def on_handler_error(self, where: str, error: BaseException) -> None:
        """A callback raised."""
        self._event_bus.on_handler_error(where, error)

    def on_dropped(self, subscription: Subscription, count: int) -> None:
        """A subscription has dropped messages."""
        self._slow_consumers.on_dropped(subscription, count)

    def yield_to_readers(self) -> None:
        """Stop reading from the socket for one turn of the event loop."""
        if self._engine.session is not None:
            self._engine.session.yield_to_readers()

    def hold_reading(self, subscription: Subscription, wanted: bool) -> None:
        """Stop reading while any subscription is full."""
        if wanted:
            self.reading_hold.add(subscription)
        else:
            self.reading_hold.discard(subscription)

    def _waits_for_replies(self) -> bool:
        """True if somebody waits for a reply or a PONG now."""
        return (
            (self.mux is not None and self.mux.expects_replies)
            or any(handler.expects_replies for handler in self.reply_handlers)
            or self._engine.waits_for_pong
        )

    # ---------------------------------------------------------------- replies

    def request_mux(self) -> RequestMux:
        """Return the request inbox, subscribed at its first use. ConnectionClosed if the client is closed."""
        if self.mux is None:
            request_mux = self._engine.make_request_mux()
            _, sub_line = self.table.add(
                request_mux.subject, None, request_mux.on_message, request_mux, origin=self._origin
            )
            self.mux = request_mux
            self._engine.send_control_line(sub_line)
        return self.mux

    def fail_requests(self, error: Callable[[str], errors.NatsError], subject: str | None = None) -> bool:
        """Fail the pending requests to ``subject`` (None: all) with the error made for their subject.

        False if there was none.
        """
        return self.mux is not None and self.mux.fail(error, subject) > 0

    def on_disconnect(self, make_error: Callable[[str], errors.NatsError] | None) -> None:
        """The connection was lost: fail the requests that were sent, unless ``make_error`` is None."""
        if self.mux is not None:
            self.mux.on_disconnect(make_error)

    def add_reply_handler(self, handler: ReplyHandler) -> None:
        """Subscribe a handler; it gets its replies and events of the connection from now on."""
        self._engine.check_open("publish", may_drain=True)
        entry, sub_line = self.table.add(handler.subject, None, handler.on_message, handler, origin=self._origin)
        self.reply_handlers[handler] = entry
        self._engine.send_control_line(sub_line)

    def remove_reply_handler(self, handler: ReplyHandler) -> None:
        """Unsubscribe a handler. Does nothing if it has ended."""
        entry = self.reply_handlers.pop(handler, None)
        if entry is not None:
            self._engine.send_control_line(self.table.remove(entry))

    @property
    def expects_replies(self) -> bool:
        """True if a request is pending or a reply handler is subscribed."""
        return bool(self.mux or self.reply_handlers)

    # ---------------------------------------------------------------- the connection

    def on_connected(self, session: Session) -> None:
        """A new session is in use and has the whole table."""
        self._loop_watch.start()
        self.rejected_subs.reset()
        self.reading_hold.apply()

    def unsubscribe_lines(self) -> bytes:
        """Return UNSUB for every subscription, but not for the receivers of replies."""
        return b"".join(commands.unsub(entry.sid) for entry in self.table if isinstance(entry.owner, Subscription))

    def on_message_dropped(
        self, subject: str, reply: str, error: errors.PayloadTooLarge | errors.InvalidSubject
    ) -> None:
        """A waiting message exceeds a limit of the server: fail its request, or report it."""
        was_request = bool(reply) and self.fail_requests(lambda _: error, reply)
        if not was_request:
            self._event_bus.emit(events.MessageDropped(subject=subject, error=error))

    def end_all(self, error: errors.NatsError | None) -> None:
        """End all receivers: the client was closed, or has failed with this error."""
        self._loop_watch.stop()
        if self.mux is not None:
            self.mux.fail(lambda subject: errors.ConnectionClosed(f"request to {subject!r}", error))
            self.mux.close()
            self.mux = None
        handlers, self.reply_handlers = self.reply_handlers, {}
        for handler in handlers:
            handler.on_end(error or errors.ConnectionClosed("publish"))
        for subscription in self.subscriptions:
            self._unregister(subscription)
            discard = error is None and subscription.has_callback
            subscription._close(error, discard=discard, reason="the client was closed")

    def end_subscriptions(self) -> None:
        """End all subscriptions because the client closes; requests still get their replies."""
        for subscription in self.subscriptions:
            self.remove(subscription)
            subscription._close(None, discard=subscription.has_callback, reason="the client was closed")

    # ---------------------------------------------------------------- errors of the server

    def on_server_error(self, error: errors.NatsError) -> None:
        """Report an error of the server to the subscription or request that caused it.

        An error after which the server closes the connection is reported once, as the cause of Disconnected.
        """
        if isinstance(error, SubscriptionDenied):
            self._end_denied_subscriptions(error)
        elif isinstance(error, errors.PermissionDenied):
            self.fail_requests(lambda subject: error, error.subject)
            for handler in list(self.reply_handlers):
                handler.on_permission_error(error)
        if isinstance(error, errors.PermissionDenied):
            self._event_bus.emit(events.PermissionViolation(error=error))
        elif not is_final(error):
            self._event_bus.emit(events.ServerErrorEvent(error=error))

    def _end_denied_subscriptions(self, error: SubscriptionDenied) -> None:
        named = self.table.by_sid(error.sid) if error.sid else None
        for entry in [named] if named is not None else list(self.table):
            if entry.subject == error.subject and (entry.queue or "") == error.queue:
                self._end_refused(entry, error)

    def end_too_long(self, length: int) -> None:
        """End the subscriptions whose SUB has at least this length: the server closes the connection at such a line."""
        for entry, size in self.table.longest(length):
            what = f"subscription to {entry.subject!r}{f' queue {entry.queue!r}' if entry.queue else ''}"
            error = errors.ServerError(f"{what} ended: its {size} bytes exceed the server's max_control_line")
            self._end_refused(entry, error)
            self._event_bus.emit(events.ServerErrorEvent(error=error))

    def _end_refused(self, entry: SubscriptionEntry[Owner], error: errors.NatsError) -> None:
        """End a subscription that the server does not have."""
        self.table.remove(entry)
        if isinstance(entry.owner, Subscription):
            self._unregister(entry.owner)
            entry.owner._close(error)
        elif isinstance(entry.owner, RequestMux):
            entry.owner.fail(lambda subject: error)
            self.mux = None
        else:
            del self.reply_handlers[entry.owner]
            entry.owner.on_end(error)

    def _send_rejection_probes(self, steps: Sequence[tuple[bytes, RejectionProbe]]) -> None:
        session = self._engine.session
        if session is not None and session.wire is not None:
            session.wire.write(b"".join(line + session.link.ping(probe) for line, probe in steps))

    def _on_subscription_refused(self, entry: SubscriptionEntry[Owner] | None) -> None:
        """The server has reached its limit of subscriptions; None: a subscription that has already ended."""
        error = errors.TooManySubscriptions("maximum subscriptions exceeded")
        if entry is not None:
            error = errors.TooManySubscriptions(error.text, entry.subject, entry.queue or "")
            self._end_refused(entry, error)
        self._event_bus.emit(events.ServerErrorEvent(error=error))
