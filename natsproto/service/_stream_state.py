"""The two sides of a response in parts, without I/O: frames, credit, and signs of life (docs/adr-response-streams.md).

``OutgoingParts`` belongs to the responder, ``IncomingParts`` to the requester. Both get the time as an argument, and
both have ``Heartbeats``, which say when to send the next sign of life and when the peer has been silent for too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from math import inf

from natsproto import errors
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import Headers
from natsproto.service._responses import error_of

WINDOW_HEADER = "Stream-Window"
HEARTBEAT_HEADER = "Stream-Heartbeat"
IDLE_HEADER = "Stream-Idle"
END_HEADER = "Stream-End"
CANCEL = b"-CANCEL"
ALIVE = b"+WPI"
"""The sign of life of a requester that has consumed nothing since its last credit."""

EXPORT_PREFIX = "_R_."
"""The beginning of reply subjects that an export has replaced."""

PART_OVERHEAD = 64
"""Bytes that a part counts in addition to its payload, so that small parts fill a window too."""

HEARTBEAT_S, MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 5.0, 0.05, 60.0

SILENT_HEARTBEATS = 3
"""Heartbeats without a message after which the peer is given up."""

FIRST_SIGN_S = 5.0
"""Seconds after which a requester sends its first sign of life, if its heartbeat is longer."""

FIRST_SILENCE_S = 15.0
"""Seconds without any sign of life after which a responder gives a new requester up, if three heartbeats are longer."""

FIRST_CREDIT_S = 60.0
"""Seconds from the first part to the first credit, after which signs of life of a requester do not count."""

EXPORT_CREDIT_S = 3600.0
"""The same over an export, where the first credit comes when half of the window was consumed."""

PLAIN_SILENCE_S = 300.0
"""Seconds without a part after which a responder ends the plain form: only a part shows whether anybody is there."""

FIRST_CHECK_S = 1.0
"""Seconds after which a responder looks whether anybody reads the plain form; then it does so every HEARTBEAT_S."""

FIRST_IDLE_S = 0.1
"""Seconds after which a responder without a part sends where it takes credit and cancellation."""

_MARKS_PER_WINDOW = 64
"""Credit is counted in steps of this part of a window: a responder then keeps no size of each part in flight."""

_REPLIES_PER_WINDOW = 8
"""Parts with a reply subject in a window over an export."""

_MAX_SPARE = 8
_MAX_DIGITS = 18


def _reply_of(frame: Message) -> bytes | None:
    return frame.reply.encode("utf-8", "surrogateescape") if frame.reply else None


def number_of(text: str | bytes) -> int | None:
    """Return the number of a header or of a subject's last token; None for another text."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= _MAX_DIGITS else None


def denial(error: errors.NatsError) -> str:
    """Return the text for an error of the server, with advice that is not that of the error."""
    return f"{error.operation} {error.subject!r} denied" if isinstance(error, errors.PermissionDenied) else str(error)


class Pulse(Enum):
    """The result of a timer: nothing to do yet, send a sign of life, or the peer is gone."""

    WAIT = "wait"
    SEND = "send"
    SILENT = "silent"


class Heartbeats:
    """When to send a sign of life, and when the peer is given up. ``first`` is the time of the first one in seconds,
    ``silence`` the longest wait for the first one of the peer.
    """

    __slots__ = ("deadline", "heard_at", "interval", "send_at", "silence")

    def __init__(self, interval: float, now: float, first: float = inf, silence: float = inf) -> None:
        self.interval = interval
        self.heard_at = now
        """The time of the last message of the peer."""
        self.silence = min(silence, SILENT_HEARTBEATS * interval)
        """Seconds without a message after which the peer is given up."""
        self.send_at = now + min(first, interval)
        """The time of the next sign of life; every part is one."""
        self.deadline = self.send_at
        """The time at which ``on_timer`` has to be called."""

    def on_message(self, now: float) -> None:
        """The peer has sent something."""
        self.heard_at, self.silence = now, SILENT_HEARTBEATS * self.interval

    def on_timer(self, now: float) -> Pulse:
        """Say what to do now; call it again at the new ``deadline``."""
        # A timer that comes late means that this process did not run: messages of the peer may wait in the socket.
        self.heard_at += max(0.0, now - self.deadline)
        silent_at = self.heard_at + self.silence
        if now >= silent_at:
            pulse = Pulse.SILENT
        elif now < self.send_at:
            pulse = Pulse.WAIT
        else:
            pulse = Pulse.SEND
            self.send_at = now + self.interval
        self.deadline = min(self.send_at, silent_at)
        return pulse


class OutgoingParts:
    """The parts that a responder has sent, and the window. ``window`` is None in the plain form.

    Over an export (``is_exported``) not every part gets a reply subject, because the server keeps 700 bytes for each.
    """

    __slots__ = (
        *("_freed", "_marks", "_next_mark", "_next_reply", "_next_reply_at", "_total"),
        *("credit_by", "credited", "heartbeats", "is_exported", "sent", "window"),
    )

    def __init__(self, window: int | None, heartbeat: float, now: float, *, is_exported: bool = False) -> None:
        self.window, self.is_exported = window, is_exported
        if window is None:
            self.heartbeats = Heartbeats(PLAIN_SILENCE_S / SILENT_HEARTBEATS, now)
        else:
            self.heartbeats = Heartbeats(heartbeat, now, FIRST_IDLE_S, FIRST_SILENCE_S)
        self.credit_by: float = inf
        """The time at which the first credit must have come; inf when it has, and before the first part."""
        self.sent: int = 0
        """The number of parts."""
        self.credited: int = 0
        """The number of parts that the requester has consumed."""
        self._total = 0  # bytes of all parts
        self._freed = 0  # bytes of the consumed ones; up to a step less
        self._marks: deque[tuple[int, int]] = deque()  # (number of a part, _total after it)
        self._next_mark = self._next_reply = 0  # of _total
        self._next_reply_at = now if window is not None else now + FIRST_CHECK_S

    @classmethod
    def requested(cls, reply: str, headers: Headers, now: float) -> OutgoingParts:
        """Return the state for a request with this reply subject and headers; ServiceError 400 for invalid headers."""
        if WINDOW_HEADER not in headers:
            return cls(None, HEARTBEAT_S, now)
        window = number_of(headers[WINDOW_HEADER])
        if not window:
            raise errors.ServiceError(400, f"{WINDOW_HEADER} must be a positive number of bytes")
        milliseconds = number_of(headers.get(HEARTBEAT_HEADER, f"{HEARTBEAT_S * 1000:.0f}")) or 0
        if not MIN_HEARTBEAT_S <= milliseconds / 1000 <= MAX_HEARTBEAT_S:
            raise errors.ServiceError(
                400,
                f"{HEARTBEAT_HEADER} must be a number of milliseconds from {MIN_HEARTBEAT_S * 1000:.0f} "
                f"to {MAX_HEARTBEAT_S * 1000:.0f}",
            )
        return cls(window, milliseconds / 1000, now, is_exported=reply.startswith(EXPORT_PREFIX))

    @property
    def has_room(self) -> bool:
        """True if another part may be sent. The last one may exceed the window, so any part fits some time."""
        return self.window is None or self._total - self._freed < self.window

    def needs_reply(self, size: int, now: float) -> bool:
        """True if the next part needs a reply subject.

        Over an export each can be used once: parts have enough for the credit of a window and for signs of life, and
        the first two for a cancellation. An empty part without one would be taken for the end of plain replies.

        In the plain form some have one, so that the server says when nobody is there. The first has none, because
        it shows the form.
        """
        if self.window is None:
            if not self.sent or now < self._next_reply_at:
                return False
            self._next_reply_at = now + HEARTBEAT_S
            return True
        if not self.is_exported:
            return True
        total = self._total + size + PART_OVERHEAD
        if self.sent > 1 and size and total < self._next_reply and now < self._next_reply_at:
            return False
        self._next_reply = total + self.window // _REPLIES_PER_WINDOW
        self._next_reply_at = now + self.heartbeats.interval / 2
        return True

    def on_sent(self, size: int, now: float) -> None:
        """A part with ``size`` bytes of payload was sent."""
        self.sent += 1
        if self.window is None:
            self.heartbeats.on_message(now)
        elif self.sent == 1:
            self.credit_by = now + (EXPORT_CREDIT_S if self.is_exported else FIRST_CREDIT_S)
        self.heartbeats.send_at = now + self.heartbeats.interval
        self._total += size + PART_OVERHEAD
        if self.window is not None and self._total >= self._next_mark:
            self._marks.append((self.sent, self._total))
            self._next_mark = self._total + self.window // _MARKS_PER_WINDOW

    def on_alive(self, now: float) -> None:
        """A sign of life. It does not count for ever without credit: a requester that reads nothing would keep the
        response.
        """
        if now < self.credit_by:
            self.heartbeats.on_message(now)

    def on_credit(self, number: int | None, now: float) -> None:
        """The requester has consumed all parts up to this number; also its sign of life."""
        if number is None or number > self.sent:
            return  # not a credit for this stream
        if number:
            self.credit_by = inf
        self.on_alive(now)
        self.credited = max(self.credited, number)
        if self.credited == self.sent:
            self._freed = self._next_mark = self._total
            self._marks.clear()
        while self._marks and self._marks[0][0] <= self.credited:
            self._freed = self._marks.popleft()[1]


class Form(Enum):
    """The form of a stream, which its first frame shows.

    NUMBERED parts have reply subjects that end with their numbers. COUNTED ones have reply subjects without numbers,
    because an export has replaced them. PLAIN ones have none: the responder takes neither credit nor cancellation.
    """

    UNKNOWN = "unknown"
    NUMBERED = "numbered"
    COUNTED = "counted"
    PLAIN = "plain"


class StreamStep(Enum):
    """A frame is a part for the reader, is no part, is from another responder, or ends the stream."""

    PART = "part"
    SKIP = "skip"
    STRAY = "stray"
    END = "end"


class IncomingParts:
    """The parts that a requester has read, and the credit for them."""

    __slots__ = (
        *("_covered", "_last_reply", "_prefix", "_spare", "_subject"),
        *("credit_at", "credit_to", "form", "heartbeats", "received", "uncredited", "window"),
    )

    def __init__(self, subject: str, window: int | None, heartbeat: float, now: float) -> None:
        self.heartbeats = Heartbeats(heartbeat, now, FIRST_SIGN_S)
        self.form = Form.UNKNOWN
        self.received: int = 0
        """The number of parts."""
        self.uncredited: int = 0
        """Bytes of the parts since the last credit; from ``credit_at`` on, credit is due."""
        self.credit_at: float = 0
        self.credit_to: bytes | None = None
        """In the numbered form, the reply subject of the last part."""
        # Reply subjects in the counted form, each for one message: (bytes that credit to it covers, subject).
        self._spare: deque[tuple[int, bytes]] = deque(maxlen=_MAX_SPARE)
        self._covered = 0  # bytes that the credit covers
        self._subject = subject
        self.window: int | None = window
        self._prefix = b""  # of the reply subjects in the numbered form
        self._last_reply = b""  # to which something was sent

    def on_credit_sent(self, now: float) -> None:
        """Credit was sent to ``reply_for_credit``."""
        assert self.window is not None
        self.uncredited, self.credit_at = self.uncredited - self._covered, self.window / 2
        self.heartbeats.send_at = now + self.heartbeats.interval

    def reply_for_credit(self) -> str:
        """Return the subject for credit for all parts so far, or nearly all; empty if there is none now."""
        if self.credit_to is not None:
            self._covered = self.uncredited
            return self._used(self.credit_to)
        if not self._spare or not self._spare[-1][0]:
            return ""
        self._covered, reply = self._spare.pop()
        self._spare = deque([(0, older) for _, older in self._spare], maxlen=_MAX_SPARE)
        return self._used(reply)

    def has_end(self, frames: Iterable[Message], waiting: Sequence[Message]) -> bool:
        """True if one of the frames ends this stream, not that of another responder. ``waiting`` were not read yet."""
        if self.form is Form.UNKNOWN and waiting:
            self._choose_form(_reply_of(waiting[0]))
        return any(
            frame.has_headers
            and END_HEADER in frame.headers
            and (self.form is not Form.NUMBERED or (_reply_of(frame) or b"").startswith(self._prefix))
            for frame in frames
        )

    def reply_for_control(self, waiting: Sequence[Message]) -> str:
        """Return the subject for a sign of life or a cancellation, with the frames that were not read yet; empty if
        there is none now.
        """
        if self.form is Form.UNKNOWN and waiting:
            self._choose_form(_reply_of(waiting[0]))
        if self.form in (Form.NUMBERED, Form.COUNTED):
            for frame in reversed(waiting):
                reply = _reply_of(frame)
                if reply is not None and reply.startswith(self._prefix):
                    if self.form is Form.COUNTED:
                        frame._reply = None
                    return self._used(reply)
        return self._used(self.credit_to or (self._spare.popleft()[1] if self._spare else b""))

    def _used(self, reply: bytes) -> str:
        self._last_reply = reply
        return reply.decode("utf-8", "surrogateescape")

    def on_frame(self, frame: Message) -> StreamStep:
        """Take the next frame. StreamBroken when parts are missing; ServiceError, NoResponders."""
        reply = frame._reply
        expected = b"%b%d" % (self._prefix, self.received + 1)
        if frame._head is None and reply == expected and self._prefix:
            self.received += 1  # nearly always
            self.uncredited += len(frame.data) + PART_OVERHEAD
            self.credit_to, frame._reply = expected, None
            return StreamStep.PART
        return self._on_other_frame(frame, frame.headers)

    def is_credit(self, subject: str) -> bool:
        """True for a subject to which credit was sent."""
        name = subject.encode("utf-8", "surrogateescape")
        return name == self._last_reply or bool(self._prefix and name.startswith(self._prefix))

    def broken(self, reason: str) -> errors.StreamBroken:
        """Return the error for a stream that ends early."""
        return errors.StreamBroken(self._subject, self.received, reason)

    def gone(self, waiting: Sequence[Message]) -> errors.NatsError:
        """Return the error for a responder that does not exist (any more), with the frames that were not read yet."""
        if self.form is Form.UNKNOWN and not waiting:
            return errors.NoResponders(self._subject)
        return self.broken("the responder is gone")

    @property
    def patience(self) -> float:
        """Seconds without a frame after which the responder is gone."""
        return SILENT_HEARTBEATS * self.heartbeats.interval

    def silence(self) -> errors.NatsError:
        """Return the error for a responder that is silent."""
        wait = self.patience
        if self.form is Form.UNKNOWN:
            return errors.RequestTimeout(f"stream from {self._subject!r}", wait)
        advice = ""
        if self.form is Form.PLAIN:
            advice = ": replies to stream() end with an empty message; use request() for a single reply"
        elif self.received <= 1:
            advice = (
                ": to send more than one part, a responder with allow_responses needs {max: -1} and a long enough "
                "expires there, and an export needs response_type Stream"
            )
        return self.broken(f"the responder was silent for {wait:g} s{advice}")

    def _on_other_frame(self, frame: Message, headers: Headers) -> StreamStep:
        if frame.is_no_responders:
            raise self.gone(())
        reply = _reply_of(frame)
        end, idle = headers.get(END_HEADER), headers.get(IDLE_HEADER)
        number = self.received + 1 if end is None and idle is None else number_of(end or idle or "")
        if self.form is Form.UNKNOWN:
            self._choose_form(reply)
        elif idle is not None and self.form is Form.PLAIN:
            self.form = Form.COUNTED  # the first part was lost
        if end is None and self.form is Form.PLAIN:
            return self._on_plain(frame)
        if self.form is Form.NUMBERED:
            if reply is None or not reply.startswith(self._prefix):
                return StreamStep.STRAY
            number = number_of(reply[len(self._prefix) :])
        if end is not None:
            return self._on_end(frame, number)
        if number is None or number > self.received + (idle is None):
            raise self._gap(number)
        if number < self.received + (idle is None):
            return StreamStep.SKIP  # received twice, during a move to another server
        if idle is None:
            self._on_part(frame)
        if reply is not None and self.form is Form.COUNTED:
            self._spare.append((self.uncredited, reply))
        elif reply is not None:
            self.credit_to = reply
        return StreamStep.PART if idle is None else StreamStep.SKIP

    def _choose_form(self, reply: bytes | None) -> None:
        if reply is None:
            self.form, self.credit_at = Form.PLAIN, inf
            return
        prefix, dot, token = reply.rpartition(b".")
        if number_of(token) is not None and not prefix.startswith(EXPORT_PREFIX.encode()):
            self.form, self._prefix = Form.NUMBERED, prefix + dot
        else:
            self.form, self.credit_at = Form.COUNTED, (self.window or 0) / 2
        if self.window is None:
            self.credit_at = inf

    def _on_part(self, frame: Message) -> None:
        self.received += 1
        self.uncredited += len(frame.data) + PART_OVERHEAD
        frame._reply = None  # for credit, not for the reader

    def _on_plain(self, frame: Message) -> StreamStep:
        if (error := error_of(frame)) is not None:
            raise error
        if not frame.data and not frame.has_reply:
            return StreamStep.END  # also with headers: nats-py responds with those of the request
        self._on_part(frame)
        return StreamStep.PART

    def _on_end(self, frame: Message, number: int | None) -> StreamStep:
        if (error := error_of(frame)) is not None:
            raise error
        if number != self.received:
            raise self._gap(number)
        return StreamStep.END

    def _gap(self, number: int | None) -> errors.StreamBroken:
        return self.broken(f"parts were lost: the responder is at number {'?' if number is None else number}")
