"""Backup and restore of streams.

Owns the two files of a backup, in the format of the ``nats`` command line tool, and the flow of the chunks:
``backup.json`` has the ``config`` and ``state`` of the stream, ``stream.tar.s2`` the snapshot from the server, which is
not parsed.

A thread reads and writes the files, so that a slow disk does not block the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from natsproto import errors
from natsproto._core.events import Closed, Disconnected, Event, Moved, PermissionViolation
from natsproto._core.inbox.subscription import Subscription
from natsproto._durations import positive_seconds
from natsproto._value import Value
from natsproto.jetstream._api.requests import Api, raise_closed
from natsproto.jetstream._values.codec import Duration, decode, encode, parse
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.error_codes import api_error
from natsproto.jetstream._values.features import RequiredFeature, needed_by_stream
from natsproto.jetstream._values.info import RestoreReply, SnapshotReply, StreamInfo
from natsproto.protocol.frames import Message

_RENAMING = RequiredFeature("another name", "2.15", 5)
CHUNK_BYTES = 128 * 1024
"""The default size of a chunk in bytes, also of the server."""
WINDOW_BYTES = 8 * 2**20
"""Bytes that may be unacknowledged."""
META_FILE, DATA_FILE = "backup.json", "stream.tar.s2"
"""The files of a backup."""
ARCHIVE_FILE = "stream.arc.s2"
"""The snapshot of a newer server, with the name that newer versions of the tool use."""
_MAX_META_BYTES = 16 * 2**20


class Progress(Value):
    """The progress of a backup or restore.

    ``bytes`` and ``chunks`` were written or sent so far. ``total`` is the size of the snapshot in a restore; in a
    backup it is the size of the stream in its store (the snapshot is smaller, since it is compressed).
    """

    bytes: int
    chunks: int
    total: int


async def save(
    api: Api,
    stream: str,
    path: str | os.PathLike[str],
    *,
    consumers: bool,
    check: bool,
    chunk_size: int,
    window_size: int,
    progress: Callable[[Progress], object] | None,
    timeout: Duration | None,
) -> Progress:
    """Write a stream to a folder; see Stream.backup."""
    for what, size, most in (("chunk_size", chunk_size, 2**20), ("window_size", window_size, 32 * 2**20)):
        if type(size) is not int or not 1024 <= size <= most:
            raise errors.ConfigError(what, size, f"must be from 1,024 to {most:,} bytes")
    target = Path(path)
    partial = target.with_name(f"{target.name}.{api.connection._runtime.new_id()}.partial")
    partial.mkdir(mode=0o700)
    try:
        with _create(partial / DATA_FILE) as file:
            async with _TransferInbox(api, f"backup of stream {stream!r}", timeout) as transfer:
                body: dict[str, object] = {"deliver_subject": transfer.inbox, "chunk_size": chunk_size}
                body["window_size"] = window_size
                if not consumers:
                    body["no_consumers"] = True
                if check:
                    body["jsck"] = True
                started = await api.call_for(
                    SnapshotReply, f"STREAM.SNAPSHOT.{stream}", body, operation=transfer.operation, timeout=timeout
                )
                done = await _receive(transfer, file, started, progress)
            await asyncio.to_thread(_finish, file)
        with _create(partial / META_FILE) as file:
            saved = {"config": encode(started.config), "state": encode(started.state)}
            await asyncio.to_thread(file.write, json.dumps(saved, indent=2).encode())
            await asyncio.to_thread(_finish, file)
        _replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return done


def _replace(partial: Path, target: Path) -> None:
    """Give the backup its name. An older one stands aside first, as a folder cannot be replaced in one step."""
    if not (target / META_FILE).is_file():
        os.replace(partial, target)  # no file or an empty folder; OSError for others
        return
    older = partial.with_suffix(".older")
    os.replace(target, older)
    os.replace(partial, target)
    shutil.rmtree(older)


async def _receive(
    transfer: _TransferInbox, file: BinaryIO, started: SnapshotReply, progress: Callable[[Progress], object] | None
) -> Progress:
    """Write chunks and acknowledge them until the server reports the end."""
    size = chunks = 0
    total = started.state.bytes
    while True:
        received = await transfer.take()
        end = next((index for index, message in enumerate(received) if not message.data), None)
        full = received if end is None else received[:end]
        for message in full:
            chunks += 1
            _check_order(message, chunks, transfer.operation)
        if full:
            await asyncio.to_thread(file.writelines, [message.data for message in full])
            for message in full:
                if message.has_reply:
                    await message.respond()
            size += sum(len(message.data) for message in full)
            if progress is not None:
                progress(Progress(bytes=size, chunks=chunks, total=total))
        if end is not None:
            headers = received[end].headers
            if headers._status not in (0, 204):
                raise errors.ApiError(headers._status, 0, headers._description, transfer.operation)
            return Progress(bytes=size, chunks=chunks, total=total)


def _check_order(message: Message, number: int, operation: str) -> None:
    """The ack subject of a chunk ends with its size and number; the last chunk may have none."""
    if message.reply is None:
        return
    words = message.reply.split(".")[-2:]
    if words != [str(len(message.data)), str(number)]:
        raise errors.InvalidReply(operation, f"chunk {number}", message.reply, "is not the chunk that follows")


async def restore(
    api: Api,
    path: str | os.PathLike[str],
    change: Callable[[StreamConfig], StreamConfig],
    *,
    progress: Callable[[Progress], object] | None,
    timeout: Duration | None,
) -> StreamInfo:
    """Restore a stream from a folder; see JetStream.restore_stream."""
    folder = Path(path)
    with _open(folder / META_FILE) as file:
        saved = _read_meta(await asyncio.to_thread(file.read, _MAX_META_BYTES), os.fspath(path))
    other = folder / ARCHIVE_FILE
    with _open(other if other.exists() else folder / DATA_FILE) as file:
        total = os.fstat(file.fileno()).st_size
        config = change(saved.config)
        config.check()
        operation = f"restore of stream {config.name!r}"
        await api.require_feature(needed_by_stream(config, pedantic=False), operation, timeout)
        if config.name != saved.config.name:
            await api.require_feature(_RENAMING, operation, timeout)
        if config.first_seq and saved.state.last_seq and not await api.supports_api_level(1, operation, timeout):
            config = config.replace(first_seq=0)  # nats-server 2.10 would start after the restored messages
        body = {"config": config, "state": saved.state}
        async with _TransferInbox(api, operation, timeout) as transfer:
            started = await api.call_for(
                RestoreReply, f"STREAM.RESTORE.{config.name}", body, operation=operation, timeout=timeout
            )
            return await _send(transfer, file, started.deliver_subject, total, progress)


async def _send(
    transfer: _TransferInbox, file: BinaryIO, subject: str, total: int, progress: Callable[[Progress], object] | None
) -> StreamInfo:
    """Send the file, a window ahead of the acknowledgements, and return the server's reply."""
    connection = transfer.connection
    chunk = min(CHUNK_BYTES, connection.max_payload or CHUNK_BYTES)
    ahead = max(1, WINDOW_BYTES // chunk)
    sent = acked = size = 0
    while data := await asyncio.to_thread(file.read, chunk):
        await connection.publish(subject, data, reply=transfer.inbox)
        sent += 1
        size += len(data)
        for answer in transfer.take_nowait() if sent - acked < ahead else await transfer.take():
            _read_answer(answer, transfer.operation)
            acked += 1
        if progress is not None:
            progress(Progress(bytes=size, chunks=sent, total=total))
    while acked < sent:
        for answer in await transfer.take():
            _read_answer(answer, transfer.operation)
            acked += 1
    await connection.publish(subject, b"", reply=transfer.inbox)
    while not (received := await transfer.take()):
        pass
    return decode(StreamInfo, _read_answer(received[-1], transfer.operation))


def _read_answer(answer: Message, operation: str) -> dict[str, object]:
    """Read the server's reply to a chunk; raise the error that it reports."""
    payload = parse(answer.data, operation) if answer.data else {}
    if "error" in payload:
        raise api_error(payload, operation)
    if answer.headers._status >= 400:
        raise errors.ApiError(
            answer.headers._status, 0, answer.headers._description or "the server accepts no chunks", operation
        )
    return payload


def _read_meta(text: bytes, path: str) -> SnapshotReply:
    try:
        saved = decode(SnapshotReply, parse(text, path))
    except errors.InvalidReply:
        raise errors.ConfigError("path", path, f"is not a backup of a stream: {META_FILE} cannot be read") from None
    if not saved.config.name:
        raise errors.ConfigError("path", path, f"is not a backup of a stream: {META_FILE} names none")
    return saved


def _create(path: Path) -> BinaryIO:
    """A new file, for its owner only: it holds all messages. Not in a thread, as for _open."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb")


def _open(path: Path) -> BinaryIO:
    """The open file. Not in a thread, and neither is closing it: cancelling must find it here."""
    return path.open("rb")


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class _TransferInbox:
    """The inbox of one backup or restore, which ends with its connection."""

    def __init__(self, api: Api, operation: str, timeout: Duration | None) -> None:
        self.connection = api.connection
        self.operation = operation
        self.inbox = api.new_inbox()
        self._timeout = api.timeout if timeout is None else positive_seconds("timeout", timeout)
        self._error: errors.NatsError | None = None

    async def __aenter__(self) -> _TransferInbox:
        # Not bounded here: the window bounds what is sent.
        self._subscription: Subscription = self.connection.subscribe(
            self.inbox, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._unlisten = self.connection.add_listener(self._on_event)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unlisten()
        await self._subscription.unsubscribe()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self._error = errors.ConnectionLost(f"{self.operation} cannot go on", event.server)
        elif isinstance(event, Moved):
            self._error = errors.ConnectionLost(f"{self.operation} cannot go on", event.previous_server)
        elif isinstance(event, PermissionViolation) and event.error.subject.startswith("$JS.SNAPSHOT."):
            self._error = event.error
        elif not isinstance(event, Closed):
            return
        self._subscription._wake_reader()

    async def take(self) -> list[Message]:
        """Return the messages that have arrived, at least one; raise when none arrives in time or the inbox has
        ended.
        """
        if self._error is None:
            received = await self._subscription._read_batch(self._timeout)
            if received and self._error is None:
                return received
        if self._error is not None:
            raise self._error
        if self._subscription.closed:
            await raise_closed(self.connection, self._subscription, self.operation)
        raise errors.RequestTimeout(self.operation, self._timeout)

    def take_nowait(self) -> list[Message]:
        """Return the messages that have arrived, if any."""
        if self._error is not None:
            raise self._error
        return self._subscription._read_batch_nowait()
