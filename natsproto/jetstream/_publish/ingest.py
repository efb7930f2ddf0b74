"""PURE. Fast ingest as the client sees it (ADR-50): which messages the stream has, and what to say to it next.

Owns the messages that are not acknowledged yet and the state of the dialogue about them. It sends nothing and knows
no clock: ``due`` is what to say now and ``said`` that it was said, ``hear`` takes an answer and returns for how long
to say nothing, ``tick`` is a while of silence.

The state of a message is told by its place: ``_kept`` begins behind what is stored, the first ``sent - acked`` of it
were sent in the batch in progress, the rest waits. One batch of the server follows another as need be; numbers count
through.

How a batch goes on when something is lost. The server counts a batch's messages and says where one is missing. With
``gap="fail"`` it ends the batch there, so that it holds exactly what came before; the rest is sent again in a new
batch, and what the stream holds is in order and complete. With ``gap="ok"`` it goes on, and the loss is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from natsproto.errors import (
    ApiError,
    FailedMessage,
    InvalidReply,
    JetStreamError,
    LocalProtocolError,
    NatsError,
    NoStream,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    UnsupportedByServer,
)
from natsproto.jetstream._api_errors import ErrCode, api_error
from natsproto.jetstream._codec import parse
from natsproto.jetstream._info import PubAck, ack_of
from natsproto.jetstream._publish.outgoing import has_msg_id
from natsproto.jetstream._publish.retry import BUSY, pause_after

_FATAL = frozenset(
    {ErrCode.BATCH_PUBLISH_DISABLED, ErrCode.BATCH_PUBLISH_INVALID_PATTERN, ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID}
)


class Operation(IntEnum):
    """What a message does in its batch, as its reply subject says it."""

    START = 0
    APPEND = 1
    COMMIT = 2
    END = 3
    PING = 4


class Phase(Enum):
    """Where the batch in progress is."""

    NONE = "none"
    STARTING = "its first message is out, and no word of it yet"
    OPEN = "it takes messages"
    BROKEN = "the stream has ended it, and will say with how much"
    COMMITTING = "its end is out"


Kept: TypeAlias = tuple[str, bytes, bytes | None]
"""Subject, payload and header block of a message. Plain, as a NamedTuple takes four times as long to make."""


class Words(NamedTuple):
    """Something to say to the stream."""

    operation: Operation
    sequence: int
    message: Kept


class IngestLedger:
    """The messages of one fast publisher. What it bounds and for how long is documented at ``js.fast_publisher``."""

    # With slots, as CPython finds more than thirty attributes of an object a third slower.
    __slots__ = (
        *("ack", "batch", "end", "flowing", "full", "lost", "proven", "sent"),
        *("_acked", "_again", "_asked", "_batches", "_busy", "_closing", "_closings", "_commit_wanted", "_failed"),
        *("_gap_ok", "_kept", "_last", "_limit", "_max", "_max_octets", "_msgs", "_name", "_octets", "_outstanding"),
        *("_patience", "_phase", "_refusal", "_refused", "_retry_attempts", "_retry_wait", "_settled", "_silence"),
        *("_timeout", "_told", "_unheard", "_until"),
    )

    def __init__(
        self,
        name: bytes,
        *,
        gap_ok: bool,
        flow: int,
        outstanding: int,
        max_pending_bytes: int,
        timeout: float,
        tick: float,
        retry_attempts: int,
        retry_wait: float,
    ) -> None:
        """``name`` begins the ids of the batches; ``tick`` is how many seconds ``tick()`` stands for."""
        self._name = name
        self._gap_ok, self._outstanding = gap_ok, outstanding
        self._max, self._max_octets = flow * outstanding, max_pending_bytes
        self._timeout, self._patience = timeout, int(timeout / tick)
        self._retry_attempts, self._retry_wait = retry_attempts, retry_wait
        self.lost = 0
        """Messages that the stream missed, or may have, with gaps allowed."""
        self.ack: PubAck | None = None
        """How the last batch ended."""
        self.batch = b"%b-1" % name
        """The id of the batch in progress, or of the next."""
        self.sent = 0
        """The sequence of the last message sent in the batch."""
        self.flowing = False
        """Whether the next message can be sent at once and be taken with ``take_sent``."""
        self.full = False
        """Whether room has to be waited for before the next message."""
        self.proven = False
        """Whether the stream has ever taken a message."""
        self.end: NatsError | None = None
        """Why nothing is taken any more."""
        self._kept: list[Kept] = []
        self._settled = 0  # messages that were kept once
        self._octets = 0
        self._batches = 1
        self._acked = 0  # batch sequence; _kept[0] has the one behind it
        self._limit = 0  # the batch sequence up to which messages may be sent
        self._msgs = 0  # the stream's flow
        self._until = 0  # while it flows: the batch sequence at which it is to be looked at again
        self._last = ""  # the subject of the last message that was settled
        self._phase = Phase.NONE
        self._closing = Operation.END  # with what the batch is being committed
        self._closings = 0  # how often that was said
        self._commit_wanted = False
        self._asked = False  # whether nothing is sent until the stream has answered
        self._again = False  # whether to ask for the word that the stream owes
        self._silence = 0  # ticks since the stream said something
        self._unheard = self._busy = 0
        self._refusal: tuple[int, NatsError] | None = None
        self._refused: set[int] = set()  # batch sequences that the stream will miss, and rightly
        self._failed: list[FailedMessage] = []
        self._told = False  # whether the end was

    # ------------------------------------------------------------ what can be told

    @property
    def count(self) -> int:
        """Messages taken so far; the number of the last one."""
        return self._settled + len(self._kept)

    @property
    def pending(self) -> int:
        """Messages of which it is not known what became of them."""
        return len(self._kept)

    def is_settled(self, number: int) -> bool:
        """Whether it is known what became of this message."""
        return number <= self._settled

    @property
    def idle(self) -> bool:
        """Whether nothing is owed by either side."""
        return self._phase is Phase.NONE and not self._kept

    @property
    def choked(self) -> bool:
        """Whether as many messages have failed, untold, as may be pending."""
        return len(self._failed) >= self._max

    @property
    def told(self) -> bool:
        """Whether everything that went wrong was raised before."""
        return not self._failed and self._told

    def outcome(self) -> NatsError | None:
        """What to raise: for the messages that failed since this was asked last, or for the end of it all."""
        failed, self._failed = self._failed, []
        self._told = True
        if failed:
            error = PublishFailed(failed)
            error.__cause__ = failed[0].error
            return error
        return self.end

    def refusal(self, number: int) -> NatsError | None:
        """What to raise when this one of the very first messages was not taken."""
        if self.end is None:  # others may be taken: of them others are told
            own = [failed for failed in self._failed if failed.number == number]
            self._failed = [failed for failed in self._failed if failed.number != number]
            return own[0].error if own else None
        error = self.outcome()
        return error.failures[0].error if isinstance(error, PublishFailed) else error

    # ------------------------------------------------------------ taking messages

    def take_sent(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Takes a message that was just sent as the next of the batch, and returns its number; if ``flowing``."""
        kept = self._kept
        kept.append((subject, payload, block))
        self.sent = sent = self.sent + 1
        self._octets = octets = self._octets + len(payload)
        if sent >= self._until or octets >= self._max_octets:
            self._look()
        return self._settled + len(kept)

    def take(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Takes a message that has yet to be sent, and returns its number."""
        self._kept.append((subject, payload, block))
        self._octets += len(payload)
        self._look()
        return self.count

    def _look(self) -> None:
        self.flowing = False
        if self._octets >= self._max_octets or len(self._kept) >= self._max:
            self.full = True

    def commit(self) -> None:
        """The batch is to end with what was taken so far, or with the message that is taken next."""
        self._commit_wanted, self.flowing = True, False

    def hurry(self) -> None:
        """Somebody waits for room: a batch that is full of bytes may hold too few messages for an acknowledgement."""
        if self._phase is Phase.OPEN and self.sent - self._acked == len(self._kept) < self._msgs:
            self.commit()

    def make_room(self) -> bool:
        """Whether it was full and is so no more: a quarter has to be free."""
        if not self.full or self.end is not None or self.choked:
            return False
        self.full = len(self._kept) * 4 > self._max * 3 or self._octets * 4 > self._max_octets * 3
        return not self.full

    # ------------------------------------------------------------ what to say

    def due(self) -> Words | None:
        """What is to be said now; None when there is nothing before something else happens."""
        kept = self._kept
        if self.end is not None:
            return None
        if self._again and (words := self._reminder()) is not None:
            return words
        if self._phase is Phase.NONE and kept:
            lone = self._commit_wanted and len(kept) == 1
            return Words(Operation.COMMIT if lone else Operation.START, 1, kept[0])
        if self._phase is not Phase.OPEN or self._asked:
            return None
        place = self.sent - self._acked
        if place < len(kept):
            if self.sent >= self._limit:
                return None
            last = self._commit_wanted and place == len(kept) - 1
            return Words(Operation.COMMIT if last else Operation.APPEND, self.sent + 1, kept[place])
        return Words(Operation.END, self.sent + 1, self._empty()) if self._commit_wanted else None

    def said(self, words: Words) -> None:
        """It has been handed over."""
        operation = words.operation
        if operation is Operation.PING:
            self._asked = True
        elif operation is Operation.START:
            self._phase = Phase.STARTING  # and the silence goes on: it is begun again and again while nobody answers
        elif operation is not Operation.APPEND:
            self._phase, self._closing = Phase.COMMITTING, operation
            self._closings += 1
        if operation is not Operation.END:
            self.sent = words.sequence
        self._again = self.flowing = False

    def flow(self) -> None:
        """Nothing is due: the next message can go out as soon as it is taken, if the batch takes it."""
        in_step = self._phase is Phase.OPEN and not self._asked and self.sent - self._acked == len(self._kept)
        self.flowing = in_step and self.sent < self._limit and not self.full and self.end is None
        self._until = min(self._limit, self._acked + self._max)

    def _reminder(self) -> Words | None:
        """What asks for the word that the stream owes."""
        if self._phase is Phase.COMMITTING and self._closing is Operation.COMMIT:
            last = self._kept[self.sent - self._acked - 1]
            if self.sent == 1 and not has_msg_id(last[2]):
                return None  # a server that has ended the batch would begin it anew with this, and store it again
            # Behind other messages a COMMIT begins nothing: a stream that has ended the batch says that it knows none.
            return Words(Operation.COMMIT, self.sent, last)
        if self._phase is Phase.COMMITTING:
            return Words(Operation.END, self.sent + 1, self._empty())
        if self._phase in (Phase.OPEN, Phase.BROKEN):
            return Words(Operation.PING, self.sent, self._empty())
        return None

    def _empty(self) -> Kept:
        return (self.subject, b"", None)

    @property
    def subject(self) -> str:
        """One that leads to the stream."""
        return self._kept[-1][0] if self._kept else self._last

    # ------------------------------------------------------------ the connection

    def hold(self) -> None:
        """Nothing can be said for now."""
        self.flowing = False

    def unsay(self, withdrawn: Iterable[Operation], reason: str) -> None:
        """The connection is lost, and these had not left: they are as if they had never been said."""
        self._unheard = 0
        if self._phase is Phase.NONE:
            return
        self.flowing = False
        for operation in withdrawn:
            if operation in (Operation.COMMIT, Operation.END) and self._phase is Phase.COMMITTING:
                self._closings -= 1
                if self._closings:
                    continue  # said again in vain: it may have left the first time
                self._phase = Phase.OPEN
            if operation in (Operation.START, Operation.APPEND, Operation.COMMIT):
                self.sent -= 1
        if self.sent == 0:
            self._end_batch()
        elif self._phase is Phase.STARTING or self._is_lone:
            self._vanish(reason)

    def ask_again(self) -> None:
        """The stream owes a word, which may have been lost on the way."""
        self._silence = 0
        self._remind()

    def resume(self) -> None:
        """The pause that an answer has asked for is over."""
        if self._asked or self._phase is Phase.COMMITTING:
            self._remind()

    def _remind(self) -> None:
        if self._phase is Phase.STARTING:
            if has_msg_id(self._kept[0][2]):
                self._end_batch()  # a word of it that comes late is not heard
        else:
            self._again = self._phase is not Phase.NONE

    def tick(self, *, mute: bool) -> None:
        """Nothing was heard for a tick; ``mute`` says that nothing can be said. In the end it is given up."""
        self._silence += 1
        if self._silence > self._patience:
            if self._unheard and self._phase is Phase.NONE:  # a stream that there was is gone
                self._stop(1, NoStream(self._kept[0][0]))
            else:
                self.give_up("no answer", RequestTimeout("fast ingest", self._timeout))
        elif mute:
            return
        elif self._phase is not Phase.OPEN or self.full or self._commit_wanted or self._asked:
            self._remind()
        elif self._silence >= 2:
            self.commit()

    @property
    def _is_lone(self) -> bool:
        """Whether the batch began and ended with one message, of which there is no word."""
        return self._phase is Phase.COMMITTING and self._closing is Operation.COMMIT and self.sent == 1

    # ------------------------------------------------------------ what the stream says

    def hear(self, batch: bytes, sequence: int, payload: bytes) -> float:
        """An answer to this message of this batch; returns for how many seconds to say nothing."""
        if batch != self.batch or self._phase is Phase.NONE:
            return 0  # of a batch that is over
        self._silence = 0
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
                return self._on_error(sequence, api_error(said, f"fast ingest to {self.subject!r}"))
            else:
                self._on_end(ack_of(said))
        except NatsError as exc:  # it cannot be read
            self.give_up(str(exc), exc)
        return 0

    def hear_nobody(self, batch: bytes) -> float:
        """No stream listened to some message: there is none, or it has no leader right now. As ``hear``."""
        if batch != self.batch or self._phase is Phase.NONE:
            return 0
        self._unheard += 1
        # With a stream that there was an election is waited for; and in a batch what was sent before may be stored.
        starting = self._phase is Phase.STARTING or self._is_lone
        if starting and self._unheard > self._retry_attempts >= 0 and not self.proven:
            self._stop(self._acked + 1, NoStream(self._kept[0][0]))
            return 0
        return self._later(self._retry_wait)

    def _on_ack(self, sequence: int, msgs: int) -> None:
        """Everything up to a sequence is stored (with gaps allowed: or lost); this covers all acks before it."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.OPEN
            self.proven = True
        self._asked = self._again = False
        self._unheard = self._busy = 0
        self._settle_up_to(sequence)
        self._msgs = max(1, msgs)
        self._limit = self._acked + self._msgs * self._outstanding

    def _on_gap(self, first: int, following: int) -> None:
        """The stream has missed what is from ``first`` up to ``following``."""
        if self._gap_ok:
            missed = range(max(first, self._acked + 1), min(following, self.sent + 1))
            self.lost += len(missed) - sum(1 for sequence in self._refused if sequence in missed)
        else:
            self._break()  # it says next what it has

    def _on_refusal(self, sequence: int, error: NatsError) -> None:
        """One message is not stored, because of what its headers say."""
        if self._gap_ok:
            self._fail(sequence, error)
        else:
            self._refusal = sequence, error
            self._break()

    def _on_error(self, sequence: int, error: ApiError) -> float:
        """The stream did not take a message into the batch at all."""
        code = error.err_code
        if code == ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID:
            self._vanish("the stream knows nothing of the batch any more")
        elif code in BUSY:
            self._busy += 1
            return self._later(pause_after(self._busy - 1, self._retry_wait))
        elif code in _FATAL or (sequence == 1 and not self._gap_ok):
            self._stop(sequence, error)
        elif self._gap_ok:
            self._fail(sequence, error)
            self._refused.add(sequence)
            if sequence == 1:
                self._settle_up_to(1)
                self._end_batch()
        else:
            self._refusal = sequence, error
            self._break()
            self._again = True  # the stream will miss it, notice and say what it has
        return 0

    def _later(self, pause: float) -> float:
        """Something was not taken that may be taken later: asks the stream then how far it is, or starts again."""
        if self._phase is Phase.STARTING or self._is_lone:
            self._end_batch()
        else:
            self._asked, self.flowing = True, False
        return pause

    def _on_end(self, ack: PubAck) -> None:
        """The batch is over, with so many messages."""
        if not ack.batch:
            self._settle_up_to(1)
            reason = f"stream {ack.stream!r} stored the message alone (nats-server 2.14 is needed)"
            self.give_up(reason, UnsupportedByServer("fast ingest", reason))
            return
        self.proven = True
        self._unheard = 0
        self.ack = ack
        self._settle_up_to(ack.count)
        self._commit_wanted = False
        if self._refusal is not None:
            self._stop(*self._refusal)
        else:
            self._end_batch()

    def _vanish(self, reason: str) -> None:
        """Nobody can tell how far the batch came. With ids everything may be sent again."""
        doubtful = self._kept[: self.sent - self._acked]
        if not all(has_msg_id(block) for _, _, block in doubtful):
            if not self._gap_ok:
                self.give_up(reason, LocalProtocolError(f"the publisher has ended: {reason}"))
                return
            self.lost += len(doubtful)
            self._settle_up_to(self.sent)
        self._end_batch()

    def _break(self) -> None:
        self._phase = Phase.BROKEN
        self.flowing = False

    def _end_batch(self) -> None:
        """What was not settled is sent in the next."""
        self._phase = Phase.NONE
        self._batches += 1
        self.batch = b"%b-%d" % (self._name, self._batches)
        self.sent = self._acked = self._closings = 0
        self._asked = self._again = self.flowing = False
        self._refusal = None
        self._refused.clear()

    # ------------------------------------------------------------ what becomes of messages

    def _settle_up_to(self, sequence: int) -> None:
        done = min(sequence, self.sent) - self._acked
        if done > 0:
            settled = self._kept[:done]
            del self._kept[:done]
            self._octets -= sum([len(payload) for _, payload, _ in settled])
            self._last = settled[-1][0]
            self._acked += done
            self._settled += done

    def _describe(self, place: int, error: NatsError) -> FailedMessage:
        subject, payload, _ = self._kept[place]
        return FailedMessage(self._settled + place + 1, subject, len(payload), error)

    def _fail(self, sequence: int, error: NatsError) -> None:
        """One message failed, and the others go on."""
        place = sequence - self._acked - 1
        if 0 <= place < len(self._kept):
            self._failed.append(self._describe(place, error))
            self.full = self.full or self.choked

    def _stop(self, sequence: int, error: NatsError) -> None:
        """One message was refused where none may be missing: those behind it are not stored either."""
        place = max(0, sequence - self._acked - 1)
        number = self._settled + place + 1
        behind = JetStreamError(f"not stored, as message {number} before it was refused")
        failed = [
            self._describe(other, error if other == place else behind)
            if other >= place
            else self._describe(other, PublishUncertain(subject, str(error)))
            for other, (subject, _, _) in enumerate(self._kept)
        ]
        self._finish(failed, LocalProtocolError(f"the publisher has ended: message {number} was refused: {error}"))

    def deny(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        if any(subject == error.subject for subject, _, _ in self._kept):
            self.give_up(str(error), error)

    def give_up(self, reason: str, end: NatsError) -> None:
        """Ends everything: whatever was sent and not acknowledged may be stored. Nothing, if it has ended before."""
        if self.end is not None:
            return
        doubtful = 0 if self._phase is Phase.NONE else self.sent - self._acked
        failed = [
            self._describe(place, self._fate(subject, reason, end) if place < doubtful else end)
            for place, (subject, _, _) in enumerate(self._kept)
        ]
        self._finish(failed, end)

    def _fate(self, subject: str, reason: str, end: NatsError) -> NatsError:
        if isinstance(end, PermissionDenied) and subject == end.subject:
            return end
        if isinstance(end, RequestTimeout):
            return PublishTimeout(subject, self._timeout)
        fate = PublishUncertain(subject, reason)
        fate.__cause__ = end
        return fate

    def _finish(self, failed: list[FailedMessage], end: NatsError) -> None:
        self._failed += failed
        self.end = end
        self._settled += len(self._kept)
        self._kept.clear()
        self._octets = 0
        self._end_batch()


def _natural(said: dict[str, object], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or value < 0:
        raise InvalidReply("answer to fast ingest", name, value, "must be a number")
    return value
