"""Functions for ``mapPartitions``: the client's async verbs, applied to the rows of a partition.

Owns how many rows are in hand at a time and in which order results leave. Everything here returns a callable that Spark
pickles; it takes the iterator of a partition and gives one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from natsproto._client import Client
from natsproto.errors import ConfigError, ConnectionClosed, RequestTimeout
from natsproto.protocol.frames import Payload
from natsproto.protocol.pool import positive_seconds
from natsproto.protocol.subject import publish_subject
from natsproto.spark._config import SparkNats
from natsproto.spark._worker import PARTING, exchange, leave, pull, worker

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", covariant=True)

PartitionFunction: TypeAlias = Callable[[Iterable[T]], Iterator[R]]
"""What ``mapPartitions``, ``foreachPartition`` and ``mapInArrow`` take."""


class Pairing(Protocol[P]):
    """A PartitionFunction that gives each row and what was found for it."""

    def __call__(self, rows: Iterable[T], /) -> Iterator[tuple[T, P]]:
        """For the rows of one partition."""
        ...


OnError: TypeAlias = Literal["raise", "null"] | Callable[[T, Exception], R]


def run_partition(
    function: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]], config: SparkNats, *, ahead: int = 256
) -> PartitionFunction[T, R]:
    """Runs an async generator function with the rows of each partition and the client of the worker process.

    ``function(client, rows)`` reads ``rows`` with ``async for``, in one place, and yields what the partition becomes.
    It runs on the loop, which must not be blocked; Spark's own iterator is read in Spark's thread, when the function
    asks for rows. At most ``ahead`` rows and results wait at a time: take 2 when they are whole Arrow batches.

    When Spark stops reading (a limit), the generator is closed: its ``finally`` runs before the task ends. Errors of
    the function fail the task. ConfigError for a bad ``ahead``; connecting raises what ``natsproto.connect`` does.
    """
    _check_callable("function", function)
    _check_count("ahead", ahead)
    return partial(_run, function, config, ahead)


def _run(
    function: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]], config: SparkNats, ahead: int, rows: Iterable[T]
) -> Iterator[R]:
    return exchange(config, function, rows, ahead=ahead)


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

    At most ``concurrency`` rows are taken that have not left yet. Results leave in the order of the rows, or with
    ``ordered=False`` as they come. A call that takes longer than ``timeout`` seconds (None: no limit) is cancelled and
    ends with RequestTimeout. ``on_error`` says what becomes of a row whose call raised: "raise" fails the task,
    "null" gives None, a callable gives what ``on_error(row, error)`` returns. When Spark stops reading, the calls at
    work are cancelled. ConfigError for wrong arguments.
    """
    _check_callable("function", function)
    _check_count("concurrency", concurrency)
    if on_error not in ("raise", "null") and not callable(on_error):
        raise ConfigError("on_error", on_error, 'must be "raise", "null" or a function of the row and the error')
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
    portal, client = worker(config).reach()
    source = iter(rows)
    calls: Calls[T, R] = Calls(partial(function, client), ordered, timeout, on_error)
    inside, over = 0, False
    worthwhile = max(1, concurrency // 4)  # each crossing costs a wake-up of the loop

    def refill() -> int:
        nonlocal over
        found, over = pull(source, concurrency - inside)
        if found:
            portal.post(partial(calls.begin, found))
        return len(found)

    try:
        while True:
            if not over and concurrency > inside:
                inside += refill()
            if not inside:
                return
            for result in calls.results():
                yield result
                inside -= 1
                if not over and concurrency - inside >= worthwhile:
                    inside += refill()
    finally:
        leave(portal, calls.stop)


def request_partition(
    config: SparkNats,
    subject: str | Callable[[T], str],
    *,
    payload: str | Callable[[T], Payload | str] = "data",
    concurrency: int = 64,
    ordered: bool = True,
    timeout: float = 5.0,
    on_error: OnError[T, bytes | None] = "raise",
) -> Pairing[bytes | None]:
    """Sends a request for each row and gives pairs of the row and the payload of the reply.

    ``subject`` is one for all rows, or a function of the row. ``payload`` is the column that is sent (bytes or text),
    or a function of the row. The rest is as in ``map_async``, but that ``on_error`` decides about the payload; errors
    are those of ``client.request``: NoResponders, RequestTimeout after ``timeout`` seconds, ConnectionLost.
    ConfigError for wrong arguments; InvalidSubject.
    """
    if isinstance(subject, str):
        publish_subject(subject)
    ask = partial(_ask, subject, column(payload), positive_seconds("timeout", timeout))
    handle = on_error if on_error == "raise" else partial(_pair, on_error)
    mapping = map_async(ask, config, concurrency=concurrency, ordered=ordered, on_error=handle)
    return cast("Pairing[bytes | None]", mapping)


async def _ask(
    subject: str | Callable[[T], str], payload: Callable[[T], Payload | str], timeout: float, client: Client, row: T
) -> tuple[T, bytes | None]:
    to = subject if isinstance(subject, str) else subject(row)
    return row, (await client.request(to, octets(payload(row)), timeout=timeout)).data


def _pair(on_error: OnError[T, bytes | None], row: T, error: Exception) -> tuple[T, bytes | None]:
    return row, (on_error(row, error) if callable(on_error) else None)


class _Failed:
    """What a call raised, on its way to whoever reads the results."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Calls(Generic[T, R]):
    """The calls at work for one partition. All but ``results`` is for the loop's thread."""

    def __init__(
        self, call: Callable[[T], Awaitable[R]], ordered: bool, timeout: float | None, on_error: OnError[T, R]
    ) -> None:
        self._call, self._ordered, self._timeout, self._on_error = call, ordered, timeout, on_error
        self._told: SimpleQueue[list[asyncio.Task[R | _Failed | None]]] = SimpleQueue()
        self._running: set[asyncio.Task[R | _Failed | None]] = set()
        self._line: deque[asyncio.Task[R | _Failed | None]] = deque()  # who leaves next, where that is settled
        self._telling = False

    def results(self) -> Iterator[R | None]:
        """Waits until there are some, and gives them. Raises what a call raised."""
        for task in self._told.get():
            if task.cancelled():
                raise ConnectionClosed()  # not by ``stop``, after which nobody reads: the loop is ending
            result = task.result()
            if isinstance(result, _Failed):
                raise result.error
            yield result

    def begin(self, rows: list[T]) -> None:
        """Calls the function for these too."""
        loop = asyncio.get_running_loop()
        for row in rows:
            task = loop.create_task(self._one(row), name="natsproto spark row")
            self._running.add(task)
            if self._ordered:
                self._line.append(task)
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancels what is at work and waits for it."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=PARTING)

    async def _one(self, row: T) -> R | _Failed | None:
        try:
            return await self._within_time(row)
        except Exception as exc:
            if not callable(self._on_error):
                return None if self._on_error == "null" else _Failed(exc)
            try:
                return self._on_error(row, exc)
            except Exception as other:
                return _Failed(other)

    async def _within_time(self, row: T) -> R:
        if self._timeout is None:
            return await self._call(row)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._call(row)
        except TimeoutError:
            if limit.expired():
                raise RequestTimeout("the call for a row", self._timeout) from None
            raise

    def _ended(self, task: asyncio.Task[R | _Failed | None]) -> None:
        self._running.discard(task)
        if not self._ordered:
            self._line.append(task)
        if not self._telling:  # all that end in this turn of the loop cross together
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        done = []
        while self._line and self._line[0].done():
            done.append(self._line.popleft())
        if done:
            self._told.put(done)


# ---------------------------------------------------------------- rows and arguments


def column(what: str | Callable[[T], R]) -> Callable[[T], R]:
    """How to get it out of a row: by the name of its column, or as the caller says."""
    if isinstance(what, str):
        return cast("Callable[[T], R]", itemgetter(what))
    return what


def octets(value: Payload | str) -> Payload:
    """What is sent for the value of a column: text as UTF-8. TypeError for anything else than text and bytes."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"what is sent must be bytes or str, not {type(value).__name__}")
    return value


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(name, value, "must be a positive number")
