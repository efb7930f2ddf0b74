"""The columns of the source and of the sink, and the headers that rows may carry. Needs neither Spark nor Arrow."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256, shake_256
from typing import TypeAlias

from natsproto import errors
from natsproto.jetstream import JsMessage, RawMessage
from natsproto.jetstream._consumer.message import ack_subjects, header_blocks
from natsproto.jetstream._stream.direct_get import stored_header_blocks
from natsproto.protocol.headers import Headers, parse_headers
from natsproto.spark._task import MessageColumns, WriteTask

log = logging.getLogger("natsproto.spark")

Row: TypeAlias = tuple[str, str, int, datetime, bytes, dict[str, list[str]] | None, int]
"""Stream, subject, sequence, time of storing, payload, headers (None: none), bytes of subject, headers and payload."""
ROW_SCHEMA: str = (
    "stream string, subject string, seq long, timestamp timestamp, data binary, "
    "headers map<string,array<string>>, size int"
)
"""The columns of a stream, as Spark writes a schema."""
ROW_SCHEMA_WITHOUT_HEADERS = ROW_SCHEMA.replace("headers map<string,array<string>>, ", "")
NO_HEADERS_BLOCK = b"NATS/1.0\r\n\r\n"
"""The block of a message whose publisher has set no header: for direct get it is the same as no block."""
BUCKET_SCHEMA = "key string, value binary, revision long, timestamp timestamp"
"""The columns of a bucket."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def delivered_rows(name: str, messages: list[JsMessage]) -> Iterator[Row]:
    for message, ack, block in zip(messages, ack_subjects(messages), header_blocks(messages), strict=True):
        tokens = ack.split(b".") if isinstance(ack, bytes) else []
        if len(tokens) == 9:
            seq, nanos = int(tokens[5]), int(tokens[7])
        else:
            metadata = message.metadata
            seq, nanos = metadata.stream_seq, metadata.timestamp.ns
        yield _row(name, message.subject, seq, nanos, message.data, block)


def stored_rows(name: str, messages: list[RawMessage]) -> Iterator[Row]:
    for message, block in zip(messages, stored_header_blocks(messages), strict=True):
        yield _row(name, message.subject, message.seq, message.time.ns, message.data, block)


def _row(name: str, subject: str, seq: int, nanos: int, data: bytes, block: bytes | Headers | None) -> Row:
    headers, size = None, len(data)
    if block is not None and block != NO_HEADERS_BLOCK:
        read = parse_headers(block) if isinstance(block, bytes) else block
        headers = {utf8(key): list(map(utf8, read.get_all(key))) for key in read} or None
        size += read._wire_size
    subject = utf8(subject)
    size += len(subject) if subject.isascii() else len(subject.encode())
    return name, subject, seq, _EPOCH + timedelta(microseconds=nanos // 1000), data, headers, size


def utf8(text: str) -> str:
    """Valid text for Spark: the replacement character stands for bytes that are not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_TEXT = ("string",)
_COLUMNS = {
    "subject": _TEXT,
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": _TEXT,
}
_OTHER_COLUMNS = {"value": "data", "payload": "data", "topic": "subject", "key": "msg_id, or as a part of subject"}
"""The columns of other sinks."""
_BUCKET_COLUMNS = {"key": _TEXT, "value": ("binary", "string")}


def check_columns(columns: Sequence[tuple[str, str]], *, subject: str, bucket: str = "") -> None:
    """ConfigError unless these columns (name, Spark's type) can be written; ``subject`` and ``bucket`` are options."""
    names = [name for name, _ in columns]
    known = _BUCKET_COLUMNS if bucket else _COLUMNS
    if names[-1:] == ["timestamp" if bucket else "size"]:  # INSERT INTO a view gives all its columns
        raise no_table()
    for name, kind in columns:
        allowed = known.get(name)
        if allowed is None:
            what, other = "an entry" if bucket else "a message", _OTHER_COLUMNS.get(name)
            advice = f"select it as {other}" if other and not bucket else f"select only {', '.join(known)}"
            raise errors.ConfigError("column", name, f"is not part of {what}: {advice}")
        if kind not in allowed:
            raise errors.ConfigError(f"column {name}", kind, f"must be {' or '.join(allowed)}")
    if bucket:
        if len(names) < 2:
            raise errors.ConfigError(
                "columns", ", ".join(names), "must be key and value, which is null to delete a key"
            )
        return
    if "data" not in names:
        raise errors.ConfigError("columns", ", ".join(names), "lack data, the payload")
    if ("subject" in names) == bool(subject):
        either = "both a column and an option" if subject else "neither a column nor an option"
        raise errors.ConfigError("subject", subject, f"is {either}: give one")


class HeaderFilter:
    """Removes server-control headers (``Nats-*``) from rows, except those that are allowed, and counts them.

    The publishers of a source stream choose the headers of its messages; ``Nats-Rollup: all`` in one of them would
    erase the target. The server compares names exactly; this filter ignores case.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self.removed: Counter[str] = Counter()

    def strip(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the pairs that may be published."""
        kept = []
        for pair in pairs:
            name = pair[0]
            if name[:5].lower() == "nats-" and name.lower() not in self._allowed:
                self.removed[name] += 1
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
            raise errors.ConfigError(option, name, "is not a server-control header: their names begin with Nats-")
        if low == "nats-msg-id":
            raise errors.ConfigError(option, name, "cannot be allowed: give the column msg_id")
        if low.startswith("nats-batch-"):
            raise errors.ConfigError(option, name, "cannot be allowed: batches are those of the sink")
    return tuple(names)


def no_table() -> errors.ConfigError:
    """The error for SQL that takes a stream for a table of a catalog."""
    rule = (
        "keep no options of this data source: read a TEMPORARY VIEW ... USING nats OPTIONS (...), write with df.write"
    )
    return errors.ConfigError("SQL", "CREATE TABLE and INSERT", rule)


def no_id(option: str, row: int | None = None) -> errors.ConfigError:
    """The error for rows without an id by which the stream could recognize them."""
    where = "" if row is None else f"row {row} of its partition has none: "
    return errors.ConfigError(
        "msg_id",
        None,
        f"{where}a row repeated after a failure needs the same id: add a column msg_id derived from the row, or set "
        f"{option} if each partition's rows always come in the same order",
    )


def warn_of_removed(what: str, option: str, removed: Mapping[str, int]) -> None:
    """Logs the server-control headers that were removed, in one line."""
    if removed:
        counts = ", ".join(f"{name} ({count})" for name, count in sorted(removed.items()))
        log.warning("%s: removed server-control headers: %s. %s names those to keep", what, counts, option)


def row_ids(task: WriteTask, row: int, batch: MessageColumns, *, stable_order: bool, option: str) -> Sequence[str]:
    """The ids of a batch that begins with row ``row``. ConfigError, which names the ``option``, for a row without
    one if the order of the rows is not known to be stable.
    """
    if not stable_order and (not batch.ids or None in batch.ids):
        raise no_id(option, row + (list(batch.ids).index(None) if batch.ids else 0))
    made = _made_ids(task, row, len(batch.subjects))
    return [own if key is None else key for key, own in zip(batch.ids, made, strict=True)] if batch.ids else made


_IDS_AT_A_TIME, _ID_BYTES = 1000, 12


def _made_ids(task: WriteTask, row: int, count: int) -> list[str]:
    """The ids of rows by their numbers: outputs of a hash of the task, so that nobody can guess the next ones. The
    stream would take a row with an id that a stranger has used for a duplicate.
    """
    found: list[str] = []
    first = row // _IDS_AT_A_TIME
    for number in range(first, (row + count - 1) // _IDS_AT_A_TIME + 1):
        text = shake_256(f"{task.name}/{number}".encode("utf-8", "surrogateescape")).hexdigest(
            _IDS_AT_A_TIME * _ID_BYTES
        )
        found += [text[at : at + 2 * _ID_BYTES] for at in range(0, len(text), 2 * _ID_BYTES)]
    skip = row - first * _IDS_AT_A_TIME
    return found[skip : skip + count]


def key_ids(task: WriteTask, written: Counter[str], _: int, batch: MessageColumns) -> Sequence[str]:
    """The ids of entries: hashes of the task, the key, and how often the task has ``written`` it."""
    ids = []
    for subject in batch.subjects:
        written[subject] += 1
        text = f"{task.name}.{subject}.{written[subject]}"
        ids.append(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[: 2 * _ID_BYTES])
    return ids
