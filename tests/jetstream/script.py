"""A stream that says what the test wants, on a scripted server: acknowledgements, refusals, silence.

Owns nothing but the wording of a real server's replies.
"""

from __future__ import annotations

import asyncio
import json

from natsproto import Client
from natsproto.jetstream import JetStream, StreamConfig, StreamInfo, StreamState
from natsproto.jetstream._values.codec import NEVER
from tests.core.helpers import ScriptedNetwork
from tests.kit.clock import advance
from tests.kit.scripted import Op

STEP = 0.01
"""Seconds of virtual time between two looks."""


class StreamScript:
    """Answers what a client publishes, one message at a time."""

    def __init__(self, net: ScriptedNetwork) -> None:
        self._net = net
        self._heard: list[Op] = []
        self.seq = 0

    async def heard(self, payload: bytes | None = None, *, timeout: float = 60.0) -> Op:
        """The next message, or the next one of this payload. Virtual time passes until it comes."""
        async with asyncio.timeout(timeout):
            while (op := self._next(payload)) is None:
                await advance(STEP)
        self._heard.append(op)
        return op

    async def heard_all(self, count: int) -> list[Op]:
        """So many messages, in the order in which they came."""
        return [await self.heard() for _ in range(count)]

    async def silent(self, seconds: float = STEP) -> bool:
        """Whether nothing more is published for so long."""
        await advance(seconds)
        return self._next(None) is None

    def _next(self, payload: bytes | None) -> Op | None:
        known = {id(op) for op in self._heard}
        ops = (op for op in self._net.server.ops if op.name in ("PUB", "HPUB") and id(op) not in known)
        return next((op for op in ops if payload in (None, op.payload)), None)

    def say(self, op: Op, payload: bytes | dict[str, object], headers: bytes | None = None) -> None:
        """Any reply to the message."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload, separators=(",", ":")).encode()
        reply = op.args[1]
        for sid, interest in self._net.server.current.interest.items():
            stem = ".".join(interest.tokens[:-1]) + "."
            if reply.startswith(stem) and interest.tokens[-1] in ("*", ">"):
                self._net.server.deliver(sid, reply, data, headers=headers)

    def ack(self, op: Op, seq: int | None = None, **more: object) -> None:
        """The stream has the message."""
        self.seq = self.seq + 1 if seq is None else seq
        self.say(op, {"stream": "S", "seq": self.seq, **more})

    def refuse(self, op: Op, err_code: int, description: str = "no", code: int = 400) -> None:
        """The stream refuses the message."""
        error = {"code": code, "err_code": err_code, "description": description}
        self.say(op, {"error": error, "stream": "S", "seq": 0})

    async def search_finds_nothing(self) -> None:
        """Answer the client's search for a batch: the stream's only server does not have it."""
        asked = [await self.heard()]
        self.say(asked[0], {"total": 1, "offset": 0, "limit": 1024, "streams": ["S"]})
        asked.append(await self.heard())
        state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "consumer_count": 0}
        created = "2026-01-01T00:00:00Z"
        self.say(asked[1], {"config": {"name": "S", "subjects": ["a"]}, "created": created, "state": state})
        asked.append(await self.heard())
        self.refuse(asked[2], 10037, "no message found", 404)
        endpoints = [op.args[0].removeprefix("$JS.API.STREAM.") for op in asked]
        assert endpoints == ["NAMES", "INFO.S", "MSG.GET.S"], endpoints

    def nobody(self, op: Op) -> None:
        """No stream listens."""
        self.say(op, b"", b"NATS/1.0 503\r\n\r\n")


def jetstream_of(nc: Client, *subjects: str, timeout: float = 5.0) -> JetStream:
    """Return a context that knows a stream with these subjects, as if it had read its info."""
    js = nc.jetstream(timeout=timeout)
    js._api.streams.add(
        StreamInfo(config=StreamConfig(name="S", subjects=subjects), created=NEVER, state=StreamState())
    )
    return js
