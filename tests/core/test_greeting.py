"""The early greeting, on a scripted server and virtual time: who sends it, and what follows if it was too early."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from natsproto.client import Client
from natsproto.core.events import AttemptFailed, Disconnected, Reconnected, Reconnecting
from natsproto.core.runtime import Runtime
from natsproto.errors import ConnectFailed, ConnectionLost, RequestTimeout
from natsproto.options import Options
from natsproto.protocol.auth import Credentials
from tests.core.world import HOST, PORT, turns, world
from tests.faults.world import Diary
from tests.kit.clock import virtual_clock
from tests.kit.identity import Key, Operator
from tests.kit.memory import MemoryPeer
from tests.kit.scripted import Behaviour

SILENT = Behaviour(greeting=None, answer_ping=False)
DEAF = Behaviour(greeting=None, hang_up=True)
"""What a server does that waits for TLS and gets CONNECT."""


def cause_of(failed: ConnectFailed) -> BaseException:
    [(_, cause)] = failed.attempts
    return cause


@virtual_clock
async def test_connect_arrives_ahead_of_info() -> None:
    async with world(SILENT) as place:
        connecting = asyncio.create_task(place.connect())
        await place.server.expect("CONNECT")
        await place.server.expect("PING")
        place.server.info()
        await turns(5)
        assert not connecting.done(), "INFO alone is not the server's consent"
        place.server.current.pong()
        nc = await connecting
        assert nc.server_info.server_name == "scripted"
        assert [op.name for op in place.server.ops] == ["CONNECT", "PING"]


@virtual_clock
async def test_a_reconnect_greets_early_too() -> None:
    async with world(Behaviour(), SILENT) as place:
        diary = Diary()
        await place.connect(on_event=diary)
        place.peer.reset()
        second = await place.server.accepted(1)
        await second.ready.wait()
        assert second.connect
        second.info()
        second.pong()
        await diary.wait(Reconnected)


_OPERATOR = Operator()
_USER = _OPERATOR.account.user()
_URL = f"nats://{HOST}:{PORT}"
_SOMEBODY: Mapping[str, Options] = {
    "user": Options(_URL, user="u", password="p"),
    "token": Options(_URL, token="t"),
    "token from a callable": Options(_URL, token=lambda: "t"),
    "nkey": Options(_URL, nkey_seed=Key.user().seed),
    "creds": Options(_URL, creds=lambda: _USER.creds),
    "jwt": Options(_URL, jwt=_USER.jwt, nkey_seed=_USER.key.seed),
    "auth": Options(_URL, auth=lambda challenge: Credentials(user="u", password="p")),
    "name": Options(_URL, name="orders"),
    "tls": Options(_URL, tls=True),
    "user in the URL": Options(f"nats://u:p@{HOST}:{PORT}"),
    "token in the URL": Options(f"nats://t@{HOST}:{PORT}"),
    "tls in the URL": Options(f"tls://{HOST}:{PORT}"),
}


@pytest.mark.parametrize("who", _SOMEBODY)
@virtual_clock
async def test_who_has_anything_to_say_of_himself_waits_for_info(who: str) -> None:
    async with world(SILENT) as place:
        with pytest.raises(ConnectFailed) as failed:
            await Client.open(_SOMEBODY[who], Runtime(dial=place.dial, rng=random.Random(1)))
        assert isinstance(cause_of(failed.value), RequestTimeout)
        assert "waiting for INFO" in str(cause_of(failed.value))
        assert place.peer.received == b""


@virtual_clock
async def test_a_server_that_cannot_take_it_is_dialled_again_in_the_same_attempt_and_waited_for() -> None:
    async with world(DEAF, SILENT) as place:
        connecting = asyncio.create_task(place.connect())
        second = await place.server.accepted(1)
        await turns(10)
        assert place.network.peers[1].received == b""
        second.behaviour = Behaviour()
        second.info()
        nc = await connecting
        assert len(place.server.connections) == 2
        await nc.flush()


@virtual_clock
async def test_a_reconnect_that_was_too_early_is_no_failed_attempt_and_the_last_of_its_kind() -> None:
    async with world(Behaviour(), DEAF, Behaviour(), SILENT) as place:
        diary = Diary()
        await place.connect(on_event=diary)
        place.peer.reset()
        await diary.wait(Reconnected)
        assert [event.attempt for event in diary.of(Reconnecting)] == [1]
        assert diary.of(AttemptFailed) == []
        assert len(diary.of(Disconnected)) == 1
        place.peer.reset()
        await place.server.accepted(3)
        await turns(10)
        assert place.network.peers[3].received == b"", "a client does not do twice what failed once"


@virtual_clock
async def test_a_server_that_hangs_up_on_both_fails_once_and_with_the_hint_for_it() -> None:
    async with world(DEAF) as place:
        with pytest.raises(ConnectFailed) as failed:
            await place.connect()
        assert len(place.server.connections) == 2
        cause = cause_of(failed.value)
        assert type(cause) is ConnectionLost
        assert "closed by the server while waiting for INFO" in str(cause)
        assert "tls_first=True" in str(cause)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Behaviour(greeting={"headers": False}),
        Behaviour(refuse="Authorization Violation"),
        Behaviour(greeting=b"-ERR 'maximum connections exceeded'\r\n", hang_up=True),
        Behaviour(hang_up=True),
        SILENT,
    ],
)
@virtual_clock
async def test_a_server_that_said_what_is_wrong_is_not_dialled_again(behaviour: Behaviour) -> None:
    async with world(behaviour) as place:
        with pytest.raises(ConnectFailed):
            await place.connect(connect_timeout=2)
        assert len(place.network.dialled) == 1


@virtual_clock
async def test_an_address_nobody_listens_on_is_dialled_once() -> None:
    async with world() as place:
        place.network.refuse(HOST, PORT)
        with pytest.raises(ConnectFailed) as failed:
            await place.connect()
        assert isinstance(cause_of(failed.value), ConnectionRefusedError)
        assert place.network.dialled == [(HOST, PORT)]


@pytest.mark.parametrize(
    ("after", "error", "words"),
    [
        (0.5, RequestTimeout, "no answer within 2 s"),
        (1.5, ConnectionLost, "closed by the server while waiting for INFO"),
    ],
)
@virtual_clock
async def test_both_connections_of_an_attempt_share_its_time_and_what_took_longer_is_told(
    after: float, error: type[Exception], words: str
) -> None:
    loop = asyncio.get_running_loop()
    async with world() as place:

        def hang_up_late(peer: MemoryPeer) -> None:
            if len(place.network.peers) == 1:
                loop.call_later(after, peer.cut)

        place.network.listen(HOST, PORT, hang_up_late)
        began = loop.time()
        with pytest.raises(ConnectFailed) as failed:
            await place.connect(connect_timeout=2)
        assert loop.time() - began == pytest.approx(2.0, abs=1e-6)
        assert len(place.network.peers) == 2
        assert type(cause_of(failed.value)) is error
        assert words in str(cause_of(failed.value))


@pytest.mark.parametrize("behaviours", [(SILENT,), (DEAF, SILENT)])
@virtual_clock
async def test_an_attempt_that_is_cancelled_leaves_no_connection(behaviours: tuple[Behaviour, ...]) -> None:
    async with world(*behaviours) as place:
        connecting = asyncio.create_task(place.connect())
        await place.server.accepted(len(behaviours) - 1)
        await turns(10)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await turns(2)
        assert all(peer.at_end for peer in place.network.peers)
