"""PURE. How many messages a worker may have: requested, waiting and in work (decision 0041).

A delivery belongs to this client for ``ack_wait`` seconds, so what waits is at most a tenth of that in work, by the
measured time of a call. The rest stays at the server, for other replicas. With ``max_deliver`` 1 nothing waits: a
program that ends could not return it. Its pulls are short, so that a reader can wait for the end of each.
"""

from __future__ import annotations

from typing import Final

from natsproto._durations import NO_LIMIT_S
from natsproto.jetstream._consumer.delivery.delivery_terms import MAX_WAITING_PART, WAITING_PART, DeliveryTerms
from natsproto.jetstream._consumer.pull_options import DEFAULT_MAX_MESSAGES

MAX_SPAN_S: Final = 1.0
"""Seconds of work that may wait, unless round trips are long: what waits here is missing at other replicas."""
FAST_CALL_S: Final = 0.001
"""Handlers that take longer are measured at each call, others at every 16th."""
SAMPLE_MASK: Final = 15
MAX_BEHIND: Final = 2
"""Messages for each worker that may wait for others of their keys while another worker is idle."""
ONCE_EXPIRES_S: Final = 0.5
"""Seconds of a pull whose messages are delivered once, and until the terms are known; it has no heartbeats."""
MAX_UNCOUNTED: Final = 64
"""Messages that may be consumed before the buffer counts them; counting each one costs 0.4 µs."""
UNLIMITED: Final = 2**63


class WorkerPrefetch:
    """The bound of one reader. ``prefetch`` is the most, unless more ``workers`` handle messages at a time."""

    def __init__(self, terms: DeliveryTerms, prefetch: int) -> None:
        self.terms: DeliveryTerms = terms
        self.prefetch: int = prefetch
        self.workers: int = 1
        """The number of messages that are handled at a time."""
        self.handled: int = 0
        self.is_starting: bool = True
        """True while consumed messages still raise the bound."""
        self.count_interval: int = 1
        """The number of consumed messages to count together."""
        self.handle_time: float = 0.0
        """Seconds of a call: at least as many as the last one took, and down slowly."""
        self.round_trip: float = 0.0
        self.bound: int = 1
        """The most messages to be requested, waiting or in work."""
        self.free_seconds: float = 0.0
        """Seconds for which a delivery with the shortest ack_wait may wait and be handed over as it is."""
        self._behind = 0  # messages that wait for others of their keys
        self._held_back = 0  # those that wait for the redelivery of a failed one, and these
        self.on_terms(terms)

    @property
    def adapts_bytes(self) -> bool:
        """See Prefetch."""
        return False

    @property
    def expires(self) -> float:
        """See Prefetch."""
        return ONCE_EXPIRES_S if self.terms.is_once or not self.terms.is_known else NO_LIMIT_S

    def reset(self) -> None:
        """See Prefetch: it does not measure bytes."""

    def decide(self) -> int:
        """See Prefetch."""
        return self.bound

    @property
    def threshold(self) -> int:
        """The number of requested, waiting and running messages at which more are requested."""
        return self.bound - max(1, self._waiting // 2)

    @property
    def _waiting(self) -> int:
        return self.bound - self.workers - self._behind - self._held_back

    def free_of(self, wait: float) -> float:
        """Seconds of an ack_wait for which a delivery may wait as it is."""
        return min(max(WAITING_PART * wait, 2 * self.round_trip), MAX_WAITING_PART * wait)

    # ------------------------------------------------------------ what is measured

    def on_terms(self, terms: DeliveryTerms) -> None:
        """The configuration is known, or has changed."""
        self.terms = terms
        self.on_round_trip(self.round_trip)

    def on_round_trip(self, seconds: float) -> None:
        """The last round trip to the server took so long."""
        self.round_trip = seconds
        self.free_seconds = self.free_of(self.terms.shortest)
        self._decide()

    def on_workers(self, workers: int) -> None:
        """Set the number of messages that are handled at a time."""
        self.workers = workers
        self._decide()

    def on_behind(self, count: int) -> None:
        """A worker is idle, while ``count`` messages wait for others of their keys: more may be requested."""
        self._behind = min(count, MAX_BEHIND * self.workers)
        self._decide()

    def on_held_back(self, count: int) -> None:
        """Set the number of messages that wait for the redelivery of a failed one of their key, these included: as many
        more may be requested.
        """
        self._held_back = min(count, self.prefetch)
        self._decide()

    def on_handled(self, seconds: float) -> None:
        """A call of the handler took so long."""
        self.handle_time = max(seconds, self.handle_time + (seconds - self.handle_time) / 8)
        self._decide()

    def on_consumed(self, count: int) -> None:
        """Record consumed messages, as long as it is starting."""
        self.handled += count
        self.is_starting = 4 * self.handled < self.prefetch
        self._decide()

    def _decide(self) -> None:
        workers, prefetch, handle_time = self.workers, self.prefetch, self.handle_time
        waiting = 0 if self.terms.is_once else min(4 * self.handled, prefetch)
        if waiting and handle_time:
            span = min(self.free_seconds, max(MAX_SPAN_S, 2 * self.round_trip))
            waiting = min(waiting, max(int(workers * (span / handle_time - 1)), 0))
        spare = workers // 4 if prefetch >= DEFAULT_MAX_MESSAGES else 0  # so that not each one pulls for itself
        bound = min(
            workers + waiting + self._behind, max(prefetch, workers + spare), self.terms.max_ack_pending or UNLIMITED
        )
        self.bound = bound + self._held_back  # the server delivers again also at max_ack_pending
        self.count_interval = max(1, min(MAX_UNCOUNTED, self._waiting // 8))
