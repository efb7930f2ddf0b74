"""Headers that the server obeys (``Nats-*``) are data in the columns of a row: no sink lets them through unasked."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest

from natsproto._client import Client
from natsproto.errors import ConfigError
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.spark import SparkNats, publish_partition
from natsproto.spark._options import SinkOptions
from natsproto.spark._task import WriteTask
from natsproto.spark._writer import write_messages
from natsproto.testing._server import Server

SERVER_HEADERS = {
    "Nats-Msg-Id": "same",
    "Nats-Expected-Stream": "ELSEWHERE",
    "Nats-Expected-Last-Sequence": "99",
    "Nats-Expected-Last-Subject-Sequence": "99",
    "Nats-Expected-Last-Subject-Sequence-Subject": "out.rows",
    "Nats-Expected-Last-Msg-Id": "none",
    "Nats-Rollup": "all",
    "nats-rollup": "sub",
    "Nats-TTL": "1s",
    "Nats-Marker-Reason": "MaxAge",
    "Nats-Incr": "+1",
    "Nats-Counter-Sources": "{}",
    "Nats-Schedule": "@at 2006-01-02T15:04:05Z",
    "Nats-Schedule-Target": "out.rows",
    "Nats-Schedule-Source": "out.rows",
    "Nats-Schedule-TTL": "1s",
    "Nats-Schedule-Time-Zone": "UTC",
    "Nats-Schedule-Rollup": "sub",
    "Nats-Scheduler": "out.rows",
    "Nats-Schedule-Next": "purge",
    "Nats-Batch-Id": "b",
    "Nats-Batch-Sequence": "999",
    "Nats-Batch-Commit": "1",
    "Nats-Required-Api-Level": "99",
    "Nats-Trace-Dest": "trace",
    "Nats-Trace-Only": "true",
    "Nats-Trace-Hop": "1",
    "Nats-Trace-Origin-Account": "A",
    "Nats-Stream-Source": "ORDERS 1",
    "Nats-Stream": "ORDERS",
    "Nats-Subject": "orders",
    "Nats-Sequence": "1",
    "Nats-Time-Stamp": "2006-01-02T15:04:05Z",
    "Nats-Last-Sequence": "1",
    "Nats-Num-Pending": "1",
    "Nats-UpTo-Sequence": "1",
    "Nats-Msg-Size": "1",
    "Nats-Last-Consumer": "1",
    "Nats-Last-Stream": "1",
    "Nats-Consumer-Stalled": "x",
    "Nats-Response-Type": "x",
    "Nats-Pin-Id": "x",
    "Nats-Pending-Messages": "1",
    "Nats-Pending-Bytes": "1",
    "Nats-Request-Info": "{}",
    "Nats-Service-Error": "x",
    "Nats-Service-Error-Code": "500",
}
HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))
BASE = {"servers": "nats://127.0.0.1:4222", "stream": "OUT", "subject": "out.rows", "stableOrder": "true"}
CURSOR = {"delivery": "cursor", "cursorSubject": "out.progress"}


@pytest.fixture
async def out(jetstream: JetStream) -> Stream:
    """A stream that allows all that such headers can ask for, with ten messages that must stay."""
    stream = await jetstream.create_stream(
        name="OUT",
        subjects=["out.>"],
        storage="memory",
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        allow_msg_schedules=True,
        allow_atomic=True,
    )
    for _ in range(10):
        await jetstream.publish("out.old", b"old")
    return stream


def header_rows() -> list[dict[str, Any]]:
    return [{"data": name, "headers": {name: [value], "Kept": ["yes"]}} for name, value in SERVER_HEADERS.items()]


async def header_batches(given: list[dict[str, Any]]) -> AsyncIterator[pa.RecordBatch]:
    headers = pa.array([list(row["headers"].items()) for row in given], HEADERS_TYPE)
    yield pa.RecordBatch.from_arrays([pa.array([row["data"] for row in given]), headers], names=["data", "headers"])


async def check_headers(out: Stream) -> None:
    assert len([message async for message in out.get_batch(subject="out.old")]) == 10
    stored = [message async for message in out.get_batch(subject="out.rows")]
    assert [message.data.decode() for message in stored] == list(SERVER_HEADERS)
    assert not {pair for message in stored for pair in message.headers.pairs()} & {*SERVER_HEADERS.items()}
    assert [message.headers["Kept"] for message in stored] == ["yes"] * len(stored)


@pytest.mark.parametrize("how", [{}, {"delivery": "none"}, CURSOR], ids=["ids", "none", "cursor"])
async def test_sink_strips_every_server_header(nats_client: Client, out: Stream, how: dict[str, str]) -> None:
    settings = SinkOptions.read({**BASE, **how})
    task = WriteTask(owner="query", epoch=0, partition=0)
    (done,) = [done async for done in write_messages(nats_client, settings, task, header_batches(header_rows()))]
    await check_headers(out)
    assert done.removed_headers == dict.fromkeys(SERVER_HEADERS, 1)


FORMS: list[Callable[[dict[str, list[str]]], object]] = [
    lambda headers: headers,
    lambda headers: {name: values[0] for name, values in headers.items()},
    lambda headers: [(name, value) for name, values in headers.items() for value in values],
]


@pytest.mark.parametrize("form", FORMS, ids=["lists", "values", "pairs"])
async def test_publish_partition_strips_server_headers(
    nats_server: Server, out: Stream, form: Callable[[dict[str, list[str]]], object], caplog: pytest.LogCaptureFixture
) -> None:
    config = SparkNats(servers=nats_server.url)
    publish = publish_partition(config, write_id="w", subject="out.rows", stable_order=True)
    given = [{**row, "headers": form(row["headers"])} for row in header_rows()]
    with caplog.at_level(logging.WARNING, "natsproto.spark"):
        (summary,) = publish(given)
    await check_headers(out)
    assert summary.removed_headers == dict.fromkeys(SERVER_HEADERS, 1)
    warnings = [record.getMessage() for record in caplog.records if "Nats-Rollup" in record.getMessage()]
    assert len(warnings) == 1, "said once, counted"


async def test_named_server_headers_are_obeyed(nats_server: Server, nats_client: Client, out: Stream) -> None:
    settings = SinkOptions.read({**BASE, "serverHeaders": "Nats-TTL, nats-marker-reason"})
    given = [{"data": "1", "headers": {"Nats-TTL": ["1h"], "Nats-Rollup": ["all"]}}]
    task = WriteTask(owner="query", epoch=0, partition=0)
    (done,) = [done async for done in write_messages(nats_client, settings, task, header_batches(given))]
    assert done.removed_headers == {"Nats-Rollup": 1}
    publish = publish_partition(
        SparkNats(servers=nats_server.url),
        write_id="w",
        subject="out.rows",
        stable_order=True,
        server_headers=["Nats-TTL"],
    )
    (summary,) = publish(given)
    assert summary.removed_headers == {"Nats-Rollup": 1}
    assert [message.headers["Nats-TTL"] async for message in out.get_batch(subject="out.rows")] == ["1h", "1h"]


@pytest.mark.parametrize("name", ["Rollup", "Nats-Msg-Id", "Nats-Batch-Id", "Nats-Roll up", ""])
def test_names_of_server_headers_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="server"):
        SinkOptions.read({**BASE, "serverHeaders": f"Nats-TTL,{name}"})
    with pytest.raises(ConfigError, match="server"):
        publish_partition(SparkNats(), write_id="w", subject="out.rows", server_headers=[name])
