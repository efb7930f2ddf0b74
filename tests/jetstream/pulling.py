"""A PullState with the counts that a buffer keeps: what the tests of pulling drive instead of a driver.

Owns nothing but the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch, Weighed
from natsproto.jetstream._consumer.pull_options import Kind, PullRequest, demand
from natsproto.jetstream._consumer.pull_state import PullState, Verdict


class Counted:
    """How much came and was taken."""

    came = came_bytes = taken = taken_bytes = 0


class Pulling:
    """A reader that pulls; ``follows`` gives it an adaptive prefetch as an ordered reader has it."""

    def __init__(
        self,
        *,
        once: bool = False,
        no_wait: bool = False,
        early: bool = False,
        follows: bool = False,
        **options: object,
    ) -> None:
        kind = Kind.NO_WAIT if no_wait else Kind.AVAILABLE if early else Kind.BOUNDED if once else Kind.ENDLESS
        self.demand = demand(kind, **options)  # type: ignore[arg-type]
        self.counts = Counted()
        self.prefetch = AdaptivePrefetch() if follows and self.demand.is_adaptive else None
        self.state = PullState(self.demand, self.counts, 0.0, prefetch=self.prefetch)

    def next_request(self, now: float) -> PullRequest | None:
        return self.state.next_request(now)

    def on_messages(self, count: int, size: int, now: float) -> Verdict:
        self.counts.came += count
        self.counts.came_bytes += size
        return self.state.on_messages(count, size, now)

    def on_message(self, size: int, now: float) -> Verdict:
        return self.on_messages(1, size, now)

    def on_stashed(self, count: int) -> None:
        self.counts.came += count
        self.state.on_stashed()

    def on_taken(self, count: int, size: int) -> None:
        self.counts.taken += count
        self.counts.taken_bytes += size

    def wants_refill(self) -> bool:
        """Whether the reader has taken as many as the source wants to know of."""
        return self.state.refill_at is not None and self.counts.taken >= self.state.refill_at

    def on_status(self, number: int, code: int, text: str, headers: Mapping[str, str], now: float) -> Verdict:
        return self.state.on_status(number, code, text, headers, now)

    def on_silence(self, now: float) -> Verdict:
        return self.state.on_silence(now)

    def begin_again(self) -> None:
        """Another consumer takes the place of the one that was pulled from."""
        self.state = PullState(self.demand, self.counts, 0.0, prefetch=self.prefetch, after=self.state)

    def read(self, messages: Sequence[Weighed], took: float) -> None:
        """These come, and are taken within so many seconds."""
        assert self.prefetch is not None
        self.prefetch.on_messages(messages, self.held, 0.0)
        self.on_messages(len(messages), 0, 0.0)
        self.prefetch.on_taken(len(messages), took)
        self.on_taken(len(messages), 0)

    @property
    def held(self) -> int:
        return self.counts.came - self.counts.taken

    @property
    def held_bytes(self) -> int:
        return self.counts.came_bytes - self.counts.taken_bytes

    @property
    def deadline(self) -> float | None:
        return self.state.deadline

    @property
    def done(self) -> bool:
        return self.state.done
