"""A row that cannot be a message fails a job, is dropped, or becomes a dead letter, and is counted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from natsproto._client import Client
from natsproto.errors import ConfigError, InvalidHeader, InvalidSubject, NatsError, PayloadTooLarge
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.retry import DeadLetter
from natsproto.spark import SparkNats, publish_partition
from natsproto.spark._options import SinkOptions
from natsproto.spark._sink import WriteCommit, _report
from natsproto.spark._task import WriteResult, WriteTask
from natsproto.spark._writer import check_target, write_messages
from natsproto.testing import Server
from tests.kit.contents import payloads

LISTS = pa.map_(pa.string(), pa.list_(pa.string()))
BASE = {"servers": "nats://127.0.0.1:4222", "stream": "OUT", "stableOrder": "true"}
DEAD = {"badRows": "deadletter", "deadLetterSubject": "out.dead"}
WAYS = [{"delivery": "ids"}, {"delivery": "cursor", "cursorSubject": "out.progress"}, {"delivery": "none"}]
BAD: list[tuple[dict[str, Any], type[NatsError]]] = [
    ({"headers": [("Kéy", ["v"]), ("Kept", ["yes"])]}, InvalidHeader),
    ({"headers": [("Key", ["a\r\nNats-Rollup: all"])]}, InvalidHeader),
    ({"headers": [("A key", ["v"])]}, InvalidHeader),
    ({"msg_id": "a\nb"}, InvalidHeader),
    ({"data": bytes(2 * 1024 * 1024)}, PayloadTooLarge),
    ({"headers": [("Long", ["x" * 2 * 1024 * 1024])]}, PayloadTooLarge),
    ({"subject": "out.a b"}, InvalidSubject),
    ({"subject": "out.*"}, InvalidSubject),
    ({"subject": "elsewhere"}, ConfigError),
    ({"subject": None}, ConfigError),
]
WORSE: list[tuple[dict[str, Any], type[NatsError]]] = [
    ({"subject": "out.a\r\nPUB x 0"}, InvalidSubject),
    ({"subject": "out.a\nb"}, InvalidSubject),
    ({"subject": "out.a\0b"}, InvalidSubject),
    ({"subject": "out." + "x" * 4000}, InvalidSubject),
    ({"subject": "out." + "x" * 2 * 1024 * 1024}, InvalidSubject),
    ({"msg_id": "x" * 2 * 1024 * 1024}, PayloadTooLarge),
]
"""Rows of which a dead letter cannot carry the subject or the id as it is."""


@pytest.fixture
async def out(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream("OUT", subjects=["out.>"], storage="memory", allow_atomic=True)


def settings(**options: str) -> SinkOptions:
    return SinkOptions.read({**BASE, **options})


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {"subject": f"out.{number}", "data": b"%d" % number, "headers": None, "msg_id": f"id-{number}", **fields}


async def row_batches(rows: list[dict[str, Any]], size: int = 3) -> AsyncIterator[pa.RecordBatch]:
    kinds = {"subject": pa.string(), "data": pa.binary(), "headers": LISTS, "msg_id": pa.string()}
    for begin in range(0, len(rows), size):
        columns = [pa.array([one[name] for one in rows[begin : begin + size]], kind) for name, kind in kinds.items()]
        yield pa.RecordBatch.from_arrays(columns, names=list(kinds))


async def write_rows(client: Client, how: SinkOptions, rows: list[dict[str, Any]]) -> WriteResult:
    task = WriteTask(owner="query", epoch=3, partition=1)
    (done,) = [done async for done in write_messages(client, how, task, row_batches(rows))]
    return done


ROWS = [row(0), *[row(number, **bad) for number, (bad, _) in enumerate(BAD, 1)], row(99)]
COUNTS = {"InvalidHeader": 4, "PayloadTooLarge": 2, "InvalidSubject": 2, "ConfigError": 2}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["delivery"])
@pytest.mark.parametrize("number", range(len(BAD)))
async def test_bad_row_fails_a_task(nats_client: Client, out: Stream, way: dict[str, str], number: int) -> None:
    bad, error = BAD[number]
    with pytest.raises(NatsError) as caught:
        await write_rows(nats_client, settings(**way), [row(0), row(1, **bad)])
    while caught.value.__cause__ is not None and not isinstance(caught.value, error):
        raise caught.value.__cause__
    assert isinstance(caught.value, error), caught.value


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["delivery"])
async def test_bad_rows_are_dropped(nats_client: Client, out: Stream, way: dict[str, str]) -> None:
    done = await write_rows(nats_client, settings(**way, badRows="drop"), ROWS)
    assert (done.rows, done.duplicates, done.bad_rows) == (2, 0, COUNTS)
    assert (await payloads(out, "out.0"), await payloads(out, "out.99")) == ([b"0"], [b"99"])
    if way["delivery"] != "none":
        again = await write_rows(nats_client, settings(**way, badRows="drop"), ROWS)
        assert (again.rows, again.duplicates, again.bad_rows) == (2, 2, COUNTS)
    assert await payloads(out, "out.99") == [b"99"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["delivery"])
async def test_bad_rows_become_dead_letters(nats_client: Client, out: Stream, way: dict[str, str]) -> None:
    for again in range(2 if way["delivery"] != "none" else 1):
        done = await write_rows(nats_client, settings(**way, **DEAD), ROWS)
        assert (done.rows, bool(done.duplicates), done.bad_rows) == (2, bool(again), COUNTS)
    letters = [DeadLetter.of(message) async for message in out.get_batch(subject="out.dead")]
    assert [letter.error_type.rpartition(".")[2] for letter in letters] == [error.__name__ for _, error in BAD]
    assert [letter.subject for letter in letters[:7]] == [f"out.{number}" for number in range(1, 7)] + ["out.a b"]
    assert letters[0].left_out == "1 headers"
    assert dict(letters[0].headers) == {"Kept": "yes"}
    assert [letter.left_out for letter in letters[3:6]] == ["", "headers and payload of 2097152 bytes", "headers"]
    assert [letter.data for letter in letters[5:7]] == [b"6", b"7"]
    assert {letter.stream for letter in letters} == {"OUT"}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["delivery"])
async def test_no_bad_subject_or_id_fails_a_task(nats_client: Client, out: Stream, way: dict[str, str]) -> None:
    rows = [row(0), *[row(number, **bad) for number, (bad, _) in enumerate(WORSE, 1)], row(99)]
    counts = {"InvalidSubject": 5, "PayloadTooLarge": 1}
    done = await write_rows(nats_client, settings(**way, **DEAD), rows)
    assert (done.rows, done.duplicates, done.bad_rows) == (2, 0, counts)
    letters = [DeadLetter.of(message) async for message in out.get_batch(subject="out.dead")]
    assert [letter.error_type.rpartition(".")[2] for letter in letters] == [error.__name__ for _, error in WORSE]
    cut = "out." + "x" * 252 + "..."  # an empty token: a replay refuses it
    assert [letter.subject for letter in letters] == ["out.a PUB x 0", "out.a b", "out.a b", cut, cut, "out.6"]
    assert [letter.data for letter in letters] == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("policy", ["drop", "deadletter"])
async def test_larger_limit_loses_no_row_of_a_retry(
    nats_client: Client, jetstream: JetStream, out: Stream, policy: str
) -> None:
    """An id is the number of a row among all, and a dead letter leaves its row's id to it."""
    how = settings(**(DEAD if policy == "deadletter" else {"badRows": "drop"}))
    rows = [row(number, msg_id=None, data=b"%d" % number * size) for number, size in enumerate((1, 3000, 1, 1))]
    await jetstream.update_stream("OUT", max_msg_size=1000)
    done = await write_rows(nats_client, how, rows)
    assert (done.rows, done.duplicates, done.bad_rows) == (3, 0, {"PayloadTooLarge": 1})
    await jetstream.update_stream("OUT", max_msg_size=10_000)
    done = await write_rows(nats_client, how, rows)
    assert (done.rows, done.duplicates, done.bad_rows) == (4, 3, {})
    assert [(await payloads(out, f"out.{number}")) for number in range(4)] == [[one["data"]] for one in rows]
    assert len(await payloads(out, "out.dead")) == (policy == "deadletter")


async def test_row_as_large_as_allowed_is_stored(nats_client: Client, jetstream: JetStream) -> None:
    """Neither a byte too early nor one too late, by the limit of the server or of the stream."""
    for limit in (nats_client.max_payload, 5000):
        stream = await jetstream.create_stream("OUT", subjects=["out.>"], storage="memory", max_msg_size=limit)
        id_bytes = len("NATS/1.0\r\nNats-Msg-Id: id-1\r\n\r\n")
        for own, cut in ((None, 0), ("id-1", id_bytes)):
            how = settings(delivery="none", badRows="drop")
            rows = [row(number, msg_id=own, data=bytes(limit - cut + number)) for number in (0, 1)]
            assert (await write_rows(nats_client, how, rows)).bad_rows == {"PayloadTooLarge": 1}
        made = len("NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") + 24
        rows = [row(number, msg_id=None, data=bytes(limit - made + number)) for number in (0, 1)]
        assert (await write_rows(nats_client, settings(badRows="drop"), rows)).bad_rows == {"PayloadTooLarge": 1}
        assert (await stream.info()).state.messages == 3
        await jetstream.delete_stream("OUT")


async def test_publish_partition_counts_bad_rows(
    nats_server: Server, out: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Subjects that no stream has fail by themselves: the helper knows no stream."""
    config, rows = SparkNats(servers=nats_server.url), ROWS[:9] + ROWS[-1:]
    given = [{**one, "headers": dict(one["headers"] or {})} for one in rows]
    with pytest.raises(NatsError):
        publish_partition(config, write_id="w", stable_order=True)(given)
    publish = publish_partition(config, write_id="w", bad_rows="drop")
    with caplog.at_level(logging.WARNING, "natsproto.spark"):
        (done,) = publish(given)
    assert (done.rows, done.bad_rows) == (2, {"InvalidHeader": 4, "PayloadTooLarge": 2, "InvalidSubject": 2})
    assert "8 rows that cannot be messages were dropped: InvalidHeader (4), " in caplog.text
    (done,) = publish_partition(config, write_id="w", bad_rows="deadletter", dead_letter_subject="out.dead")(given)
    assert (done.rows, sum(done.bad_rows.values())) == (2, 8)
    assert len([message async for message in out.get_batch(subject="out.dead")]) == 8


async def test_bad_keys_of_a_bucket_are_dropped(nats_client: Client, jetstream: JetStream) -> None:
    bucket = await jetstream.create_key_value("prices")
    how = SinkOptions.read({"servers": BASE["servers"], "bucket": "prices", "badRows": "drop"})

    async def given() -> AsyncIterator[pa.RecordBatch]:
        keys, values = pa.array(["a", "b c", None, "d"]), pa.array([b"1", b"2", b"3", None])
        yield pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])

    task = WriteTask(owner="query", epoch=3, partition=1)
    (done,) = [done async for done in write_messages(nats_client, how, task, given())]
    assert (done.rows, done.bad_rows) == (2, {"InvalidSubject": 2})
    assert (await bucket.get("a")).value == b"1"


def test_log_counts_bad_rows(caplog: pytest.LogCaptureFixture) -> None:
    commits = [WriteCommit(3, 0, {}, {"InvalidHeader": 2}), None, WriteCommit(4, 0, {}, {"InvalidHeader": 1})]
    _report("write", settings(**DEAD), commits)
    assert "write: 3 rows that cannot be messages were stored as dead letters: InvalidHeader (3)" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"badRows": "ignore"},
        {"badRows": "deadletter"},
        {"deadLetterSubject": "out.dead"},
        {"badRows": "drop", "deadLetterSubject": "out.dead"},
        {"badRows": "deadletter", "deadLetterSubject": "out.*"},
    ],
    ids=str,
)
def test_options_of_bad_rows_are_checked(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        settings(**options)
    names = {"badRows": "bad_rows", "deadLetterSubject": "dead_letter_subject"}
    arguments: dict[str, Any] = {names[name]: value for name, value in options.items()}
    with pytest.raises(ConfigError):
        publish_partition(SparkNats(), write_id="w", **arguments)


async def test_dead_letters_of_a_batch_stay_in_its_stream(nats_client: Client, out: Stream) -> None:
    how = settings(delivery="cursor", cursorSubject="out.progress", badRows="deadletter", deadLetterSubject="dead.a")
    with pytest.raises(ConfigError, match=r"deadLetterSubject.*is not a subject of stream OUT"):
        await check_target(nats_client, how)
