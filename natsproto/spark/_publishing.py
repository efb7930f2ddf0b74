"""Publishing the rows of a partition: all of them acknowledged when the task ends, and none stored twice.

Owns the ids by which a stream knows a row that comes again with another attempt of its task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from natsproto._client import Client
from natsproto._value import Value
from natsproto.errors import ConfigError
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import Headers
from natsproto.protocol.pool import positive_seconds
from natsproto.protocol.subject import publish_subject
from natsproto.spark._config import SparkNats
from natsproto.spark._mapping import PartitionFunction, column, octets
from natsproto.spark._worker import exchange

if TYPE_CHECKING:
    from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

log = logging.getLogger("natsproto.spark")

SWEEP = 4096
"""Rows after which the acknowledgements that have come are counted and forgotten."""


class WriteSummary(Value):
    """What one partition has published: ``published`` rows, of which the stream had ``duplicates`` already.

    ``stripped`` counts the headers that were left out because the server would have obeyed them, by name.
    """

    write_id: str
    partition: int
    published: int
    duplicates: int
    stripped: Mapping[str, int] = {}


class HeaderFilter:
    """Removes server-control headers (``Nats-*``) from rows, except those that are allowed, and counts them.

    Whoever writes a source stream chooses the headers of its messages; ``Nats-Rollup: all`` in one of them would
    erase the target. The server compares names exactly; here case does not matter.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self.stripped: Counter[str] = Counter()

    def strip(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The pairs that may be published."""
        kept = []
        for pair in pairs:
            name = pair[0]
            if name[:5].lower() == "nats-" and name.lower() not in self._allowed:
                self.stripped[name] += 1
            else:
                kept.append(pair)
        return kept


def check_server_headers(option: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names of server headers that rows may carry. ConfigError for any that cannot be allowed."""
    if isinstance(names, str):
        raise TypeError(f"{option} must be a list of header names, not one str")
    for name in names:
        low = name.lower()
        if not low.startswith("nats-") or not name.isascii() or not name.replace("-", "").isalnum():
            raise ConfigError(option, name, "is no header that the server obeys: their names begin with Nats-")
        if low == "nats-msg-id":
            raise ConfigError(option, name, "cannot be allowed: give the column msg_id")
        if low.startswith("nats-batch-"):
            raise ConfigError(option, name, "cannot be allowed: batches are those of the sink")
    return tuple(names)


def no_id(option: str, row: int | None = None) -> ConfigError:
    """The error for rows by which nobody can tell whether they were stored before."""
    where = "" if row is None else f"row {row} of its partition has none: "
    return ConfigError(
        "msg_id",
        None,
        f"{where}a row that comes again after a failure must have the same id. Give a column msg_id made of what the "
        f"row is, or {option} if the rows of every partition come in the same order whenever they are computed",
    )


def warn_of_stripped(what: str, option: str, stripped: Mapping[str, int]) -> None:
    """One line in the log about the server headers that were left out."""
    if stripped:
        counts = ", ".join(f"{name} ({count})" for name, count in sorted(stripped.items()))
        log.warning(
            "%s: left out headers that the server would obey: %s. %s names those that are meant", what, counts, option
        )


def publish_partition(
    config: SparkNats,
    *,
    write_id: str,
    subject: str | Callable[[T], str] | None = None,
    msg_id: str | Callable[[T], str] | None = None,
    stable_order: bool = False,
    server_headers: Sequence[str] = (),
    window: int = 2000,
    timeout: float = 30.0,
) -> PartitionFunction[object, WriteSummary]:
    """Publishes each row to a stream and gives one WriteSummary when every one is acknowledged.

    It publishes when it is called, before its result is read: ``foreachPartition`` of Spark Connect reads none.

    A row has a column ``data`` (bytes or text), and may have ``headers`` (a mapping to a value or a list of values).
    Headers that the server obeys (``Nats-*``) are left out, counted in the summary and named in the log, except those
    in ``server_headers``.
    ``subject`` is one for all rows, or a function of the row; without it there is a column of this name. ``msg_id`` is
    the name of a column, or a function of the row; without it there is a column of this name. A task that runs again
    publishes the same ids, and so stores nothing twice within the stream's ``duplicate_window``.

    ``stable_order`` promises that the rows of every partition come in the same order whenever they are computed, as
    behind a scan, ``select`` and ``where``, and not behind a shuffle (``groupBy``, ``join``, ``repartition``, a sort
    with ties). Then rows without an id get ``write_id.partition.number of the row``; take another ``write_id`` for
    other rows. Without the promise such a row is a ConfigError: in another order its id would be that of another row.

    ``window`` messages are on their way at a time; each has ``timeout`` seconds to be acknowledged. The task fails with
    PublishFailed when any is not stored. ConfigError for wrong arguments; InvalidSubject, InvalidHeader for rows.
    """
    if not isinstance(write_id, str) or not write_id or not write_id.isprintable():
        raise ConfigError("write_id", write_id, "must be printable text, the same in every attempt")
    if isinstance(subject, str):
        publish_subject(subject)
    if type(window) is not int or window < 1:
        raise ConfigError("window", window, "must be a positive number")
    plan = _Plan(
        write_id=write_id,
        subject=subject,
        msg_id=msg_id,
        stable_order=stable_order,
        server_headers=check_server_headers("server_headers", server_headers),
        window=window,
        timeout=positive_seconds("timeout", timeout),
    )
    return partial(_publish_rows, plan, config)


class _Plan(Value):
    write_id: str
    subject: object
    msg_id: object
    stable_order: bool
    server_headers: tuple[str, ...]
    window: int
    timeout: float


def _publish_rows(plan: _Plan, config: SparkNats, rows: Iterable[T]) -> Iterator[WriteSummary]:
    from pyspark import TaskContext

    context = TaskContext.get()
    publish = partial(_publish, plan, 0 if context is None else context.partitionId())
    (summary,) = exchange(config, publish, rows, ahead=min(plan.window, 1024))
    warn_of_stripped(f"partition {summary.partition} of {plan.write_id}", "server_headers", summary.stripped)
    return iter((summary,))


async def _publish(plan: _Plan, partition: int, client: Client, rows: AsyncIterator[T]) -> AsyncIterator[WriteSummary]:
    headers = HeaderFilter(plan.server_headers)
    message = _reader(plan, partition, headers)
    number = duplicates = 0
    waiting: list[AckFuture] = []
    async with client.jetstream().publisher(max_pending=plan.window, timeout=plan.timeout) as publisher:
        publish = publisher.publish
        async for row in rows:
            subject, data, pairs, msg_id = message(row, number)
            waiting.append(await publish(subject, data, msg_id=msg_id, headers=pairs))
            number += 1
            if len(waiting) >= SWEEP + plan.window:
                duplicates += sum(future.duplicate for future in waiting)
                waiting = [future for future in waiting if not future.done()]
        await publisher.flush()
    duplicates += sum(future.duplicate for future in waiting)
    yield WriteSummary(
        write_id=plan.write_id,
        partition=partition,
        published=number,
        duplicates=duplicates,
        stripped=dict(headers.stripped),
    )


Message = tuple[str, Payload, "list[tuple[str, str]] | None", str]


def _reader(plan: _Plan, partition: int, headers: HeaderFilter) -> Callable[[object, int], Message]:
    """How a row becomes a message."""
    fixed = plan.subject if isinstance(plan.subject, str) else ""
    subject_of = column(cast("str | Callable[[object], str]", plan.subject or "subject"))
    id_of = _optional("msg_id") if plan.msg_id is None else column(cast("str | Callable[[object], str]", plan.msg_id))
    headers_of, data_of = _optional("headers"), column(cast("str | Callable[[object], Payload | str]", "data"))
    prefix = f"{plan.write_id}.{partition}."

    def message(row: object, number: int) -> Message:
        msg_id = id_of(row)
        if msg_id is None and not plan.stable_order:
            raise no_id("stable_order=True", number)
        given = cast("HeadersLike | None", headers_of(row))
        return (
            fixed or subject_of(row),
            octets(data_of(row)),
            headers.strip(Headers(given).pairs()) if given else None,
            f"{prefix}{number}" if msg_id is None else str(msg_id),
        )

    return message


def _optional(name: str) -> Callable[[object], object]:
    """A column that a row need not have."""

    def value(row: object) -> object:
        columns = cast("Mapping[str, object]", row)
        return columns[name] if name in columns else None  # noqa: SIM401  # a Row has no get()

    return value
