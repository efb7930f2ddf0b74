"""Errors say why, and what to do: of a client that was closed, and of a first connection that failed."""

from __future__ import annotations

import pytest

import natsproto
from natsproto import errors
from natsproto.testing import Server, run_server


async def test_closed_client_error_has_its_cause(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url, allow_reconnect=False)
    js = nc.jetstream()
    ordered = (await js.stream("S", bind=True)).ordered_consumer()
    nats_server.kill()
    reason = await nc.wait_closed()
    assert reason is not None

    async def set_servers() -> None:
        nc.set_servers(nats_server.url)

    publishing = (lambda: nc.publish("a"), lambda: nc.request("a"), lambda: js.publish("a"))
    for call in (*publishing, nc.flush, set_servers, lambda: ordered.fetch(1, timeout=1)):
        with pytest.raises(errors.ConnectionClosed) as caught:
            await call()
        assert caught.value.reason is caught.value.__cause__ is reason
        assert str(caught.value).endswith(f": the connection is closed ({reason}): connect again")
    await nats_server.restart()
    async with natsproto.connect(nats_server.url) as nc:
        pass
    with pytest.raises(errors.ConnectionClosed, match="publish: the connection is closed: connect again") as closed:
        await nc.publish("a")
    assert closed.value.reason is None


async def test_missing_server_names_retry_connect_for(nats_server: Server) -> None:
    nats_server.kill()
    with pytest.raises(errors.ConnectFailed, match="start a server there, or pass retry_connect_for= to wait for one"):
        await natsproto.connect(nats_server.url)
    with pytest.raises(errors.ConnectFailed) as caught:
        await natsproto.connect(nats_server.url, retry_connect_for=0.001)
    assert "retry_connect_for" not in str(caught.value)
    await nats_server.restart()


async def test_default_url_names_the_variable(nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto._client.DEFAULT_SERVER", "nats://127.0.0.1:1")
    monkeypatch.setattr("natsproto._core.engine.supervisor.DEFAULT_SERVER", "nats://127.0.0.1:1")
    with pytest.raises(errors.ConnectFailed, match=r"\(only Options\.from_env\(\) reads NATS_URL\)"):
        await natsproto.connect()
    nats_server.kill()
    with pytest.raises(errors.ConnectFailed) as caught:
        await natsproto.connect(nats_server.url)
    assert "NATS_URL" not in str(caught.value)
    await nats_server.restart()


async def test_tls_to_a_plain_server_is_tls_failed(nats_server: Server) -> None:
    for url, options in ((nats_server.url.replace("nats:", "tls:"), {}), (nats_server.url, {"tls": True})):
        with pytest.raises(errors.TlsFailed) as caught:
            await natsproto.connect(url, **options)  # type: ignore[arg-type]
        assert isinstance(caught.value, errors.TlsConnectFailed)
        assert "does not offer it" in caught.value.reason


async def test_wrong_password_error_says_what_to_check() -> None:
    refusal = pytest.raises(errors.LoginRefused, match="check them, and the users in the configuration of the server")
    with run_server(config='authorization { user: "a", password: "b" }') as server, refusal:
        await natsproto.connect(server.url, user="a", password="c")
