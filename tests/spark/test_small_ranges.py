"""Small ranges are read by direct get, which any server that has the stream may answer."""

from __future__ import annotations

from typing import Any

import pytest

from natsproto.jetstream import StoredMessages, Stream
from natsproto.spark import SparkNats, read_range
from natsproto.spark._client import close_workers
from natsproto.testing import run_server
from tests.spark.streams import StreamFixture


def test_small_range_needs_no_consumer(nats: SparkNats) -> None:
    """A consumer is told to every server of a cluster."""
    source = StreamFixture(nats)
    source.publish(2000, "a", "b")
    assert source.seqs(5, 800) == list(range(5, 801))
    assert source.seqs(5, 800, "auto", "a") == list(range(5, 801, 2))
    rows = read_range(nats, source.range(5, 800))
    next(rows)
    assert source.info().state.consumer_count == 0
    rows.close()
    larger = read_range(nats, source.range(5, 1500))
    next(larger)
    assert source.info().state.consumer_count == 1
    larger.close()


def test_small_range_is_read_without_direct_get(caplog: pytest.LogCaptureFixture) -> None:
    allowed = ["$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>", "$JS.ACK.>"]
    publish = ", ".join(f'"{one}"' for one in allowed)
    reader = f'{{user: reader, password: r, permissions: {{publish: [{publish}], subscribe: ["_INBOX.>"]}}}}'
    with run_server(
        jetstream=True, config=f"authorization {{ users: [{{user: boss, password: b}}, {reader}] }}"
    ) as server:
        nats = SparkNats(servers=server.url, user="boss", password="b", allow_literal_secrets=True)
        source = StreamFixture(nats)
        source.publish(30)
        found = read_range(nats.replace(user="reader", password="r"), source.range(5, 25))
        assert [row[2] for row in found] == list(range(5, 26))
        close_workers()
    assert "is read in another way" in caplog.text


@pytest.mark.parametrize("subjects", [(), ("a",), ("a", "b")])
def test_server_that_lags_behind_loses_no_row(
    nats: SparkNats, monkeypatch: pytest.MonkeyPatch, subjects: tuple[str, ...]
) -> None:
    """Direct get is answered by any server that has the stream, and not all of them have the last messages yet."""
    source = StreamFixture(nats)
    source.publish(100, "a", "b")
    get_batch, asked = Stream.get_batch, []

    def lagging(self: Stream, *, batch: int, **request: Any) -> StoredMessages:
        asked.append(batch)
        known = 60 + 10 * len(asked)
        return get_batch(self, **request, batch=max(1, min(batch, known - int(request["start_seq"]))))

    monkeypatch.setattr(Stream, "get_batch", lagging)
    assert source.seqs(5, 98, "direct", *subjects) == list(range(5, 99, 2 if subjects == ("a",) else 1))
