"""Which calls of a history met a refusal that contradicted what their client knew, and how often a copy was refused
for which there was no stream, although an earlier one may be stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest import mock

from natsproto.errors import ApiError, NatsError, NoResponders, WrongLastSequence
from natsproto.jetstream import PubAck
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast_batch_state import FastBatchState
from natsproto.jetstream._publish.refusals import Doubt, Expectation
from natsproto.jetstream._publish.retry_policy import PublishState
from natsproto.protocol.frames import Message
from tests.kit.history import Call

CURRENT: ContextVar[Call | None] = ContextVar("CURRENT", default=None)
"""The call of this task."""


@contextmanager
def noted_doubts() -> Iterator[Counter[str]]:
    """Write each such refusal into ``Call.doubts`` of the current call; yields how many there were of each."""
    judge_message, judge_batch = PublishState.doubt, AtomicBatch._acknowledged_after_all
    after_error, fast_without_stream = PublishState.pause_after, FastBatchState.on_no_responders
    met: Counter[str] = Counter()

    def note(doubt: str) -> None:
        met[doubt] += 1
        if (call := CURRENT.get()) is not None:
            call.doubts.append(doubt)

    def doubt(self: PublishState, error: WrongLastSequence, expected: Expectation) -> Doubt:
        found = judge_message(self, error, expected)
        note(found.name)
        return found

    async def acknowledged(self: AtomicBatch, refused: Message, error: ApiError) -> PubAck:
        note("BATCH")
        return await judge_batch(self, refused, error)

    def pause_after(self: PublishState, error: NatsError, *args: float, **kwargs: int) -> float:
        if isinstance(error, NoResponders):
            note("NO_STREAM" if self._maybe_stored is None else "NO_STREAM_FOR_COPY")
        return after_error(self, error, *args, **kwargs)

    def on_no_responders(self: FastBatchState, batch: bytes) -> float:
        if batch == self.batch:
            met["FAST_NO_STREAM_FOR_COPY" if self._maybe_stored > self.messages.settled else "FAST_NO_STREAM"] += 1
        return fast_without_stream(self, batch)

    with (
        mock.patch.object(PublishState, "pause_after", pause_after),
        mock.patch.object(FastBatchState, "on_no_responders", on_no_responders),
        mock.patch.object(PublishState, "doubt", doubt),
        mock.patch.object(AtomicBatch, "_acknowledged_after_all", acknowledged),
    ):
        yield met
