"""Ports of the loopback interface that belong to us for as long as we want them.

Owns the reservation and nothing else.
"""

from __future__ import annotations

import socket
import sys
from types import TracebackType

from natsproto.testing._config import HOST
from natsproto.testing._process import ServerFailed

_SHARED = sys.platform == "linux"
"""Whether one process may listen on a port that another one has bound and not opened."""


class HeldPort:
    """A port nobody else gets, across restarts of the server that listens on it.

    A socket is bound to it and never listens. On Linux, where both sides set SO_REUSEADDR (Go always does),
    the server can listen nevertheless, while the kernel gives the port to no other program and to no outgoing
    connection: connecting to it while the server is down is refused, even when the program under test does
    nothing but redial. Elsewhere the socket is closed right before the server starts, which leaves a moment.

    ``wanted`` is a port number, or None for a free one. ServerFailed when somebody listens there.
    """

    def __init__(self, wanted: int | None = None) -> None:
        self._socket = socket.socket()
        try:
            if _SHARED:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, wanted or 0))
        except OSError as exc:
            self._socket.close()
            raise ServerFailed("start nats-server", f"port {wanted} of {HOST} cannot be had: {exc}") from exc
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def lend(self) -> None:
        """Makes way for the server, which is about to listen."""
        if not _SHARED:
            self._socket.close()
