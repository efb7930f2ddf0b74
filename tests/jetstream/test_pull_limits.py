"""What a pull may still ask for: room in the buffer, limits that refusals tell, and what a lost consumer left."""

from __future__ import annotations

import json

import pytest

from natsproto.errors import ConfigError
from natsproto.jetstream._consumer.pull.pull_limits import NO_PULL_LIMITS
from natsproto.jetstream._consumer.pull.pull_state import PullRequest
from natsproto.jetstream._consumer.pull_options import PriorityOptions, pull_options
from tests.jetstream.pulling import Pulling
from tests.jetstream.test_pull_state import asked


def test_capacity_of_a_bounded_pull() -> None:
    pulling = Pulling(once=True, prefetch=10)
    asked(pulling)
    seen = [pulling.state.capacity]
    pulling.on_messages(7, 0, 0.0)
    seen.append(pulling.state.capacity)
    pulling.on_consumed(2, 0)
    seen.append(pulling.state.capacity)
    pulling.on_messages(5, 0, 0.0)
    seen.append(pulling.state.capacity)
    assert seen == [10, 3, 5, 0]


def test_limits_only_shrink() -> None:
    """A refusal that names a higher limit than the one that is known, or none that makes sense, changes nothing."""
    for what, low, high in (("batch", "4", "5"), ("maxbytes", "70", "71"), ("expires", "2s", "1m0.5s")):
        known = NO_PULL_LIMITS.learn(f"exceeded maxrequest{what} of {low}")
        assert known not in (None, NO_PULL_LIMITS)
        assert known is not None
        for other in (high, low, "0", "0s", "plenty"):
            assert known.learn(f"exceeded maxrequest{what} of {other}") == known


def test_limit_of_one_is_a_limit() -> None:
    batch, size = (NO_PULL_LIMITS.learn(f"exceeded maxrequest{what} of 1") for what in ("batch", "maxbytes"))
    assert batch == NO_PULL_LIMITS._replace(batch=1)
    assert size == NO_PULL_LIMITS._replace(size=1)


@pytest.mark.parametrize(("limit", "seconds"), [("1.5µs", 1.5e-6), ("2us", 2e-6), ("70ns", 7e-8), ("2h3m", 7380.0)])
def test_limit_of_time_in_any_unit(limit: str, seconds: float) -> None:
    learned = NO_PULL_LIMITS.learn(f"exceeded maxrequestexpires of {limit}")
    assert learned is not None
    assert learned.expires == pytest.approx(seconds)


@pytest.mark.parametrize(("consumed", "done"), [(0, True), (1, True), (2, False)])
def test_available_messages_of_a_lost_consumer(consumed: int, done: bool) -> None:
    """The one that takes its place has nothing to ask for as long as messages wait to be read."""
    pulling = Pulling(early=True, prefetch=10)
    asked(pulling)
    pulling.counts.received, pulling.counts.consumed = 2, consumed
    pulling.begin_again()
    assert pulling.state.is_done is done


def test_stop_after_counts_messages_in_flight() -> None:
    pulling = Pulling(prefetch=4, stop_after=5)
    assert asked(pulling).batch == 4
    pulling.on_messages(3, 0, 0.0)
    pulling.on_consumed(3, 0)
    assert asked(pulling).batch == 1


def test_stop_after_one() -> None:
    pulling = Pulling(prefetch=4, stop_after=1)
    assert asked(pulling).batch == 1
    pulling.on_messages(1, 0, 0.0)
    assert pulling.state.is_done


def test_stop_after_is_named_in_its_error() -> None:
    with pytest.raises(ConfigError, match=r"stop_after.*must be at least 0"):
        pull_options(stop_after=-1)


@pytest.mark.parametrize(
    ("expires", "heartbeat", "pulls"),
    [
        (60.0, 20.0, [(20, 60), (0.25, 5), (0.5, 5), (1, 5), (2, 5), (4, 8), (8, 16), (16, 32), (20, 60)]),
        (0.6, 0.3, [(0.3, 0.6), (0.25, 0.6), (0.3, 0.6)]),
        (0.4, 0.2, [(0.2, 0.4), (0.2, 0.4)]),
    ],
)
def test_pulls_after_losses_have_short_heartbeats(
    expires: float, heartbeat: float, pulls: list[tuple[float, float]]
) -> None:
    """They double with every loss, up to the heartbeat of the options."""
    for losses, wanted in enumerate(pulls):
        pulling = Pulling(expires=expires, heartbeat=heartbeat)
        pulling.state.losses = losses
        request = asked(pulling)
        assert (request.idle_heartbeat, request.expires) == wanted


def test_refill_is_due_for_endless_reading_alone() -> None:
    pulling = Pulling(prefetch=10)
    asked(pulling)
    seen = [pulling.state.refill_at]
    pulling.state.stop()
    seen.append(pulling.state.refill_at)
    assert seen == [5, None]
    bounded = Pulling(once=True, prefetch=10)
    asked(bounded)
    assert bounded.state.refill_at is None
    by_bytes = Pulling(prefetch_bytes=100)
    asked(by_bytes)
    assert by_bytes.state.refill_at == 0


def test_the_body_is_what_a_server_reads() -> None:
    request = PullRequest(
        batch=2, expires=1.5, max_bytes=9, idle_heartbeat=0.5, priority=PriorityOptions(group="g", priority=3)
    )
    assert json.loads(request.body("p")) == {
        "batch": 2,
        "expires": 1_500_000_000,
        "max_bytes": 9,
        "idle_heartbeat": 500_000_000,
        "group": "g",
        "priority": 3,
        "id": "p",
    }


def test_priority_demands_are_part_of_every_pull() -> None:
    pulling = Pulling(prefetch=2, priority_group="g", min_pending=3, min_ack_pending=4, priority=5)
    for _ in range(2):
        request = asked(pulling)
        assert request.priority == PriorityOptions(group="g", min_pending=3, min_ack_pending=4, priority=5)
        pulling.on_messages(2, 0, 0.0)
        pulling.on_consumed(2, 0)
