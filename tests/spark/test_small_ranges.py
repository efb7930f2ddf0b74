"""Small ranges are read by direct get, which any server that has the stream may answer."""

from __future__ import annotations

from typing import Any

import pytest

from natsproto import Client
from natsproto.jetstream import StoredMessages, Stream
from natsproto.protocol.subject import matches
from natsproto.spark import SparkNats, read_range
from natsproto.spark._client import close_workers, run_on_loop
from natsproto.spark._range_reader import RangeReader
from natsproto.testing import run_server
from tests.spark.streams import StreamFixture


def test_small_range_needs_no_consumer(nats: SparkNats) -> None:
    """A consumer is told to every server of a cluster."""
    source = StreamFixture(nats)
    source.publish(2000, "a", "b")
    assert source.seqs(5, 800) == list(range(5, 801))
    assert source.seqs(5, 800, "auto", "a") == list(range(5, 801, 2))
    assert source.seqs(5, 800, "auto", "a", "b") == list(range(5, 801))
    rows = read_range(nats, source.range(5, 800))
    next(rows)
    assert source.info().state.consumer_count == 0
    rows.close()
    larger = read_range(nats, source.range(5, 1500))
    next(larger)
    assert source.info().state.consumer_count == 1
    larger.close()


@pytest.mark.parametrize(
    ("width", "filters", "is_direct"),
    [
        (101, ["0.*", "7.1"], True),  # two filters, and many subjects
        (101, ["0.*", "1.*", "*.1"], True),
        (99, ["0.*", "7.1"], False),  # few subjects
        (101, ["7.1"], False),
        (101, ["*.1", "7.1"], False),  # one of them is enough
        (101, [f"{number}.1" for number in range(17)], False),  # many filters without wildcards
        (101, [f"{number}.*" for number in range(17)], True),
    ],
    ids=str,
)
def test_way_is_chosen_by_its_cost(nats: SparkNats, width: int, filters: list[str], is_direct: bool) -> None:
    """A consumer with several filters looks at all subjects for each message."""
    source = StreamFixture(nats)
    source.publish(4 * width, *[f"{number}.1" for number in range(width)])
    source.publish(1000, "0.1")
    seq_range, subjects = source.range(1, 4 * width + 1000), [f"{source.name}.{one}" for one in filters]

    async def choose(client: Client) -> bool:
        js = client.jetstream()
        return RangeReader(js, seq_range, subjects=subjects)._is_direct_cheaper(await js.stream(source.name))

    assert run_on_loop(nats, choose) is is_direct
    rows = read_range(nats, seq_range.replace(end=4 * width), subjects=subjects)
    numbers = [number for number in range(width) if any(matches(one, f"{number}.1") for one in filters)]
    assert [row[2] for row in rows] == [seq for seq in range(1, 4 * width + 1) if (seq - 1) % width in numbers]


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
