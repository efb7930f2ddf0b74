"""Any schedule of arrivals, calls, ticks and standstills, on a clock that is a number: what is handed over is ours."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from natsproto._core.engine.engine import State
from natsproto.jetstream._consumer.delivery import arrival_times, deliveries
from natsproto.jetstream._consumer.delivery.deliveries import Deliveries
from natsproto.jetstream._consumer.delivery.delivery_terms import DeliveryTerms
from natsproto.jetstream._consumer.message import ACKED, DeliveryStamp, JsMessage
from natsproto.protocol.frames import Route

SCHEDULES = 40
TURNS = 400


class ScheduleModel:
    """A server, a socket and a reader. ``deadlines`` are those of the server, by stream sequence."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now = rng, 1000.0
        self.ack_wait = rng.choice([0.5, 2.0, 30.0])
        self.max_deliver = rng.choice([0, 1, 2, 4])
        self.travel = rng.choice([0.0, 0.002, 0.02])
        """Seconds to or from the server, at most."""
        self.deadlines: dict[int, float] = {}
        self.socket: deque[tuple[float, JsMessage]] = deque()
        self.waiting: deque[JsMessage] = deque()
        self.ends: dict[int, float] = {}
        """When the call of each worker ends."""
        self.open = self.sent = self.skipped = self.handed = 0
        self.polled_at = self.now
        self.due: tuple[float, Callable[[], None]] | None = None
        self.trips = SimpleNamespace(
            shortest=2 * self.travel, is_emptied=True, stood_still=lambda now: now - self.polled_at
        )
        connection = SimpleNamespace(
            _round_trips=self.trips,
            is_connected=True,
            state=State.OPEN,
            _event_bus=SimpleNamespace(emit=lambda event: None),
        )
        self.terms = DeliveryTerms(ack_wait=self.ack_wait, max_deliver=self.max_deliver, is_known=True)
        made: Any = Deliveries
        self.reader: Deliveries = made(
            self, connection, SimpleNamespace(stream="S", consumer="C"), None, self._look_up, 500
        )
        self.reader._loop = self  # its timers
        self.reader._on_terms(self.terms)
        self.reader.queues.append(self.waiting)
        self.route = Route(print, note=DeliveryStamp.of(None, ""))

    # ---------------------------------------------------------------- what the reader calls

    def refill(self) -> None: ...

    def requeue(self, message: JsMessage) -> None:
        self.waiting.appendleft(message)

    def on_skipped(self, message: JsMessage) -> None:
        self.skipped += 1
        assert self.terms.repeats(message.metadata.num_delivered), "nobody would handle it"

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.due = self.now + delay, call

    def create_task(self, coroutine: Any, **_: object) -> None:
        coroutine.close()

    async def _look_up(self) -> None: ...

    def extend_all(self, messages: list[JsMessage]) -> None:
        for message in messages:
            came = self.now + self.rng.random() * self.travel
            if self.deadlines[message.seq] > came:  # else it is late
                self.deadlines[message.seq] = came + self.ack_wait
            message._note = message._note.extended(self.now)

    # ---------------------------------------------------------------- what happens

    def pull(self) -> None:
        """Send a pull, and let the server answer it within a while."""
        if not self.open:
            self.reader.on_pull()
        for _ in range(self.rng.randint(1, 6)):
            self.open += 1
            self.sent += 1
            number = self.rng.randint(1, self.max_deliver or 3)
            at = self.now + self.travel + self.rng.choice([0.0, 0.1, 1.0, 3.0]) * self.rng.random() * self.ack_wait
            message = JsMessage("s", b"$JS.ACK.S.C.%d.%d.%d.1.0" % (number, self.sent, self.sent), b"", None, None)
            self.deadlines[self.sent] = at + self.ack_wait
            self.socket.append((at + self.rng.random() * self.travel, message))
        self.socket = deque(sorted(self.socket, key=lambda pair: pair[0]))

    def read(self) -> None:
        """The event loop takes what has come from the socket, or a part of it."""
        came = sum(at <= self.now for at, _ in self.socket)
        part = came if self.rng.random() < 0.9 else self.rng.randint(0, came)
        self.trips.is_emptied = part == came
        messages = [self.socket.popleft()[1] for _ in range(part)]
        for message in messages:
            message._note = self.route.note
        if messages:
            self.open -= len(messages)
            self.waiting += self.reader.on_arrival(messages, self.route)
        self.polled_at = self.now if part == came else self.polled_at

    def tick(self) -> None:
        if self.due is not None and self.due[0] <= self.now:
            call, self.due = self.due[1], None
            call()

    def work(self, workers: int) -> None:
        """End calls, and begin others as ``consume`` does."""
        for worker in range(workers):
            [held] = self.reader.in_hand.setdefault(worker, [None])
            if held is not None:
                if self.ends[worker] > self.now:
                    continue
                held._note = ACKED
                self.reader.in_hand[worker][0] = None
                self.reader.on_released(held)
            while self.waiting:
                message = self.waiting.popleft()
                if self.now >= message._note.check_at and not self.reader.may_hand_over(message, self.now):
                    continue
                self.check(message)
                self.reader.in_hand[worker][0] = message
                self.ends[worker] = self.now + self.rng.choice([0.0, 0.3, 1.0, 2.5]) * self.rng.random() * self.ack_wait
                break

    def check(self, message: JsMessage) -> None:
        """The server still waits for it, or would not deliver it again."""
        self.handed += 1
        number = message.metadata.num_delivered
        late = self.now - self.deadlines[message.seq]
        assert late < 0 or not self.terms.repeats(number), f"it has expired for {late:.3f} s"

    def run(self) -> None:
        workers = self.rng.randint(1, 4)
        for _ in range(TURNS):
            if self.rng.random() < 0.3 and self.open < 20:
                self.pull()
            self.now += self.rng.choice([0.001, 0.01, 0.02]) * self.ack_wait
            if self.rng.random() < 0.005:
                self.now += self.rng.random() * 3 * self.ack_wait  # the loop stands still
                if self.rng.random() < 0.5:
                    self.work(workers)  # a handler that has kept the loop, and the next message
            self.read()
            self.tick()
            self.work(workers)


async def test_drawn_schedules_hand_over_only_our_own(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Nothing is handed over that the server delivers again meanwhile, and nothing skipped that it does not."""
    model: ScheduleModel | None = None
    for module in (deliveries, arrival_times):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0 if model is None else model.now)
    monkeypatch.setattr(deliveries, "extend_all", lambda messages: cast("ScheduleModel", model).extend_all(messages))
    handed = skipped = 0
    for number in range(SCHEDULES):
        model = ScheduleModel(random.Random(f"{seed} {number}"))
        model.run()
        handed, skipped = handed + model.handed, skipped + model.skipped
    assert handed > 5 * SCHEDULES
    assert skipped > 0
