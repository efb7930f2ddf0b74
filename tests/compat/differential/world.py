"""The server of the kit: an account for each package, and what the server says of its clients and streams.

Owns the proxies. The server lives as long as the tests that use it; an account is emptied before each sequence.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import natsproto
from natsproto import Headers
from natsproto.jetstream import ConsumerInfo
from natsproto.jetstream._values.codec import encode
from natsproto.testing import Server, run_server
from tests.compat.differential.observe import consumer_name, seen, text
from tests.compat.scenarios import OURS, THEIRS, delete_streams

USERS = {THEIRS: "t", OURS: "o"}
"""The user of each package, whose account has the same name."""
CONFIG = (
    "jetstream {}\nno_auth_user: sys\naccounts {\n"
    + "".join(
        f"  {name} {{ jetstream: enabled, users: [{{ user: {user}, password: p }}] }}\n" for name, user in USERS.items()
    )
    + "  $SYS { users: [{ user: sys, password: p }] }\n}\n"
)
INBOX_KEPT_S = 2.5
"""Seconds in which a client must have ended the inboxes that it does not use."""


class TwoAccounts:
    """A running server with both accounts."""

    def __init__(self, server: Server, store: Path) -> None:
        self.server, self._store = server, store

    async def clean(self) -> None:
        """Delete everything in both accounts."""
        for user in USERS.values():
            await delete_streams(self.server.url, user=user, password="p")
        await self.removed()

    async def removed(self) -> None:
        """Wait until the server has removed the files of deleted streams, which it does in the background.

        Until then it fails to remove those of another stream of this name, and the next one has their messages.
        """
        while self.server.running and any(self._store.glob("jetstream/*/streams/.*")):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def delete_ephemeral(self, user: str) -> None:
        """Delete the consumers that the server would delete some seconds later, between two runs or during one."""
        async with natsproto.connect(self.server.url, user=user, password="p") as nc:
            js = nc.jetstream()
            for stream in [await js.stream(name) async for name in js.stream_names()]:
                for consumer in [one async for one in stream.consumers()]:
                    if not consumer.config.durable_name and consumer.config.inactive_threshold:
                        await stream.delete_consumer(consumer.name)

    async def connections(self, account: str) -> list[Any]:
        """The clients of an account with their subscriptions, as ``/connz`` lists them, but for their inboxes: which
        a client has at a time is its own matter.
        """
        return [
            {**one, "subs": [sub for sub in one["subs"] if not sub[0].startswith("<")]}
            for one in await self._connections(account)
        ]

    async def count_inboxes(self, account: str) -> int:
        """The number of inboxes, but for that of the requests, after a second: so long one may be kept for the next."""
        count = -1
        with suppress(TimeoutError):
            async with asyncio.timeout(INBOX_KEPT_S):
                while count:
                    listed = [sub[0] for one in await self._connections(account) for sub in one["subs"]]
                    count = sum(subject[0] == "<" and subject[-2:] != ">*" for subject in listed)
                    await asyncio.sleep(0.02 if count else 0)
        return count

    async def _connections(self, account: str) -> list[Any]:
        listed = await self._get(f"connz?acc={account}&subs=detail")
        found = []
        for one in listed["connections"] or []:
            listed_subs = one.get("subscriptions_list_detail") or []
            subs = sorted((text(sub["subject"]), sub.get("qgroup", ""), sub.get("max", 0)) for sub in listed_subs)
            found.append({"name": one.get("name", ""), "subs": subs})
        return sorted(found, key=str)

    async def wait_connected(self, account: str, count: int) -> None:
        """Wait until the server has noticed what has ended: it has so many clients of the account, unless one leaks."""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while len(await self.connections(account)) != count:  # noqa: ASYNC110  # a server tells nobody
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
                consumers = [one async for one in stream.consumers()]
                messages = [message async for message in stream.get_batch()] if info.state.messages else []
                stored = [
                    [one.seq, text(one.subject), seen(bytes(one.data)), stored_headers(one.headers)] for one in messages
                ]
                found.append(
                    {
                        "config": seen(without_noise(encode(info.config))),
                        "state": [info.state.messages, info.state.first_seq, info.state.last_seq],
                        "messages": stored,
                        "consumers": sorted(map(consumer_of, consumers), key=str),
                    }
                )
        return found

    async def _get(self, path: str) -> Any:
        def read() -> Any:
            with urllib.request.urlopen(f"{self.server.monitoring_url}/{path}", timeout=5) as reply:
                return json.load(reply)

        return await asyncio.to_thread(read)


def consumer_of(info: ConsumerInfo) -> list[Any]:
    return [
        seen(without_noise(encode(info.config))),
        [info.num_pending, info.num_ack_pending, info.num_redelivered, info.delivered.stream_seq],
        info.ack_floor.stream_seq,
    ]


def stored_headers(headers: Headers) -> list[Any]:
    return sorted([name, text(value)] for name, value in headers.pairs())


def without_noise(config: dict[str, Any]) -> dict[str, Any]:
    config = {name: value for name, value in config.items() if name != "metadata"}
    return config | {"name": consumer_name(str(config["name"]))} if "name" in config else config


@asynccontextmanager
async def running_world() -> AsyncIterator[TwoAccounts]:
    with tempfile.TemporaryDirectory() as store:
        async with run_server(config=CONFIG, store_dir=store) as server:
            yield TwoAccounts(server, Path(store))
