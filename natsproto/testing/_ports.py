"""Reserved ports of the loopback interface."""

from __future__ import annotations

import socket
import sys
from types import TracebackType

from natsproto.testing._config import HOST
from natsproto.testing._process import ServerFailed

_CAN_SHARE = sys.platform == "linux"
"""True when a process may listen on a port that another process has bound without listening."""


class ReservedPort:
    """A port that stays reserved while the server that listens on it restarts.

    A socket is bound to the port and never listens. On Linux, where both sides set SO_REUSEADDR (Go always does), the
    server can listen nevertheless, and the kernel gives the port to no other program and to no outgoing connection.
    Connecting to it while the server is down is refused, even when the program under test redials all the time. On
    other systems the socket is closed right before the server starts, which leaves a short gap.

    ``wanted`` is a port number, or None for a free one. ServerFailed when another process listens there.
    """

    def __init__(self, wanted: int | None = None) -> None:
        self._socket = socket.socket()
        try:
            if _CAN_SHARE:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, wanted or 0))
        except OSError as exc:
            self._socket.close()
            raise ServerFailed("start nats-server", f"cannot bind port {wanted} of {HOST}: {exc}") from exc
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def release(self) -> None:
        """Let the server listen on the port. To be called right before it starts."""
        if not _CAN_SHARE:
            self._socket.close()
