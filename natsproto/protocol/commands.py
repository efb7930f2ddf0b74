"""What a client can say: values in, bytes out.

Every command that carries user input validates it first, so that no byte is written for bad input.
The frame of a message is built from a cached head; see Heads for why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from natsproto.errors import InvalidSubject, PayloadTooLarge
from natsproto.protocol.subject import MAX_CONTROL_LINE, publish_subject, queue_group, subscribe_subject

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"

_HEADS_KEPT = 4096

_compact = json.JSONEncoder(separators=(",", ":")).encode


def connect(fields: Mapping[str, object]) -> bytes:
    """CONNECT with its fields; the values are not checked here."""
    return b"CONNECT " + _compact(fields).encode() + CRLF


def sub(subject: str, queue: str | None, sid: int) -> bytes:
    """SUB, or InvalidSubject for a subject or queue group that must not be sent."""
    line = b"SUB %b %b %d" if queue is not None else b"SUB %b%b %d"
    wire = line % (subscribe_subject(subject), queue_group(queue) if queue is not None else b"", sid)
    if len(wire) - 4 > MAX_CONTROL_LINE:
        raise InvalidSubject("subject", subject, f"makes a control line longer than {MAX_CONTROL_LINE} bytes")
    return wire + CRLF


def unsub(sid: int, max_msgs: int | None = None) -> bytes:
    """UNSUB now, or after the server has delivered max_msgs in all on this connection."""
    return b"UNSUB %d\r\n" % sid if max_msgs is None else b"UNSUB %d %d\r\n" % (sid, max_msgs)


class Heads:
    """Ready control lines of outgoing messages.

    Nearly every publisher uses few subjects and few sizes, so the line ``PUB subject size`` is looked up by
    exactly these two: a hit costs one dict lookup and skips validation, size check and formatting (185 ns a
    message with the join, against 306 ns for an f-string and encode). Bounded: cleared when full. A new
    max_payload clears it too, because a cached line says that its size was allowed.
    """

    __slots__ = ("max_payload", "plain")

    def __init__(self) -> None:
        self.max_payload = 0
        """Bytes of headers and payload the server accepts; 0 while unknown."""
        self.plain: dict[tuple[str, int], bytes] = {}
        """``PUB subject size\\r\\n`` by (subject, size): read directly by the publish path."""

    def limit(self, max_payload: int) -> None:
        """Takes over the connected server's max_payload."""
        if max_payload != self.max_payload:
            self.max_payload = max_payload
            self.plain.clear()

    def add_plain(self, subject: str, size: int) -> bytes:
        """Validates and remembers the line for a message without reply and headers."""
        self.check(size)
        head = b"PUB %b %d\r\n" % (publish_subject(subject), size)
        self._check_line(len(head) - 6, subject)
        if len(self.plain) >= _HEADS_KEPT:
            self.plain.clear()
        self.plain[subject, size] = head
        return head

    def full(self, subject: bytes, reply: bytes | None, block: bytes | None, size: int) -> bytes:
        """The line, and the header block behind it, for any message; nothing is remembered.

        ``subject`` and ``reply`` are wire forms that have been validated, ``size`` is that of the payload.
        """
        names = subject if reply is None else b"%b %b" % (subject, reply)
        if block is None:
            self.check(size)
            head = b"PUB %b %d\r\n" % (names, size)
            self._check_line(len(head) - 6, names)
            return head
        total = len(block) + size
        self.check(total)
        head = b"HPUB %b %d %d\r\n" % (names, len(block), total)
        self._check_line(len(head) - 7, names)
        return head + block

    def check(self, size: int) -> None:
        """PayloadTooLarge when the server would not take so many bytes of headers and payload."""
        if size > self.max_payload > 0:
            raise PayloadTooLarge(size, self.max_payload)

    @staticmethod
    def _check_line(length: int, subject: object) -> None:
        """The server measures what is between the verb and the line end."""
        if length > MAX_CONTROL_LINE:
            raise InvalidSubject("subject", subject, f"makes a control line longer than {MAX_CONTROL_LINE} bytes")
