"""Rows that the target holds already: those of an earlier run of the query, or of an earlier attempt of the task.

A stream drops the ids it knows, but only within its ``duplicate_window``. So before an epoch that may have been tried
before is published, the end of the target is read for the ids of its rows. Owns how far back that goes, and the
streams for which it cannot be known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import cast

from natsproto._client import Client
from natsproto.errors import ConfigError, PermissionDenied
from natsproto.jetstream._config import RetentionPolicy
from natsproto.jetstream._direct import RawMessage, stored_header_blocks
from natsproto.jetstream._info import StreamInfo
from natsproto.jetstream._message import header_blocks
from natsproto.protocol.headers import Headers
from natsproto.spark._ranges import SeqRange
from natsproto.spark._reading import Chunk, RangeReader

MIN_MESSAGES = 100_000
"""Messages of the target that are looked at, however old they are."""
FIRST_STEP, MAX_STEP = 1000, 64_000
"""Messages that are read at a time, on the way back."""
_MSG_ID = re.compile(rb"\r\nNats-Msg-Id: *([^\r]*)\r\n")


class StoredRows:
    """The ids of a target's last messages, as far as they concern one epoch of a query."""

    def __init__(self, owner: str, epoch: int, *, keep_ids: bool, superseding: bool) -> None:
        self._prefix, self._epoch = f"{owner}.", epoch
        self._keep_ids, self._superseding = keep_ids, superseding
        self._rows: dict[int, set[int]] = {}
        self._newest: dict[tuple[int, str], int] = {}
        self.ids: set[str] = set()
        """The ids that are not of this query's own making, if ``keep_ids``."""
        self._saw_earlier_epoch = False

    def add(self, msg_id: str, subject: str) -> None:
        """One message of the target, on the way from the last to the first."""
        place = msg_id[len(self._prefix) :].split(".") if msg_id.startswith(self._prefix) else []
        if len(place) != 3 or not all(number.isdecimal() for number in place):
            if self._keep_ids:
                self.ids.add(msg_id)
            return
        epoch, partition, row = map(int, place)
        if epoch == self._epoch:
            self._rows.setdefault(partition, set()).add(row)
            if self._superseding:
                key = (partition, subject)
                self._newest[key] = max(row, self._newest.get(key, -1))
        elif epoch < self._epoch:
            self._saw_earlier_epoch = True

    def has_row(self, partition: int, row: int, subject: str) -> bool:
        """Whether this row is stored, or was, where newer messages of a subject supersede older ones."""
        return row in self._rows.get(partition, ()) or row < self._newest.get((partition, subject), -1)

    async def look_up(self, client: Client, info: StreamInfo, *, recovery_window: float, after: int) -> None:
        """Reads the target backwards: to the epoch before, or over ``recovery_window`` seconds and MIN_MESSAGES.

        With ``after`` exactly the messages behind that sequence. ConfigError where it cannot be found out: the messages
        may have been consumed, or may not be read, and the stream's own window may be over.
        """
        if info.config.retention != RetentionPolicy.LIMITS:
            _check_age(info, self._epoch, after)
            return
        oldest = info.ts - timedelta(seconds=recovery_window)
        first, last = max(1, info.state.first_seq, after + 1), info.state.last_seq
        looked_at, step = 0, FIRST_STEP
        while last >= first and not self._saw_earlier_epoch:
            begin = max(first, last - step + 1)
            try:
                stored = await self._read(client, info.config.name, begin, last)
            except PermissionDenied as exc:
                _need_window(info, recovery_window, exc)
                return
            looked_at += last - begin + 1
            if not after and looked_at >= MIN_MESSAGES and stored is not None and stored < oldest:
                return
            last, step = begin - 1, min(4 * step, MAX_STEP)

    async def _read(self, client: Client, stream: str, first: int, last: int) -> datetime | None:
        """Adds the messages of a range; when its first one was stored."""
        rng = SeqRange(stream=stream, start=first, end=last, earliest=True)
        reader = RangeReader(client, rng, (), "auto", 8192, 8 << 20, fail_on_data_loss=False, headers_only=True)
        stored: datetime | None = None
        async with aclosing(reader.chunks()) as chunks:
            async for chunk in chunks:
                if stored is None:
                    head = chunk[0]
                    stored = head.time if isinstance(head, RawMessage) else head.metadata.timestamp
                for message, msg_id in zip(cast("list[RawMessage]", chunk), _ids(chunk), strict=True):
                    if msg_id is not None:
                        self.add(msg_id, message.subject)
        return stored


def check_window(info: StreamInfo, recovery_window: float) -> None:
    """ConfigError for a stream of which nobody can read later what it has stored, and whose own window is too short."""
    config = info.config
    if config.retention == RetentionPolicy.LIMITS or config.duplicate_window >= recovery_window:
        return
    raise ConfigError(
        f"stream {config.name}",
        config.duplicate_window,
        f"is a duplicate_window shorter than recoveryWindow ({recovery_window:g} s), and a stream with retention "
        f"{config.retention} cannot be asked what it has stored: messages are consumed. A restart after the window "
        "would double rows. Widen the window, lower recoveryWindow, or use exactlyOnce=atomic on a work queue",
    )


def _ids(chunk: Chunk) -> Sequence[str | None]:
    raw = isinstance(chunk[0], RawMessage)
    blocks = stored_header_blocks(chunk) if raw else header_blocks(chunk)  # type: ignore[arg-type]
    return [None if block is None else _id_of(block) for block in blocks]


def _id_of(block: bytes | Headers) -> str | None:
    if isinstance(block, Headers):
        return block.get("Nats-Msg-Id")
    match = _MSG_ID.search(block)
    return None if match is None else match[1].decode("utf-8", "surrogateescape")


def _check_age(info: StreamInfo, epoch: int, after: int) -> None:
    """ConfigError when whatever this query has stored is older than the stream's own window."""
    config, state = info.config, info.state
    if state.last_ts is None or state.last_seq <= after or (not epoch and not after):
        return
    age = (info.ts - state.last_ts).total_seconds()
    if age > config.duplicate_window:
        raise ConfigError(
            f"stream {config.name}",
            str(config.retention),
            f"cannot be asked what it has stored: messages are consumed. The last one came {age:.0f} s ago, and its "
            f"duplicate_window is {config.duplicate_window:g} s, so rows of this epoch may be there and would be "
            "doubled. Use exactlyOnce=atomic, or run this epoch with exactlyOnce=none if doubles do no harm",
        )


def _need_window(info: StreamInfo, recovery_window: float, exc: PermissionDenied) -> None:
    config = info.config
    if config.duplicate_window < recovery_window:
        raise ConfigError(
            f"stream {config.name}",
            config.duplicate_window,
            f"is a duplicate_window shorter than recoveryWindow ({recovery_window:g} s), and this account may not read "
            f"the stream to find out what it has stored. Allow $JS.API.DIRECT.GET.{config.name} or "
            f"$JS.API.CONSUMER.CREATE.{config.name}.>, or widen the window",
        ) from exc
