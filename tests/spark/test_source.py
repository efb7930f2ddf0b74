"""The reader of a stream as Spark's driver calls it, on a real server and without Spark: what it plans, and when."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from natsproto import Client, sync
from natsproto.errors import ConfigError, DataLost, StreamNotFound
from natsproto.jetstream import StreamInfo
from natsproto.spark import SeqRange
from natsproto.spark._options import SourceOptions, SparkNats
from natsproto.spark._reader import read_range
from natsproto.spark._source import StreamingReader, _find_streams
from natsproto.sync._jetstream import JetStream
from natsproto.testing._server import Server

ALL = ReadAllAvailable()
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def js(nc: sync.Client, request: pytest.FixtureRequest) -> Iterator[JetStream]:
    js = nc.jetstream()
    js.create_stream(name="ORDERS", subjects=["orders.>"], storage="memory")
    yield js
    js.delete_stream("ORDERS")


def publish_orders(js: JetStream, count: int, size: int = 10) -> None:
    for _ in range(count):
        js.publish("orders.eu", b"x" * size)


def reader(server: Server, **options: str) -> StreamingReader:
    """As Spark makes one: anew after every start of the query."""
    given = {"servers": server.url, "stream": "ORDERS", **options}
    return StreamingReader(SourceOptions.read(given))


def planned(reader: StreamingReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[int, int]]:
    """The sequences that a batch reads, after the way through a checkpoint."""
    begin, stop = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    partitions = pickle.loads(pickle.dumps(list(reader.partitions(begin, stop))))
    return [(partition.value.start, partition.value.end) for partition in partitions]


def test_first_batch_is_repeated_from_latest_then(server: Server, js: JetStream) -> None:
    """Its start is not in the checkpoint, and by the time it is repeated latest is another place."""
    publish_orders(js, 10)
    first = reader(server, startingOffsets="latest")
    start = first.initialOffset()
    publish_orders(js, 100)
    assert first.initialOffset() == start  # Spark asks again
    end = first.latestOffset(start, ALL)
    assert planned(first, start, end) == [(11, 110)]
    publish_orders(js, 40)
    again = reader(server, startingOffsets="latest")
    restarted = again.initialOffset()
    assert restarted != start
    assert planned(again, restarted, end) == [(11, 110)]
    assert planned(again, end, again.latestOffset(end, ALL)) == [(111, 150)]


def test_spark_4_0_plans_and_reads(server: Server, js: JetStream) -> None:
    """It gives neither a start nor a limit, and has no names for limits and filters."""
    publish_orders(js, 30)
    command = [sys.executable, "-m", "tests.spark.older_spark", server.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"streaming": 30, "later": 0, "batch": 30, "empty": 0}


def test_nothing_new_is_the_same_text(server: Server, js: JetStream) -> None:
    publish_orders(js, 10)
    source = reader(server)
    end = source.latestOffset(source.initialOffset(), ALL)
    assert json.dumps(source.latestOffset(end, ALL)) == json.dumps(end)
    assert planned(source, end, end) == []


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, 1),
        ({"startingOffsets": "earliest"}, 1),
        ({"startingOffsets": "latest"}, 31),
        ({"startingOffsets": "7"}, 7),
        ({"startingOffsets": "700"}, 700),
        ({"startingOffsets": '{"ORDERS": 7}'}, 7),
        ({"startingOffsetsByTimestamp": '{"ORDERS": "2120-01-01T00:00:00Z"}'}, 31),
        ({"startingTimestamp": "2020-01-01T00:00:00Z"}, 1),
        ({"startingTimestamp": "2120-01-01T00:00:00Z"}, 31),
        ({"startingTimestamp": "1600-01-01T00:00:00Z"}, 1),
        ({"startingTimestamp": "9999-12-31T23:59:59Z"}, 31),
    ],
)
def test_a_query_begins_where_its_options_say(
    server: Server, js: JetStream, options: dict[str, str], start: int
) -> None:
    publish_orders(js, 30)
    assert reader(server, **options).initialOffset()["base"] == {"ORDERS": start}


def test_a_place_that_is_not_reached_yet_is_waited_for(server: Server, js: JetStream) -> None:
    publish_orders(js, 30)
    source = reader(server, startingOffsets="33")
    start = source.initialOffset()
    assert source.latestOffset(start, ALL) == start
    publish_orders(js, 5)
    assert planned(source, start, source.latestOffset(start, ALL)) == [(33, 35)]


@pytest.mark.parametrize(
    ("options", "default", "ends"),
    [
        ({"maxOffsetsPerTrigger": "40"}, "ReadMaxRows", [41, 81, 101]),
        ({"maxBytesPerTrigger": "30900"}, "ReadMaxBytes", [31, 61, 91, 101]),
        ({"maxBytesPerTrigger": "30900", "maxOffsetsPerTrigger": "40"}, "ReadMaxRows", [31, 61, 91, 101]),
        ({}, "ReadAllAvailable", [101]),
    ],
)
def test_a_batch_is_as_big_as_it_may_be(
    server: Server, js: JetStream, options: dict[str, str], default: str, ends: list[int]
) -> None:
    publish_orders(js, 100, size=1000)
    source = reader(server, **options)
    limit = source.getDefaultReadLimit()
    assert type(limit).__name__ == default
    assert walk(source, limit) == ends
    assert walk(source, ALL) == [101]


def walk(source: StreamingReader, limit: ReadLimit) -> list[int]:
    index, ends = source.initialOffset(), []
    while (end := source.latestOffset(index, limit)) != index:
        index = end
        ends.append(end["s"]["ORDERS"]["seq"])
    return ends


def test_batch_waits_for_enough_messages(server: Server, js: JetStream) -> None:
    publish_orders(js, 10)
    source = reader(server, minOffsetsPerTrigger="20", maxTriggerDelay="3600")
    start = source.initialOffset()
    assert source.latestOffset(start, ALL) == start
    publish_orders(js, 10)
    end = source.latestOffset(start, ALL)
    assert planned(source, start, end) == [(1, 20)]
    publish_orders(js, 1)
    assert source.latestOffset(end, ALL) == end
    source.prepareForTriggerAvailableNow()
    assert planned(source, end, source.latestOffset(end, ALL)) == [(21, 21)]


def test_batch_waits_no_longer_than_allowed(server: Server, js: JetStream) -> None:
    publish_orders(js, 10)
    source = reader(server, minOffsetsPerTrigger="20", maxTriggerDelay="0.05")
    start = source.initialOffset()
    while (end := source.latestOffset(start, ALL)) == start:
        time.sleep(0.01)
    assert planned(source, start, end) == [(1, 10)]


def test_available_now_ends_where_the_stream_ended(server: Server, js: JetStream) -> None:
    publish_orders(js, 100)
    source = reader(server, maxOffsetsPerTrigger="60")
    source.prepareForTriggerAvailableNow()
    publish_orders(js, 50)
    assert walk(source, ReadMaxRows(60)) == [61, 101]
    assert source.reportLatestOffset()["s"]["ORDERS"]["seq"] == 151


def test_repeated_batch_is_planned_offline(server: Server, js: JetStream) -> None:
    publish_orders(js, 100)
    source = reader(server, minPartitions="3")
    start, end = source.initialOffset(), source.latestOffset(source.initialOffset(), ALL)
    js.stream("ORDERS").purge()
    elsewhere = StreamingReader(SourceOptions.read({"servers": "nats://127.0.0.1:1", "stream": "ORDERS"}))
    assert planned(elsewhere, start, end) == planned(source, start, end) == [(1, 33), (34, 66), (67, 100)]


def test_repeated_batch_keeps_the_limit_of_partitions(server: Server, js: JetStream) -> None:
    """Message ids count the rows of a partition."""
    publish_orders(js, 100)
    source = reader(server, minPartitions="1", maxRecordsPerPartition="40")
    start, end = source.initialOffset(), source.latestOffset(source.initialOffset(), ALL)
    assert list(end) == ["v", "s", "base", "n", "m"]
    elsewhere = StreamingReader(SourceOptions.read({"servers": "nats://127.0.0.1:1", "stream": "ORDERS"}))
    assert planned(elsewhere, start, end) == planned(source, start, end) == [(1, 33), (34, 66), (67, 100)]


def test_what_is_gone_before_it_was_read_is_data_lost(server: Server, js: JetStream) -> None:
    publish_orders(js, 100)
    source = reader(server, startingOffsets="1")
    start = source.initialOffset()
    js.stream("ORDERS").purge(seq=51)
    with pytest.raises(DataLost) as lost:
        source.latestOffset(start, ALL)
    assert (lost.value.first, lost.value.last) == (1, 50)
    forgiving = reader(server, startingOffsets="1", failOnDataLoss="false")
    assert planned(forgiving, start, forgiving.latestOffset(start, ALL)) == [(1, 100)]


def ranges(reader: StreamingReader, start: dict[str, object], end: dict[str, object]) -> list[SeqRange]:
    return [partition.value for partition in reader.partitions(start, end)]


@pytest.mark.parametrize("options", [{}, {"startingTimestamp": "2020-01-01T00:00:00Z"}], ids=["earliest", "time"])
def test_trim_before_the_first_batch_is_no_loss(server: Server, js: JetStream, options: dict[str, str]) -> None:
    publish_orders(js, 100)
    source = reader(server, **options, minPartitions="1")
    start = source.initialOffset()
    js.stream("ORDERS").purge(seq=51)
    end = source.latestOffset(start, ALL)
    js.stream("ORDERS").purge(seq=61)
    (seq_range,) = ranges(source, start, end)
    assert (seq_range.start, seq_range.end) == (51, 100)
    nats = SparkNats(servers=server.url)
    assert [row[2] for row in read_range(nats, seq_range)] == list(range(61, 101))
    # a batch that is planned again may have been written in part
    (again,) = ranges(reader(server, **options), reader(server, **options).initialOffset(), end)
    with pytest.raises(DataLost, match="begins at 61"):
        list(read_range(nats, again))
    publish_orders(js, 10)
    js.stream("ORDERS").purge(seq=106)
    with pytest.raises(DataLost, match="begins at 106"):
        source.latestOffset(end, ALL)


def test_trim_when_spark_asks_for_the_end_first(server: Server, js: JetStream) -> None:
    """Spark 4.0 and 4.1 do not give the start: the query may be new, or may have read up to here before."""
    nats = SparkNats(servers=server.url)
    publish_orders(js, 100)
    source = reader(server, minPartitions="1")
    end = source.latestOffset()
    js.stream("ORDERS").purge(seq=51)
    (seq_range,) = ranges(source, source.initialOffset(), end)
    js.stream("ORDERS").purge(seq=61)
    assert [row[2] for row in read_range(nats, seq_range)] == list(range(61, 101))
    publish_orders(js, 100)
    js.stream("ORDERS").purge(seq=111)
    restarted = reader(server, minPartitions="1")
    (seq_range,) = ranges(restarted, end, restarted.latestOffset())
    assert (seq_range.start, seq_range.end) == (101, 200)
    with pytest.raises(DataLost, match="begins at 111"):
        list(read_range(nats, seq_range))


def test_superseded_messages_are_no_loss_to_a_query(server: Server, js: JetStream) -> None:
    js.stream("ORDERS").update(max_msgs_per_subject=1)
    publish_orders(js, 10)
    source = reader(server)
    end = source.latestOffset(source.initialOffset(), ALL)
    publish_orders(js, 10)
    assert planned(source, end, source.latestOffset(end, ALL)) == [(11, 20)]


def test_a_stream_that_was_created_anew_is_another_one(
    server: Server, js: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    publish_orders(js, 100)
    source = reader(server)
    end = source.latestOffset(source.initialOffset(), ALL)
    js.delete_stream("ORDERS")
    js.create_stream(name="ORDERS", subjects=["orders.>"], storage="memory")
    publish_orders(js, 20)
    with pytest.raises(DataLost, match="created anew"):
        source.latestOffset(end, ALL)
    forgiving = reader(server, failOnDataLoss="false")
    anew = forgiving.latestOffset(end, ALL)
    assert planned(forgiving, end, anew) == [(1, 20)]
    assert "created anew" in caplog.text
    with pytest.raises(DataLost, match="created anew"):
        reader(server).partitions(end, anew)


def test_a_checkpoint_of_another_stream_is_refused(server: Server, js: JetStream) -> None:
    index = reader(server).initialOffset()
    other = StreamingReader(SourceOptions.read({"servers": server.url, "stream": "OTHER"}))
    with pytest.raises(ConfigError, match="another stream needs a checkpoint of its own"):
        other.partitions(index, index)


@pytest.fixture
def several(js: JetStream) -> Iterator[JetStream]:
    """RETURNS besides ORDERS, and a stream that no pattern matches."""
    js.create_stream(name="RETURNS", subjects=["returns.>"], storage="memory")
    js.create_stream(name="NOISE", subjects=["noise.>"], storage="memory")
    yield js
    for name in ("RETURNS", "NOISE", "ORDERS_EU"):
        with suppress(StreamNotFound):
            js.delete_stream(name)


def send(js: JetStream, subject: str, count: int) -> None:
    for _ in range(count):
        js.publish(subject, b"x" * 100)


def parts(reader: StreamingReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[str, int, int]]:
    found = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    return [(part.value.stream, part.value.start, part.value.end) for part in found]


@pytest.mark.parametrize("streams", ["ORDERS,RETURNS", "RETURNS, ORDERS", "*RE*,ORD*", "*R*"])
def test_several_streams_are_followed(server: Server, several: JetStream, streams: str) -> None:
    send(several, "orders.eu", 30)
    send(several, "returns.eu", 10)
    source = reader(server, stream=streams, minPartitions="4")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert parts(source, start, end) == [
        *(("ORDERS", first, first + 9) for first in (1, 11, 21)),
        ("RETURNS", 1, 10),
    ]
    send(several, "returns.eu", 1)
    later = source.latestOffset(end, ALL)
    assert parts(source, end, later) == [("RETURNS", 11, 11)]
    assert parts(reader(server, stream=streams), start, end) == parts(source, start, end), "after a restart too"


def test_several_streams_share_the_limit(server: Server, several: JetStream) -> None:
    send(several, "orders.eu", 30)
    send(several, "returns.eu", 10)
    source = reader(server, stream="ORDERS,RETURNS", maxOffsetsPerTrigger="8", minPartitions="1")
    index, batches = source.initialOffset(), []
    while (end := source.latestOffset(index, source.getDefaultReadLimit())) != index:
        batches.append(parts(source, index, end))
        index = end
    assert batches[0] == [("ORDERS", 1, 6), ("RETURNS", 1, 2)]
    assert sum(last - first + 1 for batch in batches for _, first, last in batch) == 40
    assert max(sum(last - first + 1 for _, first, last in batch) for batch in batches) <= 8


def test_stream_that_appears_is_read_from_its_front(server: Server, several: JetStream) -> None:
    send(several, "orders.eu", 5)
    source = reader(server, stream="ORDERS*", startingOffsets="latest", minPartitions="1")
    start = source.initialOffset()
    several.stream("ORDERS").update(subjects=["orders.us"])
    several.create_stream(name="ORDERS_EU", subjects=["orders.eu"], storage="memory")
    assert source.latestOffset(start, ALL) == start, "an empty stream makes no batch"
    send(several, "orders.eu", 7)
    end = source.latestOffset(start, ALL)
    assert parts(source, start, end) == [("ORDERS_EU", 1, 7)]
    several.delete_stream("ORDERS_EU")
    with pytest.raises(DataLost, match="was deleted"):
        source.latestOffset(end, ALL)
    forgiving = reader(server, stream="ORDERS*", failOnDataLoss="false")
    after = forgiving.latestOffset(end, ALL)
    assert parts(forgiving, end, after) == []
    assert list(after["s"]) == ["ORDERS"]


def test_available_now_ends_where_all_streams_ended(server: Server, several: JetStream) -> None:
    send(several, "orders.eu", 5)
    source = reader(server, stream="ORDERS,RETURNS", minPartitions="1")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    send(several, "orders.eu", 5)
    send(several, "returns.eu", 5)
    end = source.latestOffset(start, ALL)
    assert parts(source, start, end) == [("ORDERS", 1, 5)]
    assert source.latestOffset(end, ALL) == end


def test_pattern_that_matches_no_stream_is_refused(server: Server, js: JetStream) -> None:
    with pytest.raises(ConfigError, match="matches no stream"):
        reader(server, stream="NOTHING_*").initialOffset()


def test_lag_is_reported_for_each_stream(server: Server, several: JetStream) -> None:
    send(several, "orders.eu", 30)
    send(several, "returns.eu", 4)
    source = reader(server, stream="ORDERS,RETURNS", maxOffsetsPerTrigger="10")
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    report = source.reportLatestOffset()
    assert report["lag"] == {"ORDERS": 22, "RETURNS": 3}
    assert report["s"]["ORDERS"]["seq"] == 31
    assert end["s"]["ORDERS"]["seq"] == 9
    several.stream("ORDERS").purge(seq=26)
    source.latestOffset(start, source.getDefaultReadLimit())
    assert source.reportLatestOffset()["lag"]["ORDERS"] < 5, "removed messages are not waited for"


def requests(js: JetStream) -> int:
    return js.account_info().api.total


def test_one_look_at_a_stream_for_each_trigger(server: Server, js: JetStream) -> None:
    publish_orders(js, 10)
    source = reader(server)
    start = source.initialOffset()
    before = requests(js)
    source.latestOffset(start, ALL)
    source.reportLatestOffset()
    assert requests(js) - before == 2, "one, and that of this function"


def test_many_streams_are_looked_at_in_pages(server: Server, js: JetStream) -> None:
    names = [f"M_{number}" for number in range(300)]
    for name in names:
        js.create_stream(name=name, subjects=[name], storage="memory")
    before = requests(js)
    source = reader(server, stream="M_*")
    start = source.initialOffset()
    source.latestOffset(start, ALL)
    source.reportLatestOffset()
    assert requests(js) - before <= 2 * 2 + 1
    assert list(start["s"]) == sorted(names)
    for name in names:
        js.delete_stream(name)


def test_idle_query_looks_ten_times_a_second(server: Server, js: JetStream) -> None:
    publish_orders(js, 1)
    source = reader(server)
    end = source.latestOffset(source.initialOffset(), ALL)
    begun = time.monotonic()
    for _ in range(4):
        assert source.latestOffset(end, ALL) == end
    publish_orders(js, 1)
    assert source.latestOffset(end, ALL) != end, "a look always comes after the pause"
    assert time.monotonic() - begun >= 4 * 0.1
    busy = []
    for _ in range(5):
        begun = time.monotonic()
        assert source.latestOffset(source.initialOffset(), ALL) != source.initialOffset()
        busy.append(time.monotonic() - begun)
    assert min(busy) < 0.1, "a query that has work does not wait"


class Unanswered:
    """A list of streams of which one did not reply in time."""

    def __init__(self, info: StreamInfo) -> None:
        self.info, self.missing, self.offline = info, ["RETURNS"], {"OTHER": "no server"}

    async def __aiter__(self) -> AsyncIterator[StreamInfo]:
        yield self.info


async def test_stream_missing_from_a_list_is_asked_itself(nats_client: Client) -> None:
    js = nats_client.jetstream()
    for name in ("ORDERS", "RETURNS"):
        await js.create_stream(name=name, subjects=[name], storage="memory")
    info = (await js.stream("ORDERS")).cached_info

    class Context:
        stream = staticmethod(js.stream)

        def streams(self) -> Unanswered:
            return Unanswered(info)

    class Stub:
        def jetstream(self) -> Context:
            return Context()

    assert list(await _find_streams(cast("Any", Stub()), ("*R*S",))) == ["ORDERS", "RETURNS"]


# ---------------------------------------------------------------- windows of subjects


def matching_batches(source: StreamingReader, wanted: Callable[[int], bool]) -> tuple[list[int], list[int]]:
    """The matching messages of each batch, and what was left by the query's progress."""
    index, sizes, lags = source.initialOffset(), [], []
    while (end := source.latestOffset(index, source.getDefaultReadLimit())) != index:
        sizes.append(sum(wanted(seq) for first, last in planned(source, index, end) for seq in range(first, last + 1)))
        lags.append(source.reportLatestOffset()["lag"]["ORDERS"])
        index = end
    return sizes, lags


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("spread", ["even", "front", "back", "random"])
def test_window_holds_the_messages_that_match(
    server: Server, js: JetStream, spread: str, direct: bool, seed: int
) -> None:
    """100 of 1000 messages are of the subject: a limit of 10 makes about 10 batches, wherever they are."""
    js.stream("ORDERS").update(allow_direct=direct)
    chance = random.Random(seed)
    where = {
        "even": set(range(5, 1001, 10)),
        "front": set(range(1, 101)),
        "back": set(range(901, 1001)),
        "random": set(chance.sample(range(1, 1001), 100)),
    }[spread]
    with js.publisher() as publisher:
        for seq in range(1, 1001):
            publisher.publish("orders.eu" if seq in where else "orders.us", b"")
    source = reader(server, subjects="orders.eu", maxOffsetsPerTrigger="10", minPartitions="1")
    sizes, lags = matching_batches(source, where.__contains__)
    assert sum(sizes) == 100
    assert max(sizes) <= 10
    assert len(sizes) <= 25, sizes
    assert lags == [100 - sum(sizes[: index + 1]) for index in range(len(sizes))]


def test_window_counts_sequences_of_a_work_queue(server: Server) -> None:
    """It has no consumers that only count."""
    with sync.connect(server.url) as nc:
        queue = nc.jetstream()
        queue.create_stream(name="ORDERS", subjects=["orders.>"], storage="memory", retention="workqueue")
        publish_orders(queue, 30)
        source = reader(server, subjects="orders.eu", maxOffsetsPerTrigger="10", minPartitions="1")
        assert matching_batches(source, lambda _: True) == ([10, 10, 10], [20, 10, 0])
        queue.delete_stream("ORDERS")


def test_spark_before_4_2_gives_no_start_offset(server: Server, js: JetStream) -> None:
    """There ``latestOffset`` is called without arguments, and takes all there is."""
    publish_orders(js, 10)
    source = reader(server)
    start = source.initialOffset()
    end = source.latestOffset()
    assert planned(source, start, end) == [(1, 10)]
    publish_orders(js, 5)
    assert planned(source, end, source.latestOffset()) == [(11, 15)]
    restarted = reader(server)
    later = restarted.latestOffset()
    assert planned(restarted, end, later) == [(11, 15)]


def test_pickled_reader_holds_no_secret(server: Server, js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_TEST_TOKEN", "hunter2")
    source = reader(server, token="env:NATS_TEST_TOKEN")
    source.initialOffset()
    assert b"hunter2" not in pickle.dumps(source)
    assert source._settings.nats == SparkNats(servers=server.url, token=source._settings.nats.token)
