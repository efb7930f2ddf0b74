"""Looking up keys of a bucket for the rows of a partition: a thousand in one question, instead of a question a row.

Owns the cutting of rows into questions, and what becomes of rows whose key has no value.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from natsproto._client import Client
from natsproto.errors import ConfigError, InvalidSubject, KeyNotFound, UnsupportedByServer
from natsproto.jetstream._config import bucket_name
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._keys import key_name
from natsproto.spark._config import SparkNats
from natsproto.spark._mapping import Pairing, column
from natsproto.spark._worker import exchange

if TYPE_CHECKING:
    from pyspark.sql import Column

T = TypeVar("T")
Missing: TypeAlias = Literal["null", "drop", "error"]

MOST = 1000
"""Keys in one question; what fits into one answer."""
AT_ONCE = 64
"""Questions on their way where a bucket answers for one key at a time."""


def kv_lookup(
    config: SparkNats,
    bucket: str,
    key: str | Callable[[T], str | None],
    *,
    chunk: int = MOST,
    missing: Missing = "null",
) -> Pairing[bytes | None]:
    """Gives pairs of each row and the value that its key has in a bucket, in the order of the rows.

    ``key`` is the name of a column, or a function of the row. The values of ``chunk`` rows (at most 1,000) are asked
    for at once and are of one moment. A key without a value (it never had one, it was deleted, it is null or could be
    no key) gives None; with ``missing="drop"`` no row, with "error" KeyNotFound.

    Fast in buckets that allow direct get, which new ones do (nats-server 2.11); in others each key is asked for, 64 at
    a time. ConfigError for wrong arguments; BucketNotFound and what every call of the JetStream API raises.
    """
    bucket_name(bucket)
    if type(chunk) is not int or not 1 <= chunk <= MOST:
        raise ConfigError("chunk", chunk, f"must be from 1 to {MOST} rows")
    if missing not in ("null", "drop", "error"):
        raise ConfigError("missing", missing, 'must be "null", "drop" or "error"')
    return cast("Pairing[bytes | None]", partial(_look_up, config, bucket, column(key), chunk, missing))


def _look_up(
    config: SparkNats, bucket: str, key_of: Callable[[T], str | None], chunk: int, missing: Missing, rows: Iterable[T]
) -> Iterator[tuple[T, bytes | None]]:
    asked: deque[list[T]] = deque()

    def questions() -> Iterator[list[str | None]]:
        source = iter(rows)
        while some := list(islice(source, chunk)):
            asked.append(some)
            yield [key_of(row) for row in some]

    with closing(exchange(config, partial(_answers, bucket), questions(), ahead=2)) as answers:
        for values in answers:
            for row, value in zip(asked.popleft(), values, strict=True):
                if value is not None or missing == "null":
                    yield row, value
                elif missing == "error":
                    raise KeyNotFound(bucket, str(key_of(row)))


def kv_lookup_udf(config: SparkNats, bucket: str) -> Callable[[Column | str], Column]:
    """A UDF: the column of keys it is called with becomes one of their values (binary), null where there is none.

    Needs pandas and pyarrow. The rest is as in ``kv_lookup``.
    """
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    bucket_name(bucket)

    def look_up(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        sizes: deque[int] = deque()

        def keys() -> Iterator[object]:
            for batch in batches:
                sizes.append(len(batch))
                yield from batch

        values: list[bytes | None] = []
        for _, value in _look_up(config, bucket, _text, MOST, "null", keys()):
            values.append(value)
            while sizes and len(values) >= sizes[0]:
                size = sizes.popleft()
                yield pd.Series(values[:size], dtype=object)
                del values[:size]
        for _ in sizes:
            yield pd.Series([], dtype=object)

    look_up.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}  # what Spark goes by
    # Its overloads know nothing of hints.
    return cast("Callable[[Column | str], Column]", pandas_udf(look_up, "binary"))  # type: ignore[call-overload]


def _text(key: object) -> str | None:
    return key if isinstance(key, str) else None


async def _answers(
    bucket: str, client: Client, questions: AsyncIterator[list[str | None]]
) -> AsyncIterator[list[bytes | None]]:
    kv = await client.jetstream().key_value(bucket)
    find = _find_together
    async for keys in questions:
        wanted = [key for key in dict.fromkeys(keys) if key is not None and _is_key(key)]
        try:
            found = await find(kv, wanted)
        except UnsupportedByServer:
            find = _find_each
            found = await find(kv, wanted)
        yield [None if key is None else found.get(key) for key in keys]


def _is_key(key: str) -> bool:
    """Whether it could be one: a wildcard in a row must not find others' values."""
    try:
        key_name(key)
    except InvalidSubject:
        return False
    return True


async def _find_together(kv: KeyValue[bytes], keys: Sequence[str]) -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await kv.get_many(keys)).items()}


async def _find_each(kv: KeyValue[bytes], keys: Sequence[str]) -> dict[str, bytes]:
    limit = asyncio.Semaphore(AT_ONCE)
    found: dict[str, bytes] = {}

    async def find(key: str) -> None:
        async with limit:
            try:
                found[key] = (await kv.get(key)).value
            except KeyNotFound:
                pass

    await asyncio.gather(*map(find, keys))
    return found
