"""What of a message is sent again, and what its publisher is told: without an event loop."""

from __future__ import annotations

import pytest

from natsproto.errors import (
    ApiError,
    ConnectionClosed,
    ConnectionLost,
    NatsError,
    NoResponders,
    NoStream,
    OutboxFull,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
)
from natsproto.jetstream._publish.retry_policy import (
    MAX_RETRY_PAUSE_S,
    PublishState,
    RetryCounter,
    uncertain_error,
)
from natsproto.jetstream._values.error_codes import ErrCode, api_error

NOBODY, LOST, SILENCE = NoResponders("s"), ConnectionLost("cut"), RequestTimeout("request to 's'", 5)
FULL, REFUSED = OutboxFull(1, 2, 3), ApiError(400, ErrCode.STREAM_WRONG_LAST_SEQUENCE, "wrong last sequence", "s")
REJECTED_FOR_NOW = {
    ErrCode.STREAM_TOO_MANY_REQUESTS,
    ErrCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT,
    ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT,
    ErrCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY,
    ErrCode.STREAM_DUPLICATE_MESSAGE_CONFLICT,
    ErrCode.CLUSTER_NOT_AVAIL,
    ErrCode.CLUSTER_NOT_LEADER,
}


def rejection(err_code: int) -> ApiError:
    return api_error({"code": 503, "err_code": err_code, "description": "busy"})


TOO_BUSY = rejection(ErrCode.STREAM_TOO_MANY_REQUESTS)


def state(*, has_id: bool, attempts: int | None = None) -> PublishState:
    return PublishState("s", has_id=has_id, timeout=5, attempts=attempts, retry_wait=0.25, now=0)


@pytest.mark.parametrize(
    ("error", "without_id", "with_id"),
    [
        (NOBODY, 0.25, 0.25),
        (TOO_BUSY, 0.25 / 8, 0.25 / 8),
        (LOST, PublishUncertain, 0.0),
        (SILENCE, PublishTimeout, PublishTimeout),
        (REFUSED, ApiError, ApiError),
        (FULL, OutboxFull, OutboxFull),
        (ConnectionClosed("request"), ConnectionClosed, ConnectionClosed),
    ],
    ids=lambda value: value if isinstance(value, float) else getattr(value, "__name__", type(value).__name__),
)
def test_publish_policy_of_each_error(
    error: NatsError, without_id: float | type[NatsError], with_id: float | type[NatsError]
) -> None:
    for has_id, outcome in ((False, without_id), (True, with_id)):
        message = state(has_id=has_id)
        if isinstance(outcome, float):
            assert message.pause_after(error, 0, 0.1) == outcome
        else:
            with pytest.raises(outcome):
                message.pause_after(error, 0, 0.1)


def test_no_stream_is_tried_three_times_without_an_id() -> None:
    message = state(has_id=False)
    assert [message.pause_after(NOBODY, 0, 0.1) for _ in range(2)] == [0.25, 0.25]
    with pytest.raises(NoStream) as caught:
        message.pause_after(NOBODY, 0, 0.1)
    assert caught.value.waited == 0


def test_no_stream_with_an_id_is_retried_until_timeout() -> None:
    message = state(has_id=True)
    assert {message.pause_after(NOBODY, now, now) for now in range(5)} == {0.25}
    with pytest.raises(NoStream) as caught:
        message.pause_after(NOBODY, 4.9, 4.9)
    assert caught.value.waited == 5


def test_possibly_stored_copy_makes_failures_uncertain() -> None:
    message = state(has_id=True)
    message.pause_after(LOST, 0, 1)
    assert message.pause_after(FULL, 1, 1.1) == 0.25
    message.pause_after(NOBODY, 1, 1.1)
    with pytest.raises(PublishUncertain, match="cut, and then no stream"):
        message.pause_after(NOBODY, 4.9, 4.9)


def test_forgotten_id_ends_what_may_be_stored() -> None:
    message = state(has_id=True)
    assert (message.pause_after(NOBODY, 0, 0.1), message.must_know_id) == (0.25, False)
    assert (message.pause_after(LOST, 0, 1), message.must_know_id) == (0.0, True)
    with pytest.raises(PublishUncertain, match="may not know its message id"):
        message.forget_id()
    guarded = PublishState("s", has_id=True, is_guarded=True, timeout=5, attempts=None, retry_wait=0.25, now=0)
    guarded.pause_after(LOST, 0, 1)
    guarded.forget_id()  # another copy is refused for its expectation
    assert (guarded.is_resendable, guarded.must_know_id) == (True, False)


def test_a_second_of_silence_makes_no_stream_uncertain() -> None:
    """It was sent again meanwhile, so the first copy may be stored."""
    message = state(has_id=True, attempts=0)
    with pytest.raises(PublishUncertain):
        message.pause_after(NOBODY, 0, 1.5)
    with pytest.raises(NoStream):
        state(has_id=False, attempts=0).pause_after(NOBODY, 0, 1.5)


@pytest.mark.parametrize("err_code", sorted(REJECTED_FOR_NOW))
def test_refusal_pauses_grow_to_a_second(err_code: int) -> None:
    refusals = RetryCounter(2, 0.25)
    pauses = [refusals.pause_after(rejection(err_code)) for _ in range(12)]
    assert pauses[0] == 0.25 / 8
    assert pauses[-1] == MAX_RETRY_PAUSE_S
    assert pauses == sorted(pauses, key=lambda pause: pause or 0)


def test_refusal_pauses_double() -> None:
    refusals = RetryCounter(2, 0.25)
    assert [refusals.pause_after(TOO_BUSY) for _ in range(6)] == [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]


def test_attempts_without_a_stream_by_default() -> None:
    without_id = RetryCounter(None, 0.25)
    assert [without_id.pause_after(NOBODY) for _ in range(3)] == [0.25, 0.25, None]
    with_id = RetryCounter(None, 0.25, has_id=True)
    assert [with_id.pause_after(NOBODY) for _ in range(9)] == [0.25] * 9


@pytest.mark.parametrize(("attempts", "waited"), [(-1, 5), (0, 0), (1, 0)])
def test_no_stream_error_has_the_time_waited(attempts: int, waited: float) -> None:
    assert RetryCounter(attempts, 0.25).no_stream_error("s", 5).waited == waited


def test_uncertain_error_has_reason_and_cause() -> None:
    error = uncertain_error("s", LOST, 5)
    assert error.reason == "connection lost: cut"
    assert error.__cause__ is LOST
    assert uncertain_error("s", LOST, 5, "the batch was lost").reason == "the batch was lost"


@pytest.mark.parametrize("now", [5.0, 6.0])
def test_lost_connection_after_the_timeout_is_raised(now: float) -> None:
    with pytest.raises(PublishUncertain):
        state(has_id=True).pause_after(LOST, 0, now)


def test_refusal_of_a_copy_is_certain() -> None:
    """The server looks for a stored copy first, so a refusal shows that there is none."""
    message = state(has_id=True)
    message.pause_after(LOST, 0, 1)
    with pytest.raises(ApiError, match="wrong last sequence"):
        message.pause_after(REFUSED, 1, 1.1)


def test_first_reason_of_uncertainty_is_reported() -> None:
    message = state(has_id=True, attempts=0)
    message.pause_after(LOST, 0, 1)
    with pytest.raises(PublishUncertain, match="cut, and then no stream"):
        message.pause_after(NOBODY, 1, 3)
    silent = state(has_id=True, attempts=0)
    with pytest.raises(PublishUncertain, match=r"1\.5") as caught:
        silent.pause_after(NOBODY, 2, 3.5)
    assert "5.5" not in str(caught.value)


def test_silence_of_exactly_a_second_counts() -> None:
    with pytest.raises(PublishUncertain):
        state(has_id=True, attempts=0).pause_after(NOBODY, 1, 2)
    with pytest.raises(NoStream):
        state(has_id=True, attempts=0).pause_after(NOBODY, 1, 1.99)


def test_pause_must_end_before_the_timeout() -> None:
    assert state(has_id=True).pause_after(NOBODY, 4.7, 4.7) == 0.25
    with pytest.raises(NoStream):
        state(has_id=True).pause_after(NOBODY, 4.75, 4.75)
