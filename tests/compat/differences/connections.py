"""Differences of connecting, reconnecting and closing."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any

from natsproto.testing import End, FaultProxy, Server, run_server
from tests.compat.differences import shows
from tests.compat.scenarios import CallbackLog, raised
from tests.kit.identity import Operator
from tests.kit.scripted import Behaviour, ScriptedServer
from tests.kit.waiting import until

FAST = {"reconnect_time_wait": 0.01}


@shows("`tls://` and `tls=`", theirs="connected", ours="Error")
async def tls_url(package: Any, server: Server) -> str:
    nc = package.NATS()
    error = await raised(nc.connect(server.url.replace("nats:", "tls:"), allow_reconnect=False))
    await nc.close()
    return error or "connected"


@shows("A list of servers, one of them `tls://`", theirs="connected", ours="Error")
async def one_tls_url(package: Any, server: Server) -> str:
    nc = package.NATS()
    async with run_server() as other:
        urls = [server.url, other.url.replace("nats:", "tls:")]
        error = await raised(nc.connect(urls, dont_randomize=True, allow_reconnect=False))
        await nc.close()
    return error or "connected"


@shows("A server that does not confirm CONNECT with a PONG", theirs="connected", ours="TimeoutError")
async def unconfirmed(package: Any, server: Server) -> str:
    nc = package.NATS()
    async with ScriptedServer(Behaviour(first_ping=b"+OK\r\n")) as silent:
        error = await raised(nc.connect(silent.url, connect_timeout=0.2, allow_reconnect=False))
        await nc.close()
    return error or "connected"


@shows("`connect_timeout`", theirs=False, ours=True)
async def connect_timeout(package: Any, server: Server) -> bool:
    """Whether the error is one of the package."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    nc = package.NATS()
    try:
        await nc.connect(f"nats://127.0.0.1:{port}", connect_timeout=0.1, allow_reconnect=False)
    except TimeoutError as exc:
        return isinstance(exc, package.errors.TimeoutError)
    finally:
        await nc.close()
        listener.close()
    return False


@shows("`max_reconnect_attempts=n`, n > 0", theirs=4, ours=5)
async def attempts(package: Any, server: Server) -> int:
    """The dials of a client that gives up after three attempts."""
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        await package.connect(proxy.url, max_reconnect_attempts=3, **FAST, **log.callbacks())
        proxy.target = ("127.0.0.1", 1)
        proxy.cut(End.RST)
        await log.until("closed_cb")
        return proxy.accepted - 1


@shows("`error_cb` of a client that gives up after a reset", theirs=2, ours=1)
async def gives_up(package: Any, server: Server) -> int:
    """How often it is told of the reset."""
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        await package.connect(proxy.url, max_reconnect_attempts=1, **FAST, **log.callbacks())
        proxy.refuse()
        proxy.cut(End.RST)
        await log.until("closed_cb")
    return sum(isinstance(error, ConnectionResetError) for error in log.errors)


@shows("Lame duck mode", theirs=0, ours=1)
async def lame_duck(package: Any, server: Server) -> int:
    """The reconnects until the server disconnects its clients."""
    async with run_server(config="lame_duck_duration: 60s\nlame_duck_grace_period: 20s") as lame:
        log = CallbackLog()
        nc = await package.connect([lame.url, server.url], dont_randomize=True, **FAST, **log.callbacks())
        await lame.lame_duck()
        await log.until("lame_duck_mode_cb")
        try:
            async with asyncio.timeout(4):
                await log.until("reconnected_cb")
        except TimeoutError:
            pass
        await nc.close()
    return log.names.count("reconnected_cb")


@shows("`nc.connected_url`", theirs="user:secret@", ours="")
async def connected_url(package: Any, server: Server) -> str:
    nc = await package.connect(server.url.replace("//", "//user:secret@"))
    found = nc.connected_url.netloc.removesuffix(f"127.0.0.1:{server.port}")
    await nc.close()
    return str(found)


@shows("`reconnect_to_server_handler` in `connect`", theirs=False, ours=True)
async def handler_at_first(package: Any, server: Server) -> bool:
    """Whether it is called when the first attempt has failed."""
    calls: list[int] = []

    def choose(servers: list[Any], info: dict[str, Any]) -> Any:
        calls.append(len(servers))
        return servers[0], 0

    async with FaultProxy(server.host, server.port) as proxy:
        proxy.refuse()
        log, nc = CallbackLog(), package.NATS()
        options = {"reconnect_to_server_handler": choose, **FAST, **log.callbacks()}
        connecting = asyncio.create_task(nc.connect(proxy.url, **options))
        await until(lambda: bool(log.errors))
        await proxy.allow()
        await connecting
        await nc.close()
    return bool(calls)


@shows("`reconnect_to_server_handler` that raises", theirs=3, ours=1)
async def handler_raises(package: Any, server: Server) -> int:
    """How often it is called until a connection is back, if it raises twice."""
    calls: list[int] = []
    log, nc = CallbackLog(), package.NATS()

    def choose(servers: list[Any], info: dict[str, Any]) -> Any:
        calls.append(len(servers))
        if len(calls) < 3:
            raise ValueError("raised by the handler")
        return servers[0], 0

    await nc.connect(server.url, reconnect_to_server_handler=choose, **FAST, **log.callbacks())
    calls.clear()
    await nc.force_reconnect()
    await log.until("reconnected_cb")
    await nc.close()
    return len(calls)


@shows("`last_error` after a reconnect", theirs="ConnectionRefusedError", ours="NoneType")
async def last_error(package: Any, server: Server) -> str:
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        nc = await package.connect(proxy.url, max_reconnect_attempts=-1, **FAST, **log.callbacks())
        proxy.refuse()
        proxy.cut()
        await until(lambda: sum(isinstance(error, ConnectionRefusedError) for error in log.errors) > 2)
        await proxy.allow()
        await log.until("reconnected_cb")
        found = nc.last_error
        await nc.close()
    return type(found).__name__


@shows("`flush()` while the client reconnects", theirs="", ours="FlushTimeoutError")
async def flush_offline(package: Any, server: Server) -> str:
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        nc = await package.connect(proxy.url, **FAST, **log.callbacks())
        proxy.refuse()
        proxy.cut()
        await log.until("disconnected_cb")
        error = await raised(nc.flush(timeout=0.1))
        await nc.close()
    return error


@shows(
    "`close()` in an outage, with data that was not sent",
    theirs=("ConnectionResetError", False),
    ours=("", True),
)
async def close_offline(package: Any, server: Server) -> tuple[str, bool]:
    """What it raises, and whether it is told."""
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        nc = await package.connect(proxy.url, **FAST, **log.callbacks())
        proxy.refuse()
        proxy.cut()
        await log.until("disconnected_cb")
        await nc.publish("s")
        return await raised(nc.close()), "closed_cb" in log.names


@shows("Calls that wait for a reply when the client is closed", theirs="TimeoutError", ours="ConnectionClosedError")
async def closed_while_waiting(package: Any, server: Server) -> str:
    nc = await package.connect(server.url)
    await nc.subscribe("silent")
    request = asyncio.create_task(raised(nc.request("silent", timeout=2)))
    await nc.flush()
    await nc.close()
    return await request


@shows("`close()` and `drain()`", theirs="waits", ours="ends")
async def close_ends(package: Any, server: Server) -> str:
    """What ``close`` does when the server reads nothing any more."""
    async with FaultProxy(server.host, server.port) as proxy:
        nc = await package.connect(proxy.url, pending_size=2**30)
        proxy.stall()
        publishing = [asyncio.create_task(raised(nc.publish("s", b"x" * 2**20))) for _ in range(40)]
        await asyncio.wait(publishing[:1])
        closing = asyncio.create_task(nc.close())
        done, _ = await asyncio.wait([closing], timeout=8)
        proxy.heal()
        await asyncio.wait([closing, *publishing])
    return "ends" if done else "waits"


class Names(logging.Handler):
    """The names of the loggers that are used."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.names.add(record.name)


@shows("Logging", theirs={"nats.aio.client"}, ours={"natsproto"})
async def logged(package: Any, server: Server) -> set[str]:
    """The loggers that tell of a callback that raises."""
    handler = Names()
    logging.getLogger().addHandler(handler)
    try:
        nc = await package.connect(server.url)

        async def fail(msg: Any) -> None:
            raise ValueError("raised by the callback")

        await nc.subscribe("s", cb=fail)
        await nc.publish("s")
        await until(lambda: "natsproto" in handler.names or "nats.aio.client" in handler.names)
        await nc.close()
    finally:
        logging.getLogger().removeHandler(handler)
    return handler.names - {"asyncio"}


@shows(
    "Errors of the server, such as an invalid subject with `pedantic`, or an expired login",
    theirs="closed",
    ours="Error",
)
async def server_error(package: Any, server: Server) -> str:
    async with ScriptedServer() as scripted:
        log = CallbackLog()
        nc = await package.connect(scripted.url, **FAST, **log.callbacks())
        scripted.err("Invalid Subject")
        await until(lambda: nc.is_closed or bool(log.errors))
        found = "closed" if nc.is_closed else type(log.errors[0]).__name__
        await nc.close()
    return found


@shows(
    "`connect(allow_reconnect=False)` when no server answers", theirs="NoServersError", ours="ConnectionRefusedError"
)
async def no_server(package: Any, server: Server) -> str:
    nc = package.NATS()
    error = await raised(nc.connect("nats://127.0.0.1:9", allow_reconnect=False, max_reconnect_attempts=2, **FAST))
    await nc.close()
    return error


@shows("`publish()` before `connect()`", theirs="OutboundBufferLimitError", ours="ConnectionClosedError")
async def before_connect(package: Any, server: Server) -> str:
    return await raised(package.NATS().publish("a"))


@shows("`connect()` of a client that is connected", theirs=False, ours=True)
async def connected_twice(package: Any, server: Server) -> bool:
    """Whether it is refused: one of the two tasks may find that the other one reads."""
    nc = await package.connect(server.url)
    error = await raised(nc.connect(server.url))
    await raised(asyncio.wait_for(nc.close(), 5))
    return error == "Error"


@shows("`last_error` after a drain that took too long", theirs="NoneType", ours="DrainTimeoutError")
async def late_drain(package: Any, server: Server) -> str:
    started, never = asyncio.Event(), asyncio.Event()

    async def handler(msg: Any) -> None:
        started.set()
        await never.wait()

    nc = await package.connect(server.url, drain_timeout=0.01)
    await nc.subscribe("a", cb=handler)
    await nc.publish("a")
    await started.wait()
    await nc.drain()
    return type(nc.last_error).__name__


@shows("Credentials without a seed", theirs="TypeError", ours="InvalidUserCredentialsError")
async def no_seed(package: Any, server: Server) -> str:
    operator = Operator()
    creds = operator.account.user().creds.partition("-----BEGIN USER NKEY SEED")[0]
    async with run_server(config=operator.config()) as other:
        nc = package.NATS()
        error = await raised(nc.connect(other.url, user_credentials=raw(package, creds), allow_reconnect=False))
        await nc.close()
    return error


def raw(package: Any, creds: str) -> Any:
    return importlib.import_module(f"{package.__name__}.aio.client").RawCredentials(creds)
