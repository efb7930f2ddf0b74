"""Whether a stream is still the one that was read: the question survives answers that do not come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from natsproto.errors import JetStreamNotEnabled, NatsError, RequestTimeout, StreamNotFound
from natsproto.jetstream._api import Api
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._codec import decode
from natsproto.jetstream._consumer.stream_identity import StreamIdentity
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._timestamp import Timestamp
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
    same = StreamIdentity(
        cast("Api", server), "S", cast("Timestamp", datetime(2026, 1, 1, tzinfo=UTC)), operation="go on"
    )
    same.on_consumer(cast("Timestamp", datetime(2026, 1, 2, tzinfo=UTC)))
    assert not same.unverified
    same.on_consumer(cast("Timestamp", datetime(2026, 1, 3, tzinfo=UTC)))
    with pytest.raises(StreamNotFound):
        await same.verify(lambda: 10)
    assert server.asked < 50
