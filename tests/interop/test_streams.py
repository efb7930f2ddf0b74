"""Responses in parts with clients that know nothing of them: nats.js, nats-py, and messages published by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import nats
import pytest

from natsproto._client import Client
from natsproto.errors import ServiceError
from natsproto.protocol.frames import Message
from natsproto.service import Request
from natsproto.testing import Server
from tests.interop.node import Node


async def offer(nc: Client) -> None:
    service = await nc.add_service("parts", "1.0.0")

    @service.endpoint()
    async def count(request: Request) -> AsyncIterator[bytes]:
        for number in range(int(request.data)):
            yield b"%d" % number

    @service.endpoint()
    async def fail(request: Request) -> AsyncIterator[bytes]:
        yield b"1"
        raise ServiceError(418, "teapot")

    await nc.flush()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("nats.js")
async def test_nats_js_and_responses_in_parts(nats_server: Server, nats_client: Client, node: Node) -> None:
    await offer(nats_client)
    async with node.running("stream.cjs", nats_server.url) as program:
        said = dict[str, Any]()
        while "ready" not in said:
            line = cast("dict[str, Any]", await program.line())
            said[line["what"]] = line["value"]
        parts = [[str(number), "", []] for number in range(5)]
        assert said["count"] == parts
        assert (
            said["sentinel"] == said["stall"] == said["timer"] == [*parts, ["", "", []]]
        )  # it yields the sentinel too
        assert said["fail"] == [["1", ""], ["teapot", "418"], ["", ""]]
        got = [part.data async for part in nats_client.stream("plain")]
        assert [int(part) for part in got] == list(range(2000))
        with pytest.raises(ServiceError, match="teapot"):
            [part async for part in nats_client.stream("plain.error")]


async def test_nats_py_reads_and_sends_parts(nats_server: Server, nats_client: Client) -> None:
    await offer(nats_client)
    theirs = await nats.connect(nats_server.url)
    try:
        inbox = theirs.new_inbox()
        replies = await theirs.subscribe(inbox)
        await theirs.publish("count", b"3", reply=inbox)
        got = [await replies.next_msg(timeout=5) for _ in range(4)]
        assert [(message.data, message.reply, message.headers) for message in got] == [
            (b"0", "", None),
            (b"1", "", None),
            (b"2", "", None),
            (b"", "", None),
        ]

        async def respond(message: Any) -> None:
            for number in range(100):
                await message.respond(b"%d" % number)
            await message.respond(b"")

        await theirs.subscribe("plain", cb=respond)
        await theirs.flush()
        assert [int(part.data) async for part in nats_client.stream("plain")] == list(range(100))
    finally:
        await theirs.close()


async def test_wire_format_by_hand(nats_client: Client) -> None:
    """As docs/adr-response-streams.md says, with plain messages on the other side."""
    nc = nats_client
    await offer(nc)
    async with nc.subscribe(nc.new_inbox()) as inbox:
        headers = {"Stream-Window": "130", "Stream-Heartbeat": "100"}
        await nc.publish("count", b"4", reply=inbox.subject, headers=headers)
        first, second = await inbox.next(5), await inbox.next(5)
        assert (first.data, second.data, first.has_headers) == (b"0", b"1", False)
        assert first.reply is not None
        credit_to, _, number = first.reply.rpartition(".")
        assert (number, second.reply) == ("1", f"{credit_to}.2")
        idle = await inbox.next(5)  # the window is full
        assert (idle.data, dict(idle.headers), idle.reply) == (b"", {"Stream-Idle": "2"}, f"{credit_to}.2")
        await nc.publish(f"{credit_to}.2", b"", reply=inbox.subject)
        third, fourth, end = [await inbox.next(5) for _ in range(3)]
        assert (third.data, fourth.data, end.data) == (b"2", b"3", b"")
        assert (dict(end.headers), end.reply) == ({"Stream-End": "4"}, f"{credit_to}.4")

    async def respond(request: Message) -> None:
        seen.append(dict(request.headers))
        assert request.reply is not None
        await nc.publish(request.reply, b"", reply="my.inbox.7.0", headers={"Stream-Idle": "0"})
        await nc.publish(request.reply, b"a", reply="my.inbox.7.1")
        await nc.publish(request.reply, b"", reply="my.inbox.7.2")
        if request.data != b"go on":
            await nc.publish(request.reply, b"", reply="my.inbox.7.2", headers={"Stream-End": "2"})

    seen = list[dict[str, str]]()
    async with nc.subscribe("my.inbox.7.*") as credit, nc.subscribe("by.hand", cb=respond):
        assert [part.data async for part in nc.stream("by.hand", window=1000, heartbeat=2.5)] == [b"a", b""]
        message = await credit.next(5)
        assert (message.subject, message.data) == ("my.inbox.7.1", b"")
        assert message.reply is not None
        async with nc.stream("by.hand", b"go on") as parts:
            async for _ in parts:
                break
        assert [(await credit.next(5)).data for _ in range(2)] == [b"", b"-CANCEL"]
    assert seen[0] == {"Stream-Window": "1000", "Stream-Heartbeat": "2500"}
