"""Functions for ``mapPartitions``: the client's calls for the rows of a partition.

Each returns a callable that Spark pickles; it takes the iterator of a partition and returns one. Defines how many rows
are in flight, the order of the results, and the message ids by which a stream recognizes rows of a task that runs
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, cast

from natsproto import Client, errors
from natsproto._durations import positive_seconds
from natsproto._help.introspection import import_late_types
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream.kv._many_values import ManyValues
from natsproto.protocol.frames import Payload
from natsproto.protocol.subject import publish_subject
from natsproto.spark._calls import Calls, OnError
from natsproto.spark._client import run_with_rows, shared_client
from natsproto.spark._options import SparkNats
from natsproto.spark._outages import outlast

if TYPE_CHECKING:
    from pyspark.sql import Column


T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", covariant=True)
PartitionFunction: TypeAlias = Callable[[Iterable[T]], Iterator[R]]
"""A function for ``mapPartitions``, ``foreachPartition`` and ``mapInArrow``."""


class PairFunction(Protocol[P]):
    """A PartitionFunction that yields pairs of a row and its result."""

    def __call__(self, rows: Iterable[T], /) -> Iterator[tuple[T, P]]:
        """Called with the rows of one partition."""
        ...


def run_partition(
    function: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]], config: SparkNats, *, prefetch: int = 256
) -> PartitionFunction[T, R]:
    """Runs an async generator function with the rows of each partition and the client of the worker process.

    ``function(client, rows)`` reads ``rows`` with ``async for``, in one place, and yields the results.
    It runs on the loop and must not block it; Spark's own iterator is read in Spark's thread, when the function
    asks for rows. At most ``prefetch`` rows and results wait at a time: take 2 when they are whole Arrow batches.

    When Spark stops reading (a limit), the generator is closed: its ``finally`` runs before the task ends. Errors of
    the function fail the task. ConfigError for a bad ``prefetch``; connecting raises those of ``natsproto.connect``.

    Args:
        function: An async generator function of the client and the rows, which it reads with ``async for``; it yields
            the results.
        config: How the tasks connect: a SparkNats.
        prefetch: How many rows and results wait at a time at most; 2 for whole Arrow batches.
    """
    _check_callable("function", function)
    _check_count("prefetch", prefetch)
    return partial(_run, function, config, prefetch)


def _run(
    function: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]],
    config: SparkNats,
    prefetch: int,
    rows: Iterable[T],
) -> Iterator[R]:
    return run_with_rows(config, function, rows, prefetch=prefetch)


def map_async(
    function: Callable[[Client, T], Awaitable[R]],
    config: SparkNats,
    *,
    concurrency: int = 64,
    ordered: bool = True,
    timeout: float | None = None,
    on_error: OnError[T, R] = "raise",
) -> PartitionFunction[T, R | None]:
    """Calls an async function for each row, ``concurrency`` of them at a time: ``function(client, row)``.

    At most ``concurrency`` calls are in flight, and at most twice as many rows are taken before their results are read.
    Results come in the order of the rows, or with ``ordered=False`` as they finish. A call that takes longer than
    ``timeout`` seconds (None: no limit) is cancelled and ends with RequestTimeout. ``on_error`` decides about a row
    whose call raised: "raise" fails the task, "null" gives None, a callable gives the result of
    ``on_error(row, error)``. When Spark stops reading, running calls are cancelled. ConfigError for wrong arguments.

    Args:
        function: The ``async def`` function to call with the client and a row.
        config: How the tasks connect: a SparkNats.
        concurrency: How many calls are in flight at a time in each task.
        ordered: Give the results in the order of the rows; False gives each as soon as it is there.
        timeout: Seconds after which a call is cancelled and fails with RequestTimeout; None: no limit.
        on_error: For a row whose call raised: "raise" fails the task, "null" gives None, a function gives the result of
            ``on_error(row, error)``.
    """
    _check_callable("function", function)
    _check_count("concurrency", concurrency)
    if on_error not in ("raise", "null") and not callable(on_error):
        raise errors.ConfigError("on_error", on_error, 'must be "raise", "null" or a function of the row and the error')
    wait = None if timeout is None else positive_seconds("timeout", timeout)
    return partial(_map, function, config, concurrency, ordered, wait, on_error)


def _map(
    function: Callable[[Client, T], Awaitable[R]],
    config: SparkNats,
    concurrency: int,
    ordered: bool,
    timeout: float | None,
    on_error: OnError[T, R],
    rows: Iterable[T],
) -> Iterator[R | None]:
    portal, client = shared_client(config).reach()
    calls: Calls[T, R] = Calls(partial(function, client), concurrency, ordered, timeout, on_error)
    return calls.results_for(portal, rows)


def request_partition(
    config: SparkNats,
    subject: str | Callable[[T], str],
    *,
    payload: str | Callable[[T], Payload | str] = "data",
    concurrency: int = 64,
    ordered: bool = True,
    timeout: float = 5.0,
    on_error: OnError[T, bytes | None] = "raise",
) -> PairFunction[bytes | None]:
    """Sends a request for each row and gives pairs of the row and the payload of the reply.

    ``subject`` is one for all rows, or a function of the row. ``payload`` is the column that is sent (bytes or text),
    or a function of the row. The rest is as in ``map_async``; ``on_error`` gives the payload. Errors
    are those of ``client.request``: NoResponders, RequestTimeout after ``timeout`` seconds, ConnectionLost.
    ConfigError for wrong arguments; InvalidSubject.

    Args:
        config: How the tasks connect: a SparkNats.
        subject: The subject of all requests, or a function of the row.
        payload: The column that is sent, bytes or text, or a function of the row.
        concurrency: How many requests are in flight at a time in each task.
        ordered: Give the results in the order of the rows; False gives each as soon as it is there.
        timeout: Seconds to wait for each reply.
        on_error: For a row whose request failed: "raise" fails the task, "null" gives None, a function gives the result
            of ``on_error(row, error)``.
    """
    if isinstance(subject, str):
        publish_subject(subject)
    ask = partial(_ask, subject, column(payload), positive_seconds("timeout", timeout))
    handle = on_error if on_error == "raise" else partial(_pair, on_error)
    mapping = map_async(ask, config, concurrency=concurrency, ordered=ordered, on_error=handle)
    return cast("PairFunction[bytes | None]", mapping)


async def _ask(
    subject: str | Callable[[T], str], payload: Callable[[T], Payload | str], timeout: float, client: Client, row: T
) -> tuple[T, bytes | None]:
    to = subject if isinstance(subject, str) else subject(row)
    return row, (await client.request(to, to_payload(payload(row)), timeout=timeout)).data


def _pair(on_error: OnError[T, bytes | None], row: T, error: Exception) -> tuple[T, bytes | None]:
    return row, (on_error(row, error) if callable(on_error) else None)


# ---------------------------------------------------------------- rows and arguments


def column(what: str | Callable[[T], R], *, optional: bool = False) -> Callable[[T], R]:
    """A function that takes a value out of a row: by the name of its column, or the caller's own.

    An ``optional`` column gives None in rows without it. A Row finds a column by its name in Python code, which took a
    third of the time of publishing one; so its index is kept, as long as the rows have the same columns.
    """
    if not isinstance(what, str):
        return what
    known: tuple[Sequence[str], int | None] = ((), None)

    def value(row: T) -> R:
        nonlocal known
        names = getattr(row, "__fields__", None)
        if names is None:
            mapping = cast("Mapping[str, R]", row)
            return cast("R", None) if optional and what not in mapping else mapping[what]
        columns, index = known
        if names != columns:
            index = next((i for i, name in enumerate(names) if name == what), None)
            known = names, index
        if index is None:
            if optional:
                return cast("R", None)
            raise KeyError(what)
        return cast("R", tuple.__getitem__(cast("tuple[object, ...]", row), index))

    return value


def to_payload(value: Payload | str) -> Payload:
    """The payload for the value of a column: text as UTF-8. TypeError for anything but text and bytes."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"a payload must be bytes or str, not {type(value).__name__}")
    return value


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise errors.ConfigError(name, value, "must be a positive number")


# ---------------------------------------------------------------- lookups

Missing: TypeAlias = Literal["null", "drop", "error"]
MAX_KEYS_PER_REQUEST = 1000
"""Keys in one request, limited by the size of its reply."""


def kv_lookup(
    config: SparkNats,
    bucket: str,
    key: str | Callable[[T], str | None],
    *,
    chunk: int = MAX_KEYS_PER_REQUEST,
    missing: Missing = "null",
) -> PairFunction[bytes | None]:
    """Yields pairs of each row and the value of its key in a bucket, in the order of the rows.

    ``key`` is the name of a column, or a function of the row. The values of ``chunk`` rows (at most 1,000) are
    requested together and are from the same moment. A key without a value (it never had one, it was deleted, it is
    null or invalid) gives None; with ``missing="drop"`` no row, with "error" KeyNotFound.

    Fast in buckets that allow direct get, as new ones do (nats-server 2.11); in others each key is a request, 64 at
    a time. ConfigError for wrong arguments; BucketNotFound and the errors of every call of the JetStream API.

    Args:
        config: How the tasks connect: a SparkNats.
        bucket: The bucket with the keys, without ``KV_``.
        key: The column with the key, or a function of the row.
        chunk: Rows whose values are requested together, at most 1,000.
        missing: For a key without a value: "null" gives None, "drop" leaves the row out, "error" raises KeyNotFound.
    """
    check_bucket_name(bucket)
    if type(chunk) is not int or not 1 <= chunk <= MAX_KEYS_PER_REQUEST:
        raise errors.ConfigError("chunk", chunk, f"must be from 1 to {MAX_KEYS_PER_REQUEST} rows")
    if missing not in ("null", "drop", "error"):
        raise errors.ConfigError("missing", missing, 'must be "null", "drop" or "error"')
    return cast("PairFunction[bytes | None]", partial(_look_up, config, bucket, column(key), chunk, missing))


def _look_up(
    config: SparkNats,
    bucket: str,
    key_of: Callable[[T], str | None],
    chunk: int,
    missing: Missing,
    rows: Iterable[T],
) -> Iterator[tuple[T, bytes | None]]:
    asked: deque[list[T]] = deque()

    def questions() -> Iterator[list[str | None]]:
        source = iter(rows)
        while some := list(islice(source, chunk)):
            asked.append(some)
            yield [key_of(row) for row in some]

    with closing(
        run_with_rows(config, partial(_answers, bucket, config.outage_timeout), questions(), prefetch=2)
    ) as answers:
        for values in answers:
            for row, value in zip(asked.popleft(), values, strict=True):
                if value is not None or missing == "null":
                    yield row, value
                elif missing == "error":
                    raise errors.KeyNotFound(bucket, str(key_of(row)))


def kv_lookup_udf(config: SparkNats, bucket: str) -> Callable[[Column | str], Column]:
    """A UDF that turns a column of keys into a column of their values (binary), null for keys without one.

    Needs pandas and pyarrow. The rest is as in ``kv_lookup``.

    Args:
        config: How the tasks connect: a SparkNats.
        bucket: The bucket with the keys, without ``KV_``.
    """
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    check_bucket_name(bucket)

    def look_up(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        sizes: deque[int] = deque()

        def keys() -> Iterator[object]:
            for batch in batches:
                sizes.append(len(batch))
                yield from batch

        values: list[bytes | None] = []
        for _, value in _look_up(config, bucket, _text, MAX_KEYS_PER_REQUEST, "null", keys()):
            values.append(value)
            while sizes and len(values) >= sizes[0]:
                size = sizes.popleft()
                yield pd.Series(values[:size], dtype=object)
                del values[:size]
        for _ in sizes:
            yield pd.Series([], dtype=object)

    look_up.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}  # Spark reads them
    # Its overloads do not cover type hints.
    return cast("Callable[[Column | str], Column]", pandas_udf(look_up, "binary"))  # type: ignore[call-overload]


def _text(key: object) -> str | None:
    return key if isinstance(key, str) else None


async def _answers(
    bucket: str, outage_timeout: float, client: Client, questions: AsyncIterator[list[str | None]]
) -> AsyncIterator[list[bytes | None]]:
    what = f"bucket {bucket!r}"
    values = ManyValues(await outlast(what, outage_timeout, partial(client.jetstream().key_value, bucket)))
    async for keys in questions:
        wanted = [key for key in keys if key is not None]
        found = await outlast(what, outage_timeout, partial(values.of, wanted))
        yield [None if key is None else found.get(key) for key in keys]


import_late_types(__name__)
