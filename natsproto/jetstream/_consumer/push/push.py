"""Push consumers: the server sends messages as fast as flow control allows (ADR-9, ADR-15).

PushConsumer is the handle, and PushSource one reading of it; ``push_subscription`` receives. It creates and deletes no
consumer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.consumer_stats import ConsumerStats
from natsproto._core.instrumentation import ReaderInfo
from natsproto._durations import seconds
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._api.unexpected import wrap_unexpected
from natsproto.jetstream._consumer.consume import ConsumeContext, HandlerTasks
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.delivery.deliveries import Deliveries
from natsproto.jetstream._consumer.delivery.delivery_events import report_unhandled
from natsproto.jetstream._consumer.delivery.delivery_terms import DeliveryTerms
from natsproto.jetstream._consumer.delivery.reader_stats import stats_of
from natsproto.jetstream._consumer.handle import Consumer
from natsproto.jetstream._consumer.handler_options import Handler, HandlerArgs, HandlerOptions
from natsproto.jetstream._consumer.message import DeliveryStamp, JsMessage, consumer_seq, nak_all, number_of
from natsproto.jetstream._consumer.messages import ConsumerNotice, Messages
from natsproto.jetstream._consumer.pull_options import DEFAULT_MAX_MESSAGES
from natsproto.jetstream._consumer.push.push_subscription import PushAddress, PushSubscription
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.error_codes import consumer_gone
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.policies import AckPolicy
from natsproto.protocol.subject import queue_group, subscribe_subject

WAITS_FOR_UNBIND_S = (0.02, 0.05, 0.1, 0.2)
"""Waits, in seconds, for a server to notice that the previous reader has left."""
WAITS_FOR_BIND_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Waits, in seconds, for a server to notice a new reader."""


class PushBinding:
    """Sees to it that a consumer without a deliver group has one reader, as far as its info shows."""

    def __init__(self, address: PushAddress, look_up: Callable[[], Awaitable[ConsumerInfo]]) -> None:
        self._address, self._look_up = address, look_up

    async def wait_until_free(self) -> None:
        """Wait until the server has noticed that the previous reader has left. AlreadyBound when one stays."""
        if not await self._wait(WAITS_FOR_UNBIND_S, is_bound=False):
            raise errors.AlreadyBound(self._address.stream, self._address.consumer)

    async def wait_until_bound(self) -> None:
        """Wait until the server has noticed the new reader, if it does so soon."""
        await self._wait(WAITS_FOR_BIND_S, is_bound=True)

    async def _wait(self, waits: Sequence[float], *, is_bound: bool) -> bool:
        """Wait for a state; False when the last look-up shows another one. ConsumerNotFound, StreamNotFound."""
        for wait in (*waits, None):
            try:
                info = await self._look_up()
            except (errors.ConsumerNotFound, errors.StreamNotFound):
                raise
            except errors.NatsError:
                return True  # no permission or no reply: unknown
            if info.push_bound == is_bound:
                return True
            if wait is not None:
                await asyncio.sleep(wait)
        return False


class PushSource:
    """Reads one push consumer, a MessageSource.

    ``stop_after`` is the number of messages after which it ends. ``look_up`` is called when nothing arrives: reading
    ends when the consumer is gone, or sends its messages elsewhere. ``info`` is its last known info. ``leftover`` holds
    earlier unread messages. With a ``binding`` it subscribes when no other reader does.

    Waiting messages are extended without an end, since no other reader can get them; in a deliver group others get them
    after twice ack_wait.
    """

    def __init__(
        self,
        connection: Connection,
        address: PushAddress,
        leftover: deque[JsMessage],
        info: ConsumerInfo | None,
        look_up: Callable[[], Awaitable[ConsumerInfo]],
        stop_after: int,
        binding: PushBinding | None,
    ) -> None:
        is_followed = info is None or info.config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL)
        self._deliveries = (
            Deliveries(self, connection, address, info, look_up, DEFAULT_MAX_MESSAGES, is_shared=bool(address.queue))
            if is_followed
            else None
        )
        self.buffer = Buffer(deliveries=self._deliveries)
        self.connection = connection
        self._address, self._leftover, self._look_up = address, leftover, look_up
        self._stop_after, self._binding = stop_after, binding
        self._subscription = PushSubscription(connection, address, self)
        self._is_open = False
        self._lookup_task: asyncio.Task[None] | None = None
        self._may_look_up = True
        self._reconnected = False  # and no message has arrived since

    # ---------------------------------------------------------------- the interface of a source

    def start(self) -> None:
        """Subscribe, unless another reader may have to leave first."""
        self._is_open = True
        self.connection._readers.measured.add(self)
        if self._binding is None:
            self._subscribe()

    def _subscribe(self) -> None:
        self._subscription.open()
        if self._deliveries is not None:
            self._deliveries.start()
        if self._leftover:
            ready = list(self._leftover)
            self._leftover.clear()
            self.on_messages(ready)

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer."""
        return ReaderInfo(self._address.stream, self._address.consumer, is_stream=True)

    def stats(self, now: float) -> ConsumerStats | None:
        """See MeasuredReader."""
        return stats_of(self.buffer, self.reader_info(), now)

    async def wait_created(self) -> None:
        """Subscribe when the other reader has left; raises the errors of that. The stream keeps the messages until
        then.
        """
        if self._binding is not None:
            await self._binding.wait_until_free()
            if self._is_open:
                self._subscribe()
                await self._binding.wait_until_bound()

    def refill(self) -> None:
        """Answer the flow control requests whose earlier messages were consumed."""
        self._subscription.answer_requests()

    async def finish(self) -> None:
        """End the subscription and receive the messages in flight."""
        self._cancel_lookup()
        try:
            await self._subscription.drain()
        finally:
            self.close()

    def close(self) -> None:
        """End the subscription at once."""
        self._is_open = False
        self._cancel_lookup()
        if self._deliveries is not None:
            self._deliveries.close()
        self._subscription.close()

    # ---------------------------------------------------------------- what the consumer sends

    def on_messages(self, messages: list[JsMessage]) -> None:
        """Put the messages into the buffer, as far as they are wanted."""
        buffer = self.buffer
        if not self._is_open:
            return
        if self._reconnected and (first := consumer_seq(messages[0])):
            # A restarted server repeats deliveries it has no record of, with the same sequences.
            self._reconnected = False
            buffer.drop_after(first - 1)
        if self._stop_after:
            room = self._stop_after - buffer.received
            self._leftover += messages[room:]
            messages = messages[:room]
        if messages and self._deliveries is not None:
            messages = self._deliveries.on_arrival(messages, self._subscription.route)
        if messages:
            buffer.put(messages)
        if self._stop_after and buffer.received >= self._stop_after:
            self.end(None)

    def requeue(self, message: JsMessage) -> None:
        """Add a message that is to be handled next."""
        deliveries = self._deliveries
        if not self.buffer.is_finished or (deliveries is not None and deliveries.is_last(message)):
            self.buffer.put_first(message)
        else:
            nak_all([message])

    def on_skipped(self, message: JsMessage) -> None:
        """Count a message as consumed: flow control requests wait for it."""
        self.buffer.on_consumed(1, 0)
        if self.buffer.consumed >= self.buffer.refill_at:
            self.refill()

    def on_heartbeat(self, last_consumer_seq: int) -> None:
        """Do nothing: what is missing is delivered again."""

    def on_reconnect(self) -> None:
        """The connection is back: the server may repeat deliveries."""
        self._reconnected = True
        if self._deliveries is not None:
            self._deliveries.on_reconnect()

    def on_silence(self, missed: errors.HeartbeatMissed | None) -> None:
        """Look the consumer up, since nothing else reports that it was deleted or made again."""
        if missed is not None:
            self._emit_notice(missed)
        if self._lookup_task is None and self._may_look_up:
            loop = asyncio.get_running_loop()
            self._lookup_task = loop.create_task(self._run_lookup(), name="natsproto look-up")

    async def _run_lookup(self) -> None:
        """Look up a silent consumer: reading ends when it is gone."""
        gone: errors.NatsError | None = None
        try:
            config = (await self._look_up()).config
            gone = self._sends_elsewhere(config)
            self._subscription.heartbeat = config.idle_heartbeat
        except (errors.ConsumerNotFound, errors.StreamNotFound) as exc:
            gone = consumer_gone(exc, self._address.consumer, self._address.stream)
        except errors.PermissionDenied:
            self._may_look_up = False  # each attempt would be an event
        except errors.NatsError:
            pass
        except Exception as exc:
            gone = wrap_unexpected(f"reading {self._address.description}", exc)
        self._lookup_task = None
        if gone is not None:
            self.end(gone)

    def _sends_elsewhere(self, config: ConsumerConfig) -> errors.ConsumerGone | None:
        """The error for a consumer that was made again, or changed, so that its messages do not come here."""
        address = self._address
        if config.deliver_subject == address.subject and config.deliver_group == address.queue:
            return None
        group = f" in the group {config.deliver_group!r}" if config.deliver_group else ""
        subject = config.deliver_subject
        reason = f"it sends its messages to {subject!r}{group} now" if subject else "it is a pull consumer now"
        return errors.ConsumerGone(reason, address.consumer, address.stream)

    def end(self, error: errors.NatsError | None) -> None:
        """End reading."""
        if self._is_open:
            self.close()
            if error is not None:
                self._emit_notice(error)
            self.buffer.end(error)

    def _emit_notice(self, error: errors.NatsError) -> None:
        address = self._address
        self.connection._event_bus.emit(ConsumerNotice(stream=address.stream, consumer=address.consumer, error=error))

    def _cancel_lookup(self) -> None:
        if self._lookup_task is not None:
            self._lookup_task.cancel()
            self._lookup_task = None


class PushConsumer(Consumer):
    """A push consumer: the server sends its messages to ``deliver_subject``. Created by the stream's
    ``create_push_consumer`` and ``push_consumer``.

    Read it with ``messages`` or ``consume``; members of a deliver group share the messages. A flow control request is
    answered when all earlier messages were read, so a slow reader slows the server down; without flow control the
    buffer has no limit. After three missed heartbeats, which a ConsumerNotice reports, or 5 s of silence of a consumer
    without heartbeats or with a deliver group, the consumer is looked up: reading ends with ConsumerGone when it was
    deleted, or sends its messages to another subject or group now, which the server does not report.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        name: str,
        info: ConsumerInfo | None = None,
        *,
        deliver_subject: str = "",
        deliver_group: str = "",
        idle_heartbeat: Duration | None = None,
    ) -> None:
        super().__init__(api, stream, name, info)
        config = None if info is None else info.config
        self.deliver_subject: str = deliver_subject or (config.deliver_subject if config else "")
        """The subject to which the server sends messages."""
        self.deliver_group: str = deliver_group or (config.deliver_group if config else "")
        """The queue group that shares them, if any."""
        if not self.deliver_subject:
            raise errors.ConfigError("deliver_subject", "", f"{self._description} is not a push consumer")
        subscribe_subject(self.deliver_subject, "deliver_subject")
        if self.deliver_group:
            queue_group(self.deliver_group)
        given = config.idle_heartbeat if config else 0.0
        self._unread: deque[JsMessage] = deque()
        self._heartbeat = given if idle_heartbeat is None else seconds("idle_heartbeat", idle_heartbeat)

    def messages(self, *, stop_after: int = 0) -> Messages:
        """Return an endless sequence of messages. Use it with ``async with``, then iterate it. ``stop_after`` is the
        number of messages after which it ends.

        Entering raises AlreadyBound when the consumer has another reader and no deliver group, and ConsumerNotFound.
        This needs permission for the consumer's info, and is not checked for a consumer that was bound without a
        request.

        Args:
            stop_after: End after this many messages; 0: no limit.
        """
        if type(stop_after) is not int or stop_after < 0:
            raise errors.ConfigError("stop_after", stop_after, "must be a number of messages, 0 for no end")
        address = PushAddress(
            *(self.stream_name, self.name, self.deliver_subject, self.deliver_group, self._heartbeat),
            DeliveryStamp.of(self._known_config(), self._api.prefix),
        )
        binding = None if self.deliver_group or self._info is None else PushBinding(address, self.info)
        source = PushSource(self._api.connection, address, self._unread, self._info, self.info, stop_after, binding)
        return Messages(source, self._description, self._return_unread)

    def consume(
        self,
        handler: Handler,
        *,
        stop_after: int = 0,
        **options: Unpack[HandlerArgs],
    ) -> ConsumeContext:
        """Call ``handler`` (def or async def) with every message; see PullConsumer.consume.

        Args:
            handler: Called with each message, ``def`` or ``async def``.
            stop_after: End after this many messages; 0: no limit.
            **options: How messages are handled, by keyword: those of HandlerArgs.
        """
        handler_options = HandlerOptions(backoff=() if self._info is None else self._info.config.backoff, **options)
        messages = self.messages(stop_after=stop_after)
        tasks = HandlerTasks(self._api.connection, self._description, messages, handler, handler_options)
        return ConsumeContext(self._description, messages, tasks)

    def _return_unread(self, messages: list[JsMessage]) -> None:
        """Nak unread messages, or keep them for the next reader where a nak would lose them."""
        config = self._known_config()
        if config is None or config.ack_policy == AckPolicy.NONE:
            self._unread.extendleft(reversed(messages))
            return
        terms = DeliveryTerms.of(self._info)
        last = [message for message in messages if terms.is_last(number_of(message))]
        nak_all([message for message in messages if not terms.is_last(number_of(message))] if last else messages)
        if last:
            self._unread.extendleft(reversed(last))
            report_unhandled(self._api.connection, PushAddress(self.stream_name, self.name, self.deliver_subject), last)
