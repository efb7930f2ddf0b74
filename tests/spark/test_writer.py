"""A task of a sink may run twice, at once or much later: its rows are stored once. On a real server, without Spark."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from natsproto._client import Client
from natsproto.errors import ConfigError, CursorMoved, InvalidReply, StreamNotFound
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.policies import RetentionPolicy
from natsproto.spark import _cursor_writer as cursor_writer
from natsproto.spark._cursor_writer import CursorProgress
from natsproto.spark._id_writer import ROWS_AT_A_TIME
from natsproto.spark._options import SinkOptions
from natsproto.spark._task import WriteResult, WriteTask
from natsproto.spark._writer import check_ids, check_target, write_messages
from tests.kit.contents import stored_numbers
from tests.spark.streams import window_over

BASE = {"servers": "nats://127.0.0.1:4222", "stream": "OUT", "subject": "out.rows", "stableOrder": "true"}
TASK = WriteTask(owner="query", epoch=3, partition=1)
CURSORS = "$CURSOR.OUT.spark-query-1"


def settings(**options: str) -> SinkOptions:
    return SinkOptions.read({**BASE, **options})


IDS = settings()
CURSOR = settings(delivery="cursor")
NONE = settings(delivery="none")


@pytest.fixture
async def out(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(
        name="OUT", subjects=["out.>", "$CURSOR.OUT.>"], storage="memory", allow_atomic=True
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_writer, "MAX_PIECE_ROWS", 7)


def batch(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in range(first, last)])], names=["data"])


async def batches_then(*batches: pa.RecordBatch, fail: bool = False) -> AsyncIterator[pa.RecordBatch]:
    for one in batches:
        await asyncio.sleep(0)
        yield one
    if fail:
        raise ZeroDivisionError


async def write_once(
    client: Client, how: SinkOptions, task: WriteTask, batches: AsyncIterator[pa.RecordBatch]
) -> WriteResult:
    (done,) = [done async for done in write_messages(client, how, task, batches)]
    return done


@pytest.mark.parametrize("how", [IDS, settings(maxPending="1"), CURSOR])
async def test_a_task_that_runs_again_stores_nothing_new(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    assert await write_once(nats_client, how, TASK, batches_then(batch(0, 10), batch(10, 25))) == WriteResult(
        rows=25, duplicates=0
    )
    parts = [batch(first, first + 5) for first in range(0, 25, 5)]
    assert await write_once(nats_client, how, TASK, batches_then(*parts)) == WriteResult(rows=25, duplicates=25)
    assert await stored_numbers(out, "out.rows") == list(range(25))


@pytest.mark.parametrize("how", [IDS, CURSOR])
async def test_a_task_that_died_half_way_is_completed(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    with pytest.raises(ZeroDivisionError):
        await write_once(nats_client, how, TASK, batches_then(batch(0, 10), fail=True))
    done = await write_once(nats_client, how, TASK, batches_then(batch(0, 13), batch(13, 25)))
    assert (done.rows, done.duplicates > 0) == (25, True)
    assert await stored_numbers(out, "out.rows") == list(range(25))


@pytest.mark.parametrize("how", [IDS, CURSOR])
async def test_ids_differ_by_query_epoch_and_partition(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    others = [TASK, TASK.replace(epoch=4), TASK.replace(partition=2), TASK.replace(owner="other")]
    for task in others:
        assert (await write_once(nats_client, how, task, batches_then(batch(0, 9)))).duplicates == 0
    assert await stored_numbers(out, "out.rows") == [*range(9)] * 4


async def test_without_a_guarantee_rows_are_stored_again(nats_client: Client, out: Stream) -> None:
    for _ in range(2):
        assert await write_once(nats_client, NONE, TASK, batches_then(batch(0, 5))) == WriteResult(rows=5, duplicates=0)
    assert await stored_numbers(out, "out.rows") == [*range(5)] * 2


@pytest.mark.parametrize("how", [IDS, NONE])
async def test_batch_of_many_pieces_is_stored_in_order(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    count = 2 * ROWS_AT_A_TIME + 7
    for again in range(2):
        duplicates = count if again and how is IDS else 0
        done = await write_once(nats_client, how, TASK, batches_then(batch(0, count), batch(0, 0)))
        assert done == WriteResult(rows=count, duplicates=duplicates)
    assert await stored_numbers(out, "out.rows") == [*range(count)] * (1 if how is IDS else 2)


async def test_an_epoch_that_was_overtaken_stores_nothing(nats_client: Client, out: Stream) -> None:
    await write_once(nats_client, CURSOR, TASK.replace(epoch=4), batches_then(batch(100, 110)))
    assert await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 10))) == WriteResult(
        rows=10, duplicates=10
    )
    assert await stored_numbers(out, "out.rows") == list(range(100, 110))


async def test_cursor_is_exact_after_the_duplicate_window(
    nats_client: Client, jetstream: JetStream, out: Stream
) -> None:
    await out.update(duplicate_window=0.1)
    with pytest.raises(ZeroDivisionError):
        await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 10), fail=True))
    await window_over(jetstream, "out.other")
    await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 25)))
    assert await stored_numbers(out, "out.rows") == list(range(25))


async def test_attempts_that_race_store_every_row_once(nats_client: Client, out: Stream, seed: int) -> None:
    attempts = []
    chance = random.Random(seed)
    for _ in range(4):
        cuts = sorted(chance.sample(range(1, 60), 3))
        bounds = [0, *cuts, 60]
        parts = [batch(bounds[index], bounds[index + 1]) for index in range(4)]
        attempts.append(write_once(nats_client, CURSOR, TASK, batches_then(*parts)))
    done = await asyncio.gather(*attempts)
    assert [one.rows for one in done] == [60] * 4
    assert sum(one.rows - one.duplicates for one in done) == 60
    assert await stored_numbers(out, "out.rows") == list(range(60))


async def test_stream_keeps_one_message_of_each_cursor(nats_client: Client, out: Stream) -> None:
    await out.update(allow_rollup_hdrs=True)
    for partition in (1, 2):
        await write_once(nats_client, CURSOR, TASK.replace(partition=partition), batches_then(batch(0, 50)))
    found = (await out.info(subjects_filter="$CURSOR.>")).state.subjects
    assert found == {CURSORS: 1, "$CURSOR.OUT.spark-query-2": 1}
    assert await stored_numbers(out, "out.rows") == [*range(50)] * 2


async def test_cursors_have_a_subject_of_choice(nats_client: Client, jetstream: JetStream) -> None:
    out = await jetstream.create_stream("OUT", subjects=["out.>"], storage="memory", allow_atomic=True)
    how = settings(delivery="cursor", cursorSubject="out.cursors")
    for duplicates in (0, 20):
        assert (await write_once(nats_client, how, TASK, batches_then(batch(0, 20)))).duplicates == duplicates
    assert (await out.info(subjects_filter="out.cursors.>")).state.subjects == {"out.cursors.spark-query-1": 3}


async def test_a_cursor_of_another_program_is_not_overlooked(
    nats_client: Client, jetstream: JetStream, out: Stream
) -> None:
    await jetstream.publish(CURSORS, b"hello")
    with pytest.raises(InvalidReply, match="holds another message"):
        await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 5)))
    await out.purge(subject=CURSORS)
    other = await jetstream.cursor("OUT", "spark-query-1")
    async with other.advance(to=7):
        pass
    with pytest.raises(InvalidReply, match="must be that of Spark's sink"):
        await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 5)))
    assert await stored_numbers(out, "out.rows") == []


async def test_stream_that_went_back_gets_the_rows_again(
    nats_client: Client, jetstream: JetStream, out: Stream
) -> None:
    """As after a power failure: the newest messages are gone, and the cursor among them."""
    moved = asyncio.Event()

    async def with_a_loss() -> AsyncIterator[pa.RecordBatch]:
        yield batch(0, 7)
        yield batch(7, 14)
        await out.purge(subject=CURSORS, keep=1)
        seqs = [message.seq async for message in out.get_batch()]
        for seq in seqs[8:]:
            await out.delete_message(seq)
        cursor = await jetstream.cursor("OUT", "spark-query-1")
        async with cursor.advance(to=b"[3, 7, %d]" % (await digest(7))):
            pass
        moved.set()
        yield batch(14, 20)

    async def digest(count: int) -> int:
        from natsproto.spark._task import MessageColumns

        return MessageColumns(["out.rows"] * count, [b"%d" % one for one in range(count)], (), ()).digest(0)

    with pytest.raises(CursorMoved):
        await write_once(nats_client, CURSOR, TASK, with_a_loss())
    assert moved.is_set()
    await write_once(nats_client, CURSOR, TASK, batches_then(batch(0, 20)))
    assert set(await stored_numbers(out, "out.rows")) >= set(range(14, 20))


async def test_ids_of_the_rows_win_over_those_of_the_task(nats_client: Client, out: Stream) -> None:
    named = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2", b"3"]), pa.array(["a", None, "a"])], names=["data", "msg_id"]
    )
    assert await write_once(nats_client, IDS, TASK, batches_then(named)) == WriteResult(rows=3, duplicates=1)
    assert (await out.get_message(1)).headers["Nats-Msg-Id"] == "a"


async def test_headers_are_published(nats_client: Client, out: Stream) -> None:
    headers = pa.array([[("Tag", ["a", "b"])], None], pa.map_(pa.string(), pa.list_(pa.string())))
    both = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), headers], names=["data", "headers"])
    for how in (IDS, CURSOR, NONE):
        await write_once(nats_client, how, TASK, batches_then(both))
    found = [message.headers.get_all("Tag") async for message in out.get_batch(subject="out.rows")]
    assert found == [["a", "b"], []] * 3


async def test_a_subject_of_no_row_of_the_stream_is_refused(nats_client: Client, out: Stream) -> None:
    how = SinkOptions.read({name: value for name, value in BASE.items() if name != "subject"})
    stray = pa.RecordBatch.from_arrays(
        [pa.array(["out.a", "elsewhere"]), pa.array([b"", b""])], names=["subject", "data"]
    )
    with pytest.raises(ConfigError, match=r"elsewhere.*is not a subject of stream OUT"):
        await write_once(nats_client, how, TASK, batches_then(stray))
    assert (await out.info()).state.messages == 0


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"retention": "workqueue"}, {"delivery": "cursor"}, "consumers that remove the cursor"),
        ({"allow_atomic": False}, {"delivery": "cursor"}, "has no atomic batches"),
        ({}, {"delivery": "cursor", "cursorSubject": "p"}, "does not listen on 'p.spark-check'"),
        ({"subjects": ["out.>"]}, {"delivery": "cursor"}, "add this subject"),
        ({}, {"subject": "elsewhere"}, "is not a subject of stream OUT"),
        ({"no_ack": True}, {}, "acknowledges no message"),
    ],
)
async def test_stream_without_the_guarantee_is_refused(
    nats_client: Client, jetstream: JetStream, changes: dict[str, object], options: dict[str, str], words: str
) -> None:
    config = {"name": "OUT", "subjects": ["out.>", "$CURSOR.OUT.>"], "storage": "memory", "allow_atomic": True}
    stream = await jetstream.create_stream(**{**config, **changes})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        await write_once(nats_client, settings(**options), TASK, batches_then(batch(0, 5)))
    assert (await stream.info()).state.messages == 0


# ---------------------------------------------------------------- rows in another order


def letters(text: str, *, ids: bool = False) -> pa.RecordBatch:
    columns = {"data": pa.array(list(text.encode()), pa.uint8()).cast(pa.string()).cast(pa.binary())}
    if ids:
        columns["msg_id"] = pa.array(list(text))
    return pa.RecordBatch.from_pydict(columns)


async def texts(stream: Stream) -> str:
    return "".join(
        chr(int(message.data)) for message in [found async for found in stream.get_batch(subject="out.rows")]
    )


async def test_rows_in_another_order_are_refused_without_ids(nats_client: Client, out: Stream) -> None:
    """a b c are stored, and the retry gives f e d c b a: by number, d e f would be taken for a b c."""
    unstable = settings(stableOrder="false")
    with pytest.raises(ConfigError, match="add a column msg_id"):
        await write_once(nats_client, unstable, TASK, batches_then(letters("abc")))
    assert await texts(out) == ""
    await write_once(nats_client, unstable, TASK, batches_then(letters("abc", ids=True)))
    await write_once(nats_client, unstable, TASK, batches_then(letters("fedcba", ids=True)))
    assert await texts(out) == "abcfed"


async def test_row_without_an_id_is_named(nats_client: Client, out: Stream) -> None:
    named = pa.RecordBatch.from_pydict({"data": [b"1", b"2"], "msg_id": pa.array(["a", None])})
    with pytest.raises(ConfigError, match="row 1 of its partition has none"):
        await write_once(nats_client, settings(stableOrder="false"), TASK, batches_then(named))
    assert await stored_numbers(out, "out.rows") == []


@pytest.mark.parametrize("again", ["fedcba", "abd", "ab", "", "abXcdefghij"])
async def test_cursors_tell_rows_in_another_order(nats_client: Client, out: Stream, again: str) -> None:
    await write_once(nats_client, CURSOR, TASK, batches_then(letters("abc")))
    with pytest.raises(ConfigError, match=r"stableOrder.*does not hold"):
        await write_once(nats_client, CURSOR, TASK, batches_then(letters(again)))
    assert await texts(out) == "abc"
    await write_once(nats_client, CURSOR, TASK, batches_then(letters("ab"), letters("cdefghijklm")))
    assert await texts(out) == "abcdefghijklm"


def test_rows_without_ids_are_refused_on_the_driver() -> None:
    unstable = settings(stableOrder="false")
    with pytest.raises(ConfigError, match="stableOrder=true"):
        check_ids(["data"], unstable)
    with pytest.raises(ConfigError, match="a cursor counts rows"):
        check_ids(["data", "msg_id"], CURSOR.replace(stable_order=False))
    check_ids(["data", "msg_id"], unstable)
    check_ids(["data"], unstable.replace(delivery="none"))
    check_ids(["data"], CURSOR)


# ---------------------------------------------------------------- behind the duplicate window


def batch_with_ids(*numbers: int) -> pa.RecordBatch:
    ids = pa.array([f"id-{number}" for number in numbers])
    return pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers]), ids], names=["data", "msg_id"])


def again(seconds: float = 0.0) -> WriteTask:
    """The task, repeated so many seconds after it was planned first."""
    return TASK.replace(is_repeated=True, since=time.time() - seconds)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_a_repetition_behind_the_window_is_refused(
    nats_client: Client, jetstream: JetStream, retention: RetentionPolicy
) -> None:
    """Whatever of it is stored: the first row may be that of another one."""
    out = await jetstream.create_stream("OUT", subjects=["out.>"], storage="memory", retention=retention)
    await out.create_consumer("all")
    await write_once(nats_client, IDS, TASK, batches_then(batch(0, 10)))
    with pytest.raises(ConfigError, match=r"duplicate_window of stream OUT 120.*planned first.*duplicates=allow"):
        await write_once(nats_client, IDS, again(119.5), batches_then(batch(0, 25)))
    assert (await out.info()).state.last_seq == 10
    assert await write_once(nats_client, IDS, again(60), batches_then(batch(0, 25))) == WriteResult(
        rows=25, duplicates=10
    )


async def test_repetition_behind_the_window_can_be_allowed(
    nats_client: Client, jetstream: JetStream, out: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await out.update(duplicate_window=0.1)
    await write_once(nats_client, IDS, TASK, batches_then(batch(0, 5)))
    await window_over(jetstream, "out.other")
    await write_once(nats_client, settings(duplicates="allow"), again(5), batches_then(batch(0, 7)))
    assert await stored_numbers(out, "out.rows") == [*range(5), *range(7)]
    assert "are stored twice" in caplog.text


async def test_repetition_of_what_never_began_is_stored(nats_client: Client, jetstream: JetStream) -> None:
    """The stream has got no message since the plan: the first attempt has stored nothing."""
    out = await jetstream.create_stream("OUT", subjects=["out.>"], storage="memory", duplicate_window=0.1)
    assert (await write_once(nats_client, IDS, again(3600), batches_then(batch(0, 5)))).duplicates == 0
    assert await stored_numbers(out, "out.rows") == [*range(5)]


async def test_window_ends_among_stored_rows(nats_client: Client, out: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes while the repetition meets the rows of the first attempt; among new rows it does not matter."""
    clock = time.time()
    monkeypatch.setattr(time, "time", lambda: clock)

    async def slowly(*batches: pa.RecordBatch) -> AsyncIterator[pa.RecordBatch]:
        nonlocal clock
        for one in batches:
            yield one
            clock += 70

    how = settings(maxPending="5")
    await write_once(nats_client, how, TASK, batches_then(batch(0, 20)))
    with pytest.raises(ConfigError, match="repeated 140 s after"):
        await write_once(nats_client, how, again(), slowly(batch(0, 10), batch(10, 20), batch(20, 30)))
    clock = time.time()
    done = await write_once(
        nats_client, how, again(), slowly(batch(0, 20), batch(20, 30), batch(30, 40), batch(40, 50))
    )
    assert done == WriteResult(rows=50, duplicates=20)
    assert await stored_numbers(out, "out.rows") == [*range(50)]


async def test_ids_show_neither_their_task_nor_the_next_ones(nats_client: Client, out: Stream) -> None:
    """Whoever could guess an id would store a message with it first, and the row would count as its duplicate."""
    others = [TASK, TASK.replace(epoch=4), TASK.replace(partition=2), TASK.replace(owner="other")]
    for task in others:
        await write_once(nats_client, IDS, task, batches_then(batch(0, 1200), batch(1200, 2500)))
    ids = [message.headers["Nats-Msg-Id"] async for message in out.get_batch()]
    assert len(set(ids)) == 4 * 2500
    assert {len(one) for one in ids} == {24}
    assert not any("query" in one or "other" in one for one in ids)


async def test_headers_of_rows_stay_as_they_are(nats_client: Client, out: Stream) -> None:
    headers = pa.array([[("Tag", "a")]], pa.map_(pa.string(), pa.string()))
    row = pa.RecordBatch.from_arrays([pa.array([b"1"]), headers, pa.array(["id"])], names=["data", "headers", "msg_id"])
    await write_once(nats_client, IDS, TASK, batches_then(row))
    assert [*(await out.get_message(1)).headers.pairs()] == [("Tag", "a"), ("Nats-Msg-Id", "id")]


async def test_a_stream_that_is_not_there_is_named(nats_client: Client) -> None:
    with pytest.raises(StreamNotFound):
        await check_target(nats_client, IDS)


@pytest.mark.parametrize("value", [7, b"", b"{}", b"[]", b'[3, "x", 1]', b"[1, 2]", b"\xff"])
def test_the_value_of_another_cursor_is_refused(value: int | bytes) -> None:
    with pytest.raises(InvalidReply):
        CursorProgress.read(value, "$CURSOR.OUT.x")


def test_a_cursor_says_how_much_of_an_epoch_is_stored() -> None:
    found = CursorProgress.read(b"[5, 40, 1]", "")
    assert [found.rows_of(epoch) for epoch in (4, 5, 6)] == [None, 40, 0]
    assert CursorProgress.read(None, "").rows_of(0) == 0
