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
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._publish.retry_policy import MAX_RETRY_PAUSE_S, TRANSIENT_CODES, PublishState, RetryCounter

NOBODY, LOST, SILENCE = NoResponders("s"), ConnectionLost("cut"), RequestTimeout("request to 's'", 5)
FULL, REFUSED = OutboxFull(1, 2, 3), ApiError(400, ErrCode.STREAM_WRONG_LAST_SEQUENCE, "wrong last sequence", "s")
TOO_BUSY = ApiError(429, ErrCode.STREAM_TOO_MANY_REQUESTS, "too many requests", "s")


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


def test_a_second_of_silence_makes_no_stream_uncertain() -> None:
    """It was sent again meanwhile, so the first copy may be stored."""
    message = state(has_id=True, attempts=0)
    with pytest.raises(PublishUncertain):
        message.pause_after(NOBODY, 0, 1.5)
    with pytest.raises(NoStream):
        state(has_id=False, attempts=0).pause_after(NOBODY, 0, 1.5)


@pytest.mark.parametrize("err_code", sorted(TRANSIENT_CODES))
def test_refusal_pauses_grow_to_a_second(err_code: int) -> None:
    refusals = RetryCounter(2, 0.25)
    pauses = [refusals.pause_after(ApiError(503, err_code, "busy", "s")) for _ in range(12)]
    assert pauses[0] == 0.25 / 8
    assert pauses[-1] == MAX_RETRY_PAUSE_S
    assert pauses == sorted(pauses, key=lambda pause: pause or 0)
