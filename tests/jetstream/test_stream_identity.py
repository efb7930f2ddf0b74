"""Whether a stream is still the one that was read: the question survives answers that do not come."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from natsproto.errors import ApiError, JetStreamNotEnabled, NatsError, PermissionDenied, RequestTimeout, StreamNotFound
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.ordered.stream_identity import StreamIdentity
from natsproto.jetstream._values.codec import NEVER, decode
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream._values.timestamp import Timestamp
from tests.kit.clock import virtual_clock

MADE = "2026-01-01T00:00:00Z"


class Server:
    """Answers STREAM.INFO of a stream that lost what it had; every third question is lost."""

    def __init__(self, fault: NatsError) -> None:
        self.asked = 0
        self._fault = fault

    async def call_for(self, kind: type[StreamInfo], endpoint: str, *, operation: str, timeout: float) -> StreamInfo:
        self.asked += 1
        if self.asked % 3 == 0:
            raise self._fault
        return decode(kind, {"config": {"name": "S"}, "created": MADE, "state": {"last_seq": 1}})


@pytest.mark.parametrize(
    "fault",
    [RequestTimeout("x", 1.0), JetStreamNotEnabled(503, ErrCode.NOT_ENABLED, "not yet", "x")],
    ids=lambda e: type(e).__name__,
)
@virtual_clock
async def test_lost_stream_is_noticed_on_a_slow_server(fault: NatsError) -> None:
    server = Server(fault)
    created = [cast("Timestamp", datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2)]
    same = StreamIdentity(cast("Api", server), "S", *created, operation="go on")
    assert not same.unverified
    same.on_replaced()
    with pytest.raises(StreamNotFound):
        await same.verify(lambda: 10)
    assert server.asked < 50


# ---------------------------------------------------------------- scripted replies

BEGUN = Timestamp.parse("2026-01-02T00:00:00Z")
"""When the first consumer was created."""


class Replies:
    """Answers STREAM.INFO with one info after the other, the last one again and again, and notes the times."""

    def __init__(self, *replies: dict[str, Any] | NatsError) -> None:
        self._replies = list(replies)
        self.asked: list[float] = []

    async def call_for(self, kind: type[StreamInfo], endpoint: str, *, operation: str, timeout: float) -> StreamInfo:
        assert (endpoint, operation, timeout) == ("STREAM.INFO.S", "go on", 1.0)
        self.asked.append(asyncio.get_running_loop().time())
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, NatsError):
            raise reply
        return decode(kind, {"config": {"name": "S"}, **reply})


def stream_reply(last_seq: int, *, created: str = MADE, ts: str = "", last_ts: str = "") -> dict[str, Any]:
    """The info of the stream; times without a date are of one day."""
    state: dict[str, Any] = {"last_seq": last_seq}
    if last_ts:
        state["last_ts"] = f"2026-01-03T{last_ts}Z"
    reply: dict[str, Any] = {"state": state}
    if created:
        reply["created"] = created
    if ts:
        reply["ts"] = f"2026-01-03T{ts}Z"
    return reply


def unverified_identity(replies: Replies, created: Timestamp | None = None) -> StreamIdentity:
    """The identity of a stream whose second consumer was just created."""
    same = StreamIdentity(cast("Api", replies), "S", created or Timestamp.parse(MADE), BEGUN, operation="go on")
    same.on_replaced()
    assert same.unverified
    return same


LATER = "2026-01-02T00:00:01Z"
"""A creation time after that of the first consumer."""


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([stream_reply(10)], 1),
        ([stream_reply(11, created="")], 1),  # an old server, which does not tell
        ([stream_reply(10, created="2026-01-01T12:00:00Z")], 1),  # restored before the first consumer
        ([stream_reply(10, created="2026-01-02T00:00:00Z")], 1),
        ([stream_reply(9), stream_reply(10)], 2),  # a new leader that catches up
        ([stream_reply(9)] * 29 + [stream_reply(10)], 30),
        (
            [stream_reply(9, ts="02:00:00", last_ts="01:00:00")] * 3
            + [stream_reply(10, ts="02:00:01", last_ts="01:00:00")],
            4,
        ),
        (
            [stream_reply(9, ts="02:00:00", last_ts="02:00:00")] * 3 + [stream_reply(10)],
            4,
        ),  # the last message, not a new one
        ([stream_reply(9, last_ts="03:00:00")] * 3 + [stream_reply(10)], 4),  # a server that does not tell its time
        ([stream_reply(0, ts="02:00:00")] * 3 + [stream_reply(10)], 4),  # empty until it has caught up
    ],
)
@virtual_clock
async def test_stream_that_was_read_is_recognised(replies: list[dict[str, Any]], asked: int) -> None:
    server = Replies(*replies)
    same = unverified_identity(server)
    await same.verify(lambda: 10)
    assert (same.unverified, len(server.asked)) == (False, asked)
    assert server.asked[-1] - server.asked[0] == pytest.approx(0.1 * (asked - 1))


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([stream_reply(20, created=LATER)], 1),
        ([stream_reply(9), stream_reply(20, created=LATER)], 2),
        ([stream_reply(9)], 30),
        ([stream_reply(9, ts="02:00:00"), stream_reply(8, ts="02:00:02", last_ts="02:00:01")], 2),  # a new message
        # compared with the first of the infos: a server's clock goes on
        (
            [
                stream_reply(9, ts="02:00:00"),
                stream_reply(9, ts="02:00:05"),
                stream_reply(9, ts="02:00:06", last_ts="02:00:01"),
            ],
            3,
        ),
    ],
)
@virtual_clock
async def test_stream_that_was_recreated_is_not_found(replies: list[dict[str, Any]], asked: int) -> None:
    server = Replies(*replies)
    same = unverified_identity(server)
    with pytest.raises(StreamNotFound, match=r"was lost and recreated|went back from message 10 to") as caught:
        await same.verify(lambda: 10)
    assert caught.value.code == 404
    assert len(server.asked) == asked


@virtual_clock
async def test_stream_created_after_its_consumer_is_known() -> None:
    """The servers' clocks differ, so the creation time is compared with the known one."""
    server = Replies(stream_reply(10, created=LATER))
    same = unverified_identity(server, created=Timestamp.parse(LATER))
    await same.verify(lambda: 10)
    assert not same.unverified


@virtual_clock
async def test_found_creation_time_is_known_from_then_on() -> None:
    server = Replies(stream_reply(10, created=MADE), stream_reply(10, created=""), stream_reply(10, created=LATER))
    same = unverified_identity(server, created=NEVER)
    for _ in range(2):
        await same.verify(lambda: 10)
        same.on_replaced()
    with pytest.raises(StreamNotFound):
        await same.verify(lambda: 10)


@virtual_clock
async def test_next_consumer_counts_polls_anew() -> None:
    server = Replies(
        *[stream_reply(9, ts="02:00:00")] * 29, ApiError(500, 1, "no", "x"), stream_reply(9, last_ts="02:00:01")
    )
    same = unverified_identity(server)
    await same.verify(lambda: 10)
    assert same.unverified, "the next consumer verifies it"
    same.on_replaced()
    with pytest.raises(StreamNotFound):
        await same.verify(lambda: 10)
    assert len(server.asked) == 60


@virtual_clock
async def test_stream_is_not_verified_without_permission() -> None:
    server = Replies(PermissionDenied("no", "publish", "x"))
    same = unverified_identity(server)
    await same.verify(lambda: 10)
    assert not same.unverified
    same.on_replaced()
    assert not same.unverified
    assert len(server.asked) == 1


@virtual_clock
async def test_lost_question_is_repeated_after_a_second() -> None:
    server = Replies(RequestTimeout("x", 1.0), stream_reply(10))
    await unverified_identity(server).verify(lambda: 10)
    assert server.asked[1] - server.asked[0] == pytest.approx(1.0)


@virtual_clock
async def test_messages_read_meanwhile_count() -> None:
    """The old consumer may still have delivered some: the stream must reach the last one."""
    read = [5, 12]
    server = Replies(stream_reply(4), stream_reply(11), stream_reply(12))
    await unverified_identity(server).verify(lambda: read.pop(0) if len(read) > 1 else read[0])
    assert len(server.asked) == 3
