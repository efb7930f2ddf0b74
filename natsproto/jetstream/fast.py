"""Fast ingest: messages that a stream acknowledges hundreds at a time (ADR-50, nats-server 2.14).

Owns the messages that are not acknowledged yet and the dialogue with the stream about them. The state of a message
is told by its place: ``_kept`` begins behind what is stored, the first ``_sent - _acked`` of it were sent in the
batch in progress, the rest waits. One batch of the server follows another as need be; numbers count through.

How a batch goes on when something is lost. The server counts a batch's messages and says where one is missing. With
``gap="fail"`` it ends the batch there, so that it holds exactly what came before; the rest is sent again in a new
batch, and what the stream holds is in order and complete. With ``gap="ok"`` it goes on, and the loss is counted.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Literal, TypeAlias, Unpack

from natsproto.core.connection import Connection
from natsproto.errors import (
    ApiError,
    ConnectionLost,
    FailedMessage,
    InvalidReply,
    JetStreamError,
    LocalProtocolError,
    NatsError,
    NoStream,
    OutboxFull,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    UnsupportedByServer,
)
from natsproto.jetstream.api_errors import ErrCode, api_error
from natsproto.jetstream.codec import decode, parse
from natsproto.jetstream.info import PubAck
from natsproto.jetstream.outgoing import ExpectationArgs, as_bytes, has_msg_id, header_block, id_block
from natsproto.jetstream.retry import BUSY, pause_after, release
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike
from natsproto.protocol.subject import publish_subject

FLOW = 500
"""Messages to one acknowledgement at most; no server goes beyond."""

OUTSTANDING = 2
"""Acknowledgements awaited at a time: one is on its way while the messages of the next are sent (ADR-50)."""

API_LEVEL = 4
"""Of the first servers that know fast ingest."""

TICK = 1.0
"""Seconds of silence after which the stream is asked; after two, and without need, the batch is committed."""

START, APPEND, COMMIT, END, PING = range(5)
"""Operations, as the reply subject of a message says them."""

_FATAL = frozenset(
    {ErrCode.BATCH_PUBLISH_DISABLED, ErrCode.BATCH_PUBLISH_INVALID_PATTERN, ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID}
)


class Phase(Enum):
    """Where the batch in progress is."""

    NONE = "none"
    STARTING = "its first message is out, and no word of it yet"
    OPEN = "it takes messages"
    BROKEN = "the stream has ended it, and will say with how much"
    COMMITTING = "its end is out"


_Kept: TypeAlias = tuple[str, bytes, bytes | None]
"""Subject, payload and header block of a message. Plain, as a NamedTuple takes four times as long to make."""


class Ingest:
    """The messages of a fast publisher and its dialogue with the stream. FastPublisher adds the verbs of its user,
    which are methods of the same object because a call between two costs a tenth of a message.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        gap_ok: bool,
        flow: int,
        outstanding: int,
        max_pending_bytes: int,
        timeout: float,
        retry_attempts: int,
        retry_wait: float,
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._inbox = f"{connection.new_inbox()}."
        self._mark = self._inbox.encode()
        self._gap_ok, self._flow, self._outstanding = gap_ok, flow, outstanding
        self._max, self._max_octets = flow * outstanding, max_pending_bytes
        self._timeout = timeout
        self._retry_attempts, self._retry_wait = retry_attempts, retry_wait
        self._count = 0  # messages taken so far; the number of the last one
        self._lost_count = 0  # messages that the stream missed, or may have, with gaps allowed
        self.ack: PubAck | None = None
        """How the last batch ended: ``seq`` is the sequence of its last message in the stream, ``count`` its number
        in the batch. A publisher uses as many batches as it needs.
        """
        self._full = False  # whether _room() has to be awaited before the next message
        self._kept: list[_Kept] = []
        self._octets = 0
        self._phase = Phase.NONE
        self._batches = 0
        self._id = b""
        self._last = ""  # the subject of the last message that was settled
        self._sent = self._acked = 0  # batch sequences; _kept[0] has the sequence _acked + 1
        self._msgs = self._limit = 0  # the stream's flow, and the sequence up to which messages may be sent
        self._flowing = False  # whether the next message can be taken and sent at once
        self._asked = False  # whether nothing is sent until the stream has answered
        self._ending = END  # with what the batch is being committed
        self._commit_wanted = False
        self._refusal: tuple[int, NatsError] | None = None
        self._refused: set[int] = set()  # batch sequences that the stream will miss, and rightly
        self._unheard = self._busy = 0
        self._proven = False  # whether the stream has answered once
        self._up = False
        self._pause: asyncio.TimerHandle | None = None
        self._heads: dict[tuple[str, int, int], tuple[bytes, bytes]] = {}
        self._silence = 0  # ticks since the stream said something
        self._clock: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._failed: list[FailedMessage] = []
        self._end: NatsError | None = None
        self._end_told = False
        self._reports: Reports | None = None  # once it was entered

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up = self._connection.is_connected
        self._reports = Reports(self)
        self._connection.open_inbox(self._reports)

    # ------------------------------------------------------------ taking messages

    async def _room(self) -> None:
        """Waits until another message is taken. PublishFailed when messages failed. Cancelling takes nothing."""
        if self._outbox.wait_first:
            await self._outbox.turn()
        while self._full and self._end is None and len(self._failed) < self._max:
            if self._phase is Phase.OPEN and self._sent - self._acked == len(self._kept) < self._msgs:
                self._commit_wanted = True  # full of bytes, and too few messages for an acknowledgement
                self._pump()
            await self._wait()
        if self._end is not None or len(self._failed) >= self._max:
            self._report()

    def _take(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Takes a message, sends it if that is possible now, and returns its number."""
        if self._end is not None:
            raise self._end.with_traceback(None)
        octets = len(payload)
        key = (subject, octets, 0 if block is None else len(block))
        front, back = self._heads.get(key) or self._learn(*key)
        if self._flowing:
            sequence = self._sent + 1
            head = front + b"%d" % sequence + back
            self._outbox.put(head if block is None else head + block, payload)
            self._sent = sequence
            self._flowing = sequence < self._limit
            self._kept.append((subject, payload, block))
            self._count = number = self._count + 1
        else:
            self._kept.append((subject, payload, block))
            self._count = number = self._count + 1
            self._pump()
        self._octets = octets = self._octets + octets
        if octets >= self._max_octets or len(self._kept) >= self._max:
            self._full, self._flowing = True, False
        return number

    def _take_last(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Takes the message that ends the batch."""
        self._commit_wanted, self._flowing = True, False
        return self._take(subject, payload, block)

    async def _proof(self) -> None:
        """Waits until the stream has said that it takes the first message, or raises why not."""
        while not self._proven and self._end is None:
            await self._wait()
        if not self._proven and self._end is not None:
            failed, self._failed = self._failed, []
            self._end_told = True
            raise failed[0].error if failed else self._end

    async def _settle_all(self) -> None:
        """Waits until it is known of all messages so far what became of them: commits the batch."""
        while self._kept and self._end is None:
            self._commit_wanted = True
            self._pump()
            await self._wait()

    async def _finish_all(self) -> None:
        """As _settle_all(), and the last batch is ended too when all its messages are acknowledged."""
        while (self._kept or self._phase is not Phase.NONE) and self._end is None:
            self._commit_wanted = True
            self._pump()
            await self._wait()

    @property
    def _reported(self) -> bool:
        """Whether everything that went wrong was raised before."""
        return not self._failed and self._end_told

    def _report(self) -> None:
        """Raises PublishFailed for messages that failed since the last report, or what ended it."""
        failed, self._failed = self._failed, []
        self._make_room()
        self._end_told = True
        if failed:
            raise PublishFailed(failed) from failed[0].error
        if self._end is not None:
            raise self._end.with_traceback(None)

    def _close(self) -> None:
        """Takes and waits for nothing more."""
        self._give_up("the publisher was given up", LocalProtocolError("the publisher has ended: its block was left"))
        if self._reports is not None:
            self._connection.close_inbox(self._reports)

    # ------------------------------------------------------------ sending

    def _learn(self, subject: str, octets: int, block: int) -> tuple[bytes, bytes]:
        """What stands before and behind the sequence on the control line of such a message; checked once for all."""
        heads = self._connection.heads
        wire = publish_subject(subject)
        heads.full(wire, self._mark + b"_" * 60, bytes(block) if block else None, octets)
        found = self._line(wire, APPEND, octets, block)
        if self._id:
            if len(self._heads) >= 4096:
                self._heads.clear()
            self._heads[subject, octets, block] = found
        return found

    def _line(self, wire: bytes, operation: int, octets: int, block: int) -> tuple[bytes, bytes]:
        gap = b"ok" if self._gap_ok else b"fail"
        front = b"%b %b %b%b.%d.%b." % (b"HPUB" if block else b"PUB", wire, self._mark, self._id, self._flow, gap)
        sizes = b"%d %d" % (block, block + octets) if block else b"%d" % octets
        return front, b".%d.$FI %b\r\n" % (operation, sizes)

    def _send(self, operation: int, sequence: int, message: _Kept) -> None:
        subject, payload, block = message
        front, back = self._line(publish_subject(subject), operation, len(payload), len(block or b""))
        self._outbox.put(front + b"%d" % sequence + back + (block or b""), payload)

    def _pump(self) -> None:
        """Sends what can be sent now."""
        if not self._up or self._pause is not None or self._end is not None:
            return
        self._run_clock()
        try:
            if self._phase is Phase.NONE and self._kept:
                self._start()
            elif self._phase is Phase.OPEN and not self._asked:
                self._send_on()
        except OutboxFull:
            self._hold(self._retry_wait / 8)
        except NatsError as exc:  # too big for this server, or the client is closed
            self._give_up(str(exc), exc)

    def _start(self) -> None:
        self._batches += 1
        self._id = b"%b-%d" % (self._mark[-9:-1], self._batches)
        self._heads.clear()
        lone = self._commit_wanted and len(self._kept) == 1
        self._send(COMMIT if lone else START, 1, self._kept[0])
        self._sent, self._acked = 1, 0
        self._refusal, self._asked = None, False
        self._refused.clear()
        self._phase, self._ending = (Phase.COMMITTING, COMMIT) if lone else (Phase.STARTING, END)
        self._silence = 0

    def _send_on(self) -> None:
        kept = self._kept
        while (place := self._sent - self._acked) < len(kept) and self._sent < self._limit:
            last = self._commit_wanted and place == len(kept) - 1
            self._send(COMMIT if last else APPEND, self._sent + 1, kept[place])
            self._sent += 1
            if last:
                self._phase, self._ending = Phase.COMMITTING, COMMIT
        if self._phase is Phase.OPEN and self._sent - self._acked == len(kept):
            self._flowing = self._sent < self._limit and not self._full
            if self._commit_wanted:
                self._send_end()

    def _send_end(self) -> None:
        self._flowing = False
        self._send(END, self._sent + 1, (self._last_subject(), b"", None))
        self._phase, self._ending = Phase.COMMITTING, END

    @property
    def _is_lone(self) -> bool:
        """Whether the batch began and ended with one message, of which there is no word."""
        return self._phase is Phase.COMMITTING and self._ending == COMMIT and self._sent == 1

    def _ping(self) -> None:
        """Asks how far the stream is. Nothing is sent until it has answered."""
        self._asked, self._flowing = True, False
        self._send(PING, self._sent, (self._last_subject(), b"", None))

    def _last_subject(self) -> str:
        return self._kept[-1][0] if self._kept else self._last

    def _hold(self, pause: float) -> None:
        """Sends nothing for so long; a pause in progress is not prolonged."""
        self._flowing = False
        if self._pause is None:
            self._pause = self._loop.call_later(pause, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        if self._up and (self._asked or self._phase is Phase.COMMITTING):
            self._ask_again()
        self._pump()

    # ------------------------------------------------------------ what the engine reports

    def _answer(self, token: bytes, payload: bytes) -> None:
        """A reply came that is nothing but a payload. The token is what the message said of itself."""
        words = token.split(b".")
        if len(words) != 6 or words[0] != self._id or self._phase is Phase.NONE or not words[3].isdigit():
            return  # of a batch that is over
        try:
            said = parse(payload, "answer to fast ingest")
            kind = said.get("type")
            if kind == "ack":
                self._on_ack(_natural(said, "seq"), _natural(said, "msgs"))
            elif kind == "gap":
                self._on_gap(_natural(said, "last_seq"), _natural(said, "seq"))
            elif kind == "err":
                self._on_refusal(_natural(said, "seq"), api_error(said, "fast ingest"))
            elif "error" in said:
                self._on_error(int(words[3]), api_error(said, f"fast ingest to {self._last_subject()!r}"))
            else:
                self._on_end(decode(PubAck, said))
        except NatsError as exc:  # it cannot be read
            self._give_up(str(exc), exc)
        self._silence = 0
        self._pump()

    def _deliver(self, message: Message) -> None:
        """Any reply came."""
        token = message.subject[len(self._inbox) :].encode("utf-8", "surrogateescape")
        if not message.is_no_responders:
            self._answer(token, message.data)
        elif token.startswith(self._id + b".") and self._phase is not Phase.NONE:
            self._on_nobody()

    def _on_lost(self, error: ConnectionLost) -> None:
        """The connection has ended. What had not left is as if it had never been sent."""
        self._up = self._flowing = False
        for head in self._outbox.withdraw(self._mark + self._id + b"."):
            start = head.index(self._mark) + len(self._mark)
            words = head[start : head.index(b" ", start)].split(b".")
            operation = int(words[4])
            if operation in (START, APPEND, COMMIT):
                self._sent -= 1
            if self._phase is Phase.COMMITTING and operation in (COMMIT, END):
                self._phase = Phase.OPEN
        if self._sent == 0:
            self._phase = Phase.NONE
        elif self._phase is Phase.STARTING or self._is_lone:
            self._vanish(str(error))

    def _on_restored(self) -> None:
        """There is a connection again, perhaps to a server with other limits."""
        self._up = True
        self._heads.clear()
        self._silence = 0
        self._ask_again()
        self._pump()

    def _on_denied(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        if any(subject == error.subject for subject, _, _ in self._kept):
            self._give_up(str(error), error)

    def _on_ended(self, error: NatsError) -> None:
        """No reply will come any more."""
        self._give_up(str(error), error)

    # ------------------------------------------------------------ what the stream says

    def _on_ack(self, sequence: int, msgs: int) -> None:
        """Everything up to a sequence is stored (with gaps allowed: or lost); this covers all acks before it."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.OPEN
            self._proven = True
        self._asked = False
        self._unheard = self._busy = 0
        self._settle_up_to(sequence)
        self._msgs = max(1, msgs)
        self._limit = self._acked + self._msgs * self._outstanding

    def _on_gap(self, first: int, following: int) -> None:
        """The stream has missed what is from ``first`` up to ``following``."""
        if self._gap_ok:
            self._lost_count += sum(1 for missed in range(first, following) if missed not in self._refused)
        else:
            self._break()  # it says next what it has

    def _on_refusal(self, sequence: int, error: NatsError) -> None:
        """One message is not stored, because of what its headers say."""
        if self._gap_ok:
            self._fail(sequence, error)
        else:
            self._refusal = sequence, error
            self._break()

    def _on_error(self, sequence: int, error: ApiError) -> None:
        """The stream did not take a message into the batch at all."""
        code = error.err_code
        if code == ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID:
            self._vanish("the stream knows nothing of the batch any more")
        elif code in BUSY:
            pause = pause_after(self._busy, self._retry_wait)
            self._busy += 1
            self._later(pause)
        elif code in _FATAL or (sequence == 1 and not self._gap_ok):
            self._stop(sequence, error)
        elif self._gap_ok:
            self._fail(sequence, error)
            self._refused.add(sequence)
            if sequence == 1:
                self._settle_up_to(1)
                self._phase = Phase.NONE
        else:
            self._refusal = sequence, error
            self._break()
            self._ping()  # the stream will miss it, notice and say what it has

    def _on_nobody(self) -> None:
        """No stream listened to some message: there is none, or it has no leader right now."""
        self._unheard += 1
        if self._unheard > self._retry_attempts >= 0 and not self._proven:
            self._stop(self._acked + 1, NoStream(self._kept[0][0]))
        else:
            self._later(self._retry_wait)

    def _later(self, pause: float) -> None:
        """Something was not taken that may be taken later: asks the stream then how far it is, or starts again."""
        if self._pause is not None:
            return  # of many messages at once, one is enough
        if self._phase is Phase.STARTING or self._is_lone:
            self._phase = Phase.NONE
        else:
            self._asked = True
        self._hold(pause)

    def _on_end(self, ack: PubAck) -> None:
        """The batch is over, with so many messages."""
        if not ack.batch:
            self._settle_up_to(1)
            reason = f"stream {ack.stream!r} stored the message alone (nats-server 2.14 is needed)"
            self._give_up(reason, UnsupportedByServer("fast ingest", reason))
            return
        self._proven = True
        self.ack = ack
        self._settle_up_to(ack.count)
        self._phase = Phase.NONE
        self._asked = self._flowing = False
        self._commit_wanted = False
        if self._refusal is not None:
            self._stop(*self._refusal)

    def _vanish(self, reason: str) -> None:
        """Nobody can tell how far the batch came. With ids everything may be sent again."""
        doubtful = self._kept[: self._sent - self._acked]
        if not all(has_msg_id(block) for _, _, block in doubtful):
            if not self._gap_ok:
                self._give_up(reason, LocalProtocolError(f"the publisher has ended: {reason}"))
                return
            self._lost_count += len(doubtful)
            self._settle_up_to(self._sent)
        self._phase = Phase.NONE
        self._asked = self._flowing = False

    # ------------------------------------------------------------ what becomes of messages

    def _settle_up_to(self, sequence: int) -> None:
        done = min(sequence, self._sent) - self._acked
        if done > 0:
            settled = self._kept[:done]
            del self._kept[:done]
            self._octets -= sum([len(payload) for _, payload, _ in settled])
            self._last = settled[-1][0]
            self._acked += done

    def _break(self) -> None:
        self._phase = Phase.BROKEN
        self._flowing = False

    def _describe(self, place: int, error: NatsError) -> FailedMessage:
        subject, payload, _ = self._kept[place]
        return FailedMessage(self._count - len(self._kept) + place + 1, subject, len(payload), error)

    def _fail(self, sequence: int, error: NatsError) -> None:
        """One message failed, and the others go on."""
        place = sequence - self._acked - 1
        if 0 <= place < len(self._kept):
            self._failed.append(self._describe(place, error))
            self._full = self._full or len(self._failed) >= self._max

    def _stop(self, sequence: int, error: NatsError) -> None:
        """One message was refused where none may be missing: those behind it are not stored either."""
        place = max(0, sequence - self._acked - 1)
        number = self._count - len(self._kept) + place + 1
        behind = JetStreamError(f"not stored, as message {number} before it was refused")
        failed = [
            self._describe(other, error if other == place else behind)
            if other >= place
            else self._describe(other, PublishUncertain(subject, str(error)))
            for other, (subject, _, _) in enumerate(self._kept)
        ]
        self._finish(failed, LocalProtocolError(f"the publisher has ended: message {number} was refused: {error}"))

    def _give_up(self, reason: str, end: NatsError) -> None:
        """Ends everything: whatever was sent and not acknowledged may be stored."""

        def fate(place: int, subject: str) -> NatsError:
            if place >= doubtful or (isinstance(end, PermissionDenied) and subject == end.subject):
                return end
            return PublishTimeout(subject, self._timeout) if end is timeout else PublishUncertain(subject, reason)

        if self._end is None:
            doubtful = 0 if self._phase is Phase.NONE else self._sent - self._acked
            timeout = end if isinstance(end, RequestTimeout) else None
            failed = [self._describe(place, fate(place, kept[0])) for place, kept in enumerate(self._kept)]
            self._finish(failed, end)

    def _finish(self, failed: list[FailedMessage], end: NatsError) -> None:
        self._failed += failed
        self._end = end
        self._kept.clear()
        self._octets = 0
        self._phase = Phase.NONE
        self._up = self._flowing = False
        for timer in (self._clock, self._pause):
            if timer is not None:
                timer.cancel()
        self._clock = self._pause = None
        self._make_room()

    # ------------------------------------------------------------ time

    def _run_clock(self) -> None:
        if self._clock is None:
            self._clock = self._loop.call_later(min(TICK, self._timeout / 4), self._on_tick)

    def _on_tick(self) -> None:
        """Nothing waits for ever: the stream is asked, and in the end it is given up."""
        self._clock = None
        if self._phase is Phase.NONE and not self._kept:
            return  # idle: started again by the next message
        self._silence += 1
        if self._silence * min(TICK, self._timeout / 4) > self._timeout:
            self._give_up("no answer", RequestTimeout("fast ingest", self._timeout))
            return
        self._run_clock()
        if not self._up or self._pause is not None:
            return
        if self._phase is Phase.OPEN and not self._full and not self._commit_wanted:
            if self._silence >= 2 and not self._asked:
                self._commit_wanted = True
                self._pump()
        else:
            self._ask_again()

    def _ask_again(self) -> None:
        """The stream owes a word, which may have been lost on the way."""
        try:
            if self._phase is Phase.COMMITTING and self._ending == COMMIT:
                # A stream that has it already takes it for a message out of turn and does not store it again.
                self._send(COMMIT, self._sent, self._kept[self._sent - self._acked - 1])
            elif self._phase is Phase.COMMITTING:
                self._send(END, self._sent + 1, (self._last_subject(), b"", None))
            elif self._phase in (Phase.OPEN, Phase.BROKEN):
                self._ping()
            elif self._phase is Phase.STARTING and has_msg_id(self._kept[0][2]):
                self._phase = Phase.NONE
                self._pump()
        except NatsError:
            pass  # no room in the outbox: the next tick comes

    # ------------------------------------------------------------ waiting

    def _make_room(self) -> None:
        if self._full:
            low = len(self._kept) * 4 <= self._max * 3 and self._octets * 4 <= self._max_octets * 3
            self._full = not low or self._end is not None or len(self._failed) >= self._max
            if not self._full:
                self._pump()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                release(waiter)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _natural(said: dict[str, object], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or value < 0:
        raise InvalidReply("answer to fast ingest", name, value, "must be a number")
    return value


class Reports:
    """What the engine tells a fast publisher. Apart from it, so that it has no verbs that are not its user's."""

    def __init__(self, ingest: Ingest) -> None:
        self.subject = f"{ingest._inbox}>"
        self.answer = ingest._answer
        self.deliver = ingest._deliver
        self.settled = ingest._make_room
        self.lost = ingest._on_lost
        self.restored = ingest._on_restored
        self.denied = ingest._on_denied
        self.ended = ingest._on_ended


class FastPublisher(Ingest):
    """Publishes to one stream as fast as it takes messages. Made by ``js.fast_publisher()``; enter it.

    Leaving the block commits, waits until it is known of every message what became of it, and raises PublishFailed
    for those that failed. Leaving it with an exception waits for nothing. Tasks may share one; numbers tell their
    messages apart.
    """

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
        super().__init__(
            connection,
            gap_ok=gap == "ok",
            flow=flow,
            outstanding=outstanding,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
            retry_attempts=retry_attempts,
            retry_wait=retry_wait,
        )
        self._own_ids = f"{connection.new_inbox().rpartition('.')[2]}-" if auto_msg_id else ""

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
        first message is waited for: BatchRefused when the stream does not allow fast ingest, NoStream, and other
        errors of the stream as a whole. What becomes of single messages is told by PublishFailed: with ``gap="fail"``
        as soon as one was refused, and the publisher has ended then; with ``gap="ok"`` at the end, or when as many
        have failed as may be pending. ConnectionClosed when the client is. Cancelling while it waits publishes
        nothing.
        """
        if (
            self._flowing
            and msg_id is None
            and headers is None
            and not args
            and type(payload) is bytes
            and (parts := self._heads.get((subject, len(payload), 0))) is not None
            and not self._outbox.wait_first
        ):
            # The way of nearly every message: what _take() would do, without the call and what is known already.
            # (Where every message gets an id of its own, none is looked up without a header block.)
            sequence = self._sent + 1
            self._outbox.put(parts[0] + b"%d" % sequence + parts[1], payload)
            self._sent = sequence
            self._kept.append((subject, payload, None))
            self._octets = octets = self._octets + len(payload)
            if sequence >= self._limit or octets >= self._max_octets:
                self._flowing = False
                self._full = octets >= self._max_octets or len(self._kept) >= self._max
            self._count = number = self._count + 1
            return number
        self._check_entered()
        if self._full or self._outbox.wait_first:
            await self._room()
        payload = as_bytes(payload)
        number = self._take(subject, payload, self._block(subject, msg_id, headers, args))
        if not self._proven:
            await self._proof()
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
        self._check_entered()
        if self._full or self._outbox.wait_first:
            await self._room()
        self._take_last(subject, as_bytes(payload), self._block(subject, msg_id, headers, args))
        await self._finish_all()
        self._report()
        assert self.ack is not None
        return self.ack

    async def flush(self) -> None:
        """Waits until it is known of every message so far what became of it; PublishFailed for those that failed.

        Costs a round trip, and a batch: the next message begins another. Cancelling changes nothing.
        """
        self._check_entered()
        await self._settle_all()
        self._report()

    @property
    def published(self) -> int:
        """Messages published so far; the number of the last one."""
        return self._count

    @property
    def pending(self) -> int:
        """Messages of which it is not known what became of them."""
        return len(self._kept)

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that the stream missed, or may have missed."""
        return self._lost_count

    def _check_entered(self) -> None:
        if self._reports is None:
            raise LocalProtocolError("a publisher publishes inside its block: async with js.fast_publisher() as pub")

    def _block(
        self, subject: str, msg_id: str | None, headers: HeadersLike | None, args: ExpectationArgs
    ) -> bytes | None:
        own = f"{self._own_ids}{self._count + 1}" if self._own_ids else None
        if args or headers is not None:
            block = header_block(subject, headers, {"msg_id": msg_id, **args})
            if own is not None and not has_msg_id(block):
                return header_block(subject, headers, {"msg_id": own, **args})
            return block
        msg_id = own if msg_id is None else msg_id
        return None if msg_id is None else id_block(msg_id)

    async def __aenter__(self) -> FastPublisher:
        if self._reports is not None:
            raise LocalProtocolError("a publisher can be entered once: make another one")
        server = self._connection.server_info
        if server.version and server.api_lvl < API_LEVEL:
            raise UnsupportedByServer("fast ingest", f"nats-server 2.14 is needed, this is {server.version}")
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if exc is None:
                await self._finish_all()
                if not self._reported:
                    self._report()
        finally:
            self._close()
