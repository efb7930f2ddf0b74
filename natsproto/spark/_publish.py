"""Publishing the rows of a partition, which are Python objects: the arguments, and the rows as messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from natsproto import Client, errors
from natsproto._durations import positive_seconds
from natsproto._value import Value
from natsproto.jetstream import JetStream, StreamInfo
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import publish_subject
from natsproto.spark._bad_rows import BadRows, RowCheck, check_bad_rows, size_limit, warn_of_bad_rows
from natsproto.spark._client import is_retry, run_with_rows
from natsproto.spark._forgotten_ids import window_check
from natsproto.spark._id_writer import IdWriter
from natsproto.spark._options import Duplicates, SparkNats
from natsproto.spark._outages import outlast
from natsproto.spark._partitions import PartitionFunction, column, to_payload
from natsproto.spark._row_bridge import take_rows
from natsproto.spark._schema import HeaderFilter, check_server_headers, row_ids, warn_of_removed
from natsproto.spark._task import MessageColumns, WriteTask

if TYPE_CHECKING:
    from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

ROWS_PER_PUBLISH = 1024
"""Rows that cross to the loop together."""


class WriteSummary(Value):
    """The result of one partition: ``rows`` acknowledged rows, of which the stream had ``duplicates`` already.

    ``removed_headers`` counts the removed server-control headers by name. ``bad_rows`` counts the other rows, which
    cannot be messages, by the class of their error.
    """

    write_id: str
    """The name of the write, by which a repeated one finds what is stored."""
    partition: int
    """The number of the partition, from 0."""
    rows: int
    duplicates: int
    removed_headers: Mapping[str, int] = {}
    bad_rows: Mapping[str, int] = {}


def publish_partition(
    config: SparkNats,
    *,
    write_id: str,
    subject: str | Callable[[T], str] | None = None,
    msg_id: str | Callable[[T], str] | None = None,
    stable_order: bool = False,
    duplicates: Duplicates = "refuse",
    server_headers: Sequence[str] = (),
    max_pending: int = 2000,
    timeout: float = 30.0,
    bad_rows: BadRows = "fail",
    dead_letter_subject: str | None = None,
) -> PartitionFunction[object, WriteSummary]:
    """Publishes each row to a stream and gives one WriteSummary when every one is acknowledged.

    It publishes when it is called, before its result is read: ``foreachPartition`` of Spark Connect reads no result.

    A row has a column ``data`` (bytes or text), and may have ``headers`` (a mapping to a value or a list of values).
    Server-control headers (``Nats-*``) are removed, counted in the summary and named in the log, except those in
    ``server_headers``.
    ``subject`` is one for all rows, or a function of the row; without it there is a column of this name. ``msg_id`` is
    the name of a column, or a function of the row; without it there is a column of this name.

    A task that runs again publishes the same ids, and the stream drops those of its ``duplicate_window``. Beyond it the
    ids are forgotten: a retry later than the window, counted from this call, is a ConfigError before it stores a row,
    unless the stream has got no message since then. ``duplicates="allow"`` accepts it: rows are stored twice then. A
    retry needs the right to see the stream's info. A whole job that is started again with the same ``write_id`` is not
    recognized: start it within the window, or use the data source with ``delivery=cursor`` and a ``writeId``.

    ``stable_order`` promises that the rows of every partition come in the same order whenever they are computed, as
    after a scan, ``select`` and ``where``, and not after a shuffle (``groupBy``, ``join``, ``repartition``, a sort
    with ties). Then rows without an id get one by ``write_id``, partition and number of the row; take another
    ``write_id`` for other rows, one that nobody can guess if others may publish to the stream. Without the promise
    such a row is a ConfigError: in another order its id would be that of another row.

    At most ``max_pending`` messages wait for their acknowledgement; each has ``timeout`` seconds for it. The task fails
    with PublishFailed when any is not stored. ConfigError for wrong arguments.

    A row that cannot be a message (an invalid subject, header or id, or too large for the server) fails the task, with
    InvalidSubject, InvalidHeader or PayloadTooLarge. ``bad_rows="drop"`` leaves such rows out; "deadletter" publishes a
    dead letter for each to ``dead_letter_subject``, which ``natsproto.retry.DeadLetter`` reads. Both count them.

    Args:
        config: How the tasks connect: a SparkNats.
        write_id: A name of this write, the same for a repeated one.
        subject: The subject of all rows, or a function of the row; None: the column ``subject`` has it.
        msg_id: The column with the message ids, or a function of the row; None: the column ``msg_id`` if there is one,
            else ids made by the writer.
        stable_order: The rows of a partition come in the same order again if its task is repeated, so that their
            positions identify them.
        duplicates: What a retry later than the ``duplicate_window`` does: "refuse" (default) raises ConfigError,
            "allow" stores rows twice.
        server_headers: The names of headers of rows that begin with ``Nats-`` and are sent; all others of these are
            removed and counted.
        max_pending: Messages that may wait for their acknowledgement.
        timeout: Seconds to wait for each acknowledgement.
        bad_rows: What becomes of a row that cannot be a message: "fail" (default) fails the task, "drop" leaves the row
            out, "deadletter" publishes a dead letter for it.
        dead_letter_subject: The subject of the dead letters; None unless ``bad_rows`` is "deadletter".
    """
    plan = PublishPlan(
        write_id=write_id,
        subject=subject,
        msg_id=msg_id,
        stable_order=stable_order,
        duplicates=check_duplicates(duplicates),
        server_headers=check_server_headers("server_headers", server_headers),
        max_pending=max_pending,
        timeout=positive_seconds("timeout", timeout),
        bad_rows=bad_rows,
        letter_subject=dead_letter_subject,
        since=time.time(),
    )
    return partial(publish_rows, plan, config)


def check_duplicates(value: Duplicates) -> Duplicates:
    """ConfigError for anything but the two words."""
    if value not in ("refuse", "allow"):
        raise errors.ConfigError("duplicates", value, 'must be "refuse" or "allow"')
    return value


class PublishPlan(Value):
    """The checked arguments of ``publish_partition``. The rest is as in WriteTask."""

    write_id: str
    subject: object
    msg_id: object
    stable_order: bool
    duplicates: Duplicates
    server_headers: tuple[str, ...]
    max_pending: int
    timeout: float
    bad_rows: BadRows = "fail"
    letter_subject: str | None = None
    since: float = 0.0
    epoch: int = -1
    is_repeated: bool = False

    def _check(self) -> None:
        if not isinstance(self.write_id, str) or not self.write_id or not self.write_id.isprintable():
            raise errors.ConfigError("write_id", self.write_id, "must be printable text, the same in every attempt")
        if isinstance(self.subject, str):
            publish_subject(self.subject)
        if type(self.max_pending) is not int or self.max_pending < 1:
            raise errors.ConfigError("max_pending", self.max_pending, "must be a positive number")
        check_bad_rows(self.bad_rows, self.letter_subject, option="bad_rows", letter_option="dead_letter_subject")


def publish_rows(plan: PublishPlan, config: SparkNats, rows: Iterable[T]) -> Iterator[WriteSummary]:
    """The function that ``publish_partition`` returns."""
    from pyspark import TaskContext

    context = TaskContext.get()
    plan = plan.replace(is_repeated=plan.is_repeated or is_retry())
    headers = HeaderFilter(plan.server_headers)
    publish = partial(_publish, plan, config, 0 if context is None else context.partitionId(), headers)
    (summary,) = run_with_rows(config, publish, _messages(plan, headers, rows), prefetch=2)
    what = f"partition {summary.partition} of {plan.write_id}"
    warn_of_removed(what, "server_headers", summary.removed_headers)
    warn_of_bad_rows(what, plan.bad_rows, summary.bad_rows)
    return iter((summary,))


async def _publish(
    plan: PublishPlan,
    config: SparkNats,
    partition: int,
    headers: HeaderFilter,
    client: Client,
    batches: AsyncIterator[MessageColumns],
) -> AsyncIterator[WriteSummary]:
    task = WriteTask(
        owner=plan.write_id,
        epoch=plan.epoch,
        partition=partition,
        is_repeated=plan.is_repeated,
        since=plan.since,
    )
    js = client.jetstream()
    writer = IdWriter(
        js,
        check_for=partial(_window_check, js, plan, config.outage_timeout, task) if plan.is_repeated else None,
        max_pending=plan.max_pending,
        timeout=plan.timeout,
    )
    limit = size_limit(client.max_payload)
    ids = partial(row_ids, task, stable_order=plan.stable_order, option="stable_order=True")
    check = RowCheck(plan.bad_rows, plan.letter_subject, stream="", max_size=limit, ids=ids)
    done = await writer.write(check.check_all(batches))
    yield WriteSummary(
        write_id=plan.write_id,
        partition=partition,
        rows=done.rows - check.letters,
        duplicates=done.duplicates,
        removed_headers=dict(headers.removed),
        bad_rows=dict(check.counts),
    )


async def _window_check(
    js: JetStream, plan: PublishPlan, outage_timeout: float, task: WriteTask, subject: str
) -> Callable[[], None] | None:
    """The function that raises ConfigError once the stream of this subject may have forgotten ids."""
    allow = plan.duplicates == "allow"

    async def look() -> StreamInfo:
        return (await js.stream(await js.stream_name_by_subject(subject))).cached_info

    try:
        info = await outlast(f"the stream of subject {subject!r}", outage_timeout, look)
    except errors.PermissionDenied as exc:
        if allow:
            return None
        raise errors.ConfigError(
            "duplicates",
            plan.duplicates,
            "a repeated task has to know the duplicate_window of the stream: allow $JS.API.STREAM.NAMES and "
            '$JS.API.STREAM.INFO.*, or accept duplicates="allow"',
        ) from exc
    return window_check(info, task, allow=allow, remedy=_REMEDY)


_REMEDY = 'Widen the window, or accept that: duplicates="allow"'


def _messages(plan: PublishPlan, headers: HeaderFilter, rows: Iterable[object]) -> Iterator[MessageColumns]:
    """The rows as messages, many at a time."""
    fixed = plan.subject if isinstance(plan.subject, str) else ""
    subject_of = column(cast("str | Callable[[object], str]", plan.subject or "subject"))
    id_of: Callable[[object], object] = column(
        cast("str | Callable[[object], object]", plan.msg_id or "msg_id"), optional=plan.msg_id is None
    )
    headers_of: Callable[[object], HeadersLike | None] = column("headers", optional=True)
    data_of: Callable[[object], Payload | str] = column("data")
    source, last = iter(rows), False
    while not last:
        taken, last = take_rows(source, ROWS_PER_PUBLISH)
        ids = [None if (found := id_of(row)) is None else str(found) for row in taken]
        pairs = [headers.strip(Headers(given).pairs()) if (given := headers_of(row)) else None for row in taken]
        yield MessageColumns(
            [fixed] * len(taken) if fixed else list(map(subject_of, taken)),
            [to_payload(data_of(row)) for row in taken],
            pairs if any(pairs) else (),
            () if ids.count(None) == len(ids) else ids,
        )
