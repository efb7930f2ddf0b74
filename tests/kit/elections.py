"""Elections on purpose: another leader for a stream of a cluster."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from natsproto.errors import NatsError
from natsproto.jetstream import JetStream


async def another_leader(js: JetStream, stream: str, within: float = 45.0) -> None:
    """Makes the leader of the stream step down, and returns when another one leads.

    A stream that has no leader at the moment answers nothing, and one that has just got its leader may elect it
    again: then it is asked once more.
    """
    async with asyncio.timeout(within):
        while not (before := await _leader(js, stream)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while await _leader(js, stream) in ("", before):
            with suppress(NatsError):
                await js.admin.step_down_stream_leader(stream, timeout=2)
            await asyncio.sleep(0.05)


async def _leader(js: JetStream, stream: str) -> str:
    with suppress(NatsError):
        info = await (await js.stream(stream, bind=True)).info(timeout=2)
        return info.cluster.leader if info.cluster is not None else ""
    return ""
