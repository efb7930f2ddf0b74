"""The parser: any chunks of bytes in, messages to their sinks, control frames out.

Owns the bytes that are not a whole frame yet, and three bounded caches. It is handed a route from sid to
Sink and never asks what a sink does. It knows nothing of handshakes: any frame may come at any time.

How it stays fast. The chunk is an immutable ``bytes`` walked once with an integer position; nothing is
deleted from its front. Then six ways, each falling through to the next when its guess fails:

* RUN: the whole control line is in ``_lines``, which holds everything it says. As long as the bytes behind
  the payload are CRLF + the same line + CRLF (one ``startswith``, which checks the payload's end at once)
  messages are cut out at a fixed stride: no find, no split, no int, no decode.
* HEAD: the first three words are in ``_heads``; only what follows is new: reply subject and size behind
  ``MSG subject sid`` (JetStream deliveries, requests) or the two sizes behind ``HMSG subject sid``.
* EQUAL: behind some messages of one sid with a reply subject, and at the beginning of the chunks that follow. As long
  as everything in them is as long as in those, which is nearly always so in a stream of equal payloads, struct cuts a
  whole chunk of them (half of what ROW takes). What is the same in all is compared a column at a time: taken out with
  the rest it would cost 8 % more.
* ROW: where lengths differ. What follows is split at the words that they share, all three (0.55 of what HEAD takes)
  or, where every subject is another one, the first (a fifth of what LINE takes).
* REPLY: behind a reply to an inbox that tells its replies apart by their last token, as long as what follows are
  plain replies to it as well. No line of these comes twice, so the other ways do not help (0.6 instead of 2.5 µs);
  those that are alike in the length of everything are cut out all together (half of that again).
* LINE: everything is read and checked. Only here can a line be found wrong, and what passes here is what
  the others remember; so the fast ways accept nothing that this one would not.

Bytes of an unfinished frame wait in one bytearray. It is looked at again only when the missing line end or
the missing byte count has arrived, so the work is linear whatever the chunks are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat, starmap
from operator import itemgetter
from struct import iter_unpack
from typing import NoReturn

from natsproto.errors import RemoteProtocolError
from natsproto.protocol.frames import Err, Frame, Message, Ok, Ping, Pong, Responder, ServerInfo, Sink

MAX_LINE = 65_536
MAX_INFO = 1_048_576
MAX_MESSAGE = 67_108_864

_CACHED = 4096
_ROW = 4  # messages that make a row: shorter ones are not worth the way there and back
_LONG = 16  # messages of a row that was worth it: after a shorter one the next has to be twice as long
_AT_ONCE = 1024  # messages that are compared together: if the row ends before, it was in vain
_ROW_SIZE = 1024  # bytes of a message above which looking for the next one costs more than it saves
_CACHED_LINE = 1024  # longer lines are rare, and remembering thousands of them would let the peer fill the memory
_Line = tuple[Sink, str, int, int, bytes, int]
"""Sink, subject, header bytes, total bytes, the bytes between two equal messages, size of one for limits."""
_Head = tuple[Sink, str, int, bool]
"""Sink, subject, its bytes, whether headers follow."""
_Inbox = tuple[Sink, tuple[bytes, bytes], tuple[bytes, bytes], bytes]
"""Sink, how its lines without and with headers begin, the same with a line end in front, its sid."""
_Model = tuple[Sink, str, bytes, int, int, str, list[tuple[int, bytes]]]
"""Sink, subject, how all begin, bytes of each, size of each for limits, its layout for struct (subject, empty when all
have the same one, reply subject, headers, payload), and where which bytes are the same in all.
"""


class Parser:
    """Cuts a byte stream into frames.

    ``feed`` may be called with any chunk. Afterwards ``events`` holds the control frames and ``touched`` the
    sinks that received something; the caller takes both. After the first RemoteProtocolError every further
    call raises the same error.

    ``max_message`` bounds headers plus payload of one message, ``max_line`` a control line and ``max_info``
    an INFO line, all in bytes.
    """

    __slots__ = (
        "_failure", "_heads", "_inbox", "_lines", "_max_info", "_max_line", "_max_message", "_model", "_need",
        "_offset", "_origin", "_sizes", "_tail", "events", "nowhere", "route", "touched",
    )  # fmt: skip

    def __init__(
        self,
        route: Mapping[bytes, Sink],
        origin: Responder | None = None,
        *,
        max_message: int = MAX_MESSAGE,
        max_line: int = MAX_LINE,
        max_info: int = MAX_INFO,
    ) -> None:
        self.events: list[Frame] = []
        self.touched: set[Sink] = set()
        self.route = route
        """sid → sink. Sids that are not in it are read and forgotten; may be replaced at any time."""
        self._origin = origin
        self._max_message, self._max_line, self._max_info = max_message, max_line, max_info
        self.nowhere = Sink(_forget, cacheable=False)  # never settled
        self._lines: dict[bytes, _Line] = {}
        self._heads: dict[bytes, _Head] = {}
        self._sizes: dict[bytes, int] = {}
        self._inbox: _Inbox | None = None  # the last to get a reply
        self._model: _Model | None = None  # the last message with others like it behind it
        self._tail = bytearray()
        self._need = 0  # bytes the waiting frame has in all; 0: its control line is not complete yet
        self._offset = 0  # bytes of the stream in front of what is being walked
        self._failure: RemoteProtocolError | None = None

    @property
    def position(self) -> int:
        """Bytes of whole frames taken in so far."""
        return self._offset

    @property
    def waiting(self) -> int:
        """Bytes held back because their frame is not complete."""
        return len(self._tail)

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the stream.

        RemoteProtocolError when they are not the NATS protocol or pass a limit; everything in front of the
        error has been delivered.
        """
        if self._failure is not None:
            raise self._failure
        tail = self._tail
        if tail:
            if self._need:
                tail += chunk
                if len(tail) < self._need:
                    return
            else:
                ends = b"\r\n" in chunk or (tail[-1] == 13 and chunk[:1] == b"\n")
                tail += chunk
                if not ends:
                    self._check_open_line(tail)
                    return
            chunk = bytes(tail)
            self._tail = bytearray()
            self._need = 0
        done = self._walk(chunk)
        if done < len(chunk):
            self._tail += chunk[done:] if done else chunk
            if not self._need:
                self._check_open_line(self._tail)

    def _walk(self, data: bytes) -> int:
        """Handles every whole frame and returns how far it came; sets _need when a payload is incomplete."""
        # The one long function of the package: each call taken out of it costs 5 to 10 % of the throughput.
        find, startswith = data.find, data.startswith
        lines, heads, sizes = self._lines, self._heads, self._sizes
        touched, origin = self.touched, self._origin
        end = len(data)
        pos = 0
        reply: bytes | None
        before: Sink | None = None  # of the last message, if it had a reply subject and no headers
        beginning = b""  # how its line began
        alike, enough = 0, _ROW  # messages behind one like that, and how many of them make a row
        if self._inbox is not None:
            pos = self._walk_replies(data, pos)
        if self._model is not None:
            pos = self._walk_equal(data, pos, self._model)
        while pos < end:
            eol = find(b"\r\n", pos)
            if eol < 0:
                break
            line = data[pos:eol]
            body = eol + 2
            known = lines.get(line)

            if known is not None:  # RUN
                sink, subject, head_size, total, joint, weight = known
                reply, start = None, b""
                stop = first = body + total
                stride = len(joint) + total
                last = end - 2 - stride  # from there on the message behind is not whole
                while stop <= last and startswith(joint, stop):
                    stop += stride
                if stop > first:  # all but the last one, which is on its own like one that is alone
                    count = (stop - first) // stride
                    layout = f"0s0s{head_size}s{total - head_size}s{len(joint)}x"
                    # Of a copy: an iterator that is not at its end yet and its memoryview, in the frames of a traceback
                    # that is part of a cycle, crash the interpreter when they are collected (struct.c, CPython 3.11).
                    rows = iter_unpack(layout, data[body : body + stop - first])
                    self._hand_over(sink, repeat(subject), rows, count, count * weight)
                    body += stop - first
                    pos += stop - first
            else:
                total = -1
                parts = line.rsplit(b" ", 2)
                start = parts[0]
                head = heads.get(start)
                if head is None and line.startswith(b"H"):
                    parts = line.rsplit(b" ", 3)  # a reply subject stands before the two sizes
                    head = heads.get(parts[0])
                if head is not None:  # HEAD
                    size = sizes.get(parts[-1], -1)
                    sink, subject, weight, headed = head
                    if headed:
                        reply, head_size = None, sizes.get(parts[-2], -1)
                        if 0 <= head_size <= size and len(line) <= self._max_line:
                            start = parts[0]
                            if len(parts) == 3:
                                total = size
                                weight += size
                            elif reply := parts[1]:
                                total = size
                                weight += size + len(reply)
                    else:
                        reply, head_size = parts[1], 0
                        if reply and size >= 0 and len(line) <= self._max_line:
                            total = size
                            weight += size + len(reply)
                if total < 0:  # LINE
                    frame = self._read_line(line, pos)
                    if frame is None:
                        pos = body
                        continue
                    sink, subject, reply, head_size, total, weight = frame
            stop = body + total
            if stop + 2 > end:
                self._need = stop + 2 - pos
                break
            if data[stop : stop + 2] != b"\r\n":
                self._fail("no line end behind the payload", stop, data[stop : stop + 2])
            split = body + head_size
            message = sink.make()
            message.subject = subject
            message._reply = reply
            message.data = data[split:stop]
            message._head = data[body:split] if head_size else None
            message._origin = origin
            message._answer = None
            sink.deliver(message)
            sink.arrived += 1
            sink.octets += weight
            touched.add(sink)
            pos = stop + 2
            if not reply:
                before = None
            elif sink is not before:
                before, beginning, alike = sink, start, 0
            else:
                alike += 1
                if alike >= enough:
                    alike, begin, stride = 0, pos, len(line) + total + 4
                    name = subject if start == beginning else None
                    self._model = _model(sink, line, name, head_size, total)
                    pos = self._walk_equal(data, pos, self._model)
                    if total <= _ROW_SIZE and not head_size:
                        pos = self._walk_row(data, pos, sink, start, name, stride)
                    enough = _ROW if pos - begin >= _LONG * stride else 2 * enough
                beginning = start
            if sink.answer is not None and self._inbox is not None:
                pos = self._walk_replies(data, pos)
        self._offset += pos
        return pos

    def _walk_equal(self, data: bytes, pos: int, model: _Model) -> int:
        """Hands over whole messages for as long as they are like the model, which stood in front of them or at the end
        of an earlier chunk, in the length of everything; returns how far it came. Whatever else there is, and a few of
        them, are left to the other ways.
        """
        sink, subject, start, stride, weight, layout, fixed = model
        startswith = data.startswith
        if not (startswith(start, pos) and startswith(b"\r\n", pos + stride - 2)):
            return pos
        view = memoryview(data)
        left = (len(data) - pos) // stride
        count = min(left, _AT_ONCE)
        while count >= _ROW:
            end = pos + count * stride
            if not (startswith(start, end - stride) and startswith(b"\r\n", end - 2)):
                count //= 2  # they end before
                continue
            if any(data[pos + place : end : stride] != octet * count for place, octet in fixed):
                break
            rows = list(iter_unpack(layout, view[pos:end]))
            names = [] if subject else list(map(_name_of, rows))
            words = b"".join((*names, *map(_reply_of, rows)))
            if b" " in words or b"\r" in words:
                break  # not one line each
            subjects: Iterable[str] = repeat(subject)
            if names:
                try:
                    subjects = b" ".join(names).decode().split(" ")
                except UnicodeDecodeError:
                    break
            self._hand_over(sink, subjects, rows, count, count * weight)
            pos = end
            left -= count
            count = min(left, _AT_ONCE)
        return pos

    def _hand_over(
        self, sink: Sink, subjects: Iterable[str], rows: Iterable[tuple[bytes, ...]], count: int, octets: int
    ) -> None:
        """Makes that many messages and delivers them. A row is something that is left out here, reply subject, headers
        and payload, empty where there is none.
        """
        origin = self._origin
        messages = list(starmap(sink.make, repeat((), count)))
        filled = zip(messages, subjects, rows, strict=False)
        message: Message
        for message, message.subject, (_, message._reply, message._head, message.data) in filled:
            message._origin = origin
            message._answer = None
        if not message._reply:
            for message in messages:
                message._reply = None
        if not message._head:
            for message in messages:
                message._head = None
        deque(map(sink.deliver, messages), maxlen=0)
        sink.arrived += count
        sink.octets += octets
        self.touched.add(sink)

    def _walk_row(self, data: bytes, pos: int, sink: Sink, start: bytes, subject: str | None, frame: int) -> int:
        """Hands over whole messages with a reply subject and no headers for as long as they follow each other, with the
        sid of the line that began with ``start``, and if its ``subject`` is given, with that as well; returns how far
        it came. Leaves the last of them, and whatever else, to the other ways.

        ``frame`` is the size of the message in front of them, in bytes.
        """
        joint = b"\r\n%b " % start if subject is not None else b"\r\nMSG "
        width = len(joint)
        if not data.startswith(joint, pos - 2) or not start.startswith(b"MSG "):
            return pos
        mixed, name, sid = subject is None, subject or "", start.rpartition(b" ")[2]
        deliver, make, size_of, origin = sink.deliver, sink.make, self._sizes.get, self._origin
        begin, reach = pos, frame * 4
        count = digits = 0
        said, total = b"", None  # the size of the last message: mostly the next one's too
        try:
            while True:
                reach = min(reach, self._max_line)  # so that no line in there can be too long
                pieces = data[pos + width - 2 : pos + reach].split(joint)
                rest = pieces.pop()
                for piece in pieces:
                    line, crlf, payload = piece.partition(b"\r\n")
                    if mixed:
                        word, number, reply, size = line.split(b" ")
                        if number != sid or not word:
                            raise ValueError
                        name = word.decode()  # no UnicodeDecodeError passes: it is a ValueError
                    else:
                        reply, size = line.split(b" ")
                    if size != said:
                        said, total = size, size_of(size)
                    if len(payload) != total or not reply or not crlf:
                        raise ValueError
                    message = make()
                    message.subject = name
                    message._reply = reply
                    message.data = payload
                    message._head = None
                    message._origin = origin
                    message._answer = None
                    deliver(message)
                    pos += len(piece) + width
                    digits += len(size)
                    count += 1
                if len(rest) * 2 > reach or not pieces:
                    break  # the row ends in there; so what is split in vain stays in proportion to what was not
                reach *= 4
        except ValueError:
            pass  # HEAD or LINE will find out what it is
        if count:
            sink.arrived += count
            sink.octets += pos - begin - count * (11 + len(sid)) - digits  # MSG, spaces and line ends count for nothing
            self.touched.add(sink)
        return pos

    def _walk_replies(self, data: bytes, pos: int) -> int:
        """Hands over whole replies to the last inbox, with headers or without, for as long as they follow each other;
        returns how far it came. What is broken, incomplete or anything else is left to the other ways.
        """
        assert self._inbox is not None
        sink, starts, joints, sid = self._inbox
        answer = sink.answer
        if answer is None:  # its owner has gone
            return pos
        find, startswith, sizes = data.find, data.startswith, self._sizes
        deliver, make, origin = sink.deliver, sink.make, self._origin
        width, end, longest = len(starts[0]), len(data), self._max_line
        stem = width - 4
        count = octets = stride = 0
        alike = True  # whether to look for plain replies that are as long as the one in front
        following = startswith(starts, pos)
        while following:
            headed = data[pos] == 72  # H
            token = pos + width + headed
            eol = find(b"\r\n", token)
            words = data[token:eol].split(b" ")
            if eol < 0 or len(words) != 3 + headed or words[1] != sid or eol - pos > longest:
                break
            size = sizes.get(words[-1], -1)
            head_size = sizes.get(words[2], -1) if headed else 0
            body = eol + 2
            stop = body + size
            following = startswith(joints, stop)
            if not (0 <= head_size <= size and (following or (stop + 2 <= end and data[stop : stop + 2] == b"\r\n"))):
                break
            if headed:
                subject = data[token - stem : token + len(words[0])].decode("utf-8", "surrogateescape")
                split = body + head_size
                message = make()
                message.subject = subject
                message._reply = None
                message.data = data[split:stop]
                message._head = data[body:split] or None
                message._origin = origin
                message._answer = None
                deliver(message)
            else:
                answer(words[0], data[body:stop])
            count += 1
            octets += len(words[0]) + size
            if alike and stop + 2 - pos == stride and startswith(joints[0], stop):
                more = self._walk_equal_replies(data, stop + 2, joints[0], data[token:body], size, answer)
                count += more
                octets += more * (len(words[0]) + size)
                stop += more * stride
                alike = more >= _ROW
                stride = 0
            else:
                stride = 0 if headed else stop + 2 - pos
            pos = stop + 2
        if count:
            sink.arrived += count
            sink.octets += octets + count * stem
            self.touched.add(sink)
        return pos

    @staticmethod
    def _walk_equal_replies(
        data: bytes, pos: int, joint: bytes, rest: bytes, size: int, answer: Callable[[bytes, bytes], object]
    ) -> int:
        """Hands over replies of which each has another one behind it, as long as they are like the one in front in the
        length of everything; returns how many.

        ``rest`` is what that one has between its beginning and its payload of so many bytes.
        """
        startswith = data.startswith
        begin, after = pos - 2 + len(joint), rest[rest.index(b" ") :]
        stride = len(joint) + len(rest) + size
        fitting, beyond = 0, (len(data) - begin) // stride + 1
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            if startswith(joint, pos - 2 + middle * stride):
                fitting = middle
            else:
                beyond = middle
        if fitting < _ROW:
            return 0
        layout = f"{len(rest) - len(after)}s{len(after)}s{size}s{len(joint)}s"
        view = memoryview(data)[begin : begin + fitting * stride]
        tokens, behind, payloads, joints = zip(*iter_unpack(layout, view), strict=True)
        words = b"".join(tokens)
        if b" " in words or b"\r\n" in words or behind.count(after) < fitting or joints.count(joint) < fitting:
            return 0
        for token, payload in zip(tokens, payloads, strict=True):
            answer(token, payload)
        return fitting

    def _read_line(self, line: bytes, pos: int) -> tuple[Sink, str, bytes | None, int, int, int] | None:
        """Reads a control line from scratch.

        Returns what a message's line says (sink, subject, reply, header bytes, total bytes, weight) and
        remembers it for next time; puts anything else into events.
        """
        words = line.split(b" ")
        verb = words[0].upper()
        if verb == b"INFO":
            if len(line) > self._max_info:
                self._fail(f"INFO line longer than {self._max_info} bytes", pos, line[: self._max_info])
            try:
                self.events.append(ServerInfo.parse(line[5:], self._offset + pos))
            except RemoteProtocolError as exc:
                self._failure = exc
                raise
            return None
        if len(line) > self._max_line:
            self._fail(f"control line longer than {self._max_line} bytes", pos, line[: self._max_line])
        if len(words) > 4 and not words[3]:
            del words[3]  # no reply subject, as a server says it in the answers to the chunks of a restore
        if verb == b"MSG":
            if len(words) == 4:
                reply, head_size = None, 0
            elif len(words) == 5:
                reply, head_size = words[3], 0
            else:
                self._fail("MSG takes 3 or 4 arguments", pos, line)
        elif verb == b"HMSG":
            if len(words) == 5:
                reply, head_size = None, self._size(words[3], pos, line)
            elif len(words) == 6:
                reply, head_size = words[3], self._size(words[4], pos, line)
            else:
                self._fail("HMSG takes 4 or 5 arguments", pos, line)
        else:
            self._control(verb, line, pos)
            return None
        if b"" in words:
            self._fail("empty argument", pos, line)
        total = self._size(words[-1], pos, line)
        if head_size > total:
            self._fail("headers longer than the message", pos, line)
        sink = self.route.get(words[2], self.nowhere)
        subject = words[1].decode("utf-8", "surrogateescape")
        weight = len(words[1]) + (len(reply) if reply else 0) + total
        if sink.answer is not None:
            starts = b"MSG " + sink.stem, b"HMSG " + sink.stem
            if line.startswith(starts):
                self._inbox = sink, starts, (b"\r\n" + starts[0], b"\r\n" + starts[1]), words[2]
        elif sink.cacheable and len(line) <= _CACHED_LINE:
            self._remember(sink, line, words, reply, head_size, total)
        return sink, subject, reply, head_size, total, weight

    def _remember(
        self, sink: Sink, line: bytes, words: list[bytes], reply: bytes | None, head_size: int, total: int
    ) -> None:
        subject = words[1].decode("utf-8", "surrogateescape")
        headed = len(words[0]) == 4
        if reply is None:
            if len(self._lines) >= _CACHED:
                self._lines.clear()
            joint = b"\r\n" + line + b"\r\n"
            self._lines[line] = (sink, subject, head_size, total, joint, len(words[1]) + total)
        prefix = b" ".join(words[:3])
        if headed or reply is not None:
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            self._heads[prefix] = (sink, subject, len(words[1]), headed)

    def _size(self, digits: bytes, pos: int, line: bytes) -> int:
        size = self._sizes.get(digits)
        if size is None:
            if not digits.isdigit() or len(digits) > 10:
                self._fail("size is not a number", pos, line)
            size = int(digits)
            if size > self._max_message:
                self._fail(f"message of {size} bytes; at most {self._max_message} are taken", pos, line)
            if len(self._sizes) >= _CACHED:
                self._sizes.clear()
            self._sizes[digits] = size
        return size

    def _control(self, verb: bytes, line: bytes, pos: int) -> None:
        bare = len(line.rstrip(b" ")) == len(verb)
        if verb == b"PING" and bare:
            self.events.append(Ping())
        elif verb == b"PONG" and bare:
            self.events.append(Pong())
        elif verb == b"+OK" and bare:
            self.events.append(Ok())
        elif verb == b"-ERR":
            text = line[5:].strip().decode("utf-8", "replace")
            self.events.append(Err(text.strip("'")))
        else:
            self._fail("unknown operation", pos, line)

    def _check_open_line(self, tail: bytearray) -> None:
        """Bounds a control line whose end has not come yet (one byte more may be its CR)."""
        what, limit = ("INFO", self._max_info) if tail[:5].upper() == b"INFO " else ("control", self._max_line)
        if len(tail) > limit + 1:
            self._fail(f"{what} line longer than {limit} bytes", 0, bytes(tail[: min(limit, 64)]))

    def _fail(self, reason: str, pos: int, excerpt: bytes) -> NoReturn:
        self._failure = RemoteProtocolError(reason, self._offset + pos, excerpt[:64])
        self._tail = bytearray()
        raise self._failure


def _model(sink: Sink, line: bytes, subject: str | None, head_size: int, total: int) -> _Model:
    """What messages look like that are as long in everything as the one with this control line. Each has a subject of
    its own unless one is given.
    """
    verb, word, sid, reply, _ = line.split(b" ", 4)
    name_at = len(verb) + 1
    sid_at = name_at + len(word)
    reply_at = sid_at + len(sid) + 2
    behind = reply_at + len(reply)
    stride = len(line) + total + 4
    whole = line + b"\r\n"
    fixed = [*range(name_at), *range(sid_at, reply_at), *range(behind, len(whole))]
    layout = f"{len(reply)}s{len(whole) - behind}x{head_size}s{total - head_size}s2x"
    if subject is None:
        start, layout = line[:name_at], f"{name_at}x{len(word)}s{reply_at - sid_at}x{layout}"
    else:
        start, layout = line[:reply_at], f"0s{reply_at}x{layout}"
        fixed += range(name_at, sid_at)
    weight = len(word) + len(reply) + total
    octets = [(place, whole[place : place + 1]) for place in fixed]
    octets += [(stride - 2, b"\r"), (stride - 1, b"\n")]
    return sink, subject or "", start, stride, weight, layout, octets


_name_of: Callable[[tuple[bytes, ...]], bytes] = itemgetter(0)
_reply_of: Callable[[tuple[bytes, ...]], bytes] = itemgetter(1)


def _forget(message: Message) -> None:
    """Messages of a sid that nobody holds any more."""
