"""What is done to the rows of a partition, without Spark: its iterator is a plain one here."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import count

import pytest

from natsproto._client import Client
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    InvalidSubject,
    KeyNotFound,
    NoResponders,
    NoStream,
    PublishFailed,
    PublishTimeout,
    RequestTimeout,
)
from natsproto.spark import (
    SparkNats,
    WriteSummary,
    kv_lookup,
    kv_lookup_udf,
    map_async,
    publish_partition,
    request_partition,
    run_partition,
)
from natsproto.spark._client import run_on_loop

_names = (f"M{number}" for number in count())


@pytest.fixture
def name() -> str:
    """A name that nothing else has."""
    return next(_names)


class Upstream:
    """An iterator as Spark gives one: read by one thread, and it counts what was taken."""

    def __init__(self, rows: int) -> None:
        self.taken = 0
        self._rows = rows
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        assert threading.get_ident() == self._thread
        if self.taken == self._rows:
            raise StopIteration
        self.taken += 1
        return self.taken


class Gate:
    """An async function of a row whose calls wait until the test lets them go; it counts those at work."""

    def __init__(self) -> None:
        self.at_work = 0
        self.most = 0
        self.cancelled = 0

    async def __call__(self, client: Client, row: int) -> int:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await client.flush()
            return row * 2
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1


# ---------------------------------------------------------------- map_async


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("concurrency", [1, 2, 7, 64])
@pytest.mark.parametrize("rows", [0, 1, 63, 500])
def test_every_row_is_mapped(nats: SparkNats, rows: int, concurrency: int, ordered: bool) -> None:
    gate = Gate()
    found = list(map_async(gate, nats, concurrency=concurrency, ordered=ordered)(Upstream(rows)))
    expected = [row * 2 for row in range(1, rows + 1)]
    assert (found if ordered else sorted(x for x in found if x is not None)) == expected
    assert gate.most <= concurrency
    assert gate.most == min(concurrency, rows), "and that many at a time"


@pytest.mark.parametrize("ordered", [True, False])
def test_few_rows_are_taken_ahead_of_the_reader(nats: SparkNats, ordered: bool) -> None:
    source = Upstream(10_000)
    results = map_async(Gate(), nats, concurrency=8, ordered=ordered)(source)
    assert source.taken == 0
    for number in range(1, 50):
        next(results)
        assert source.taken <= number - 1 + 2 * 8


@pytest.mark.parametrize(("ordered", "first"), [(True, 1), (False, 2)])
def test_results_are_ordered_unless_reported_otherwise(nats: SparkNats, ordered: bool, first: int) -> None:
    async def first_is_last(client: Client, row: int) -> int:
        if row == 1:
            await second_is_done.wait()
        else:
            second_is_done.set()
        return row

    second_is_done = asyncio.Event()
    assert next(map_async(first_is_last, nats, ordered=ordered)([1, 2])) == first


async def fails_at_three(client: Client, row: int) -> int:
    if row == 3:
        raise ValueError(f"row {row}")
    return row


@pytest.mark.parametrize("ordered", [True, False])
def test_error_cancels_the_running_calls(nats: SparkNats, ordered: bool) -> None:
    forever = Forever()

    async def one_fails(client: Client, row: int) -> int:
        if row == 1:
            raise ValueError("row 1")
        return await forever(client, row)

    with pytest.raises(ValueError, match="row 1"):
        list(map_async(one_fails, nats, concurrency=4, ordered=ordered)(range(1, 9)))
    assert forever.at_work == 0


def test_on_error_gives_null_or_another_value(nats: SparkNats) -> None:
    assert list(map_async(fails_at_three, nats, on_error="null")(range(1, 6))) == [1, 2, None, 4, 5]

    def explain(row: int, error: Exception) -> int:
        assert str(error) == f"row {row}"
        return -row

    assert list(map_async(fails_at_three, nats, on_error=explain)(range(1, 6))) == [1, 2, -3, 4, 5]


def test_handler_that_fails_fails_the_task(nats: SparkNats) -> None:
    def worse(row: int, error: Exception) -> int:
        raise KeyError("worse") from error

    with pytest.raises(KeyError, match="worse"):
        list(map_async(fails_at_three, nats, on_error=worse)(range(1, 6)))


class Forever:
    """An async function that never returns; it counts the calls at work."""

    def __init__(self) -> None:
        self.at_work = 0

    async def __call__(self, client: Client, row: int) -> int:
        self.at_work += 1
        try:
            await asyncio.Event().wait()
        finally:
            await client.flush()
            self.at_work -= 1
        return row


def test_call_that_takes_too_long_is_cancelled(nats: SparkNats) -> None:
    forever = Forever()
    with pytest.raises(RequestTimeout):
        list(map_async(forever, nats, timeout=0.01)(range(3)))
    assert forever.at_work == 0
    assert list(map_async(forever, nats, timeout=0.01, on_error="null")(range(3))) == [None] * 3


def test_own_timeout_of_the_function_is_kept(nats: SparkNats) -> None:
    async def own(client: Client, row: int) -> int:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        list(map_async(own, nats, timeout=30)(range(3)))


@pytest.mark.parametrize("ordered", [True, False])
def test_closing_early_cancels_the_calls(nats: SparkNats, ordered: bool) -> None:
    forever = Forever()

    async def first_returns(client: Client, row: int) -> int:
        return row if row == 0 else await forever(client, row)

    results = map_async(first_returns, nats, concurrency=8, ordered=ordered)(range(100))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert forever.at_work == 0


def double(client: Client, row: int) -> Awaitable[int]:
    async def run() -> int:
        return 2 * row

    return run()


async def echo_rows(client: Client, rows: AsyncIterator[int]) -> AsyncIterator[int]:
    async for row in rows:
        yield row


def row_text(row: object) -> str:
    return str(row)


@pytest.mark.parametrize(
    "make",
    [
        lambda nats: map_async(double, nats),
        lambda nats: run_partition(echo_rows, nats),
        lambda nats: request_partition(nats, "a.b", payload=row_text),
        lambda nats: publish_partition(nats, write_id="w", subject=row_text),
        lambda nats: kv_lookup(nats, "b", row_text),
    ],
    ids=["map_async", "run_partition", "request_partition", "publish_partition", "kv_lookup"],
)
def test_what_spark_pickles_can_be_pickled(
    make: Callable[[SparkNats], Callable[[Iterable[int]], Iterator[object]]], nats: SparkNats
) -> None:
    made = pickle.loads(pickle.dumps(make(nats)))
    assert callable(made)
    assert list(map_async(double, nats)([1, 2])) == [2, 4]


# ---------------------------------------------------------------- requests


@pytest.fixture
def doubling(nats: SparkNats, name: str) -> Iterator[str]:
    """The subject of a service that doubles what it is sent, and does not answer to b"mute"."""

    async def serve(client: Client) -> asyncio.Task[None]:
        subscription = client.subscribe(name)

        async def answer() -> None:
            async for message in subscription:
                if message.data != b"mute":
                    await message.respond(message.data * 2)

        return asyncio.create_task(answer())

    async def stop(client: Client) -> None:
        task.cancel()

    task = run_on_loop(nats, serve)
    yield name
    run_on_loop(nats, stop)


def test_requests_are_paired_with_their_replies(nats: SparkNats, doubling: str) -> None:
    rows = [{"data": f"{number}", "n": number} for number in range(200)]
    assert list(request_partition(nats, doubling)(rows)) == [(row, str(row["data"]).encode() * 2) for row in rows]


def test_subject_and_payload_can_come_from_the_row(nats: SparkNats, doubling: str) -> None:
    def subject(row: tuple[str, int]) -> str:
        return row[0]

    ask = request_partition(nats, subject, payload=lambda row: b"%d" % row[1])
    assert list(ask([(doubling, 1), (doubling, 2)])) == [((doubling, 1), b"11"), ((doubling, 2), b"22")]


def test_failed_request_fails_the_task_or_gives_null(nats: SparkNats, doubling: str) -> None:
    def subject(row: dict[str, object]) -> str:
        return str(row["to"])

    def explain(row: object, error: Exception) -> bytes:
        return type(error).__name__.encode()

    with pytest.raises(RequestTimeout):
        list(request_partition(nats, doubling, timeout=0.05)([{"data": b"mute"}]))
    rows: list[dict[str, object]] = [{"to": doubling, "data": b"a"}, {"to": "nobody.here", "data": b"b"}]
    with pytest.raises(NoResponders):
        list(request_partition(nats, subject)(rows))
    assert list(request_partition(nats, subject, on_error="null")(rows)) == [(rows[0], b"aa"), (rows[1], None)]
    assert [reply for _, reply in request_partition(nats, subject, on_error=explain)(rows)] == [b"aa", b"NoResponders"]


# ---------------------------------------------------------------- publishing


async def _make_stream(client: Client, name: str) -> None:
    await client.jetstream().create_stream(name=name, subjects=[f"{name}.>"], allow_direct=True)


async def _stored(client: Client, name: str) -> list[tuple[str, bytes, dict[str, str]]]:
    stream = await client.jetstream().stream(name)
    return [(found.subject, found.data, dict(found.headers)) async for found in stream.get_batch()]


def test_rows_become_messages(nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _make_stream, name)
    rows = [
        {"subject": f"{name}.a", "data": b"1"},
        {"subject": f"{name}.b", "data": "ä", "headers": {"A": "x"}, "msg_id": "mine"},
        {"subject": f"{name}.c", "data": bytearray(b"3"), "headers": {}, "msg_id": None},
    ]
    (written,) = publish_partition(nats, write_id="w", stable_order=True)(rows)
    assert written == WriteSummary(write_id="w", partition=0, rows=3, duplicates=0)
    first, mine, third = run_on_loop(nats, _stored, name)
    assert first[:2] == (f"{name}.a", b"1")
    assert mine == (f"{name}.b", "ä".encode(), {"A": "x", "Nats-Msg-Id": "mine"})
    assert third[:2] == (f"{name}.c", b"3")
    assert first[2].keys() == third[2].keys() == {"Nats-Msg-Id"}
    assert first[2] != third[2]


def test_rows_are_stored_if_no_result_is_read(nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _make_stream, name)
    publish_partition(nats, write_id="w", subject=f"{name}.a", stable_order=True)([{"data": "1"}])
    assert len(run_on_loop(nats, _stored, name)) == 1, "as foreachPartition of Spark Connect calls it"


def test_subject_and_id_can_be_functions(nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _make_stream, name)
    rows = [{"data": "1", "key": "x"}, {"data": "2", "key": "y"}]
    list(publish_partition(nats, write_id="w", subject=f"{name}.all", msg_id="key")(rows))

    def subject(row: dict[str, str]) -> str:
        return f"{name}.{row['key']}"

    list(publish_partition(nats, write_id="w", subject=subject, msg_id=lambda row: row["key"] * 2)(rows))
    found = [(subject, headers["Nats-Msg-Id"]) for subject, _, headers in run_on_loop(nats, _stored, name)]
    assert found == [(f"{name}.all", "x"), (f"{name}.all", "y"), (f"{name}.x", "xx"), (f"{name}.y", "yy")]


@pytest.mark.parametrize("max_pending", [1, 3, 2000])
def test_duplicates_are_counted_and_not_stored(nats: SparkNats, name: str, max_pending: int) -> None:
    run_on_loop(nats, _make_stream, name)
    rows = [{"data": str(number)} for number in range(7000)]
    publish = publish_partition(nats, write_id="w", subject=f"{name}.a", stable_order=True, max_pending=max_pending)
    count = 7000 if max_pending == 2000 else 100
    assert [(one.rows, one.duplicates) for one in publish(rows[: count - 10])] == [(count - 10, 0)]
    assert [(one.rows, one.duplicates) for one in publish(rows[:count])] == [(count, count - 10)]
    assert len(run_on_loop(nats, _stored, name)) == count


def test_row_that_no_stream_takes_fails_the_task(nats: SparkNats, name: str) -> None:
    with pytest.raises(PublishFailed) as caught:
        list(publish_partition(nats, write_id="w", subject="no.stream", stable_order=True, timeout=2)([{"data": "1"}]))
    # A server that is silent for a second in between leaves it open whether the row is stored.
    assert isinstance(caught.value.__cause__, (NoStream, PublishTimeout))
    assert "'no.stream'" in str(caught.value)


def test_row_that_is_no_message_fails_the_task(nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _make_stream, name)
    publish = publish_partition(nats, write_id="w", stable_order=True)
    with pytest.raises(InvalidSubject):
        list(publish([{"subject": "a b", "data": b""}]))
    with pytest.raises(ConfigError, match="row 0 of its partition has none"):
        publish_partition(nats, write_id="w")([{"subject": f"{name}.a", "data": b""}])
    with pytest.raises(TypeError, match="float"):
        list(publish([{"subject": f"{name}.a", "data": 1.5}]))
    with pytest.raises(KeyError, match="data"):
        list(publish([{"subject": f"{name}.a"}]))


# ---------------------------------------------------------------- lookups


@pytest.fixture(params=[True, False], ids=["direct", "not direct"])
def bucket(request: pytest.FixtureRequest, nats: SparkNats, name: str) -> str:
    """Keys 0 to 99 with values, of which 50 is deleted; direct get is allowed, or not."""

    async def make(client: Client) -> None:
        js = client.jetstream()
        kv = await js.create_key_value(bucket=name)
        if not request.param:
            await (await js.stream(f"KV_{name}")).update(allow_direct=False)
        for number in range(100):
            await kv.put(str(number), b"v%d" % number)
        await kv.delete("50")

    run_on_loop(nats, make)
    return name


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rows_are_paired_with_their_values(nats: SparkNats, bucket: str, chunk: int) -> None:
    keys = ["3", "50", "98", "nothing", None, "3", "*", ">", "a b", ""]
    values = [b"v3", None, b"v98", None, None, b"v3", None, None, None, None]
    rows = [{"key": key} for key in keys]
    assert list(kv_lookup(nats, bucket, "key", chunk=chunk)(rows)) == list(zip(rows, values, strict=True))

    def key(row: dict[str, str | None]) -> str | None:
        return row["key"]

    dropped = kv_lookup(nats, bucket, key, chunk=chunk, missing="drop")
    assert [value for _, value in dropped(rows)] == [b"v3", b"v98", b"v3"]
    with pytest.raises(KeyNotFound, match="'50'"):
        list(kv_lookup(nats, bucket, "key", chunk=chunk, missing="error")(rows))


def test_bucket_that_is_not_there_is_an_error(nats: SparkNats) -> None:
    with pytest.raises(BucketNotFound):
        list(kv_lookup(nats, "nowhere", "key")([{"key": "a"}]))


def test_udf_says_which_bucket_is_no_bucket(nats: SparkNats) -> None:
    with pytest.raises(InvalidSubject):
        kv_lookup_udf(nats, "no bucket")


# ---------------------------------------------------------------- mistakes

MISTAKES: list[tuple[Callable[[SparkNats], object], type[Exception]]] = [
    (lambda nats: run_partition(None, nats), TypeError),  # type: ignore[arg-type]
    (lambda nats: run_partition(echo_rows, nats, prefetch=0), ConfigError),
    (lambda nats: map_async("double", nats), TypeError),  # type: ignore[arg-type]
    (lambda nats: map_async(double, nats, concurrency=0), ConfigError),
    (lambda nats: map_async(double, nats, timeout=-1), ConfigError),
    (lambda nats: map_async(double, nats, on_error="skip"), ConfigError),  # type: ignore[arg-type]
    (lambda nats: request_partition(nats, "a b"), ConfigError),
    (lambda nats: request_partition(nats, "a", timeout=-1), ConfigError),
    (lambda nats: publish_partition(nats, write_id=""), ConfigError),
    (lambda nats: publish_partition(nats, write_id="a\r\nb"), ConfigError),
    (lambda nats: publish_partition(nats, write_id="w", subject="a.*"), ConfigError),
    (lambda nats: publish_partition(nats, write_id="w", max_pending=0), ConfigError),
    (lambda nats: publish_partition(nats, write_id="w", timeout=-1), ConfigError),
    (lambda nats: kv_lookup(nats, "no bucket", "key"), ConfigError),
    (lambda nats: kv_lookup(nats, "b", "key", chunk=1001), ConfigError),
    (lambda nats: kv_lookup(nats, "b", "key", missing="none"), ConfigError),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistake_is_found_on_the_driver(number: int) -> None:
    make, error = MISTAKES[number]
    with pytest.raises(error):
        make(SparkNats(servers="127.0.0.1:1"))


def test_function_may_be_a_partial(nats: SparkNats) -> None:
    async def add(number: int, client: Client, row: int) -> int:
        return number + row

    assert list(map_async(partial(add, 10), nats)([1, 2])) == [11, 12]
