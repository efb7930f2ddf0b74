"""Writing the rows of a task so that a repetition changes nothing. Runs on the loop of the worker.

*By message id*: see ``_id_writer``.

*By atomic batches* (ADR-50): every batch carries a marker that says how many rows of the task are stored. The marker is
only accepted after the one before it, so of two concurrent attempts one is refused, whole; a later attempt, however
late, reads the marker and continues after it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pyarrow as pa

from natsproto._client import Client
from natsproto._value import Value
from natsproto.errors import (
    ConfigError,
    InvalidReply,
    MessageNotFound,
    PermissionDenied,
    PublishUncertain,
    WrongExpectation,
)
from natsproto.jetstream._config import StreamConfig
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._policies import RetentionPolicy
from natsproto.jetstream._stream import Stream
from natsproto.protocol.subject import matches
from natsproto.spark._arrow import message_columns
from natsproto.spark._id_writer import IdWriter, WriteResult
from natsproto.spark._options import SinkOptions
from natsproto.spark._schema import HeaderFilter, MessageColumns, no_id
from natsproto.spark._stored_rows import StoredRows, WriteTask, check_window, look_up

MAX_BATCH_ATTEMPTS = 20
"""Attempts to store a batch while other attempts of the task store it too."""


class Marker(Value):
    """The progress of a task: ``rows`` stored of ``epoch``. ``seq`` is the sequence of the marker, 0 if there is none.

    ``digest`` is the checksum of these rows, by which a retry with other rows is detected; -1 if unknown.
    """

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    digest: int = -1

    @classmethod
    def read(cls, seq: int, data: bytes) -> Marker:
        """InvalidReply if it is not a marker: something else publishes to the subject."""
        try:
            said = json.loads(data)
            return cls(seq=seq, epoch=int(said["epoch"]), rows=int(said["rows"]), digest=int(said.get("digest", -1)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidReply(
                "progress of a sink",
                "marker",
                data[:64],
                "is not a marker of this sink: only the sink may publish below progressSubject",
            ) from None

    def data(self) -> bytes:
        """The payload of the marker."""
        return json.dumps({"epoch": self.epoch, "rows": self.rows, "digest": self.digest}).encode()

    def rows_of(self, epoch: int) -> int | None:
        """The number of stored rows of that epoch; None for all of them."""
        if self.epoch > epoch:
            return None
        return self.rows if self.epoch == epoch else 0


async def check_target(client: Client, settings: SinkOptions) -> StreamInfo:
    """The target stream's info. ConfigError if it cannot keep the guarantee; StreamNotFound."""
    info = (await client.jetstream().stream(settings.stream)).cached_info
    config = info.config
    what = f"stream {settings.stream}"
    if config.no_ack:
        raise ConfigError(what, "no_ack", "acknowledges no message, so the sink cannot know what it has stored")
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
    if settings.stable_order or settings.exactly_once == "none":
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
    info = await check_target(client, settings)
    config = info.config
    headers = HeaderFilter(settings.server_headers)
    columns = _columns(config, settings, headers, batches)
    if settings.exactly_once == "atomic":
        js = client.jetstream()
        stream = await js.stream(settings.stream, bind=True)
        done = await _AtomicWriter(js, stream, settings, task, rollup=config.allow_rollup_hdrs).write(columns)
    else:
        ids = partial(task.ids, stable_order=settings.stable_order, option="stableOrder=true")
        writer = IdWriter(
            client,
            task,
            ids=ids if settings.exactly_once == "msgid" else None,
            look_up=partial(_look_up, client, info, settings.recovery_window),
            max_pending=settings.max_pending,
            timeout=settings.timeout,
        )
        done = await writer.write(columns)
    yield done.replace(removed_headers=dict(headers.removed))


async def _columns(
    config: StreamConfig, settings: SinkOptions, headers: HeaderFilter, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[MessageColumns]:
    """The batches as messages of the stream."""
    known: set[str] = set()
    row = 0
    async for batch in batches:
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
    client: Client, info: StreamInfo, recovery_window: float, task: WriteTask, _: str
) -> StoredRows | None:
    try:
        return await look_up(client, info, task, recovery_window=recovery_window, remedy=_CONSUMED_REMEDY)
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


# ---------------------------------------------------------------- by atomic batches


class _AtomicWriter:
    """One task that writes atomic batches, each after the marker of the one before."""

    def __init__(self, js: JetStream, stream: Stream, settings: SinkOptions, task: WriteTask, *, rollup: bool) -> None:
        self._js, self._stream, self._settings, self._task = js, stream, settings, task
        self._subject = f"{settings.progress_subject}.{task.owner}.{task.partition}"
        self._rollup = rollup
        self._marker = Marker()
        self._digest = 0
        """Checksum of the rows before the current ones."""

    async def write(self, batches: AsyncIterator[MessageColumns]) -> WriteResult:
        await self._read_marker()
        row = before = 0
        async for batch in batches:
            for begin in range(0, len(batch.subjects), self._settings.atomic_batch_rows):
                piece = batch.rows_between(begin, begin + self._settings.atomic_batch_rows)
                before += await self._store(row, piece)
                row += len(piece.subjects)
                self._digest = piece.digest(self._digest)
        if self._marker.epoch == self._task.epoch and row < self._marker.rows:
            raise self._rows_changed()
        return WriteResult(rows=row, duplicates=before)

    async def _store(self, row: int, piece: MessageColumns) -> int:
        """Stores the rows of the piece (its first one is ``row``), except stored ones, and returns their number."""
        count = len(piece.subjects)
        stored_here = 0
        for _ in range(MAX_BATCH_ATTEMPTS):
            done = self._marker.rows_of(self._task.epoch)
            skip = count if done is None else min(count, max(0, done - row))
            if skip and done is not None and done <= row + count:
                self._check_same_rows(piece.rows_between(0, skip))
            if skip == count:
                return count - stored_here
            try:
                await self._commit(row + count, piece.rows_between(skip, count), piece.digest(self._digest))
            except WrongExpectation:
                await self._read_marker()  # another attempt was here
            except PublishUncertain:
                await self._read_marker()  # says whether it is stored; if it still comes, the next one is refused
            else:
                stored_here = count - skip
        raise PublishUncertain(
            self._subject,
            f"gave up after {MAX_BATCH_ATTEMPTS} attempts: another attempt of the task keeps writing the same rows",
        )

    def _check_same_rows(self, stored: MessageColumns) -> None:
        """ConfigError unless the marker was written after the same rows: these, and those before."""
        if self._marker.digest not in (-1, stored.digest(self._digest)):
            raise self._rows_changed()

    def _rows_changed(self) -> ConfigError:
        return ConfigError(
            "stableOrder",
            "true",
            f"does not hold: partition {self._task.partition} of batch number {self._task.epoch} was repeated with "
            "other rows, or in another order. Nothing more was written. Use exactlyOnce=msgid with a column msg_id",
        )

    async def _commit(self, rows: int, piece: MessageColumns, digest: int) -> None:
        marker = Marker(epoch=self._task.epoch, rows=rows, digest=digest)
        async with self._js.atomic_batch(timeout=self._settings.timeout) as batch:
            for index, (subject, data) in enumerate(zip(piece.subjects, piece.payloads, strict=True)):
                headers = piece.headers[index] if piece.headers else None
                await batch.publish(subject, data, headers=headers, msg_id=piece.ids[index] if piece.ids else None)
            await batch.publish(
                self._subject,
                marker.data(),
                expected_last_subject_seq=self._marker.seq,
                rollup="sub" if self._rollup else None,
            )
        self._marker = marker.replace(seq=batch.ack.seq)

    async def _read_marker(self) -> None:
        try:
            # From the leader: another server may lack the newest.
            found = await self._stream.get_last_message(self._subject, direct=False)
        except MessageNotFound:
            self._marker = Marker()
        else:
            self._marker = Marker.read(found.seq, found.data)
