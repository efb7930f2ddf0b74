"""Finding a message of this client in its stream after a refusal that is not certain.

Owns what a search can prove. That the message is there proves that it is stored. That it is not there proves nothing:
it may have been overwritten, and a leader that was cut off answers reads for ten seconds or more. Three facts prove
that it is not stored: another message was stored with the same expectation, the expected sequence was never that of the
subject, or a leader that hears a majority of its peers lacks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from natsproto.errors import MessageNotFound, NatsError, WrongLastSequence
from natsproto.jetstream._direct import RawMessage
from natsproto.jetstream._info import PubAck, StreamInfo
from natsproto.jetstream._publish.refusals import Expectation, expectation_of
from natsproto.jetstream._stream import Stream

BATCH_ID_HEADER = "Nats-Batch-Id"

LEADER_LEASE_S = 2.0
"""Seconds without a sign of a peer after which a leader may have been deposed: half of the servers' least election
timeout.
"""
MAX_SEARCHED_SEQS = 1000
"""Sequences before the last message of a subject that a search for a batch reads."""
MAX_SEARCH_S = 2.0
"""The most seconds for each request of a search."""


class OwnWriteSearch:
    """Searches a stream for a message of this client. ``is_own`` recognises it, and returns None for a message that may
    be this one.

    A call returns where the message to ``subject`` is stored, and None when that is unknown; it raises the ``refusal``
    when the message is certainly not stored. An error while searching proves nothing.
    """

    def __init__(
        self, find_stream: Callable[[str], Awaitable[Stream]], is_own: Callable[[RawMessage], bool | None]
    ) -> None:
        self._find_stream, self._is_own = find_stream, is_own

    async def __call__(
        self, subject: str, expected: Expectation, refusal: WrongLastSequence, timeout: float, *, settled: bool = False
    ) -> PubAck | None:
        """Search within ``timeout`` seconds, or MAX_SEARCH_S if that is less. ``settled``: a leader that was cut off
        has had the time to learn of its successor.
        """
        wait = min(timeout, MAX_SEARCH_S)
        try:
            async with asyncio.timeout(wait):
                return await self._search(subject, expected, refusal, wait, settled)
        except WrongLastSequence:
            raise
        except (NatsError, TimeoutError):
            return None

    async def _search(
        self, subject: str, expected: Expectation, refusal: WrongLastSequence, wait: float, settled: bool
    ) -> PubAck | None:
        stream = await self._find_stream(subject)
        last = None
        if expected.subject:
            try:
                last = await stream.get_last_message(subject, direct=False, timeout=wait)
            except MessageNotFound:
                pass
            if last is not None and last.seq > expected.seq:
                if ack := self._judge(last, expected, refusal):
                    return ack
                async for message in stream.get_batch(subject=subject, start_seq=expected.seq + 1, timeout=wait):
                    if ack := self._judge(message, expected, refusal):
                        return ack
                return None
        info = await stream.info(timeout=wait)
        if refusal.last is not None and refusal.last < expected.seq:
            is_absent = settled and bool(expected.subject) and _leads_a_majority(info)
            if is_absent or await _was_never_last(stream, info, expected, wait):
                raise refusal
        return None

    def _judge(self, message: RawMessage, expected: Expectation, refusal: WrongLastSequence) -> PubAck | None:
        own = self._is_own(message)
        if own:
            return PubAck(stream=message.stream, seq=message.seq)
        if (
            own is not None
            and expected.subject == message.subject
            and expectation_of(message.subject, message.headers.pairs()) == expected
        ):
            raise refusal  # this message took its place
        return None


async def find_batch(stream: Stream, subject: str, batch_id: str, timeout: float) -> tuple[PubAck | None, bool]:
    """Search the stream for the last message of an atomic batch, to ``subject``; return where it is stored, or None and
    whether it is certain that the batch is not stored: a leader that hears a majority of its peers does not have it.
    """
    wait = min(timeout, MAX_SEARCH_S)
    try:
        async with asyncio.timeout(wait):
            info = await stream.info(timeout=wait)
            try:
                last = await stream.get_last_message(subject, direct=False, timeout=wait)
            except MessageNotFound:
                return None, _leads_a_majority(info)
            if last.headers.last(BATCH_ID_HEADER) == batch_id:
                return PubAck(stream=last.stream, seq=last.seq), False
            first = max(1, last.seq - MAX_SEARCHED_SEQS)
            async for message in stream.get_batch(subject=subject, start_seq=first, timeout=wait):
                if message.headers.last(BATCH_ID_HEADER) == batch_id:
                    last = message
            if last.headers.last(BATCH_ID_HEADER) == batch_id:
                return PubAck(stream=last.stream, seq=last.seq), False
            return None, _leads_a_majority(info)
    except (NatsError, TimeoutError):
        return None, False


def _leads_a_majority(info: StreamInfo) -> bool:
    """True if the leader that gave this info has heard from enough peers lately to be the only one: others elect a new
    leader after four seconds of silence, and not before.
    """
    replicas = info.cluster.replicas if info.cluster is not None else ()
    heard = 1 + sum(not peer.offline and peer.active is not None and peer.active < LEADER_LEASE_S for peer in replicas)
    return heard > (1 + len(replicas)) // 2


async def _was_never_last(stream: Stream, info: StreamInfo, expected: Expectation, wait: float) -> bool:
    """True if the sequence was never the last one: it is beyond the end of the stream, or another subject's."""
    if info.state.last_seq < expected.seq:
        return True
    if expected.subject in ("", ">") or "*" in expected.subject:
        return False
    try:
        return (await stream.get_message(expected.seq, direct=False, timeout=wait)).subject != expected.subject
    except MessageNotFound:
        return False
