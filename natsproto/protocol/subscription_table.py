"""The subscription table: sids, subscriptions, received counts, and the lines to restore them after a reconnect.

Owns all sids (none is reused: the server ignores a SUB with a known sid) and the counts for auto-unsubscribe. Messages
belong to the receivers of the routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from natsproto.protocol import commands
from natsproto.protocol.frames import Message, Responder, Route
from natsproto.protocol.line_limit import LineLimit

Owner = TypeVar("Owner")

RESUBSCRIBE_BATCH: Final = 1000
"""Subscriptions sent to a new connection at once: about 2 ms."""


class SubscriptionEntry(Route, Generic[Owner]):
    """One subscription as the server knows it.

    ``received`` counts all messages that ever arrived for it; ``max_msgs`` is the count at which it ends (None: never;
    0: it has ended). ``owner`` is returned to the caller unchanged.
    """

    __slots__ = ("max_msgs", "owner", "queue", "received", "received_before", "sid", "stopped", "subject")

    sid: int
    """Its number on this connection, by which the server names it in MSG."""
    subject: str
    queue: str | None
    """Its queue group; None: it gets every message."""
    owner: Owner

    def __init__(
        self,
        sid: int,
        subject: str,
        queue: str | None,
        deliver: Callable[[Message], object],
        owner: Owner,
        message_class: type[Message] = Message,
        origin: Responder | None = None,
        note: object = None,
    ) -> None:
        super().__init__(deliver, message_class=message_class, origin=origin, note=note)
        self.sid, self.subject, self.queue, self.owner = sid, subject, queue, owner
        self.max_msgs: int | None = None
        self.received: int = 0
        self.received_before: int = 0
        """Messages received on earlier connections, which the current server does not count."""
        self.stopped: bool = False
        """True after UNSUB, while messages that the server has already sent are still received."""


class SubscriptionTable(Generic[Owner]):
    """All open subscriptions of a client. ``line_limit`` is that of the connected server."""

    def __init__(self, line_limit: LineLimit | None = None) -> None:
        self._line_limit = line_limit or LineLimit()
        self.routes: dict[bytes, Route] = {}
        """The routes for a Parser: sid as bytes → route."""
        self._entries: dict[int, SubscriptionEntry[Owner]] = {}
        self._last_sid = 0

    @property
    def last_sid(self) -> int:
        """The most recent sid."""
        return self._last_sid

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SubscriptionEntry[Owner]]:
        return iter(list(self._entries.values()))

    def add(
        self,
        subject: str,
        queue: str | None,
        deliver: Callable[[Message], object],
        owner: Owner,
        *,
        message_class: type[Message] = Message,
        origin: Responder | None = None,
        note: object = None,
    ) -> tuple[SubscriptionEntry[Owner], bytes]:
        """Register a subscription; return it and the SUB to send. InvalidSubject for invalid names.

        The other arguments are as for a Route.
        """
        sid = self._last_sid + 1
        sub_line = commands.sub(subject, queue, sid)
        self._line_limit.check(commands.arguments_length(sub_line), subject)
        self._last_sid = sid
        entry = SubscriptionEntry(sid, subject, queue, deliver, owner, message_class, origin, note)
        self._entries[sid] = entry
        self.routes[b"%d" % sid] = entry
        return entry, sub_line

    def remove(self, entry: SubscriptionEntry[Owner]) -> bytes:
        """Remove a subscription; return the UNSUB to send, or nothing when it has ended."""
        if self._entries.pop(entry.sid, None) is None:
            return b""
        del self.routes[b"%d" % entry.sid]
        entry.deliver = _drop  # for the rest of a chunk that is being read
        entry.max_msgs = 0
        return commands.unsub(entry.sid)

    def limit(self, entry: SubscriptionEntry[Owner], max_msgs: int) -> bytes:
        """End a subscription after ``max_msgs`` received in all, earlier ones included.

        Returns the UNSUB to send; a limit that is already reached removes it at once.
        """
        if entry.sid not in self._entries:
            return b""
        entry.max_msgs = max_msgs
        if entry.received >= max_msgs:
            return self.remove(entry)
        return commands.unsub(entry.sid, max_msgs - entry.received_before)

    def stop_delivery(self, entry: SubscriptionEntry[Owner]) -> bytes:
        """Return the UNSUB after which the server sends no more; messages in flight are still delivered.

        Returns nothing when the subscription has ended, or was stopped before.
        """
        if entry.stopped or entry.sid not in self._entries:
            return b""
        entry.stopped = True
        return commands.unsub(entry.sid)

    def take_arrived(self, entry: SubscriptionEntry[Owner]) -> tuple[int, int, int, bool]:
        """Take the counts since the last call.

        Returns messages, bytes, the number of those messages beyond the limit, which the owner must not see, and True
        if the subscription has ended at the limit. Messages for a subscription that had ended before were dropped and
        do not count.
        """
        count, nbytes = entry.arrived, entry.nbytes
        entry.arrived = entry.nbytes = 0
        if entry.sid not in self._entries:
            return 0, 0, 0, False
        entry.received += count
        limit = entry.max_msgs
        if limit is None or entry.received < limit:
            return count, nbytes, 0, False
        self.remove(entry)
        excess = min(count, entry.received - limit)
        entry.received -= excess
        return count, nbytes, excess, True

    def by_sid(self, sid: str) -> SubscriptionEntry[Owner] | None:
        """Return the open subscription with this sid, as the server writes it, or None."""
        return self._entries.get(int(sid)) if sid.isascii() and sid.isdigit() and len(sid) < 19 else None

    def resubscribe(self, most: int = RESUBSCRIBE_BATCH) -> Iterator[bytes]:
        """Yield the lines for a new connection, in batches of at most ``most`` subscriptions: SUB for each, and UNSUB
        with the remaining count where there is a limit.

        The table may change between two batches, as long as the lines it returns are sent at once: a subscription that
        ends is left out, and a new one has sent its own SUB.
        """
        known = list(self._entries.values())
        for begin in range(0, len(known), most):
            plan: list[bytes] = []
            for entry in known[begin : begin + most]:
                if not entry.stopped and entry.sid in self._entries:
                    plan += self._sub_lines(entry)
            yield b"".join(plan)

    def resubscribe_one(self, entry: SubscriptionEntry[Owner]) -> bytes:
        """Return the lines that end a subscription on the server and start it again."""
        return b"".join((commands.unsub(entry.sid), *self._sub_lines(entry)))

    def longest(self, length: int) -> list[tuple[SubscriptionEntry[Owner], int]]:
        """Return the subscriptions whose SUB has at least this length, and its length."""
        sizes = ((entry, commands.arguments_length(self._sub_line(entry))) for entry in self._entries.values())
        return [(entry, size) for entry, size in sizes if size >= length]

    @staticmethod
    def _sub_line(entry: SubscriptionEntry[Owner]) -> bytes:
        return commands.sub(entry.subject, entry.queue, entry.sid)

    def _sub_lines(self, entry: SubscriptionEntry[Owner]) -> list[bytes]:
        entry.received_before = entry.received
        plan = [self._sub_line(entry)]
        self._line_limit.count(commands.arguments_length(plan[0]))
        if entry.max_msgs is not None:
            plan.append(commands.unsub(entry.sid, entry.max_msgs - entry.received))
        return plan


def _drop(message: Message) -> None:
    """Drop a message that was in flight when its subscription ended."""
