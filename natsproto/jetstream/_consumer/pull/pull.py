"""Pulling: carries out the decisions of a PullState (ADR-37).

Puller owns one timer. Received messages go into the reader's buffer in the same step of the event loop, which also
sends the next pull: no task runs for it. PullSource is the one of a consumer handle: with what arrived for earlier
readers, redeliveries, pins and look-ups. OrderedPull is that of an ordered reader.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from time import monotonic
from types import MappingProxyType
from typing import Final, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.consumer_stats import ConsumerStats
from natsproto._core.instrumentation import ReaderInfo
from natsproto._durations import NO_LIMIT_S
from natsproto.jetstream._api.retry import TIMER_SLACK_S
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._consumer.delivery.buffer import NEVER_REFILL, Buffer
from natsproto.jetstream._consumer.delivery.deliveries import Deliveries
from natsproto.jetstream._consumer.delivery.reader_stats import stats_of
from natsproto.jetstream._consumer.delivery.worker_prefetch import ONCE_EXPIRES_S
from natsproto.jetstream._consumer.message import (
    DeliveryStamp,
    JsMessage,
    age_of,
    consumer_seq,
    counted_size,
    extend_all,
    stamp_arrival,
)
from natsproto.jetstream._consumer.messages import ConsumerNotice
from natsproto.jetstream._consumer.pull.pin import KEEP_PIN, PinKeeper
from natsproto.jetstream._consumer.pull.pull_inbox import PullInbox
from natsproto.jetstream._consumer.pull.pull_state import (
    DONE,
    KEEP,
    PROBE,
    Action,
    PullDecision,
    PullPhase,
    PullState,
)
from natsproto.jetstream._consumer.pull.pull_subscription import DRAIN_TIMEOUT_S, PullAddress, PullSubscription
from natsproto.jetstream._consumer.pull_options import PullMode, PullOptions
from natsproto.jetstream._values.error_codes import consumer_gone

EXTEND_LEFTOVER_S: Final = 0.5
"""Seconds after which a message of an earlier reader gets a new ack_wait when it is fetched."""
SERVED_GRACE_S: Final = 1.0
"""Seconds to wait for the status of a pull beyond its time."""
SILENT_END_S: Final = 0.5
"""Seconds to wait for the confirmation of an end by a server that was silent before."""
LOOKUP_INTERVAL_S: Final = 1.0
"""Seconds between two lookups of a consumer without responders."""
_head_of, _is_status_of = attrgetter("_head"), attrgetter("_is_status")


class Puller:
    """Sends the pulls of one reader of one consumer, and receives the replies."""

    buffer: Buffer
    state: PullState
    """Set when it starts."""
    _deliveries: Deliveries | None = None
    _pins: Mapping[str, str] = MappingProxyType({})

    def __init__(self, connection: Connection, address: PullAddress, options: PullOptions) -> None:
        self.connection: Connection = connection
        self._address, self._options = address, options
        self._send: Callable[[bytes, bytes, bytes], None] = connection._outbox.put_encoded
        self._loop = asyncio.get_running_loop()
        self._replies: PullSubscription | None = None
        self._is_finishing = False
        self._served: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # not timer.when(), which uvloop lacks for handles that are due

    # ---------------------------------------------------------------- for subclasses

    def _receive(self, messages: list[JsMessage], now: float) -> None:
        """Put messages into the buffer."""
        raise NotImplementedError

    def _on_subscription_closed(self, replies: PullSubscription) -> None:
        """The subscription has ended by itself."""
        self.end(replies.subscription.error)

    async def _drain(self, replies: PullSubscription) -> None:
        """End the subscription and receive the messages in flight."""
        await replies.drain()

    def end(self, error: errors.NatsError | None) -> None:
        """End reading: it is complete, the subscription has ended, or the account may not pull."""
        raise NotImplementedError

    def close(self) -> None:
        """End its pulls on the server."""
        raise NotImplementedError

    # ---------------------------------------------------------------- the reader's side

    def refill(self) -> None:
        """Send the pulls that are due."""
        if self._replies is not None:
            self._send_pulls(self._loop.time())

    async def finish(self) -> None:
        """Stop pulling and receive the messages in flight. When cancelled, the next reader gets those."""
        self._is_finishing = True
        try:
            if self._delivers_once:
                await self._await_served()
            self.state.stop()
            self._stop_timer()
            is_silent = self._replies is not None and not await self._await_last_pull()
            if self._replies is not None:  # no other call has ended it meanwhile
                self._replies.end_timeout = SILENT_END_S if is_silent else self._end_timeout
                await self._drain(self._replies)
        finally:
            self.close()

    @property
    def _delivers_once(self) -> bool:
        """True if the server does not repeat what is lost at the end."""
        return self._deliveries is not None and self._deliveries.terms.is_once

    @property
    def _end_timeout(self) -> float:
        """Seconds for the server's answer at the end."""
        return self.connection._options.drain_timeout if self._delivers_once else DRAIN_TIMEOUT_S

    async def _await_served(self) -> None:
        """Wait until each open pull has ended, or the consumer is silent."""
        self.state.send_no_more()
        if self.state.is_served:
            return
        self._served = self._served or asyncio.Event()  # another call may wait
        with suppress(TimeoutError):
            async with asyncio.timeout(ONCE_EXPIRES_S + SERVED_GRACE_S):
                await self._served.wait()

    async def _await_last_pull(self) -> bool:
        """Give the server a round trip to answer the last pull. A message that it is about to send when the
        subscription ends counts as delivered, and nobody gets it. An answer does not show that there is none: a server
        takes pulls in beside it, and the consumer's leader may be on another one. False if the server did not answer.
        """
        try:
            if self.state.number and self.connection.is_connected:
                await self.connection.flush(self._end_timeout)
        except errors.RequestTimeout:
            return False
        except errors.NatsError:
            pass  # the connection was lost
        return True

    def fail(self, bug: Exception) -> None:
        """End reading because of an unexpected error."""
        self.end(wrap_unexpected(f"reading {self._address.description}", bug))

    # ---------------------------------------------------------------- what arrives

    def on_change(self) -> None:
        """Called when messages have arrived or the subscription has ended. An unexpected error ends the reader, not the
        connection.
        """
        replies = self._replies
        if replies is None:
            return
        arrived = replies.subscription._inbox
        try:
            if arrived:
                received = cast("list[JsMessage]", list(arrived))
                arrived.clear()
                now = self._loop.time()
                if any(map(_head_of, received)):
                    self._split_statuses(received, replies.prefix, now)
                else:  # so none is a status
                    self._receive(received, now)
            elif replies.subscription.closed:
                self._on_subscription_closed(replies)
        except Exception as exc:
            self.fail(exc)

    def _split_statuses(self, received: list[JsMessage], prefix: str, now: float) -> None:
        """Handle messages and statuses in their order."""
        for is_status, messages in groupby(received, _is_status_of):
            if not is_status:
                self._receive(list(messages), now)
                continue
            for status in messages:
                if self._replies is not None and status.subject.startswith(prefix):
                    self._on_status(status, status.subject[len(prefix) :], now)

    def _on_status(self, message: JsMessage, number: str, now: float) -> None:
        """Handle a status of the server about a pull."""
        headers = message.headers
        pull = int(number) if number.isdecimal() else -1
        self._apply(self.state.on_status(pull, headers._status, headers._description, headers, now), now)

    # ---------------------------------------------------------------- what is sent

    def _send_pulls(self, now: float) -> None:
        """Send the pulls that are due, then end or set the timer. The timer is not moved with every message: it is
        checked when it fires.
        """
        state, buffer, replies = self.state, self.buffer, self._replies
        pin_id = self._pins.get(self._options.priority.group, "") if self._pins else ""
        while replies is not None and (body := state.next_body(now, pin_id)) is not None:
            refill_at, deadline = state.refill_at, state.deadline  # as long as the state is at hand
            if self._deliveries is not None and state.has_one_pull:
                self._deliveries.on_pull()
            try:
                self._send(self._address.encoded_subject, f"{replies.prefix}{state.number}".encode(), body)
            except errors.OutboxFull:
                state.on_not_sent(now)
                refill_at, deadline = None, state.deadline
                break
            except errors.ConnectionClosed:
                state.stop()
                break
            if refill_at is None or refill_at > buffer.consumed:
                break
        else:
            refill_at, deadline = state.refill_at, state.deadline
        if self._served is not None and state.is_served:
            self._served.set()
        if state.phase is PullPhase.DONE:
            if not self._is_finishing:  # else messages in flight are still to be read
                self.end(None)
            return
        buffer.refill_at = NEVER_REFILL if refill_at is None else refill_at
        if deadline is not None and replies is not None and (self._timer is None or deadline < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _send_probe(self, body: bytes = PROBE) -> None:
        """Send a pull as number 0, whose status shows only whether there is anybody."""
        if self._replies is None:
            return
        reply = f"{self._replies.prefix}0".encode()
        try:
            self.connection._outbox.put_encoded(self._address.encoded_subject, reply, body)
        except errors.NatsError:
            return  # no room, or closed, which ends the reading by itself

    # ---------------------------------------------------------------- decisions

    def on_disconnect(self) -> None:
        """The connection was lost."""
        self.state.on_disconnect()
        self._send_pulls(self._loop.time())

    def on_reconnect(self) -> None:
        """The connection is back; no pull has survived."""
        now = self._loop.time()
        self._apply(self.state.on_reconnect(now), now)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            state, now = self.state, self._loop.time()
            if (deadline := state.deadline) is None:
                return
            if deadline > now + TIMER_SLACK_S:
                self._send_pulls(now)
                return
            now = max(now, deadline)
            self._apply(state.on_deadline(now), now)
        except Exception as exc:
            self.fail(exc)

    def _apply(self, decision: PullDecision, now: float) -> None:
        state = self.state
        is_first_failure = state.no_responders <= 1 and state.losses <= 1
        if decision.notice is not None and is_first_failure:
            self._emit_notice(decision.notice)
        if decision.action is Action.STOP:
            self.end(decision.error)
            return
        if decision.action is Action.PROBE:
            self._send_probe()
        self._send_pulls(now)

    def _emit_notice(self, error: errors.NatsError) -> None:
        stream, consumer = self._address[:2]
        self.connection._event_bus.emit(ConsumerNotice(stream=stream, consumer=consumer, error=error))

    def _detach(self) -> PullSubscription | None:
        """Stop, and return the subscription; None if it had stopped before."""
        self._stop_timer()
        replies, self._replies = self._replies, None
        if replies is not None and self.state.phase is not PullPhase.DONE:
            self.state.stop()
        if self._served is not None:
            self._served.set()
        return replies

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PullSource(Puller):
    """Pulls messages of one consumer for one reader of its handle; a MessageSource."""

    def __init__(self, inbox: PullInbox, options: PullOptions, *, acking: JsMessage | None = None) -> None:
        super().__init__(inbox.connection, inbox.address, options)
        # Ages matter where the server delivers again, and pulls that end by themselves are for callers who choose.
        is_followed = options.mode is PullMode.ENDLESS and inbox.may_redeliver
        self._deliveries = (
            Deliveries(self, inbox.connection, inbox.address, inbox.info, inbox.look_up, options.max_messages)
            if is_followed
            else None
        )
        self.buffer = Buffer(options.max_messages, counts_bytes=options.max_bytes > 0, deliveries=self._deliveries)
        self._inbox, self._acking, self._pins = inbox, acking, inbox.pins
        if acking is not None:
            self._send = self._send_acking
        self._pin = PinKeeper(self, inbox) if options.priority.group and self._deliveries is not None else None
        self._lookup_task: asyncio.Task[None] | None = None
        self._next_lookup = 0.0
        self._may_lookup = True
        self._reconnected = False  # and no message has come since

    # ---------------------------------------------------------------- the interface of a source

    def start(self) -> None:
        """Start to pull; messages left over by an earlier reader come first."""
        inbox, options = self._inbox, self._options
        if inbox.leftover:
            self._put_leftover(inbox.take_leftover(options.most_messages))
        now = self._loop.time()
        prefetch = None if self._deliveries is None else self._deliveries.prefetch
        self.state = state = PullState(
            options, self.buffer, now, consumer=(self._address.consumer, self._address.stream), prefetch=prefetch
        )
        if state.phase is PullPhase.DONE:  # others have left enough
            if self._acking is not None:
                self._acking.ack_nowait()
            self.end(None)
            return
        self._replies = inbox.join(self)
        if options.mode is PullMode.ENDLESS:
            self.connection._readers.measured.add(self)
        if self._deliveries is not None:
            self._deliveries.start()
        if not inbox.is_connected:
            state.on_disconnect()
        self._send_pulls(now)

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer."""
        return ReaderInfo(*self._address[:2], is_stream=True)

    def stats(self, now: float) -> ConsumerStats | None:
        """See MeasuredReader."""
        return stats_of(self.buffer, self.reader_info(), now)

    async def wait_created(self) -> None:
        """Return at once: the consumer exists already."""

    def close(self) -> None:
        """End its pulls on the server. The next reader gets the messages that arrive until then."""
        self._leave()

    async def _drain(self, replies: PullSubscription) -> None:
        if (draining := self._inbox.end(replies)) is not None:
            await asyncio.shield(draining)

    # ---------------------------------------------------------------- events

    def _on_subscription_closed(self, replies: PullSubscription) -> None:
        self._inbox.remove(replies)
        self.end(replies.subscription.error)

    def _receive(self, messages: list[JsMessage], now: float) -> None:
        buffer, state = self.buffer, self.state
        left: list[JsMessage] = []
        if self._replies is None:  # it has left within this chunk
            self._inbox.keep_leftover(messages)
            return
        options = self._options
        if options.mode is not PullMode.ENDLESS:
            capacity = max(options.max_messages - buffer.received + buffer.consumed, 0)
            if len(messages) > capacity:
                messages, left = messages[:capacity], messages[capacity:]
        if self._reconnected and messages and (first := consumer_seq(messages[0])):
            self._reconnected = False
            buffer.drop_after(first - 1)
        if messages:
            if options.priority.group:
                self._remember_pin(messages)
            size = counted_size(messages) if options.max_bytes else 0
            before = buffer.received
            if self._deliveries is None:
                stamp_arrival(messages, self._replies.route, NO_LIMIT_S)
                buffer.put(messages, size)
            elif mine := self._deliveries.on_arrival(messages, self._replies.route):
                buffer.put(mine, size if len(mine) == len(messages) or not size else counted_size(mine))
            if state.phase is not PullPhase.DONE:  # else it is finishing, and these were in flight
                decision = state.on_messages(len(messages), size, now)
                if decision is DONE:
                    self.end(None)
                elif decision is not KEEP or buffer.received - before < len(messages):  # some are handled already
                    self._send_pulls(now)
        if left:
            self._inbox.keep_leftover(left)

    def _put_leftover(self, leftover: list[JsMessage]) -> None:
        """Put messages into the buffer that arrived for an earlier reader; a fetch extends old ones."""
        self.buffer.put_counted(leftover)
        now = monotonic()
        for one in leftover:
            if self._deliveries is not None and type(one._note) is DeliveryStamp:  # it had no limit for a fetch
                one._note.check_at = one._note.since + self._inbox.waiting_part
        if self._deliveries is None and self._inbox.may_redeliver:
            extend_all([one for one in leftover if age_of(one, now) > EXTEND_LEFTOVER_S])

    def put_back(self, messages: list[JsMessage]) -> None:
        """Return messages that were received and not handled, for the next reader."""
        self._inbox.put_back(messages)

    def requeue(self, message: JsMessage) -> None:
        """Add a message that is to be handled next."""
        buffer, deliveries = self.buffer, self._deliveries
        if not buffer.is_finished or (deliveries is not None and deliveries.is_last(message)):
            buffer.put_first(message)
        else:
            self._inbox.return_unread([message])

    def on_skipped(self, message: JsMessage) -> None:
        """Count a message as never received."""
        self.buffer.on_removed([message])
        self.refill()

    def _remember_pin(self, messages: list[JsMessage]) -> None:
        for message in messages:
            if message.has_headers and (pin := message.headers.last("Nats-Pin-Id")):
                self._inbox.pins[self._options.priority.group] = pin
                if self._pin is not None:
                    self._pin.start()

    def on_leftover(self, leftover: list[JsMessage], now: float) -> int:
        """Take messages that arrived for an earlier reader; return the number it accepts."""
        state = self.state
        if self._replies is None or state.phase is PullPhase.DONE:
            return 0
        accepted = leftover[: state.capacity]
        if accepted:
            self._put_leftover(accepted)
            state.on_leftover()
            self._send_pulls(now)
        return len(accepted)

    def _on_status(self, message: JsMessage, number: str, now: float) -> None:
        if message.headers._status == 423:
            self._inbox.pins.pop(self._options.priority.group, None)
        super()._on_status(message, number, now)

    def on_reconnect(self) -> None:
        """The connection is back; no pull has survived."""
        if self._deliveries is not None:
            self._deliveries.on_reconnect()
        self._reconnected = self._options.mode is PullMode.ENDLESS
        super().on_reconnect()
        if self._reconnected and not self.state.pending and self._may_lookup and self._lookup_task is None:
            # There is no room, so no pull will show what the server still knows.
            self._start_lookup()

    # ---------------------------------------------------------------- internals

    def _send_acking(self, _subject: bytes, reply: bytes, body: bytes) -> None:
        """Send the first pull with the acknowledgement of a message, as one command."""
        assert self._acking is not None
        self._acking._ack_next_nowait(body, reply.decode())
        self._send = self.connection._outbox.put_encoded

    def keep_pin(self) -> bool:
        """Keep the pin of a pinned client without a message; False if it has none, or a message in hand has expired."""
        inbox, group = self._inbox, self._options.priority.group
        pin = inbox.pins.get(group)
        if not pin or self._deliveries is None or self._deliveries.is_late():
            return False
        if not self.state.pending and self._replies is not None:
            self._send_probe(f'{{{KEEP_PIN},"group":{json.dumps(group)},"id":{json.dumps(pin)}}}'.encode())
        return True

    def _apply(self, decision: PullDecision, now: float) -> None:
        is_ended = decision.action is Action.STOP
        if (
            not is_ended
            and self.state.no_responders
            and self._lookup_task is None
            and self._may_lookup
            and now >= self._next_lookup
        ):
            self._next_lookup = now + LOOKUP_INTERVAL_S
            self._start_lookup()
        super()._apply(decision, now)

    def end(self, error: errors.NatsError | None) -> None:
        """End reading: it is complete, the subscription has ended, or the account may not pull."""
        if not self._leave() and self.buffer.ended:
            return
        if error is not None and self._options.mode is PullMode.ENDLESS:
            self._emit_notice(error)
        self.buffer.end(error)

    def _leave(self) -> bool:
        """Leave the inbox; False if it had left before."""
        replies = self._detach()
        if replies is None:
            return False
        if self._lookup_task is not None:
            self._lookup_task.cancel()
            self._lookup_task = None
        if self._deliveries is not None:
            self._deliveries.close()
        self._inbox.leave(replies, reuse=not self.state.has_abandoned_pulls)
        return True

    # ---------------------------------------------------------------- looking up the consumer

    def _start_lookup(self) -> None:
        self._lookup_task = self._loop.create_task(self._lookup(), name="natsproto consumer look-up")

    async def _lookup(self) -> None:
        """Look up a consumer without responders: it is gone, or has no leader now. After a reconnect it also
        gives the last delivery. Without permission, pulling goes on.
        """
        gone: errors.NatsError | None = None
        try:
            info = await self._inbox.look_up()
            if self._reconnected:
                self._reconnected = False
                self.buffer.drop_after(info.delivered.consumer_seq)
                self._send_pulls(self._loop.time())
        except (errors.ConsumerNotFound, errors.StreamNotFound) as exc:
            gone = consumer_gone(exc, self._address.consumer, self._address.stream)
        except errors.PermissionDenied:
            self._may_lookup = False
        except errors.NatsError:
            pass
        except Exception as exc:
            gone = wrap_unexpected(f"reading {self._address.description}", exc)
        self._lookup_task = None
        if gone is not None and not self._is_finishing:
            self.end(gone)
