"""Parsing of control lines: the rules for a single line, and its fields.

Owns the rules for a single line and their error messages. It keeps no state: the parser calls it for each line whose
parts it has not seen before, or that looks unusual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from natsproto import errors
from natsproto.protocol.frames import Err, Frame, Ok, Ping, Pong, parse_info

MessageLine = tuple[bytes, bytes, bytes | None, int, int]
"""Subject, sid, reply subject, bytes of headers, bytes in all."""

_BARE: Mapping[bytes, type[Ping | Pong | Ok]] = {b"PING": Ping, b"PONG": Pong, b"+OK": Ok}


class Limits(NamedTuple):
    """Maximum lengths in bytes: a control line, an INFO line, headers and payload of a message."""

    line: int
    """Of a control line with its subject and reply subject."""
    info: int
    message: int
    """Of headers and payload together."""


def read_line(line: bytes, position: int, limits: Limits) -> MessageLine | Frame:
    """Parse a control line without its line end. RemoteProtocolError with this position when it is invalid."""
    words = line.split(b" ")
    verb = words[0].upper()
    if verb == b"INFO":
        if len(line) > limits.info:
            raise _fault(f"INFO line longer than {limits.info} bytes", position, line[: limits.info])
        return parse_info(line[5:], position)
    if len(line) > limits.line:
        raise _fault(f"control line longer than {limits.line} bytes", position, line[: limits.line])
    if verb not in (b"MSG", b"HMSG"):
        kind = _BARE.get(verb)
        if kind is not None and len(line.rstrip(b" ")) == len(verb):
            return kind()
        if verb == b"-ERR":
            return Err(line[5:].strip().decode("utf-8", "replace").strip("'"))
        raise _fault("unknown operation", position, line)
    if len(words) > 4 and not words[3]:
        del words[3]  # an empty reply subject, as in the replies to the chunks of a restore
    fewest = 4 if verb == b"MSG" else 5
    if len(words) not in (fewest, fewest + 1):
        raise _fault(f"{verb.decode()} takes {fewest - 1} or {fewest} arguments", position, line)
    reply = words[3] if len(words) > fewest else None
    head_size = 0 if verb == b"MSG" else _size(words[-2], position, line, limits)
    if b"" in words:
        raise _fault("empty argument", position, line)
    total = _size(words[-1], position, line, limits)
    if head_size > total:
        raise _fault("headers longer than the message", position, line)
    return words[1], words[2], reply, head_size, total


def check_open_line(begun: bytearray, position: int, limits: Limits) -> None:
    """Raise RemoteProtocolError when an unfinished line is too long (one byte more may be its CR)."""
    what, limit = ("INFO", limits.info) if begun[:5].upper() == b"INFO " else ("control", limits.line)
    if len(begun) > limit + 1:
        raise _fault(f"{what} line longer than {limit} bytes", position, bytes(begun[:limit]))


def _size(digits: bytes, position: int, line: bytes, limits: Limits) -> int:
    if not digits.isdigit() or len(digits) > 10:
        raise _fault("size is not a number", position, line)
    size = int(digits)
    if size > limits.message:
        raise _fault(f"message of {size} bytes exceeds max_message_size ({limits.message})", position, line)
    return size


def _fault(reason: str, position: int, line: bytes) -> errors.RemoteProtocolError:
    return errors.RemoteProtocolError(reason, position, line[:64])
