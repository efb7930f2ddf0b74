"""Ranges of a stream: planned once, and read whole, in order, whatever way and whatever else happens to the stream."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Unpack

import pytest

from natsproto._client import Client
from natsproto.errors import ConfigError, DataLost, InvalidSubject, PermissionDenied, StreamNotFound
from natsproto.jetstream._arguments import StreamArgs
from natsproto.jetstream._codec import decode
from natsproto.jetstream._config import RetentionPolicy, StreamConfig
from natsproto.jetstream._info import StreamInfo
from natsproto.protocol.headers import HeadersLike
from natsproto.spark import SeqRange, SparkNats, plan_ranges, read_range
from natsproto.spark import _reader as reader
from natsproto.spark._client import call, close_workers, worker
from natsproto.spark._offsets import DataLossCheck, PullSize
from natsproto.spark._options import Method
from natsproto.testing import Server, run_server

METHODS: tuple[Method, ...] = ("consumer", "direct")
_names = (f"R{number}" for number in count())


class Ground:
    """A stream of a test's own, and what is done to it."""

    def __init__(self, nats: SparkNats, **fields: Unpack[StreamArgs]) -> None:
        self.nats = nats
        self.name = next(_names)
        config = StreamConfig(name=self.name, subjects=(f"{self.name}.>",), allow_direct=True)
        self.config = config.replace(**fields)
        self.create()

    def create(self) -> None:
        async def make(client: Client) -> None:
            await client.jetstream().create_stream(self.config)

        call(self.nats, make)

    def publish(self, number: int, *subjects: str, data: bytes = b"", headers: HeadersLike | None = None) -> None:
        """So many messages, on these subjects in turn."""
        wheel = [f"{self.name}.{subject}" for subject in subjects or ("a",)]

        async def fill(client: Client) -> None:
            async with client.jetstream().publisher() as publisher:
                for index in range(number):
                    await publisher.publish(wheel[index % len(wheel)], data or b"%d" % index, headers=headers)

        call(self.nats, fill)

    def delete(self, *seqs: int) -> None:
        async def drop(client: Client) -> None:
            stream = await client.jetstream().stream(self.name)
            for seq in seqs:
                await stream.delete_message(seq)

        call(self.nats, drop)

    def purge(self, before: int) -> None:
        async def drop(client: Client) -> None:
            await (await client.jetstream().stream(self.name)).purge(sequence=before)

        call(self.nats, drop)

    def recreate(self) -> None:
        async def drop(client: Client) -> None:
            await client.jetstream().delete_stream(self.name)

        call(self.nats, drop)
        self.create()

    def info(self) -> StreamInfo:
        async def look(client: Client) -> StreamInfo:
            return await (await client.jetstream().stream(self.name)).info()

        return call(self.nats, look)

    def range(self, start: int, end: int) -> SeqRange:
        return SeqRange(stream=self.name, start=start, end=end, created=self.info().created.rfc3339())

    def seqs(self, start: int, end: int, method: Method = "auto", *subjects: str, strict: bool = True) -> list[int]:
        """The sequences that are read."""
        wanted = [f"{self.name}.{subject}" for subject in subjects]
        rows = read_range(
            self.nats, self.range(start, end), subjects=wanted, method=method, batch_rows=7, fail_on_data_loss=strict
        )
        return [row[2] for row in rows]

    def consumers(self) -> int:
        """Once those that are on their way out are gone."""
        deadline = time.monotonic() + 5
        while (number := self.info().state.consumer_count) and time.monotonic() < deadline:
            pass
        return number


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("start", "end"), [(1, 100), (1, 1), (100, 100), (30, 60), (8, 14), (1, 7)], ids=lambda bound: str(bound)
)
def test_exactly_the_range_is_read(nats: SparkNats, method: Method, start: int, end: int) -> None:
    ground = Ground(nats)
    ground.publish(100)
    assert ground.seqs(start, end, method) == list(range(start, end + 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "gone", [[1, 2, 3], [18, 19, 20], [1, 20], [5, 6, 7, 8, 9, 10], list(range(2, 20)), [7], [8, 14], [21, 22]], ids=str
)
def test_deleted_messages_are_no_rows_and_bring_none_from_outside(
    nats: SparkNats, method: Method, gone: list[int]
) -> None:
    ground = Ground(nats)
    ground.publish(60)
    ground.delete(*gone)
    start = 2 if 1 in gone else 1  # where the stream begins is another matter
    start = min({*range(start, 21)} - {*gone}) if start in gone else start
    assert ground.seqs(start, 20, method) == [seq for seq in range(start, 21) if seq not in gone]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("left", [0, 1])
def test_range_in_which_all_is_deleted_is_empty(nats: SparkNats, method: Method, left: int) -> None:
    ground = Ground(nats)
    ground.publish(10 + left)
    ground.delete(*range(5, 11))
    assert ground.seqs(5, 10, method) == []


@pytest.mark.parametrize("method", METHODS)
def test_what_comes_later_is_not_read(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(30)
    rows = read_range(nats, ground.range(1, 30), method=method, batch_rows=5)
    first = next(rows)
    ground.publish(30)
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
    ground = Ground(nats)
    ground.publish(90, "a", "b", "c")
    assert ground.seqs(10, 80, method, *subjects) == [seq for seq in range(10, 81) if (seq - 1) % 3 in wheel]


def test_message_of_two_filters_is_read_once(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(30, "a", "b")
    assert ground.seqs(1, 30, "direct", ">", "a") == list(range(1, 31))


@pytest.mark.parametrize("method", METHODS)
def test_row_is_the_message(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    before = datetime.now(UTC)
    ground.publish(1, "ä", data=b"\x00\xff", headers=[("A", "1"), ("B", "x"), ("A", "2")])
    ground.publish(1, "plain", data=b"")
    (first, second) = read_range(nats, ground.range(1, 2), method=method)
    stream, subject, seq, stored, data, headers, size = first
    assert (stream, subject, seq, data) == (ground.name, f"{ground.name}.ä", 1, b"\x00\xff")
    assert before - timedelta(seconds=1) < stored < before + timedelta(seconds=60)
    assert headers == {"A": ["1", "2"], "B": ["x"]}
    assert size == len(subject.encode()) + len(data) + len(b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n")
    assert (second[5], second[6]) == (None, len(second[1]) + len(second[4]))


@pytest.mark.parametrize("method", METHODS)
def test_headers_named_like_the_servers_are_the_publishers_own(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    theirs = {"Nats-Sequence": "999", "Nats-Subject": "else.where", "Status": "204", "Nats-Num-Pending": "0"}
    ground.publish(5, headers=theirs)
    rows = list(read_range(nats, ground.range(1, 5), method=method))
    assert [(row[1], row[2]) for row in rows] == [(f"{ground.name}.a", seq) for seq in range(1, 6)]
    assert [row[5] for row in rows] == [{name: [value] for name, value in theirs.items()}] * 5


@pytest.mark.parametrize("method", METHODS)
def test_arrow_batches_hold_the_same_rows(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(50, "a", "b", headers={"A": "1"})
    ground.publish(50, "a", "b")
    rows = list(read_range(nats, ground.range(1, 100), method=method))
    batches = list(read_range(nats, ground.range(1, 100), method=method, output="arrow", batch_rows=30))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    found = [
        (*list(row.values())[:5], row["headers"] and dict(row["headers"]), row["size"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    assert found == rows


def test_headers_can_be_left_out(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(3, headers={"A": "1"})
    row = next(read_range(nats, ground.range(1, 3), headers=False))
    batch = next(read_range(nats, ground.range(1, 3), headers=False, output="arrow"))
    assert batch.num_columns == 6
    assert tuple(batch.to_pylist()[0].values()) == row


# ---------------------------------------------------------------- how


def keep_for_later(nats: SparkNats, name: str) -> None:
    """A durable consumer, for whose sake an interest stream keeps its messages."""

    async def make(client: Client) -> None:
        await (await client.jetstream().stream(name)).create_consumer(durable_name="D")

    call(nats, make)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("retention", RetentionPolicy)
def test_reading_takes_nothing_away(nats: SparkNats, method: Method, retention: RetentionPolicy) -> None:
    if retention is RetentionPolicy.WORK_QUEUE and method == "consumer":
        pytest.skip("a work queue has no consumers without acknowledgement: the server refuses it")
    ground = Ground(nats, retention=retention)
    keep_for_later(nats, ground.name)
    ground.publish(20)
    for _ in range(2):
        assert ground.seqs(1, 20, method) == list(range(1, 21))
    assert ground.info().state.messages == 20


def test_stream_without_direct_get_can_be_read_without_a_consumer(nats: SparkNats) -> None:
    ground = Ground(nats, allow_direct=False)
    ground.publish(20)
    assert ground.seqs(5, 15, "direct") == list(range(5, 16))


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
@pytest.mark.parametrize("method", METHODS)
def test_batches_have_the_rows_that_were_asked_for(nats: SparkNats, method: Method, batch_rows: int) -> None:
    ground = Ground(nats)
    ground.publish(30)
    batches = read_range(nats, ground.range(1, 30), method=method, output="arrow", batch_rows=batch_rows)
    assert {batch.num_rows for batch in list(batches)[:-1]} <= {batch_rows}


@pytest.mark.parametrize("method", METHODS)
def test_big_messages_make_small_batches(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(24, data=bytes(500_000))
    batches = read_range(nats, ground.range(1, 24), method=method, output="arrow", max_bytes=1_000_000)
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 24
    assert max(sizes) <= 8 if method == "consumer" else 24  # a page of direct get is 8 MiB


def test_reader_that_stalls_is_not_flooded(nats: SparkNats) -> None:
    config = nats.but(name="stalled")
    ground = Ground(nats)
    ground.publish(300, data=bytes(100_000))
    rows = read_range(config, ground.range(1, 300), batch_rows=10, max_bytes=1 << 20)
    next(rows)
    portal, client = worker(config).reach()
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
    ground = Ground(nats)
    chance = random.Random(seed)
    ground.publish(20_000, *(str(number) for number in range(10)))
    start = chance.randrange(1, 20_000 - span)
    config = nats.but(name=f"read-{ground.name}")
    portal, client = worker(config).reach()
    rng, subjects = ground.range(start, start + span - 1), [f"{ground.name}.3"] if share == 10 else []
    before = portal.run(lambda: client.stats).in_msgs
    found = [row[2] for row in read_range(config, rng, subjects=subjects, method=method)]
    sent = portal.run(lambda: client.stats).in_msgs - before
    assert found == [seq for seq in range(start, start + span) if share == 1 or seq % 10 == 4]
    assert sent <= most * len(found) + 30


@pytest.mark.parametrize("method", METHODS)
def test_server_sends_little_to_a_reader_that_leaves(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(20_000)
    config = nats.but(name=f"leaves-{ground.name}")
    portal, client = worker(config).reach()
    before = portal.run(lambda: client.stats).in_msgs
    rows = read_range(config, ground.range(1, 20_000), method=method)
    assert [next(rows)[2] for _ in range(5)] == [1, 2, 3, 4, 5]
    rows.close()
    assert portal.run(lambda: client.stats).in_msgs - before < 500


@pytest.mark.parametrize("method", METHODS)
def test_leaving_early_leaves_nothing_on_the_server(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(1000)
    for _ in range(3):
        rows = read_range(nats, ground.range(1, 1000), method=method, batch_rows=10)
        assert [next(rows)[2] for _ in range(15)] == list(range(1, 16))
        rows.close()
    assert list(read_range(nats, ground.range(1, 1000), method=method))[-1][2] == 1000
    assert ground.consumers() == 0


def test_consumer_lives_no_longer_than_it_is_read(nats: SparkNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed worker leaves behind is gone by itself."""
    ground = Ground(nats)
    ground.publish(1000)
    rows = read_range(nats, ground.range(1, 1000), batch_rows=10)
    next(rows)

    async def consumer(client: Client) -> list[tuple[float, bool, int, str]]:
        stream = await client.jetstream().stream(ground.name)
        configs = [info.config async for info in stream.consumers()]
        return [(c.inactive_threshold, c.mem_storage, c.num_replicas, str(c.ack_policy)) for c in configs]

    assert call(nats, consumer) == [(reader.INACTIVE_THRESHOLD_S, True, 1, "none")]
    rows.close()


def test_consumer_that_is_lost_in_the_middle_costs_no_row(nats: SparkNats) -> None:
    """As after a stall for longer than the server keeps it."""
    ground = Ground(nats)
    ground.publish(3000, data=bytes(2000))
    rows = read_range(nats, ground.range(1, 3000), batch_rows=100, max_bytes=100_000)
    seen = [next(rows)[2] for _ in range(10)]

    async def delete(client: Client) -> None:
        stream = await client.jetstream().stream(ground.name)
        async for name in stream.consumer_names():
            await stream.delete_consumer(name)

    call(nats, delete)
    assert [*seen, *(row[2] for row in rows)] == list(range(1, 3001))


async def test_server_that_restarts_in_the_middle_costs_no_row() -> None:
    async with run_server(jetstream=True) as server:
        nats = SparkNats(servers=server.url)
        ground = Ground(nats)
        ground.publish(3000, data=bytes(2000))
        found = {
            method: read_range(nats, ground.range(1, 3000), method=method, batch_rows=100, max_bytes=100_000)
            for method in METHODS
        }
        seen = {method: [next(rows)[2] for _ in range(10)] for method, rows in found.items()}
        await server.restart()
        for method, rows in found.items():
            assert [*seen[method], *(row[2] for row in rows)] == list(range(1, 3001)), method
        worker(nats).close()


@pytest.fixture(scope="module")
def restricted() -> Iterator[Server]:
    """A server with a user who may read, but make no consumers."""
    allowed = 'publish: ["$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.>"], subscribe: ["_INBOX.>"]'
    users = f"users: [{{user: boss, password: b}}, {{user: reader, password: r, permissions: {{ {allowed} }} }}]"
    with run_server(jetstream=True, config=f"authorization {{ {users} }}") as server:
        yield server
        close_workers()


def test_auto_needs_no_consumer_where_none_may_be_made(restricted: Server) -> None:
    ground = Ground(SparkNats(servers=restricted.url, user="boss", password="b", allow_literal_secrets=True))
    ground.publish(30)
    rng = ground.range(5, 25)
    reader = SparkNats(servers=restricted.url, user="reader", password="r", allow_literal_secrets=True)
    assert [row[2] for row in read_range(reader, rng)] == list(range(5, 26))
    with pytest.raises(PermissionDenied):
        list(read_range(reader, rng, method="consumer"))


def test_auto_needs_no_consumer_where_there_are_enough(nats: SparkNats) -> None:
    ground = Ground(nats, max_consumers=1)
    keep_for_later(nats, ground.name)
    ground.publish(30)
    assert ground.seqs(5, 25) == list(range(5, 26))


# ---------------------------------------------------------------- what was lost


@pytest.mark.parametrize("method", METHODS)
def test_purged_messages_are_missed(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(30)
    rng = ground.range(1, 30)
    ground.purge(11)
    with pytest.raises(DataLost) as caught:
        list(read_range(nats, rng, method=method))
    assert (caught.value.stream, caught.value.first, caught.value.last) == (ground.name, 1, 30)
    assert "begins at 11" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_left_can_be_had_with_a_word_in_the_log(
    nats: SparkNats, method: Method, caplog: pytest.LogCaptureFixture
) -> None:
    ground = Ground(nats)
    ground.publish(30)
    rng = ground.range(1, 30)
    ground.purge(11)
    rows = read_range(nats, rng, method=method, fail_on_data_loss=False)
    assert [row[2] for row in rows] == list(range(11, 31))
    assert "begins at 11" in caplog.text


def test_stream_that_was_made_anew_is_another_one(nats: SparkNats, caplog: pytest.LogCaptureFixture) -> None:
    ground = Ground(nats)
    ground.publish(30)
    rng = ground.range(1, 30)
    ground.recreate()
    ground.publish(40)
    with pytest.raises(DataLost, match="created anew"):
        list(read_range(nats, rng))
    assert [row[2] for row in read_range(nats, rng, fail_on_data_loss=False)] == list(range(1, 31))
    assert "created anew" in caplog.text


def test_stream_that_ends_too_early_is_missed(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(30)
    with pytest.raises(DataLost, match="ends at 30"):
        ground.seqs(1, 31)
    assert ground.seqs(20, 31, strict=False) == list(range(20, 31))
    assert ground.seqs(31, 40, strict=False) == []


@pytest.mark.parametrize("method", METHODS)
def test_stream_that_is_trimmed_under_the_reader_is_noticed(nats: SparkNats, method: Method) -> None:
    """The front of the stream overtakes the reader, who sees a gap as after a deletion."""
    ground = Ground(nats)
    ground.publish(9000, data=bytes(2000))
    rows = read_range(nats, ground.range(1, 9000), method=method, batch_rows=10, max_bytes=1 << 20)
    next(rows)
    ground.purge(9000)
    with pytest.raises(DataLost, match="begins at 9000"):
        list(rows)


def test_reader_does_not_wait_for_messages_that_went(nats: SparkNats) -> None:
    """Deleted one by one, behind the reader's back, at the end of its range: nothing more will come."""
    ground = Ground(nats)
    ground.publish(2000, data=bytes(5000))
    rows = read_range(nats, ground.range(1, 2000), method="consumer", batch_rows=10, max_bytes=1 << 20)
    seen = [next(rows)[2] for _ in range(5)]
    ground.delete(*range(1500, 2001))
    assert [*seen, *(row[2] for row in rows)] == list(range(1, 1500))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gone", [11, 25, 31])
def test_what_is_trimmed_before_earliest_is_read_is_no_loss(nats: SparkNats, method: Method, gone: int) -> None:
    ground = Ground(nats)
    ground.publish(30)
    ranges = plan_ranges(nats, ground.name, num_partitions=2)
    ground.purge(gone)
    ground.publish(10)
    rows = [row[2] for rng in ranges for row in read_range(nats, rng, method=method)]
    assert rows == list(range(gone, 31))
    (whole,) = plan_ranges(nats, ground.name, start=1, end=30, num_partitions=1)
    with pytest.raises(DataLost, match=f"begins at {gone}"):
        list(read_range(nats, whole, method=method))


def test_task_that_is_tried_again_begins_where_the_first_did(nats: SparkNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt may have written what it read, under ids that count rows."""
    ground = Ground(nats)
    ground.publish(30)
    (rng,) = plan_ranges(nats, ground.name, num_partitions=1)
    ground.purge(11)
    monkeypatch.setattr(reader, "is_retry", lambda: True)
    with pytest.raises(DataLost, match="begins at 11"):
        list(read_range(nats, rng))


@pytest.mark.parametrize("method", METHODS)
def test_what_is_trimmed_after_earliest_was_read_is_lost(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats)
    ground.publish(9000, data=bytes(2000))
    (rng,) = plan_ranges(nats, ground.name, num_partitions=1)
    ground.purge(100)
    rows = read_range(nats, rng, method=method, batch_rows=10, max_bytes=1 << 20)
    assert next(rows)[2] == 100
    ground.purge(9000)
    with pytest.raises(DataLost, match="begins at 9000"):
        list(rows)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("subjects", [[], ["a"], ["a", "b"]], ids=str)
def test_full_stream_is_read_from_earliest(nats: SparkNats, method: Method, subjects: list[str], seed: int) -> None:
    """It is trimmed all the time while it is planned and read; what is read has no hole."""
    ground = Ground(nats, max_msgs=2000)
    ground.publish(3000, "a", "b", "c")
    chance = random.Random(seed)
    wanted = [f"{ground.name}.{subject}" for subject in subjects]
    (rng,) = plan_ranges(nats, ground.name, subjects=wanted, num_partitions=1)
    ground.publish(chance.randrange(1, 1500), "a", "b", "c")
    rows = read_range(nats, rng, method=method, subjects=wanted)
    found = [next(rows)[2]]
    ground.publish(chance.randrange(1, 50), "a", "b", "c")
    found += [row[2] for row in rows]
    matching = range(3) if not subjects else [("a", "b", "c").index(subject) for subject in subjects]
    # each of the three publications begins with "a" anew, so only the first of them tells which subject a sequence has
    assert found == [seq for seq in range(found[0], rng.end + 1) if (seq - 1) % 3 in matching]


@pytest.mark.parametrize("method", METHODS)
def test_superseded_messages_of_a_bucket_are_no_loss(nats: SparkNats, method: Method) -> None:
    ground = Ground(nats, max_msgs_per_subject=1)
    ground.publish(3000, *"abcdefghij")
    rng = ground.range(2991, 3000)
    rows = read_range(nats, rng, method=method, batch_rows=2)
    first = next(rows)[2]
    ground.publish(95, *"abcdefghij")
    assert [first, *(row[2] for row in rows)][0] == 2991
    assert list(read_range(nats, rng, method=method)) == []
    ground.purge(3095)
    assert list(read_range(nats, rng, method=method)) == []


def test_pulls_grow_and_end_with_the_range() -> None:
    rng = SeqRange(stream="S", start=1001, end=21_000)
    dense, position, sizes = PullSize(rng, 8192), 1000, []
    while position < 21_000:
        sizes.append(dense.next())
        position += sizes[-1]
        dense.on_messages(sizes[-1], position)
    assert sizes == [64, 256, 1024, 4096, 8192, 6368]
    sparse = PullSize(rng, 8192)
    sparse.next()
    sparse.on_messages(64, 1000 + 6400)
    assert sparse.next() == 136 + 12, "of the 13,600 that are left one in a hundred, and the root of it"


def test_pulls_hurry_where_the_front_moves() -> None:
    rng = SeqRange(stream="S", start=1, end=21_000, earliest=True)
    pace = PullSize(rng, 8192)
    pace.use_largest()
    assert pace.next() == 8192
    loss = DataLossCheck(rng, strict=True)
    moves = [loss.front_moves]
    state = {"messages": 2, "bytes": 2, "first_seq": 40, "last_seq": 30_000}
    created = "2026-01-01T00:00:00Z"
    loss.compare(decode(StreamInfo, {"config": {"name": "S"}, "state": state, "created": created}))
    moves.append(loss.front_moves)
    loss.advance(64, True)
    moves.append(loss.front_moves)
    assert moves == [False, True, False], "what is removed after the first message was read is a loss"


def test_watch_misses_nothing_that_is_only_deleted() -> None:
    watch = DataLossCheck(SeqRange(stream="S", start=10, end=30), strict=True)
    assert watch.is_complete(14, 5, 10)
    watch.advance(14, True)
    assert not watch.is_complete(20, 5, 15), "one is missing: worth asking"


def test_stream_that_is_not_there_is_an_error(nats: SparkNats) -> None:
    with pytest.raises(StreamNotFound):
        list(read_range(nats, SeqRange(stream="NOWHERE", start=1, end=2)))


# ---------------------------------------------------------------- planning


def bounds(ranges: list[SeqRange]) -> list[tuple[int, int]]:
    return [(rng.start, rng.end) for rng in ranges]


def test_ranges_cover_the_stream_once(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(100)
    ground.purge(11)
    ranges = plan_ranges(nats, ground.name, num_partitions=4)
    assert bounds(ranges) == [(11, 32), (33, 55), (56, 77), (78, 100)]
    assert {rng.created for rng in ranges} == {ground.info().created.rfc3339()}
    assert [row[2] for rng in ranges for row in read_range(nats, rng)] == list(range(11, 101))


def test_places_mean_what_they_say(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(10)
    stored = next(read_range(nats, ground.range(10, 10)))[3]
    ground.publish(10)
    later = next(read_range(nats, ground.range(11, 11)))[3]
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
    }
    for (start, end), expected in plan.items():
        found = plan_ranges(nats, ground.name, start=start, end=end, num_partitions=1)  # type: ignore[arg-type]
        assert bounds(found) == expected, (start, end)


def test_ranges_of_subjects_begin_and_end_with_them(nats: SparkNats) -> None:
    ground = Ground(nats)
    ground.publish(10, "x")
    ground.publish(10, "y", "z")
    ground.publish(10, "x")
    wanted = [f"{ground.name}.y", f"{ground.name}.z"]
    assert bounds(plan_ranges(nats, ground.name, subjects=wanted, num_partitions=2)) == [(11, 15), (16, 20)]
    assert bounds(plan_ranges(nats, ground.name, subjects=wanted, start=13, end=14, num_partitions=1)) == [(13, 14)]
    assert plan_ranges(nats, ground.name, subjects=[f"{ground.name}.nobody"], num_partitions=2) == []


def test_empty_stream_has_no_ranges(nats: SparkNats) -> None:
    ground = Ground(nats)
    assert plan_ranges(nats, ground.name, num_partitions=3) == []
    ground.publish(5)
    ground.purge(6)
    assert plan_ranges(nats, ground.name, num_partitions=3) == []


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
