"""The other side of a measurement: a process that publishes, or answers, faster than the client under test.

It speaks the protocol over a plain blocking socket, so that neither client is measured through a client.

``python -m benchmarks.feeder publish``
    encodes everything up front, says ``ready``, then reads numbers from standard input and for each publishes
    that many messages as fast as TCP takes them, waits until the server has them all, and says ``sent N``.
``python -m benchmarks.feeder fill``
    does the same for a stream, which takes the messages behind the server's back: it publishes to SUBJECT.a, asks
    the stream to acknowledge every thousandth message, and goes on when it has, as a stream drops what it cannot store
    in time; ``sent N`` says that all N are stored.
``python -m benchmarks.feeder echo``
    subscribes, says ``ready`` and returns the payload of every request to its sender until killed.

No event loop, no client library, no pacing but TCP's.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from urllib.parse import urlsplit

__all__ = ["main", "subject_of", "trace_of"]

_CONNECT = {"verbose": False, "pedantic": False, "lang": "raw", "version": "0", "protocol": 1, "headers": True}
_CHUNK = 256 * 1024
_STORED = 1000
_ANSWERS = "bench.stored"


def trace_of(number: int) -> str:
    """The value of the ``Trace`` header of message `number`: 16 characters, never the same twice."""
    return f"{number:016x}"


def subject_of(base: str, number: int, subjects: int) -> str:
    """The subject of message `number` when messages go round over `subjects` of them."""
    return base if subjects == 1 else f"{base}.{number % subjects:04d}"


def _frame(subject: str, number: int, payload: bytes, headers: bool) -> bytes:
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
    block = f"NATS/1.0\r\nTrace: {trace_of(number)}\r\nKind: order\r\n\r\n".encode()
    total = len(block) + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode(), len(block), total, block, payload)


def _chunks(frames: list[bytes]) -> list[bytes]:
    chunks: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for frame in frames:
        part.append(frame)
        size += len(frame)
        if size >= _CHUNK:
            chunks.append(b"".join(part))
            part, size = [], 0
    if part:
        chunks.append(b"".join(part))
    return chunks


class _Wire:
    """A blocking connection to the server that knows PING, PONG and nothing else."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""
        self._line()  # INFO
        self.send(f"CONNECT {json.dumps(_CONNECT)}\r\n".encode())
        self.flush()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def flush(self) -> None:
        """Return when the server has processed everything sent before."""
        self.send(b"PING\r\n")
        while (line := self._line()) != b"PONG":
            if line == b"PING":
                self.send(b"PONG\r\n")
            elif not line.startswith(b"INFO"):
                raise RuntimeError(f"the server said {line!r}")

    def _line(self) -> bytes:
        while b"\r\n" not in self._left:
            self._left += self._receive()
        line, _, self._left = self._left.partition(b"\r\n")
        return line

    def _receive(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def answer(self) -> bytes:
        """The payload of the next message."""
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self.send(b"PONG\r\n")
        return self._line()  # what a stream says is one line of JSON

    def echo(self) -> None:
        """Answer every request with its own payload until the server goes away."""
        self._socket.settimeout(None)
        data, pos = self._left, 0
        while True:
            answers: list[bytes] = []
            while (end := data.find(b"\r\n", pos)) >= 0:
                line = data[pos:end]
                if line.startswith(b"MSG "):
                    _, _, _, reply, length = line.split(b" ")
                    start = end + 2
                    stop = start + int(length)
                    if stop + 2 > len(data):
                        break
                    answers.append(b"PUB %b %b\r\n%b\r\n" % (reply, length, data[start:stop]))
                    pos = stop + 2
                else:
                    if line == b"PING":
                        answers.append(b"PONG\r\n")
                    pos = end + 2
            if answers:
                self.send(b"".join(answers))
            more = self._socket.recv(_CHUNK)
            if not more:
                return
            data, pos = data[pos:] + more, 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _publish(wire: _Wire, subject: str, *, size: int, subjects: int, headers: bool, total: int) -> None:
    payload = b"x" * size

    def encode(count: int) -> list[bytes]:
        if headers or subjects > 1:
            names = [subject_of(subject, number, subjects) for number in range(subjects)]
            frames = [_frame(names[n % subjects], n, payload, headers) for n in range(count)]
        else:
            frames = [_frame(subject, 0, payload, False)] * count
        return _chunks(frames)

    ready = {1: encode(1), total: encode(total)}
    _say("ready")
    for line in sys.stdin:
        count = int(line)
        for chunk in ready[count]:
            wire.send(chunk)
        wire.flush()
        _say(f"sent {count}")


def _sizes(size: int, uneven: bool) -> list[int]:
    """The sizes of the payloads of `_STORED` messages: two neighbours together have 2 * size."""
    if not uneven:
        return [size] * _STORED
    return [size + (1 - 2 * (n % 2)) * (n // 2 * 37 % (size // 2)) for n in range(_STORED)]


def _fill(wire: _Wire, subject: str, *, size: int, uneven: bool) -> None:
    base = subject.encode()
    plain = [b"PUB %b.a %d\r\n%b\r\n" % (base, n, b"x" * n) for n in _sizes(size, uneven)]
    asking = [b"PUB %b.a %b %d\r\n%b\r\n" % (base, _ANSWERS.encode(), n, b"x" * n) for n in _sizes(size, uneven)]
    wire.send(f"SUB {_ANSWERS} 1\r\n".encode())
    wire.flush()
    _say("ready")
    for line in sys.stdin:
        count = int(line)
        for done in range(0, count, _STORED):
            last = min(_STORED, count - done) - 1
            wire.send(b"".join(plain[:last]) + asking[last])
            if b'"error"' in (answer := wire.answer()):
                raise RuntimeError(f"the stream said {answer!r}")
        _say(f"sent {count}")


def main(argv: list[str] | None = None) -> None:
    """Run until standard input ends (publish, fill) or the process is stopped (echo)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeder", description=__doc__)
    parser.add_argument("role", choices=["publish", "fill", "echo"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--subjects", type=int, default=1)
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--uneven", action="store_true", help="fill: sizes from half of it to one and a half")
    parser.add_argument("--total", type=int, default=1, help="the size of the measured burst")
    args = parser.parse_args(argv)
    wire = _Wire(args.url)
    if args.role == "publish":
        _publish(
            wire,
            args.subject,
            size=args.size,
            subjects=args.subjects,
            headers=args.headers,
            total=args.total,
        )
    elif args.role == "fill":
        _fill(wire, args.subject, size=args.size, uneven=args.uneven)
    else:
        wire.send(f"SUB {args.subject} 1\r\n".encode())
        wire.flush()
        _say("ready")
        wire.echo()


if __name__ == "__main__":
    main()
