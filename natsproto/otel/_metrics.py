"""Metrics of connections: the counters of all clients of one Telemetry, added up, and gauges of their consumers.

Owns the set of open clients and the final counters of closed ones.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Counter, Meter, Observation

from natsproto._client import Client
from natsproto._core.consumer_stats import ConsumerStats, GroupStats, add_up
from natsproto._core.events import Closed, Event
from natsproto._core.stats import Stats
from natsproto.retry import MessageDeadLettered, MessageRetried


class ClientMetrics:
    """The observable metrics of clients, made with one meter."""

    def __init__(self, meter: Meter) -> None:
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._closed_totals: collections.Counter[str] = collections.Counter()
        self._lock = threading.RLock()  # the metric reader has its own thread
        for name, unit, description in _COUNTERS:
            meter.create_observable_counter(name, [self._observer(name, _counter_values)], unit, description)
        for name, unit, description in _CONSUMER_GAUGES:
            meter.create_observable_gauge(name, [self._consumer_observer(name)], unit, description)
        for name, unit, description in _GROUP_GAUGES:
            meter.create_observable_gauge(name, [self._group_observer(name)], unit, description)
        for name, unit, description in _UP_DOWN_COUNTERS:
            meter.create_observable_up_down_counter(name, [self._observer(name, _up_down_values)], unit, description)
        self._retry_counters: dict[type[Event], Counter] = {
            MessageRetried: meter.create_counter(
                "natsproto.consumer.retried.messages", "{message}", "Messages whose handler raised, to be tried again"
            ),
            MessageDeadLettered: meter.create_counter(
                "natsproto.consumer.dead.messages", "{message}", "Messages that were given up and became dead letters"
            ),
        }

    def add_client(self, client: Client) -> None:
        """Include the client's counters. They stay included when the client is closed."""
        with self._lock:
            self._clients.add(client)
        reference = weakref.ref(client)

        def on_event(event: Event) -> None:
            if isinstance(event, MessageRetried | MessageDeadLettered):
                self._retry_counters[type(event)].add(1, _consumer_attributes(event))
            closed = reference()
            if not isinstance(event, Closed) or closed is None:
                return
            with self._lock:
                if closed in self._clients:
                    self._clients.discard(closed)
                    self._closed_totals.update(_counter_values(closed.stats))

        client.add_listener(on_event)

    def _consumer_observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                clients = list(self._clients)
            for one in add_up(part for client in clients for part in client._readers.measured.stats()):
                value = _consumer_values(one)[name]
                if value is not None:
                    attributes = {
                        "messaging.system": "nats",
                        "messaging.destination.name": one.stream,
                        "messaging.consumer.group.name": one.consumer,
                    }
                    yield Observation(value, attributes)

        return observe

    def _group_observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                clients = list(self._clients)
            for one in [part for client in clients for part in client._readers.measured.groups()]:
                attributes = {
                    "messaging.system": "nats",
                    "messaging.destination.name": one.stream,
                    "messaging.consumer.group.name": one.group,
                    "natsproto.group.member": one.member,
                }
                yield Observation(_group_values(one)[name], attributes)

        return observe

    def _observer(
        self, name: str, read: Callable[[Stats], dict[str, int]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                total = self._closed_totals[name] + sum(read(client.stats)[name] for client in list(self._clients))
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
_CONSUMER_GAUGES = (
    ("natsproto.consumer.pending.messages", "{message}", "Messages not delivered yet, as of the last delivery"),
    ("natsproto.consumer.last_message.age", "s", "Seconds since the message was stored that was delivered last"),
    ("natsproto.consumer.handle.time", "s", "Seconds that a handler takes"),
    ("natsproto.consumer.prefetch.messages", "{message}", "Most messages to be requested, waiting or handled"),
    ("natsproto.consumer.stale.messages", "{message}", "Messages not handled because the server delivers them again"),
)
_GROUP_GAUGES = (
    ("natsproto.group.partitions", "{partition}", "Partitions of a member of a group"),
    ("natsproto.group.generation", "{revision}", "Revision of the configuration that gave a member its partitions"),
)
_UP_DOWN_COUNTERS = (
    ("natsproto.client.buffered.messages", "{message}", "Messages waiting to be sent"),
    ("natsproto.client.buffered.bytes", "By", "Bytes waiting to be sent"),
)


def _consumer_attributes(event: MessageRetried | MessageDeadLettered) -> dict[str, str]:
    kind = type(event.error)
    return {
        "messaging.system": "nats",
        "messaging.destination.name": event.stream,
        "messaging.consumer.group.name": event.consumer,
        "error.type": "_OTHER" if event.error is None else f"{kind.__module__}.{kind.__qualname__}",
    }


def _counter_values(stats: Stats) -> dict[str, int]:
    return {
        "natsproto.client.sent.messages": stats.out_msgs,
        "natsproto.client.received.messages": stats.in_msgs,
        "natsproto.client.sent.bytes": stats.out_bytes,
        "natsproto.client.received.bytes": stats.in_bytes,
        "natsproto.client.reconnects": stats.reconnects,
        "natsproto.client.dropped.messages": stats.dropped,
    }


def _consumer_values(stats: ConsumerStats) -> dict[str, float | None]:
    return {
        "natsproto.consumer.pending.messages": stats.num_pending,
        "natsproto.consumer.last_message.age": stats.age,
        "natsproto.consumer.handle.time": stats.handle_time or None,
        "natsproto.consumer.prefetch.messages": stats.prefetch,
        "natsproto.consumer.stale.messages": stats.stale,
    }


def _group_values(stats: GroupStats) -> dict[str, int]:
    return {
        "natsproto.group.partitions": len(stats.partitions),
        "natsproto.group.generation": stats.generation,
    }


def _up_down_values(stats: Stats) -> dict[str, int]:
    return {
        "natsproto.client.buffered.messages": stats.buffered_msgs,
        "natsproto.client.buffered.bytes": stats.buffered_bytes,
    }
