"""The figures of one reader, for health checks and metrics: read from its buffer when somebody asks.

The lag and the time of a message are in the ack subject of every delivery; the buffer keeps that of the last one.
"""

from __future__ import annotations

from typing import Final

from natsproto import errors
from natsproto._core.consumer_stats import ConsumerStats
from natsproto._core.instrumentation import ReaderInfo
from natsproto.jetstream._consumer.ack_subject import Metadata, read_ack_subject
from natsproto.jetstream._consumer.delivery.buffer import Buffer

NANOS_PER_SECOND: Final = 1e9


def stats_of(buffer: Buffer, info: ReaderInfo, now: float) -> ConsumerStats | None:
    """Return the figures of the reader of a buffer at this time since the epoch; None when it has ended."""
    if buffer.is_finished:
        return None
    last, deliveries = _metadata(buffer.arrivals.last_ack_subject), buffer.deliveries
    return ConsumerStats(
        stream=info.name,
        consumer=info.group or "",
        num_pending=None if last is None else last.num_pending,
        age=None if last is None else max(0.0, now - last.timestamp.ns / NANOS_PER_SECOND),
        handle_time=0.0 if deliveries is None else deliveries.prefetch.handle_time,
        prefetch=buffer.max_messages if deliveries is None else deliveries.prefetch.bound,
        waiting=buffer.waiting,
        stale=0 if deliveries is None else deliveries.reports.stale,
        given_back=0 if deliveries is None else deliveries.reports.given_back,
    )


def _metadata(ack_subject: bytes | str | None) -> Metadata | None:
    if ack_subject is None:
        return None
    text = ack_subject.decode("utf-8", "surrogateescape") if isinstance(ack_subject, bytes) else ack_subject
    try:
        return read_ack_subject(text)
    except errors.LocalProtocolError:  # somebody has published to the inbox
        return None
