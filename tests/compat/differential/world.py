"""The server of the kit: an account for each package, and what the server says of its clients and streams.

Owns the proxies. The server lives as long as the tests that use it; an account is emptied before each sequence.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import natsproto
from natsproto import Headers
from natsproto.jetstream._codec import encode
from natsproto.testing import FaultProxy, Server, run_server
from tests.compat.differential.observe import consumer_name, seen, text

USERS = {"theirs": "t", "ours": "o"}
CONFIG = (
    "jetstream {}\nno_auth_user: sys\naccounts {\n"
    + "".join(
        f"  {name} {{ jetstream: enabled, users: [{{ user: {user}, password: p }}] }}\n" for name, user in USERS.items()
    )
    + "  $SYS { users: [{ user: sys, password: p }] }\n}\n"
)
CONNECTION_FIELDS = ("name", "subscriptions", "in_msgs", "out_msgs", "verbose", "pedantic")


class World:
    """A running server with both accounts."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def clean(self) -> None:
        """Delete everything in both accounts."""
        for user in USERS.values():
            async with natsproto.connect(self.server.url, user=user, password="p") as nc:
                js = nc.jetstream()
                for name in [name async for name in js.stream_names()]:
                    await js.delete_stream(name)

    async def connections(self, account: str) -> list[Any]:
        """The clients of an account with their subscriptions, as ``/connz`` lists them."""
        listed = await self._get(f"connz?acc={account}&subs=detail")
        found = []
        for one in listed["connections"] or []:
            listed_subs = one.get("subscriptions_list_detail") or []
            subs = [(text(sub["subject"]), sub.get("qgroup", ""), sub.get("max", 0)) for sub in listed_subs]
            # A client subscribes the inbox of its requests once; when is its own matter.
            subs = sorted(sub for sub in subs if not sub[0].startswith("<"))
            found.append({"name": one.get("name", ""), "subs": subs})
        return sorted(found, key=str)

    async def wait_disconnected(self, account: str) -> None:
        """Wait until the server has no client of the account any more."""
        async with asyncio.timeout(5):
            while await self.connections(account):  # noqa: ASYNC110  # a server tells nobody
                await asyncio.sleep(0.02)

    async def subscriptions(self, account: str) -> list[Any]:
        """The subjects of an account in ``/subsz``."""
        listed = await self._get(f"subsz?acc={account}&subs=1")
        subjects = [text(one["subject"]) for one in listed.get("subscriptions_list") or []]
        return sorted(subject for subject in subjects if not subject.startswith(("<", "$")))

    async def streams(self, user: str) -> list[Any]:
        """The streams with their messages and consumers."""
        found = []
        async with natsproto.connect(self.server.url, user=user, password="p") as nc:
            js = nc.jetstream()
            for info in sorted([info async for info in js.streams()], key=lambda info: info.config.name):
                stream = await js.stream(info.config.name)
                consumers = sorted([one async for one in stream.consumers()], key=lambda one: one.name)
                messages = [message async for message in stream.get_batch()] if info.state.messages else []
                stored = [
                    [one.seq, text(one.subject), seen(bytes(one.data)), stored_headers(one.headers)] for one in messages
                ]
                found.append(
                    {
                        "config": seen(without_noise(encode(info.config))),
                        "state": [info.state.messages, info.state.first_seq, info.state.last_seq],
                        "messages": stored,
                        "consumers": [
                            [
                                seen(without_noise(encode(one.config))),
                                [one.num_pending, one.num_ack_pending, one.num_redelivered, one.delivered.stream_seq],
                                one.ack_floor.stream_seq,
                            ]
                            for one in consumers
                        ],
                    }
                )
        return found

    async def _get(self, path: str) -> Any:
        def read() -> Any:
            with urllib.request.urlopen(f"{self.server.monitoring_url}/{path}", timeout=5) as reply:
                return json.load(reply)

        return await asyncio.to_thread(read)


def stored_headers(headers: Headers) -> list[Any]:
    return sorted([name, text(value)] for name, value in headers.pairs())


def without_noise(config: dict[str, Any]) -> dict[str, Any]:
    config = {name: value for name, value in config.items() if name != "metadata"}
    return config | {"name": consumer_name(str(config["name"]))} if "name" in config else config


@asynccontextmanager
async def running_world() -> AsyncIterator[World]:
    async with run_server(config=CONFIG) as server:
        yield World(server)


@asynccontextmanager
async def proxied(world: World) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(world.server.host, world.server.port) as proxy:
        yield proxy
