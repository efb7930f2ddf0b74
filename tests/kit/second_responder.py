"""A deposed leader beside a real stream: what answers first refuses, what answers second is the truth.

The stream of the test acknowledges nothing itself (``no_ack``), and this responder answers in its place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsproto import Client, Message
from natsproto.jetstream import JetStream, Stream

REFUSALS = {
    10071: "wrong last sequence: {last}",
    10164: "wrong last sequence",
    10176: "atomic publish batch is incomplete",
}


class DeposedLeader:
    """Refuses messages first; ``truth`` is when the real outcome follows, in seconds (None: never)."""

    def __init__(self, client: Client, js: JetStream, stream: Stream) -> None:
        self._client, self._js, self._stream = client, js, stream
        self.refusals: list[tuple[int, int]] = []
        """The err_code and the sequence of each refusal to come; messages beyond them are acknowledged only."""
        self.truth: float | None = 0.01
        self.refused = 0
        self.is_silent = False
        """It answers no commit of a batch."""
        self._attributed: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, message: Message) -> None:
        """Answer a message of the stream."""
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message) -> None:
        if not message.reply:
            return
        if "Nats-Batch-Id" in message.headers and "Nats-Batch-Commit" not in message.headers:
            await self._client.publish(message.reply)  # the stream has it and waits for the commit
            return
        if self.is_silent:
            return
        seq = await self._stored_at(message)
        refused = bool(self.refusals)
        if refused:
            code, last = self.refusals.pop(0)
            self.refused += 1
            error = {"code": 400, "err_code": code, "description": REFUSALS[code].format(last=last)}
            await self._client.publish(message.reply, json.dumps({"error": error, "stream": "S", "seq": 0}).encode())
            if self.truth is None:
                return
            await asyncio.sleep(self.truth)
        if seq:
            ack: dict[str, object] = {"stream": self._stream.name, "seq": seq}
            if batch := message.headers.last("Nats-Batch-Id"):
                ack |= {"batch": batch, "count": int(message.headers.last("Nats-Batch-Sequence"))}
        else:
            last = (await self._stream.info()).state.last_seq
            ack = {"error": {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {last}"}}
        await self._client.publish(message.reply, json.dumps(ack).encode())

    async def _stored_at(self, message: Message) -> int:
        """The sequence where the real stream has this very message; 0 when it refused it."""
        await asyncio.sleep(0.005)
        found = [
            stored.seq
            async for stored in self._stream.get_batch(subject=message.subject)
            if stored.data == message.data and list(stored.headers.pairs()) == list(message.headers.pairs())
        ]
        is_known = "Nats-Msg-Id" in message.headers  # a copy is a duplicate
        fresh = [seq for seq in found if is_known or seq not in self._attributed]
        self._attributed.update(fresh)
        return fresh[-1] if fresh else 0

    async def close(self) -> None:
        """Wait for the answers under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def deposed_leader(client: Client, stream: Stream) -> AsyncIterator[DeposedLeader]:
    """Answer for the stream, which must have ``no_ack``."""
    js = client.jetstream()
    config = (await stream.info()).config
    await js.update_stream(config.replace(no_ack=True))
    leader = DeposedLeader(client, js, stream)
    async with client.subscribe(config.subjects[0], cb=leader.on_message):
        await client.flush()
        yield leader
        await leader.close()
