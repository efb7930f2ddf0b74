"""PURE. The rules for deliveries: for how long one belongs to this client, and if the server repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.policies import AckPolicy

DEFAULT_ACK_WAIT_S: Final = 30.0
"""The server's ``ack_wait`` of a consumer without one."""
UNKNOWN_ACK_WAIT_S: Final = 1.5
"""Assumed until the configuration is known."""
WAITING_PART: Final = 0.1
"""The part of ack_wait for which a delivery may wait and be handed over as it is."""
MAX_WAITING_PART: Final = 0.25
"""The same on a link whose round trips take long."""
MARGIN_PART: Final = 0.05
MIN_MARGIN_S: Final = 0.05
"""The rest of ack_wait that suffices to extend a delivery; at most MAX_WAITING_PART."""


class DeliveryTerms(NamedTuple):
    """The rules for deliveries in the configuration of a consumer."""

    ack_wait: float = UNKNOWN_ACK_WAIT_S
    backoff: Sequence[float] = ()
    max_deliver: int = 0
    """0: no limit."""
    max_ack_pending: int = 0
    """0: no limit."""
    is_single: bool = True
    """True if each message is acknowledged by itself, so that one may be left to expire."""
    is_known: bool = False

    @classmethod
    def of(cls, info: ConsumerInfo | None) -> DeliveryTerms:
        """Read the configuration of a consumer; the defaults if it is unknown."""
        if info is None:
            return cls()
        config = info.config
        return cls(
            ack_wait=config.ack_wait or DEFAULT_ACK_WAIT_S,
            backoff=tuple(config.backoff),
            max_deliver=max(config.max_deliver, 0),
            max_ack_pending=max(config.max_ack_pending, 0),
            is_single=config.ack_policy == AckPolicy.EXPLICIT,
            is_known=True,
        )

    def wait_of(self, number: int) -> float:
        """Seconds until the server repeats the ``number``-th delivery (from 1) of a message."""
        return self.backoff[min(number, len(self.backoff)) - 1] if self.backoff else self.ack_wait

    def repeats(self, number: int) -> bool:
        """True if the server is known to deliver a message again whose ``number``-th delivery expires."""
        return self.is_known and self.is_single and (not self.max_deliver or number < self.max_deliver)

    def is_last(self, number: int) -> bool:
        """True if the ``number``-th delivery of a message is known to be the last one."""
        return self.is_known and 0 < self.max_deliver <= number

    @property
    def is_once(self) -> bool:
        """True if each delivery is known to be the last one of its message."""
        return self.is_known and self.max_deliver == 1

    @property
    def shortest(self) -> float:
        """The shortest of these times."""
        return min(self.backoff, default=self.ack_wait)

    @property
    def known_shortest(self) -> float | None:
        """The shortest of these times; None if the configuration is not known."""
        return self.shortest if self.is_known else None


def margin_of(wait: float) -> float:
    """Seconds that must be left of an ack_wait to extend a delivery in time."""
    return min(max(MIN_MARGIN_S, MARGIN_PART * wait), MAX_WAITING_PART * wait)
