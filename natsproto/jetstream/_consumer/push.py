"""Push consumers: the server sends without being asked, as fast as flow control lets it (ADR-9, ADR-15).

Owns the handle. How deliveries are taken in and flow control is answered is known to ``deliver``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

from natsproto.errors import AlreadyBound, ConfigError, ConsumerGone, ConsumerNotFound, NatsError, StreamNotFound
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import Duration
from natsproto.jetstream._consumer.consumer import Consumer
from natsproto.jetstream._consumer.deliver import Deliveries
from natsproto.jetstream._consumer.handling import Consumption, Failure, Handler, NakDelay, Policy, Success
from natsproto.jetstream._consumer.reader import Messages, give_back
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage
from natsproto.protocol.pool import seconds
from natsproto.protocol.subject import queue_group, subscribe_subject

UNBOUND_WAITS_S = (0.02, 0.05, 0.1, 0.2)
"""Seconds that a server takes to notice that the reader before has left."""
BOUND_WAITS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds that it takes to notice that there is a reader."""


class PushConsumer(Consumer):
    """A consumer whose messages the server sends to ``deliver_subject``. Made by the stream's ``push_consumer``.

    Read it with ``messages`` or ``consume``; members of a deliver group share the messages. Flow control, if the
    consumer has it, is answered after what was sent before was read, so a slow reader is never flooded; without it
    nothing bounds what waits here. When three heartbeats are missed a ConsumerNotice says so and the consumer is looked
    up: reading ends with ConsumerGone when it was deleted, which the server tells in no other way.
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
        self.deliver_subject = deliver_subject or (config.deliver_subject if config else "")
        """Where the server sends messages to."""
        self.deliver_group = deliver_group or (config.deliver_group if config else "")
        """The queue group that shares them, if any."""
        if not self.deliver_subject:
            raise ConfigError("deliver_subject", "", f"{self._what} is no push consumer")
        subscribe_subject(self.deliver_subject, "deliver_subject")
        if self.deliver_group:
            queue_group(self.deliver_group)
        given = config.idle_heartbeat if config else 0.0
        self._unread: deque[JsMessage] = deque()
        self._heartbeat = given if idle_heartbeat is None else seconds("idle_heartbeat", idle_heartbeat)

    def messages(self, *, stop_after: int = 0) -> Messages:
        """An endless stream of messages: enter it, then iterate it. ``stop_after`` ends it after so many.

        Entering raises AlreadyBound when the consumer has another reader and no deliver group, as far as it may be
        asked, and ConsumerNotFound; a consumer that was bound without asking is not asked about.
        """
        if type(stop_after) is not int or stop_after < 0:
            raise ConfigError("stop_after", stop_after, "must be a number of messages, 0 for no end")
        feed = Deliveries(
            self._api.connection,
            self.deliver_subject,
            stream=self.stream_name,
            consumer=self.name,
            queue=self.deliver_group,
            heartbeat=self._heartbeat,
            ack_wait=self._ack_wait,
            alarm=self._look_up,
            stash=self._unread,
            total=stop_after,
            check=None if self.deliver_group or self._info is None else self._check_bound,
        )
        return self._reading(feed, self._return_unread)

    def consume(
        self,
        handler: Handler,
        *,
        stop_after: int = 0,
        concurrency: int = 1,
        key: Callable[[JsMessage], Hashable] | None = None,
        on_success: Success = "ack",
        on_error: Failure = "nak",
        nak_delay: NakDelay | None = None,
        keep_alive: bool | Duration = False,
        error_cb: Callable[[JsMessage, BaseException], object] | None = None,
    ) -> Consumption:
        """Calls ``handler`` (def or async def) with every message; see PullConsumer.consume."""
        policy = Policy(
            concurrency=concurrency,
            key=key,
            on_success=on_success,
            on_error=on_error,
            nak_delay=nak_delay,
            keep_alive=keep_alive,
            error_cb=error_cb,
            backoff=() if self._info is None else self._info.config.backoff,
        )
        messages = self.messages(stop_after=stop_after)
        return Consumption(self._api.connection, self._what, messages, handler, policy)

    async def _check_bound(self, wanted: bool) -> None:
        """Waits until the consumer has a reader, or has none: AlreadyBound when it keeps one."""
        for wait in (*(BOUND_WAITS_S if wanted else UNBOUND_WAITS_S), None):
            try:
                info = await self.info()
            except (ConsumerNotFound, StreamNotFound):
                raise
            except NatsError:
                return  # whoever may not ask, or cannot now, does not know
            if info.push_bound == wanted:
                return
            if wait is not None:
                await asyncio.sleep(wait)
        if not wanted:
            raise AlreadyBound(self.stream_name, self.name)

    def _return_unread(self, messages: list[JsMessage]) -> None:
        if self._waits_for_answers:
            give_back(messages)
        else:
            self._unread.extendleft(reversed(messages))

    async def _look_up(self) -> NatsError | None:
        """Why no heartbeats come: ConsumerGone when it is known that it is gone."""
        try:
            await self._api.call(self._endpoint("INFO"), asked=f"info of {self._what}")
        except (ConsumerNotFound, StreamNotFound) as exc:
            return ConsumerGone(exc.description, self.name, self.stream_name)
        except NatsError:
            return None
        return None
