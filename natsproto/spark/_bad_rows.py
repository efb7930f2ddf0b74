"""Rows that cannot be messages: a header name that the wire refuses, a payload that is too large, a wrong subject.

``fail`` leaves them to the writers, whose error fails the task, at each attempt again. ``drop`` leaves them out, and
``deadletter`` stores a dead letter in the place of each (``natsproto.retry.DeadLetter`` reads it). Either way they are
counted. The id of a row is a value of its own, or it is made of its task and its number in it. Under another limit a
repeated task has other bad rows, so rows get their ids first, and the id of a dead letter is not that of its row: then
one attempt may store the dead letter, and the next one the row.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Literal, TypeAlias

from natsproto import errors
from natsproto._dead_letters import failure_headers, forms
from natsproto.jetstream import StreamConfig
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import encode_headers
from natsproto.protocol.line_limit import DEFAULT_LIMIT
from natsproto.protocol.subject import publish_subject
from natsproto.spark._task import HeaderPairs, MessageColumns

log = logging.getLogger("natsproto.spark")

BadRows: TypeAlias = Literal["fail", "drop", "deadletter"]
IdsOf: TypeAlias = Callable[[int, MessageColumns], Sequence[str]]
"""The ids of a batch that begins with this row."""
_ID = "Nats-Msg-Id"
BATCH_HEADERS_BYTES = 160
"""Bytes of the headers that an atomic batch adds to a row, at most."""
MAX_ROW_SUBJECT_BYTES = DEFAULT_LIMIT - 128
"""A control line also has the reply subject and two sizes. A server may read longer ones, but INFO does not say so."""
_MAX_SHOWN_CHARS = 256
"""Characters that a dead letter keeps of a subject that is too long."""
_LETTER_ID_BYTES = len(f"{_ID}: \r\n") + 64
_EMPTY_BLOCK_BYTES = len("NATS/1.0\r\n\r\n")


def check_bad_rows(policy: BadRows, letter_subject: str | None, *, option: str, letter_option: str) -> None:
    """ConfigError for another policy, and for a subject of dead letters without its policy, or the other way round."""
    if policy not in ("fail", "drop", "deadletter"):
        raise errors.ConfigError(option, policy, 'must be "fail", "drop" or "deadletter"')
    if letter_subject:
        publish_subject(letter_subject, letter_option)
    if (policy == "deadletter") != bool(letter_subject):
        raise errors.ConfigError(
            letter_option, letter_subject, f"is for dead letters: give it together with {option}=deadletter"
        )


def size_limit(max_payload: int, config: StreamConfig | None = None) -> int:
    """The most bytes of headers and payload that a message may have, for the server and its stream."""
    of_stream = config.max_msg_size if config is not None else None
    return min(max_payload, of_stream) if of_stream and of_stream > 0 else max_payload


class RowCheck:
    """Finds the bad rows of a task, in the order of its rows.

    ``check_subject`` raises for a subject that is valid, and not one of the stream; None: any may be. ``added`` are the
    bytes of the headers that the writer adds to a row. ``ids`` gives each row its id; None: a row need not have one.
    """

    def __init__(
        self,
        policy: BadRows,
        letter_subject: str | None,
        *,
        stream: str,
        max_size: int,
        ids: IdsOf | None,
        added: int = 0,
        check_subject: Callable[[str], object] | None = None,
    ) -> None:
        self._policy, self._letter_subject, self._stream = policy, letter_subject, stream
        self._max_size, self._ids_of, self._added = max_size, ids, added
        self._check_subject = check_subject
        self._valid: set[str | None] = set()
        self._row = 0
        self.counts: Counter[str] = Counter()
        """The bad rows by the class of their error."""

    @property
    def letters(self) -> int:
        """How many of the rows were stored as dead letters."""
        return self.counts.total() if self._policy == "deadletter" else 0

    async def check_all(self, batches: AsyncIterator[MessageColumns]) -> AsyncIterator[MessageColumns]:
        """The batches with ids, and without their bad rows, or with dead letters in their places. With ``fail`` the
        error of a subject.
        """
        async for batch in batches:
            if not (count := len(batch.subjects)):
                continue
            if self._policy == "fail" and self._check_subject is not None:
                for subject in set(batch.subjects) - self._valid:
                    self._check(subject, batch.subjects)
            if self._ids_of is not None:
                batch = batch._replace(ids=self._ids_of(self._row, batch))
            yield batch if self._policy == "fail" else self._without_bad_rows(batch)
            self._row += count

    def _check(self, subject: str | None, among: Sequence[str | None]) -> None:
        if subject is None:
            row = self._row + list(among).index(None)
            raise errors.ConfigError("subject", None, f"row {row} of its partition has none")
        size = len(publish_subject(subject))
        if self._policy != "fail" and size > MAX_ROW_SUBJECT_BYTES:
            raise errors.InvalidSubject(
                "subject", subject, f"is {size} bytes long; {MAX_ROW_SUBJECT_BYTES} are sure to fit"
            )
        if self._check_subject is not None:
            self._check_subject(subject)
        self._valid.add(subject)

    def _without_bad_rows(self, batch: MessageColumns) -> MessageColumns:
        failures: dict[int, errors.NatsError] = {}
        for row, (subject, payload) in enumerate(zip(batch.subjects, batch.payloads, strict=True)):
            try:
                if subject not in self._valid:
                    self._check(subject, (subject,))
                self._check_size(batch, row, payload)
            except errors.NatsError as exc:
                failures[row] = exc
        if not failures:
            return batch
        self.counts.update(type(error).__name__ for error in failures.values())
        if self._policy == "deadletter":
            return self._with_letters(batch, failures)
        return batch.rows_at([row for row in range(len(batch.subjects)) if row not in failures])

    def _check_size(self, batch: MessageColumns, row: int, payload: Payload) -> None:
        pairs, key = batch.headers[row] if batch.headers else None, batch.ids[row] if batch.ids else None
        added = self._added
        if key is not None:
            pairs = [*(pairs or ()), (_ID, key)]
        if pairs:
            added += len(encode_headers(pairs))
        elif added:
            added += _EMPTY_BLOCK_BYTES
        if len(payload) + added > self._max_size:
            raise errors.PayloadTooLarge(len(payload) + added, self._max_size)

    def _with_letters(self, batch: MessageColumns, failures: Mapping[int, errors.NatsError]) -> MessageColumns:
        assert self._letter_subject is not None
        subjects, payloads, ids = list(batch.subjects), list(batch.payloads), list(batch.ids)
        headers: list[HeaderPairs | None] = list(batch.headers) or [None] * len(subjects)
        for row, error in failures.items():
            if ids and (key := ids[row]) is not None:
                ids[row] = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
            subjects[row], payloads[row], headers[row] = self._letter(
                batch.subjects[row], bytes(payloads[row]), headers[row] or [], error
            )
        return MessageColumns(subjects, payloads, headers, ids)

    def _letter(
        self, subject: str | None, data: bytes, pairs: HeaderPairs, error: errors.NatsError
    ) -> tuple[str, bytes, HeaderPairs]:
        """The dead letter of a row: as it is, without its headers, or without its payload, whatever fits."""
        assert self._letter_subject is not None
        if subject and len(subject) > MAX_ROW_SUBJECT_BYTES:
            subject = f"{subject[:_MAX_SHOWN_CHARS]}..."  # no valid subject: it is never replayed
        left, headers = b"", list[tuple[str, str]]()
        for left, headers in forms(data, pairs, failure_headers(subject or "(null)", self._stream, error)):
            if len(left) + len(encode_headers(headers)) + self._added + _LETTER_ID_BYTES <= self._max_size:
                break
        return self._letter_subject, left, headers


def warn_of_bad_rows(what: str, policy: BadRows, counts: Mapping[str, int]) -> None:
    """Logs the bad rows in one line."""
    if counts:
        shown = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        became = "were stored as dead letters" if policy == "deadletter" else "were dropped"
        log.warning("%s: %d rows that cannot be messages %s: %s", what, sum(counts.values()), became, shown)
