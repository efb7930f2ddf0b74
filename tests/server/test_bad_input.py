"""Bad arguments are refused in words before a byte is written, and the connection goes on.

The corpus is tests.kit.arguments. What was written is read from a recording proxy between the client and a
real server, so nothing depends on what the server makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

import natsproto
from natsproto._client import Client
from natsproto.errors import NatsError
from natsproto.testing import Direction, FaultProxy, Server, run_server
from tests.kit.arguments import ACCEPTED, REFUSED, Argument, Target
from tests.server.helpers import also_uvloop, client, until

HARMLESS = (b"PING\r\n", b"PONG\r\n")
"""What a client may write on its own while it refuses an argument."""

REPORTED = (b"SUB silent.", b"UNSUB ")
"""What the calls of the corpus do on their own before they come to the bad argument."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server() as server:
        yield server


CALLS = [a for a in REFUSED if not a.fresh]
CONNECTS = [argument for argument in REFUSED if argument.fresh]


def lines(written: bytes) -> list[bytes]:
    """What was written, without what a client may write at any time."""
    return [
        line
        for line in written.splitlines(keepends=True)
        if line not in HARMLESS and not line.startswith(REPORTED) and not line.startswith(b"CONNECT ")
    ]


async def refusal(argument: Argument, target: Target) -> BaseException:
    """What the call raised; fails if it did not, or not at once."""
    try:
        async with asyncio.timeout(5):
            result = await argument.call(target)
    except Exception as exc:
        return exc
    if argument.fresh and isinstance(result, Client):
        await result.close()
    raise AssertionError(f"accepted, and returned {result!r}")


def judge(argument: Argument, error: BaseException) -> list[str]:
    """What is wrong with the way in which it was refused."""
    faults = []
    if not isinstance(error, argument.expected):
        wanted = " or ".join(kind.__name__ for kind in argument.expected)
        faults.append(f"{type(error).__name__} instead of {wanted}: {error}")
    if not str(error).strip():
        faults.append(f"{type(error).__name__} without a word")
    if len(str(error)) > 2000:
        faults.append(f"a sentence of {len(str(error))} characters")
    if any(char in str(error) for char in "\r\n\0"):
        faults.append(f"control characters in the sentence: {str(error)!r}")
    return faults


@also_uvloop
async def test_bad_argument_is_refused_before_writing(server: Server) -> None:
    faults: dict[str, list[str]] = {}
    async with FaultProxy(server.host, server.port, record=True) as proxy, client(proxy.url) as nc:
        target = Target(nc, natsproto.connect, server.url)
        await nc.flush()
        seen = proxy.link.seen[Direction.TO_SERVER]
        for argument in CALLS:
            before = len(seen)
            try:
                found = judge(argument, await refusal(argument, target))
            except AssertionError as exc:
                found = [str(exc)]
            await nc.flush(timeout=5)
            if written := lines(bytes(seen[before:])):
                found.append(f"wrote {written[:3]}")
            if found:
                faults[argument.name] = found
        assert faults == {}
        assert len(CALLS) > 300
        assert proxy.accepted == 1, "the connection was never lost"
        assert nc.stats.reconnects == 0
        await works(nc)


@also_uvloop
async def test_bad_option_is_refused_before_dialling(server: Server) -> None:
    faults: dict[str, list[str]] = {}
    async with FaultProxy(server.host, server.port, record=True) as proxy, client(proxy.url) as nc:
        target = Target(nc, natsproto.connect, proxy.url)
        for argument in CONNECTS:
            try:
                found = judge(argument, await refusal(argument, target))
            except AssertionError as exc:
                found = [str(exc)]
            if found:
                faults[argument.name] = found
        assert faults == {}
        assert len(CONNECTS) > 150
        assert proxy.accepted == 1, "nothing but the first connection was dialled"


@pytest.mark.parametrize("argument", ACCEPTED, ids=str)
@also_uvloop
async def test_what_looks_odd_and_is_right_is_accepted(server: Server, argument: Argument) -> None:
    async with client(server.url) as nc:
        result = await argument.call(Target(nc, natsproto.connect, server.url))
        if argument.fresh:
            assert isinstance(result, Client)
            await works(result)
            await result.close()
        await nc.flush(timeout=5)
        await works(nc)
        assert nc.stats.reconnects == 0


async def works(nc: Client) -> None:
    async with nc.subscribe("works") as sub:
        await nc.publish("works", b"ok", headers={"k": "v"})
        assert (await sub.next(timeout=5)).data == b"ok"
    await nc.subscribe("echo", cb=lambda message: message.respond(message.data), max_messages=1)
    assert (await nc.request("echo", b"ok", timeout=5)).data == b"ok"


@also_uvloop
async def test_bad_argument_is_refused_in_an_outage(server: Server) -> None:
    """What waits for the next connection must not hold what would break it."""
    async with FaultProxy(server.host, server.port, record=True) as proxy, client(proxy.url) as nc:
        target = Target(nc, natsproto.connect, server.url)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not nc.is_connected)
        slow = ("request", "flush_timeout", "next_timeout", "silent")
        for argument in CALLS:
            if not argument.name.startswith(slow):
                assert judge(argument, await refusal(argument, target)) == [], argument.name
        assert nc.stats.buffered_msgs == 0
        await proxy.allow()
        await nc.flush(timeout=10)
        await works(nc)


@also_uvloop
async def test_the_sentence_names_the_offender_and_the_rule(server: Server) -> None:
    async with client(server.url) as nc:
        for call, offender, rule in (
            (lambda: nc.publish("a b"), "'a b'", "spaces"),
            (lambda: nc.publish("a..b"), "'a..b'", "empty token"),
            (lambda: nc.publish("a.*"), "'a.*'", "wildcard"),
            (lambda: nc.publish("a", reply="x y"), "reply subject 'x y'", "spaces"),
            (lambda: nc.request("a\r\nb"), r"'a\r\nb'", "control"),
            (lambda: nc.publish("a", headers={"k:": "v"}), "'k:'", "header name"),
            (lambda: nc.publish("a", headers={"k": "v\r\nx: y"}), r"'v\r\nx: y'", "CR, LF"),
        ):
            with pytest.raises(NatsError) as error:
                await call()
            assert offender in str(error.value)
            assert rule in str(error.value)
        for subject, queue, offender, rule in (
            ("a.>.b", None, "'a.>.b'", "last"),
            ("a", "q q", "queue group 'q q'", "spaces"),
            ("a", "", "queue group ''", "empty"),
        ):
            with pytest.raises(NatsError) as error:
                nc.subscribe(subject, queue=queue)
            assert offender in str(error.value)
            assert rule in str(error.value)
        with pytest.raises(TypeError, match="payload must be bytes, not str"):
            await nc.publish("a", "text")  # type: ignore[arg-type]
        with suppress(NatsError):
            await nc.request("nobody", timeout=1)
        await works(nc)


@also_uvloop
async def test_a_refused_subscription_leaves_no_trace(server: Server) -> None:
    async with client(server.url) as nc:
        for subject in ("", "a b", "a..b", ">.a", "a\r\n"):
            with pytest.raises(NatsError):
                nc.subscribe(subject)
        with pytest.raises(ValueError, match="slow_policy"):
            nc.subscribe("a", slow_policy="whatever")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_messages"):
            nc.subscribe("a", max_messages=0)
        assert nc._engine.registry.subscriptions == []
        assert len(nc._engine.registry.table) == 0
