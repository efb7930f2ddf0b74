"""Requests that are given up during an outage: they are not sent afterwards, and the error says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from natsproto._core.outbox import CONGESTED_SIZE, Outbox
from natsproto.errors import ConnectionLost, NatsError, PublishTimeout, PublishUncertain, RequestTimeout
from tests.core.helpers import ScriptedNetwork, published_payloads, scripted_network, turns_until
from tests.jetstream.script import StreamScript
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour

OUTAGE_S = 10.0


async def go_down(net: ScriptedNetwork) -> None:
    net.down()
    await turns_until(lambda: not net.clients[0].is_connected)


async def come_back(net: ScriptedNetwork) -> None:
    """The client is connected again, and everything that it held has arrived."""
    net.up()
    await net.clients[0].flush(60)


@virtual_clock
async def test_timed_out_request_is_not_sent_later() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await go_down(net)
        await nc.publish("log", b"kept")
        with pytest.raises(RequestTimeout) as info:
            await nc.request("charge", b"100 euro", timeout=1, headers={"a": "b"})
        assert not info.value.sent
        assert info.value.disconnected == pytest.approx(1)
        assert str(info.value).startswith(
            "request to 'charge': not sent within 1 s, as the client was not connected to a server: check"
        )
        assert nc.stats.buffered_msgs == 1
        await come_back(net)
        assert published_payloads(net) == [b"kept"]


@virtual_clock
async def test_cancelled_request_is_not_sent_later() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await go_down(net)
        for number in range(3):
            await nc.publish("log", b"%d" % number)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await nc.request("charge", b"100 euro", timeout=60)
        waiting = asyncio.create_task(nc.request("wait", b"sent", timeout=60))
        last = asyncio.create_task(nc.request("charge", b"100 euro", timeout=60))
        await advance(1)
        net.up()
        last.cancel()
        await nc.flush(60)
        assert published_payloads(net) == [b"0", b"1", b"2", b"sent"]
        waiting.cancel()


@virtual_clock
async def test_many_given_up_requests_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of requests during an outage does not fill the outbox, and no request costs a search of all of it."""
    async with scripted_network() as net:
        nc = await net.connect(outbox_limit=100_000)
        await go_down(net)
        for _ in range(200):
            await nc.publish("log", b"x" * 100)
        kept = nc.stats.buffered_bytes
        searches = 0
        take_back = Outbox.take_back

        def counted(outbox: Outbox, mark: bytes, is_wanted: Callable[[bytes], bool] = bool) -> list[bytes]:
            nonlocal searches
            searches += 1
            return take_back(outbox, mark, is_wanted)

        monkeypatch.setattr(Outbox, "take_back", counted)
        for _ in range(500):
            with pytest.raises(RequestTimeout, match="not sent"):
                await nc.request("charge", b"y" * 1000, timeout=0.01)
        assert nc.stats.buffered_bytes < kept + 50_000
        assert searches < 30
        await come_back(net)
        assert published_payloads(net) == [b"x" * 100] * 200


@virtual_clock
async def test_unsent_request_survives_the_disconnect() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        written = asyncio.create_task(nc.request("a", b"written", timeout=60))
        await net.server.expect("PUB", "a")
        net.peer.stall()
        while nc.stats.buffered_bytes < CONGESTED_SIZE:
            nc.publish_nowait("log", bytes(60_000))
            await asyncio.sleep(0)
        mux = nc._registry.request_mux()
        unsent = mux.send_request("a", b"a", b"unsent", None, 60)
        given_up = mux.send_request("a", b"a", b"given up", None, 60)
        assert nc._outbox.frames
        await go_down(net)
        with pytest.raises(ConnectionLost):
            await written
        given_up.cancel()
        assert not unsent.done()
        await come_back(net)
        assert (published_payloads(net).count(b"unsent"), published_payloads(net).count(b"given up")) == (1, 0)
        unsent.cancel()


@virtual_clock
async def test_publish_given_up_in_an_outage_is_not_stored() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        js = nc.jetstream()
        await go_down(net)
        for msg_id in (None, "1"):
            with pytest.raises(RequestTimeout) as info:
                await js.publish("s", b"no", msg_id=msg_id, timeout=5)
            assert not isinstance(info.value, PublishUncertain)
            assert not info.value.sent
            assert "publish to 's': not sent within 5 s, as the client was not connected" in str(info.value)
        publishing = asyncio.create_task(js.publish("s", b"yes", msg_id="2", timeout=60))
        await advance(OUTAGE_S)
        assert nc.stats.buffered_msgs == 1, "further copies need not wait beside the first one"
        await come_back(net)
        script = StreamScript(net)
        script.ack(await script.heard(b"yes"))
        assert (await publishing).seq == 1
        assert published_payloads(net) == [b"yes"]


@virtual_clock
async def test_publish_timeout_after_an_outage_says_so() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        js = nc.jetstream()
        await go_down(net)
        publishing = asyncio.create_task(js.publish("s", b"x", timeout=8))
        await advance(3)
        await come_back(net)
        with pytest.raises(
            PublishTimeout, match=r"within 8 s \(the client was not connected to a server for [3-7]"
        ) as info:
            await publishing
        assert info.value.sent


@virtual_clock
@pytest.mark.parametrize("timeout", [0.5, 1, 5])
async def test_timeouts_name_the_outage(timeout: float) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        js = nc.jetstream()
        await go_down(net)
        for call in (
            js.stream("S", timeout=timeout),
            js._api.call("STREAM.PURGE.S", operation="purge", timeout=timeout),
            nc.flush(timeout),
        ):
            with pytest.raises(
                RequestTimeout,
                match=f"within {timeout:g} s, as the client was not connected to a server",
            ):
                await call
        await come_back(net)
        assert published_payloads(net) == []


@virtual_clock
async def test_reads_wait_for_the_next_connection() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        js = nc.jetstream()
        reads = [asyncio.create_task(js._api.call("INFO", operation="info", timeout=timeout)) for timeout in (0.9, 60)]
        purge = asyncio.create_task(js._api.call("STREAM.PURGE.S", operation="purge", timeout=60))
        for _ in range(3):
            await net.server.expect("PUB")
        await go_down(net)
        with pytest.raises(ConnectionLost):
            await purge
        with pytest.raises(RequestTimeout, match="the client was not connected"):
            await reads[0]
        await advance(OUTAGE_S)
        assert nc.stats.buffered_msgs <= 2, "further copies need not wait beside that of the lost one"
        script, before = StreamScript(net), len(published_payloads(net))
        await script.heard_all(before)
        await come_back(net)
        script.say(await script.heard(), {"type": "info"})
        assert await reads[1] == {"type": "info"}


@virtual_clock
async def test_request_many_without_a_connection_is_not_sent() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await go_down(net)

        async def ask() -> None:
            async for _ in nc.request_many("charge", b"100 euro", timeout=1):
                raise AssertionError("nobody can have answered")

        with pytest.raises(NatsError, match="'charge': not sent within 1 s, as the client was not"):
            await ask()
        await come_back(net)
        assert published_payloads(net) == []
