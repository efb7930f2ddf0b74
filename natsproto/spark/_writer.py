"""Writing the rows of a task of the sink, which has checked its target. Runs on the loop of the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from natsproto import Client, errors
from natsproto.jetstream import Cursor, JetStream, Stream, StreamConfig
from natsproto.jetstream.kv._keys import check_key_name
from natsproto.protocol.subject import matches
from natsproto.spark._bad_rows import BATCH_HEADERS_BYTES, IdsOf, RowCheck, size_limit
from natsproto.spark._cursor_writer import CursorWriter, RowsChanged
from natsproto.spark._entry_writer import EntryWriter
from natsproto.spark._forgotten_ids import window_check
from natsproto.spark._id_writer import IdWriter
from natsproto.spark._options import SinkOptions
from natsproto.spark._outages import outlast
from natsproto.spark._schema import HeaderFilter, key_ids, no_id, row_ids
from natsproto.spark._task import MessageColumns, WriteResult, WriteTask

if TYPE_CHECKING:
    import pyarrow as pa


async def check_target(client: Client, settings: SinkOptions) -> Stream:
    """The target. ConfigError if it cannot keep the guarantee; StreamNotFound."""
    stream = await client.jetstream().stream(settings.stream)
    config = stream.cached_info.config
    if config.no_ack:
        raise errors.ConfigError(
            f"stream {settings.stream}", "no_ack", "acknowledges no message, so the sink cannot know what it has stored"
        )
    if settings.bucket and config.mirror is not None:
        raise errors.ConfigError("bucket", settings.bucket, "is a mirror: write to the bucket that it mirrors")
    if settings.subject:
        check_subject(config, settings.subject)
    if settings.letter_subject and settings.delivery == "cursor":
        check_subject(config, settings.letter_subject, "deadLetterSubject")  # a batch is of one stream
    if settings.delivery == "cursor":
        await open_cursor(client, settings, "check")
    return stream


async def open_cursor(client: Client, settings: SinkOptions, name: str) -> Cursor:
    """The cursor of this name, of a stream that can have it. The errors of ``js.cursor``."""
    own = f"spark-{name}"
    subject = f"{settings.cursor_subject}.{own}" if settings.cursor_subject else None
    return await client.jetstream().cursor(settings.stream, own, subject=subject, timeout=settings.timeout)


def check_ids(columns: Sequence[str], settings: SinkOptions) -> None:
    """ConfigError if a row repeated after a failure could not be recognized."""
    if settings.stable_order or settings.delivery == "none":
        return
    if settings.delivery == "cursor":
        raise errors.ConfigError(
            "stableOrder",
            "false",
            "a cursor counts rows, so delivery=cursor needs rows that come in the same order whenever they are "
            "computed. Set it to true if that is so, or use delivery=ids with a column msg_id",
        )
    if "msg_id" not in columns and not settings.bucket:
        raise no_id("stableOrder=true")


def check_subject(config: StreamConfig, subject: str, name: str = "subject") -> None:
    """ConfigError unless the stream listens on the subject."""
    if not any(matches(pattern, subject) for pattern in config.subjects):
        raise errors.ConfigError(
            name, subject, f"is not a subject of stream {config.name} (subjects: {', '.join(config.subjects)})"
        )


async def write_messages(
    client: Client, settings: SinkOptions, task: WriteTask, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[WriteResult]:
    """Publishes the rows, in their order, and yields one WriteResult when all are acknowledged.

    ConfigError for invalid rows, PublishFailed, PublishUncertain, and the errors of ``js.publish`` and of cursors.
    Cancelling leaves some rows published; the next attempt repeats them.
    """
    what, wait = f"stream {settings.stream!r}", settings.nats.outage_timeout
    stream = await outlast(what, wait, partial(check_target, client, settings))
    headers = HeaderFilter(settings.server_headers)
    check = _row_check(client, stream.cached_info.config, settings, task)
    columns = check.check_all(_columns(settings, headers, batches))
    if settings.delivery == "cursor":
        name = f"{task.owner}-{task.partition}"
        cursor = await outlast(what, wait, partial(open_cursor, client, settings, name))
        try:
            done = await CursorWriter(cursor, task).write(columns)
        except RowsChanged:
            raise errors.ConfigError(
                "stableOrder",
                "true",
                f"does not hold: partition {task.partition} of batch number {task.epoch} was repeated with other rows, "
                "or in another order. Nothing more was written. Use delivery=ids with a column msg_id",
            ) from None
    else:
        done = await _writer_with_ids(client.jetstream(), stream, settings, task).write(columns)
    yield done.replace(
        rows=done.rows - check.letters, removed_headers=dict(headers.removed), bad_rows=dict(check.counts)
    )


def _row_check(client: Client, config: StreamConfig, settings: SinkOptions, task: WriteTask) -> RowCheck:
    def check_key(subject: str) -> None:
        check_key_name(subject.removeprefix(f"$KV.{settings.bucket}."))

    ids: IdsOf = partial(row_ids, task, stable_order=settings.stable_order, option="stableOrder=true")
    if settings.bucket:
        ids = partial(key_ids, task, Counter())
    return RowCheck(
        settings.bad_rows,
        settings.letter_subject,
        stream=settings.stream,
        max_size=size_limit(client.max_payload, config),
        ids=ids if settings.delivery == "ids" else None,
        added=BATCH_HEADERS_BYTES if settings.delivery == "cursor" else 0,
        check_subject=check_key if settings.bucket else partial(check_subject, config),
    )


def _writer_with_ids(js: JetStream, stream: Stream, settings: SinkOptions, task: WriteTask) -> IdWriter | EntryWriter:
    is_checked = task.is_repeated and settings.delivery == "ids"
    if settings.bucket and is_checked:
        return EntryWriter(js, stream, task, settings.timeout)

    async def check_for(_: str) -> Callable[[], None] | None:
        return window_check(stream.cached_info, task, allow=settings.duplicates == "allow", remedy=_REMEDY)

    return IdWriter(
        js,
        check_for=check_for if is_checked else None,
        max_pending=settings.max_pending,
        timeout=settings.timeout,
    )


_REMEDY = "duplicates=allow accepts that; a wider duplicate_window, or delivery=cursor for the next query, prevents it"


async def _columns(
    settings: SinkOptions, headers: HeaderFilter, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[MessageColumns]:
    """The batches as messages of the stream."""
    from natsproto.spark._arrow import entry_columns, message_columns  # the processes of the driver do without Arrow

    async for batch in batches:
        if settings.bucket:
            yield entry_columns(batch, settings.bucket)
        else:
            yield message_columns(batch, headers, subject=settings.subject)
