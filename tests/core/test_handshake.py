"""The handshake on a scripted server and virtual time: nothing is sent before INFO, and one dial is one attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from natsproto._client import Client
from natsproto._core.socket.wire import Runtime
from natsproto._options.options import Options
from natsproto.errors import ConnectFailed, ConnectionLost, RequestTimeout
from natsproto.protocol.auth import Credentials
from tests.core.helpers import HOST, PORT, scripted_network, turns
from tests.kit.clock import virtual_clock
from tests.kit.failures import only_cause
from tests.kit.identity import Key, Operator
from tests.kit.scripted import Behaviour

SILENT = Behaviour(greeting=None, answer_ping=False)
DEAF = Behaviour(greeting=None, hang_up=True)


_OPERATOR = Operator()
_USER = _OPERATOR.account.user()
_URL = f"nats://{HOST}:{PORT}"
_SOMEBODY: Mapping[str, Options] = {
    "nothing": Options(_URL),
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
async def test_connect_waits_for_info(who: str) -> None:
    async with scripted_network(SILENT) as net:
        with pytest.raises(ConnectFailed) as failed:
            await Client._connect(_SOMEBODY[who], Runtime(dial=net.dial, rng=random.Random(1)))
        assert isinstance(only_cause(failed.value), RequestTimeout)
        assert "waiting for INFO" in str(only_cause(failed.value))
        assert net.peer.received == b""


@virtual_clock
async def test_server_that_hangs_up_before_info() -> None:
    async with scripted_network(DEAF) as net:
        with pytest.raises(ConnectFailed) as failed:
            await net.connect()
        assert len(net.server.connections) == 1
        cause = only_cause(failed.value)
        assert type(cause) is ConnectionLost
        assert "closed by the server while waiting for INFO" in str(cause)
        assert "tls_first" not in str(cause), "it stops: one with handshake_first waits for TLS"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Behaviour(greeting={"headers": False}),
        Behaviour(refuse="Authorization Violation"),
        Behaviour(greeting=b"-ERR 'maximum connections exceeded'\r\n", hang_up=True),
        Behaviour(hang_up=True),
        DEAF,
        SILENT,
    ],
)
@virtual_clock
async def test_named_handshake_error_is_not_dialled_again(behaviour: Behaviour) -> None:
    async with scripted_network(behaviour) as net:
        with pytest.raises(ConnectFailed):
            await net.connect(connect_timeout=2)
        assert len(net.network.dialled) == 1


@virtual_clock
async def test_an_address_nobody_listens_on_is_dialled_once() -> None:
    async with scripted_network() as net:
        net.network.refuse(HOST, PORT)
        with pytest.raises(ConnectFailed) as failed:
            await net.connect()
        assert isinstance(only_cause(failed.value), ConnectionRefusedError)
        assert net.network.dialled == [(HOST, PORT)]


@virtual_clock
async def test_connect_cancelled_leaves_no_connection() -> None:
    async with scripted_network(SILENT) as net:
        connecting = asyncio.create_task(net.connect())
        await net.server.accepted(0)
        await turns(10)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await turns(2)
        assert net.peer.at_end
