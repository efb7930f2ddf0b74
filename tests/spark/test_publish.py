"""Publishing rows when a task runs again after the stream has forgotten the ids of the first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pyspark.sql import Row

from natsproto import sync
from natsproto._client import Client
from natsproto.errors import ConfigError
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.policies import RetentionPolicy
from natsproto.spark import SparkNats, publish_partition
from natsproto.spark import _publish as publish
from natsproto.spark._client import close_workers, run_on_loop
from natsproto.spark._partitions import column
from natsproto.testing import run_server

_names = (f"P{number}" for number in count())
WINDOW_S = 0.1
"""The shortest duplicate window that a server allows."""


@pytest.fixture
def stream() -> StreamConfig:
    """A stream that forgets ids at once."""
    name = next(_names)
    return StreamConfig(name=name, subjects=(f"{name}.>",), duplicate_window=WINDOW_S, allow_direct=True)


@pytest.fixture
def retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task had an attempt before."""
    monkeypatch.setattr(publish, "is_retry", lambda: True)


def create(nats: SparkNats, config: StreamConfig) -> None:
    async def make(client: Client) -> None:
        await client.jetstream().create_stream(config)

    run_on_loop(nats, make)


def wait_for_window(nats: SparkNats, stream: StreamConfig) -> None:
    """Until the server has forgotten an id."""

    async def forget(client: Client) -> None:
        js = client.jetstream()
        await js.publish(f"{stream.name}.other", msg_id="known")
        while (await js.publish(f"{stream.name}.other", msg_id="known")).duplicate:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    run_on_loop(nats, forget)


def published_payloads(nats: SparkNats, stream: StreamConfig) -> list[bytes]:
    async def read(client: Client) -> list[bytes]:
        found = (await client.jetstream().stream(str(stream.name))).get_batch()
        return [message.data async for message in found if not message.subject.endswith(".other")]

    return run_on_loop(nats, read)


def rows(stream: StreamConfig, *numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"subject": f"{stream.name}.{number % 3}", "data": b"%d" % number, **more} for number in numbers]


def data_of(row: Any) -> str:
    return str(row["data"].decode())


def test_retry_within_the_window_doubles_no_row(nats: SparkNats, stream: StreamConfig, retry: None) -> None:
    create(nats, stream.replace(duplicate_window=60))
    write = publish_partition(nats, write_id="w", stable_order=True)
    list(write(rows(stream, *range(10))))
    (written,) = write(rows(stream, *range(25)))
    assert (written.rows, written.duplicates) == (25, 10)
    assert published_payloads(nats, stream) == [b"%d" % number for number in range(25)]


@pytest.mark.parametrize("retention", [*RetentionPolicy])
def test_retry_after_the_window_is_refused(
    nats: SparkNats, stream: StreamConfig, retry: None, retention: RetentionPolicy
) -> None:
    create(nats, stream.replace(retention=retention))
    write = publish_partition(nats, write_id="w", msg_id=data_of)
    run_on_loop(nats, publish_some, stream)
    wait_for_window(nats, stream)
    with pytest.raises(ConfigError, match=r'duplicate_window of stream.*is over.*duplicates="allow"'):
        list(write(rows(stream, 1, 2, 3, 4, 5)))
    allowed = publish_partition(nats, write_id="w", msg_id=data_of, duplicates="allow")
    (written,) = allowed(rows(stream, 1, 2, 3, 4, 5))
    assert (written.rows, written.duplicates) == (5, 0)


async def publish_some(client: Client, stream: StreamConfig) -> None:
    """The first attempt, which stored a row and died."""
    await client.jetstream().publish(f"{stream.name}.1", b"1", msg_id="1")


def test_first_attempt_asks_nothing(nats: SparkNats, stream: StreamConfig) -> None:
    """A new write_id is a new write, and a job that is started again is not recognized."""
    create(nats, stream)
    list(publish_partition(nats, write_id="w", stable_order=True)(rows(stream, 1)))
    wait_for_window(nats, stream)
    (written,) = publish_partition(nats, write_id="w", stable_order=True)(rows(stream, 1))
    assert written.duplicates == 0


@pytest.mark.parametrize("info", ["", '"$JS.API.STREAM.NAMES", '])
def test_retry_has_to_know_the_window(info: str, retry: None) -> None:
    """The account may see nothing of the stream, or its name alone."""
    allowed = f'publish: [{info}"OUT.>"], subscribe: ["_INBOX.>"]'
    users = f"users: [{{user: a, password: a}}, {{user: w, password: w, permissions: {{ {allowed} }} }}]"
    with run_server(jetstream=True, config=f"authorization {{ {users} }}") as server:
        with sync.connect(server.url, user="a", password="a") as nc:
            nc.jetstream().create_stream(name="OUT", subjects=["OUT.>"])
        writer = SparkNats(servers=server.url, user="w", password="w", allow_literal_secrets=True, request_timeout=1)
        rows = [{"subject": "OUT.a", "data": b"1"}]
        with pytest.raises(ConfigError, match="has to know the duplicate_window"):
            list(publish_partition(writer, write_id="w", stable_order=True)(rows))
        (written,) = publish_partition(writer, write_id="w", stable_order=True, duplicates="allow")(rows)
        assert written.rows == 1
        close_workers()


def test_duplicates_is_one_of_two_words(nats: SparkNats) -> None:
    wrong: Any = "accept"
    with pytest.raises(ConfigError, match='"refuse" or "allow"'):
        publish_partition(nats, write_id="w", duplicates=wrong)


def test_column_is_found_in_rows_of_any_shape() -> None:
    data: Callable[[Any], int] = column("data")
    key: Callable[[Any], str | None] = column("key", optional=True)
    names = Row("key", "data")
    shapes = [
        (Row(data=1, key="a"), (1, "a")),
        (Row(key="b", data=2), (2, "b")),
        (names("c", 3), (3, "c")),
        ({"data": 4, "key": "d"}, (4, "d")),
        (Row(data=5), (5, None)),
        ({"data": 6}, (6, None)),
    ]
    assert [(data(row), key(row)) for row, _ in shapes] == [expected for _, expected in shapes]
    for row in (Row(key="x"), {"key": "x"}):
        with pytest.raises(KeyError):
            data(row)
