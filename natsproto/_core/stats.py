"""The counters of a client, as one value."""

from __future__ import annotations

from natsproto._core.engine.engine import Engine
from natsproto._value import Value


class Stats(Value):
    """Counters of a client since it was created.

    ``in_bytes`` is the sum of ``Message.size``: subjects, reply subjects, headers and payloads. ``out_bytes`` and
    ``buffered_bytes`` count whole messages as sent.
    """

    in_msgs: int
    """Messages received, with replies and those of JetStream, also dropped ones."""
    in_bytes: int
    out_msgs: int
    """Messages handed to the socket, with requests, pulls and acknowledgements."""
    out_bytes: int
    reconnects: int
    """How often a lost connection was restored; the first connection does not count."""
    pings_outstanding: int
    """Pings that the server has not answered yet; 0 while there is no connection."""
    dropped: int
    """Messages that subscriptions at their limits dropped."""
    buffered_msgs: int
    """Messages accepted by ``publish`` and not yet handed to the socket."""
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
