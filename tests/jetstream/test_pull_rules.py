"""The rules of pulling that only one situation shows: thresholds, ends, losses and waits, without a server."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import ConsumerGone, PullRefused
from natsproto.jetstream._consumer.delivery.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.pull.pull_state import ARM, DONE, KEEP, REFILL, Action, PullRequest, PullState
from natsproto.jetstream._consumer.pull_options import UNBOUNDED_BATCH, PriorityOptions, PullMode, pull_options
from tests.jetstream.pulling import Counted, Pulling
from tests.jetstream.test_pull_state import asked, on_status, open_pull, pending

# ---------------------------------------------------------------- requests


def test_body_has_only_values_that_are_set() -> None:
    assert json.loads(PullRequest(1).body()) == {"batch": 1}
    assert json.loads(PullRequest(1, expires=0.5).body("pin")) == {"batch": 1, "expires": 500_000_000}
    assert json.loads(PullRequest(1, priority=PriorityOptions(group="g")).body()) == {"batch": 1, "group": "g"}


def test_pulls_are_numbered_from_one() -> None:
    pulling, numbers = Pulling(prefetch=1), []
    for _ in range(3):
        asked(pulling)
        numbers.append(pulling.state.number)
        pulling.on_message(0, 0.0)
        pulling.on_consumed(1, 0)
    assert numbers == [1, 2, 3]


def test_first_pull_is_sent_however_short_its_time() -> None:
    assert asked(Pulling(once=True, expires=0.001)).expires == 0.01


@pytest.mark.parametrize("now", [29.995, 31.0])
def test_no_pull_in_the_last_milliseconds(now: float) -> None:
    pulling = open_pull(once=True, expires=30.0)
    assert on_status(pulling, 409, "Leadership Change", {}, now) is REFILL
    assert pulling.next_request(now) is None
    assert pulling.is_done


def test_learned_time_halves_the_heartbeat() -> None:
    pulling = open_pull()
    on_status(pulling, 409, "Exceeded MaxRequestExpires of 2s", {}, 0.0)
    request = asked(pulling)
    assert (request.expires, request.idle_heartbeat) == (2.0, 1.0)


@pytest.mark.parametrize(("free", "pulls"), [(249, False), (250, True)])
def test_few_free_bytes_wait_for_the_open_pull(free: int, pulls: bool) -> None:
    pulling = open_pull(prefetch=100, prefetch_bytes=1000)
    pulling.on_messages(50, free, 0.0)
    pulling.on_consumed(50, free)
    request = pulling.next_request(0.0)
    assert (request is not None) is pulls
    assert request is None or request.max_bytes == free


@pytest.mark.parametrize(
    ("arrived", "consumed", "is_open", "pulls"),
    [
        ((6, 60), (0, 0), False, False),  # more than half of the messages are unread
        ((5, 50), (0, 0), False, True),
        ((3, 501), (0, 0), False, False),  # more than half of the bytes are unread
        ((3, 500), (0, 0), False, True),
        ((4, 400), (4, 400), True, False),  # more than half of both are in flight
        ((3, 300), (1, 290), True, False),
        ((5, 300), (5, 300), True, True),  # half of the messages
        ((3, 500), (3, 500), True, True),  # half of the bytes
    ],
)
def test_thresholds_of_messages_and_bytes(
    arrived: tuple[int, int], consumed: tuple[int, int], is_open: bool, pulls: bool
) -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(*arrived, 0.0)
    pulling.on_consumed(*consumed)
    if not is_open:
        on_status(pulling, 408, "Request Timeout", pending(10 - arrived[0], 1000 - arrived[1]), 0.0)
    assert (pulling.next_request(0.0) is not None) is pulls


@pytest.mark.parametrize(("consumed", "pulls"), [(7, False), (8, True)])
def test_threshold_of_the_caller(consumed: int, pulls: bool) -> None:
    pulling = open_pull(prefetch=10, refill_at=2)
    pulling.on_messages(10, 0, 0.0)
    pulling.on_consumed(consumed, 0)
    assert pulling.wants_refill() is pulls
    assert (pulling.next_request(0.0) is not None) is pulls


def test_pulls_side_by_side_add_up() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(5, 500, 0.0)
    pulling.on_consumed(5, 500)
    assert asked(pulling).max_bytes == 500
    assert (pulling.state.pending, pulling.state.pending_bytes) == (10, 1000)


@pytest.mark.parametrize("size", [61, 99, 100])
def test_arrived_message_clears_what_was_too_small(size: int) -> None:
    """The next message did not fit into 40 bytes. After it has come, another one may."""
    pulling = open_pull(prefetch_bytes=100, refill_at_bytes=100)
    pulling.on_message(60, 0.0)
    on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(9, 40), 0.0)
    assert pulling.next_request(0.0) is None
    pulling.on_message(size - 60, 0.0)
    request = pulling.next_request(0.0)
    assert (request and request.max_bytes) == (100 - size or None)


# ---------------------------------------------------------------- pending pulls


@example(False, [(1, True), (20, True), (20, True)])  # exactly outweighed
@given(st.booleans(), st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=30))
def test_open_pulls_are_the_youngest_that_owe(by_bytes: bool, steps: list[tuple[int, bool]]) -> None:
    """A pull that was served ended silently; with every request the oldest are forgotten that the others outweigh."""
    pulling = Pulling(prefetch=100_000, prefetch_bytes=40) if by_bytes else Pulling(prefetch=40)
    open_pulls: list[tuple[int, int]] = []
    for count, pulls in steps:
        owed = pulling.state.pending_bytes if by_bytes else pulling.state.pending
        count = min(count, owed)
        if count:
            pulling.on_messages(1 if by_bytes else count, count, 0.0)
            pulling.on_consumed(1 if by_bytes else count, count)
        if count == owed:
            open_pulls = []
        if pulls and (request := pulling.next_request(0.0)):
            while open_pulls and sum(size for _, size in open_pulls[1:]) >= owed - count:
                del open_pulls[0]
            open_pulls.append((pulling.state.number, request.max_bytes or request.batch))
        assert [(pull.number, pull.size or pull.batch) for pull in pulling.state._open_pulls] == open_pulls


def test_ended_pull_is_no_longer_open() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(6, 0, 0.0)
    pulling.on_consumed(6, 0)
    asked(pulling)
    on_status(pulling, 408, "Request Timeout", pending(4), 1.0, pull=1)
    assert [pull.number for pull in pulling.state._open_pulls] == [2]
    on_status(pulling, 409, "Leadership Change", {}, 1.0, pull=2)
    assert pulling.state._open_pulls == []


@pytest.mark.parametrize(
    ("options", "arrived"),
    [
        ({"prefetch": 10}, (12, 0)),
        ({"prefetch_bytes": 1000}, (3, 1100)),
        ({"prefetch": 10, "prefetch_bytes": 1000}, (10, 400)),
        ({"prefetch": 10, "prefetch_bytes": 1000}, (4, 1000)),
    ],
)
def test_nothing_is_pending_after_one_bound(options: dict[str, int], arrived: tuple[int, int]) -> None:
    """Messages of an abandoned pull may come as well, so that they are more than the pull requested."""
    pulling = open_pull(**options)
    pulling.on_messages(*arrived, 0.0)
    assert (pulling.state.pending, pulling.state.pending_bytes) == (0, 0)
    assert on_status(pulling, 409, "Batch Completed", pending(0, 600), 0.0) is KEEP


@pytest.mark.parametrize(
    "headers", [{}, {"Nats-Pending-Messages": "many", "Nats-Pending-Bytes": "-1"}, {"Nats-Pending-Bytes": "7"}], ids=str
)
def test_end_of_a_served_pull_changes_nothing(headers: dict[str, str]) -> None:
    pulling = open_pull(prefetch=10)
    for count in (6, 5):
        pulling.on_messages(count, 0, 0.0)
        pulling.on_consumed(count, 0)
        asked(pulling)
    assert [pull.number for pull in pulling.state._open_pulls] == [2, 3]
    assert on_status(pulling, 408, "Requests Pending", headers, 0.0, pull=1) is REFILL
    assert pulling.state.pending == 10


def test_pending_bytes_may_be_missing() -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(2, 100, 0.0)
    on_status(pulling, 408, "Request Timeout", {"Nats-Pending-Messages": "3"}, 0.0)
    assert (pulling.state.pending, pulling.state.pending_bytes) == (5, 900)


def test_capacity_of_endless_reading_has_no_bound() -> None:
    pulling = open_pull(prefetch=10)
    pulling.on_messages(10, 0, 0.0)
    assert pulling.state.capacity == UNBOUNDED_BATCH


# ---------------------------------------------------------------- messages


def test_one_message_in_eight_checks_the_deadline() -> None:
    pulling = open_pull(prefetch=20)
    assert [pulling.on_message(0, 0.0) for _ in range(10)] == [KEEP] * 7 + [ARM] + [KEEP] * 2
    assert pulling.on_deadline(0.2).action is Action.PROBE
    assert [pulling.on_message(0, 0.2) for _ in range(9)] == [KEEP] * 7 + [ARM] + [KEEP]


def test_used_up_pull_is_followed_by_the_next() -> None:
    in_pieces = open_pull(once=True, prefetch=10)
    on_status(in_pieces, 409, "Exceeded MaxRequestBatch of 4", {}, 0.0)
    asked(in_pieces)
    assert in_pieces.on_messages(4, 0, 0.0) is REFILL
    by_bytes = open_pull(prefetch_bytes=1000)
    assert by_bytes.on_messages(4, 999, 0.0) is KEEP
    assert by_bytes.on_messages(1, 1, 0.0) is REFILL


@pytest.mark.parametrize("bound", ["prefetch", "prefetch_bytes"])
def test_consumed_messages_make_room_in_a_single_pull(bound: str) -> None:
    """An ordered reader's fetches share a buffer: only unread messages count."""
    pulling = open_pull(once=True, **{bound: 10})
    pulling.on_messages(6, 6, 0.0)
    pulling.on_consumed(6, 6)
    assert pulling.on_messages(4, 4, 0.0) is REFILL
    asked(pulling)
    assert pulling.on_messages(6, 6, 0.0) is DONE


def test_consumed_bytes_are_free_for_a_big_message() -> None:
    pulling = open_pull(once=True, prefetch_bytes=1000)
    pulling.on_messages(3, 600, 0.0)
    pulling.on_consumed(3, 600)
    assert on_status(pulling, 409, "Message Size Exceeds MaxBytes", pending(9, 400), 0.0) is REFILL
    assert asked(pulling).max_bytes == 1000


def test_some_leftover_messages_do_not_end_a_pull() -> None:
    pulling = open_pull(once=True, prefetch=3)
    pulling.on_leftover(2)
    assert not pulling.is_done
    pulling.on_leftover(1)
    assert pulling.is_done


def test_messages_show_that_the_server_is_up_again() -> None:
    pulling = open_pull()
    on_status(pulling, 409, "Server Shutdown", pending(500), 0.0)
    asked(pulling)
    pulling.on_message(0, 0.0)
    notice = on_status(pulling, 503, "", {}, 0.0).notice
    assert isinstance(notice, ConsumerGone)
    assert "Shutdown" not in str(notice)


def test_late_messages_do_not_reconnect() -> None:
    pulling = open_pull(prefetch=1)
    pulling.state.on_disconnect()
    pulling.on_message(0, 0.0)
    pulling.on_consumed(1, 0)
    assert pulling.next_request(0.0) is None


# ---------------------------------------------------------------- statuses


@pytest.mark.parametrize(
    "text",
    [
        "Consumer Deleted",
        "Consumer is push based",
        "Leadership Change",
        "Server Shutdown",
        "Message Size Exceeds MaxBytes",
        "Batch Completed",
    ],
)
def test_text_of_a_status_counts_with_code_409_alone(text: str) -> None:
    pulling = open_pull(prefetch=10, prefetch_bytes=1000)
    decision = on_status(pulling, 500, text, pending(10, 1000), 0.0)
    assert decision.action is Action.REFILL
    assert isinstance(decision.notice, PullRefused)


@pytest.mark.parametrize(("code", "text"), [(500, "Leadership Change"), (409, "Exceeded MaxWaiting")])
def test_other_ends_of_old_pulls_do_not_end_a_wait(code: int, text: str) -> None:
    pulling = open_pull()
    on_status(pulling, 503, "", {}, 0.0)
    assert on_status(pulling, code, text, {}, 0.05) is KEEP
    assert pulling.next_request(0.05) is None


@pytest.mark.parametrize("number", [0, 2])
def test_refusals_show_that_there_are_responders(number: int) -> None:
    pulling = open_pull()
    on_status(pulling, 503, "", {}, 0.0)
    asked(pulling, 1.0)
    on_status(pulling, 408, "Request Timeout", pending(500), 1.0, pull=number)
    assert pulling.state.no_responders == 0


@pytest.mark.parametrize(("code", "text"), [(409, "Server Shutdown"), (503, "")])
@pytest.mark.parametrize(("changes", "heartbeat"), [(0, 0.25), (1, 0.25), (3, 1.0)])
def test_losses_lengthen_the_heartbeat(code: int, text: str, changes: int, heartbeat: float) -> None:
    """A shutdown counts as a loss unless there were others; with every change of leader the heartbeat doubles."""
    pulling, now = open_pull(), 0.0
    for _ in range(changes):
        on_status(pulling, 409, "Leadership Change", {}, now)
        asked(pulling, now := now + 20.0)
    on_status(pulling, code, text, {}, now)
    assert asked(pulling, now + 20.0).idle_heartbeat == heartbeat


def test_consumer_that_replaces_another_is_watched() -> None:
    pulling = open_pull()
    pulling.begin_again()
    assert asked(pulling).idle_heartbeat == 0.25


def test_end_of_a_pull_forgets_failures() -> None:
    pulling = open_pull()
    on_status(pulling, 409, "Leadership Change", {}, 0.0)
    asked(pulling)
    on_status(pulling, 408, "Request Timeout", pending(500), 0.0)
    asked(pulling)
    on_status(pulling, 409, "Leadership Change", {}, 0.0)
    asked(pulling)


def test_single_pull_repeats_lost_messages() -> None:
    """The server has sent all ten, and two were lost on a route."""
    pulling = open_pull(once=True, prefetch=10, prefetch_bytes=1000)
    pulling.on_messages(8, 400, 0.0)
    assert on_status(pulling, 409, "Batch Completed", pending(0, 500), 0.0) is REFILL
    request = asked(pulling)
    assert (request.batch, request.max_bytes) == (2, 600)


@pytest.mark.parametrize("text", ["Exceeded MaxWaiting", "Exceeded MaxRequestBatch of plenty"])
@pytest.mark.parametrize(("once", "reports"), [(True, [True, False, False]), (False, [True, True, True])])
def test_single_pull_reports_a_repeated_refusal_once(text: str, once: bool, reports: list[bool]) -> None:
    pulling, now, seen = open_pull(once=once), 0.0, []
    for _ in reports:
        decision = on_status(pulling, 409, text, {}, now)
        assert decision.action is Action.REFILL
        seen.append(decision.notice is not None)
        now = pulling.deadline or now
        asked(pulling, now)
    assert seen == reports


# ---------------------------------------------------------------- deadlines and connections


def test_deadline_of_a_single_pull() -> None:
    assert open_pull(once=True, expires=30.0).deadline == 4.0  # two heartbeats
    short = open_pull(once=True, expires=0.5)  # without heartbeats
    assert short.deadline == pytest.approx(0.6)
    assert short.on_deadline(0.55) is KEEP
    assert short.on_deadline(0.6) is DONE
    refused = open_pull(once=True, expires=5.0)
    on_status(refused, 503, "", {}, 4.95)
    assert refused.deadline == 5.0  # not after the wait of 0.1 s
    until = PullState(pull_options(PullMode.BOUNDED, expires=30.0), Counted(), 0.0, until=7.0)
    assert until.deadline == pytest.approx(7.1)


@pytest.mark.parametrize("once", [True, False])
def test_no_deadline_without_a_pull(once: bool) -> None:
    assert Pulling().deadline is None
    assert Pulling().on_deadline(5.0) is KEEP
    left = open_pull(once=once)
    left.state.stop()
    assert left.deadline is None


@pytest.mark.parametrize("end", ["time", "new leader", "reconnect"])
def test_wait_that_has_ended_leaves_no_deadline(end: str) -> None:
    """The buffer is full by then, so no pull follows that would set another one."""
    pulling = open_pull(prefetch=10)
    on_status(pulling, 503, "", {}, 0.0)
    assert pulling.on_deadline(0.05) is KEEP
    assert pulling.next_request(0.05) is None
    pulling.on_leftover(10)
    if end == "time":
        assert pulling.on_deadline(pulling.deadline or 0.0) is REFILL
    elif end == "new leader":
        assert on_status(pulling, 409, "Leadership Change", {}, 0.05) is REFILL
    else:
        pulling.state.on_disconnect()
        assert pulling.state.on_reconnect(0.05) is REFILL
    assert pulling.next_request(1.0) is None
    assert pulling.deadline is None


def test_silence_at_the_end_is_not_reported() -> None:
    assert open_pull(once=True, expires=8.0, heartbeat=4.0).on_deadline(8.0) is DONE
    early = Pulling(once=True, early=True, prefetch=10, expires=5.0)
    asked(early)
    on_status(early, 409, "Exceeded MaxRequestBatch of 4", {}, 0.0)
    asked(early)
    early.on_messages(4, 0, 1.0)
    asked(early, 1.0)
    assert early.on_deadline(2.0) is DONE  # with what it has


def test_fetch_of_available_messages_waits_for_one() -> None:
    pulling = Pulling(once=True, early=True, prefetch=10, expires=5.0)
    asked(pulling)
    pulling.state.on_disconnect()
    assert not pulling.is_done
    assert pulling.deadline == 5.0
    assert pulling.state.on_reconnect(1.0) is REFILL
    assert asked(pulling, 1.0).batch == 10


def test_reconnect_forgets_old_pulls_and_failures() -> None:
    pulling = open_pull()
    pulling.state.on_disconnect()
    pulling.state.on_reconnect(0.0)
    assert not pulling.state.has_abandoned_pulls
    asked(pulling)
    on_status(pulling, 409, "Leadership Change", {}, 0.0)
    asked(pulling)


def test_reconnect_does_not_begin_again_after_the_end() -> None:
    pulling = open_pull()
    pulling.state.stop()
    assert pulling.state.on_reconnect(0.0) is KEEP
    assert pulling.is_done


# ---------------------------------------------------------------- adaptive prefetch


class Payload(NamedTuple):
    """A message of so many bytes."""

    data: range


def prefetched(sizes: list[int], took: float) -> AdaptivePrefetch:
    """Messages of these sizes came together, and were consumed in two equal steps."""
    prefetch = AdaptivePrefetch()
    prefetch.on_messages([Payload(range(size)) for size in sizes], 0, 0.0)
    for step in (1, 2):
        prefetch.on_consumed(len(sizes) // 2, took * step / 2)
    return prefetch


def test_prefetch_counts_each_second_once() -> None:
    assert prefetched([1] * 1000, took=0.08).decide() == 1250


def test_prefetch_is_measured_anew_after_each_decision() -> None:
    prefetch = prefetched([1] * 1000, took=0.05)
    assert prefetch.decide() == 2000
    prefetch.on_messages([Payload(range(1))] * 1000, 0, 1.0)
    prefetch.on_consumed(1000, 1.0625)
    assert prefetch.decide() == 1600
    prefetch.on_consumed(63, 1.0625)
    assert prefetch.decide() == 1600, "too few to judge by"


@pytest.mark.parametrize(("consumed", "took", "bound"), [(63, 0.0, 500), (64, 0.0, 4096), (64, 0.1, 500)])
def test_prefetch_reset_forgets_measurements(consumed: int, took: float, bound: int) -> None:
    prefetch = prefetched([1] * 1000, took=0.05)
    prefetch.reset()
    prefetch.on_consumed(consumed, 0.05 + took)
    assert prefetch.decide() == bound


def test_prefetch_size_is_the_mean_of_eight() -> None:
    assert prefetched([2**24, *[0] * 15], took=0.0).bound == 8
