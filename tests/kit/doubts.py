"""Which calls of a history met a refusal that contradicted what their client knew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest import mock

from natsproto.errors import ApiError, WrongLastSequence
from natsproto.jetstream import PubAck
from natsproto.jetstream._publish.atomic_batch import AtomicBatch
from natsproto.jetstream._publish.refusals import Doubt, Expectation
from natsproto.jetstream._publish.retry_policy import PublishState
from natsproto.protocol.frames import Message
from tests.kit.history import Call

CURRENT: ContextVar[Call | None] = ContextVar("CURRENT", default=None)
"""The call of this task."""


@contextmanager
def noted_doubts() -> Iterator[None]:
    """Write each such refusal into ``Call.doubts`` of the current call."""
    judge_message, judge_batch = PublishState.doubt, AtomicBatch._acknowledged_after_all

    def note(doubt: str) -> None:
        if (call := CURRENT.get()) is not None:
            call.doubts.append(doubt)

    def doubt(self: PublishState, error: WrongLastSequence, expected: Expectation) -> Doubt:
        found = judge_message(self, error, expected)
        note(found.name)
        return found

    async def acknowledged(self: AtomicBatch, refused: Message, error: ApiError) -> PubAck:
        note("BATCH")
        return await judge_batch(self, refused, error)

    with (
        mock.patch.object(PublishState, "doubt", doubt),
        mock.patch.object(AtomicBatch, "_acknowledged_after_all", acknowledged),
    ):
        yield
