"""What a broken or hostile server may say: a corpus, as data.

Owns the byte sequences and, for each, which endings are acceptable; how they are played is the test's affair.
The promise behind all of them: whatever is said, the client survives it, reconnects with an event, or
refuses with a worded error. It never hangs, never goes on with a dead reader, never keeps silent, never takes
more than a bounded amount of memory, never blocks the loop.

Where the protocol leaves room (a tolerant and a strict reading are both honest) two outcomes are listed.
``%S`` in a text stands for the sid of a live subscription.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.kit.scripted import INFO, Behaviour, info_line

__all__ = ["HOSTILE", "Hostile", "HostileEnd", "handshake", "memory", "stream"]

Phase = Literal["handshake", "stream", "memory"]
Moment = Literal["accept", "ping", "ready"]
Then = Literal["serve", "close", "silent"]
Source = bytes | Callable[[bytes], Iterator[bytes]]

MEMORY_TOTAL = 160 * 1024 * 1024
MEMORY_PIECE = 64 * 1024


class HostileEnd(enum.Enum):
    """How it may end for the client."""

    SURVIVE = "odd but valid: the connection goes on, later messages arrive"
    RECONNECT = "a protocol error: one Disconnected event with the reason, then a new connection"
    REFUSE = "connect() raises a worded error within its timeout"


SURVIVE = frozenset({HostileEnd.SURVIVE})
RECONNECT = frozenset({HostileEnd.RECONNECT})
REFUSE = frozenset({HostileEnd.REFUSE})
SURVIVE_OR_RECONNECT = SURVIVE | RECONNECT
SURVIVE_OR_REFUSE = SURVIVE | REFUSE


@dataclass(frozen=True, slots=True)
class Hostile:
    """One sequence.

    ``moment`` says when it is said: instead of the first INFO (accept), instead of the PONG that ends the handshake
    (ping), or on a connection that works and has a subscription (ready). ``then`` says what the server does
    afterwards: goes on like a good one, closes, or never says a word again. ``chunked_by`` is the size of the
    pieces, None for as large as they come. ``outcomes`` are the acceptable endings.
    """

    name: str
    phase: Phase
    moment: Moment
    source: Source
    outcomes: frozenset[HostileEnd]
    then: Then = "serve"
    chunked_by: int | None = None

    def chunks(self, sid: bytes = b"1") -> Iterator[bytes]:
        """The bytes to say, piece by piece, to a client whose live subscription has this sid."""
        pieces: Iterable[bytes]
        pieces = self.source(sid) if callable(self.source) else (self.source.replace(b"%S", sid),)
        for piece in pieces:
            size = self.chunked_by or len(piece) or 1
            for at in range(0, len(piece), size):
                yield piece[at : at + size]

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks()

    def behaviour(self) -> Behaviour:
        """How a ScriptedServer treats the connection that gets it; for ``ready`` play ``chunks`` by hand."""
        serves = self.then == "serve"
        if self.moment == "ready":
            return Behaviour()
        if self.moment == "ping":
            return Behaviour(first_ping=self, answer_ping=serves, hang_up=self.then == "close")
        return Behaviour(greeting=self, answer_ping=serves, hang_up=self.then == "close")

    def __str__(self) -> str:
        return f"{self.phase}: {self.name}"


# ---------------------------------------------------------------- making bytes


def _info(**override: object) -> bytes:
    return info_line({**INFO, **override})


def _raw_field(name: str, value: str) -> bytes:
    """An INFO with one field whose value is written as given, JSON or not."""
    rest = json.dumps({key: item for key, item in INFO.items() if key != name})
    return f'INFO {{"{name}":{value},{rest[1:]} \r\n'.encode("utf-8", "surrogateescape")


def _noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size) + b"\r\n"


def _urls(count: int, seed: int = 0) -> list[str]:
    return [f"10.{seed % 256}.{n // 250 % 256}.{n % 250 + 1}:{4000 + n % 60000}" for n in range(count)]


def _msg(size: str, payload: bytes = b"hello\r\n") -> bytes:
    return b"MSG hostile.x %S " + size.encode() + b"\r\n" + payload


def _hmsg(block: bytes, payload: bytes = b"hello") -> bytes:
    total = len(block) + len(payload)
    return f"HMSG hostile.x %S {len(block)} {total}\r\n".encode() + block + payload + b"\r\n"


def _many(piece: bytes, total: int = MEMORY_TOTAL, first: bytes = b"") -> Callable[[bytes], Iterator[bytes]]:
    """``first``, then ``piece`` over and over until ``total`` bytes were said."""

    def say(sid: bytes) -> Iterator[bytes]:
        if first:
            yield first.replace(b"%S", sid)
        one = piece.replace(b"%S", sid)
        block = one * max(1, MEMORY_PIECE // len(one))
        for _ in range(total // len(block)):
            yield block

    return say


def _info_flood(_: bytes) -> Iterator[bytes]:
    """Small INFO lines, each naming other servers."""
    for n in range(40_000):
        yield _info(connect_urls=[f"10.1.{n // 250 % 256}.{n % 250}:{4000 + n % 50000}"])


def _sid_flood(_: bytes) -> Iterator[bytes]:
    """Every line another sid and subject: nothing here is worth remembering."""
    for n in range(0, 200_000, 500):
        yield b"".join(b"MSG a.%d %d 1\r\nx\r\n" % (i, 10**6 + i) for i in range(n, n + 500))


def _subject_flood(sid: bytes) -> Iterator[bytes]:
    """Every message another long subject on a live subscription: caches by subject must have an end."""
    for n in range(20_000):
        yield b"MSG hostile.%s.%d %s 1\r\nx\r\n" % (b"y" * 2000, n, sid)


def _url_waves(_: bytes) -> Iterator[bytes]:
    for wave in range(20):
        yield _info(connect_urls=_urls(8000, wave))


# ---------------------------------------------------------------- handshake


def handshake() -> Iterator[Hostile]:
    """What is said instead of INFO, and instead of the first PONG."""

    def at_accept(
        name: str,
        source: Source,
        outcomes: frozenset[HostileEnd] = REFUSE,
        then: Then = "serve",
        chunked_by: int | None = None,
    ) -> Hostile:
        return Hostile(name, "handshake", "accept", source, outcomes, then, chunked_by)

    # No INFO at all
    yield at_accept("nothing, then the end", b"", then="close")
    yield at_accept("nothing, for ever", b"", then="silent")
    yield at_accept("empty lines only", b"\r\n\r\n\r\n")
    yield at_accept("one NUL, then silence", b"\x00", then="silent")
    yield at_accept("a thousand NULs", b"\x00" * 1000 + b"\r\n")
    yield at_accept("spaces without end of line", b" " * 1000, then="close")
    yield at_accept("noise", _noise(256, 1))
    yield at_accept("much noise", _noise(20_000, 2))

    # Somebody else's server
    others: Mapping[str, bytes] = {
        "HTTP error": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request",
        "HTTP page": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
        "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
        "SMTP": b"220 mail.example.org ESMTP ready\r\n",
        "FTP": b"220 (vsFTPd 3.0.5)\r\n",
        "POP3": b"+OK POP3 server ready\r\n",
        "Redis": b"-ERR unknown command 'CONNECT'\r\n",
        "MySQL": b"J\x00\x00\x00\n8.0.36\x00\x08\x00\x00\x00caching_sha2_password\x00",
        "PostgreSQL": b"E\x00\x00\x00\x0bSFATAL\x00\r\n",
        "AMQP": b"AMQP\x00\x00\x09\x01",
        "TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
        "TLS hello": b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(117),
        "WebSocket frame": b"\x82\x7e\x00\x40" + b"INFO {}\r\n".ljust(64),
    }
    for name, greeting in others.items():
        yield at_accept(f"{name} server", greeting, then="close")
    yield at_accept("HTTP page, left open", others["HTTP page"], then="silent")

    # INFO that is not INFO
    bodies: Mapping[str, bytes] = {
        "no body": b"INFO\r\n",
        "a space for body": b"INFO \r\n",
        "an array": b'INFO [{"server_id":"x"}]\r\n',
        "a string": b'INFO "server"\r\n',
        "a number": b"INFO 7\r\n",
        "null": b"INFO null\r\n",
        "true": b"INFO true\r\n",
        "NaN": b"INFO NaN\r\n",
        "unclosed": b'INFO {"server_id":"x"\r\n',
        "unclosed string": b'INFO {"server_id":"x\r\n',
        "garbage behind": b'INFO {"server_id":"x"} and more\r\n',
        "two objects": b'INFO {"server_id":"x"}{"server_id":"y"}\r\n',
        "single quotes": b"INFO {'server_id':'x'}\r\n",
        "trailing comma": b'INFO {"server_id":"x",}\r\n',
        "a comment": b'INFO {"server_id":"x" /* y */}\r\n',
        "bare key": b'INFO {server_id:"x"}\r\n',
        "numeric key": b'INFO {1:"x"}\r\n',
        "percent encoded": b"INFO %7B%22server_id%22%3A1%7D\r\n",
        "raw LF in a string": b'INFO {"server_id":"a\nb"}\r\n',
        "raw NUL in a string": b'INFO {"server_id":"a\x00b"}\r\n',
        "NULs around": b'INFO \x00{"server_id":"x"}\x00\r\n',
        "bad UTF-8": b'INFO {"server_id":"\xff\xfe"}\r\n',
        "overlong UTF-8": b'INFO {"server_id":"\xc0\xaf"}\r\n',
        "cut UTF-8": b'INFO {"server_id":"\xe2\x82"}\r\n',
        "UTF-16": 'INFO {"server_id":"x"}\r\n'.encode("utf-16"),
        "byte order mark in front": b"\xef\xbb\xbf" + _info(),
        "deep arrays": b'INFO {"cluster":' + b"[" * 100_000 + b"]" * 100_000 + b"}\r\n",
        "deep objects": b"INFO " + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\r\n",
        "deep and unclosed": b"INFO " + b"[" * 200_000 + b"\r\n",
        "LF alone": _info().replace(b"\r\n", b"\n"),
    }
    for name, line in bodies.items():
        yield at_accept(f"INFO: {name}", line)
    yield at_accept("INFO: CR alone", _info().replace(b"\r\n", b"\r"), then="silent")
    yield at_accept("INFO: an empty object", b"INFO {}\r\n", SURVIVE_OR_REFUSE)
    yield at_accept("INFO: the same key twice", _raw_field("proto", '0,"proto":1'), SURVIVE_OR_REFUSE)
    yield at_accept("INFO: lone surrogate", _raw_field("server_name", r'"\ud800"'), SURVIVE_OR_REFUSE)
    yield at_accept("INFO: byte order mark inside", b"INFO \xef\xbb\xbf" + _info()[5:], SURVIVE_OR_REFUSE)
    yield at_accept("INFO: lower case", b"info" + _info()[4:], SURVIVE)
    yield at_accept("INFO: a tab behind the verb", b"INFO\t" + _info()[5:], SURVIVE_OR_REFUSE)
    yield at_accept("INFO: no space behind the verb", b"INFO" + _info()[5:], SURVIVE_OR_REFUSE)
    yield at_accept("INFO: a space in front", b" " + _info(), SURVIVE_OR_REFUSE)
    yield at_accept("INFO: many spaces", _info().replace(b"INFO ", b"INFO" + b" " * 500), SURVIVE_OR_REFUSE)

    # Cut off and endless
    for end in (1, 4, 5, 6, 40, len(_info()) - 2, len(_info()) - 1):
        yield at_accept(f"INFO cut after {end} bytes", _info()[:end], then="close")
    yield at_accept("half an INFO, then silence", _info()[:60], then="silent")
    yield at_accept("INFO without end", _many(b"x", 32 * 1024 * 1024, first=b'INFO {"server_id":"'))
    yield at_accept("INFO of spaces without end", _many(b" ", 32 * 1024 * 1024, first=b"INFO "))
    yield at_accept("an unknown line without end", _many(b"x", 32 * 1024 * 1024))
    yield at_accept("INFO of 512 KiB", _info(padding="x" * 524_288), SURVIVE_OR_REFUSE)
    yield at_accept("INFO of 8 MiB", _info(padding="x" * 8_388_608), SURVIVE_OR_REFUSE)
    yield at_accept("INFO byte by byte", _info(), SURVIVE, chunked_by=1)
    yield at_accept("INFO in threes", _info(), SURVIVE, chunked_by=3)
    yield at_accept("8,000 connect_urls", _info(connect_urls=_urls(8000)), SURVIVE_OR_REFUSE)
    yield at_accept(
        "the same connect_url 50,000 times", _info(connect_urls=["10.0.0.1:4222"] * 50_000), SURVIVE_OR_REFUSE
    )

    # Fields of the wrong kind
    wrong: tuple[tuple[str, str], ...] = (
        ("max_payload", '"1048576"'),
        ("max_payload", "-1"),
        ("max_payload", "1.5"),
        ("max_payload", "true"),
        ("max_payload", "null"),
        ("max_payload", "[]"),
        ("max_payload", "NaN"),
        ("max_payload", "Infinity"),
        ("max_payload", "1e400"),
        ("max_payload", "9" * 5000),
        ("max_payload", "99999999999999999999"),
        ("max_payload", "0"),
        ("proto", '"1"'),
        ("proto", "-1"),
        ("proto", "99"),
        ("headers", '"yes"'),
        ("headers", "false"),
        ("tls_required", '"no"'),
        ("tls_required", "1"),
        ("auth_required", "{}"),
        ("nonce", "5"),
        ("nonce", '["a"]'),
        ("nonce", '"' + "n" * 10_000 + '"'),
        ("nonce", r'"a\r\nPUB x 0\r\n"'),
        ("server_id", "5"),
        ("server_name", "{}"),
        ("version", "2"),
        ("version", '"not a version"'),
        ("version", '"99999999999999999999.0.0"'),
        ("client_id", '"seven"'),
        ("client_id", "18446744073709551615"),
        ("port", '"4222"'),
        ("port", "-1"),
        ("host", "0"),
        ("ldm", '"maybe"'),
        ("connect_urls", '"10.0.0.1:4222"'),
        ("connect_urls", '{"a":"b"}'),
        ("connect_urls", "7"),
        ("connect_urls", "null"),
        ("connect_urls", "[1,2,null,{}]"),
        ("connect_urls", "[[]]"),
        ("connect_urls", '["", ":", "::::", "host:99999999", "[::1", "a b:1"]'),
        ("connect_urls", r'["a\r\nb:4222", "a\u0000b:4222", "../../etc:1"]'),
        ("connect_urls", '["user:secret@10.0.0.1:4222", "http://10.0.0.1"]'),
    )
    for field_name, value in wrong:
        shown = value if len(value) < 60 else f"{value[:20]}… ({len(value)} characters)"
        yield at_accept(f"INFO {field_name}={shown}", _raw_field(field_name, value), SURVIVE_OR_REFUSE)

    # Out of turn
    info, msg = _info(), b"MSG hostile.x 1 5\r\nhello\r\n"
    yield at_accept("MSG before INFO", msg + info)
    yield at_accept("HMSG before INFO", b"HMSG hostile.x 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n" + info)
    yield at_accept("PING before INFO", b"PING\r\n" + info, SURVIVE_OR_REFUSE)
    yield at_accept("PONG before INFO", b"PONG\r\n" + info, SURVIVE_OR_REFUSE)
    yield at_accept("+OK before INFO", b"+OK\r\n" + info, SURVIVE_OR_REFUSE)
    yield at_accept("PING and no INFO", b"PING\r\n", then="silent")
    yield at_accept("PONG and no INFO", b"PONG\r\n", then="silent")
    yield at_accept("10,000 PINGs and no INFO", b"PING\r\n" * 10_000, then="close")
    yield at_accept("an unknown verb before INFO", b"HELLO\r\n" + info)
    yield at_accept("a client's verb", b'CONNECT {"verbose":false}\r\n')
    yield at_accept("-ERR instead of INFO", b"-ERR 'maximum connections exceeded'\r\n", then="close")
    yield at_accept("-ERR without text instead of INFO", b"-ERR\r\n", then="close")
    yield at_accept("-ERR right behind INFO", info + b"-ERR 'maximum connections exceeded'\r\n", then="close")
    yield at_accept("-ERR in bad UTF-8 behind INFO", info + b"-ERR '\xff\xfe'\r\n", then="close")
    yield at_accept("INFO and the end", info, then="close")
    yield at_accept("INFO and silence", info, then="silent")
    yield at_accept("INFO twice", info + info, SURVIVE)
    yield at_accept("INFO a thousand times", info * 1000, SURVIVE)
    yield at_accept("INFO, then a broken one", info + b"INFO {\r\n")
    yield at_accept("INFO, then PONG unasked", info + b"PONG\r\n", SURVIVE_OR_REFUSE)
    yield at_accept("INFO, then a message", info + msg, SURVIVE_OR_REFUSE)
    yield at_accept("INFO, then noise", info + _noise(200, 3))
    yield at_accept("lame duck at once", _info(ldm=True), SURVIVE_OR_REFUSE)

    # TLS announced and not meant
    tls = _info(tls_required=True)
    yield at_accept("TLS announced, plaintext behind", tls + b"PONG\r\n", then="silent")
    yield at_accept("TLS announced, -ERR behind", tls + b"-ERR 'x'\r\n", then="close")
    yield at_accept("TLS announced, INFO again in clear", tls + info, then="silent")
    yield at_accept("TLS announced, the end", tls, then="close")
    yield at_accept("TLS announced, silence", tls, then="silent")
    yield at_accept("TLS announced, noise", tls + _noise(300, 4), then="silent")

    def at_ping(
        name: str,
        source: Source,
        outcomes: frozenset[HostileEnd] = REFUSE,
        then: Then = "serve",
        chunked_by: int | None = None,
    ) -> Hostile:
        return Hostile(name, "handshake", "ping", source, outcomes, then, chunked_by)

    pong = b"PONG\r\n"
    yield at_ping("CONNECT answered by silence", b"", then="silent")
    yield at_ping("CONNECT answered by the end", b"", then="close")
    yield at_ping("CONNECT refused", b"-ERR 'Authorization Violation'\r\n", then="close")
    yield at_ping("CONNECT refused without a reason", b"-ERR\r\n", then="close")
    yield at_ping("CONNECT refused, empty reason", b"-ERR ''\r\n", then="close")
    yield at_ping("CONNECT refused, half a reason", b"-ERR 'Authori", then="close")
    yield at_ping("CONNECT refused, unknown reason", b"-ERR 'The Moon Is Full'\r\n", then="close")
    yield at_ping("-ERR unknown, then PONG", b"-ERR 'The Moon Is Full'\r\n" + pong, SURVIVE_OR_REFUSE)
    yield at_ping("PONG in lower case", b"pong\r\n", SURVIVE)
    yield at_ping("PONG with LF alone", b"PONG\n")
    yield at_ping("PONG with an argument", b"PONG x\r\n", SURVIVE_OR_REFUSE)
    yield at_ping("PONG byte by byte", pong, SURVIVE, chunked_by=1)
    yield at_ping("half a PONG, the end", b"PON", then="close")
    yield at_ping("half a PONG, silence", b"PON", then="silent")
    yield at_ping("PONGPONG", b"PONGPONG\r\n")
    yield at_ping("INFO, then PONG", info + pong, SURVIVE)
    yield at_ping("+OK, then PONG", b"+OK\r\n" + pong, SURVIVE)
    yield at_ping("10,000 +OK, then PONG", b"+OK\r\n" * 10_000 + pong, SURVIVE)
    yield at_ping("1,000 PINGs, then PONG", b"PING\r\n" * 1000 + pong, SURVIVE)
    yield at_ping("a message for nobody, then PONG", b"MSG hostile.x 77 5\r\nhello\r\n" + pong)
    yield at_ping("PONG, then a message for nobody", pong + b"MSG hostile.x 77 5\r\nhello\r\n")
    yield at_ping("PONG and noise", pong + _noise(100, 5), RECONNECT | REFUSE)
    yield at_ping("broken INFO, then PONG", b"INFO {\r\n" + pong)
    yield at_ping("noise instead of PONG", _noise(100, 6))
    yield at_ping("HTTP page", others["HTTP page"] + b"\r\n")
    yield at_ping("a giant message", b"MSG hostile.x 1 2147483648\r\n", then="silent")
    yield at_ping("a line without end", _many(b"x", 32 * 1024 * 1024))


# ---------------------------------------------------------------- stream


def stream() -> Iterator[Hostile]:
    """What is said on a connection that works; ``%S`` is a live subscription."""

    def odd(
        name: str,
        source: Source,
        outcomes: frozenset[HostileEnd] = RECONNECT,
        then: Then = "serve",
        chunked_by: int | None = None,
    ) -> Hostile:
        return Hostile(name, "stream", "ready", source, outcomes, then, chunked_by)

    # Sizes
    sizes = (
        "-1", "-5", "+5", "1_0", "5.0", "5e0", "0x5", "0b101", "5a", "abc", "5,0", "(5)", "'5'", "NaN",
        "\u0665", "\u00b2", "5\x00", "2147483648", "4294967301", "18446744073709551621",
        "99999999999999999999", "9" * 300, "9" * 5000,
    )  # fmt: skip
    for size in sizes:
        shown = ascii(size) if len(size) < 30 else f"{len(size)} digits"
        yield odd(f"MSG size {shown}", _msg(size))
    yield odd("MSG size with leading zeros", _msg("0005"), SURVIVE_OR_RECONNECT)
    yield odd("MSG of nothing", _msg("0", b"\r\n"), SURVIVE)
    pairs = {
        "headers longer than the message": "20 12",
        "negative headers": "-12 17",
        "negative total": "12 -17",
        "signed headers": "+12 17",
        "signed total": "12 +17",
        "headers with underscore": "1_2 17",
        "total in hex": "12 0x11",
        "headers not a number": "x 17",
        "total not a number": "12 x",
        "2 GiB total": "12 2147483648",
        "2 GiB of headers": "2147483648 2147483650",
        "20 digits": "12 99999999999999999999",
    }
    for name, pair in pairs.items():
        yield odd(f"HMSG: {name}", f"HMSG hostile.x %S {pair}\r\nNATS/1.0\r\n\r\nhello\r\n".encode())
    yield odd("HMSG without headers", b"HMSG hostile.x %S 0 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("HMSG without sizes", b"HMSG hostile.x %S\r\n")
    yield odd("HMSG with one size", b"HMSG hostile.x %S 12\r\nNATS/1.0\r\n\r\n\r\n")
    yield odd("HMSG with five words too many", b"HMSG hostile.x %S a b c d e 12 17\r\nNATS/1.0\r\n\r\nhello\r\n")

    # Frames out of shape
    yield odd("MSG without arguments", b"MSG\r\n")
    yield odd("MSG and a space", b"MSG \r\n")
    yield odd("MSG with one argument", b"MSG hostile.x\r\n")
    yield odd("MSG with two arguments", b"MSG hostile.x %S\r\n")
    yield odd("MSG with five arguments", b"MSG hostile.x %S reply more 5\r\nhello\r\n")
    yield odd("MSG with tabs", b"MSG\thostile.x\t%S\t5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("MSG with double spaces", b"MSG  hostile.x  %S  5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("MSG with a space behind", b"MSG hostile.x %S 5 \r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("a space in front of MSG", b" MSG hostile.x %S 5\r\nhello\r\n")
    yield odd("MSG line with LF alone", b"MSG hostile.x %S 5\nhello\r\n")
    yield odd("MSG line with CR alone", b"MSG hostile.x %S 5\rhello\r\n")
    yield odd("MSG line with CR CR LF", b"MSG hostile.x %S 5\r\r\nhello\r\n")
    yield odd("payload without CRLF", b"MSG hostile.x %S 5\r\nhelloPING\r\n")
    yield odd("payload with LF alone", b"MSG hostile.x %S 5\r\nhello\nPING\r\n")
    yield odd("payload with CR alone", b"MSG hostile.x %S 5\r\nhello\rPING\r\n")
    yield odd("payload one byte longer", b"MSG hostile.x %S 5\r\nhellox\r\n")
    yield odd("payload one byte shorter", b"MSG hostile.x %S 5\r\nhell\r\nPING\r\n")
    yield odd("payload with LF CR", b"MSG hostile.x %S 5\r\nhello\n\rPING\r\n")
    yield odd("a second payload", b"MSG hostile.x %S 5\r\nhello\r\nhello\r\n")
    yield odd("empty line", b"\r\n", SURVIVE_OR_RECONNECT)
    yield odd("LF alone", b"\n")
    yield odd("a lone NUL line", b"\x00\r\n")

    # Verbs
    for line in (
        b"FOO", b"FOO bar 5", b"PINGX", b"PINGPING", b"PIN", b"PI NG", b"P\x00ING", b"M", b"MS", b"MSGX a 1 5",
        b"HMS", b"-", b"+", b"-E", b"-ERROR 'x'", b"+KO", b"OK", b"INFOX {}", b"PUB hostile.x 0\r\n", b"SUB a 1",
        b"UNSUB 1", b"CONNECT {}", b"HTTP/1.1 200 OK", b"\xff\xfe\xfd", b"\x15\x03\x03\x00\x02\x01\x00",
    ):  # fmt: skip
        yield odd(f"line {line.decode('latin-1')!a}", line + b"\r\n")
    yield odd("msg in lower case", b"msg hostile.x %S 5\r\nhello\r\n", SURVIVE)
    yield odd("PiNg", b"PiNg\r\n", SURVIVE)
    yield odd("+ok in lower case", b"+ok\r\n", SURVIVE)
    yield odd("+OK unasked", b"+OK\r\n", SURVIVE)
    yield odd("+OK with more", b"+OK 5\r\n", SURVIVE_OR_RECONNECT)
    yield odd("PING with an argument", b"PING 5\r\n", SURVIVE_OR_RECONNECT)
    for seed in (7, 8, 9):
        yield odd(f"noise {seed}", _noise(4096, seed))

    # Names
    yield odd("MSG for an unknown sid", b"MSG hostile.x 999999 5\r\nhello\r\n", SURVIVE)
    yield odd("HMSG for an unknown sid", _hmsg(b"NATS/1.0\r\n\r\n").replace(b"%S", b"999999"), SURVIVE)
    for name, sid in {
        "negative": b"-1", "a word": b"abc", "20 digits": b"9" * 20, "5,000 digits": b"9" * 5000,
        "not UTF-8": b"\xff\xfe", "zero padded": b"00000",
    }.items():  # fmt: skip
        yield odd(f"sid {name}", b"MSG hostile.x " + sid + b" 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("subject not UTF-8", b"MSG hostile.\xff\xfe %S 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("subject with NUL", b"MSG hostile.\x00 %S 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("reply not UTF-8", b"MSG hostile.x %S \xff\xfe 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("subject that was not subscribed", b"MSG other %S 5\r\nhello\r\n", SURVIVE)
    yield odd("subject with a wildcard", b"MSG hostile.* %S 5\r\nhello\r\n", SURVIVE)
    yield odd("subject of dots", b"MSG ... %S 5\r\nhello\r\n", SURVIVE_OR_RECONNECT)
    yield odd("subject of 4,000 bytes", b"MSG hostile." + b"x" * 4000 + b" %S 5\r\nhello\r\n", SURVIVE)
    yield odd("subject of 1 MB", b"MSG hostile." + b"x" * 1_000_000 + b" %S 5\r\nhello\r\n")
    yield odd("100,000 words on a line", b"MSG" + b" x" * 100_000 + b"\r\n")

    # Header blocks: the server forwards whatever a publisher wrote
    blocks: Mapping[str, bytes] = {
        "no version": b"Key: value\r\n\r\n",
        "another version": b"NATS/9.9\r\nKey: value\r\n\r\n",
        "garbage": b"\x00\xff\x13garbage",
        "empty lines": b"\r\n\r\n",
        "no blank line": b"NATS/1.0\r\nKey: value\r\n",
        "no line end": b"NATS/1.0",
        "LF alone": b"NATS/1.0\nKey: value\n\n",
        "not UTF-8": b"NATS/1.0\r\nKey: \xff\xfe\r\n\r\n",
        "no colon": b"NATS/1.0\r\nKey\r\n\r\n",
        "no name": b"NATS/1.0\r\n: value\r\n\r\n",
        "colons only": b"NATS/1.0\r\n:::::\r\n\r\n",
        "NUL": b"NATS/1.0\r\nKey: a\x00b\r\n\r\n",
        "folded": b"NATS/1.0\r\nKey: a\r\n b\r\n\r\n",
        "status of letters": b"NATS/1.0 abc\r\n\r\n",
        "status of five digits": b"NATS/1.0 99999 Far\r\n\r\n",
        "status of other digits": "NATS/1.0 \u0665\u0660\u0663\r\n\r\n".encode(),
        "status not UTF-8": b"NATS/1.0 503 \xff\r\n\r\n",
        "status 503 with a body": b"NATS/1.0 503\r\n\r\n",
        "status 100 without reply": b"NATS/1.0 100 FlowControl Request\r\n\r\n",
        "5,000 headers": b"NATS/1.0\r\n" + b"Key: value\r\n" * 5000 + b"\r\n",
        "5,000 names": b"NATS/1.0\r\n" + b"".join(b"K%d: v\r\n" % n for n in range(5000)) + b"\r\n",
        "a value of 200 KB": b"NATS/1.0\r\nKey: " + b"v" * 200_000 + b"\r\n\r\n",
    }
    for name, block in blocks.items():
        yield odd(f"header block: {name}", _hmsg(block), SURVIVE)

    # -ERR
    for text in (
        b"-ERR", b"-ERR ", b"-ERR ''", b"-ERR '", b"-ERR 'The Moon Is Full'", b"-ERR no quotes", b"-err 'small'",
        b"-ERR '\xff\xfe'", b"-ERR 'a\x00b'", b"-ERR 'it''s'", b"-ERR 'Permissions Violation'",
        b"-ERR 'Permissions Violation for Publish to'", b"-ERR 'Permissions Violation for Publish to \"'",
        b"-ERR 'Permissions Violation for Subscription to \"'",
        b"-ERR 'Permissions Violation for Subscription to \"\\ud800\\x\\'",
        b"-ERR 'Permissions Violation for Subscription to \"x\" (sid \"abc\")'",
        b"-ERR 'Permissions Violation for Subscription to \"x\" using queue \"'", b"-ERR 'Invalid Subject'",
        b"-ERR 'maximum subscriptions exceeded'",
    ):  # fmt: skip
        yield odd(f"{text.decode('latin-1')!a}", text + b"\r\n", SURVIVE)
    yield odd("-ERR of 60 KB", b"-ERR '" + b"x" * 60_000 + b"'\r\n", SURVIVE_OR_RECONNECT)
    yield odd("-ERR of 2 MB", b"-ERR '" + b"x" * 2_000_000 + b"'\r\n")
    yield odd("1,000 -ERR", b"-ERR 'The Moon Is Full'\r\n" * 1000, SURVIVE)
    for reason in ("Stale Connection", "Slow Consumer", "Authorization Violation", "User Authentication Expired"):
        yield odd(f"-ERR {reason}, the end", f"-ERR '{reason}'\r\n".encode(), RECONNECT, "close")
        yield odd(f"-ERR {reason}, and on", f"-ERR '{reason}'\r\n".encode(), SURVIVE_OR_RECONNECT)

    # INFO in mid-stream
    for name, body in {
        "broken": b"{", "nothing": b"", "an array": b"[]", "a number": b"5", "null": b"null",
        "bad UTF-8": b'{"cluster":"\xff"}', "max_payload of text": b'{"max_payload":"x"}',
        "connect_urls of numbers": b'{"connect_urls":[1]}', "connect_urls an object": b'{"connect_urls":{"a":1}}',
        "deep": b'{"cluster":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    }.items():  # fmt: skip
        yield odd(f"INFO in mid-stream: {name}", b"INFO " + body + b"\r\n")
    yield odd("INFO in mid-stream: good", _info(), SURVIVE)
    yield odd("INFO in mid-stream: an empty object", b"INFO {}\r\n", SURVIVE_OR_RECONNECT)
    yield odd("INFO in mid-stream: 8,000 connect_urls", _info(connect_urls=_urls(8000)), SURVIVE_OR_RECONNECT)
    yield odd(
        "INFO in mid-stream: evil connect_urls",
        _raw_field("connect_urls", r'["", ":", "a\r\nb:1"]'),
        SURVIVE_OR_RECONNECT,
    )
    yield odd("INFO in mid-stream: TLS required now", _info(tls_required=True), SURVIVE_OR_RECONNECT)
    yield odd("INFO in mid-stream: max_payload 0", _info(max_payload=0), SURVIVE_OR_RECONNECT)
    yield odd("INFO in mid-stream: 1,000 of them", _info() * 1000, SURVIVE)

    # Storms
    yield odd("10,000 PONGs unasked", b"PONG\r\n" * 10_000, SURVIVE_OR_RECONNECT)
    yield odd("10,000 PINGs", b"PING\r\n" * 10_000, SURVIVE_OR_RECONNECT)
    yield odd("10,000 +OK", b"+OK\r\n" * 10_000, SURVIVE)
    yield odd("one PONG unasked", b"PONG\r\n", SURVIVE)

    # Good frames in bad pieces
    good = (
        b"PING\r\n" + b"MSG hostile.x %S 5\r\nhello\r\n" + b"MSG hostile.x %S reply.to 7\r\n\r\nMSG \r\r\n"
        + _hmsg(b"NATS/1.0\r\nKey: value\r\n\r\n") + b"+OK\r\n" + _info() + b"-ERR 'The Moon Is Full'\r\n"
    )  # fmt: skip
    for size_of_piece in (1, 2, 3, 7):
        yield odd(f"good frames, {size_of_piece} at a time", good, SURVIVE, chunked_by=size_of_piece)
    yield odd("a payload that looks like frames", _msg("12", b"PING\r\nPING\r\n\r\n"), SURVIVE)

    # Cut off
    frame = b"HMSG hostile.x 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n"
    for end in (1, 4, 10, 22, 23, 24, 30, 36, 38, 41, len(frame) - 1):
        yield odd(f"HMSG cut after {end} bytes", frame[:end], RECONNECT, "close")
    yield odd("the end between frames", b"", RECONNECT, "close")
    yield odd("a message, then the end", b"MSG hostile.x %S 5\r\nhello\r\n", RECONNECT, "close")


# ---------------------------------------------------------------- memory


def memory() -> Iterator[Hostile]:
    """More than anybody should keep: up to 160 MB each, made on the fly."""

    def flood(
        name: str,
        source: Callable[[bytes], Iterator[bytes]],
        outcomes: frozenset[HostileEnd],
        moment: Moment = "ready",
    ) -> Hostile:
        return Hostile(name, "memory", moment, source, outcomes)

    kib, mib = 1024, 1024 * 1024
    yield flood("no line end before INFO", _many(b"x"), REFUSE, "accept")
    yield flood("INFO without line end", _many(b"x", first=b'INFO {"a":"'), REFUSE, "accept")
    yield flood("no line end after CONNECT", _many(b"x"), REFUSE, "ping")
    yield flood("no line end", _many(b"x"), RECONNECT)
    yield flood("CRs without LF", _many(b"\r"), RECONNECT)
    yield flood("NULs", _many(b"\x00"), RECONNECT)
    yield flood("MSG without line end", _many(b"x", first=b"MSG "), RECONNECT)
    yield flood("MSG of spaces", _many(b" ", first=b"MSG"), RECONNECT)
    yield flood("-ERR without line end", _many(b"x", first=b"-ERR '"), RECONNECT)
    yield flood("INFO without line end in mid-stream", _many(b"x", first=b'INFO {"a":"'), RECONNECT)
    yield flood("2 GiB claimed and begun", _many(b"x", first=b"MSG hostile.x %S 2147483648\r\n"), RECONNECT)
    yield flood(
        "2 GiB claimed with headers",
        _many(b"x", first=b"HMSG hostile.x %S 12 2147483648\r\nNATS/1.0\r\n\r\n"),
        RECONNECT,
    )
    yield flood("2 GiB claimed for nobody", _many(b"x", first=b"MSG hostile.x 999999 2147483648\r\n"), RECONNECT)
    yield flood("messages for nobody", _many(b"MSG hostile.x 999999 1024\r\n" + b"x" * 1024 + b"\r\n"), SURVIVE)
    yield flood("messages for nobody, each another sid", _sid_flood, SURVIVE)
    yield flood("empty messages nobody takes", _many(b"MSG hostile.x %S 0\r\n\r\n", 16 * mib), SURVIVE)
    yield flood("large messages nobody takes", _many(b"MSG hostile.x %S 1048576\r\n" + b"x" * mib + b"\r\n"), SURVIVE)
    yield flood("long subjects, each another", _subject_flood, SURVIVE)
    yield flood("headers nobody takes", _many(_hmsg(b"NATS/1.0\r\n" + b"K: v\r\n" * 2000 + b"\r\n"), 64 * mib), SURVIVE)
    yield flood("small INFOs, each with another server", _info_flood, SURVIVE_OR_RECONNECT)
    yield flood("large INFOs, each with 8,000 other servers", _url_waves, SURVIVE_OR_RECONNECT)
    yield flood("PINGs", _many(b"PING\r\n", 8 * mib), SURVIVE_OR_RECONNECT)
    yield flood("PONGs", _many(b"PONG\r\n", 8 * mib), SURVIVE_OR_RECONNECT)
    yield flood("+OKs", _many(b"+OK\r\n", 8 * mib), SURVIVE_OR_RECONNECT)
    yield flood("-ERRs", _many(b"-ERR 'The Moon Is Full'\r\n", 8 * mib), SURVIVE_OR_RECONNECT)
    yield flood("-ERRs of 32 KB", _many(b"-ERR '" + b"x" * 32 * kib + b"'\r\n", 64 * mib), SURVIVE_OR_RECONNECT)
    yield flood("permission errors for other subjects", _permission_flood, SURVIVE)


def _permission_flood(_: bytes) -> Iterator[bytes]:
    for n in range(0, 50_000, 100):
        yield b"".join(b"-ERR 'Permissions Violation for Publish to \"a.%d\"'\r\n" % i for i in range(n, n + 100))


HOSTILE: list[Hostile] = [*handshake(), *stream(), *memory()]
