"""Orphaned chunks, left by programs that were killed during a put.

Owns the proof that no object uses them. It removes nothing.
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
    """Find the subjects of orphaned chunks whose newest is at least ``older_than`` seconds old.

    The order makes this safe. Chunks are listed first, so objects completed meanwhile are in the infos, which are read
    later. Infos are read twice: from any server, which is fast, and, for the chunks not found there, from the leader in
    the order of the stream. A change or rename stores the new info before it removes the old one, so one is found.
    """
    stream, bucket = index.stream, index.bucket
    info = await stream.info(timeout=timeout)
    if info.config.mirror is not None or info.config.sources:
        why = "is a mirror or has sources: the infos of these chunks may not have arrived yet"
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
    """Return the subjects of the chunks of all objects. InvalidReply for an info that cannot be read."""
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
    """Return the seconds since the newest chunk was stored; -1 when there is none."""
    try:
        newest = await index.stream.get_last_message(subject, direct=False, timeout=timeout)
    except MessageNotFound:
        return -1.0
    return (now - newest.time).total_seconds()
