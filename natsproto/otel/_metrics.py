"""Metrics: the counters of all clients of one Telemetry, added up.

Owns which clients there are, and what those have done that are closed.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Counter, Meter, Observation

from natsproto._client import Client
from natsproto._core.connection import Stats
from natsproto._core.events import Closed, Event
from natsproto.retry import MessageDeadLettered, MessageRetried


class Metrics:
    """What is measured with one meter."""

    def __init__(self, meter: Meter) -> None:
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._past: collections.Counter[str] = collections.Counter()
        self._turn = threading.RLock()  # metrics are read on a thread of their own
        for name, unit, description in _COUNTERS:
            meter.create_observable_counter(name, [self._observer(name)], unit, description)
        for name, unit, description in _GAUGES:
            meter.create_observable_up_down_counter(name, [self._observer(name)], unit, description)
        self._failed: dict[type[Event], Counter] = {
            MessageRetried: meter.create_counter(
                "natsproto.consumer.retried.messages", "{message}", "Messages whose handler raised, to be tried again"
            ),
            MessageDeadLettered: meter.create_counter(
                "natsproto.consumer.dead.messages", "{message}", "Messages that were given up and became dead letters"
            ),
        }

    def adopt(self, client: Client) -> None:
        """Counts what the client does from now on, and keeps what it did when it is closed."""
        with self._turn:
            self._clients.add(client)
        reference = weakref.ref(client)

        def hear(event: Event) -> None:
            if isinstance(event, MessageRetried | MessageDeadLettered):
                self._failed[type(event)].add(1, _of_consumer(event))
            closed = reference()
            if not isinstance(event, Closed) or closed is None:
                return
            with self._turn:
                if closed in self._clients:
                    self._clients.discard(closed)
                    self._past.update(_counted(closed.stats))

        client.listen(hear)

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            read = _waiting if name in _NOW else _counted
            with self._turn:
                total = self._past[name] + sum(read(_stats(client))[name] for client in list(self._clients))
            return [Observation(total, {"messaging.system": "nats"})]

        return observe


_COUNTERS = (
    ("natsproto.client.sent.messages", "{message}", "Messages handed to connections, those of the APIs included"),
    ("natsproto.client.received.messages", "{message}", "Messages received, replies and those of the APIs included"),
    ("natsproto.client.sent.bytes", "By", "Payloads, headers and subjects sent"),
    ("natsproto.client.received.bytes", "By", "Payloads, headers and subjects received"),
    ("natsproto.client.reconnects", "{reconnect}", "Connections that replaced a lost one"),
    ("natsproto.client.dropped.messages", "{message}", "Messages lost because their reader was too slow"),
)
_GAUGES = (
    ("natsproto.client.waiting.messages", "{message}", "Messages waiting to be sent"),
    ("natsproto.client.waiting.bytes", "By", "Bytes waiting to be sent"),
)
_NOW = frozenset(name for name, _, _ in _GAUGES)


def _of_consumer(event: MessageRetried | MessageDeadLettered) -> dict[str, str]:
    kind = type(event.error)
    return {
        "messaging.system": "nats",
        "messaging.destination.name": event.stream,
        "messaging.consumer.group.name": event.consumer,
        "error.type": "_OTHER" if event.error is None else f"{kind.__module__}.{kind.__qualname__}",
    }


def _counted(stats: Stats) -> dict[str, int]:
    return {
        "natsproto.client.sent.messages": stats.out_msgs,
        "natsproto.client.received.messages": stats.in_msgs,
        "natsproto.client.sent.bytes": stats.out_bytes,
        "natsproto.client.received.bytes": stats.in_bytes,
        "natsproto.client.reconnects": stats.reconnects,
        "natsproto.client.dropped.messages": stats.dropped,
    }


def _waiting(stats: Stats) -> dict[str, int]:
    return {
        "natsproto.client.waiting.messages": stats.waiting_msgs,
        "natsproto.client.waiting.bytes": stats.waiting_bytes,
    }


def _stats(client: Client) -> Stats:
    """Subscriptions come and go while it is read."""
    while True:
        try:
            return client.stats
        except RuntimeError:  # a dictionary changed its size meanwhile
            continue
