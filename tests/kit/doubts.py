"""Which calls of a history met a refusal that contradicted what their client knew, and how often a copy was refused
for which there was no stream, although an earlier one may be stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest import mock

from natsproto.errors import ApiError, NatsError, NoResponders
from natsproto.jetstream import PubAck
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.fast.fast_batch_state import FastBatchState
from natsproto.jetstream._publish.outcome import Change, Expectation, Situation, UncertainRefusal
from natsproto.jetstream._publish.retry_policy import PublishState
from natsproto.protocol.frames import Message
from tests.kit.history import Call

CURRENT: ContextVar[Call | None] = ContextVar("CURRENT", default=None)
"""The call of this task."""


@contextmanager
def noted_doubts() -> Iterator[Counter[str]]:
    """Write each such refusal into ``Call.doubts`` of the current call; yields how many there were of each."""
    judge_message, judge_batch = PublishState.situation, AtomicBatch._resolve
    after_error, fast_without_stream = PublishState.pause_after, FastBatchState.on_no_responders
    met: Counter[str] = Counter()

    def note(doubt: str) -> None:
        met[doubt] += 1
        if (call := CURRENT.get()) is not None:
            call.doubts.append(doubt)

    def situation(
        self: PublishState, error: NatsError, expected: Expectation, sent_at: float, now: float, *, has_own_id: bool
    ) -> Situation | None:
        found = judge_message(self, error, expected, sent_at, now, has_own_id=has_own_id)
        if found is not None:
            note(found.refusal.name)
        return found

    async def resolve(
        self: AtomicBatch, refusal: UncertainRefusal, refused: Message, error: ApiError, sent_at: float, change: Change
    ) -> PubAck:
        note("COMMIT")
        return await judge_batch(self, refusal, refused, error, sent_at, change)

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
        mock.patch.object(PublishState, "situation", situation),
        mock.patch.object(AtomicBatch, "_resolve", resolve),
    ):
        yield met
