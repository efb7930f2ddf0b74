"""The other side of a measurement: a process that publishes and answers faster than the client under test.

It speaks the protocol over a plain blocking socket, so that no client is measured through a client, and is asked over
NATS itself, so that programs in any language can use it. Requests are JSON:

``feeder.prepare`` {"prefix", "seed", "count"}: encodes the messages, answers with the bytes of all payloads.
``feeder.go``: publishes them, each below the prefix, as fast as TCP takes them or at the scenario's pace.
``feeder.fill``: publishes them into a stream, answers when all are stored.
``echo.>``: is answered with its own payload.

No event loop, no client library.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.traffic import Message

__all__ = ["STAMP", "main"]

STAMP = 20
"""Where there is a pace, a payload begins with so many digits: when it was sent, in ns of the monotonic clock."""

_CONNECT = {"verbose": False, "pedantic": False, "lang": "raw", "version": "0", "protocol": 1, "headers": True}
_CHUNK = 256 * 1024
_STORED_TOGETHER = 500


@dataclass(slots=True)
class _Batch:
    """Encoded messages; a frame is the verb, the prefix of a client, and what is here."""

    seed: int = -1
    tails: list[bytes] = field(default_factory=list)
    nbytes: int = 0


def _tail(message: Message) -> bytes:
    payload = message.payload
    if message.headers is None:
        return b".%b %d\r\n%b\r\n" % (message.subject.encode(), len(payload), payload)
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    total = len(block) + len(payload)
    return b".%b %d %d\r\n%b%b\r\n" % (message.subject.encode(), len(block), total, block, payload)


class Feeder:
    """A connection to the server, and what was prepared."""

    def __init__(self, url: str, scenario: Scenario) -> None:
        parts = urlsplit(url)
        self._scenario = scenario
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left, self._answers = b"", b""
        self._line()  # INFO
        if parts.scheme == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate was made a moment ago
            self._socket = context.wrap_socket(self._socket)
        self._socket.sendall(f"CONNECT {json.dumps(_CONNECT)}\r\n".encode())
        self._socket.sendall(b"SUB feeder.* 1\r\nSUB echo.> 2\r\nSUB stored.* 3\r\nPING\r\n")
        while self._line() != b"PONG":
            pass
        self._batch = _Batch()
        self._verb = b"HPUB " if scenario.traffic.headers else b"PUB "
        self._prefix = b""

    def serve(self) -> None:
        """Until the server goes away, or close() in another thread."""
        self._socket.settimeout(None)
        with contextlib.suppress(EOFError, ConnectionError), self._socket:
            while True:
                subject, reply, payload = self._message()
                if subject.startswith(b"echo."):
                    self._answer(reply, payload)
                elif subject == b"feeder.prepare":
                    self._answer(reply, self._prepare(json.loads(payload)))
                elif subject == b"feeder.go":
                    self._go()
                elif subject == b"feeder.fill":
                    self._fill()
                    self._answer(reply, b"{}")

    def close(self) -> None:
        """Ends serve()."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def _prepare(self, asked: dict[str, object]) -> bytes:
        seed, count, self._prefix = int(str(asked["seed"])), int(str(asked["count"])), str(asked["prefix"]).encode()
        if (seed, count) != (self._batch.seed, len(self._batch.tails)):
            messages = self._scenario.traffic.messages(seed, count)
            nbytes = sum(len(message.payload) for message in messages)
            self._batch = _Batch(seed, [_tail(message) for message in messages], nbytes)
        return json.dumps({"bytes": self._batch.nbytes}).encode()

    def _go(self) -> None:
        head = self._verb + self._prefix
        if self._scenario.pace:
            self._go_slowly(head)
            return
        tails = self._batch.tails
        step = max(1, _CHUNK * len(tails) // max(1, self._batch.nbytes))
        for start in range(0, len(tails), step):
            self._socket.sendall(head + head.join(tails[start : start + step]))

    def _go_slowly(self, head: bytes) -> None:
        burst, pause = self._scenario.burst, self._scenario.burst / self._scenario.pace
        due = time.perf_counter()
        for start in range(0, len(self._batch.tails), burst):
            due += pause
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            frames = []
            for tail in self._batch.tails[start : start + burst]:
                line, _, rest = tail.partition(b"\r\n")
                frames.append(b"%b%b\r\n%0*d%b" % (head, line, STAMP, time.perf_counter_ns(), rest[STAMP:]))
            self._socket.sendall(b"".join(frames))

    def _fill(self) -> None:
        """A stream takes what it cannot store in time and drops it, so that it is asked every now and then."""
        head, tails = self._verb + self._prefix, self._batch.tails
        for start in range(0, len(tails), _STORED_TOGETHER):
            part = tails[start : start + _STORED_TOGETHER]
            subject, _, rest = part[-1].partition(b" ")
            asking = b"%b%b stored.a %b" % (head, subject, rest)
            self._socket.sendall((head + head.join(part[:-1]) if part[1:] else b"") + asking)
            answer = self._message()[2]
            if b'"error"' in answer:
                raise RuntimeError(f"the stream said {answer!r}")

    def _answer(self, reply: bytes, payload: bytes) -> None:
        self._answers += b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)

    def _message(self) -> tuple[bytes, bytes, bytes]:
        """Subject, reply and payload of the next one."""
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self._socket.sendall(b"PONG\r\n")
        fields = line.split(b" ")
        size = int(fields[-1])
        while len(self._left) < size + 2:
            self._left += self._receive()
        payload, self._left = self._left[:size], self._left[size + 2 :]
        return fields[1], fields[3] if len(fields) == 5 else b"", payload

    def _line(self) -> bytes:
        while b"\r\n" not in self._left:
            self._left += self._receive()
        line, _, self._left = self._left.partition(b"\r\n")
        return line

    def _receive(self) -> bytes:
        if self._answers:  # all together: one by one they would arrive in pieces of one to seven, by chance
            self._socket.sendall(self._answers)
            self._answers = b""
        data = self._socket.recv(_CHUNK)
        if not data:
            raise EOFError
        return data


def main(url: str, name: str) -> None:
    """Serve one scenario."""
    feeder = Feeder(url, next(scenario for scenario in SCENARIOS if scenario.name == name))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    feeder.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
