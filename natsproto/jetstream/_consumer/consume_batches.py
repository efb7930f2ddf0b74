"""Consuming in batches: a handler is called with a list of messages, which are acknowledged together.

Owns how a batch is handled and settled. The rest is that of ``consume``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection
from time import monotonic
from typing import TypeAlias, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.time_slice import TimeSlice
from natsproto._handler_threads import is_still_running
from natsproto._handlers import HandlerResult, finish
from natsproto.jetstream._consumer.consume import HandlerTasks, is_cancelled
from natsproto.jetstream._consumer.delivery.batch_window import BatchWindow
from natsproto.jetstream._consumer.handler_options import Handler, HandlerOptions
from natsproto.jetstream._consumer.message import JsMessage, nak_all
from natsproto.jetstream._consumer.messages import Messages
from natsproto.middleware import unwrap

BatchHandler: TypeAlias = Callable[[list[JsMessage]], HandlerResult]


class BatchFailed(Exception):
    """Raise it in a handler of ``consume_batches`` when some messages failed.

    Those at these ``indexes`` of the list are redelivered, the others are acknowledged.

    Args:
        indexes: The positions of the failed messages in the list, from 0.
    """

    def __init__(self, indexes: Collection[int]) -> None:
        self.indexes: frozenset[int] = frozenset(indexes)
        super().__init__(f"{len(self.indexes)} messages of the batch failed")


class BatchTasks(HandlerTasks):
    """Calls a handler with lists of messages."""

    def __init__(
        self,
        connection: Connection,
        what: str,
        messages: Messages,
        handler: BatchHandler,
        options: HandlerOptions,
        *,
        max_messages: int,
        max_wait: float,
    ) -> None:
        if unwrap(cast("Handler", handler))[1]:
            raise TypeError(
                "middleware is for single messages, and consume_batches passes a list: "
                "for retries call `await retry.failed(message, error)` in the handler"
            )
        super().__init__(connection, what, messages, cast("Handler", handler), options)
        self._call_batch = cast("BatchHandler", self._handler)
        self._max_messages = max_messages
        self._window = BatchWindow(messages.buffer, max_messages, max_wait)
        if (deliveries := messages.buffer.deliveries) is not None:
            deliveries.prefetch.on_workers(options.concurrency * max_messages)

    async def _work(self, worker: int) -> None:
        buffer, time_slice = self._messages.buffer, TimeSlice.of(asyncio.get_running_loop())
        hand = buffer.hand_of(worker)
        while await self._may_take(worker, buffer.ready):
            if monotonic() >= time_slice.ends_at:
                await time_slice.next_turn()
            batch = await self._window.collect()
            if not batch:
                continue
            hand[:] = batch
            began = monotonic()
            self.in_progress += len(batch)
            try:
                await self._handle_batch(batch)
            finally:
                hand[:] = [None]
                self.in_progress -= len(batch)
                self.handled += len(batch)
                took = monotonic() - began
                buffer.on_batch_handled(batch, took, self._max_messages)
                self._check_turns(took)
                self._messages._add_consumed(len(batch), 0)

    async def _handle_batch(self, batch: list[JsMessage]) -> None:
        given = batch[:]  # it may change its list
        try:
            result = self._call_batch(given)
            if inspect.isawaitable(result):
                self._in_turn = False
            await finish(result)
        except BatchFailed as exc:
            await self._settle(batch, exc, exc.indexes)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError) and is_cancelled():
                if not all(map(is_still_running, batch)):
                    nak_all(batch)  # they are redelivered at once
                raise
            if all(map(is_still_running, batch)):
                self._report(batch, exc, len(batch))
                if (deliveries := self._messages.buffer.deliveries) is not None:
                    deliveries.keep_in_hand(batch)
                return
            await self._settle(batch, exc, range(len(batch)))
        else:
            await self._settle(batch, None, ())

    def _report(self, batch: list[JsMessage], error: BaseException, failed: int) -> None:
        self.failed += failed
        where = f"{self._where} (a batch of {len(batch)})"
        self.connection._event_bus.on_handler_error(where, error)

    async def _settle(self, batch: list[JsMessage], error: BaseException | None, failed: Collection[int]) -> None:
        """Nak the messages at these indexes and acknowledge the others, in one write."""
        if error is not None:
            self._report(batch, error, len(failed))
        await self.connection._outbox.yield_if_needed()
        deliveries = self._messages.buffer.deliveries
        try:
            for index, message in enumerate(batch):
                if message.is_acked:
                    continue
                if index in failed and deliveries is not None and deliveries.is_last_unhandled(message):
                    continue  # its newest delivery is handled next
                if index in failed:
                    message.nak_nowait(self._nak_delay_for(message))
                else:
                    message.ack_nowait()
        except errors.NatsError as exc:
            self._on_ack_failed("ack", exc)
