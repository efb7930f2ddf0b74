"""Messages that were removed before they were read: which of them are lost, and the sizes of pulls."""

from __future__ import annotations

import random

import pytest

from natsproto.errors import DataLost, StreamNotFound
from natsproto.jetstream._values.codec import decode
from natsproto.jetstream._values.info import StreamInfo
from natsproto.spark import SeqRange, SparkNats, plan_ranges, read_range
from natsproto.spark._range_reader import Method
from natsproto.spark._ranges import DataLossCheck, PullSize
from tests.spark.streams import METHODS, StreamFixture


@pytest.mark.parametrize("method", METHODS)
def test_purged_messages_are_missed(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    seq_range = source.range(1, 30)
    source.purge(11)
    with pytest.raises(DataLost) as caught:
        list(read_range(nats, seq_range, method=method))
    assert (caught.value.stream, caught.value.first, caught.value.last) == (source.name, 1, 30)
    assert "begins at 11" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_data_loss_can_be_a_log_line(nats: SparkNats, method: Method, caplog: pytest.LogCaptureFixture) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    seq_range = source.range(1, 30)
    source.purge(11)
    rows = read_range(nats, seq_range, method=method, fail_on_data_loss=False)
    assert [row[2] for row in rows] == list(range(11, 31))
    assert "begins at 11" in caplog.text


def test_stream_that_was_made_anew_is_another_one(nats: SparkNats, caplog: pytest.LogCaptureFixture) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    seq_range = source.range(1, 30)
    source.recreate()
    source.publish(40)
    with pytest.raises(DataLost, match="created anew"):
        list(read_range(nats, seq_range))
    assert [row[2] for row in read_range(nats, seq_range, fail_on_data_loss=False)] == list(range(1, 31))
    assert "created anew" in caplog.text


def test_stream_that_ends_too_early_is_missed(nats: SparkNats) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    with pytest.raises(DataLost, match="ends at 30"):
        source.seqs(1, 31)
    assert source.seqs(20, 31, strict=False) == list(range(20, 31))
    assert source.seqs(31, 40, strict=False) == []


@pytest.mark.parametrize("method", METHODS)
def test_stream_trimmed_under_the_reader_is_noticed(nats: SparkNats, method: Method) -> None:
    """The front of the stream overtakes the reader, who sees a gap as after a deletion."""
    source = StreamFixture(nats)
    source.publish(9000, data=bytes(2000))
    rows = read_range(nats, source.range(1, 9000), method=method, batch_rows=10, max_bytes=1 << 20)
    next(rows)
    source.purge(9000)
    with pytest.raises(DataLost, match="begins at 9000"):
        list(rows)


def test_reader_does_not_wait_for_messages_that_went(nats: SparkNats) -> None:
    """Deleted one by one, behind the reader's back, at the end of its range: nothing more will come."""
    source = StreamFixture(nats)
    source.publish(2000, data=bytes(5000))
    rows = read_range(nats, source.range(1, 2000), method="consumer", batch_rows=10, max_bytes=1 << 20)
    seen = [next(rows)[2] for _ in range(5)]
    source.delete(*range(1500, 2001))
    assert [*seen, *(row[2] for row in rows)] == list(range(1, 1500))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gone", [11, 15, 16])
def test_trim_before_earliest_is_read_is_no_loss(nats: SparkNats, method: Method, gone: int) -> None:
    source = StreamFixture(nats)
    source.publish(30)
    ranges = plan_ranges(nats, source.name, num_partitions=2)
    source.purge(gone)
    source.publish(10)
    rows = [row[2] for seq_range in ranges for row in read_range(nats, seq_range, method=method)]
    assert rows == list(range(gone, 31))
    (whole,) = plan_ranges(nats, source.name, start=1, end=30, num_partitions=1)
    with pytest.raises(DataLost, match=f"begins at {gone}"):
        list(read_range(nats, whole, method=method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gone", [17, 25, 31])
def test_trim_of_a_later_range_is_a_hole(nats: SparkNats, method: Method, gone: int) -> None:
    """The first range may have been read before, and then its rows would be followed by others than the next."""
    source = StreamFixture(nats)
    source.publish(30)
    first, second = plan_ranges(nats, source.name, num_partitions=2)
    assert [row[2] for row in read_range(nats, first, method=method)] == list(range(1, 16))
    source.purge(gone)
    source.publish(10)
    with pytest.raises(DataLost, match=f"begins at {gone}"):
        list(read_range(nats, second, method=method))
    rows = read_range(nats, second, method=method, fail_on_data_loss=False)
    assert [row[2] for row in rows] == list(range(gone, 31))


def test_retry_begins_where_the_first_attempt_did(nats: SparkNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt may have written what it read, under ids that count rows."""
    source = StreamFixture(nats)
    source.publish(30)
    (seq_range,) = plan_ranges(nats, source.name, num_partitions=1)
    source.purge(11)
    monkeypatch.setattr("natsproto.spark._reader.is_retry", lambda: True)
    with pytest.raises(DataLost, match="begins at 11"):
        list(read_range(nats, seq_range))


@pytest.mark.parametrize("method", METHODS)
def test_trim_after_earliest_was_read_is_a_loss(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats)
    source.publish(9000, data=bytes(2000))
    (seq_range,) = plan_ranges(nats, source.name, num_partitions=1)
    source.purge(100)
    rows = read_range(nats, seq_range, method=method, batch_rows=10, max_bytes=1 << 20)
    assert next(rows)[2] == 100
    source.purge(9000)
    with pytest.raises(DataLost, match="begins at 9000"):
        list(rows)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("subjects", [[], ["a"], ["a", "b"]], ids=str)
def test_full_stream_is_read_from_earliest(nats: SparkNats, method: Method, subjects: list[str], seed: int) -> None:
    """It is trimmed all the time while it is planned and read; what is read has no hole."""
    source = StreamFixture(nats, max_msgs=2000)
    source.publish(3000, "a", "b", "c")
    chance = random.Random(seed)
    wanted = [f"{source.name}.{subject}" for subject in subjects]
    (seq_range,) = plan_ranges(nats, source.name, subjects=wanted, num_partitions=1)
    source.publish(chance.randrange(1, 1500), "a", "b", "c")
    rows = read_range(nats, seq_range, method=method, subjects=wanted)
    found = [next(rows)[2]]
    source.publish(chance.randrange(1, 50), "a", "b", "c")
    found += [row[2] for row in rows]
    matching = range(3) if not subjects else [("a", "b", "c").index(subject) for subject in subjects]
    # each of the three publications begins with "a" anew, so only the first of them tells which subject a sequence has
    assert found == [seq for seq in range(found[0], seq_range.end + 1) if (seq - 1) % 3 in matching]


@pytest.mark.parametrize("method", METHODS)
def test_superseded_messages_of_a_bucket_are_no_loss(nats: SparkNats, method: Method) -> None:
    source = StreamFixture(nats, max_msgs_per_subject=1)
    source.publish(3000, *"abcdefghij")
    seq_range = source.range(2991, 3000)
    rows = read_range(nats, seq_range, method=method, batch_rows=2)
    first = next(rows)[2]
    source.publish(95, *"abcdefghij")
    assert [first, *(row[2] for row in rows)][0] == 2991
    assert list(read_range(nats, seq_range, method=method)) == []
    source.purge(3095)
    assert list(read_range(nats, seq_range, method=method)) == []


def test_pulls_grow_and_end_with_the_range() -> None:
    seq_range = SeqRange(stream="S", start=1001, end=21_000)
    dense, position, sizes = PullSize(seq_range, 8192), 1000, []
    while position < 21_000:
        sizes.append(dense.next())
        position += sizes[-1]
        dense.on_messages(sizes[-1], position)
    assert sizes == [64, 256, 1024, 4096, 8192, 6368]
    sparse = PullSize(seq_range, 8192)
    sparse.next()
    sparse.on_messages(64, 1000 + 6400)
    assert sparse.next() == 136 + 12, "of the 13,600 that are left one in a hundred, and the root of it"


def test_pulls_hurry_where_the_front_moves() -> None:
    seq_range = SeqRange(stream="S", start=1, end=21_000, earliest=True)
    pace = PullSize(seq_range, 8192)
    pace.use_largest()
    assert pace.next() == 8192
    loss = DataLossCheck(seq_range, strict=True)
    moves = [loss.first_seq_moves]
    state = {"messages": 2, "bytes": 2, "first_seq": 40, "last_seq": 30_000}
    created = "2026-01-01T00:00:00Z"
    loss.compare(decode(StreamInfo, {"config": {"name": "S"}, "state": state, "created": created}))
    moves.append(loss.first_seq_moves)
    loss.advance(64, True)
    moves.append(loss.first_seq_moves)
    assert moves == [False, True, False], "what is removed after the first message was read is a loss"


def test_watch_misses_nothing_that_is_only_deleted() -> None:
    watch = DataLossCheck(SeqRange(stream="S", start=10, end=30), strict=True)
    assert watch.is_complete(14, 5, 10)
    watch.advance(14, True)
    assert not watch.is_complete(20, 5, 15), "one is missing: worth asking"


def test_stream_that_is_not_there_is_an_error(nats: SparkNats) -> None:
    with pytest.raises(StreamNotFound):
        list(read_range(nats, SeqRange(stream="NOWHERE", start=1, end=2)))
