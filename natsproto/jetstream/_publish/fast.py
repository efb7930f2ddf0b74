"""Fast ingest: messages that a stream acknowledges hundreds at a time (ADR-50, nats-server 2.14).

Owns the wire and the clock of it: the control lines, the inbox, the timers and those who wait. What is to be said,
and what became of each message, is the ledger's (see ``ingest``).
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal, Unpack

from natsproto._core.connection import Connection
from natsproto._core.waiting import Waiters
from natsproto.errors import (
    ConnectionLost,
    LocalProtocolError,
    NatsError,
    OutboxFull,
    PermissionDenied,
)
from natsproto.jetstream._bugs import ending, ends_on_bugs
from natsproto.jetstream._info import PubAck
from natsproto.jetstream._publish.ingest import IngestLedger, Operation, Words
from natsproto.jetstream._publish.outgoing import (
    ExpectationArgs,
    Novelty,
    as_bytes,
    has_msg_id,
    header_block,
    id_block,
)
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

FLOW = 500
"""Messages to one acknowledgement at most; no server goes beyond."""

OUTSTANDING = 2
"""Acknowledgements awaited at a time: one is on its way while the messages of the next are sent (ADR-50)."""

API_LEVEL = 4
"""Of the first servers that know fast ingest."""

_NEED = Novelty("fast ingest", "2.14", API_LEVEL)

TICK = 1.0
"""Seconds of silence after which the stream is asked; after two, and without need, the batch is committed."""


class Lines:
    """The control lines of fast messages. Their reply subject says to what, how, and the how manieth each is:
    ``<inbox>.<batch>.<flow>.<gap>.<sequence>.<operation>.$FI``.
    """

    def __init__(self, connection: Connection, *, gap: str, flow: int) -> None:
        self._heads = connection.heads
        self.inbox = f"{connection.new_inbox()}."
        self._mark = self.inbox.encode()
        self._manner = b".%d.%b." % (flow, gap.encode())
        self._batch = b""
        self.known: dict[tuple[str, int, int], bytes] = {}
        """By subject, size of the payload and of the header block: the line of a message that was checked and is
        appended to the batch, with %d for its sequence.
        """

    @property
    def name(self) -> bytes:
        """What nobody else calls his batches."""
        return self._mark[-9:-1]

    def begin(self, batch: bytes) -> None:
        """From now on lines are of this batch."""
        if batch != self._batch:
            self._batch = batch
            self.known.clear()

    def forget(self) -> None:
        """Messages are to be checked again: the server has changed, and its limits with it."""
        self.known.clear()

    def learn(self, subject: str, octets: int, block: int) -> bytes:
        """What belongs into ``known``. Raises for what cannot be sent."""
        wire = self._heads.wire(subject)
        self._heads.full(wire, self._mark + b"_" * 60, bytes(block) if block else None, octets)
        found = self._pattern(wire, Operation.APPEND, octets, block)
        if self._batch:
            if len(self.known) >= 4096:
                self.known.clear()
            self.known[subject, octets, block] = found
        return found

    def line(self, words: Words) -> bytes:
        """The control line, and the header block, of anything that is said in the batch."""
        subject, payload, block = words.message
        pattern = self._pattern(self._heads.wire(subject), words.operation, len(payload), len(block or b""))
        return pattern % words.sequence + (block or b"")

    def _pattern(self, wire: bytes, operation: Operation, octets: int, block: int) -> bytes:
        verb, sizes = (b"HPUB", b"%d %d" % (block, block + octets)) if block else (b"PUB", b"%d" % octets)
        front = b"%b %b %b%b%b" % (verb, wire, self._mark, self._batch, self._manner)
        return front.replace(b"%", b"%%") + b"%%d.%d.$FI %b\r\n" % (operation, sizes)

    @property
    def mark(self) -> bytes:
        """What every line of the batch has in it, and no other line."""
        return self._mark + self._batch + b"."

    def operation_of(self, line: bytes) -> Operation:
        """What one of its own lines says."""
        start = line.index(self._mark)
        return Operation(int(line[start : line.index(b" ", start)].split(b".")[-2]))

    @staticmethod
    def read(token: bytes) -> tuple[bytes, int] | None:
        """The batch and the sequence of the message that is answered; None for what no message of ours has said."""
        words = token.split(b".")
        if len(words) != 6 or not words[3].isdigit() or len(words[3]) > 20:
            return None
        return words[0], int(words[3])


class Dialogue:
    """Carries out what a ledger decides. To the engine it is an inbox, which hears what the stream says."""

    def __init__(
        self, connection: Connection, ledger: IngestLedger, lines: Lines, *, tick: float, retry_wait: float
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._ledger, self._lines = ledger, lines
        self._tick, self._retry_wait = tick, retry_wait
        self._loop = asyncio.get_running_loop()
        self._up = connection.is_connected
        self._pause: asyncio.TimerHandle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._waiting = Waiters()
        self.subject = f"{lines.inbox}>"
        connection.open_inbox(self)

    def close(self) -> None:
        """Takes and waits for nothing more."""
        left = LocalProtocolError("the publisher has ended: its block was left")
        self._ledger.give_up("the publisher was given up", left)
        self._stop()
        self._connection.close_inbox(self)

    # ------------------------------------------------------------ what the publisher wants

    async def room(self) -> None:
        """Waits until another message is taken, or there is an outcome to be told. Cancelling takes nothing."""
        ledger = self._ledger
        if self._outbox.wait_first:
            await self._outbox.turn()
        while ledger.full and ledger.end is None and not ledger.choked:
            ledger.hurry()
            self.pump()
            await self._waiting.wait()

    def take(self, subject: str, payload: bytes, block: bytes | None, *, last: bool = False) -> int:
        """Takes a message, sends it if that is possible now, and returns its number. ``last`` ends the batch."""
        ledger = self._ledger
        key = subject, len(payload), len(block or b"")
        pattern = self._lines.known.get(key) or self._lines.learn(*key)
        if last:
            ledger.commit()
        if ledger.flowing:
            self._outbox.put(pattern % (ledger.sent + 1) + (block or b""), payload)
            return ledger.take_sent(subject, payload, block)
        number = ledger.take(subject, payload, block)
        self.pump()
        return number

    async def proof(self, number: int) -> None:
        """Waits until the stream has taken a message for the first time, or it is known that it does not take this."""
        ledger = self._ledger
        while not ledger.proven and ledger.end is None and not ledger.is_settled(number):
            await self._waiting.wait()

    async def settle(self, *, finish: bool = False) -> None:
        """Waits until it is known of all messages what became of them, for which the batch is committed.

        With ``finish`` also a batch is ended of which all messages are acknowledged.
        """
        ledger = self._ledger
        while (ledger.pending or (finish and not ledger.idle)) and ledger.end is None:
            ledger.commit()
            self.pump()
            await self._waiting.wait()

    def pump(self) -> None:
        """Says what is due."""
        ledger = self._ledger
        if ledger.end is not None:
            self._stop()
            return
        self._run_clock()
        if not self._up or self._pause is not None:
            return
        self._lines.begin(ledger.batch)
        try:
            while (words := ledger.due()) is not None:
                self._outbox.put(self._lines.line(words), words.message[1])
                ledger.said(words)
            ledger.flow()
        except OutboxFull:
            self._hold(self._retry_wait / 8)
        except NatsError as exc:  # too big for this server, or the client is closed
            ledger.give_up(str(exc), exc)
            self._stop()

    # ------------------------------------------------------------ what the engine reports

    @ends_on_bugs
    def answer(self, token: bytes, payload: bytes) -> None:
        """A reply came that is nothing but a payload. The token is what the message said of itself."""
        if (place := self._lines.read(token)) is not None:
            self._heard(self._ledger.hear(*place, payload))

    @ends_on_bugs
    def deliver(self, message: Message) -> None:
        """Any reply came."""
        token = message.subject[len(self._lines.inbox) :].encode("utf-8", "surrogateescape")
        if not message.is_no_responders:
            self.answer(token, message.data)
        elif (place := self._lines.read(token)) is not None:
            self._heard(self._ledger.hear_nobody(place[0]))

    @ends_on_bugs
    def settled(self) -> None:
        """All replies of one chunk are in."""
        if self._ledger.make_room():
            self.pump()
        self._wake()

    @ends_on_bugs
    def lost(self, error: ConnectionLost) -> None:
        """The connection has ended. What had not left is as if it had never been sent."""
        self._up = False
        heads = self._outbox.withdraw(self._lines.mark)
        self._ledger.unsay([self._lines.operation_of(head) for head in heads], str(error))
        self.pump()

    @ends_on_bugs
    def restored(self) -> None:
        """There is a connection again, perhaps to a server with other limits, or one that knows nothing of all this."""
        self._up = True
        if (refusal := _NEED.refusal(self._connection.server_info)) is not None:
            self._ledger.give_up(str(refusal), refusal)
        self._lines.forget()
        self._ledger.ask_again()
        self.pump()

    @ends_on_bugs
    def denied(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        self._ledger.deny(error)
        self.pump()

    @ends_on_bugs
    def ended(self, error: NatsError) -> None:
        """No reply will come any more."""
        self._ledger.give_up(str(error), error)
        self.pump()

    def broken(self, bug: Exception) -> None:
        """Something here has stumbled: there is no saying what it would do next."""
        error = ending("publishing", bug)
        self._ledger.give_up(str(error), error)
        self._stop()

    def _heard(self, pause: float) -> None:
        if pause:
            self._hold(pause)
        self.pump()

    # ------------------------------------------------------------ time

    def _hold(self, pause: float) -> None:
        """Says nothing for so long; a pause in progress is not prolonged."""
        self._ledger.hold()
        if self._pause is None:
            self._pause = self._loop.call_later(pause, self._end_pause)

    @ends_on_bugs
    def _end_pause(self) -> None:
        self._pause = None
        self._ledger.resume()
        self.pump()

    def _run_clock(self) -> None:
        if self._clock is None and not self._ledger.idle:
            self._clock = self._loop.call_later(self._tick, self._on_tick)

    @ends_on_bugs
    def _on_tick(self) -> None:
        """Nothing waits for ever: the stream is asked, and in the end it is given up."""
        self._clock = None
        if not self._ledger.idle:
            self._ledger.tick(mute=not self._up or self._pause is not None)
            self.pump()

    def _stop(self) -> None:
        for timer in (self._clock, self._pause):
            if timer is not None:
                timer.cancel()
        self._clock = self._pause = None
        self._wake()

    # ------------------------------------------------------------ waiting

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.wake()
            self._outbox.collect()  # they are about to go on


class FastPublisher:
    """Publishes to one stream as fast as it takes messages. Made by ``js.fast_publisher()``; enter it.

    Leaving the block commits, waits until it is known of every message what became of it, and raises PublishFailed
    for those that failed. Leaving it with an exception waits for nothing. Tasks may share one; numbers tell their
    messages apart.
    """

    __slots__ = (
        *("_connection", "_dialogue", "_known", "_ledger", "_lines"),
        *("_outbox", "_own_ids", "_retry_wait", "_tick"),
    )

    def __init__(
        self,
        connection: Connection,
        *,
        gap: Literal["fail", "ok"],
        flow: int,
        outstanding: int,
        max_pending_bytes: int,
        timeout: float,
        retry_attempts: int,
        retry_wait: float,
        auto_msg_id: bool,
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._lines = Lines(connection, gap=gap, flow=flow)
        self._known = self._lines.known
        self._tick, self._retry_wait = min(TICK, timeout / 4), retry_wait
        self._ledger = IngestLedger(
            self._lines.name,
            gap_ok=gap == "ok",
            flow=flow,
            outstanding=outstanding,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
            tick=self._tick,
            retry_attempts=retry_attempts,
            retry_wait=retry_wait,
        )
        self._dialogue: Dialogue | None = None  # once it was entered
        self._own_ids = f"{connection.new_id()}-" if auto_msg_id else ""

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> int:
        """Publishes a message and returns its number, from 1. Waits only while too many are not acknowledged.

        The arguments are those of ``JetStream.publish``, and bad ones raise the same errors, with nothing sent. The
        first message that is taken is waited for, and so are those before it: BatchRefused when the stream does not
        allow fast ingest, NoStream, and why else it is refused. What becomes of others is told by PublishFailed: with
        ``gap="fail"`` as soon as one was refused, and the publisher has ended then; with ``gap="ok"`` at the end, or
        when as many have failed as may be pending. ConnectionClosed when the client is. Cancelling while it waits
        publishes nothing.
        """
        ledger = self._ledger
        if (
            ledger.flowing
            and msg_id is None
            and headers is None
            and not args
            and type(payload) is bytes
            and (pattern := self._known.get((subject, len(payload), 0))) is not None
            and not self._outbox.wait_first
        ):
            # The way of nearly every message; where all get an id of their own, none is known without a block.
            self._outbox.put(pattern % (ledger.sent + 1), payload)
            return ledger.take_sent(subject, payload, None)
        dialogue = await self._ready()
        payload = as_bytes(payload)
        number = dialogue.take(subject, payload, self._block(subject, msg_id, headers, args))
        if not ledger.proven:
            await dialogue.proof(number)
            if not ledger.proven and (refusal := ledger.refusal(number)) is not None:
                dialogue.settled()  # a failure that was told makes room
                raise refusal
        return number

    async def commit(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        msg_id: str | None = None,
        headers: HeadersLike | None = None,
        **args: Unpack[ExpectationArgs],
    ) -> PubAck:
        """Publishes the last message and waits for the acknowledgement of all; raises what leaving the block does."""
        dialogue = await self._ready()
        dialogue.take(subject, as_bytes(payload), self._block(subject, msg_id, headers, args), last=True)
        await dialogue.settle(finish=True)
        self._raise_outcome()
        assert self.ack is not None
        return self.ack

    async def flush(self) -> None:
        """Waits until it is known of every message so far what became of it; PublishFailed for those that failed.

        Costs a round trip, and a batch: the next message begins another. Cancelling changes nothing.
        """
        await self._entered().settle()
        self._raise_outcome()

    @property
    def ack(self) -> PubAck | None:
        """How the last batch ended: ``seq`` is the sequence of its last message in the stream, ``count`` its number
        in the batch. A publisher uses as many batches as it needs.
        """
        return self._ledger.ack

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._ledger.count

    @property
    def pending(self) -> int:
        """Messages of which it is not known what became of them."""
        return self._ledger.pending

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that the stream missed, or may have missed."""
        return self._ledger.lost

    def _entered(self) -> Dialogue:
        if self._dialogue is None:
            raise LocalProtocolError("a publisher publishes inside its block: async with js.fast_publisher() as pub")
        return self._dialogue

    async def _ready(self) -> Dialogue:
        """Waits until another message is taken. Raises why none is, and of which messages nobody was told."""
        dialogue = self._entered()
        if self._ledger.full or self._outbox.wait_first:
            await dialogue.room()
            if self._ledger.choked:
                self._raise_outcome()
        if self._ledger.end is not None:
            self._raise_outcome()
        return dialogue

    def _raise_outcome(self) -> None:
        """Raises PublishFailed for messages that failed since the last time, or what ended it."""
        error = self._ledger.outcome()
        self._entered().settled()  # failures that were told make room
        if error is not None:
            raise error.with_traceback(None)

    def _block(
        self, subject: str, msg_id: str | None, headers: HeadersLike | None, args: ExpectationArgs
    ) -> bytes | None:
        own = f"{self._own_ids}{self._ledger.count + 1}" if self._own_ids else None
        if args or headers is not None:
            block = header_block(subject, headers, {"msg_id": msg_id, **args})
            if own is not None and not has_msg_id(block):
                return header_block(subject, headers, {"msg_id": own, **args})
            return block
        msg_id = own if msg_id is None else msg_id
        return None if msg_id is None else id_block(msg_id)

    async def __aenter__(self) -> FastPublisher:
        if self._dialogue is not None:
            raise LocalProtocolError("a publisher can be entered once: make another one")
        if (refusal := _NEED.refusal(self._connection.server_info)) is not None:
            raise refusal
        self._dialogue = Dialogue(
            self._connection, self._ledger, self._lines, tick=self._tick, retry_wait=self._retry_wait
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        dialogue = self._entered()
        try:
            if exc is None:
                await dialogue.settle(finish=True)
                if not self._ledger.told:
                    self._raise_outcome()
        finally:
            dialogue.close()
