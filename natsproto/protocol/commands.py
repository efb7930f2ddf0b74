"""Commands of a client as bytes.

Every command validates its arguments first, so that no byte is written for invalid input. ControlLines caches the parts
that repeat in the messages to a subject.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from natsproto import errors
from natsproto.protocol.line_limit import SAFE_LINE_LENGTH, LineLimit
from natsproto.protocol.subject import MAX_CONTROL_LINE, publish_subject, queue_group, subscribe_subject

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"

_MAX_CACHED_SUBJECTS = 4096
_MAX_MISSED = 4 * _MAX_CACHED_SUBJECTS
"""Unknown subjects after which a full cache is cleared. Filling it takes as long as validating a subject."""
_MAX_CACHED_PREFIX_LENGTH = SAFE_LINE_LENGTH // 2
"""Longest prefix that is cached, in bytes; no control line that adds a reply subject and sizes can be too long."""
_MAX_CACHED_SIZE = 8192
"""Formatting a size takes 60 ns more than a look-up: 8 % of a small message, nothing for a large one."""
_INBOX_PREFIX = "_INBOX."
_SAFE_NAMES_LENGTH = SAFE_LINE_LENGTH - 64
"""Bytes of subject and reply subject that leave room for two sizes."""

_compact = json.JSONEncoder(separators=(",", ":")).encode


def connect(fields: Mapping[str, object]) -> bytes:
    """Return CONNECT with its fields, which are not checked here."""
    return b"CONNECT " + _compact(fields).encode() + CRLF


def sub(subject: str, queue: str | None, sid: int) -> bytes:
    """Return SUB; InvalidSubject for an invalid subject or queue group."""
    line = b"SUB %b %b %d" if queue is not None else b"SUB %b%b %d"
    sub_line = line % (subscribe_subject(subject), queue_group(queue) if queue is not None else b"", sid)
    if len(sub_line) - 4 > MAX_CONTROL_LINE:
        raise errors.InvalidSubject("subject", subject, f"makes a control line longer than {MAX_CONTROL_LINE} bytes")
    return sub_line + CRLF


def unsub(sid: int, max_msgs: int | None = None) -> bytes:
    """Return UNSUB, now or after the server has delivered ``max_msgs`` in all on this connection."""
    return b"UNSUB %d\r\n" % sid if max_msgs is None else b"UNSUB %d %d\r\n" % (sid, max_msgs)


def arguments_length(head: bytes) -> int:
    """Return the bytes between the verb and the line end, which the server limits; 0 for an incomplete line."""
    return max(0, head.find(b"\r") - head.find(b" ") - 1)


def subjects_of(control_line: bytes) -> tuple[str, str]:
    """Return the subject and the reply subject ("" for none) in the control line of a message, without its end."""
    verb, *words = control_line.decode("utf-8", "surrogateescape").split(" ")
    subjects = words[: -2 if verb == "HPUB" else -1]  # without the sizes
    return subjects[0], subjects[1] if len(subjects) > 1 else ""


class ControlLines:
    """Control lines of outgoing messages.

    Publishers reuse subjects, while payload sizes vary. So two parts are cached separately: the prefix up to the size,
    which also shows that the subject is valid, and small sizes as they are written.
    """

    __slots__ = ("_missed", "line_limit", "max_payload", "pub_prefixes", "pub_sizes")

    def __init__(self) -> None:
        self._missed = 0  # subjects that were not found in the full cache since it was last cleared
        self.line_limit: LineLimit = LineLimit()
        self.max_payload: int = 0
        """Bytes of headers and payload the server accepts; 0 while unknown."""
        self.pub_prefixes: dict[str, bytes] = {}
        """``PUB subject `` by the subject; cleared when full. No control line of one and a size is too long."""
        self.pub_sizes: dict[int, bytes] = {}
        """The end of a control line by payload size."""

    def set_max_payload(self, max_payload: int) -> None:
        """Set the max_payload of the connected server."""
        self.max_payload = max_payload

    def pub_prefix(self, subject: str) -> bytes:
        """Return ``PUB subject ``, validated once; InvalidSubject. Very long subjects, and generated ones, which are
        used once, are not cached.
        """
        start = self.pub_prefixes.get(subject) if isinstance(subject, str) else None
        return self._new_pub_prefix(subject) if start is None else start

    def _new_pub_prefix(self, subject: str) -> bytes:
        start = b"PUB %b " % publish_subject(subject)
        if len(self.pub_prefixes) >= _MAX_CACHED_SUBJECTS:
            self._missed += 1
            if self._missed == _MAX_MISSED:
                self._missed = 0
                self.pub_prefixes.clear()
        elif len(start) <= _MAX_CACHED_PREFIX_LENGTH and not subject.startswith(_INBOX_PREFIX):
            self.pub_prefixes[subject] = start
        return start

    def encode_subject(self, subject: str) -> bytes:
        """Return a subject for publishing as it is sent; InvalidSubject. It is cached as in ``pub_prefix``."""
        return self.pub_prefix(subject)[4:-1]

    def pub_line(self, subject: str, size: int) -> bytes:
        """Return the line of a message without reply and headers."""
        if size > self.max_payload:
            self.check_size(size)
        try:
            start = self.pub_prefixes.get(subject) or self._new_pub_prefix(subject)
        except TypeError:  # it cannot be hashed
            start = self._new_pub_prefix(subject)
        end = self.pub_sizes.get(size)
        if end is None:
            end = b"%d\r\n" % size
            if size < _MAX_CACHED_SIZE:
                self.pub_sizes[size] = end
        if len(start) > _SAFE_NAMES_LENGTH:
            self.line_limit.check(len(start) + len(end) - 6, subject)
        return start + end

    def message_line(self, subject: bytes, reply: bytes | None, block: bytes | None, size: int) -> bytes:
        """Return the control line, and the header block after it, of any message; nothing is cached.

        ``subject`` and ``reply`` are encoded and validated, ``size`` is that of the payload.
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
        if len(names) > _SAFE_NAMES_LENGTH:
            self.line_limit.check(arguments_length(head), names.decode("utf-8", "surrogateescape"))
        return head

    def check_size(self, size: int) -> None:
        """Raise PayloadTooLarge if the server would reject this number of bytes of headers and payload."""
        if size > self.max_payload > 0:
            raise errors.PayloadTooLarge(size, self.max_payload)
