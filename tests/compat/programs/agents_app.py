"""Synadia's agent SDK, unchanged: run with the URL of a server; prints what an agent answers."""

import asyncio
import sys

import natsproto.compat

natsproto.compat.install()

import nats  # noqa: E402
from synadia_ai.agent_service import AgentService, PromptStream  # type: ignore[import-not-found]  # noqa: E402
from synadia_ai.agents import Agents, Envelope, ResponseChunk  # type: ignore[import-not-found]  # noqa: E402


async def in_capitals(envelope: Envelope, stream: PromptStream) -> None:
    for word in (envelope.prompt or "").split():
        await stream.send(word.upper())


async def main() -> None:
    host, caller = await nats.connect(sys.argv[1]), await nats.connect(sys.argv[1])
    service = AgentService(nc=host, agent="echo", owner="tests", session_name="one", description="answers in capitals")
    service.on_prompt(in_capitals)
    await service.start()
    agents = Agents(nc=caller)
    try:
        (found,) = await agents.discover()
        print("found", found.agent, found.owner)
        print([chunk.text async for chunk in found.prompt("two words") if isinstance(chunk, ResponseChunk)])
        print("status", (await found.status()).agent)
    finally:
        await agents.close()
        await service.stop()
        for nc in (caller, host):
            await nc.drain()
    print("closed", host.is_closed, caller.is_closed)


asyncio.run(main())
