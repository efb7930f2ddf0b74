"""Leftovers: chunks that no object has, as programs leave them that are killed in the middle of a put.

Owns the proof that nobody needs them. It removes nothing.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC

from natsproto.errors import ConfigError, MessageNotFound
from natsproto.jetstream._codec import NEVER, Duration
from natsproto.jetstream._timestamp import Timestamp
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import all_chunk_subjects, all_meta_subjects, chunk_subject, read_info


async def find_orphans(index: ObjectIndex, older_than: float, timeout: Duration | None) -> list[str]:
    """The subjects of chunks that no description names and of which the newest was stored so many seconds ago.

    The order makes it safe. Chunks are listed first, so that whatever is completed meanwhile is named by what is read
    behind that. Descriptions are read twice: from any server, which is fast, and, for what was not named there, from
    the leader, in the order in which they were stored. Whoever changes or renames an object stores a description
    behind all others before the old one goes: one of them is met.
    """
    stream, bucket = index.stream, index.bucket
    info = await stream.info(timeout=timeout)
    if info.config.mirror is not None or info.config.sources:
        why = "is a copy of others: what describes these chunks may be on its way"
        raise ConfigError("object store", bucket, why)
    now = Timestamp.now(UTC) if info.ts == NEVER else info.ts  # the clock that stamps the chunks
    stored = {subject async for subject, _ in stream.subjects(all_chunk_subjects(bucket), timeout=timeout)}
    stored -= await _referenced(index, timeout, direct=True)
    old = [subject for subject in stored if await _age(index, subject, now, timeout) >= older_than]
    if old:
        named = await _referenced(index, timeout, direct=False)
        old = [subject for subject in old if subject not in named]
    return old


async def _referenced(index: ObjectIndex, timeout: Duration | None, *, direct: bool) -> set[str]:
    """The subjects of the chunks of all objects. InvalidReply for a description that cannot be read."""
    bucket = index.bucket
    found: set[str] = set()
    stored = index.stream.get_batch(subject=all_meta_subjects(bucket), direct=direct, timeout=timeout)
    async with aclosing(stored.batches()) as batches:
        async for batch in batches:
            for message in batch:
                info = read_info(message.data, message.time)
                if not info.deleted:
                    found.add(chunk_subject(bucket, info.nuid))
    return found


async def _age(index: ObjectIndex, subject: str, now: Timestamp, timeout: Duration | None) -> float:
    """Seconds since the newest chunk was stored; none where they are gone."""
    try:
        newest = await index.stream.get_last_message(subject, direct=False, timeout=timeout)
    except MessageNotFound:
        return -1.0
    return (now - newest.time).total_seconds()
