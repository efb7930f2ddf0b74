"""Writing the rows of a task of the sink, which has checked its target. Runs on the loop of the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from natsproto import Client
from natsproto.errors import ConfigError, PermissionDenied
from natsproto.jetstream import JetStream, RetentionPolicy, StreamConfig, StreamInfo
from natsproto.protocol.subject import matches
from natsproto.spark._id_writer import IdsOf, IdWriter
from natsproto.spark._marked_batches import MarkedBatchWriter, RowsChanged
from natsproto.spark._options import SinkOptions
from natsproto.spark._schema import HeaderFilter, key_ids, no_id, row_ids
from natsproto.spark._stored_rows import StoredRows, check_window, look_up
from natsproto.spark._task import MessageColumns, WriteResult, WriteTask

if TYPE_CHECKING:
    import pyarrow as pa


async def check_target(client: Client, settings: SinkOptions) -> StreamInfo:
    """The target stream's info. ConfigError if it cannot keep the guarantee; StreamNotFound."""
    info = (await client.jetstream().stream(settings.stream)).cached_info
    config = info.config
    what = f"stream {settings.stream}"
    if config.no_ack:
        raise ConfigError(what, "no_ack", "acknowledges no message, so the sink cannot know what it has stored")
    if settings.bucket and config.mirror is not None:
        raise ConfigError("bucket", settings.bucket, "is a mirror: write to the bucket that it mirrors")
    if settings.subject:
        check_subject(config, settings.subject)
    if settings.exactly_once == "msgid":
        remedy = "Widen the window, lower recoveryWindow, or use exactlyOnce=atomic on a work queue"
        check_window(info, settings.recovery_window, remedy)
    if settings.exactly_once == "atomic":
        if not config.allow_atomic:
            raise ConfigError(
                what, "allow_atomic=False", "takes no atomic batches: allow them, or use exactlyOnce=msgid"
            )
        if config.retention == RetentionPolicy.INTEREST:
            raise ConfigError(what, "retention=interest", "keeps no markers: use exactlyOnce=msgid")
        check_subject(config, f"{settings.progress_subject}.owner.0")
    return info


def check_ids(columns: Sequence[str], settings: SinkOptions) -> None:
    """ConfigError if a row repeated after a failure could not be recognized."""
    if settings.stable_order or settings.bucket or settings.exactly_once == "none":
        return
    if settings.exactly_once == "atomic":
        raise ConfigError(
            "stableOrder",
            "false",
            "markers count rows, so exactlyOnce=atomic needs rows that come in the same order whenever they are "
            "computed. Set it to true if that is so, or use exactlyOnce=msgid with a column msg_id",
        )
    if "msg_id" not in columns:
        raise no_id("stableOrder=true")


def check_subject(config: StreamConfig, subject: str) -> None:
    """ConfigError unless the stream listens on the subject."""
    if not any(matches(pattern, subject) for pattern in config.subjects):
        raise ConfigError(
            "subject", subject, f"is not a subject of stream {config.name} (subjects: {', '.join(config.subjects)})"
        )


async def write_messages(
    client: Client, settings: SinkOptions, task: WriteTask, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[WriteResult]:
    """Publishes the rows, in their order, and yields one WriteResult when all are acknowledged.

    ConfigError for invalid rows, PublishFailed, PublishUncertain, and the errors of ``js.publish``.
    Cancelling leaves some rows published; the next attempt repeats them.
    """
    js, info = client.jetstream(), await check_target(client, settings)
    config = info.config
    headers = HeaderFilter(settings.server_headers)
    columns = _columns(config, settings, headers, batches)
    if settings.exactly_once == "atomic":
        progress, size = settings.progress_subject, settings.atomic_batch_rows
        atomic = MarkedBatchWriter(js, config, task, progress=progress, batch_size=size, timeout=settings.timeout)
        try:
            done = await atomic.write(columns)
        except RowsChanged:
            raise ConfigError(
                "stableOrder",
                "true",
                f"does not hold: partition {task.partition} of batch number {task.epoch} was repeated with other rows, "
                "or in another order. Nothing more was written. Use exactlyOnce=msgid with a column msg_id",
            ) from None
    else:
        ids: IdsOf = partial(row_ids, task, stable_order=settings.stable_order, option="stableOrder=true")
        if settings.bucket:
            ids = partial(key_ids, task, Counter())
        writer = IdWriter(
            js,
            task,
            ids=ids if settings.exactly_once == "msgid" else None,
            look_up=partial(_look_up, js, info, settings.recovery_window),
            max_pending=settings.max_pending,
            timeout=settings.timeout,
        )
        done = await writer.write(columns)
    yield done.replace(removed_headers=dict(headers.removed))


async def _columns(
    config: StreamConfig, settings: SinkOptions, headers: HeaderFilter, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[MessageColumns]:
    """The batches as messages of the stream."""
    from natsproto.spark._arrow import entry_columns, message_columns  # the processes of the driver do without Arrow

    known: set[str] = set()
    row = 0
    async for batch in batches:
        if settings.bucket:
            yield entry_columns(batch, settings.bucket)
            continue
        found = message_columns(batch, headers, subject=settings.subject, first_row=row)
        for subject in set(found.subjects) - known:
            check_subject(config, subject)
            known.add(subject)
        row += len(found.subjects)
        yield found


# ---------------------------------------------------------------- by message id


_CONSUMED_REMEDY = (
    "Use exactlyOnce=atomic on a work queue, or exactlyOnce=none for this run if rows stored twice do no harm"
)


async def _look_up(
    js: JetStream, info: StreamInfo, recovery_window: float, task: WriteTask, _: str
) -> StoredRows | None:
    try:
        return await look_up(js, info, task, recovery_window=recovery_window, remedy=_CONSUMED_REMEDY)
    except PermissionDenied as exc:
        _check_window_instead(info, recovery_window, exc)
        return None


def _check_window_instead(info: StreamInfo, recovery_window: float, exc: PermissionDenied) -> None:
    """ConfigError if the duplicate window does not cover the rows of a target that may not be read."""
    config = info.config
    if config.duplicate_window < recovery_window:
        raise ConfigError(
            f"duplicate_window of stream {config.name}",
            config.duplicate_window,
            f"is shorter than recoveryWindow ({recovery_window:g} s), and this account may not read the stream to find "
            f"stored rows. Allow $JS.API.DIRECT.GET.{config.name} or $JS.API.CONSUMER.CREATE.{config.name}.>, or widen "
            "the window",
        ) from exc
