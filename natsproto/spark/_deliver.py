"""What a task of a sink does with its rows: publishes them so that a repetition changes nothing.

Owns the two ways to exactly once, and the marker of the second. It runs on the loop of the worker and knows nothing of
Spark but what tells one piece of work from another: the ``Task``.

*By message id*: the id of a row is that of its task and its number in it, so a task that runs again publishes the same
ids, and the stream drops them, within its ``duplicate_window``. What it may have forgotten is looked up in it before
(``stored``).

*By atomic batches* (ADR-50): rows go in batches, each together with a marker that says how far the task is. The
marker is only accepted behind the one before it, so of two attempts one is refused, whole; an attempt that comes
later, however late, reads the marker and goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence

import pyarrow as pa

from natsproto._client import Client
from natsproto._value import Value
from natsproto.errors import (
    ConfigError,
    InvalidReply,
    MessageNotFound,
    PublishUncertain,
    WrongExpectation,
)
from natsproto.jetstream._config import RetentionPolicy, StreamConfig
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._stream import Stream
from natsproto.protocol.subject import matches
from natsproto.spark._outgoing import Outgoing, outgoing
from natsproto.spark._publishing import HeaderFilter, no_id
from natsproto.spark._settings import SinkSettings
from natsproto.spark._stored import StoredRows, check_window

ATTEMPTS = 20
"""How often one batch is tried against others that write in its place."""


class Task(Value):
    """A piece of work that Spark may run more than once: the rows of one partition of one write or epoch."""

    owner: str
    epoch: int
    partition: int
    run: str = ""
    """The run of the query, or the write: what began anew looks for what was stored before."""
    repeated: bool = False
    """Whether its rows may have been stored before, longer ago than the stream remembers."""
    retry: bool = False
    """Whether another attempt of the same run came before."""
    after: int = 0
    """The sequence of the target behind which all its rows are, 0 when that is not known."""

    @property
    def id_prefix(self) -> str:
        """What the ids of its rows begin with."""
        return f"{self.owner}.{self.epoch}.{self.partition}."


class Delivered(Value):
    """What became of the rows of a task: ``rows`` there were, ``duplicates`` of them were in the stream already.

    ``stripped`` counts the server headers that were left out, by name.
    """

    rows: int
    duplicates: int
    stripped: Mapping[str, int] = {}


class Marker(Value):
    """How far a task came: so many rows of that epoch. ``seq`` is the sequence of the marker, 0 when there is none.

    ``digest`` is that of these rows, so that others that come in their place are noticed; -1 when it is not known.
    """

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    digest: int = -1

    @classmethod
    def read(cls, seq: int, data: bytes) -> Marker:
        """InvalidReply when it is none: something else publishes to the subject of the markers."""
        try:
            said = json.loads(data)
            return cls(seq=seq, epoch=int(said["epoch"]), rows=int(said["rows"]), digest=int(said.get("digest", -1)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidReply(
                "progress of a sink", "marker", data[:64], "is none: keep progressSubject free"
            ) from None

    def data(self) -> bytes:
        """As it is published."""
        return json.dumps({"epoch": self.epoch, "rows": self.rows, "digest": self.digest}).encode()

    def rows_of(self, epoch: int) -> int | None:
        """How many rows of that epoch are stored; None for all of them."""
        if self.epoch > epoch:
            return None
        return self.rows if self.epoch == epoch else 0


async def check_sink(client: Client, settings: SinkSettings) -> StreamInfo:
    """The stream as it is. ConfigError when it cannot keep what was promised; StreamNotFound."""
    info = (await client.jetstream().stream(settings.stream)).cached_info
    config = info.config
    what = f"stream {settings.stream}"
    if config.no_ack:
        raise ConfigError(what, "no_ack", "acknowledges nothing, so nobody knows what it has stored")
    if settings.subject:
        check_subject(config, settings.subject)
    if settings.guarantee == "msgid":
        check_window(info, settings.recovery_window)
    if settings.guarantee == "atomic":
        if not config.allow_atomic:
            raise ConfigError(
                what, "allow_atomic=False", "takes no atomic batches: allow them, or use exactlyOnce=msgid"
            )
        if config.retention == RetentionPolicy.INTEREST:
            raise ConfigError(what, "retention=interest", "keeps no markers: use exactlyOnce=msgid")
        check_subject(config, f"{settings.progress_subject}.owner.0")
    return info


def check_ids(columns: Sequence[str], settings: SinkSettings) -> None:
    """ConfigError when a row that comes again after a failure could not be told from another one."""
    if settings.stable_order or settings.guarantee == "none":
        return
    if settings.guarantee == "atomic":
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
            "subject", subject, f"is none of stream {config.name}, which has {', '.join(config.subjects)}"
        )


async def deliver(
    client: Client, settings: SinkSettings, task: Task, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[Delivered]:
    """Publishes the rows, in their order, and yields one word when all are acknowledged.

    ConfigError for rows that cannot be published, PublishFailed and PublishUncertain, and what ``js.publish`` raises.
    Cancelling leaves some rows published; the next attempt repeats them.
    """
    info = await check_sink(client, settings)
    config = info.config
    headers = HeaderFilter(settings.server_headers)
    columns = _columns(config, settings, headers, batches)
    if settings.guarantee == "atomic":
        js = client.jetstream()
        stream = await js.stream(settings.stream, bind=True)
        done = await _Atomic(js, stream, settings, task, rollup=config.allow_rollup_hdrs).deliver(columns)
    else:
        done = await _ById(client, settings, info, task).deliver(columns)
    yield done.but(stripped=dict(headers.stripped))


async def _columns(
    config: StreamConfig, settings: SinkSettings, headers: HeaderFilter, batches: AsyncIterator[pa.RecordBatch]
) -> AsyncIterator[Outgoing]:
    """The batches as messages of the stream."""
    known: set[str] = set()
    row = 0
    async for batch in batches:
        found = outgoing(batch, headers, subject=settings.subject, first_row=row)
        for subject in set(found.subjects) - known:
            check_subject(config, subject)
            known.add(subject)
        row += len(found.subjects)
        yield found


# ---------------------------------------------------------------- by message id


_LOOKED_UP: dict[str, tuple[Task, StoredRows]] = {}
"""What was found last, by query: the tasks of an epoch that run in one process look once."""


class _ById:
    """One task that writes messages with ids."""

    def __init__(self, client: Client, settings: SinkSettings, info: StreamInfo, task: Task) -> None:
        self._client, self._settings, self._info, self._task = client, settings, info, task
        self._looks = task.repeated and settings.guarantee == "msgid"
        self._stored: StoredRows | None = None

    async def deliver(self, batches: AsyncIterator[Outgoing]) -> Delivered:
        settings = self._settings
        rows = duplicates = 0
        unsettled: list[AckFuture] = []
        js = self._client.jetstream()
        async with js.publisher(max_pending=settings.window, timeout=settings.timeout) as publisher:
            publish = publisher.publish
            async for batch in batches:
                ids = _ids(settings, self._task, rows, batch)
                if self._looks:
                    places = await self._new_rows(rows, batch, ids)
                    duplicates += len(ids) - len(places)
                    rows += len(ids) - len(places)
                    batch, ids = batch.at(places), [ids[place] for place in places]
                sent: list[AckFuture] = []
                if batch.headers:
                    for subject, data, key, pairs in zip(
                        batch.subjects, batch.payloads, ids, batch.headers, strict=True
                    ):
                        sent.append(await publish(subject, data, msg_id=key, headers=pairs))
                else:
                    for subject, data, key in zip(batch.subjects, batch.payloads, ids, strict=True):
                        sent.append(await publish(subject, data, msg_id=key))
                rows += len(sent)
                unsettled += sent
                duplicates += sum(future.duplicate for future in unsettled)
                unsettled = [future for future in unsettled if not future.done()]
            await publisher.flush()
            duplicates += sum(future.duplicate for future in unsettled)
        return Delivered(rows=rows, duplicates=duplicates)

    async def _new_rows(self, row: int, batch: Outgoing, ids: Sequence[str | None]) -> list[int]:
        """The places of those rows in a batch that are not stored; the batch begins with row ``row``."""
        if self._stored is None:
            self._stored = await self._look_up(keep_ids=bool(batch.ids))
        stored, partition = self._stored, self._task.partition
        return [
            place
            for place, (key, subject) in enumerate(zip(ids, batch.subjects, strict=True))
            if not (
                key in stored.ids
                if batch.ids and batch.ids[place] is not None
                else stored.has_row(partition, row + place, subject)
            )
        ]

    async def _look_up(self, *, keep_ids: bool) -> StoredRows:
        task = self._task
        before, found = _LOOKED_UP.get(task.owner, (None, None))
        if found is None or before != task.but(partition=0) or task.retry:
            superseding = self._info.config.max_msgs_per_subject > 0
            found = StoredRows(task.owner, task.epoch, keep_ids=keep_ids, superseding=superseding)
            await found.look_up(
                self._client, self._info, recovery_window=self._settings.recovery_window, after=task.after
            )
            _LOOKED_UP.clear()
            _LOOKED_UP[task.owner] = task.but(partition=0), found
        return found


def _ids(settings: SinkSettings, task: Task, row: int, batch: Outgoing) -> Sequence[str | None]:
    count = len(batch.subjects)
    if settings.guarantee == "none":
        return batch.ids or [None] * count
    prefix = task.id_prefix
    if not settings.stable_order and (not batch.ids or None in batch.ids):
        raise no_id("stableOrder=true", row + (list(batch.ids).index(None) if batch.ids else 0))
    if not batch.ids:
        return [f"{prefix}{number}" for number in range(row, row + count)]
    return [f"{prefix}{row + place}" if key is None else key for place, key in enumerate(batch.ids)]


# ---------------------------------------------------------------- by atomic batches


class _Atomic:
    """One task that writes in atomic batches, each behind the marker of the one before."""

    def __init__(self, js: JetStream, stream: Stream, settings: SinkSettings, task: Task, *, rollup: bool) -> None:
        self._js, self._stream, self._settings, self._task = js, stream, settings, task
        self._subject = f"{settings.progress_subject}.{task.owner}.{task.partition}"
        self._rollup = rollup
        self._marker = Marker()
        self._digest = 0
        """Of the rows before those that are being stored."""

    async def deliver(self, batches: AsyncIterator[Outgoing]) -> Delivered:
        await self._read_marker()
        row = before = 0
        async for batch in batches:
            for begin in range(0, len(batch.subjects), self._settings.chunk_rows):
                piece = batch.piece(begin, begin + self._settings.chunk_rows)
                before += await self._store(row, piece)
                row += len(piece.subjects)
                self._digest = piece.digest(self._digest)
        if self._marker.epoch == self._task.epoch and row < self._marker.rows:
            raise self._other_rows()
        return Delivered(rows=row, duplicates=before)

    async def _store(self, row: int, piece: Outgoing) -> int:
        """Stores the rows of the piece that are not yet; returns how many were. The piece begins with row ``row``."""
        count = len(piece.subjects)
        stored_here = 0
        for _ in range(ATTEMPTS):
            done = self._marker.rows_of(self._task.epoch)
            skip = count if done is None else min(count, max(0, done - row))
            if skip and done is not None and done <= row + count:
                self._check_same(piece.piece(0, skip))
            if skip == count:
                return count - stored_here
            try:
                await self._commit(row + count, piece.piece(skip, count), piece.digest(self._digest))
            except WrongExpectation:
                await self._read_marker()  # another attempt was here
            except PublishUncertain:
                await self._read_marker()  # says whether it is stored; if it still comes, the next one is refused
            else:
                stored_here = count - skip
        raise PublishUncertain(self._subject, f"{ATTEMPTS} attempts met others that write the same rows")

    def _check_same(self, stored: Outgoing) -> None:
        """ConfigError unless the marker was written behind the same rows: these, and those before."""
        if self._marker.digest not in (-1, stored.digest(self._digest)):
            raise self._other_rows()

    def _other_rows(self) -> ConfigError:
        return ConfigError(
            "stableOrder",
            "true",
            f"does not hold: partition {self._task.partition} of epoch {self._task.epoch} came again with other rows, "
            "or in another order. Nothing more was written. Use exactlyOnce=msgid with a column msg_id",
        )

    async def _commit(self, rows: int, piece: Outgoing, digest: int) -> None:
        marker = Marker(epoch=self._task.epoch, rows=rows, digest=digest)
        async with self._js.atomic_batch(timeout=self._settings.timeout) as batch:
            for place, (subject, data) in enumerate(zip(piece.subjects, piece.payloads, strict=True)):
                headers = piece.headers[place] if piece.headers else None
                await batch.publish(subject, data, headers=headers, msg_id=piece.ids[place] if piece.ids else None)
            await batch.publish(
                self._subject,
                marker.data(),
                expected_last_subject_seq=self._marker.seq,
                rollup="sub" if self._rollup else None,
            )
        self._marker = marker.but(seq=batch.ack.seq)

    async def _read_marker(self) -> None:
        try:
            # Of the leader: another server may not have the newest.
            found = await self._stream.get_last_message(self._subject, direct=False)
        except MessageNotFound:
            self._marker = Marker()
        else:
            self._marker = Marker.read(found.seq, found.data)
