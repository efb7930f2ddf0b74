"""Publishing the rows of a partition, and looking up the rows that the target has already.

A stream drops the message ids it knows, but only within its ``duplicate_window``. So before rows are published that may
have been stored longer ago, by an earlier attempt of the task or run of the query, the end of the target is read for
their ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from natsproto._client import Client
from natsproto._durations import positive_seconds
from natsproto._value import Value
from natsproto.errors import ConfigError, PermissionDenied
from natsproto.jetstream._config import RetentionPolicy
from natsproto.jetstream._direct import RawMessage, stored_header_blocks
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._message import header_blocks
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import publish_subject
from natsproto.spark._client import is_retry, run_with_rows
from natsproto.spark._offsets import SeqRange
from natsproto.spark._options import SparkNats
from natsproto.spark._partitions import PartitionFunction, column, to_payload
from natsproto.spark._reader import MessageList, RangeReader
from natsproto.spark._schema import HeaderFilter, check_server_headers, no_id, warn_of_removed

if TYPE_CHECKING:
    from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

log = logging.getLogger("natsproto.spark")

RECOVERY_WINDOW_S = 900.0
"""Seconds of the target that are read, unless an option says otherwise."""
MIN_LOOKBACK_MESSAGES = 100_000
"""Messages at the end of the target that are always read, however old they are."""
FIRST_LOOKBACK, MAX_LOOKBACK = 1000, 64_000
"""Messages that are read at a time, going backwards."""
_MSG_ID = re.compile(rb"\r\nNats-Msg-Id: *([^\r]*)\r\n")
ACKS_BETWEEN_COUNTS = 4096
"""Rows after which acknowledgements are counted and released."""


class WriteSummary(Value):
    """The result of one partition: ``rows`` acknowledged rows, of which the stream had ``duplicates`` already.

    ``removed_headers`` counts the removed server-control headers by name.
    """

    write_id: str
    partition: int
    rows: int
    duplicates: int
    removed_headers: Mapping[str, int] = {}


def publish_partition(
    config: SparkNats,
    *,
    write_id: str,
    subject: str | Callable[[T], str] | None = None,
    msg_id: str | Callable[[T], str] | None = None,
    stable_order: bool = False,
    server_headers: Sequence[str] = (),
    max_pending: int = 2000,
    timeout: float = 30.0,
) -> PartitionFunction[object, WriteSummary]:
    """Publishes each row to a stream and gives one WriteSummary when every one is acknowledged.

    It publishes when it is called, before its result is read: ``foreachPartition`` of Spark Connect reads no result.

    A row has a column ``data`` (bytes or text), and may have ``headers`` (a mapping to a value or a list of values).
    Server-control headers (``Nats-*``) are removed, counted in the summary and named in the log, except those in
    ``server_headers``.
    ``subject`` is one for all rows, or a function of the row; without it there is a column of this name. ``msg_id`` is
    the name of a column, or a function of the row; without it there is a column of this name.

    A task that runs again publishes the same ids, and the stream drops those of its ``duplicate_window``. As a retry
    may come later, it first reads the headers at the end of the target (15 minutes and at least 100,000 messages) and
    leaves out the rows that are there. That needs the right to read the stream; without it a warning is logged.
    Messages of work queues and of streams with interest retention may have been consumed, so there a retry is a
    ConfigError unless the window is 15 minutes or more. A whole job that is started again with the same ``write_id`` is
    not recognized: start it within the window, or use the data source with the option ``writeId``.

    ``stable_order`` promises that the rows of every partition come in the same order whenever they are computed, as
    after a scan, ``select`` and ``where``, and not after a shuffle (``groupBy``, ``join``, ``repartition``, a sort
    with ties). Then rows without an id get ``write_id.partition.number of the row``; take another ``write_id`` for
    other rows. Without the promise such a row is a ConfigError: in another order its id would be that of another row.

    At most ``max_pending`` messages wait for their acknowledgement; each has ``timeout`` seconds for it. The task fails
    with PublishFailed when any is not stored. ConfigError for wrong arguments; InvalidSubject, InvalidHeader for rows.
    """
    plan = PublishPlan(
        write_id=write_id,
        subject=subject,
        msg_id=msg_id,
        stable_order=stable_order,
        server_headers=check_server_headers("server_headers", server_headers),
        max_pending=max_pending,
        timeout=positive_seconds("timeout", timeout),
    )
    return partial(publish_rows, plan, config)


class PublishPlan(Value):
    """The checked arguments of ``publish_partition``; for a micro-batch also its number, ``epoch``.

    ``may_be_stored`` says that the rows may have been stored before, longer ago than the duplicate window.
    """

    write_id: str
    subject: object
    msg_id: object
    stable_order: bool
    server_headers: tuple[str, ...]
    max_pending: int
    timeout: float
    epoch: int | None = None
    may_be_stored: bool = False

    def _check(self) -> None:
        if not isinstance(self.write_id, str) or not self.write_id or not self.write_id.isprintable():
            raise ConfigError("write_id", self.write_id, "must be printable text, the same in every attempt")
        if isinstance(self.subject, str):
            publish_subject(self.subject)
        if type(self.max_pending) is not int or self.max_pending < 1:
            raise ConfigError("max_pending", self.max_pending, "must be a positive number")

    def id_prefix(self, partition: int) -> str:
        """The prefix of the ids of a partition's rows."""
        epoch = "" if self.epoch is None else f".{self.epoch}"
        return f"{self.write_id}{epoch}.{partition}."


def publish_rows(plan: PublishPlan, config: SparkNats, rows: Iterable[T]) -> Iterator[WriteSummary]:
    """The function that ``publish_partition`` returns."""
    from pyspark import TaskContext

    context = TaskContext.get()
    plan = plan.replace(may_be_stored=plan.may_be_stored or is_retry())
    publish = partial(_publish, plan, 0 if context is None else context.partitionId())
    (summary,) = run_with_rows(config, publish, rows, prefetch=min(plan.max_pending, 1024))
    warn_of_removed(f"partition {summary.partition} of {plan.write_id}", "server_headers", summary.removed_headers)
    return iter((summary,))


async def _publish(
    plan: PublishPlan, partition: int, client: Client, rows: AsyncIterator[T]
) -> AsyncIterator[WriteSummary]:
    headers = HeaderFilter(plan.server_headers)
    message = _message_builder(plan, partition, headers)
    number = duplicates = 0
    waiting: list[AckFuture] = []
    stored: StoredRows | None = None
    must_look_up, prefix = plan.may_be_stored, plan.id_prefix(partition)
    async with client.jetstream().publisher(max_pending=plan.max_pending, timeout=plan.timeout) as publisher:
        publish = publisher.publish
        async for row in rows:
            subject, data, pairs, msg_id = message(row, number)
            if must_look_up:
                stored, must_look_up = await _look_up(client, plan, subject), False
            number += 1
            if stored is not None and (
                stored.has_row(partition, number - 1, subject)
                if msg_id == f"{prefix}{number - 1}"
                else msg_id in stored.ids
            ):
                duplicates += 1
                continue
            waiting.append(await publish(subject, data, msg_id=msg_id, headers=pairs))
            if len(waiting) >= ACKS_BETWEEN_COUNTS + plan.max_pending:
                duplicates += sum(future.duplicate for future in waiting)
                waiting = [future for future in waiting if not future.done()]
        await publisher.flush()
    duplicates += sum(future.duplicate for future in waiting)
    yield WriteSummary(
        write_id=plan.write_id,
        partition=partition,
        rows=number,
        duplicates=duplicates,
        removed_headers=dict(headers.removed),
    )


async def _look_up(client: Client, plan: PublishPlan, subject: str) -> StoredRows | None:
    """The rows that the stream of a subject has already; None if this account may not read it."""
    js = client.jetstream()
    try:
        info = (await js.stream(await js.stream_name_by_subject(subject))).cached_info
        has_subject_limit = info.config.max_msgs_per_subject > 0
        stored = StoredRows(plan.write_id, plan.epoch, keep_ids=True, has_subject_limit=has_subject_limit)
        check_window(info, RECOVERY_WINDOW_S, "Widen the window")
        await stored.look_up(client, info, recovery_window=RECOVERY_WINDOW_S, after=0, remedy=_CONSUMED_REMEDY)
    except PermissionDenied as exc:
        log.warning("%s: rows stored longer ago than the duplicate_window may be stored twice: %s", plan.write_id, exc)
        return None
    return stored


_CONSUMED_REMEDY = (
    "Use the data source with exactlyOnce=atomic on a work queue, or with none if rows stored twice do no harm"
)
OutgoingMessage = tuple[str, Payload, "list[tuple[str, str]] | None", str]


def _message_builder(
    plan: PublishPlan, partition: int, headers: HeaderFilter
) -> Callable[[object, int], OutgoingMessage]:
    """A function that turns a row into a message."""
    fixed = plan.subject if isinstance(plan.subject, str) else ""
    subject_of = column(cast("str | Callable[[object], str]", plan.subject or "subject"))
    id_of: Callable[[object], object] = column(
        cast("str | Callable[[object], object]", plan.msg_id or "msg_id"), optional=plan.msg_id is None
    )
    headers_of: Callable[[object], HeadersLike | None] = column("headers", optional=True)
    data_of: Callable[[object], Payload | str] = column("data")
    prefix = plan.id_prefix(partition)

    def message(row: object, number: int) -> OutgoingMessage:
        msg_id = id_of(row)
        if msg_id is None and not plan.stable_order:
            raise no_id("stable_order=True", number)
        given = headers_of(row)
        return (
            fixed or subject_of(row),
            to_payload(data_of(row)),
            headers.strip(Headers(given).pairs()) if given else None,
            f"{prefix}{number}" if msg_id is None else str(msg_id),
        )

    return message


# ---------------------------------------------------------------- rows stored before


class StoredRows:
    """The ids of a target's last messages, for one micro-batch of a query: ``owner.epoch.partition.row``.

    Without a batch number (``publish_partition``) they are ``owner.partition.row``.
    """

    def __init__(self, owner: str, epoch: int | None, *, keep_ids: bool, has_subject_limit: bool) -> None:
        self._prefix, self._epoch = f"{owner}.", epoch
        self._keep_ids, self._has_subject_limit = keep_ids, has_subject_limit
        self._rows: dict[int, set[int]] = {}
        self._newest: dict[tuple[int, str], int] = {}
        self.ids: set[str] = set()
        """Ids from a column ``msg_id``, if ``keep_ids``."""
        self._saw_earlier_epoch = False

    def add(self, msg_id: str, subject: str) -> None:
        """Adds one message of the target; they come from the last to the first."""
        numbers = msg_id[len(self._prefix) :].split(".") if msg_id.startswith(self._prefix) else []
        length = 2 if self._epoch is None else 3
        if len(numbers) != length or not all(number.isdecimal() for number in numbers):
            if self._keep_ids:
                self.ids.add(msg_id)
            return
        *epochs, partition, row = map(int, numbers)
        epoch = epochs[0] if epochs else None
        if epoch == self._epoch:
            self._rows.setdefault(partition, set()).add(row)
            if self._has_subject_limit:
                key = (partition, subject)
                self._newest[key] = max(row, self._newest.get(key, -1))
        elif epoch is not None and self._epoch is not None and epoch < self._epoch:
            self._saw_earlier_epoch = True

    def has_row(self, partition: int, row: int, subject: str) -> bool:
        """True if this row is stored, or was, in a stream where newer messages of a subject replace older ones."""
        return row in self._rows.get(partition, ()) or row < self._newest.get((partition, subject), -1)

    async def look_up(
        self, client: Client, info: StreamInfo, *, recovery_window: float, after: int, remedy: str
    ) -> None:
        """Reads the target backwards: to the micro-batch before, or ``recovery_window`` seconds and
        MIN_LOOKBACK_MESSAGES.

        With ``after`` it reads the messages after that sequence. ConfigError, with the ``remedy``, if the messages may
        have been consumed and the stream's duplicate window may be over; PermissionDenied if they may not be read.
        """
        if info.config.retention != RetentionPolicy.LIMITS:
            _check_age(info, fresh=self._epoch == 0 and not after, after=after, remedy=remedy)
            return
        oldest = info.ts - timedelta(seconds=recovery_window)
        first, last = max(1, info.state.first_seq, after + 1), info.state.last_seq
        looked_at, step = 0, FIRST_LOOKBACK
        while last >= first and not self._saw_earlier_epoch:
            begin = max(first, last - step + 1)
            stored = await self._read(client, info.config.name, begin, last)
            looked_at += last - begin + 1
            if not after and looked_at >= MIN_LOOKBACK_MESSAGES and stored is not None and stored < oldest:
                return
            last, step = begin - 1, min(4 * step, MAX_LOOKBACK)

    async def _read(self, client: Client, stream: str, first: int, last: int) -> datetime | None:
        """Adds the messages of a range; returns when the first one was stored."""
        seq_range = SeqRange(stream=stream, start=first, end=last, earliest=True)
        reader = RangeReader(client, seq_range, (), "auto", 8192, 8 << 20, fail_on_data_loss=False, headers_only=True)
        stored: datetime | None = None
        async with aclosing(reader.message_lists()) as lists:
            async for messages in lists:
                if stored is None:
                    head = messages[0]
                    stored = head.time if isinstance(head, RawMessage) else head.metadata.timestamp
                for message, msg_id in zip(cast("list[RawMessage]", messages), _stored_ids(messages), strict=True):
                    if msg_id is not None:
                        self.add(msg_id, message.subject)
        return stored


def check_window(info: StreamInfo, recovery_window: float, remedy: str) -> None:
    """ConfigError for a stream whose messages are consumed and whose duplicate window is too short."""
    config = info.config
    if config.retention == RetentionPolicy.LIMITS or config.duplicate_window >= recovery_window:
        return
    raise ConfigError(
        f"duplicate_window of stream {config.name}",
        config.duplicate_window,
        f"must be at least {recovery_window:g} s: rows may be written again within that time, and with retention "
        f"{config.retention} stored rows may already be consumed. {remedy}",
    )


def _stored_ids(messages: MessageList) -> Sequence[str | None]:
    raw = isinstance(messages[0], RawMessage)
    blocks = stored_header_blocks(messages) if raw else header_blocks(messages)  # type: ignore[arg-type]
    return [None if block is None else _id_of(block) for block in blocks]


def _id_of(block: bytes | Headers) -> str | None:
    if isinstance(block, Headers):
        return block.get("Nats-Msg-Id")
    match = _MSG_ID.search(block)
    return None if match is None else match[1].decode("utf-8", "surrogateescape")


def _check_age(info: StreamInfo, *, fresh: bool, after: int, remedy: str) -> None:
    """ConfigError if all that this query has stored is older than the stream's duplicate window."""
    config, state = info.config, info.state
    if state.last_ts is None or state.last_seq <= after or fresh:
        return
    age = (info.ts - state.last_ts).total_seconds()
    if age > config.duplicate_window:
        raise ConfigError(
            f"stream {config.name}",
            f"retention={config.retention}",
            f"its messages may have been consumed, so already stored rows cannot be found. The last one came {age:.0f} "
            f"s ago, longer than the duplicate_window ({config.duplicate_window:g} s): rows could be stored twice. "
            f"{remedy}",
        )
