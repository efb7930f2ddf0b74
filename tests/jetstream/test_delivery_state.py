"""DeliveryState: how many deliveries wait, and which of them are handed over. Time is a number here."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.jetstream._consumer.delivery_state import DeliveryQueue, DeliveryState, DeliveryTerms, Verdict

TERMS = DeliveryTerms(ack_wait=10.0, is_known=True)


def state_of(terms: DeliveryTerms = TERMS, prefetch: int = 500, workers: int = 1) -> DeliveryState[int]:
    state: DeliveryState[int] = DeliveryState(terms, prefetch, 0.0)
    state.on_workers(workers)
    return state


def arrive(state: DeliveryState[int], messages: list[int], now: float, *, number: int = 1) -> None:
    """Messages arrive that were sent at once."""
    state.on_pull(now)
    state.on_arrival(len(messages), number, now)
    state.queues[0].messages.extend(messages)


def take(state: DeliveryState[int], now: float, *, may_wait: bool = True) -> tuple[int, Verdict]:
    """Take the next message, and what is to be done with it."""
    queue = state.queues[0]
    message = queue.messages.popleft()
    return message, state.verdict(queue, now, may_wait=may_wait)


def tick(state: DeliveryState[int], now: float, *, may_give_back: bool = True) -> tuple[list[int], list[int]]:
    """The messages to extend, and those to give back."""
    extend, back = state.on_tick(now, 0.0, is_read=True, may_give_back=may_give_back)
    return extend, back


# ---------------------------------------------------------------- how many


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
    state = state_of(prefetch=prefetch, workers=workers)
    if handle_time:
        state.on_handled(handle_time)
    state.on_consumed(handled)
    assert state.bound == bound


@pytest.mark.parametrize(
    ("terms", "bound"),
    [
        (TERMS._replace(max_ack_pending=20), 20),
        (TERMS._replace(ack_wait=60.0), 100),  # a second of work, so that other replicas get the rest
        (TERMS._replace(backoff=(1.0, 20.0)), 10),  # the first deliveries have the least time
        (DeliveryTerms(), 1),  # 1.5 s as long as it is unknown
    ],
)
def test_bound_follows_the_configuration(terms: DeliveryTerms, bound: int) -> None:
    state = state_of(terms)
    state.on_handled(0.01 if terms.is_known else 0.1)
    state.on_consumed(1000)
    assert state.bound == bound


def test_handle_time_is_up_at_once_and_down_slowly() -> None:
    state = state_of()
    state.on_handled(0.8)
    state.on_handled(0.0)
    assert state.handle_time == pytest.approx(0.7)
    state.on_handled(2.0)
    assert state.handle_time == 2.0


def test_calls_that_run_for_long_count_before_they_end() -> None:
    state = state_of()
    state.on_handled(0.001)
    state.on_consumed(1000)
    assert state.bound == 500
    state.on_running(0.1)
    assert state.bound == 10
    state.on_running(0.05)
    assert state.bound == 10


def test_refill_is_sent_while_half_still_waits() -> None:
    state = state_of(workers=2)
    assert (state.bound, state.threshold, state.count_interval) == (2, 1, 1), "as soon as a worker is free"
    state.on_consumed(1000)
    assert (state.bound, state.threshold, state.count_interval) == (500, 251, 62)


def test_waiting_part_grows_with_the_round_trip() -> None:
    state = state_of()
    state.on_round_trip(1.0)
    arrive(state, [1, 2], 0.0)
    assert take(state, 1.9) == (1, Verdict.HAND_OVER)
    state.on_round_trip(5.0)
    assert take(state, 2.6)[1] is Verdict.EXTEND, "a quarter at most"


# ---------------------------------------------------------------- ages


@pytest.mark.parametrize(
    ("age", "verdict"),
    [(0.9, Verdict.HAND_OVER), (1.1, Verdict.EXTEND), (9.4, Verdict.EXTEND), (9.6, Verdict.DROP), (99.0, Verdict.DROP)],
)
def test_verdict_by_age(age: float, verdict: Verdict) -> None:
    state = state_of()
    arrive(state, [1], 5.0)
    assert take(state, 5.0 + age) == (1, verdict)
    assert state.stale == (verdict is Verdict.DROP)


@pytest.mark.parametrize("age", [1.1, 9.6, 99.0])
def test_ack_all_drops_nothing(age: float) -> None:
    state = state_of(TERMS._replace(is_single=False))
    arrive(state, [1], 5.0)
    assert take(state, 5.0 + age) == (1, Verdict.EXTEND)


@pytest.mark.parametrize(("number", "verdict"), [(1, Verdict.DROP), (2, Verdict.EXTEND), (5, Verdict.HAND_OVER)])
def test_each_delivery_has_its_entry_of_backoff(number: int, verdict: Verdict) -> None:
    state = state_of(TERMS._replace(backoff=(1.0, 3.0, 30.0)))
    arrive(state, [1], 0.0, number=number)
    assert take(state, 2.0)[1] is verdict


def test_changed_ack_wait_applies_to_what_waits() -> None:
    state = state_of()
    arrive(state, [1, 2], 0.0)
    state.on_terms(TERMS._replace(ack_wait=1.0))
    assert take(state, 2.0)[1] is Verdict.DROP
    state.on_terms(TERMS)
    assert take(state, 2.0)[1] is Verdict.EXTEND


def test_waiting_is_extended_and_given_back_once() -> None:
    state = state_of()
    arrive(state, [1, 2], 0.0)
    assert tick(state, 4.9) == ([], [])
    assert tick(state, 5.1) == ([1, 2], [])
    assert tick(state, 10.0) == ([], [])
    assert tick(state, 10.2) == ([1, 2], [])
    assert tick(state, 15.3) == ([1, 2], [])
    assert tick(state, 20.1) == ([], [1, 2])
    assert (state.given_back, len(state.queues[0].messages)) == (2, 0)
    arrive(state, [1], 21.0, number=2)  # nobody else wants it
    for now in range(26, 100, 5):
        assert tick(state, float(now)) == ([1], [])


@pytest.mark.parametrize(
    "terms",
    [TERMS._replace(max_deliver=2), TERMS._replace(is_single=False), TERMS._replace(is_known=False)],
)
def test_stalled_is_kept_where_that_costs_too_much(terms: DeliveryTerms) -> None:
    state = state_of(terms)
    arrive(state, [1], 0.0)
    for now in range(5, 60, 5):
        assert tick(state, float(now)) == ([1], [])


def test_retries_that_count_are_not_given_back() -> None:
    state = state_of()
    arrive(state, [1], 0.0)
    for now in range(5, 60, 5):
        assert tick(state, float(now), may_give_back=False) == ([1], [])


def test_socket_that_was_not_read_makes_messages_old() -> None:
    state = state_of()
    state.on_pull(0.0)
    tick(state, 1.0)
    tick(state, 2.0)  # all that had arrived by 1.0 was read by then
    state.on_arrival(1, 1, 12.0)  # after a block of ten seconds
    state.queues[0].messages.append(1)
    assert take(state, 12.0)[1] is Verdict.DROP
    state.on_round_trip(0.5)
    assert state.began(12.0) == 0.5, "a message may have travelled when the socket was read"


@pytest.mark.parametrize(("confirmed_at", "verdict"), [(6.0, Verdict.EXTEND), (4.0, Verdict.DROP)])
def test_extensions_may_be_lost_with_a_connection(confirmed_at: float, verdict: Verdict) -> None:
    state = state_of()
    arrive(state, [1], 0.0)
    assert tick(state, 5.5) == ([1], [])
    state.on_disconnect(confirmed_at)
    state.on_reconnect(11.0)
    assert take(state, 11.0)[1] is verdict


def test_only_fresh_ones_without_a_connection() -> None:
    state = state_of()
    arrive(state, [1, 2, 3], 0.0)
    state.on_disconnect(0.0)
    assert take(state, 0.5) == (1, Verdict.HAND_OVER)
    assert tick(state, 6.0) == ([], []), "nothing can be extended"
    assert take(state, 6.0) == (2, Verdict.WAIT)
    state.queues[0].put_back(2)
    assert take(state, 6.0, may_wait=False) == (2, Verdict.DROP)


def test_messages_behind_a_dropped_one_are_given_back() -> None:
    state = state_of()
    arrive(state, [1, 2], 0.0)
    arrive(state, [3, 4, 5], 5.0)
    assert take(state, 11.0) == (1, Verdict.DROP)
    assert state.drop_behind(state.queues[0], lambda one: one != 4, 11.0) == ([3, 5], [2])
    assert (list(state.queues[0].messages), state.stale) == ([4], 2)
    assert take(state, 11.0) == (4, Verdict.EXTEND)


def test_remove_lost_leaves_what_is_ours() -> None:
    state = state_of()
    arrive(state, [1, 2], 0.0)
    arrive(state, [3], 9.0)
    assert state.remove_lost(11.0) == [1, 2]
    assert (list(state.queues[0].messages), state.stale) == ([3], 2)


def test_moved_messages_keep_their_ages() -> None:
    state = state_of()
    state.queues += [DeliveryQueue(), DeliveryQueue()]
    arrive(state, [1, 2], 0.0)
    arrive(state, [3], 9.0)
    state.move([0, 1, 0])
    first, second = state.queues[1:]
    assert (list(first.messages), list(second.messages)) == ([1, 3], [2])
    first.messages.popleft()
    assert state.verdict(first, 11.0) is Verdict.DROP
    first.messages.popleft()
    assert state.verdict(first, 9.5) is Verdict.HAND_OVER


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30), st.randoms(use_true_random=False))
def test_queue_knows_the_chunk_of_each_message(steps: list[tuple[int, int]], rng: random.Random) -> None:
    """Whatever readers take without telling, in whatever order chunks come, are moved back and are removed."""
    state = state_of()
    queue, model, clock = state.queues[0], deque[tuple[int, float]](), 0.0
    for kind, count in steps:
        clock += 1.0
        if kind == 0:
            arrive(state, [rng.randrange(100) for _ in range(count)], clock)
            model.extend((message, clock) for message in list(queue.messages)[-count:])
        elif kind == 1:
            for _ in range(min(count, len(model))):
                queue.messages.popleft()
                model.popleft()
        elif kind == 2 and model:
            message = queue.messages.popleft()
            chunk = queue.chunk_of_taken()
            assert chunk is not None
            assert (message, chunk.began) == model[0]
            queue.put_back(message)
        else:
            removed = queue.remove(lambda message, _, count=count: message % 5 == count)  # type: ignore[misc]
            assert [message for message, _ in removed] == [message for message, _ in model if message % 5 == count]
            model = deque(pair for pair in model if pair[0] % 5 != count)
        assert [(message, chunk.began) for message, chunk in queue.pairs()] == list(model)


# ---------------------------------------------------------------- the property


class Sent(NamedTuple):
    """A message on its way to the client."""

    number: int
    sent_at: float
    arrives_at: float


class World:
    """A server and one client, both on a clock that is moved by hand.

    ``sent`` are the times from which on the server counts ack_wait; extensions arrive when they are sent, which is the
    latest time that the client may count from.
    """

    def __init__(self, terms: DeliveryTerms, workers: int, round_trip: float, *, reads_first: bool) -> None:
        self.reads_first = reads_first
        self.now, self.terms, self.workers = 0.0, terms, workers
        self.state: DeliveryState[int] = DeliveryState(terms, 50, 0.0)
        self.state.on_workers(workers)
        self.state.on_round_trip(round_trip)
        self.delay = round_trip / 2
        self.socket: list[Sent] = []
        self.since: dict[int, float] = {}
        self.pending = self.asked = self.number = 0  # that the client waits for, that the server may send
        self.working = 0
        self.next_tick = self.state.tick_interval
        self.handed_over: list[float] = []

    def pull(self) -> None:
        wanted = self.state.bound - self.pending - self.working - len(self.state.queues[0].messages)
        if wanted > 0:
            if not self.pending:
                self.state.on_pull(self.now)
            self.pending += wanted
            self.asked += wanted

    def send(self, count: int) -> None:
        """The server sends some of what was asked for."""
        for _ in range(min(count, self.asked)):
            self.asked -= 1
            self.number += 1
            at = self.now + self.delay
            self.since[self.number] = at
            self.socket.append(Sent(self.number, at, at + self.delay))

    def pass_time(self, seconds: float, *, frozen: bool) -> None:
        """Time passes; a client that is frozen does nothing in it, and then a turn of its loop."""
        end = self.now + seconds
        while not frozen and self.next_tick <= end:
            self.now = max(self.now, self.next_tick)
            self.turn()
        self.now = end
        self.turn()

    def turn(self) -> None:
        """One turn of the event loop: it reads the socket and calls timers, in the order of asyncio or of uvloop."""
        steps = [self.read, self.tick] if self.reads_first else [self.tick, self.read]
        for step in steps:
            step()

    def read(self) -> None:
        """Read the socket."""
        arrived = [one for one in self.socket if one.arrives_at <= self.now]
        if arrived:
            self.socket = [one for one in self.socket if one.arrives_at > self.now]
            self.pending -= len(arrived)
            self.state.on_arrival(len(arrived), 1, self.now)
            if not self.state.queues[0].messages:
                self.state.queues[0].filled_at = self.now
            self.state.queues[0].messages.extend(one.number for one in arrived)

    def tick(self) -> None:
        """The timer, if it is due."""
        if self.now >= self.next_tick:
            due = self.state.on_tick(self.now, self.now, is_read=True, may_give_back=True)
            for number in due.extend:
                self.since[number] = self.now
            self.next_tick = self.now + self.state.tick_interval

    def take(self) -> None:
        """A free worker takes a message."""
        queue = self.state.queues[0]
        if self.working >= self.workers or not queue.messages:
            return
        number = queue.messages.popleft()
        verdict = Verdict.HAND_OVER if self.now < queue.check_at else self.state.verdict(queue, self.now)
        if verdict is Verdict.DROP:
            return
        self.handed_over.append(self.now - self.since[number])
        self.working += 1

    def take_batch(self, max_messages: int, max_wait: float) -> None:
        """A batch is taken if no other one is handled, and it is full or the window is over."""
        queue = self.state.queues[0]
        most = min(max_messages, self.state.bound)
        if self.working or (len(queue.messages) < most and self.now < queue.filled_at + max_wait):
            return
        size = 0
        while queue.messages and size < most:
            number = queue.messages.popleft()
            verdict = Verdict.HAND_OVER if self.now < queue.check_at else self.state.verdict(queue, self.now)
            if verdict is not Verdict.DROP:
                self.handed_over.append(self.now - self.since[number])
                size += 1
        self.working = size

    def finish_batch(self, seconds: float) -> None:
        """The batch is done."""
        if self.working:
            self.state.on_handled(seconds)
            self.state.on_consumed(self.working)
            self.working = 0

    def finish(self, seconds: float) -> None:
        """A worker is done."""
        if self.working:
            self.working -= 1
            self.state.on_handled(seconds)
            self.state.on_consumed(1)


def run_schedule(rng: random.Random, *, batches: bool = False) -> World:
    """A random schedule: the server sends what it is asked for, workers take and finish, time passes, the client is
    frozen now and then. ``batches``: one worker collects batches in a window.
    """
    ack_wait = rng.choice([0.2, 1.0, 3.0, 30.0])
    terms = DeliveryTerms(ack_wait=ack_wait, is_known=True)
    round_trip = rng.choice([0.0, rng.uniform(0.0, 0.25)]) * ack_wait
    most, window = rng.choice([1, 5, 100]), rng.uniform(0.0, 0.1) * ack_wait
    workers = rng.choice([1, most]) if batches else rng.choice([1, 2, 8])  # of a loop, and of consume_batches
    world = World(terms, workers, round_trip, reads_first=rng.random() < 0.5)
    part = rng.choice([0.001, 0.02, 0.1, 0.5])  # of ack_wait that a step takes
    for _ in range(rng.randrange(10, 120)):
        world.pull()
        step = rng.random()
        if step < 0.25:
            world.send(rng.randint(1, 20))
        elif step < 0.6 and batches:
            world.take_batch(most, window)
        elif step < 0.6:
            world.take()
        elif step < 0.7 and batches:
            world.finish_batch(rng.uniform(0.0, part) * ack_wait)
        elif step < 0.7:
            world.finish(rng.uniform(0.0, part) * ack_wait)
        elif step < 0.9:
            world.pass_time(rng.uniform(0.0, part) * ack_wait, frozen=False)
        else:
            world.pass_time(rng.choice([rng.uniform(0.0, 2.0), rng.uniform(0.7, 1.0)]) * ack_wait, frozen=True)
    return world


@pytest.mark.parametrize("batches", [False, True])
@given(seed=st.integers(0, 2**32))
def test_no_schedule_hands_over_an_old_delivery(seed: int, batches: bool) -> None:
    """No schedule of arrivals, delays, handle times, ticks and freezes hands over a delivery older than ack_wait less
    the margin.
    """
    for number in range(30):
        world = run_schedule(random.Random(seed + number), batches=batches)
        ack_wait = world.terms.ack_wait
        margin = min(max(0.05, 0.05 * ack_wait), 0.25 * ack_wait)
        assert all(age <= ack_wait - margin + 1e-9 for age in world.handed_over), seed + number


@pytest.mark.parametrize("batches", [False, True])
def test_schedules_drop_and_extend(batches: bool) -> None:
    """So that the property says something."""
    worlds = [run_schedule(random.Random(seed), batches=batches) for seed in range(300)]
    assert sum(len(world.handed_over) for world in worlds) > 500
    assert sum(world.state.stale for world in worlds) > 100
    assert sum(age > 0.5 * world.terms.ack_wait for world in worlds for age in world.handed_over) > 20
