"""Waiting until a server has handled acknowledgements: it answers an info before those that it has just received."""

from __future__ import annotations

import asyncio
import time

from natsproto import sync
from natsproto.jetstream import PullConsumer, PushConsumer

LIMIT_S = 20.0
INTERVAL_S = 0.01


async def until_all_acknowledged(consumer: PullConsumer | PushConsumer) -> None:
    """Wait until no message of the consumer waits for an acknowledgement."""
    async with asyncio.timeout(LIMIT_S):
        while (await consumer.info()).num_ack_pending:  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL_S)


def wait_all_acknowledged(consumer: sync.PullConsumer) -> None:
    """The same for a blocking consumer."""
    ends_at = time.monotonic() + LIMIT_S
    while left := consumer.info().num_ack_pending:
        assert time.monotonic() < ends_at, f"{left} messages are not acknowledged"
        time.sleep(INTERVAL_S)
