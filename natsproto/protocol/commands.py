"""What a client can say: values in, bytes out.

Every command that carries user input validates it first, so that no byte is written for bad input.
What is the same in the next message to a subject is kept; see ControlLines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from natsproto.errors import InvalidSubject, PayloadTooLarge
from natsproto.protocol.subject import MAX_CONTROL_LINE, publish_subject, queue_group, subscribe_subject

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"

_MAX_CACHED_SUBJECTS = 4096
_MAX_CACHED_PREFIX_LENGTH = 1024
"""Bytes of verb and subject with which no control line is too long, whatever else is in it."""
_MAX_CACHED_SIZE = 8192
"""Formatting a length takes 60 ns more than looking it up: 8 % of a small message, nothing beside a large one."""
_INBOX_PREFIX = "_INBOX."
_SAFE_LINE_LENGTH = MAX_CONTROL_LINE - 64
"""Bytes of subject and reply subject beside which two lengths have room."""

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


class ControlLines:
    """Control lines of outgoing messages.

    Publishers use some subjects again and again, and lengths that differ. So two things are kept, each on its own: what
    stands in front of a length, which says that the subject is valid, and short lengths as they are written.
    """

    __slots__ = ("max_payload", "pub_prefixes", "pub_sizes")

    def __init__(self) -> None:
        self.max_payload: int = 0
        """Bytes of headers and payload the server accepts; 0 while unknown."""
        self.pub_prefixes: dict[str, bytes] = {}
        """``PUB subject `` by the subject; cleared when full. No control line that begins so is too long."""
        self.pub_sizes: dict[int, bytes] = {}
        """What ends the line of a payload of so many bytes. The publish path reads both directly."""

    def set_max_payload(self, max_payload: int) -> None:
        """Takes over the connected server's max_payload."""
        self.max_payload = max_payload

    def pub_prefix(self, subject: str) -> bytes:
        """``PUB subject ``, validated once; InvalidSubject. Very long subjects are not kept, and neither are generated
        ones, which are used once.
        """
        start = self.pub_prefixes.get(subject) if isinstance(subject, str) else None
        return self._new_pub_prefix(subject) if start is None else start

    def _new_pub_prefix(self, subject: str) -> bytes:
        start = b"PUB %b " % publish_subject(subject)
        if len(start) <= _MAX_CACHED_PREFIX_LENGTH and not subject.startswith(_INBOX_PREFIX):
            if len(self.pub_prefixes) >= _MAX_CACHED_SUBJECTS:
                self.pub_prefixes.clear()
            self.pub_prefixes[subject] = start
        return start

    def encode_subject(self, subject: str) -> bytes:
        """A subject to publish to as it is sent; InvalidSubject. It is kept as in ``start``."""
        return self.pub_prefix(subject)[4:-1]

    def pub_line(self, subject: str, size: int) -> bytes:
        """The line of a message without reply and headers, whose subject or size is not kept yet."""
        if size > self.max_payload:
            self.check_size(size)
        start, end = self.pub_prefixes.get(subject) or self._new_pub_prefix(subject), b"%d\r\n" % size
        if len(start) > _SAFE_LINE_LENGTH:
            self._check_line(len(start) + len(end) - 6, subject)
        if size < _MAX_CACHED_SIZE:
            self.pub_sizes[size] = end
        return start + end

    def message_line(self, subject: bytes, reply: bytes | None, block: bytes | None, size: int) -> bytes:
        """The line, and the header block behind it, for any message; nothing is remembered.

        ``subject`` and ``reply`` are wire forms that have been validated, ``size`` is that of the payload.
        """
        names = subject if reply is None else b"%b %b" % (subject, reply)
        if block is None:
            total = size
            head = b"PUB %b %d\r\n" % (names, size)
        else:
            total = len(block) + size
            head = b"HPUB %b %d %d\r\n%b" % (names, len(block), total, block)
        if total > self.max_payload:
            self.check_size(total)
        if len(names) > _SAFE_LINE_LENGTH:
            self._check_line(head.index(b"\r") - head.index(b" ") - 1, names)
        return head

    def check_size(self, size: int) -> None:
        """PayloadTooLarge when the server would not take so many bytes of headers and payload."""
        if size > self.max_payload > 0:
            raise PayloadTooLarge(size, self.max_payload)

    @staticmethod
    def _check_line(length: int, subject: object) -> None:
        """The server measures what is between the verb and the line end."""
        if length > MAX_CONTROL_LINE:
            raise InvalidSubject("subject", subject, f"makes a control line longer than {MAX_CONTROL_LINE} bytes")
