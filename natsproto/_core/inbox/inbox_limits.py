"""The limits of an inbox: how much waits in it, and what is dropped when that is too much.

Owns the count of the waiting bytes. They are counted by the chunk in which the messages came, so that reading a message
costs nothing.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from itertools import islice
from typing import Generic, Literal, TypeAlias, TypeVar

from natsproto import errors
from natsproto.protocol.frames import Message

M = TypeVar("M", bound=Message)


class SlowPolicy(StrEnum):
    """The reaction of a subscription that reaches its limits."""

    DROP_NEWEST = "drop_newest"
    """A new message is dropped while the limit is reached; those that wait are kept. The default."""
    DROP_OLDEST = "drop_oldest"
    """The message that has waited longest makes room for the new one: for prices, positions, states."""
    ERROR = "error"
    """The subscription ends: what waits can be read, then SlowConsumer is raised."""
    PAUSE = "pause"
    """Nothing is dropped: the client stops to read from the server, for all its subscriptions."""


SlowPolicyLike: TypeAlias = SlowPolicy | Literal["drop_newest", "drop_oldest", "error", "pause"]
"""A SlowPolicy, or its string."""


class InboxLimits(Generic[M]):
    """The limits of one ``inbox``, to which the receive path appends messages."""

    __slots__ = (
        *("_chunk_bytes", "_chunks", "_gone_at_last_look", "_inbox"),
        *("arrived", "bytes_limit", "discarded", "dropped", "is_unlimited", "msgs_limit", "policy"),
    )

    def __init__(self, inbox: deque[M], msgs_limit: int, bytes_limit: int, policy: SlowPolicy) -> None:
        self._inbox = inbox
        self.msgs_limit = msgs_limit
        self.bytes_limit = bytes_limit
        self.policy = policy
        self.dropped = 0
        """Messages lost because the limits were reached."""
        self.discarded = 0
        """Messages removed as oldest without being read."""
        self.arrived = 0
        """Messages added to the inbox, without those dropped as newest."""
        self.is_unlimited = not (msgs_limit or bytes_limit)
        """True if nothing but ``arrived`` needs to be counted, as of pulls, which bound what arrives."""
        # (arrived after a chunk, bytes of the chunk), oldest first; None: all waiting messages came in one chunk.
        self._chunks: deque[tuple[int, int]] | None = None
        self._chunk_bytes = 0
        self._gone_at_last_look = -1

    @property
    def gone(self) -> int:
        """Messages that have left the inbox."""
        return self.arrived - len(self._inbox)

    def on_chunk(self, count: int, nbytes: int, excess: int) -> bool:
        """Account for ``count`` messages that one chunk put into the inbox, and remove the last ``excess`` again.

        Returns True if the inbox may be at least half full.
        """
        inbox = self._inbox
        for _ in range(excess):
            nbytes -= inbox.pop().size
        count -= excess
        self.arrived += count
        waiting = len(inbox)
        if waiting == count:  # all older messages have been read
            self._chunks, self._chunk_bytes = None, nbytes
        elif count:
            self._add_chunk(count, nbytes)
        return waiting > 0 and (0 < self.msgs_limit < waiting * 2 or 0 < self.bytes_limit < self._chunk_bytes)

    def _add_chunk(self, count: int, nbytes: int) -> None:
        """Count pending bytes by chunk, since older messages wait: reading a message then costs nothing."""
        if self._chunks is None:
            self._chunks = deque(((self.arrived - count, self._chunk_bytes),))
        self._drop_read_chunks()
        self._chunks.append((self.arrived, nbytes))
        self._chunk_bytes += nbytes

    def _drop_read_chunks(self) -> None:
        chunks = self._chunks
        gone = self.gone
        while chunks and chunks[0][0] <= gone:
            self._chunk_bytes -= chunks.popleft()[1]

    @property
    def exceeded(self) -> bool:
        """True if more waits than a limit allows."""
        return 0 < self.msgs_limit < len(self._inbox) or 0 < self.bytes_limit < self.count_bytes()

    def count_bytes(self) -> int:
        """Return the waiting bytes. Only the oldest chunk can be partly read, so only it is summed."""
        if not self._inbox:
            return 0
        if self._chunks is None:
            self._chunks = deque(((self.arrived, self._chunk_bytes),))
        self._drop_read_chunks()
        end, nbytes = self._chunks[0]
        left = end - self.gone
        return self._chunk_bytes - nbytes + sum(message.size for message in islice(self._inbox, left))

    def has_reader_progress(self) -> bool:
        """True if messages have left the inbox since the last call."""
        before, self._gone_at_last_look = self._gone_at_last_look, self.gone
        return self.gone != before

    def drop_excess(self) -> int:
        """Drop messages as the policy says until no limit is exceeded; return their number."""
        before = self.dropped
        self.count_bytes()  # counts by chunk from here on
        drop = self._drop_oldest if self.policy is SlowPolicy.DROP_OLDEST else self._drop_newest
        while self.exceeded:
            drop()
        return self.dropped - before

    @property
    def waiting(self) -> int:
        """The messages that wait."""
        return len(self._inbox)

    def discard_all(self) -> None:
        """Remove all waiting messages."""
        self.discarded += len(self._inbox)
        self._inbox.clear()

    def _drop_newest(self) -> None:
        assert self._chunks is not None
        size = self._inbox.pop().size
        self.dropped += 1
        self.arrived -= 1
        end, nbytes = self._chunks.pop()
        self._chunk_bytes -= size
        begin = self._chunks[-1][0] if self._chunks else self.gone
        if end - 1 > begin:
            self._chunks.append((end - 1, nbytes - size))
        else:
            self._chunk_bytes -= nbytes - size

    def _drop_oldest(self) -> None:
        self._inbox.popleft()
        self.dropped += 1
        self.discarded += 1
        self._drop_read_chunks()


def check_policy(policy: SlowPolicyLike) -> SlowPolicy:
    """Return the policy; ConfigError for an unknown one."""
    try:
        return SlowPolicy(policy)
    except ValueError:
        raise errors.ConfigError("slow_policy", policy, f"must be one of {', '.join(SlowPolicy)}") from None
