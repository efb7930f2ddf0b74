"""One consumer after the other, for an ordered reader (ADR-17).

Owns the consumer in use, the making of the next one, and what was read ahead. Whether a message is the next one is
decided by the OrderedCursor; what is here makes a new consumer behind the last good message when it is not, when the
connection was lost, and when nothing is heard any more. The old one is deleted without waiting for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from natsproto._core.engine import State
from natsproto._core.events import Closed, Disconnected, Event, Moved, Reconnected
from natsproto.errors import (
    ConnectionClosed,
    ConnectionLost,
    ConsumerExists,
    JetStreamUnavailable,
    LocalProtocolError,
    NatsError,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.jetstream._api import Api
from natsproto.jetstream._asking import first_answer
from natsproto.jetstream._bugs import ending
from natsproto.jetstream._config import ConsumerConfig, consumer_name
from natsproto.jetstream._consumer.consumer import create_endpoint
from natsproto.jetstream._consumer.cursor import OrderedCursor, Place
from natsproto.jetstream._consumer.deliver import PIECE, Deliveries
from natsproto.jetstream._consumer.inbox import PullInbox
from natsproto.jetstream._consumer.ledger import PullLedger
from natsproto.jetstream._consumer.pull import Puller
from natsproto.jetstream._consumer.reader import ConsumerNotice, Outlet
from natsproto.jetstream._consumer.sameness import Sameness
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage
from natsproto.jetstream._timestamp import Timestamp

READER_ID = "natsproto.reader"
"""Metadata that tell the consumers of readers with one name prefix apart."""
KEPT = 5.0
"""Seconds for which a consumer is kept after a fetch, for the next one."""
ASK_AGAIN, ASK_AGAIN_GROWTH = 0.15, 0.04
"""Seconds after which servers that do not answer are asked again for the same consumer: they have no leader, and will
not remember the question when they have one. 4 % of the time that it lasts are added.
"""
PATIENCE, FIRST_PATIENCE, LONGEST_PATIENCE = 0.15, 1.0, 5.0
PATIENCE_GROWTH, TIMES_AS_LONG = 1.25, 5.0
"""Seconds after which a consumer that is not made is given up for another one: a metadata leader that has not noticed
the death of a server yet puts one in three there, and nobody ever answers for it. The least patience is for the
successor of a consumer that was lost, if the one before did not take long; it grows with the time that it has failed.
"""
AFTER_ALL = 1.0
"""Seconds after which a consumer that was given up while it was being made is deleted once more."""
GRACE = 0.25
"""Seconds that the server gets to say that a pull has expired."""


class Carrier:
    """What carries an ordered reader: the cursor, the consumer in use, and what was read ahead."""

    def __init__(
        self, api: Api, stream: str, config: ConsumerConfig, *, push: bool, made: Timestamp, name_prefix: str = ""
    ) -> None:
        self.api, self.connection = api, api.connection
        self.stream, self.push = stream, push
        unique = api.connection.new_id()
        self.prefix = consumer_name(name_prefix) if name_prefix else unique
        if name_prefix:  # another reader's consumer of this name is not taken for ours then
            config = config.replace(metadata={**config.metadata, READER_ID: unique})
        self.is_named = bool(name_prefix)
        self.cursor = OrderedCursor(self.prefix, config, push=push)
        self.sameness = Sameness(api, stream, made, asked=f"go on with {self.what}")
        self.info: ConsumerInfo | None = None
        self.stash: deque[JsMessage] = deque()
        self._reader: OrderedFeed | None = None
        self._inbox: PullInbox | None = None  # of the consumer that is kept for the next fetch
        self._idle: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[ConsumerInfo]] = []
        self._fault: NatsError | None = None
        self._forsaken: list[str] = []  # deleted, but nobody said so
        self._took = 0.0  # how long the making of the last consumer took

    @property
    def what(self) -> str:
        """What it is called in errors."""
        return f"ordered consumer {self.prefix!r} of stream {self.stream!r}"

    @property
    def reader(self) -> OrderedFeed | None:
        """Who is reading."""
        return self._reader

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were not read: the next reader gets them first."""
        self.stash.extendleft(reversed(messages))

    def take(self, most: int) -> list[JsMessage]:
        """Up to so many messages that were read ahead."""
        stash = self.stash
        return [stash.popleft() for _ in range(min(len(stash), most))]

    # ---------------------------------------------------------------- readers

    def lend(self, reader: OrderedFeed) -> PullInbox | None:
        """Begins reading; returns the inbox of the consumer that was kept, if there is one. LocalProtocolError when
        somebody else is reading.
        """
        if self._reader is not None:
            raise LocalProtocolError(f"{self.what} is being read already: it has one reader at a time")
        self._reader = reader
        self._fault = None  # this one may have more luck
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        inbox, self._inbox = self._inbox, None
        return inbox

    def give_back(self, reader: OrderedFeed, inbox: PullInbox | None) -> None:
        """Ends reading; with an inbox its consumer is kept for a while."""
        if self._reader is not reader:
            return
        self._reader = None
        if inbox is not None:
            self._inbox = inbox
            self._idle = asyncio.get_running_loop().call_later(KEPT, self.drop)

    def drop(self) -> None:
        """Gives up the consumer that was kept."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()
            self.delete(self.cursor.name)

    # ---------------------------------------------------------------- consumers

    @property
    def patience(self) -> float:
        """How long to wait for the next consumer at first."""
        return max(PATIENCE, TIMES_AS_LONG * self._took) if self.info is not None else FIRST_PATIENCE

    async def create(self, config: ConsumerConfig, patience: float) -> None:
        """Makes this consumer, the cursor's next one. Asks again while nobody answers: a consumer may be made twice.
        RequestTimeout when it is not there after ``patience`` seconds.
        """
        endpoint, asked = create_endpoint(self.stream, config), f"create {self.what}"
        body = {"stream_name": self.stream, "config": config, "action": "create"}
        loop = asyncio.get_running_loop()

        async def ask(_: float) -> ConsumerInfo:
            begun = loop.time()
            info = await self.api.get(ConsumerInfo, endpoint, body, asked=asked, once=True)
            self._took = loop.time() - begun
            return info

        def pauses() -> Iterator[float]:
            begun = loop.time()
            while True:
                yield ASK_AGAIN + ASK_AGAIN_GROWTH * (loop.time() - begun)

        info = await first_answer(ask, pauses(), patience, asked)
        self.sameness.on_consumer(info.created)
        self.info = info
        self.cursor.on_created(info)
        for name in self._forsaken:
            self._delete(name)  # whoever was to delete it may have been on its way out
        self._forsaken.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(info)

    def delete(self, name: str) -> None:
        """Deletes a consumer without waiting for it: what is not deleted goes by itself, after inactive_threshold."""
        self._forsaken.append(name)
        self._delete(name)

    def _delete(self, name: str) -> None:
        try:
            self.connection.publish_nowait(f"{self.api.prefix}.CONSUMER.DELETE.{self.stream}.{name}")
        except NatsError:
            return

    async def created(self) -> ConsumerInfo:
        """Waits for the first one."""
        if self.info is not None:
            return self.info
        if self._fault is not None:
            raise self._fault.with_traceback(None)
        waiter: asyncio.Future[ConsumerInfo] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        finally:
            self._waiters.remove(waiter)

    def failed(self, error: NatsError) -> None:
        """There will be none."""
        self._fault = error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)


class OrderedFeed:
    """Feeds one reader from one consumer after the other. It is an Outlet and a Guard for what they deliver.

    ``patience`` is how long a single pull may take with all that has to be done for it; 0 for one without end.
    """

    def __init__(self, carrier: Carrier, ledger: PullLedger, patience: float) -> None:
        self.counts_bytes = ledger.counts_bytes and not carrier.push
        self.piece = PIECE if carrier.push else max(1, min(64, ledger.max_messages // 8))
        self._carrier, self._cursor, self._connection = carrier, carrier.cursor, carrier.connection
        self._ledger, self._patience = ledger, patience
        self._loop = asyncio.get_running_loop()
        self._outlet: Outlet | None = None
        self._source: Puller | Deliveries | None = None
        self._inbox: PullInbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None  # whether it is the same stream
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._trouble: NatsError | None = None  # why the last consumer could not be made
        self._unheard = False  # nothing has come from the consumer in use
        self._whole = False  # a single pull came to its end
        self._established = asyncio.Event()  # the first consumer exists, or nothing will come

    # ---------------------------------------------------------------- as a feed

    def start(self, outlet: Outlet) -> None:
        """Goes on where the last reader ended, with the consumer that was kept or a new one. ConnectionClosed."""
        carrier, ledger = self._carrier, self._ledger
        if self._connection.state is State.CLOSED:
            raise ConnectionClosed(f"read {carrier.what}")
        inbox = carrier.lend(self)
        self._outlet = outlet
        self._unlisten = self._connection.listen(self._on_event)
        ledger.begin(self._loop.time())
        if self._patience:
            self._timer = self._loop.call_later(self._patience + GRACE, self._expire)
        elif ready := carrier.take(ledger.total or len(carrier.stash)):
            ledger.on_stashed(len(ready), sum(m.counted_size for m in ready) if self.counts_bytes else 0)
            outlet.put(ready)
        if ledger.done:
            self._end(None)
        elif inbox is not None and self._connection.is_connected:
            self._identify_soon()
            self._pull(inbox)
            self._established.set()
        else:
            if inbox is not None:
                inbox.close()
                carrier.delete(self._cursor.name)
            self._create_soon(0.0)

    async def established(self) -> None:
        """Waits for the first consumer of this reader, over outages too."""
        await self._established.wait()

    def taken(self, count: int, size: int) -> None:
        """There is room again."""
        if isinstance(self._source, Puller):
            self._source.taken(count, size)
            return
        self._ledger.on_taken(count, size)
        if self._source is not None:
            self._source.taken(count, size)

    async def finish(self) -> None:
        """Asks for nothing more and takes in what is on its way."""
        self._cancel()
        if self._source is not None:
            try:
                await self._source.finish()
            finally:
                self.close()
        else:
            self.close()

    def close(self) -> None:
        """Ends at once. The consumer is kept after a single pull that came to its end, else deleted."""
        self._outlet = None
        self._established.set()
        self._cancel()
        if self._unlisten is None:
            return
        self._unlisten()
        self._unlisten = None
        inbox = self._inbox if self._whole and self._connection.is_connected else None
        if inbox is None:
            self._drop()
        elif self._source is not None:
            self._source.close()
            self._source = self._inbox = None
        self._carrier.give_back(self, inbox)

    # ---------------------------------------------------------------- as the outlet of a consumer

    def put(self, messages: list[JsMessage]) -> None:
        """These came, and ``accept`` has said that they are the next ones."""
        if self._outlet is None:
            return
        if messages:
            if self._carrier.push:
                self._ledger.on_stashed(len(messages), 0)
            self._outlet.put(messages)
        if self._ledger.done and (self._carrier.push or self._source is None):
            self._end(None)

    def drop_unknown(self, last_known: int) -> list[JsMessage]:
        """Nothing: the next consumer goes on behind what came."""
        return []

    def end(self, error: NatsError | None) -> None:
        """The consumer has nothing more: all that was asked for is there, the client is closed, or the server refuses
        what no other consumer would be allowed either.
        """
        self._whole = self._patience > 0 and error is None and self._ledger.done
        self._end(error)

    # ---------------------------------------------------------------- as the guard of a consumer

    def accept(self, messages: list[JsMessage]) -> int:
        """How many of these are the next ones; behind them begins another consumer."""
        cursor = self._cursor
        if self._carrier.push and self._ledger.total:
            messages = messages[: self._ledger.total - self._ledger.received]
            if not messages:
                return 0
        self._unheard = False
        try:
            consumer, consumer_seq, stream_seq = messages[-1].position
            if consumer == cursor.name and cursor.on_run(len(messages), consumer_seq, stream_seq):
                return len(messages)
        except LocalProtocolError:
            pass  # somebody else wrote to our inbox
        for count, message in enumerate(messages):
            try:
                place = cursor.on_message(*message.position)
            except LocalProtocolError:
                place = Place.STALE
            if place is not Place.NEXT:
                self._renew()
                return count
        return len(messages)

    def heard(self, last_consumer_seq: int) -> None:
        """A heartbeat said what was delivered last."""
        self._unheard = False
        if self._cursor.on_heartbeat(last_consumer_seq) is not Place.NEXT:
            self._renew()

    def lost(self, error: NatsError | None) -> None:
        """Nothing more is to be had from this consumer."""
        if error is not None:
            self._announce(error)
        self._renew()

    def broken(self, error: NatsError) -> None:
        """A bug: whoever reads hears of it, and closes what is left."""
        self._end(error)

    # ---------------------------------------------------------------- one consumer after the other

    def _renew(self) -> None:
        """The next consumer takes over. One that was never heard of had better not be followed too soon."""
        if self._outlet is None:
            return
        self._drop()
        self._ledger.begin_again()
        self._create_soon(self._cursor.on_failed() if self._unheard else 0.0)

    def _drop(self) -> None:
        """Gives up the consumer in use."""
        source, self._source = self._source, None
        inbox, self._inbox = self._inbox, None
        if source is None:
            return
        over = self._ledger.done
        source.close()
        if not over:
            self._ledger.begin_again()  # closing a puller ends its ledger, which lives on here
        if inbox is not None:
            inbox.close()
        self._carrier.delete(self._cursor.name)

    def _pull(self, inbox: PullInbox) -> None:
        puller = Puller(inbox, self._ledger, lasting=False, guard=self)
        self._inbox, self._source = inbox, puller
        puller.start(self)

    def _create_soon(self, delay: float) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._connection.is_connected:
            self._task = self._loop.create_task(self._create(delay), name="natsproto ordered consumer")

    async def _create(self, delay: float) -> None:
        """Makes the next consumer and begins to read it. What is not to be overcome ends the reading."""
        try:
            await self._try_to_create(delay)
        except Exception as exc:
            self._task = None
            self._drop()
            error = ending(f"reading {self._carrier.what}", exc)
            self._carrier.failed(error)
            self._end(None if isinstance(exc, ConnectionClosed) else error)

    async def _try_to_create(self, delay: float) -> None:
        carrier, cursor = self._carrier, self._cursor
        patience, told = carrier.patience, False
        while True:
            await asyncio.sleep(delay)
            subject = carrier.api.new_inbox() if carrier.push else ""
            config = cursor.next_consumer(deliver_subject=subject)
            self._unheard = True
            if carrier.push:
                self._source = Deliveries(
                    self._connection,
                    subject,
                    stream=carrier.stream,
                    consumer=config.name,
                    heartbeat=config.idle_heartbeat,
                    guard=self,
                    unread=self._ledger.held,
                )
                self._source.start(self)  # messages may come before the server says that it is there
            try:
                await carrier.create(config, patience)
            except asyncio.CancelledError:
                carrier.delete(config.name)
                self._loop.call_later(AFTER_ALL, carrier.delete, config.name)  # it may be there in a moment
                raise
            except Exception as exc:
                if not isinstance(exc, ConsumerExists):  # which is somebody else's
                    carrier.delete(config.name)
                if not isinstance(exc, NatsError) or self._is_final(exc):
                    raise
                if self._source is not None:
                    self._source.close()
                    self._source = None
                if isinstance(exc, RequestTimeout):
                    if patience >= FIRST_PATIENCE and not told:
                        told = True
                        self._announce(exc)
                    delay, patience = 0.0, max(patience, min(PATIENCE_GROWTH * patience, LONGEST_PATIENCE))
                    continue
                self._trouble = exc
                self._announce(exc)
                delay = cursor.on_failed()
                continue
            break
        self._task = None
        self._established.set()
        self._identify_soon()
        if not carrier.push:
            self._pull(PullInbox(carrier.api, carrier.stream, config.name))

    def _identify_soon(self) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        if self._carrier.sameness.doubtful:
            self._doubt = self._loop.create_task(self._identify(), name="natsproto identify stream")

    async def _identify(self) -> None:
        """Ends the reading of another stream than before. Asked beside the reading, which it would delay."""
        try:
            await self._carrier.sameness.settle(lambda: self._cursor.stream_seq)
        except Exception as exc:
            self._doubt = None
            if isinstance(exc, StreamNotFound):
                self._drop()
            self._end(ending(f"reading {self._carrier.what}", exc))

    def _is_final(self, error: NatsError) -> bool:
        """Whether trying again is of no use."""
        if isinstance(error, (StreamNotFound, PermissionDenied, ConnectionClosed)):
            return True
        if isinstance(error, (JetStreamUnavailable, RequestTimeout, ConnectionLost)):
            return False
        if isinstance(error, ConsumerExists) and self._carrier.is_named:
            return False  # another reader has the same prefix: the next number may be free
        # A server that took this configuration before does not refuse it for good, whatever it says now.
        return self._carrier.info is None

    def _on_event(self, event: Event) -> None:
        # A pull consumer may have lived through it and lost nothing: it is asked first, and what it says within a
        # quarter of a second shows whether that is so. What was pushed meanwhile went nowhere.
        try:
            if isinstance(event, Disconnected):
                if self._task is not None:
                    self._task.cancel()
                    self._task = None
                if not isinstance(self._source, Puller):
                    self._drop()
            elif isinstance(event, (Reconnected, Moved)) and not isinstance(self._source, Puller):
                self._drop()
                self._create_soon(0.0)
            elif isinstance(event, Closed) and self._source is None:
                self._carrier.failed(ConnectionClosed(f"read {self._carrier.what}"))
                self._end(None)  # there will be no consumer that could say so
        except Exception as exc:
            self.broken(ending(f"reading {self._carrier.what}", exc))

    def _expire(self) -> None:
        """The time of a single pull is over, and there is no consumer that could say so."""
        self._timer = None
        self._end(self._trouble if self._carrier.info is None else None)

    def _end(self, error: NatsError | None) -> None:
        outlet, self._outlet = self._outlet, None
        self._established.set()
        self._cancel()
        if error is not None:
            self._carrier.failed(error)
        if outlet is not None:
            if error is not None and not self._patience:
                self._announce(error)
            outlet.end(error)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None

    def _announce(self, error: NatsError) -> None:
        self._connection.announce(ConsumerNotice(stream=self._carrier.stream, consumer=self._cursor.name, error=error))
