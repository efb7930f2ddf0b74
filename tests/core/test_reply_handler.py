"""Inboxes of layers on top: who is told what, when, on a scripted server and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from natsproto._client import Client
from natsproto._core.events import Disconnected, Moved, Reconnected
from natsproto.errors import ConnectionClosed, ConnectionLost, NatsError, PermissionDenied
from natsproto.protocol.frames import Message
from tests.core.helpers import scripted_network, turns
from tests.faults.helpers import EventRecorder, connect_in
from tests.faults.test_races import A, network
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour


class RecordingInbox:
    """An inbox that writes down what it is told."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.stem = nc.new_inbox()
        self.calls: list[tuple[object, ...]] = []
        self.unsubscribe: Callable[[], None] | None = None

    @property
    def subject(self) -> str:
        return f"{self.stem}.*"

    def answer(self, token: bytes, payload: bytes) -> None:
        self.calls.append(("reply", token, payload))

    @property
    def expects_replies(self) -> bool:
        return False

    def on_message(self, message: Message) -> None:
        token = message.subject.rpartition(".")[2].encode()
        self.calls.append(("reply", token, message.data, *message.headers.pairs()))

    def on_replies_handled(self) -> None:
        self.calls.append(("settled",))

    def on_disconnect(self, error: ConnectionLost) -> None:
        self.calls.append(("lost", self.nc.is_connected))

    def on_reconnect(self) -> None:
        self.calls.append(("restored", self.nc.is_connected))

    def on_permission_error(self, error: PermissionDenied) -> None:
        self.calls.append(("denied", error.subject))

    def on_end(self, error: NatsError) -> None:
        self.calls.append(("ended", type(error)))

    async def ask(self, token: str) -> None:
        await self.nc.publish("service", token.encode(), reply=f"{self.stem}.{token}")


async def opened(nc: Client) -> RecordingInbox:
    box = RecordingInbox(nc)
    box.unsubscribe = nc._add_reply_handler(box)
    await nc.flush()
    return box


@virtual_clock
async def test_replies_come_with_one_batch_end() -> None:
    async with scripted_network() as stage:
        nc = await stage.connect()
        box = await opened(nc)
        sid = next(iter(stage.server.current.interest))
        lines = [f"MSG {box.stem}.{number} {sid} 1\r\n{number}\r\n" for number in range(4)]
        lines.insert(2, f"HMSG {box.stem}.h {sid} 17 18\r\nNATS/1.0\r\nA:b\r\n\r\nx\r\n")
        stage.server.send("".join(lines).encode())
        await nc.flush()
        replies = [("reply", b"0", b"0"), ("reply", b"1", b"1"), ("reply", b"h", b"x", ("A", "b"))]
        replies += [("reply", b"2", b"2"), ("reply", b"3", b"3")]
        assert box.calls == [*replies, ("settled",)]
        assert nc.stats.in_msgs == 5
        assert box.unsubscribe is not None
        box.unsubscribe()
        box.unsubscribe()
        stage.server.send(lines[0].encode() + lines[1].encode())
        await nc.flush()
        assert box.calls[-1] == ("settled",)
        assert len(box.calls) == 6
        assert stage.server.current.interest == {}


@virtual_clock
async def test_reply_handler_gets_disconnect_at_once() -> None:
    recorder = EventRecorder()
    async with scripted_network() as stage:
        nc = await stage.connect(on_event=recorder)
        box = await opened(nc)
        stage.down()
        await recorder.wait(Disconnected)
        assert box.calls == [("lost", False)]
        await box.ask("kept")
        await nc.publish("other", b"kept too")
        assert [head for head in nc._outbox.take_back(box.stem.encode()) if b"kept" in head] != []
        assert nc.stats.buffered_msgs == 1
        stage.up()
        await recorder.wait(Reconnected)
        assert box.calls == [("lost", False), ("restored", True)]
        await nc.flush()
        assert [op.payload for op in stage.server.ops if op.name == "PUB"] == [b"kept too"]
        sid = next(iter(stage.server.current.interest))
        stage.server.deliver(sid, f"{box.stem}.1", b"ok")
        await nc.flush()
        assert box.calls[2:] == [("reply", b"1", b"ok"), ("settled",)]


@virtual_clock
async def test_replies_of_both_servers_arrive_during_move() -> None:
    async with network() as here:
        nc = await connect_in(here.runtime, A, on_event=here.recorder)
        box = await opened(nc)
        (sid,) = here.a.current.interest
        here.a.info(ldm=True, connect_urls=["b:4222"])
        await here.recorder.wait(Moved)
        assert here.a.current.interest, "the old server was told that nobody listens"
        here.a.deliver(sid, f"{box.stem}.old", b"1")
        await turns(5)
        here.b.deliver(sid, f"{box.stem}.new", b"2")
        await nc.flush()
        assert [calls for calls in box.calls if calls[0] == "reply"] == [
            ("reply", b"old", b"1"),
            ("reply", b"new", b"2"),
        ]
        assert ("lost", False) not in box.calls
        await nc.close()


@virtual_clock
async def test_an_inbox_hears_of_refusals_and_of_the_end() -> None:
    async with scripted_network(Behaviour(route=False)) as stage:
        nc = await stage.connect()
        box = await opened(nc)
        stage.server.err('Permissions Violation for Publish to "service"')
        await nc.flush()
        assert box.calls == [("denied", "service")]
        other = await opened(nc)
        stage.server.err(f'Permissions Violation for Subscription to "{other.subject}"')
        await nc.flush()
        assert other.calls[-1][0] == "ended"
        await nc.close()
        assert box.calls[-1] == ("ended", ConnectionClosed)
        assert [calls for calls in other.calls if calls[0] == "ended"] == [other.calls[-1]]
        with pytest.raises(ConnectionClosed):
            nc._add_reply_handler(RecordingInbox(nc))


@virtual_clock
async def test_an_inbox_of_a_client_that_gives_up_is_ended() -> None:
    async with scripted_network() as stage:
        nc = await stage.connect(max_reconnect_attempts=2)
        box = await opened(nc)
        stage.down()
        await asyncio.wait_for(nc.wait_closed(), 600)
        assert [calls[0] for calls in box.calls] == ["lost", "ended"]
