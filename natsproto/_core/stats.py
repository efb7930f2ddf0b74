"""The counters of a client, as one value."""

from __future__ import annotations

from natsproto._core.engine import Engine
from natsproto._value import Value


class Stats(Value):
    """Counters of a client since it was created.

    ``in_bytes`` is the sum of ``Message.size``: subjects, reply subjects, headers and payloads. ``out_bytes`` and
    ``buffered_bytes`` count whole messages as sent.
    """

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    reconnects: int
    pings_outstanding: int
    dropped: int
    buffered_msgs: int
    buffered_bytes: int


def read_stats(engine: Engine) -> Stats:
    """Return the current counters; each is counted by its owner."""
    registry, outbox, session = engine.registry, engine.outbox, engine.session
    return Stats(
        in_msgs=registry.in_msgs,
        in_bytes=registry.in_bytes,
        out_msgs=outbox.frames_out,
        out_bytes=outbox.bytes_out,
        reconnects=engine.reconnects,
        pings_outstanding=0 if session is None else session.link.pings_in_flight,
        dropped=registry.dropped,
        buffered_msgs=outbox.frames,
        buffered_bytes=outbox.size,
    )
