"""The longest control line that a server reads: its ``max_control_line``, which INFO does not have.

A server closes the connection at a longer line, and does not name it. But the longest line that was written to it is
surely too long. Owns that conclusion, for each server.
"""

from __future__ import annotations

from natsproto import errors
from natsproto.protocol.subject import MAX_CONTROL_LINE

SAFE_LINE_LENGTH = 512
"""Bytes of arguments that every server reads; shorter lines are not counted."""

DEFAULT_LIMIT = 4096
"""The ``max_control_line`` of a server that is not configured otherwise, in bytes of arguments."""

_MAX_SERVERS = 64


class LineLimit:
    """The limit of the control lines of the connected server. Lengths are bytes between verb and line end.

    After a server has closed a connection for a line it gets no line of that length or longer, and none above the
    default either: not every length is tried.
    """

    __slots__ = ("_by_server", "_longest", "_server_id", "max")

    def __init__(self) -> None:
        self.max: int = MAX_CONTROL_LINE
        """The longest line that is sent."""
        self._longest = 0  # no line that was written to this connection is longer
        self._server_id = ""
        self._by_server: dict[str, int] = {}  # max by the id of the server, which is another one after a restart

    @property
    def is_learned(self) -> bool:
        """True if the server has closed a connection for a line."""
        return self.max < MAX_CONTROL_LINE

    def check(self, length: int, subject: str) -> None:
        """Count a line that will be written. InvalidSubject if it is too long."""
        if length > self.max:
            why = ": the server closed a connection for a long line" if self.is_learned else ""
            raise errors.InvalidSubject("subject", subject, f"makes a control line longer than {self.max} bytes{why}")
        self.count(length)

    def count(self, length: int) -> None:
        """Count a line that will be written, whatever its length."""
        self._longest = max(self._longest, length)

    def on_connected(self, server_id: str) -> None:
        """Lines go to this server now."""
        self._server_id = server_id
        self.max = self._by_server.get(server_id, MAX_CONTROL_LINE)

    def on_disconnected(self, *, refused: bool, waiting: bool) -> int | None:
        """The connection has ended, if ``refused`` for a line that was too long; ``waiting`` if lines still wait.

        Returns the length from which lines are surely too long, or None if nothing is known.
        """
        longest = self._longest
        if not waiting:
            self._longest = 0  # otherwise it stays: the longest may be one of those
        if not refused or longest <= SAFE_LINE_LENGTH:
            return None
        self.max = self._by_server[self._server_id] = min(longest - 1, self.max, DEFAULT_LIMIT)
        if len(self._by_server) > _MAX_SERVERS:
            del self._by_server[next(iter(self._by_server))]
        return longest
