"""Finding a write of this client in its stream. Gathers the evidence from which ``_publish.outcome`` draws conclusions.

Rules:

1. The leader is asked, for the stream's info and for the last message of the subject, both at once: the next write may
   replace what they show.
2. Messages after the expected sequence are read only where the last one does not decide, from any server that has the
   last one.
3. That a message is not found is evidence only where it would have been kept: not in a work queue, not beyond a limit,
   not where messages of the subject have been replaced since it was sent.
4. An error while looking shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from natsproto import errors
from natsproto.jetstream._publish.outcome import Evidence, Expectation, Leadership, expectation_of
from natsproto.jetstream._publish.publish import Lookup, Sent
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.codec import NEVER
from natsproto.jetstream._values.info import PubAck, StreamInfo
from natsproto.jetstream._values.policies import DiscardPolicy, RetentionPolicy

BATCH_ID_HEADER = "Nats-Batch-Id"
LEADER_LEASE_S = 2.0
"""Seconds without a sign of a peer after which a leader may have been deposed: half of the servers' least election
timeout. Also how far the clocks of two servers may differ.
"""
DEPOSED_LEADER_S = 25.0
"""Seconds after which a leader that was cut off has noticed that it has no majority: servers check every 10 s whether
10 s have passed without one.
"""
FIRST_ELECTION_S = 3.0
"""Seconds after the creation of a stream in which its leader is the first one: a second election takes four seconds."""
MAX_READ_SEQS = 1000
"""Sequences before the last message of a subject that the lookup of a batch reads."""
MAX_LOOKUP_S = 2.0
"""The most seconds of a lookup."""
MANY_MESSAGES = 10_000
"""A stream with that many messages does not lose a new one to its limits at once."""

IsOwn = Callable[[RawMessage], bool | None]
"""Recognises the write; None for a message that may be it."""


class WriteLookup:
    """Looks up one write to ``subject``, as stored, in the stream that ``find_stream`` returns.

    ``ttl`` is the number of seconds that the message lives. ``is_batch``: the last message of an atomic batch.
    """

    def __init__(
        self,
        find_stream: Callable[[], Awaitable[Stream]],
        subject: str,
        is_own: IsOwn,
        *,
        ttl: float = float("inf"),
        is_batch: bool = False,
    ) -> None:
        self._find_stream, self._subject, self._is_own = find_stream, subject, is_own
        self._ttl, self._is_batch = ttl, is_batch

    async def __call__(self, sent: Sent) -> Evidence:
        """Look the write up within ``sent.timeout`` seconds, or MAX_LOOKUP_S if that is less."""
        wait = min(sent.timeout, MAX_LOOKUP_S)
        try:
            async with asyncio.timeout(wait):
                return await self._look_up(sent, wait)
        except (errors.NatsError, TimeoutError):
            return Evidence()

    async def _look_up(self, sent: Sent, wait: float) -> Evidence:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        stream, expected = await self._find_stream(), sent.expected
        info, last = await asyncio.gather(stream.info(timeout=wait), self._last_message(stream, expected, wait))
        elapsed = sent.elapsed + clock() - started_at
        leadership, is_kept = leadership_of(info, elapsed), self._is_kept(info, sent.elapsed + wait)
        may_be_untrue = sent.refused_below is not None
        if not self._is_batch and not expected.subject:
            return Evidence(is_refuted=may_be_untrue and info.state.last_seq < expected.seq, leadership=leadership)
        if last is not None and self._is_own(last):
            return Evidence(ack=PubAck(stream=last.stream, seq=last.seq), leadership=leadership)
        if last is None or (not self._is_batch and last.seq <= expected.seq):
            is_refuted = may_be_untrue and await _was_never_last(stream, info, expected, wait)
            return Evidence(is_refuted=is_refuted, is_absent=is_kept, leadership=leadership)
        first = max(1, last.seq - MAX_READ_SEQS if self._is_batch else expected.seq)
        read = await self._read(stream, first, last.seq, wait)
        found = [message for message in (last, *read) if self._is_batch or message.seq != expected.seq]
        if own := [message for message in found if self._is_own(message)]:
            return Evidence(ack=PubAck(stream=own[-1].stream, seq=own[-1].seq), leadership=leadership)
        is_ambiguous = any(self._is_own(message) is None for message in found)
        # Nothing between the expected message and the last one has been replaced.
        limit = info.config.max_msgs_per_subject
        is_whole = limit <= 0 or len(read) < limit or read[0].seq == expected.seq or _is_older(last, info, elapsed)
        return Evidence(
            is_refuted=not is_ambiguous and not self._is_batch and any(_is_rival(m, expected) for m in found),
            is_absent=is_kept and is_whole and not is_ambiguous,
            is_replaced=not is_whole,
            is_ambiguous=is_ambiguous,
            leadership=leadership,
        )

    async def _read(self, stream: Stream, first: int, last: int, wait: float) -> list[RawMessage]:
        """Read the messages of the subject, from the leader if the server that answers first lacks the last."""
        read: list[RawMessage] = []
        for direct in (True, False):
            messages = stream.get_batch(subject=self._subject, start_seq=first, direct=direct, timeout=wait)
            read = [message async for message in messages]
            if read and read[-1].seq >= last:
                break
        return read

    async def _last_message(self, stream: Stream, expected: Expectation, wait: float) -> RawMessage | None:
        if not self._is_batch and not expected.subject:
            return None
        try:
            return await stream.get_last_message(self._subject, direct=False, timeout=wait)
        except errors.MessageNotFound:
            return None

    def _is_kept(self, info: StreamInfo, seconds: float) -> bool:
        """True if the stream keeps the message for these seconds."""
        config, state = info.config, info.state
        if config.retention != RetentionPolicy.LIMITS:
            return False
        is_full = 0 < config.max_msgs <= state.messages or 0 < config.max_bytes <= 2 * state.bytes
        drops_old = is_full and config.discard != DiscardPolicy.NEW and state.messages < MANY_MESSAGES
        return not drops_old and min(config.max_age or float("inf"), self._ttl) > seconds


def batch_lookup(find_stream: Callable[[], Awaitable[Stream]], subject: str, batch_id: str) -> Lookup:
    """Return the lookup of an atomic batch whose last message goes to ``subject``, as stored."""

    def is_own(message: RawMessage) -> bool:
        return message.headers.last(BATCH_ID_HEADER) == batch_id

    return WriteLookup(find_stream, subject, is_own, is_batch=True)


def leadership_of(info: StreamInfo, elapsed: float) -> Leadership:
    """Return what is known of the leader that gave this info, for a message first sent ``elapsed`` seconds ago.

    Peers elect another leader after four seconds of silence, and not before: one that has heard from a majority lately
    is the leader.
    """
    cluster, config = info.cluster, info.config
    replicas = cluster.replicas if cluster is not None else ()
    if not replicas:
        return Leadership.ONLY_SERVER if config.num_replicas <= 1 else Leadership.UNCONFIRMED
    heard = 1 + sum(not peer.offline and peer.active is not None and peer.active < LEADER_LEASE_S for peer in replicas)
    if heard <= (1 + len(replicas)) // 2:
        return Leadership.UNCONFIRMED
    since = cluster.leader_since if cluster is not None else None
    if since is None or NEVER in (info.ts, info.created):
        return Leadership.MAJORITY
    has_led = (info.ts - since).total_seconds()
    is_first = abs((since - info.created).total_seconds()) < FIRST_ELECTION_S and has_led > elapsed
    return Leadership.UNDISPUTED if is_first or has_led > elapsed + DEPOSED_LEADER_S else Leadership.MAJORITY


def _is_older(message: RawMessage, info: StreamInfo, elapsed: float) -> bool:
    """True if a message was stored before the write was first sent, by the clocks of the servers."""
    is_only_server = leadership_of(info, elapsed) is Leadership.ONLY_SERVER
    age = elapsed + (0.0 if is_only_server else LEADER_LEASE_S)
    return info.ts != NEVER and message.time < info.ts - timedelta(seconds=age)


def _is_rival(message: RawMessage, expected: Expectation) -> bool:
    """True if this message took the place of one with the same expectation."""
    if expected.subject != message.subject or not message.has_headers:
        return False
    return expectation_of(message.subject, message.headers.pairs()) == expected


async def _was_never_last(stream: Stream, info: StreamInfo, expected: Expectation, wait: float) -> bool:
    """True if the sequence was never the last one: it is beyond the end of the stream, or another subject's."""
    if info.state.last_seq < expected.seq:
        return True
    if expected.subject in ("", ">") or "*" in expected.subject:
        return False
    try:
        return (await stream.get_message(expected.seq, direct=False, timeout=wait)).subject != expected.subject
    except errors.MessageNotFound:
        return False
