"""The rows that a target has already: their ids are read from its end, backwards.

A stream drops the message ids it knows, but only within its ``duplicate_window``. Before rows are published that an
earlier attempt of the task, or run of the query, may have stored longer ago, the end of the target is read for their
ids. A row of an earlier micro-batch of the same query ends the search: all rows of a micro-batch are stored after the
previous one was committed. Ids of the sink's own hold the number of their micro-batch; beside others a header does.
One process of a machine reads the target for a run, and the others take what it has found.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import cast

from natsproto.errors import ConfigError
from natsproto.jetstream import JetStream, RawMessage, RetentionPolicy, StreamInfo
from natsproto.jetstream._consumer.message import header_blocks
from natsproto.jetstream._stream.direct_get import stored_header_blocks
from natsproto.protocol.headers import Headers
from natsproto.spark._file_lock import file_lock
from natsproto.spark._range_reader import MessageList, RangeReader
from natsproto.spark._ranges import SeqRange
from natsproto.spark._task import TASK_HEADER, WriteTask

log = logging.getLogger("natsproto")

RECOVERY_WINDOW_S = 900.0
"""Seconds of the target that are read, unless an option says otherwise."""
MIN_LOOKBACK_MESSAGES = 100_000
"""Messages at the end of the target that are always read, however old they are."""
MIN_LOOKBACK_STEP, MAX_LOOKBACK_STEP = 64, 64_000
"""Messages that are read at a time, going backwards: at most half as many as before, as the rest may be of no use."""
_MSG_ID = re.compile(rb"\r\nNats-Msg-Id: *([^\r]*)\r\n")
_TASK = TASK_HEADER.encode()
_BLOCK_END = b"\r\n\r\n"


@dataclass
class _Found:
    """The ids in a range of the target, joined and compressed: apart they take ten times as much memory."""

    ids: list[bytes]
    since: datetime | None = None
    """When its first message was stored."""
    saw_earlier_epoch: bool = False


class StoredRows:
    """The ids of a target's last messages, and for a task those after its micro-batch before."""

    def __init__(self, task: WriteTask, *, has_subject_limit: bool) -> None:
        self._epoch, self._after, self._has_subject_limit = task.epoch, task.after, has_subject_limit
        name = re.escape(task.owner.encode("utf-8", "surrogateescape"))
        number = b"" if task.epoch < 0 else b"%d\\." % task.epoch
        self._other_epoch = re.compile(rb"\r\n(?:%b|Nats-Msg-Id): *%b\.(?!%b)(\d+)\.\d+[.\r]" % (_TASK, name, number))
        self._own_row = re.compile(rb"\r\nNats-Msg-Id: *%b\.%b(\d+)\.(?:[^\r]*\.)?(\d+)\r\n" % (name, number))
        self._ids: list[bytes] = []
        self._newest: dict[tuple[int, str], int] = {}

    def known(self, ids: Iterable[str]) -> set[str]:
        """Those of these ids that are stored."""
        wanted = {one.encode("utf-8", "surrogateescape"): one for one in ids}
        joined = map(zlib.decompress, self._ids)
        return {wanted[one] for page in joined for one in wanted.keys() & page.split(b"\n")}

    def save(self, path: Path) -> None:
        """Writes the result for other processes, in place of earlier ones of the same owner."""
        newest = [[*key, row] for key, row in self._newest.items()]
        head = json.dumps({"sizes": [*map(len, self._ids)], "newest": newest}).encode()
        unfinished = path.with_suffix(f".unfinished-{os.getpid()}")  # there may be no locks
        try:
            for old in path.parent.glob(f"{path.stem}.*"):
                old.unlink(missing_ok=True)
            unfinished.write_bytes(b"\n".join([head, b"".join(self._ids)]))
            unfinished.replace(path)
        except OSError as exc:
            log.warning("other workers look for stored rows, too, because their file cannot be written: %s", exc)

    def load(self, path: Path) -> bool:
        """Reads the result that another process has saved, if there is one."""
        try:
            head, _, ids = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return False
        saved = json.loads(head)
        self._newest = {(partition, subject): row for partition, subject, row in saved["newest"]}
        ends = accumulate(saved["sizes"])
        self._ids = [ids[end - size : end] for size, end in zip(saved["sizes"], ends, strict=True)]
        return True

    def is_replaced(self, task: WriteTask, msg_id: str, subject: str) -> bool:
        """True if a later row of this task and subject is stored, in a stream where newer messages of a subject replace
        older ones.
        """
        newest = self._newest.get((task.partition, subject), -1) if self._has_subject_limit else -1
        return int(msg_id.rpartition(".")[2]) < newest

    async def read(self, js: JetStream, info: StreamInfo, recovery_window: float) -> None:
        """Reads the target backwards: to the micro-batch before, or ``recovery_window`` seconds and
        MIN_LOOKBACK_MESSAGES; or to the sequence after which all rows of the task come.
        """
        oldest = info.ts - timedelta(seconds=recovery_window)
        first, last = max(1, info.state.first_seq, self._after + 1), info.state.last_seq
        looked_at = 0
        while last >= first:
            step = min(max(MIN_LOOKBACK_STEP, looked_at // 2), MAX_LOOKBACK_STEP)
            begin = max(first, last - step + 1)
            found = await self._read(js, info.config.name, begin, last)
            self._ids += found.ids
            if found.saw_earlier_epoch:
                return
            looked_at += last - begin + 1
            is_old = found.since is not None and found.since < oldest
            if is_old and looked_at >= MIN_LOOKBACK_MESSAGES and not self._after:
                return
            last = begin - 1

    async def _read(self, js: JetStream, stream: str, first: int, last: int) -> _Found:
        """The ids of a range: those after the last row of an earlier micro-batch, if it has one."""
        seq_range = SeqRange(stream=stream, start=first, end=last, earliest=True)
        reader = RangeReader(js, seq_range, fail_on_data_loss=False, headers_only=True)
        found = _Found([])
        async with aclosing(reader.message_lists()) as lists:
            async for messages in lists:
                if found.since is None:
                    head = messages[0]
                    found.since = head.time if isinstance(head, RawMessage) else head.metadata.timestamp
                text, ended = self._after_earlier_epochs(b"".join(blocks := _blocks(messages)))
                if ended:
                    found.saw_earlier_epoch = True
                    found.ids.clear()  # they are older
                if ids := _MSG_ID.findall(text):
                    found.ids.append(zlib.compress(b"\n".join(ids), 1))
                if self._has_subject_limit:
                    self._note_newest(messages, blocks)
        return found

    def _after_earlier_epochs(self, text: bytes) -> tuple[bytes, bool]:
        """Header blocks without those up to the last row of an earlier micro-batch; True if there was one."""
        ends = [row.start() for row in self._other_epoch.finditer(text) if int(row[1]) < self._epoch]
        if not ends:
            return text, False
        return text[text.index(_BLOCK_END, ends[-1]) + len(_BLOCK_END) :], True

    def _note_newest(self, messages: MessageList, blocks: Sequence[bytes]) -> None:
        for message, block in zip(cast("list[RawMessage]", messages), blocks, strict=True):
            if row := self._own_row.search(block):
                key = (int(row[1]), message.subject)
                self._newest[key] = max(int(row[2]), self._newest.get(key, -1))


def _blocks(messages: MessageList) -> list[bytes]:
    """The header blocks; empty for messages without headers."""
    raw = isinstance(messages[0], RawMessage)
    blocks = stored_header_blocks(messages) if raw else header_blocks(messages)  # type: ignore[arg-type]
    return [block if type(block) is bytes else _encoded(block) for block in blocks]


def _encoded(headers: bytes | Headers | None) -> bytes:
    """A block that was read already."""
    lines = [f"{name}: {value}" for name, value in headers.pairs()] if isinstance(headers, Headers) else []
    return "\r\n".join(["NATS/1.0", *lines, "\r\n"]).encode("utf-8", "surrogateescape")


_LAST: list[tuple[WriteTask, StoredRows]] = []
"""The last look-up of this process: the tasks of a run, in this process, share it."""


async def look_up(
    js: JetStream, info: StreamInfo, task: WriteTask, *, recovery_window: float, remedy: str
) -> StoredRows:
    """The rows that the target has already.

    ConfigError, with the ``remedy``, if its messages may have been consumed and the stream's duplicate window may be
    over; PermissionDenied if they may not be read.
    """
    shared = task.replace(partition=0)
    if task.run and not task.retry and _LAST and _LAST[0][0] == shared:
        return _LAST[0][1]
    found = StoredRows(task, has_subject_limit=info.config.max_msgs_per_subject > 0)
    if info.config.retention != RetentionPolicy.LIMITS:
        _check_age(info, fresh=task.epoch == 0 and not task.after, after=task.after, remedy=remedy)
    elif task.run and task.folder and not task.retry:
        await _read_once(found, shared, js, info, recovery_window)
    else:
        await found.read(js, info, recovery_window)
    _LAST[:] = [(shared, found)]
    return found


async def _read_once(
    found: StoredRows, shared: WriteTask, js: JetStream, info: StreamInfo, recovery_window: float
) -> None:
    """Reads the target, or what another process with the same folder has read of it for the same run."""
    owner, what = (sha256(repr(value).encode()).hexdigest()[:24] for value in (shared.owner, shared))
    path = Path(shared.folder, f"{owner}.{what}")
    async with file_lock(path.with_name(f"lock.{owner}")) as is_shared:
        if not (is_shared and found.load(path)):
            await found.read(js, info, recovery_window)
            if is_shared:
                found.save(path)


def forget_look_ups() -> None:
    """Frees the memory of a look-up: the run has come further."""
    _LAST.clear()


# ---------------------------------------------------------------- consumed messages


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
