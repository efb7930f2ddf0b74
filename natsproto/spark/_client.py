"""One client for each worker process and config, on the loop of ``natsproto.sync``, which a busy task does not hold."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from natsproto import Client, State, errors
from natsproto.errors._base import is_transient
from natsproto.spark import _row_bridge as row_bridge
from natsproto.spark._options import SparkNats
from natsproto.spark._outages import MAX_READ_RETRY_WAIT_S, outlast
from natsproto.sync import _client as blocking
from natsproto.sync._portal import Portal

if TYPE_CHECKING:
    from pyspark import TaskContext

log = logging.getLogger("natsproto.spark")

FIRST_CONNECT_PAUSE_S = 0.1
"""Seconds before the second attempt to connect; the pauses double."""

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class WorkerClient(blocking.Client):
    """The client of this process for one config, as a blocking client and as the async client below it."""

    outage_timeout = 0.0
    """Seconds for which it repeats its attempts to connect, unless an error stays (a missing secret)."""
    was_answered = False
    """True once a request of ``run_on_loop`` had a reply: from then on, silence is an outage."""

    def reach(self) -> tuple[Portal, Client]:
        """The loop and the client on it; connects if this process has not yet. Raises the errors of ``connect``."""
        return self._reach()

    def _reach(self, timeout: float | None = None) -> tuple[Portal, Client]:
        until, pause = monotonic() + self.outage_timeout, FIRST_CONNECT_PAUSE_S
        while True:
            try:
                return super()._reach(timeout)
            except errors.ConnectFailed as exc:
                stays = not is_transient(exc) or any(isinstance(cause, errors.ConfigError) for _, cause in exc.attempts)
                if stays or monotonic() + pause >= until:
                    raise
                if pause == FIRST_CONNECT_PAUSE_S:
                    log.warning("waiting up to %.0f s for a server: %s", self.outage_timeout, exc)
            time.sleep(pause)
            pause = min(2 * pause, MAX_READ_RETRY_WAIT_S)

    @property
    def ended(self) -> bool:
        """True if its client is closed for good: by ``close``, or because no server accepts it any more."""
        process = self._processes.get(os.getpid())
        connection = None if process is None else process.connection
        return self._closed or (connection is not None and connection.client.state is State.CLOSED)


_CLIENTS: dict[SparkNats, WorkerClient] = {}


def shared_client(config: SparkNats) -> WorkerClient:
    """The client of this process for this config. It connects at its first use, and again after a fork."""
    if not isinstance(config, SparkNats):
        raise TypeError(f"config must be a SparkNats, not {type(config).__name__}")
    found = _CLIENTS.get(config)
    if found is None or found.ended:
        options = config.options() if found is None else found._options_again()
        found = _CLIENTS[config] = WorkerClient(options.replace(name=_connection_name(config.name)))
        found.outage_timeout = config.outage_timeout
    return found


@contextmanager
def worker_client(config: SparkNats) -> Iterator[blocking.Client]:
    """The blocking client (``natsproto.sync``) of this worker process, for plain functions and UDFs.

    All tasks of a process that use the same config share it, so leaving the block does not close it. Connects at its
    first use in a process: ConnectFailed and what else ``natsproto.connect`` raises.

    Args:
        config: How the tasks connect: a SparkNats.
    """
    yield shared_client(config)


def close_workers() -> None:
    """Closes the clients of this process, for a driver that no longer needs them; their next use connects again."""
    while _CLIENTS:
        _CLIENTS.popitem()[1].close()


def run_on_loop(
    config: SparkNats, function: Callable[Concatenate[Client, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs an async function, which only reads, on the loop with the client of this process and returns its result.

    It is repeated in an outage, for up to ``outage_timeout`` seconds.
    """
    shared = shared_client(config)
    portal, client = shared.reach()
    request = partial(function, client, *args, **kwargs)
    result = portal.call(outlast, "NATS", config.outage_timeout, request, existed=shared.was_answered)
    shared.was_answered = True
    return result


def iterate_on_loop(
    config: SparkNats, make: Callable[[Client], AsyncIterator[R]], *, prefetch: int = 1
) -> Generator[R]:
    """Turns the async iterator ``make(client)``, run on the loop, into a generator that reads ``prefetch`` items ahead.

    The loop runs on while the reader is busy. Closing the generator cancels the iterator and waits until it
    has cleaned up. Raises the iterator's errors.
    """

    def produce(client: Client, _: AsyncIterator[object]) -> AsyncIterator[R]:
        return make(client)

    return run_with_rows(config, produce, (), prefetch=prefetch)


def run_with_rows(
    config: SparkNats,
    produce: Callable[[Client, AsyncIterator[T]], AsyncIterator[R]],
    rows: Iterable[T],
    *,
    prefetch: int,
) -> Generator[R]:
    """``natsproto.spark._row_bridge.run_with_rows`` with the client of this process."""
    portal, client = shared_client(config).reach()
    return row_bridge.run_with_rows(portal, partial(produce, client), rows, prefetch=prefetch)


def _connection_name(name: str) -> str:
    """With the task that connects, as the servers' monitoring shows it."""
    context = _task_context()
    return name if context is None else f"{name} stage {context.stageId()} partition {context.partitionId()}"


def is_retry() -> bool:
    """True inside a Spark task that had an earlier attempt."""
    context = _task_context()
    return context is not None and context.attemptNumber() > 0


def _task_context() -> TaskContext | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    return TaskContext.get()
