"""A task of a sink may run twice, at once or much later: its rows are stored once. On a real server, without Spark."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import natsproto
from natsproto._client import Client
from natsproto.errors import ConfigError, InvalidReply, StreamNotFound
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.spark._id_writer import ROWS_AT_A_TIME
from natsproto.spark._marked_batches import Marker
from natsproto.spark._options import SinkOptions
from natsproto.spark._stored_rows import _LAST, StoredRows, look_up
from natsproto.spark._task import WriteResult, WriteTask
from natsproto.spark._writer import check_ids, check_target, write_messages
from natsproto.testing import Server, run_server
from tests.faults.helpers import monitoring

BASE = {"servers": "nats://127.0.0.1:4222", "stream": "OUT", "subject": "out.rows", "stableOrder": "true"}
TASK = WriteTask(owner="query", epoch=3, partition=1)


def settings(**options: str) -> SinkOptions:
    return SinkOptions.read({**BASE, **options})


MSG_ID = settings()
ATOMIC = settings(exactlyOnce="atomic", progressSubject="out.progress", atomicBatchRows="7")
NONE = settings(exactlyOnce="none")


@pytest.fixture
async def out(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(name="OUT", subjects=["out.>"], storage="memory", allow_atomic=True)


def batch(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in range(first, last)])], names=["data"])


async def rows(*batches: pa.RecordBatch, fail: bool = False) -> AsyncIterator[pa.RecordBatch]:
    for one in batches:
        await asyncio.sleep(0)
        yield one
    if fail:
        raise ZeroDivisionError


async def run(client: Client, how: SinkOptions, task: WriteTask, batches: AsyncIterator[pa.RecordBatch]) -> WriteResult:
    (done,) = [done async for done in write_messages(client, how, task, batches)]
    return done


async def stored(stream: Stream) -> list[int]:
    return [int(message.data) async for message in stream.get_batch(subject="out.rows")]


@pytest.mark.parametrize("how", [MSG_ID, settings(maxPending="1"), ATOMIC])
async def test_a_task_that_runs_again_stores_nothing_new(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    assert await run(nats_client, how, TASK, rows(batch(0, 10), batch(10, 25))) == WriteResult(rows=25, duplicates=0)
    parts = [batch(first, first + 5) for first in range(0, 25, 5)]
    assert await run(nats_client, how, TASK, rows(*parts)) == WriteResult(rows=25, duplicates=25)
    assert await stored(out) == list(range(25))


@pytest.mark.parametrize("how", [MSG_ID, ATOMIC])
async def test_a_task_that_died_half_way_is_completed(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    with pytest.raises(ZeroDivisionError):
        await run(nats_client, how, TASK, rows(batch(0, 10), fail=True))
    done = await run(nats_client, how, TASK, rows(batch(0, 13), batch(13, 25)))
    assert (done.rows, done.duplicates > 0) == (25, True)
    assert await stored(out) == list(range(25))


@pytest.mark.parametrize("how", [MSG_ID, ATOMIC])
async def test_ids_differ_by_query_epoch_and_partition(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    others = [TASK, TASK.replace(epoch=4), TASK.replace(partition=2), TASK.replace(owner="other")]
    for task in others:
        assert (await run(nats_client, how, task, rows(batch(0, 9)))).duplicates == 0
    assert await stored(out) == [*range(9)] * 4


async def test_without_a_guarantee_rows_are_stored_again(nats_client: Client, out: Stream) -> None:
    for _ in range(2):
        assert await run(nats_client, NONE, TASK, rows(batch(0, 5))) == WriteResult(rows=5, duplicates=0)
    assert await stored(out) == [*range(5)] * 2


@pytest.mark.parametrize("how", [MSG_ID, NONE])
async def test_batch_of_many_pieces_is_stored_in_order(nats_client: Client, out: Stream, how: SinkOptions) -> None:
    count = 2 * ROWS_AT_A_TIME + 7
    for again in range(2):
        duplicates = count if again and how is MSG_ID else 0
        done = await run(nats_client, how, TASK, rows(batch(0, count), batch(0, 0)))
        assert done == WriteResult(rows=count, duplicates=duplicates)
    assert await stored(out) == [*range(count)] * (1 if how is MSG_ID else 2)


async def test_an_epoch_that_was_overtaken_stores_nothing(nats_client: Client, out: Stream) -> None:
    await run(nats_client, ATOMIC, TASK.replace(epoch=4), rows(batch(100, 110)))
    assert await run(nats_client, ATOMIC, TASK, rows(batch(0, 10))) == WriteResult(rows=10, duplicates=10)
    assert await stored(out) == list(range(100, 110))


async def test_atomic_is_exact_after_the_duplicate_window(
    nats_client: Client, jetstream: JetStream, out: Stream
) -> None:
    await out.update(duplicate_window=0.1)
    with pytest.raises(ZeroDivisionError):
        await run(nats_client, ATOMIC, TASK, rows(batch(0, 10), fail=True))
    await window_over(jetstream)
    await run(nats_client, ATOMIC, TASK, rows(batch(0, 25)))
    assert await stored(out) == list(range(25))


async def test_attempts_that_race_store_every_row_once(nats_client: Client, out: Stream, seed: int) -> None:
    attempts = []
    chance = random.Random(seed)
    for _ in range(4):
        cuts = sorted(chance.sample(range(1, 60), 3))
        bounds = [0, *cuts, 60]
        parts = [batch(bounds[index], bounds[index + 1]) for index in range(4)]
        attempts.append(run(nats_client, ATOMIC, TASK, rows(*parts)))
    done = await asyncio.gather(*attempts)
    assert [one.rows for one in done] == [60] * 4
    assert sum(one.rows - one.duplicates for one in done) == 60
    assert await stored(out) == list(range(60))


async def test_marker_replaces_marker_with_rollup(nats_client: Client, out: Stream) -> None:
    await out.update(allow_rollup_hdrs=True)
    await run(nats_client, ATOMIC, TASK, rows(batch(0, 50)))
    assert (await out.info(subjects_filter="out.progress.>")).state.subjects == {"out.progress.query.1": 1}
    assert await stored(out) == list(range(50))


async def test_markers_are_purged_by_their_subject(nats_client: Client, out: Stream) -> None:
    await run(nats_client, ATOMIC, TASK, rows(batch(0, 20)))
    assert (await out.info(subjects_filter="out.progress.>")).state.subjects
    await out.purge(subject="out.progress.query.>")  # as the guide says, when a query has ended
    assert not (await out.info(subjects_filter="out.progress.>")).state.subjects
    assert await stored(out) == list(range(20))


async def test_a_marker_that_is_none_is_not_overlooked(nats_client: Client, jetstream: JetStream, out: Stream) -> None:
    await jetstream.publish("out.progress.query.1", b"hello")
    with pytest.raises(InvalidReply, match="only their writer may publish on the subject of markers"):
        await run(nats_client, ATOMIC, TASK, rows(batch(0, 5)))
    assert await stored(out) == []


async def test_ids_of_the_rows_win_over_those_of_the_task(nats_client: Client, out: Stream) -> None:
    named = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2", b"3"]), pa.array(["a", None, "a"])], names=["data", "msg_id"]
    )
    assert await run(nats_client, MSG_ID, TASK, rows(named)) == WriteResult(rows=3, duplicates=1)
    assert [message.headers["Nats-Msg-Id"] async for message in out.get_batch()] == ["a", "query.3.1.1"]


async def test_headers_are_published(nats_client: Client, out: Stream) -> None:
    headers = pa.array([[("Tag", ["a", "b"])], None], pa.map_(pa.string(), pa.list_(pa.string())))
    both = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), headers], names=["data", "headers"])
    for how in (MSG_ID, ATOMIC, NONE):
        await run(nats_client, how, TASK, rows(both))
    found = [message.headers.get_all("Tag") async for message in out.get_batch(subject="out.rows")]
    assert found == [["a", "b"], []] * 3


async def test_a_subject_of_no_row_of_the_stream_is_refused(nats_client: Client, out: Stream) -> None:
    how = SinkOptions.read({name: value for name, value in BASE.items() if name != "subject"})
    stray = pa.RecordBatch.from_arrays(
        [pa.array(["out.a", "elsewhere"]), pa.array([b"", b""])], names=["subject", "data"]
    )
    with pytest.raises(ConfigError, match=r"elsewhere.*is not a subject of stream OUT"):
        await run(nats_client, how, TASK, rows(stray))
    assert (await out.info()).state.messages == 0


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"retention": "workqueue"}, {}, "at least 900 s: .*with retention workqueue"),
        (
            {"retention": "interest", "duplicate_window": 60},
            {"recoveryWindow": "60.5"},
            "duplicate_window of stream OUT 60.0: must be at least 60.5 s",
        ),
        ({"retention": "interest"}, {"exactlyOnce": "atomic", "progressSubject": "out.p"}, "keeps no markers"),
        ({"allow_atomic": False}, {"exactlyOnce": "atomic", "progressSubject": "out.p"}, "takes no atomic batches"),
        ({}, {"exactlyOnce": "atomic", "progressSubject": "p"}, "is not a subject of stream OUT"),
        ({}, {"subject": "elsewhere"}, "is not a subject of stream OUT"),
        ({"no_ack": True}, {}, "acknowledges no message"),
    ],
)
async def test_stream_without_the_guarantee_is_refused(
    nats_client: Client, jetstream: JetStream, changes: dict[str, object], options: dict[str, str], words: str
) -> None:
    config = {"name": "OUT", "subjects": ["out.>"], "storage": "memory", "allow_atomic": True, **changes}
    stream = await jetstream.create_stream(**config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        await run(nats_client, settings(**options), TASK, rows(batch(0, 5)))
    assert (await stream.info()).state.messages == 0


@pytest.mark.parametrize("options", [{"exactlyOnce": "none"}, {"recoveryWindow": "60"}])
async def test_recovery_window_may_be_short(nats_client: Client, jetstream: JetStream, options: dict[str, str]) -> None:
    await jetstream.create_stream(
        name="OUT", subjects=["out.>"], storage="memory", retention="workqueue", duplicate_window=60
    )
    await check_target(nats_client, settings(**options))


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
        await run(nats_client, unstable, TASK, rows(letters("abc")))
    assert await texts(out) == ""
    await run(nats_client, unstable, TASK, rows(letters("abc", ids=True)))
    await run(nats_client, unstable, TASK, rows(letters("fedcba", ids=True)))
    assert await texts(out) == "abcfed"


async def test_row_without_an_id_is_named(nats_client: Client, out: Stream) -> None:
    named = pa.RecordBatch.from_pydict({"data": [b"1", b"2"], "msg_id": pa.array(["a", None])})
    with pytest.raises(ConfigError, match="row 1 of its partition has none"):
        await run(nats_client, settings(stableOrder="false"), TASK, rows(named))
    assert await stored(out) == []


@pytest.mark.parametrize("again", ["fedcba", "abd", "ab", "", "abXcdefghij"])
async def test_atomic_markers_tell_rows_in_another_order(nats_client: Client, out: Stream, again: str) -> None:
    await run(nats_client, ATOMIC, TASK, rows(letters("abc")))
    with pytest.raises(ConfigError, match=r"stableOrder.*does not hold"):
        await run(nats_client, ATOMIC, TASK, rows(letters(again)))
    assert await texts(out) == "abc"
    await run(nats_client, ATOMIC, TASK, rows(letters("ab"), letters("cdefghijklm")))
    assert await texts(out) == "abcdefghijklm"


def test_rows_without_ids_are_refused_on_the_driver() -> None:
    unstable = settings(stableOrder="false")
    with pytest.raises(ConfigError, match="stableOrder=true"):
        check_ids(["data"], unstable)
    with pytest.raises(ConfigError, match="markers count rows"):
        check_ids(["data", "msg_id"], ATOMIC.replace(stable_order=False))
    check_ids(["data", "msg_id"], unstable)
    check_ids(["data"], unstable.replace(exactly_once="none"))
    check_ids(["data"], ATOMIC)


# ---------------------------------------------------------------- behind the duplicate window


async def window_over(jetstream: JetStream) -> None:
    """Waits until the server has forgotten the ids that it knows."""
    await jetstream.publish("out.other", msg_id="known")
    while (await jetstream.publish("out.other", msg_id="known")).duplicate:  # noqa: ASYNC110  # only the server knows
        await asyncio.sleep(0.05)


def with_ids(*numbers: int) -> pa.RecordBatch:
    ids = pa.array([f"id-{number}" for number in numbers])
    return pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers]), ids], names=["data", "msg_id"])


_runs = count()


def again(**changes: object) -> WriteTask:
    """The task in a run of the query that was not there before."""
    return TASK.replace(run=f"run-{next(_runs)}", may_be_stored=True, **changes)


async def test_rows_older_than_the_window_are_looked_up(nats_client: Client, jetstream: JetStream, out: Stream) -> None:
    await out.update(duplicate_window=0.1)
    await run(nats_client, MSG_ID, TASK.replace(epoch=2), rows(batch(100, 103)))
    other = TASK.replace(partition=2)
    for task in (TASK, other):
        await run(nats_client, MSG_ID, task, rows(batch(0, 10)))
    await jetstream.publish("out.rows", b"-1", msg_id="of-somebody-else")
    await window_over(jetstream)
    task = again()
    assert await run(nats_client, MSG_ID, task, rows(batch(0, 13), batch(13, 25))) == WriteResult(
        rows=25, duplicates=10
    )
    done = await run(nats_client, MSG_ID, task.replace(partition=2), rows(batch(0, 25)))
    assert done == WriteResult(rows=25, duplicates=10)
    assert sorted(await stored(out)) == sorted([-1, 100, 101, 102, *range(25), *range(25)])


async def test_ids_older_than_the_window_are_looked_up(nats_client: Client, jetstream: JetStream, out: Stream) -> None:
    """They come in another order."""
    await out.update(duplicate_window=0.1)
    await run(nats_client, MSG_ID, TASK, rows(with_ids(1, 2, 3)))
    await window_over(jetstream)
    done = await run(nats_client, MSG_ID, again(), rows(with_ids(6, 5, 4), with_ids(3, 2, 1)))
    assert done == WriteResult(rows=6, duplicates=3)
    assert sorted(await stored(out)) == list(range(1, 7))


async def test_superseded_rows_are_not_stored_again(nats_client: Client, jetstream: JetStream, out: Stream) -> None:
    await out.update(duplicate_window=0.1, max_msgs_per_subject=1)
    await run(nats_client, MSG_ID, TASK, rows(batch(0, 5)))
    await window_over(jetstream)
    assert await run(nats_client, MSG_ID, again(), rows(batch(0, 5))) == WriteResult(rows=5, duplicates=5)
    assert await stored(out) == [4]


async def sent(server: Server) -> int:
    """Messages that the server has sent to clients."""
    return int(str((await monitoring(server, "/varz"))["out_msgs"]))


@pytest.mark.parametrize("named", [True, False])
async def test_look_up_ends_at_the_batch_before(
    nats_server: Server, nats_client: Client, jetstream: JetStream, out: Stream, named: bool
) -> None:
    """Of 21,000 messages, those of the last micro-batch and of others since; the ids are the rows' own, or not."""
    await out.update(duplicate_window=0.1)

    def of(first: int, last: int) -> pa.RecordBatch:
        return with_ids(*range(first, last)) if named else batch(first, last)

    await run(nats_client, MSG_ID, TASK.replace(epoch=2), rows(of(0, 20_000)))
    await run(nats_client, MSG_ID, TASK, rows(of(20_000, 20_600)))
    async with jetstream.publisher() as publisher:
        for number in range(400):
            await publisher.publish("out.rows", b"-1", msg_id=f"other-{number}")
    await window_over(jetstream)
    before = await sent(nats_server)
    done = await run(nats_client, MSG_ID, again(), rows(of(20_000, 20_610)))
    assert done == WriteResult(rows=610, duplicates=600)
    assert await sent(nats_server) - before < 1.5 * (600 + 400) + 100

    nothing_since = again().replace(epoch=4)
    before = await sent(nats_server)
    assert (await run(nats_client, MSG_ID, nothing_since, rows(of(30_000, 30_010)))).duplicates == 0
    assert await sent(nats_server) - before < 120


def results_in(folder: Path) -> int:
    return len([path for path in folder.iterdir() if not path.name.startswith("lock.")])


async def test_workers_of_a_machine_share_a_look_up(
    nats_server: Server, nats_client: Client, jetstream: JetStream, out: Stream, tmp_path: Path
) -> None:
    """The second one runs while the first one reads."""
    await out.update(duplicate_window=0.1, max_msgs_per_subject=50_000)
    await run(nats_client, MSG_ID, TASK, rows(batch(0, 30)))
    await run(nats_client, MSG_ID, TASK.replace(owner="other"), rows(with_ids(*range(30_000))))
    await window_over(jetstream)
    before = await sent(nats_server)
    task = again(folder=str(tmp_path))
    info = await out.info()

    async def of_another_worker() -> StoredRows:
        _LAST.clear()
        return await look_up(jetstream, info, task, recovery_window=900, remedy="")

    known = [f"{TASK.name}.29", "id-0", "id-29999"]
    for found in await asyncio.gather(of_another_worker(), of_another_worker()):
        assert found.known([*known, f"{TASK.name}.30", "id-30000"]) == set(known)
        assert found.is_replaced(task, f"{TASK.name}.28", "out.rows")
        assert not found.is_replaced(task, f"{TASK.name}.30", "out.rows")
    assert 30_000 < await sent(nats_server) - before < 31_000
    assert results_in(tmp_path) == 1
    _LAST.clear()
    await look_up(jetstream, info, task.replace(run="the next"), recovery_window=900, remedy="")
    assert results_in(tmp_path) == 1, "that of the run before is of no use"


async def test_look_up_without_a_folder_warns(
    jetstream: JetStream, out: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    task = again(folder=str(tmp_path / "file"))
    await jetstream.publish("out.rows", msg_id="a")
    found = await look_up(jetstream, await out.info(), task, recovery_window=900, remedy="")
    assert found.known(["a", "b"]) == {"a"}
    assert "their folder cannot be written" in caplog.text


async def test_look_up_does_without_locks(
    jetstream: JetStream, out: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that knows none."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("natsproto.spark._file_lock.flock", unsupported)
    await jetstream.publish("out.rows", msg_id="a")
    task = again(folder=str(tmp_path))
    assert (await look_up(jetstream, await out.info(), task, recovery_window=900, remedy="")).known(["a"]) == {"a"}


async def test_task_header_of_another_sink_goes_no_further(nats_client: Client, out: Stream) -> None:
    headers = pa.array([[("Spark-Task", "other.9.9"), ("Tag", "a")]], pa.map_(pa.string(), pa.string()))
    row = pa.RecordBatch.from_arrays([pa.array([b"1"]), headers, pa.array(["id"])], names=["data", "headers", "msg_id"])
    await run(nats_client, MSG_ID, TASK, rows(row))
    assert [list((await out.get_message(1)).headers.pairs())] == [
        [("Tag", "a"), ("Spark-Task", "query.3.1"), ("Nats-Msg-Id", "id")]
    ]


async def test_owner_of_any_text_is_found(nats_client: Client, jetstream: JetStream, out: Stream) -> None:
    await out.update(duplicate_window=0.1)
    owner = "nightly (copy) ü.*+"
    await run(nats_client, MSG_ID, TASK.replace(owner=owner, epoch=2), rows(with_ids(1)))
    await run(nats_client, MSG_ID, TASK.replace(owner=owner), rows(with_ids(2, 3)))
    await window_over(jetstream)
    done = await run(nats_client, MSG_ID, again(owner=owner), rows(with_ids(1, 2, 3)))
    assert done == WriteResult(rows=3, duplicates=2)  # 1 is of an earlier micro-batch, which cannot be repeated


async def test_look_up_ends_where_the_write_began(nats_client: Client, out: Stream) -> None:
    await run(nats_client, MSG_ID.replace(exactly_once="none"), TASK, rows(with_ids(1, 2)))
    await out.update(duplicate_window=0.1)
    last = (await out.info()).state.last_seq
    await window_over(nats_client.jetstream())
    retry = again(retry=True, after=last)
    assert await run(nats_client, MSG_ID, retry, rows(with_ids(1, 2))) == WriteResult(rows=2, duplicates=0)


async def test_work_queue_that_may_have_forgotten_is_refused(nats_client: Client, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(
        name="OUT", subjects=["out.>"], storage="memory", retention="workqueue", duplicate_window=0.1
    )
    how = settings(recoveryWindow="0.1")
    await run(nats_client, how, TASK, rows(batch(0, 10)))
    while True:
        info = await stream.info()
        assert info.state.last_ts is not None
        if (info.ts - info.state.last_ts).total_seconds() > 0.2:
            break
        await asyncio.sleep(0.02)
    with pytest.raises(ConfigError, match=r"already stored rows cannot be found.* exactlyOnce=none for this run"):
        await run(nats_client, how, again(), rows(batch(0, 25)))
    assert (await stream.info()).state.messages == 10


async def test_target_that_may_not_be_read_needs_the_window() -> None:
    allowed = 'publish: ["$JS.API.STREAM.INFO.>", "out.>"], subscribe: ["_INBOX.>"]'
    users = f"users: [{{user: boss, password: b}}, {{user: sink, password: s, permissions: {{ {allowed} }} }}]"
    async with (
        run_server(jetstream=True, config=f"authorization {{ {users} }}") as server,
        natsproto.connect(server.url, user="boss", password="b") as boss,
        natsproto.connect(server.url, user="sink", password="s") as client,
    ):
        await boss.jetstream().create_stream(name="OUT", subjects=["out.>"], storage="memory", duplicate_window=60)
        await boss.jetstream().publish("out.other")
        with pytest.raises(ConfigError, match="may not read"):
            await run(client, MSG_ID, again(), rows(batch(0, 5)))
        assert (await run(client, settings(recoveryWindow="60"), again(), rows(batch(0, 5)))).rows == 5


async def test_a_stream_that_is_not_there_is_named(nats_client: Client) -> None:
    with pytest.raises(StreamNotFound):
        await check_target(nats_client, MSG_ID)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"epoch": "x", "rows": 1}', b"\xff"])
def test_what_is_no_marker_is_no_marker(data: bytes) -> None:
    with pytest.raises(InvalidReply):
        Marker.read(1, data)


def test_a_marker_says_how_much_of_an_epoch_is_stored() -> None:
    marker = Marker.read(9, Marker(epoch=5, rows=40).data())
    assert [marker.rows_of(epoch) for epoch in (4, 5, 6)] == [None, 40, 0]
    assert Marker().rows_of(0) == 0
