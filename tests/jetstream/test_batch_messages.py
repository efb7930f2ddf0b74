"""The messages of a fast publisher and their outcomes, without a publisher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ApiError, LocalProtocolError, NatsError, PublishFailed
from natsproto.jetstream._publish.batch_messages import BatchMessages

REFUSED = ApiError(400, 10071, "wrong last sequence", "s")
ENDED = LocalProtocolError("the publisher has ended")


def added(*payloads: bytes) -> BatchMessages:
    messages = BatchMessages()
    for number, payload in enumerate(payloads, 1):
        assert messages.add(f"s.{number}", payload, None) == number
    return messages


@given(st.lists(st.one_of(st.binary(max_size=5), st.integers(0, 4))))
def test_settled_messages_leave_their_subject(steps: list[bytes | int]) -> None:
    messages = BatchMessages()
    pending: list[tuple[str, bytes]] = []
    count, subject = 0, ""
    for step in steps:
        if isinstance(step, bytes):
            count, subject = count + 1, f"s.{count}"
            pending.append((subject, step))
            assert messages.add(subject, step, None) == count
        else:
            subject = pending[-1][0] if step < len(pending) else subject
            del pending[:step]
            messages.settle(step)
        assert (messages.count, messages.settled, messages.subject) == (count, count - len(pending), subject)
        assert [message[:2] for message in messages.pending] == pending
        assert messages.nbytes == sum(len(payload) for _, payload in pending)


def test_failure_has_number_subject_and_size() -> None:
    messages = added(b"a", b"bb", b"ccc")
    messages.settle(1)
    for index in (-1, 0, 1, 2):  # the first and last are not pending
        messages.fail(index, REFUSED)
    assert messages.failures == 2
    error = messages.take_error()
    assert isinstance(error, PublishFailed)
    assert [(one.number, one.subject, one.size, one.error) for one in error.failures] == [
        (2, "s.2", 2, REFUSED),
        (3, "s.3", 3, REFUSED),
    ]
    assert error.__cause__ is REFUSED
    assert messages.take_error() is None


def test_cause_is_the_first_failure() -> None:
    messages, other = added(b"a", b"b"), ApiError(400, 10164, "not ready", "s")
    messages.fail(0, REFUSED)
    messages.fail(1, other)
    error = messages.take_error()
    assert error is not None
    assert error.__cause__ is REFUSED


def test_end_of_a_publisher_is_raised_once_at_its_end() -> None:
    messages = added(b"a", b"b")
    messages.finish([None, REFUSED], ENDED)
    assert (messages.pending, messages.nbytes, messages.failures, messages.is_reported) == ([], 0, 1, False)
    assert isinstance(messages.take_error(), PublishFailed)
    assert messages.is_reported
    assert messages.take_error() is ENDED
    assert messages.is_reported


@pytest.mark.parametrize("flushes", [0, 1])
def test_flush_before_the_end_does_not_report_it(flushes: int) -> None:
    messages = added(b"a")
    messages.settle(1)
    for _ in range(flushes):
        assert messages.take_error() is None
    messages.finish([], ENDED)
    assert not messages.is_reported
    assert messages.take_error() is ENDED
    assert messages.is_reported


def test_error_of_one_message_leaves_the_others() -> None:
    messages, other = added(b"a", b"b"), ApiError(400, 10164, "not ready", "s")
    messages.fail(0, REFUSED)
    messages.fail(1, other)
    assert messages.take_error_of(1) is REFUSED
    assert messages.take_error_of(1) is None
    assert messages.failures == 1


def test_error_of_one_message_after_the_end() -> None:
    failed, ended = added(b"a", b"b"), added(b"a")
    failures: list[NatsError | None] = [REFUSED, ENDED]
    failed.finish(failures, ENDED)
    assert failed.take_error_of(2) is REFUSED, "the first failure has caused the others"
    ended.finish([None], ENDED)
    assert ended.take_error_of(1) is ENDED
