"""The subscription table: sids, interest, what has been received, and what to say again after a reconnect.

Owns every sid ever given out (none is given twice: the server ignores a SUB that reuses one) and the counts
behind auto-unsubscribe. It does not own the messages; those belong to whoever gave the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from natsproto.protocol import commands
from natsproto.protocol.frames import Message, Responder, Sink

Owner = TypeVar("Owner")

SLICE: Final = 1000
"""Subscriptions that a new connection is told in one go: about 2 ms."""


class Interest(Sink, Generic[Owner]):
    """One subscription as the server knows it.

    ``received`` counts all messages that ever arrived for it; ``max_msgs`` is the number after which it ends
    (None: never). ``owner`` is handed back to the caller untouched.
    """

    __slots__ = ("carried", "max_msgs", "owner", "queue", "received", "sid", "stopped", "subject")

    sid: int
    subject: str
    queue: str | None
    owner: Owner

    def __init__(
        self,
        sid: int,
        subject: str,
        queue: str | None,
        deliver: Callable[[Message], object],
        owner: Owner,
        make: type[Message] = Message,
        origin: Responder | None = None,
        note: object = None,
    ) -> None:
        super().__init__(deliver, make=make, origin=origin, note=note)
        self.sid, self.subject, self.queue, self.owner = sid, subject, queue, owner
        self.max_msgs: int | None = None
        self.received: int = 0
        self.carried: int = 0
        """Received on earlier connections, which the server of this one knows nothing of."""
        self.stopped: bool = False
        """Whether the server was told to send no more while what it has sent is still taken in."""


class SubscriptionTable(Generic[Owner]):
    """Every live subscription of a client."""

    def __init__(self) -> None:
        self.sinks: dict[bytes, Sink] = {}
        """The route a Parser reads: sid as it stands on the wire → sink."""
        self._interests: dict[int, Interest[Owner]] = {}
        self._last_sid = 0

    @property
    def last_sid(self) -> int:
        """The sid given out last."""
        return self._last_sid

    def __len__(self) -> int:
        return len(self._interests)

    def __iter__(self) -> Iterator[Interest[Owner]]:
        return iter(list(self._interests.values()))

    def add(
        self,
        subject: str,
        queue: str | None,
        deliver: Callable[[Message], object],
        owner: Owner,
        *,
        make: type[Message] = Message,
        origin: Responder | None = None,
        note: object = None,
    ) -> tuple[Interest[Owner], bytes]:
        """Registers a subscription; returns it and the SUB to send. InvalidSubject for bad names, nothing kept.

        The rest is as for a Sink.
        """
        sid = self._last_sid + 1
        wire = commands.sub(subject, queue, sid)
        self._last_sid = sid
        interest = Interest(sid, subject, queue, deliver, owner, make, origin, note)
        self._interests[sid] = interest
        self.sinks[b"%d" % sid] = interest
        return interest, wire

    def remove(self, interest: Interest[Owner]) -> bytes:
        """Forgets a subscription; returns the UNSUB to send, or nothing when it had ended already."""
        if self._interests.pop(interest.sid, None) is None:
            return b""
        del self.sinks[b"%d" % interest.sid]
        interest.deliver = _drop  # for the rest of a chunk that is being read
        return commands.unsub(interest.sid)

    def limit(self, interest: Interest[Owner], max_msgs: int) -> bytes:
        """Ends a subscription after max_msgs received in all (those of the past included).

        Returns the UNSUB to send; a limit already reached removes it at once.
        """
        if interest.sid not in self._interests:
            return b""
        interest.max_msgs = max_msgs
        if interest.received >= max_msgs:
            return self.remove(interest)
        return commands.unsub(interest.sid, max_msgs - interest.carried)

    def stop(self, interest: Interest[Owner]) -> bytes:
        """Returns the UNSUB after which the server sends no more; what is on its way is still delivered.

        Returns nothing when the subscription had ended already, or the server was told so before.
        """
        if interest.stopped or interest.sid not in self._interests:
            return b""
        interest.stopped = True
        return commands.unsub(interest.sid)

    def settle(self, interest: Interest[Owner]) -> tuple[int, int, int, bool]:
        """Takes what arrived since the last call.

        Returns messages, bytes, how many of the messages came behind the limit and are not the owner's to see,
        and whether the subscription has ended by reaching it. What comes for a subscription that had ended
        before was dropped on arrival and does not count.
        """
        count, octets = interest.arrived, interest.nbytes
        interest.arrived = interest.nbytes = 0
        if interest.sid not in self._interests:
            return 0, 0, 0, False
        interest.received += count
        limit = interest.max_msgs
        if limit is None or interest.received < limit:
            return count, octets, 0, False
        self.remove(interest)
        excess = min(count, interest.received - limit)
        interest.received -= excess
        return count, octets, excess, True

    def by_sid(self, sid: str) -> Interest[Owner] | None:
        """The live subscription with this sid as the server writes it."""
        return self._interests.get(int(sid)) if sid.isascii() and sid.isdigit() and len(sid) < 19 else None

    def resubscribe(self, most: int = SLICE) -> Iterator[bytes]:
        """Yields what to tell a new connection, in slices of at most ``most`` subscriptions: SUB for each, and UNSUB
        with the remaining count where there is a limit.

        The table may change between two slices, as long as the lines it returns are sent at once: a subscription that
        ends is left out, and a new one has sent its own SUB.
        """
        known = list(self._interests.values())
        for begin in range(0, len(known), most):
            plan: list[bytes] = []
            for interest in known[begin : begin + most]:
                if not interest.stopped and interest.sid in self._interests:
                    plan += self._plan(interest)
            yield b"".join(plan)

    def again(self, interest: Interest[Owner]) -> bytes:
        """What ends a subscription for the server and begins it anew."""
        return b"".join((commands.unsub(interest.sid), *self._plan(interest)))

    @staticmethod
    def _plan(interest: Interest[Owner]) -> list[bytes]:
        interest.carried = interest.received
        plan = [commands.sub(interest.subject, interest.queue, interest.sid)]
        if interest.max_msgs is not None:
            plan.append(commands.unsub(interest.sid, interest.max_msgs - interest.received))
        return plan


def _drop(message: Message) -> None:
    """What becomes of messages that were on their way when their subscription ended."""
