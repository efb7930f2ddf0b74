"""What a streaming query reads follows from two offsets and nothing else."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ConfigError
from natsproto.spark._offsets import (
    BatchRange,
    Offset,
    StreamOffset,
    advance,
    batch_range,
    lost_range,
    shares,
)
from natsproto.spark._ranges import SeqRange, StreamBounds, parts_of, split_range

BORN = "2026-01-02T03:04:05.678901234Z"
REBORN = "2026-02-02T03:04:05Z"


def at(seq: int, base: int = 1, created: str = BORN) -> StreamOffset:
    return StreamOffset(stream="ORDERS", seq=seq, created=created, base=base)


def holds(first: int, last: int, created: str = BORN) -> StreamBounds:
    return StreamBounds(created=created, first_seq=first, last_seq=last, messages=max(0, last - first + 1), nbytes=0)


def test_an_offset_is_the_same_text_every_time() -> None:
    text = f'{{"v": 1, "s": {{"ORDERS": {{"seq": 7, "created": "{BORN}"}}}}, "base": {{"ORDERS": 3}}, "n": 4}}'
    offset = Offset(streams=(at(7, 3),), partitions=4)
    assert json.dumps(offset.json()) == text
    assert Offset.read(json.loads(text)) == offset


def test_an_offset_of_several_streams_is_read() -> None:
    other = StreamOffset(stream="ARRIVALS", seq=5, created=REBORN, base=2)
    offset = Offset(streams=(other, at(7, 3)), partitions=0)
    saved = json.loads(json.dumps(offset.json(), sort_keys=True))
    assert Offset.read(saved) == offset
    assert offset.get("ORDERS") == at(7, 3)
    assert offset.get("OTHER") is None


def test_an_offset_without_base_and_partitions_is_read() -> None:
    read = Offset.read({"v": 1, "s": {"ORDERS": {"seq": 7, "created": BORN}}})
    assert read == Offset(streams=(at(7, 0),))


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"v": 2, "s": {"ORDERS": {"seq": 7, "created": BORN}}},
        {"v": 1, "s": {"ORDERS": {"seq": 7, "created": BORN}}, "n": -1},
        {"v": 1, "s": {"ORDERS": {"seq": "7", "created": BORN}}},
        {"v": 1, "s": {"ORDERS": {"seq": -7, "created": BORN}}},
        {"v": 1, "s": {"ORDERS": {"seq": True, "created": BORN}}},
        {"v": 1, "s": {"ORDERS": {"seq": 7}}},
        {"v": 1, "s": {"ORDERS": {"seq": 7, "created": BORN}}, "base": {"ORDERS": "x"}},
        {"v": 1, "s": []},
    ],
)
def test_what_is_no_offset_is_refused(saved: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        Offset.read(saved)


def test_batch_reads_from_start_to_before_end() -> None:
    assert batch_range(at(11), at(21)) == BatchRange(first=11, last=20)


def test_first_batch_begins_at_the_base_of_its_end() -> None:
    assert batch_range(at(61, base=61), at(51, base=11)) == BatchRange(first=11, last=50)


def test_batch_of_a_new_stream_begins_at_its_base() -> None:
    assert batch_range(None, at(21, base=5)) == BatchRange(first=5, last=20)


def test_batch_of_recreated_stream_begins_at_base() -> None:
    assert batch_range(at(500), at(21, base=1, created=REBORN)) == BatchRange(first=1, last=20, recreated=True)


def test_nothing_new_is_the_same_offset() -> None:
    assert advance(at(21), holds(1, 20)) == at(21)
    assert advance(at(1), holds(1, 0)) == at(1)


def test_batch_takes_everything_up_to_its_limit() -> None:
    assert advance(at(21), holds(1, 100)) == at(101)
    assert advance(at(21), holds(1, 100), max_count=30) == at(51)
    assert advance(at(21), holds(1, 100), max_count=300) == at(101)
    assert advance(at(21), holds(1, 100), max_count=30, until=40) == at(41)


def test_limit_counts_from_the_first_kept_sequence() -> None:
    assert advance(at(1), holds(1001, 2000), max_count=30) == at(1031)


def test_recreated_stream_is_read_from_its_front() -> None:
    assert advance(at(500), holds(1, 20, REBORN)) == at(21, base=1, created=REBORN)
    assert advance(at(500), holds(1, 0, REBORN)) == at(1, base=1, created=REBORN)


def test_what_was_removed_unread_is_known() -> None:
    assert lost_range(at(11), holds(51, 60)) == (11, 50)
    assert lost_range(at(11), holds(51, 50)) == (11, 50)
    assert lost_range(at(51), holds(51, 60)) is None
    assert lost_range(at(51), holds(51, 50)) is None
    assert lost_range(at(1), holds(1, 0)) is None


def test_bytes_become_sequences_by_the_average() -> None:
    now = StreamBounds(created=BORN, first_seq=1, last_seq=1000, messages=500, nbytes=50_000)
    assert now.sequences_in(10_000) == 200
    assert now.sequences_in(1) == 1


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, [5], [10]),
        (0, [5, 5], [0, 0]),
        (10, [30, 10], [7, 2]),
        (10, [1000, 1, 0], [9, 1, 1]),
        (10, [0, 0], [10, 10]),
    ],
)
def test_limits_are_shared_in_proportion(total: int, weights: list[int], expected: list[int]) -> None:
    assert shares(total, weights) == expected


@pytest.mark.parametrize(
    ("count", "partitions"),
    [(0, 0), (1, 1), (2001, 2), (400_000, 4), (400_001, 5), (5_000_000, 50), (10**12, 200)],
)
def test_partitions_grow_with_the_stream(count: int, partitions: int) -> None:
    assert len(split_range(1, count)) == partitions


@given(st.integers(1, 10**12), st.integers(0, 10**7), st.integers(0, 300))
def test_split_ranges_are_disjoint_complete_and_even(first: int, count: int, partitions: int) -> None:
    runs = split_range(first, first + count - 1, partitions)
    assert sum(last - begin + 1 for begin, last in runs) == count
    if runs:
        assert (runs[0][0], runs[-1][1]) == (first, first + count - 1)
        assert all(one[1] + 1 == two[0] for one, two in pairwise(runs))
        sizes = {last - begin + 1 for begin, last in runs}
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert partitions == 0 or len(runs) == min(partitions, count)


def test_only_the_first_part_may_begin_later() -> None:
    """Of the others a reader knows the range from the plan on: what the stream removes of it is a hole."""
    whole = SeqRange(stream="S", start=11, end=50, created=BORN, earliest=True)
    parts = parts_of(whole, 4)
    assert [(one.start, one.end, one.earliest) for one in parts] == [
        (11, 20, True),
        (21, 30, False),
        (31, 40, False),
        (41, 50, False),
    ]
    assert not any(one.earliest for one in parts_of(whole.replace(earliest=False), 4))
