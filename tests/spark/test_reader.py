"""Ranges of a stream: planned once, and read whole, in order, whatever way and whatever else happens to the stream."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from natsproto._client import Client
from natsproto.errors import (
    ConfigError,
    InvalidConsumerConfig,
    InvalidSubject,
    JetStreamUnavailable,
    LimitReached,
    NatsError,
    NoResponders,
    PermissionDenied,
    PullRefused,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.jetstream import JetStream
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._values.config_parts import StreamConsumerLimits
from natsproto.jetstream._values.policies import RetentionPolicy
from natsproto.spark import SeqRange, SparkNats, plan_ranges, read_range
from natsproto.spark import _range_reader as reader
from natsproto.spark._client import close_workers, run_on_loop, shared_client
from natsproto.spark._outages import DEFAULT_OUTAGE_TIMEOUT_S, READ_RETRY_WAIT_S
from natsproto.spark._range_reader import Method
from natsproto.testing import Server, run_server
from tests.kit.clock import virtual_clock
from tests.spark.streams import METHODS, StreamFixture

# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("start", "end"), [(1, 100), (1, 1), (100, 100), (30, 60), (8, 14), (1, 7)], ids=lambda bound: str(bound)
)
def test_exactly_the_range_is_read(nats: SparkNats, method: Method, start: int, end: int) -> None:
    source = StreamFixture(nats)
    source.publish(100)
    assert source.seqs(start, end, method) == list(range(start, end + 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "gone", [[1, 2, 3], [18, 19, 20], [1, 20], [5, 6, 7, 8, 9, 10], list(range(2, 20)), [7], [8, 14], [21, 22]], ids=str
)
def test_deleted_messages_give_no_rows(nats: SparkNats, method: Method, gone: list[int]) -> None:
    source = StreamFixture(nats)
    source.publish(60)
    source.delete(*gone)
    start = 2 if 1 in gone else 1  # where the stream begins is another matter
    start = min({*range(start, 21)} - {*gone}) if start in gone else start
    assert source.seqs(start, 20, method) == [seq for seq in range(start, 21) if seq not in gone]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("left", [0, 1])
def test_range_in_which_all_is_deleted_is_empty(nats: SparkNats, method: Method, left: int) -> None:
    source = StreamFixture(nats)
    source.publish(10 + left)
    source.delete(*range(5, 11))
    assert source.seqs(5, 10, method) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_comes_later_is_not_read(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    rows = read_range(nats, source.range(1, 30), method=method, batch_rows=5)
    first = next(rows)
    source.publish(30)
    assert [first[2], *(row[2] for row in rows)] == list(range(1, 31))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("subjects", "wheel"),
    [(["a"], (0,)), (["*"], (0, 1, 2)), (["a", "c"], (0, 2)), (["nobody"], ()), (["b", "nobody"], (1,))],
    ids=str,
)
def test_only_the_subjects_asked_for_are_read(
    nats: SparkNats, method: Method, subjects: list[str], wheel: tuple[int, ...]
) -> None:
    source = StreamFixture(nats)
    source.publish(90, "a", "b", "c")
    assert source.seqs(10, 80, method, *subjects) == [seq for seq in range(10, 81) if (seq - 1) % 3 in wheel]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("subjects", "read"),
    [
        ((">", "a.x"), {1, 2, 3}),
        (("a.x", "a.*", "a.x"), {1, 2}),
        (("a.>", "*.x"), {1, 2, 3}),
        (("*.x", "*.>"), {1, 2, 3}),
        (("*.y", "a.*"), {1, 2}),
    ],
)
def test_message_of_two_filters_is_read_once(
    nats: SparkNats, method: Method, subjects: tuple[str, ...], read: set[int]
) -> None:
    source = StreamFixture(nats)
    source.publish(30, "a.x", "a.y", "b.x")
    assert source.seqs(1, 30, method, *subjects) == [seq for seq in range(1, 31) if (seq - 1) % 3 + 1 in read]


@pytest.mark.parametrize("method", METHODS)
def test_row_is_the_message(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    before = datetime.now(UTC)
    source.publish(1, "ä", data=b"\x00\xff", headers=[("A", "1"), ("B", "x"), ("A", "2")])
    source.publish(1, "plain", data=b"")
    (first, second) = read_range(nats, source.range(1, 2), method=method)
    stream, subject, seq, stored, data, headers, size = first
    assert (stream, subject, seq, data) == (source.name, f"{source.name}.ä", 1, b"\x00\xff")
    assert before - timedelta(seconds=1) < stored < before + timedelta(seconds=60)
    assert headers == {"A": ["1", "2"], "B": ["x"]}
    assert size == len(subject.encode()) + len(data) + len(b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n")
    assert (second[5], second[6]) == (None, len(second[1]) + len(second[4]))


@pytest.mark.parametrize("method", METHODS)
def test_headers_named_like_the_servers_are_kept(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    theirs = {"Nats-Sequence": "999", "Nats-Subject": "else.where", "Status": "204", "Nats-Num-Pending": "0"}
    source.publish(5, headers=theirs)
    rows = list(read_range(nats, source.range(1, 5), method=method))
    assert [(row[1], row[2]) for row in rows] == [(f"{source.name}.a", seq) for seq in range(1, 6)]
    assert [row[5] for row in rows] == [{name: [value] for name, value in theirs.items()}] * 5


@pytest.mark.parametrize("method", METHODS)
def test_arrow_batches_hold_the_same_rows(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(50, "a", "b", headers={"A": "1"})
    source.publish(50, "a", "b")
    rows = list(read_range(nats, source.range(1, 100), method=method))
    batches = list(read_range(nats, source.range(1, 100), method=method, output="arrow", batch_rows=30))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    found = [
        (*list(row.values())[:5], row["headers"] and dict(row["headers"]), row["size"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    assert found == rows


READ = """
import sys
from natsproto.spark import SeqRange, SparkNats, close_workers, read_range

(batch,) = read_range(SparkNats(servers=sys.argv[1]), SeqRange(stream=sys.argv[2], start=1, end=20), output="arrow")
print(batch.num_rows, "pandas" in sys.modules)
close_workers()
"""


def test_reading_arrow_does_not_import_pandas(nats: SparkNats) -> None:
    """pyarrow does so by the way, and it takes 42 MiB of every worker."""
    source = StreamFixture(nats)
    source.publish(20, headers={"A": "1", "B": "2"})
    command = [sys.executable, "-c", READ, str(nats.servers), source.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["20", "False"]


def test_headers_can_be_left_out(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    source.publish(3, headers={"A": "1"})
    row = next(read_range(nats, source.range(1, 3), headers=False))
    batch = next(read_range(nats, source.range(1, 3), headers=False, output="arrow"))
    assert batch.num_columns == 6
    assert tuple(batch.to_pylist()[0].values()) == row


# ---------------------------------------------------------------- how


def keep_for_later(nats: SparkNats, name: str) -> None:
    """A durable consumer, for whose sake an interest stream keeps its messages."""

    async def make(client: Client) -> None:
        await (await client.jetstream().stream(name)).create_consumer(durable_name="D")

    run_on_loop(nats, make)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("retention", RetentionPolicy)
def test_reading_takes_nothing_away(nats: SparkNats, method: Method, retention: RetentionPolicy) -> None:
    if retention is RetentionPolicy.WORK_QUEUE and method == "consumer":
        pytest.skip("a work queue has no consumers without acknowledgement: the server refuses it")
    source = StreamFixture(nats, retention=retention)
    keep_for_later(nats, source.name)
    source.publish(20)
    for _ in range(2):
        assert source.seqs(1, 20, method) == list(range(1, 21))
    assert source.info().state.messages == 20


def test_stream_without_direct_get_is_read_by_sequence(nats: SparkNats) -> None:
    source = StreamFixture(nats, allow_direct=False)
    source.publish(20)
    assert source.seqs(5, 15, "direct") == list(range(5, 16))


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("method", METHODS)
def test_batches_have_the_rows_that_were_asked_for(nats: SparkNats, method: Method, batch_rows: int) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    batches = read_range(nats, source.range(1, 30), method=method, output="arrow", batch_rows=batch_rows)
    assert {batch.num_rows for batch in list(batches)[:-1]} <= {batch_rows}


@pytest.mark.parametrize("method", METHODS)
def test_big_messages_make_small_batches(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(24, data=bytes(500_000))
    batches = read_range(nats, source.range(1, 24), method=method, output="arrow", max_bytes=1_000_000)
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 24
    assert max(sizes) <= 8 if method == "consumer" else 24  # a page of direct get is 8 MiB


def test_reader_that_stalls_is_not_flooded(nats: SparkNats) -> None:
    config = nats.replace(name="stalled")
    source = StreamFixture(nats)
    source.publish(300, data=bytes(100_000))
    rows = read_range(config, source.range(1, 300), batch_rows=10, max_bytes=1 << 20)
    next(rows)
    portal, client = shared_client(config).reach()
    for _ in range(20):
        portal.call(client.flush)  # the server has sent whatever it was going to send
    assert portal.run(lambda: client.stats).in_bytes < 6 << 20, "of 30 MB"
    assert sum(1 for _ in rows) == 299


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("span", "share", "most"), [(250, 1, 1.2), (1250, 1, 1.05), (6000, 1, 1.02), (2500, 10, 1.5), (15_000, 10, 1.2)]
)
def test_server_sends_little_more_than_the_range(
    nats: SparkNats, method: Method, span: int, share: int, most: float, seed: int
) -> None:
    source = StreamFixture(nats)
    chance = random.Random(seed)
    source.publish(20_000, *(str(number) for number in range(10)))
    start = chance.randrange(1, 20_000 - span)
    config = nats.replace(name=f"read-{source.name}")
    portal, client = shared_client(config).reach()
    seq_range, subjects = source.range(start, start + span - 1), [f"{source.name}.3"] if share == 10 else []
    before = portal.run(lambda: client.stats).in_msgs
    found = [row[2] for row in read_range(config, seq_range, subjects=subjects, method=method)]
    sent = portal.run(lambda: client.stats).in_msgs - before
    assert found == [seq for seq in range(start, start + span) if share == 1 or seq % 10 == 4]
    assert sent <= most * len(found) + 30


@pytest.mark.parametrize("method", METHODS)
def test_server_sends_little_to_a_reader_that_leaves(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(20_000)
    config = nats.replace(name=f"leaves-{source.name}")
    portal, client = shared_client(config).reach()
    before = portal.run(lambda: client.stats).in_msgs
    rows = read_range(config, source.range(1, 20_000), method=method)
    assert [next(rows)[2] for _ in range(5)] == [1, 2, 3, 4, 5]
    rows.close()
    assert portal.run(lambda: client.stats).in_msgs - before < 500


@pytest.mark.parametrize("method", METHODS)
def test_leaving_early_leaves_nothing_on_the_server(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(1000)
    for _ in range(3):
        rows = read_range(nats, source.range(1, 1000), method=method, batch_rows=10)
        assert [next(rows)[2] for _ in range(15)] == list(range(1, 16))
        rows.close()
    assert list(read_range(nats, source.range(1, 1000), method=method))[-1][2] == 1000
    assert source.consumers() == 0


def test_consumer_lives_no_longer_than_it_is_read(nats: SparkNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed worker leaves behind is gone by itself."""
    source = StreamFixture(nats)
    source.publish(1000)
    rows = read_range(nats, source.range(1, 1000), batch_rows=10, method="consumer")
    next(rows)

    async def consumer(client: Client) -> list[tuple[float, bool, int, str]]:
        stream = await client.jetstream().stream(source.name)
        configs = [info.config async for info in stream.consumers()]
        return [(c.inactive_threshold, c.mem_storage, c.num_replicas, str(c.ack_policy)) for c in configs]

    assert run_on_loop(nats, consumer) == [(reader.INACTIVE_THRESHOLD_S, True, 1, "none")]
    rows.close()


def test_lost_consumer_costs_no_row(nats: SparkNats) -> None:
    """As after a stall for longer than the server keeps it."""
    source = StreamFixture(nats)
    source.publish(3000, data=bytes(2000))
    rows = read_range(nats, source.range(1, 3000), batch_rows=100, max_bytes=100_000)
    seen = [next(rows)[2] for _ in range(10)]

    async def delete(client: Client) -> None:
        stream = await client.jetstream().stream(source.name)
        async for name in stream.consumer_names():
            await stream.delete_consumer(name)

    run_on_loop(nats, delete)
    assert [*seen, *(row[2] for row in rows)] == list(range(1, 3001))


async def test_server_restart_costs_no_row() -> None:
    async with run_server(jetstream=True) as server:
        nats = SparkNats(servers=server.url)
        source = StreamFixture(nats)
        source.publish(3000, data=bytes(2000))
        found = {
            method: read_range(nats, source.range(1, 3000), method=method, batch_rows=100, max_bytes=100_000)
            for method in METHODS
        }
        seen = {method: [next(rows)[2] for _ in range(10)] for method, rows in found.items()}
        await server.restart()
        for method, rows in found.items():
            assert [*seen[method], *(row[2] for row in rows)] == list(range(1, 3001)), method
        shared_client(nats).close()


@pytest.fixture(scope="module")
def restricted() -> Iterator[Server]:
    """A server with a user who may read, but make no consumers."""
    inbox = 'subscribe: ["_INBOX.>"]'
    reader = f'publish: ["$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.>"], {inbox}'
    consumer = f'publish: ["$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.>"], {inbox}'
    limited = ", ".join(
        f"{{user: {name}, password: r, permissions: {{ {allowed} }} }}"
        for name, allowed in [("reader", reader), ("consumer", consumer)]
    )
    users = f"users: [{{user: boss, password: b}}, {limited}]"
    with run_server(jetstream=True, config=f"authorization {{ {users} }}") as server:
        yield server
        close_workers()


def test_auto_needs_no_consumer_where_none_may_be_made(restricted: Server) -> None:
    source = StreamFixture(SparkNats(servers=restricted.url, user="boss", password="b", allow_literal_secrets=True))
    source.publish(30)
    seq_range = source.range(5, 25)
    reader = SparkNats(servers=restricted.url, user="reader", password="r", allow_literal_secrets=True)
    assert [row[2] for row in read_range(reader, seq_range)] == list(range(5, 26))
    with pytest.raises(PermissionDenied):
        list(read_range(reader, seq_range, method="consumer"))


def test_end_of_a_range_needs_no_right_of_its_own(restricted: Server) -> None:
    """What the leader would say of the deleted end is asked in any way that is allowed; one server cannot lag."""
    source = StreamFixture(SparkNats(servers=restricted.url, user="boss", password="b", allow_literal_secrets=True))
    source.publish(30)
    source.delete(24, 25)
    seq_range = source.range(5, 25)
    for user in ("reader", "consumer"):
        reader = SparkNats(servers=restricted.url, user=user, password="r", allow_literal_secrets=True)
        assert [row[2] for row in read_range(reader, seq_range)] == list(range(5, 24))


def test_auto_needs_no_consumer_where_there_are_enough(nats: SparkNats, caplog: pytest.LogCaptureFixture) -> None:
    source = StreamFixture(nats, max_consumers=1)
    keep_for_later(nats, source.name)
    source.publish(3000)
    assert source.seqs(5, 2500) == list(range(5, 2501))
    [record] = caplog.records
    assert record.message.startswith(f"stream {source.name} is read in another way: ")
    assert "maximum consumers limit reached" in record.message


def test_consumer_keeps_to_the_limits_of_the_stream(nats: SparkNats) -> None:
    source = StreamFixture(nats, consumer_limits=StreamConsumerLimits(inactive_threshold=5))
    source.publish(30)
    assert source.seqs(5, 25, "consumer") == list(range(5, 26))


def test_refused_consumer_ends_reading_at_once(nats: SparkNats) -> None:
    source = StreamFixture(nats, retention=RetentionPolicy.WORK_QUEUE)
    source.publish(30)
    begun = time.monotonic()
    with pytest.raises(InvalidConsumerConfig, match="explicit ack"):
        source.seqs(5, 25, "consumer")
    assert time.monotonic() - begun < DEFAULT_OUTAGE_TIMEOUT_S / 2


class FailingConsumer:
    """Fails so many times, then gives a page."""

    def __init__(self, error: NatsError, failures: int) -> None:
        self.error, self.failures, self.calls = error, failures, 0

    async def fetch(self, *args: object, **options: object) -> list[str]:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return ["page"]


def pull(consumer: FailingConsumer) -> Any:
    seq_range = SeqRange(stream="S", start=1, end=10, created="")
    reading = reader.RangeReader(cast("JetStream", None), seq_range)
    return reading._pull(cast("OrderedConsumer", consumer), 1000)


@virtual_clock
async def test_error_that_may_pass_is_waited_for() -> None:
    consumer = FailingConsumer(JetStreamUnavailable(503, 10008, "temporarily unavailable"), 10)
    assert await pull(consumer) == ["page"]
    assert asyncio.get_running_loop().time() >= 10 * READ_RETRY_WAIT_S
    consumer = FailingConsumer(NoResponders("$JS.API.INFO"), 10**6)
    with pytest.raises(RequestTimeout, match=r"'S' \(last error: .*\$JS.API.INFO.*60 s"):
        await pull(consumer)
    assert consumer.calls < 100


@pytest.mark.parametrize(
    "error",
    [
        InvalidConsumerConfig(400, 10153, "consumer inactive threshold exceeds system limit"),
        LimitReached(500, 10023, "insufficient resources"),
        PullRefused(409, "Exceeded MaxRequestMaxBytes"),
        StreamNotFound(404, 10059, "stream not found"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_error_that_stays_ends_reading(error: NatsError) -> None:
    consumer = FailingConsumer(error, 2)
    with pytest.raises(type(error)):
        await pull(consumer)
    assert consumer.calls == 1


def test_rows_are_the_same_by_every_method(nats: SparkNats, server: Server) -> None:
    """Headers without a name are none, and what is not UTF-8 is filtered as the column shows it."""
    source = StreamFixture(nats)
    name = source.name.encode()
    ends = [b"\xff.a", b"\xfe.a", b"b", b"\xff.c", "\ufffd.a".encode(), b"\xffx.a"]
    blocks = [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n", b"NATS/1.0\r\nA: 1\r\nA: 2\r\na: 3\r\n\r\n"]
    with socket.create_connection((server.host, server.port)) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        for end in ends:
            raw.sendall(b"PUB %b.%b 1\r\nx\r\n" % (name, end))
        for head in blocks:
            raw.sendall(b"HPUB %b.b %d %d\r\n%bx\r\n" % (name, len(head), len(head) + 1, head))
        raw.sendall(b"PING\r\n")
        while not raw.recv(4096).endswith(b"PONG\r\n"):
            pass
    found = {}
    for method in METHODS:
        rows = list(read_range(nats, source.range(1, 9), method=method))
        batches = read_range(nats, source.range(1, 9), method=method, output="arrow")
        columns = [one for batch in batches for one in batch.to_pylist()]
        as_dicts = [None if one["headers"] is None else dict(one["headers"]) for one in columns]
        assert [row[5] for row in rows] == as_dicts == [None] * 8 + [{"A": ["1", "2"], "a": ["3"]}]
        assert [row[6] for row in rows] == [one["size"] for one in columns]
        found[method] = rows
        shown = f"{source.name}.\ufffd.a"
        assert source.seqs(1, 9, method, "\ufffd.a") == [1, 2, 5] == [row[2] for row in rows if row[1] == shown]
        assert source.seqs(1, 9, method, "\ufffd.*", "b") == [1, 2, 3, 4, 5, 7, 8, 9]
        assert source.seqs(1, 9, method, "\ufffdx.>") == [6]
    assert found["consumer"] == found["direct"]
    (planned,) = plan_ranges(nats, source.name, subjects=[f"{source.name}.\ufffd.c"], num_partitions=1)
    assert (planned.start, planned.end) == (4, 4)


# ---------------------------------------------------------------- planning


def bounds(ranges: list[SeqRange]) -> list[tuple[int, int]]:
    return [(seq_range.start, seq_range.end) for seq_range in ranges]


def test_ranges_cover_the_stream_once(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    source.publish(100)
    source.purge(11)
    ranges = plan_ranges(nats, source.name, num_partitions=4)
    assert bounds(ranges) == [(11, 32), (33, 55), (56, 77), (78, 100)]
    assert {seq_range.created for seq_range in ranges} == {source.info().created.rfc3339()}
    assert [row[2] for seq_range in ranges for row in read_range(nats, seq_range)] == list(range(11, 101))


def test_places_mean_what_they_say(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    source.publish(10)
    stored = next(read_range(nats, source.range(10, 10)))[3]
    source.publish(10)
    later = next(read_range(nats, source.range(11, 11)))[3]
    middle = stored + (later - stored) / 2 if later > stored else later
    plan = {
        ("earliest", "latest"): [(1, 20)],
        ("latest", "latest"): [],
        (5, 8): [(5, 8)],
        (8, 5): [],
        (5, 1000): [(5, 20)],
        (21, "latest"): [],
        (middle + timedelta(microseconds=1), "latest"): [(11, 20)],
        ("earliest", middle + timedelta(microseconds=1)): [(1, 10)],
        (datetime(2100, 1, 1, tzinfo=UTC), "latest"): [],
        ("earliest", datetime(2000, 1, 1, tzinfo=UTC)): [],
        (datetime(1600, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)): [(1, 20)],
        (datetime.max.replace(tzinfo=UTC), "latest"): [],
        ("earliest", datetime(1600, 1, 1, tzinfo=UTC)): [],
    }
    for (start, end), expected in plan.items():
        found = plan_ranges(nats, source.name, start=start, end=end, num_partitions=1)  # type: ignore[arg-type]
        assert bounds(found) == expected, (start, end)


def test_ranges_of_subjects_begin_and_end_with_them(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    source.publish(10, "x")
    source.publish(10, "y", "z")
    source.publish(10, "x")
    wanted = [f"{source.name}.y", f"{source.name}.z"]
    assert bounds(plan_ranges(nats, source.name, subjects=wanted, num_partitions=2)) == [(11, 15), (16, 20)]
    assert bounds(plan_ranges(nats, source.name, subjects=wanted, start=13, end=14, num_partitions=1)) == [(13, 14)]
    assert plan_ranges(nats, source.name, subjects=[f"{source.name}.nobody"], num_partitions=2) == []


def test_empty_stream_has_no_ranges(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    assert plan_ranges(nats, source.name, num_partitions=3) == []
    source.publish(5)
    source.purge(6)
    assert plan_ranges(nats, source.name, num_partitions=3) == []


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "A.B", "start": 1, "end": 2},
        {"stream": "S", "start": 0, "end": 2},
        {"stream": "S", "start": 3, "end": 2},
        {"stream": "S", "start": 1, "end": 2**64},
        {"stream": "S", "start": True, "end": 2},
    ],
    ids=str,
)
def test_bad_range_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SeqRange(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"method": "push"}, ConfigError),
        ({"output": "pandas"}, ConfigError),
        ({"batch_rows": 0}, ConfigError),
        ({"max_bytes": -1}, ConfigError),
        ({"subjects": "a.b"}, TypeError),
        ({"subjects": ["a..b"]}, InvalidSubject),
    ],
    ids=str,
)
def test_bad_argument_of_reading_is_refused_at_once(arguments: dict[str, object], error: type[Exception]) -> None:
    unreachable = SparkNats(servers="127.0.0.1:1")
    with pytest.raises(error):
        read_range(unreachable, SeqRange(stream="S", start=1, end=2), **arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_partitions": 0},
        {"num_partitions": 1, "start": 0},
        {"num_partitions": 1, "start": "first"},
        {"num_partitions": 1, "end": datetime(2026, 1, 1)},  # the mistake in question
        {"num_partitions": 1, "subjects": ["a b"]},
        {"num_partitions": 1, "stream": "A B"},
    ],
    ids=str,
)
def test_bad_argument_of_planning_is_refused_at_once(arguments: dict[str, object]) -> None:
    unreachable = SparkNats(servers="127.0.0.1:1")
    with pytest.raises(ConfigError):
        plan_ranges(unreachable, **{"stream": "S", **arguments})  # type: ignore[arg-type]
