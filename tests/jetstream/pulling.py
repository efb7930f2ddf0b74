"""A PullState with the counts that a buffer keeps: what the tests of pulling drive instead of a driver.

Owns nothing but the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from natsproto.jetstream._consumer.delivery.prefetch import AdaptivePrefetch, HasPayload
from natsproto.jetstream._consumer.pull.pull_state import PullDecision, PullRequest, PullState
from natsproto.jetstream._consumer.pull_options import PullMode, pull_options


class Counted:
    """How much came and was taken."""

    received = received_bytes = consumed = consumed_bytes = 0


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
        mode = (
            PullMode.NO_WAIT
            if no_wait
            else PullMode.AVAILABLE
            if early
            else PullMode.BOUNDED
            if once
            else PullMode.ENDLESS
        )
        self.pull_options = pull_options(mode, **options)  # type: ignore[arg-type]
        self.counts = Counted()
        self.prefetch = AdaptivePrefetch() if follows and self.pull_options.is_adaptive else None
        self.state = PullState(self.pull_options, self.counts, 0.0, prefetch=self.prefetch)

    def next_request(self, now: float) -> PullRequest | None:
        return self.state.next_request(now)

    def on_messages(self, count: int, size: int, now: float) -> PullDecision:
        self.counts.received += count
        self.counts.received_bytes += size
        return self.state.on_messages(count, size, now)

    def on_message(self, size: int, now: float) -> PullDecision:
        return self.on_messages(1, size, now)

    def on_leftover(self, count: int) -> None:
        self.counts.received += count
        self.state.on_leftover()

    def on_consumed(self, count: int, size: int) -> None:
        self.counts.consumed += count
        self.counts.consumed_bytes += size

    def wants_refill(self) -> bool:
        """Whether the reader has taken as many as the source wants to know of."""
        return self.state.refill_at is not None and self.counts.consumed >= self.state.refill_at

    def on_status(self, number: int, code: int, text: str, headers: Mapping[str, str], now: float) -> PullDecision:
        return self.state.on_status(number, code, text, headers, now)

    def on_deadline(self, now: float) -> PullDecision:
        return self.state.on_deadline(now)

    def begin_again(self) -> None:
        """Another consumer takes the place of the one that was pulled from."""
        self.state = PullState(self.pull_options, self.counts, 0.0, prefetch=self.prefetch, predecessor=self.state)

    def read(self, messages: Sequence[HasPayload], took: float) -> None:
        """These come, and are taken within so many seconds."""
        assert self.prefetch is not None
        self.prefetch.on_messages(messages, self.held, 0.0)
        self.on_messages(len(messages), 0, 0.0)
        self.prefetch.on_consumed(len(messages), took)
        self.on_consumed(len(messages), 0)

    @property
    def held(self) -> int:
        return self.counts.received - self.counts.consumed

    @property
    def held_bytes(self) -> int:
        return self.counts.received_bytes - self.counts.consumed_bytes

    @property
    def deadline(self) -> float | None:
        return self.state.deadline

    @property
    def is_done(self) -> bool:
        return self.state.is_done
