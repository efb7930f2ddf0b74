"""WorkerPrefetch: how many messages a worker may have. Time is a number here."""

from __future__ import annotations

import pytest

from natsproto.jetstream._consumer.delivery.delivery_terms import DeliveryTerms
from natsproto.jetstream._consumer.delivery.worker_prefetch import WorkerPrefetch

TERMS = DeliveryTerms(ack_wait=10.0, is_known=True)


def prefetch_of(terms: DeliveryTerms = TERMS, prefetch: int = 500, workers: int = 1) -> WorkerPrefetch:
    made = WorkerPrefetch(terms, prefetch)
    made.on_workers(workers)
    return made


@pytest.mark.parametrize(
    ("workers", "handle_time", "handled", "prefetch", "bound"),
    [
        (1, 0.0, 0, 500, 1),  # nothing is known: one for each worker
        (8, 0.0, 0, 500, 8),
        (1, 0.0, 1, 500, 5),  # slow start: four for each that was handled
        (1, 0.0, 1000, 500, 500),
        (8, 0.1, 1000, 500, 80),  # a tenth of ack_wait: ten messages for each worker
        (8, 0.1, 1000, 50, 50),
        (1, 0.6, 1000, 500, 1),  # less than one message fits into a second
        (1, 0.5, 1000, 500, 2),
        (8, 9.0, 1000, 500, 8),
        (8, 0.1, 1000, 1, 8),  # the workers do not starve
        (600, 0.1, 1000, 500, 750),  # a pull is for many of them
        (600, 0.1, 1000, 499, 600),
        (1, 0.1, 1000, 1, 1),
    ],
)
def test_bound_is_a_tenth_of_ack_wait_of_work(
    workers: int, handle_time: float, handled: int, prefetch: int, bound: int
) -> None:
    made = prefetch_of(prefetch=prefetch, workers=workers)
    if handle_time:
        made.on_handled(handle_time)
    made.on_consumed(handled)
    assert made.bound == bound


@pytest.mark.parametrize(
    ("terms", "bound"),
    [
        (TERMS._replace(max_ack_pending=20), 20),
        (TERMS._replace(ack_wait=60.0), 100),  # a second of work, so that other replicas get the rest
        (TERMS._replace(backoff=(1.0, 20.0)), 10),  # the first deliveries have the least time
        (TERMS._replace(max_deliver=1), 1),  # nothing waits that could not be returned
        (DeliveryTerms(), 1),  # 1.5 s as long as it is unknown
    ],
)
def test_bound_follows_the_configuration(terms: DeliveryTerms, bound: int) -> None:
    made = prefetch_of()
    made.on_handled(0.01 if terms.is_known else 0.1)
    made.on_consumed(1000)
    made.on_terms(terms)
    assert made.bound == bound


@pytest.mark.parametrize(("max_deliver", "is_known", "is_short"), [(1, True, True), (2, True, False), (0, False, True)])
def test_pulls_of_only_deliveries_are_short(max_deliver: int, is_known: bool, is_short: bool) -> None:
    """Their end can be awaited; until the terms are known they are, too."""
    made = prefetch_of()
    made.on_terms(TERMS._replace(max_deliver=max_deliver, is_known=is_known))
    assert (made.expires <= 1.0) is is_short


def test_handle_time_is_up_at_once_and_down_slowly() -> None:
    made = prefetch_of()
    made.on_handled(0.8)
    made.on_handled(0.0)
    assert made.handle_time == pytest.approx(0.7)
    made.on_handled(2.0)
    assert made.handle_time == 2.0


def test_refill_is_sent_while_half_still_waits() -> None:
    made = prefetch_of(workers=2)
    assert (made.bound, made.threshold, made.count_interval) == (2, 1, 1), "as soon as a worker is free"
    made.on_consumed(1000)
    assert (made.bound, made.threshold, made.count_interval) == (500, 251, 62)


def test_held_back_messages_do_not_starve_others() -> None:
    made = prefetch_of(TERMS._replace(max_ack_pending=20), workers=4)
    made.on_consumed(1000)
    made.on_handled(0.001)
    before = made.bound
    made.on_held_back(10)
    assert made.bound == before + 10


def test_waiting_part_grows_with_the_round_trip() -> None:
    made = prefetch_of()
    assert made.free_seconds == 1.0
    made.on_round_trip(1.0)
    assert made.free_seconds == 2.0
    made.on_round_trip(5.0)
    assert made.free_seconds == 2.5, "a quarter at most"


@pytest.mark.parametrize(("number", "wait", "repeats", "is_last"), [(1, 1.0, True, False), (3, 20.0, False, True)])
def test_each_delivery_has_its_entry_of_backoff(number: int, wait: float, repeats: bool, is_last: bool) -> None:
    terms = TERMS._replace(backoff=(1.0, 20.0), max_deliver=3)
    assert (terms.wait_of(number), terms.repeats(number), terms.is_last(number)) == (wait, repeats, is_last)
    assert not terms._replace(is_known=False).repeats(number)
    assert not terms._replace(is_single=False).repeats(number), "an acknowledgement of a later one settles it"
