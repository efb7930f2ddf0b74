"""When to pull, how much, and what every status means (ADR-37, ADR-42, ADR-17): tables, a model server, a real one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from natsproto.errors import ConfigError, ConsumerDeleted, ConsumerGone, HeartbeatMissed, PullRefused
from natsproto.jetstream._consumer.delivery.prefetch import MAX_PREFETCH, MAX_PREFETCH_BYTES, AdaptivePrefetch
from natsproto.jetstream._consumer.ordered.ordered_cursor import OrderedCursor
from natsproto.jetstream._consumer.pull.pull_state import (
    DONE,
    KEEP,
    PROBE,
    PROBE_AFTER_S,
    REFILL,
    Action,
    PullDecision,
    PullRequest,
)
from natsproto.jetstream._consumer.pull_options import UNBOUNDED_BATCH, default_heartbeat
from natsproto.jetstream._values.codec import decode, dumps
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.policies import AckPolicy, DeliverPolicy
from tests.jetstream.pulling import Pulling
from tests.kit.examples import examples, lists_up_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.jetstream.conftest import RawClient


def pending(messages: int, size: int = 0) -> dict[str, str]:
    return {"Nats-Pending-Messages": str(messages), "Nats-Pending-Bytes": str(size)}


def asked(pulling: Pulling, now: float = 0.0) -> PullRequest:
    request = pulling.next_request(now)
    assert request is not None
    return request


def on_status(
    pulling: Pulling, code: int, text: str, headers: dict[str, str], now: float, *, pull: int | None = None
) -> PullDecision:
    """A status for the last pull, or for another one."""
    return pulling.on_status(pulling.state.number if pull is None else pull, code, text, headers, now)


def open_pull(**options: int | float | str | bool) -> Pulling:
    """A ledger with its first pull out."""
    pulling = Pulling(**options)  # type: ignore[arg-type]
    asked(pulling)
    return pulling


# ---------------------------------------------------------------- what is asked


def test_the_first_pull_fills_the_buffer() -> None:
    assert asked(Pulling()) == PullRequest(batch=500, expires=30, idle_heartbeat=2)
    assert asked(Pulling(prefetch=7, expires=4)) == PullRequest(batch=7, expires=4, idle_heartbeat=2)
    assert asked(Pulling(prefetch_bytes=9))._replace(expires=0, idle_heartbeat=0) == PullRequest(
        batch=UNBOUNDED_BATCH, max_bytes=9
    )
    assert asked(Pulling(prefetch=3, prefetch_bytes=9)).batch == 3


@given(st.floats(0.01, 1e6), st.integers(0, 12))
@example(10 / 3, 0)
def test_heartbeat_rounding(expires: float, losses: int) -> None:
    """The server refuses a heartbeat that is a nanosecond longer than half of the time."""
    pulling, now = Pulling(expires=expires, once=True), 0.0
    for _ in range(losses + 1):
        if (request := pulling.next_request(now)) is None:
            return
        body = json.loads(request.body())
        assert body.get("idle_heartbeat", 0) * 2 <= body["expires"]
        assert (pulling.deadline or 0) > now
        now = pulling.deadline or 0
        pulling.on_deadline(now)


@pytest.mark.parametrize(
    ("expires", "heartbeat"), [(0.9, 0.0), (1.0, 0.5), (3.0, 1.5), (4.0, 2.0), (30.0, 2.0), (600.0, 2.0)]
)
def test_heartbeats_are_half_of_the_time_within_bounds(expires: float, heartbeat: float) -> None:
    assert default_heartbeat(expires) == heartbeat
    assert asked(Pulling(expires=expires)).idle_heartbeat == heartbeat


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch_bytes": -1}, "prefetch_bytes"),
        ({"stop_after": -1}, "stop_after"),
        ({"expires": 0.0}, "expires"),
        ({"expires": 1.0, "heartbeat": 0.6}, "heartbeat"),
        ({"heartbeat": -1.0}, "heartbeat"),
        ({"prefetch": 5, "refill_at": 6}, "refill_at"),
        ({"prefetch_bytes": 5, "refill_at_bytes": 6}, "refill_at_bytes"),
        ({"refill_at": -1}, "refill_at"),
    ],
)
def test_a_pull_that_cannot_be_is_reported(options: dict[str, int], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pulling(**options)  # type: ignore[arg-type]
    assert caught.value.name == what


# ---------------------------------------------------------------- when it is asked again


def test_pull_again_when_half_the_messages_are_taken() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(10, 0, 0.0)
    pulling.on_consumed(4, 0)
    assert not pulling.wants_refill()
    assert pulling.next_request(0.0) is None
    pulling.on_consumed(1, 0)
    assert pulling.wants_refill()
    assert asked(pulling).batch == 5
    assert pulling.next_request(0.0) is None


def test_buffer_of_one_message_is_filled_again() -> None:
    pulling = Pulling(prefetch=1)
    for _ in range(3):
        assert asked(pulling).batch == 1
        assert pulling.next_request(0.0) is None
        pulling.on_message(0, 0.0)
        assert pulling.next_request(0.0) is None
        pulling.on_consumed(1, 0)


class Weight(NamedTuple):
    """As much of a message as is needed to weigh it."""

    data: range


@pytest.mark.parametrize(
    ("messages", "size", "took", "bound"),
    [
        (63, 100, 0.0, 500),  # too few to judge by
        (64, 100, 0.0, 4096),
        (1000, 100, 0.1, 1000),
        (1000, 100, 0.05, 2000),
        (1000, 100, 0.02, 4096),
        (1000, 100, 1.0, 500),
        (1000, MAX_PREFETCH_BYTES // 4096, 0.0, 4096),
        (1000, MAX_PREFETCH_BYTES // 1000, 0.0, 1000),
        (1000, MAX_PREFETCH_BYTES // 100, 100.0, 100),
        (1, MAX_PREFETCH_BYTES // 10, 0.0, 10),
        (10, 2 * MAX_PREFETCH_BYTES, 0.0, 1),
    ],
)
def test_prefetch_is_a_tenth_of_a_second_of_reading(messages: int, size: int, took: float, bound: int) -> None:
    ahead = AdaptivePrefetch()
    ahead.on_messages([Weight(range(size))] * messages, 0, 5.0)
    ahead.on_consumed(messages, 5.0 + took)
    assert ahead.decide() == bound
    assert ahead.decide() == bound  # nothing new was seen


def test_prefetch_does_not_count_idle_time() -> None:
    ahead, now = AdaptivePrefetch(), 0.0
    for _ in range(100):
        ahead.on_messages([Weight(range(1))] * 10, 0, now)
        ahead.on_messages([Weight(range(1))] * 10, 10, now + 0.001)
        ahead.on_consumed(20, now + 0.002)
        now += 60.0
    assert ahead.decide() == pytest.approx(1000, abs=1)


@given(lists_up_to(40, st.tuples(st.integers(1, 600), st.integers(0, 2**26), st.floats(0, 10), st.booleans())))
def test_prefetch_stays_within_its_limits(steps: list[tuple[int, int, float, bool]]) -> None:
    ahead, now = AdaptivePrefetch(), 0.0
    for count, size, took, decides in steps:
        ahead.on_messages([Weight(range(size))] * count, 0, now)
        now += took
        ahead.on_consumed(count, now)
        if decides:
            bound = ahead.decide()
            assert 1 <= bound <= MAX_PREFETCH
            assert bound * size <= MAX_PREFETCH_BYTES or bound == 1


def read_weights(pulling: Pulling, count: int, size: int, took: float) -> None:
    """So many messages of so many bytes come, and are taken within so many seconds."""
    pulling.read([Weight(range(size))] * count, took)


def test_prefetch_of_fast_and_slow_readers() -> None:
    pulling = open_pull(follows=True)
    read_weights(pulling, 500, 100, 0.01)
    assert asked(pulling).batch == 4096
    read_weights(pulling, 4096, 100, 4.0)
    assert asked(pulling).batch == 500


def test_prefetch_change_counts_what_is_on_its_way() -> None:
    pulling = open_pull(follows=True)
    read_weights(pulling, 250, 100, 0.001)
    assert asked(pulling).batch == 4096 - 250
    read_weights(pulling, 3900, 100, 4.0)
    assert asked(pulling).batch == 500 - 196


@pytest.mark.parametrize("bounds", [{"prefetch": 500}, {"prefetch_bytes": 10**6}, {"refill_at": 100}], ids=str)
def test_bounds_that_were_given_are_kept(bounds: dict[str, int]) -> None:
    assert open_pull(follows=True, **bounds).prefetch is None


def test_prefetch_stays_below_the_learned_limit() -> None:
    pulling = open_pull(follows=True)
    on_status(pulling, 409, "Exceeded MaxRequestBatch of 20", {}, 0.0)
    read_weights(pulling, 500, 100, 0.01)
    assert asked(pulling).batch == 20


def test_long_pull_names_its_max_bytes() -> None:
    pulling = open_pull(follows=True)
    read_weights(pulling, 500, 100, 0.01)
    assert asked(pulling).max_bytes == 2 * MAX_PREFETCH_BYTES
    decision = on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(4000, 1000), 0.0)
    assert decision is REFILL
    request = asked(pulling)  # of 4,096 the server has 96 more on their way
    assert (request.batch, request.max_bytes) == (500 - 96, 0)


def test_unread_messages_are_not_pulled_again() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(10, 0, 0.0)
    assert pulling.next_request(0.0) is None
    assert pulling.deadline is None  # nothing is open: no heartbeat is due, and none is missed


def test_the_books_stay_small_while_messages_flow() -> None:
    for options in ({"prefetch": 10}, {"prefetch_bytes": 1000}, {"prefetch": 10, "prefetch_bytes": 1000}):
        pulling = open_pull(**options)
        for _ in range(1000):
            pulling.on_message(100, 0.0)
            pulling.on_consumed(1, 100)
            pulling.next_request(0.0)
        assert len(pulling.state._open_pulls) <= 3


def test_what_is_held_counts_after_a_loss_too() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(4, 0, 0.0)
    on_status(pulling, 409, "Leadership Change", {}, 0.0)
    assert asked(pulling).batch == 6


def test_pull_again_when_half_the_bytes_are_taken() -> None:
    pulling = open_pull(prefetch_bytes=1000)
    pulling.on_messages(4, 400, 0.0)
    pulling.on_consumed(4, 400)
    assert pulling.next_request(0.0) is None
    pulling.on_message(100, 0.0)
    assert pulling.next_request(0.0) is None
    pulling.on_consumed(1, 100)
    request = asked(pulling)
    assert (request.batch, request.max_bytes) == (UNBOUNDED_BATCH, 500)


def test_exactly_used_bytes_end_the_pull_silently() -> None:
    pulling = open_pull(prefetch=100, prefetch_bytes=1000)
    pulling.on_messages(10, 1000, 0.0)
    assert (pulling.state.pending, pulling.state.pending_bytes) == (0, 0)
    pulling.on_consumed(10, 1000)
    assert asked(pulling).max_bytes == 1000


def test_both_bounds_hold_together() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(5, 250, 0.0)
    pulling.on_consumed(5, 250)
    request = asked(pulling)  # half of the messages
    assert (request.batch, request.max_bytes) == (5, 250)
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(2, 600, 0.0)
    pulling.on_consumed(2, 600)
    request = asked(pulling)  # half of the bytes
    assert (request.batch, request.max_bytes) == (2, 600)


def test_a_sliver_of_bytes_is_not_asked_for() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(5, 50, 0.0)
    pulling.on_consumed(5, 50)
    assert pulling.next_request(0.0) is None
    on_status(pulling, 409, "Batch Completed", pending(0, 450), 0.0)
    pulling.on_messages(5, 500, 0.0)
    pulling.on_consumed(5, 500)
    assert asked(pulling).max_bytes == 1000


def test_a_total_is_never_exceeded_and_ends_it() -> None:
    pulling = Pulling(prefetch=4, stop_after=6)
    assert asked(pulling).batch == 4
    assert pulling.on_messages(4, 0, 0.0) is KEEP
    pulling.on_consumed(4, 0)
    assert asked(pulling).batch == 2
    assert pulling.on_messages(2, 0, 0.0) is DONE
    pulling.on_consumed(2, 0)
    assert pulling.next_request(0.0) is None
    assert pulling.is_done


# ---------------------------------------------------------------- every status of a continuous pull

ENDED, LOST, LEARNED, LATER = "ended", "lost", "learned", "later"

STATUSES = [
    (100, "Idle Heartbeat", {"Nats-Last-Consumer": "1"}, Action.KEEP, "open"),
    (404, "No Messages", {}, Action.REFILL, ENDED),
    (408, "Request Timeout", pending(10, 1000), Action.REFILL, ENDED),
    (408, "Interest Expired", pending(10, 1000), Action.REFILL, ENDED),
    (408, "Requests Pending", {}, Action.REFILL, ENDED),
    (409, "Batch Completed", pending(10, 1000), Action.REFILL, ENDED),
    (409, "Leadership Change", {}, Action.REFILL, ENDED),
    (409, "Server Shutdown", pending(10, 1000), Action.REFILL, ENDED),
    (423, "Nats-Wrong-Pin-Id", pending(10, 1000), Action.REFILL, ENDED),
    (423, "Nats-Pin-Id mismatch", {}, Action.REFILL, ENDED),
    (409, "Exceeded MaxRequestBatch of 5", {}, Action.REFILL, LEARNED),
    (409, "Exceeded MaxRequestExpires of 2s", {}, Action.REFILL, LEARNED),
    (409, "Exceeded MaxRequestMaxBytes of 700", {}, Action.REFILL, LEARNED),
    (409, "Exceeded MaxWaiting", {}, Action.REFILL, LATER),
    (409, "Something New", {}, Action.REFILL, LATER),
    (500, "Something Worse", pending(10, 1000), Action.REFILL, LATER),
    (503, "", {}, Action.REFILL, LATER),
    (409, "Message Size Exceeds MaxBytes", pending(10, 1000), Action.STOP, PullRefused),
    (409, "Consumer Deleted", {}, Action.STOP, ConsumerDeleted),
    (409, "Consumer is push based", {}, Action.STOP, ConsumerGone),
    (400, "Bad Request - Priority Group missing", {}, Action.STOP, PullRefused),
    (400, "Bad Request - Invalid Priority Group", {}, Action.STOP, PullRefused),
    (400, "Bad Request - Not a Pinned Client Priority consumer", {}, Action.STOP, PullRefused),
    (400, "Bad Request - Not a Overflow Priority consumer", {}, Action.STOP, PullRefused),
    (400, "Bad Request - Priority must be between 0 and 9", {}, Action.STOP, PullRefused),
    (400, "Bad Request - heartbeat value too large", {}, Action.STOP, PullRefused),
    (412, "Required Api Level", {}, Action.STOP, PullRefused),
]


@pytest.mark.parametrize(("code", "text", "headers", "action", "then"), STATUSES)
def test_what_a_status_means_to_a_continuous_pull(
    code: int, text: str, headers: dict[str, str], action: Action, then: object
) -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    decision = on_status(pulling, code, text, headers, 1.0)
    assert decision.action is action
    if action is Action.STOP:
        assert type(decision.error) is then
        assert pulling.is_done
        assert pulling.next_request(100.0) is None
        assert pulling.deadline is None
        return
    assert not pulling.is_done
    request = pulling.next_request(1.0)
    if then == "open":
        assert request is None
        assert pulling.deadline == 5.0
    elif then == ENDED:
        assert decision == REFILL
        assert request is not None
        assert (request.batch, request.max_bytes) == (10, 1000)
    elif then == LEARNED:
        assert isinstance(decision.notice, PullRefused)
        assert request is not None
        assert request.batch <= 5 or request.expires == 2 or request.max_bytes == 700
        assert request.idle_heartbeat * 2 <= request.expires
    else:
        assert decision.notice is not None
        assert request is None
        assert pulling.deadline is not None
        assert 1.0 < pulling.deadline < 1.2
        assert pulling.on_deadline(pulling.deadline) is REFILL
        assert asked(pulling, 1.2).batch == 10


# Ends of pulls that were served or waited for as long as they said; or answers to no_wait, which is not said here.
NATURAL_ENDS = {"Request Timeout", "Interest Expired", "Batch Completed", "No Messages", "Requests Pending"}


@pytest.mark.parametrize(
    ("code", "text", "headers"), [status[:3] for status in STATUSES if status[1] not in NATURAL_ENDS]
)
def test_no_status_makes_a_continuous_pull_spin(code: int, text: str, headers: dict[str, str]) -> None:
    pulling = Pulling(prefetch=10, prefetch_bytes=1000)
    pulls = sum(
        pulling.next_request(now / 100) is not None
        and on_status(pulling, code, text, headers, now / 100).action is not Action.STOP
        for now in range(200)  # two seconds
    )
    assert pulls <= 16


def test_pull_without_a_leader_is_repeated_soon() -> None:
    for election in (0.3, 0.5, 1.0, 3.0, 8.0):
        pulling, now = open_pull(), 0.0
        on_status(pulling, 409, "Leadership Change", {}, now)
        asked(pulling, now)
        while now < election:
            decision = on_status(pulling, 503, "", {}, now)
            assert isinstance(decision.notice, ConsumerGone)
            assert pulling.deadline is not None
            now = pulling.deadline
            assert pulling.on_deadline(now) is REFILL
            asked(pulling, now)
        assert now <= election * 1.04 + 0.1 + 1e-6


def test_pulls_without_responders_are_counted() -> None:
    pulling = open_pull()
    for count in (1, 2, 3):
        on_status(pulling, 503, "", {}, float(count))
        assert pulling.state.no_responders == count
        assert pulling.deadline is not None
        asked(pulling, pulling.deadline)
    on_status(pulling, 100, "Idle Heartbeat", {}, 5.0)
    assert pulling.state.no_responders == 0


def test_pull_backoff_grows_to_ten_seconds() -> None:
    pulling, now, waits = Pulling(), 0.0, []
    for _ in range(125):
        asked(pulling, now)
        on_status(pulling, 503, "", {}, now)
        assert pulling.deadline is not None
        waits.append(pulling.deadline - now)
        now = pulling.deadline
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(10.0)
    asked(pulling, now)
    pulling.on_message(0, now)
    on_status(pulling, 503, "", {}, now)
    assert pulling.deadline is not None
    assert pulling.deadline - now < 0.15


def test_a_limit_that_is_not_understood_is_waited_for() -> None:
    pulling = open_pull(prefetch=10)
    decision = on_status(pulling, 409, "Exceeded MaxRequestBatch of plenty", {}, 0.0)
    assert decision.action is Action.REFILL
    assert pulling.next_request(0.0) is None


def test_a_learned_batch_limit_is_kept() -> None:
    pulling = open_pull(prefetch=10)
    on_status(pulling, 409, "Exceeded MaxRequestBatch of 4", {}, 0.0)
    assert asked(pulling).batch == 4
    assert asked(pulling).batch == 4  # the threshold of 5 is not passed yet
    pulling.on_messages(4, 0, 0.0)
    pulling.on_consumed(4, 0)
    assert asked(pulling).batch == 4


@pytest.mark.parametrize(("limit", "bound"), [("2s", 2.0), ("500ms", 0.5), ("1m30s", 90.0), ("1h0m0s", 3600.0)])
def test_learned_max_expires_as_the_server_writes_it(limit: str, bound: float) -> None:
    pulling = open_pull(expires=7200.0)
    on_status(pulling, 409, f"Exceeded MaxRequestExpires of {limit}", {}, 0.0)
    request = asked(pulling)
    assert request.expires == bound
    assert request.idle_heartbeat * 2 <= bound


def test_refused_pull_removes_only_itself() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(6, 0, 0.0)
    pulling.on_consumed(6, 0)
    assert asked(pulling).batch == 6
    on_status(pulling, 409, "Exceeded MaxWaiting", {}, 0.0)
    assert pulling.state.pending == 4


def test_message_too_big_for_the_free_bytes_waits() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(2, 400, 0.0)
    assert on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(8, 600), 0.0) is REFILL
    assert pulling.next_request(0.0) is None
    pulling.on_consumed(1, 200)
    assert asked(pulling).max_bytes == 800
    assert on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(9, 800), 0.0) is REFILL
    assert pulling.next_request(0.0) is None
    pulling.on_consumed(1, 200)
    assert asked(pulling).max_bytes == 1000
    decision = on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(10, 1000), 0.0)
    assert decision.action is Action.STOP
    assert "more than 1000 bytes" in str(decision.error)


# ---------------------------------------------------------------- silence and connections


def test_two_missed_heartbeats_pull_again() -> None:
    pulling = open_pull(prefetch=10, expires=10.0, heartbeat=5.0)
    assert pulling.deadline == 10.0
    assert pulling.on_deadline(9.9) is KEEP
    decision = pulling.on_deadline(10.0)
    assert decision.action is Action.REFILL
    assert isinstance(decision.notice, HeartbeatMissed)
    assert decision.notice.silence == 10.0
    assert asked(pulling, 10.0).batch == 10


@pytest.mark.parametrize("sign", ["heartbeat", "message", "status"])
def test_any_sign_of_life_puts_the_deadline_off(sign: str) -> None:
    pulling = open_pull(prefetch=10, expires=10.0, heartbeat=5.0)
    if sign == "heartbeat":
        on_status(pulling, 100, "Idle Heartbeat", {}, 5.0)
    elif sign == "message":
        pulling.on_message(0, 5.0)
    else:
        asked_before = pulling.state.pending
        on_status(pulling, 408, "Request Timeout", pending(1), 5.0)
        assert pulling.state.pending == asked_before - 1
    assert pulling.deadline == 15.0
    assert pulling.on_deadline(10.0) is KEEP


def test_sudden_silence_sends_a_probe() -> None:
    pulling = open_pull(prefetch=20)
    pulling.on_messages(7, 0, 0.0)
    assert pulling.deadline == 4.0
    pulling.on_message(0, 1.0)
    assert pulling.deadline == 1.0 + PROBE_AFTER_S
    assert pulling.on_deadline(1.1) is KEEP
    assert pulling.on_deadline(1.0 + PROBE_AFTER_S).action is Action.PROBE
    assert pulling.deadline == 5.0  # once is enough
    assert pulling.on_status(0, 400, "Bad Request - heartbeat value too large", {}, 1.3) is KEEP
    assert (pulling.state.pending, pulling.deadline) == (12, 5.3)
    assert isinstance(pulling.on_deadline(5.3).notice, HeartbeatMissed)


def test_probe_without_responders_abandons_pulls() -> None:
    pulling = open_pull(prefetch=20)
    pulling.on_messages(8, 0, 0.0)
    assert pulling.on_deadline(0.25).action is Action.PROBE
    decision = pulling.on_status(0, 503, "", {}, 0.3)
    assert isinstance(decision.notice, ConsumerGone)
    assert (pulling.state.pending, pulling.state.no_responders) == (0, 1)
    assert pulling.deadline == pytest.approx(0.4)


def test_probe_without_open_pulls_changes_nothing() -> None:
    pulling = open_pull(prefetch=8)
    pulling.on_messages(8, 0, 0.0)
    assert pulling.deadline is None
    assert pulling.on_status(0, 503, "", {}, 0.3) is KEEP
    assert not pulling.is_done


def test_probe_is_refused_by_every_server() -> None:
    probe = json.loads(PROBE)
    assert probe["idle_heartbeat"] * 2 > probe["expires"]


def test_abandoned_pull_no_longer_counts() -> None:
    for status in STATUSES:
        code, text, headers, action, _ = status
        pulling = open_pull(prefetch=10, prefetch_bytes=1000)
        on_status(pulling, 409, "Leadership Change", {}, 0.0)
        asked(pulling)
        decision = on_status(pulling, code, text, headers, 1.0, pull=1)
        if "Deleted" in text or "push based" in text:
            assert decision.action is action is Action.STOP
        else:
            assert decision is KEEP
            assert (pulling.state.pending, pulling.state.pending_bytes, pulling.deadline) == (10, 1000, 0.5)


def test_leader_change_ends_pulls_and_one_follows() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(5, 0, 0.0)
    pulling.on_consumed(5, 0)
    assert asked(pulling).batch == 5
    assert on_status(pulling, 409, "Leadership Change", {}, 1.0, pull=1) is REFILL
    assert asked(pulling, 1.0).batch == 10
    assert on_status(pulling, 409, "Leadership Change", {}, 1.0, pull=2) is KEEP
    assert pulling.state.pending == 10


def test_new_leader_ends_the_wait_for_one() -> None:
    pulling = open_pull(prefetch=10)
    on_status(pulling, 503, "", {}, 0.0)
    assert pulling.next_request(0.01) is None
    assert on_status(pulling, 409, "Leadership Change", {}, 0.02, pull=1) is REFILL
    assert asked(pulling, 0.02).batch == 10


def test_abandoned_pull_does_not_end_a_single_pull() -> None:
    pulling = open_pull(prefetch=10, once=True, expires=10.0)
    pulling.state.on_disconnect()
    pulling.state.on_reconnect(1.0)
    asked(pulling, 1.0)
    assert on_status(pulling, 408, "Request Timeout", pending(10), 2.0, pull=1) is KEEP
    assert on_status(pulling, 408, "Request Timeout", pending(10), 10.0) is DONE


def test_heartbeat_patience_grows_with_each_consumer() -> None:
    pulling, now = open_pull(prefetch=10), 0.0
    for idle_timeout in (4.0, 0.5, 1.0, 2.0, 4.0):  # a line with a round trip of a second would never see one in time
        assert pulling.deadline == now + idle_timeout
        now = pulling.deadline
        pulling.on_deadline(now)
        pulling.begin_again()
        asked(pulling, now)


def test_pull_without_heartbeats_is_abandoned() -> None:
    pulling = open_pull(expires=0.5)
    assert pulling.deadline == 1.5


def test_no_pull_and_no_miss_without_a_connection() -> None:
    pulling = open_pull(prefetch=10)
    pulling.state.on_disconnect()
    assert pulling.deadline is None
    assert pulling.on_deadline(1000.0) is KEEP
    assert pulling.next_request(1000.0) is None
    assert pulling.state.on_reconnect(1000.0) is REFILL
    assert asked(pulling, 1000.0).batch == 10
    assert pulling.deadline == 1000.5


@pytest.mark.parametrize("loss", ["leader", "connection", "silence"])
def test_pull_after_a_loss_is_short(loss: str) -> None:
    pulling, now = open_pull(prefetch=10), 0.0
    if loss == "leader":
        on_status(pulling, 409, "Leadership Change", {}, now)
    elif loss == "connection":
        pulling.state.on_disconnect()
        pulling.state.on_reconnect(now)
    else:
        now = 4.0
        assert isinstance(pulling.on_deadline(now).notice, HeartbeatMissed)
    for heartbeat in (0.25, 0.5, 1.0, 2.0, 2.0):
        request = asked(pulling, now)
        assert request.idle_heartbeat == heartbeat
        assert request.expires == (5.0 if heartbeat < 2.0 else 30.0)
        assert pulling.deadline == now + 2 * heartbeat
        now = pulling.deadline
        pulling.on_deadline(now)
    pulling.next_request(now)
    on_status(pulling, 100, "Idle Heartbeat", {}, now)
    on_status(pulling, 408, "Request Timeout", pending(10), now)
    assert asked(pulling, now).idle_heartbeat == 2.0


def test_a_reconnect_does_not_wait_for_a_back_off() -> None:
    pulling = open_pull()
    on_status(pulling, 503, "", {}, 0.0)
    pulling.state.on_disconnect()
    pulling.state.on_reconnect(0.0)
    asked(pulling, 0.0)


def test_a_paused_consumer_raises_no_alarm() -> None:
    pulling, now = open_pull(expires=10.0, heartbeat=5.0), 0.0
    for now in range(5, 10, 5):  # heartbeats go on while a consumer is paused
        assert on_status(pulling, 100, "Idle Heartbeat", {}, float(now)) is KEEP
    on_status(pulling, 408, "Request Timeout", pending(500), 10.0)
    asked(pulling, 10.0)
    assert pulling.deadline == 20.0


# ---------------------------------------------------------------- a single pull

ONCE = [
    (100, "Idle Heartbeat", {}, Action.KEEP),
    (404, "No Messages", {}, Action.DONE),
    (408, "Request Timeout", pending(10, 1000), Action.DONE),
    (408, "Interest Expired", pending(10, 1000), Action.DONE),
    (408, "Requests Pending", {}, Action.DONE),
    (409, "Batch Completed", pending(0, 10), Action.DONE),
    (409, "Message Size Exceeds MaxBytes", pending(10, 1000), Action.STOP),
    (409, "Leadership Change", {}, Action.REFILL),
    (409, "Server Shutdown", pending(10, 1000), Action.REFILL),
    (423, "Nats-Wrong-Pin-Id", pending(10, 1000), Action.REFILL),
    (423, "Nats-Pin-Id mismatch", {}, Action.REFILL),
    (409, "Exceeded MaxRequestBatch of 5", {}, Action.REFILL),
    (409, "Exceeded MaxRequestMaxBytes of 5", {}, Action.REFILL),
    (409, "Exceeded MaxRequestExpires of 2s", {}, Action.REFILL),
    (409, "Exceeded MaxWaiting", {}, Action.REFILL),
    (409, "Consumer Deleted", {}, Action.STOP),
    (409, "Consumer is push based", {}, Action.STOP),
    (400, "Bad Request - Invalid Priority Group", {}, Action.STOP),
    (412, "Required Api Level", {}, Action.STOP),
    (500, "Something Worse", {}, Action.STOP),
    (503, "", {}, Action.REFILL),
]


@pytest.mark.parametrize(("code", "text", "headers", "action"), ONCE)
def test_what_a_status_means_to_a_single_pull(code: int, text: str, headers: dict[str, str], action: Action) -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000, once=True, expires=30.0)
    if text == "Batch Completed":
        pulling.on_messages(10, 990, 0.5)
        assert pulling.is_done  # the count says so before the status does
        return
    decision = on_status(pulling, code, text, headers, 1.0)
    assert decision.action is action
    assert pulling.is_done is (action in (Action.DONE, Action.STOP))
    assert (decision.error is not None) is (action is Action.STOP)
    if action is Action.REFILL:
        now = pulling.deadline or 1.0 if code == 503 or text == "Exceeded MaxWaiting" else 1.0
        assert asked(pulling, now).expires <= 29.0


def test_a_single_pull_is_done_when_it_is_full() -> None:
    pulling = open_pull(prefetch=3, once=True)
    assert pulling.on_messages(2, 0, 0.0) is KEEP
    assert pulling.on_message(0, 0.0) is DONE
    pulling = open_pull(prefetch_bytes=100, once=True)
    assert pulling.on_message(99, 0.0) is KEEP
    assert pulling.on_message(1, 0.0) is DONE


def test_single_pull_repeats_what_a_lost_server_owed() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000, once=True, expires=10.0)
    pulling.on_messages(4, 300, 1.0)
    pulling.state.on_disconnect()
    pulling.state.on_reconnect(4.0)
    request = asked(pulling, 4.0)
    assert (request.batch, request.max_bytes, request.expires, request.idle_heartbeat) == (6, 700, 5.0, 0.25)
    assert pulling.next_request(4.0) is None
    pulling.state.on_disconnect()
    assert pulling.state.on_reconnect(11.0) is DONE


def test_a_single_pull_in_pieces_gets_all_it_asked_for() -> None:
    pulling = open_pull(prefetch=10, once=True, expires=30.0)
    on_status(pulling, 409, "Exceeded MaxRequestBatch of 4", {}, 0.0)
    for batch in (4, 4, 2):
        assert asked(pulling).batch == batch
        decision = pulling.on_messages(batch, 0, 0.0)
    assert decision is DONE


def test_single_pull_in_short_pieces_waits_its_time() -> None:
    pulling = open_pull(prefetch=10, once=True, expires=5.0)
    on_status(pulling, 409, "Exceeded MaxRequestExpires of 2s", {}, 0.0)
    for now, expires in ((0.0, 2.0), (2.0, 2.0), (4.0, 1.0)):
        assert asked(pulling, now).expires == expires
        decision = on_status(pulling, 408, "Request Timeout", pending(10), now + expires)
    assert decision is DONE


def test_bytes_in_pieces() -> None:
    pulling = open_pull(prefetch_bytes=5000, once=True, expires=30.0)
    on_status(pulling, 409, "Exceeded MaxRequestMaxBytes of 1200", {}, 0.0)
    for free in (1200, 1200, 1200, 1200, 1000):
        assert asked(pulling).max_bytes == free
        size = 800 if free == 1000 else 1000
        pulling.on_messages(2, size, 0.0)
        decision = on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(99, free - size), 0.0)
    assert decision is DONE


def test_early_end() -> None:
    """What is there, and at least one message: waited for once, and not behind it."""
    pulling = Pulling(prefetch=10, once=True, early=True, expires=5.0)
    assert json.loads(asked(pulling).body()) == {
        "batch": 10,
        "expires": 5_000_000_000,
        "idle_heartbeat": 2_000_000_000,
        "no_wait": True,
    }
    assert pulling.on_messages(3, 0, 1.0) is KEEP
    assert on_status(pulling, 404, "No Messages", {}, 1.0) is DONE
    pulling = Pulling(prefetch=10, once=True, early=True, expires=5.0)
    asked(pulling)
    on_status(pulling, 409, "Exceeded MaxRequestBatch of 4", {}, 0.0)
    asked(pulling)
    pulling.on_messages(4, 0, 1.0)
    assert json.loads(asked(pulling, 1.0).body()) == {"batch": 4, "no_wait": True}
    pulling.state.on_disconnect()
    assert pulling.is_done


def test_what_was_seen_of_a_shutdown() -> None:
    pulling = open_pull()
    on_status(pulling, 409, "Server Shutdown", pending(500), 1.0)
    asked(pulling, 1.0)
    notice = on_status(pulling, 503, "", {}, 1.1).notice
    assert "503" in str(notice)
    assert "409 Server Shutdown" in str(notice)
    assert "deleted" not in str(notice)
    assert "409" not in str(on_status(open_pull(), 503, "", {}, 1.1).notice)


def test_pulls_that_may_still_be_served() -> None:
    """A subscription can serve the next reader only when every pull is known to have ended."""
    served = open_pull(prefetch=2, once=True)
    served.on_messages(2, 0, 0.0)
    expired = open_pull(prefetch=2, once=True)
    on_status(expired, 408, "Request Timeout", pending(2), 5.0)
    assert not served.state.has_abandoned_pulls
    assert not expired.state.has_abandoned_pulls
    left = open_pull(prefetch=2, once=True)
    left.state.stop()
    filled = open_pull(prefetch=2, once=True)
    filled.on_leftover(2)
    silent = open_pull(prefetch=2, once=True)
    silent.on_deadline(silent.deadline or 0.0)
    assert filled.is_done
    assert left.state.has_abandoned_pulls
    assert filled.state.has_abandoned_pulls
    assert silent.state.has_abandoned_pulls


def test_a_single_pull_that_does_not_wait_has_no_time() -> None:
    request = asked(Pulling(prefetch=10, once=True, no_wait=True, expires=5.0))
    assert json.loads(request.body()) == {"batch": 10, "no_wait": True}


def test_single_pull_ends_in_time() -> None:
    for no_wait in (False, True):
        pulling = Pulling(prefetch=10, once=True, expires=5.0, no_wait=no_wait)
        pulling.state.on_disconnect()
        assert pulling.next_request(0.0) is None
        assert pulling.deadline == 5.0
        assert pulling.on_deadline(4.0) is KEEP
        assert pulling.on_deadline(5.0) is DONE
        pulling = open_pull(prefetch=10, once=True, expires=5.0, no_wait=no_wait)
        now = 0.0
        while not pulling.is_done:
            on_status(pulling, 503, "", {}, now)
            assert pulling.deadline is not None
            now = pulling.deadline
            pulling.on_deadline(now)
            pulling.next_request(now)
        assert now == pytest.approx(5.0, abs=0.02)
        pulling, now = open_pull(prefetch=10, once=True, expires=5.0, no_wait=no_wait), 0.0
        while not pulling.is_done:
            assert pulling.deadline is not None
            now = pulling.deadline
            pulling.on_deadline(now)
            pulling.next_request(now)
        assert 5.0 <= now <= 6.0


def test_unsent_pull_is_repeated_later() -> None:
    pulling = open_pull(prefetch=10)
    pulling.state.on_not_sent(0.0)
    assert pulling.state.pending == 0
    assert pulling.next_request(0.0) is None
    assert pulling.deadline == pytest.approx(0.1)
    assert pulling.on_deadline(0.2) is REFILL
    assert asked(pulling, 0.2).batch == 10


# ---------------------------------------------------------------- a model of the server


class Pull:
    def __init__(self, number: int, request: PullRequest) -> None:
        self.number = number
        self.messages, self.bytes, self.bounded = request.batch, request.max_bytes, request.max_bytes > 0


class AgainstAModelServer(RuleBasedStateMachine):
    """Pulls are served in turn, end with the statuses of the real one, and are lost with it.

    Never more than the bounds is asked for or held, and whatever happens, a user who takes everything gets more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pulling = Pulling(prefetch=8, prefetch_bytes=800)
        self.pulls: list[Pull] = []
        self.buffer: list[int] = []
        self.now = 0.0
        self.connected = True

    def refill(self) -> None:
        while request := self.pulling.next_request(self.now):
            self.pulls.append(Pull(self.pulling.state.number, request))

    def silence(self) -> Action:
        assert self.pulling.deadline is not None
        self.now = max(self.now, self.pulling.deadline)
        return self.pulling.on_deadline(self.now).action

    @rule()
    def ask(self) -> None:
        self.refill()

    @precondition(lambda self: self.pulls and self.connected)
    @rule(size=st.integers(20, 700))
    def serve(self, size: int) -> None:
        pull = self.pulls.pop(0)
        if pull.bytes < size:
            left = pending(pull.messages, pull.bytes)
            self.pulling.on_status(pull.number, 409, "Message Size Exceeds MaxBytes", left, self.now)
            return
        pull.messages -= 1
        pull.bytes -= size
        self.buffer.append(size)
        self.pulling.on_message(size, self.now)
        if pull.bytes and not pull.messages:
            self.pulling.on_status(pull.number, 409, "Batch Completed", pending(0, pull.bytes), self.now)
        elif pull.bytes:
            self.pulls.append(pull)

    @precondition(lambda self: self.pulls and self.connected)
    @rule()
    def expire(self) -> None:
        pull = self.pulls.pop(0)
        self.pulling.on_status(pull.number, 408, "Request Timeout", pending(pull.messages, pull.bytes), self.now)

    @precondition(lambda self: self.connected)
    @rule()
    def change_leader(self) -> None:
        pulls, self.pulls = self.pulls, []
        for pull in pulls:
            self.pulling.on_status(pull.number, 409, "Leadership Change", {}, self.now)
            self.refill()

    @precondition(lambda self: self.connected)
    @rule()
    def freeze_until_it_is_missed(self) -> None:
        self.pulls.clear()
        if self.pulling.deadline is not None:
            action = self.silence()
            if action is Action.PROBE:  # which is frozen with the rest
                action = self.silence()
            assert action is Action.REFILL

    @precondition(lambda self: self.connected)
    @rule()
    def lose_the_connection(self) -> None:
        self.connected = False
        self.pulls.clear()
        self.pulling.state.on_disconnect()

    @precondition(lambda self: not self.connected)
    @rule()
    def come_back(self) -> None:
        self.connected = True
        assert self.pulling.state.on_reconnect(self.now) is REFILL

    @precondition(lambda self: self.buffer)
    @rule()
    def take(self) -> None:
        self.pulling.on_consumed(1, self.buffer.pop(0))

    @invariant()
    def the_books_say_what_is(self) -> None:
        assert self.pulling.held == len(self.buffer)
        assert self.pulling.held_bytes == sum(self.buffer)
        assert sum(pull.messages for pull in self.pulls) + len(self.buffer) <= 8
        assert sum(pull.bytes for pull in self.pulls) + sum(self.buffer) <= 800

    @invariant()
    def it_never_dries_up(self) -> None:
        if not self.buffer and not self.pulls and self.connected and not self.pulling.is_done:
            assert self.pulling.state.pending == 0, "waits for what nobody owes"
            request = self.pulling.next_request(self.now + 20.0)
            assert request is not None, "does not ask though nothing will come"
            self.pulls.append(Pull(self.pulling.state.number, request))


TestAgainstAModelServer = AgainstAModelServer.TestCase
TestAgainstAModelServer.settings = examples(100, steps=40)


# ---------------------------------------------------------------- a real server


class Driver:
    """The smallest one: takes every message at once, and time stands still."""

    def __init__(self, raw: RawClient, inbox: str, pulling: Pulling) -> None:
        self.raw, self.inbox, self.pulling = raw, inbox, pulling
        self.sizes: list[int] = []

    def refill(self) -> None:
        while request := self.pulling.next_request(0.0):
            reply = f"{self.inbox}.{self.pulling.state.number}"
            self.raw.send("$JS.API.CONSUMER.MSG.NEXT.S.C", request.body(), reply=reply)

    def step(self) -> None:
        subject, reply, header, body = self.raw.receive()
        if reply:
            size = len(subject) + len(reply) + len(header) + len(body)
            self.sizes.append(size)
            self.pulling.on_message(size, 0.0)
            self.pulling.on_consumed(1, size)
            return
        line, *rest = header.decode().split("\r\n")
        headers = {name: value for name, _, value in (one.partition(": ") for one in rest if one)}
        pull = int(subject.rpartition(".")[2])
        decision = self.pulling.on_status(pull, int(line[9:12]), line[13:], headers, 0.0)
        assert decision.action in (Action.KEEP, Action.REFILL), (line, decision)


def some_stream(raw: RawClient) -> None:
    raw.ask("STREAM.CREATE.S", dumps(StreamConfig(name="S", subjects=["s.>"], storage="memory")))
    consumer = {"stream_name": "S", "config": ConsumerConfig(durable_name="C", max_ack_pending=-1)}
    raw.ask("CONSUMER.CREATE.S.C", dumps(consumer))


@pytest.mark.parametrize(
    "bounds",
    [
        {"prefetch": 1},
        {"prefetch": 7},
        {"prefetch_bytes": 400},
        {"prefetch_bytes": 1000},
        {"prefetch": 5, "prefetch_bytes": 700},
        {"prefetch": 3, "prefetch_bytes": 3000},
    ],
    ids=str,
)
def test_pull_state_agrees_with_the_server_to_the_byte(raw: RawClient, bounds: dict[str, int]) -> None:
    some_stream(raw)
    for number in range(60):
        header = b"NATS/1.0\r\nA: b\r\n\r\n" if number % 3 else b""
        raw.publish(f"s.{number}", b"x" * (number * 7 % 200), header)
    pulling = Pulling(**bounds, expires=0.3)  # type: ignore[arg-type]
    with raw.inbox() as inbox:
        driver = Driver(raw, inbox, pulling)
        while len(driver.sizes) < 60:
            driver.refill()
            driver.step()
        # The server tells at the end what it still owed of every pull. Nothing is left then, and nothing was before.
        while pulling.state.pending_bytes if pulling.pull_options.max_bytes else pulling.state.pending:
            driver.step()
        assert decode(ConsumerInfo, raw.ask("CONSUMER.INFO.S.C")).num_waiting == 0


def test_exactly_used_bytes_on_a_real_server(raw: RawClient) -> None:
    some_stream(raw)
    for _ in range(9):
        raw.publish("s.a", b"x" * 50)
    with raw.inbox() as inbox:
        first = Driver(raw, inbox, Pulling(prefetch=1, expires=3600.0))
        first.refill()
        first.step()
        (size,) = first.sizes
        driver = Driver(raw, inbox, Pulling(prefetch=100, prefetch_bytes=2 * size, expires=3600.0))
        while len(driver.sizes) < 8:
            driver.refill()
            driver.step()
        assert driver.sizes == [size] * 8


# ---------------------------------------------------------------- reading in order


@dataclass
class At:
    """As much of a message as says where it stands."""

    _position: tuple[str, int, int]


def test_ordered_config_as_specified() -> None:
    config = OrderedCursor("pre", ConsumerConfig(filter_subjects=["a"], headers_only=True)).next_consumer()
    assert config == ConsumerConfig(
        name="pre_1",
        ack_policy="none",
        max_deliver=1,
        num_replicas=1,
        mem_storage=True,
        inactive_threshold=300,
        filter_subject="a",
        headers_only=True,
    )


def test_ordered_push_config_has_flow_control() -> None:
    config = OrderedCursor("pre", ConsumerConfig()).next_consumer(deliver_subject="to.me")
    assert (config.deliver_subject, config.flow_control, config.idle_heartbeat, config.ack_wait) == (
        "to.me",
        True,
        1.0,
        22 * 3600.0,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"durable_name": "d"},
        {"name": "n"},
        {"deliver_subject": "s"},
        {"deliver_group": "g"},
        {"ack_policy": "all"},
        {"max_deliver": 3},
        {"num_replicas": 3},
        {"backoff": [1]},
    ],
)
def test_ordered_config_refuses_its_own_options(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="chooses this itself"):
        OrderedCursor("pre", ConsumerConfig().replace(**fields))


def test_ordered_cursor_moves_with_messages() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    cursor.next_consumer()
    assert [cursor.on_message("pre_1", seq, seq * 10) for seq in (1, 2, 3)] == [True] * 3
    assert (cursor.consumer_seq, cursor.stream_seq) == (3, 30)


def test_ordered_gap_restarts_after_the_last_message() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig(deliver_policy="last_per_subject"))
    first = cursor.next_consumer()
    assert (first.deliver_policy, first.filter_subjects, first.filter_subject) == ("last_per_subject", (), ">")
    cursor.on_message("pre_1", 1, 10)
    assert not cursor.on_message("pre_1", 3, 30)
    second = cursor.next_consumer()
    assert (second.name, second.deliver_policy, second.opt_start_seq) == ("pre_2", "by_start_sequence", 11)
    assert not cursor.on_message("pre_1", 4, 40)
    assert cursor.on_message("pre_2", 1, 20)
    assert cursor.stream_seq == 20


def test_ordered_sequence_that_starts_again_is_a_gap() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    cursor.next_consumer()
    cursor.on_message("pre_1", 1, 1)
    assert not cursor.on_message("pre_1", 1, 2)


def test_ordered_start_stays_until_the_first_message() -> None:
    asked_for = ConsumerConfig(deliver_policy="by_start_sequence", opt_start_seq=7, filter_subjects=["a", "b"])
    cursor = OrderedCursor("pre", asked_for)
    for serial in (1, 2):
        config = cursor.next_consumer()
        assert (config.name, config.opt_start_seq, config.filter_subjects) == (f"pre_{serial}", 7, ("a", "b"))


def test_heartbeats_tell_of_messages_that_never_came() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    cursor.next_consumer()
    cursor.on_message("pre_1", 1, 1)
    assert cursor.on_heartbeat(1)
    assert not cursor.on_heartbeat(2)


def test_ordered_create_backoff_grows() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    waits = [cursor.on_failed() for _ in range(130)]
    assert waits[0] == pytest.approx(0.1)
    assert all(wait <= sum(waits[:count]) * 0.04 + 0.1 + 1e-6 for count, wait in enumerate(waits))
    assert waits[-1] == 10.0


def test_a_consumer_that_was_heard_of_ends_the_waiting() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    signs: list[Callable[[], object]] = [
        lambda: cursor.on_messages([At((cursor.name, 1, 1))]),
        lambda: cursor.on_message(cursor.name, 1, 9),
        lambda: cursor.on_heartbeat(0),
    ]
    for heard in signs:
        cursor.on_failed()
        assert cursor.on_failed() > 0.1
        cursor.next_consumer()
        heard()
        assert cursor.on_failed() == pytest.approx(0.1)


def test_reading_goes_on_with_another_consumer() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(4, 0, 0.0)
    assert on_status(pulling, 409, "Consumer Deleted", {}, 0.0).action is Action.STOP
    pulling.begin_again()
    assert asked(pulling).batch == 6
    pulling = open_pull(prefetch=10, stop_after=4)
    pulling.on_messages(4, 0, 0.0)
    pulling.begin_again()
    assert pulling.is_done
    pulling = open_pull(prefetch=4, once=True)
    pulling.on_messages(4, 0, 0.0)
    pulling.begin_again()
    assert pulling.is_done


def test_ordered_run_of_messages_ends_with_its_last() -> None:
    cursor = OrderedCursor("pre", ConsumerConfig())
    cursor.next_consumer()

    def accepted(*places: tuple[int, int]) -> int:
        return cursor.on_messages([At((cursor.name, *index)) for index in places])

    assert accepted((1, 3), (2, 5), (3, 7)) == 3
    assert (cursor.consumer_seq, cursor.stream_seq) == (3, 7)
    assert accepted((5, 9), (6, 10)) == 0, "one is missing"
    assert accepted((1, 8), (2, 9)) == 0, "it began again"
    assert (cursor.consumer_seq, cursor.stream_seq) == (3, 7)
    assert accepted((4, 8), (4, 8), (6, 9)) == 1, "one came twice"
    assert (cursor.consumer_seq, cursor.stream_seq) == (4, 8)


def test_ordered_new_begins_where_the_stream_stood(raw: RawClient) -> None:
    raw.ask("STREAM.CREATE.S", dumps(StreamConfig(name="S", subjects=["s"], storage="memory")))
    cursor = OrderedCursor("pre", ConsumerConfig(deliver_policy=DeliverPolicy.NEW))

    def create() -> ConsumerConfig:
        config = cursor.next_consumer()
        request = dumps({"stream_name": "S", "config": config, "action": "create"})
        cursor.on_created(decode(ConsumerInfo, raw.ask(f"CONSUMER.CREATE.S.{config.name}", request)))
        return config

    for _ in range(3):
        raw.publish("s")
    assert create().deliver_policy is DeliverPolicy.NEW
    raw.ask("CONSUMER.DELETE.S.pre_1")
    raw.publish("s")  # missed, if "new" began again
    second = create()
    assert (second.deliver_policy, second.opt_start_seq) == (DeliverPolicy.BY_START_SEQUENCE, 4)
    assert second.ack_policy is AckPolicy.NONE
    assert decode(ConsumerInfo, raw.ask("CONSUMER.INFO.S.pre_2")).num_pending == 1
