"""Every feature that some server in use lacks, and those that all have: how it is used, and since when it works.

Owns the list, of which docs/support.md has a table (``python -m tests.kit.features`` prints it), and the count of what
arrives at the server: a proxy reads every message that the client under test publishes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import natsproto
from natsproto import Client
from natsproto.jetstream import JetStream
from natsproto.jetstream._values.features import STREAM_FEATURES
from natsproto.testing import Direction, FaultProxy, run_server
from tests.kit.servers import NEWEST, binary_of

Series = tuple[int, int]
QUESTIONS = ("$JS.API.INFO", "$JS.API.STREAM.INFO.")
"""Requests that change nothing: for the level of the server that has JetStream, and for what is to be changed."""


class FeatureGround:
    """A server with a stream S of the subjects s.>, which ``admin`` prepares, and the client that uses the feature."""

    def __init__(self, series: Series, admin: Client, nc: Client, proxy: FaultProxy) -> None:
        self.series, self.nc, self.js = series, nc, nc.jetstream()
        self.admin: JetStream = admin.jetstream()
        self._plain, self._proxy, self._begun = admin, proxy, 0

    async def stream(self, **fields: Any) -> None:
        """Create S, without the fields that this server does not know."""
        known = {name: value for name, value in fields.items() if self.knows(STREAM_FEATURES.get(name, ("2.10", 0))[0])}
        config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True, **known}
        reply = await self._plain.request("$JS.API.STREAM.CREATE.S", json.dumps(config).encode())
        assert "error" not in json.loads(reply.data), reply.data

    async def consumer(self, **fields: Any) -> None:
        """Create the consumer C of S, in the same way as the stream."""
        known = {name: value for name, value in fields.items() if self.knows("2.11")}
        config = {"durable_name": "C", "ack_policy": "explicit", **known}
        body = json.dumps({"stream_name": "S", "config": config}).encode()
        reply = await self._plain.request("$JS.API.CONSUMER.CREATE.S.C", body)
        assert "error" not in json.loads(reply.data), reply.data

    def knows(self, version: str) -> bool:
        return self.series >= series_of(version)

    async def fill(self, *subjects: str) -> None:
        for subject in subjects:
            await self.admin.publish(subject, subject.encode())

    async def last(self, subject: str) -> Any:
        return await (await self.admin.stream("S")).get_last_message(subject)

    async def delivered(self, subject: str) -> bool:
        """Whether a schedule publishes to the subject within some seconds."""
        for _ in range(100):
            state = (await (await self.admin.stream("S")).info(subjects_filter=subject)).state
            if state.subjects.get(subject):
                return True
            await asyncio.sleep(0.05)
        return False

    def begin(self) -> None:
        """Count from here on."""
        self._begun = len(self._bytes())

    def _bytes(self) -> bytes:
        return bytes(self._proxy.history[-1].seen[Direction.TO_SERVER])

    def arrived(self) -> list[str]:
        """The subjects of all messages that the server got since, in order."""
        return [*published_subjects(self._bytes()[self._begun :])]


def published_subjects(sent: bytes) -> Iterator[str]:
    """The subjects of the messages in what a client has sent."""
    while sent:
        line, _, sent = sent.partition(b"\r\n")
        words = line.split()
        if words and words[0] in (b"PUB", b"HPUB"):
            yield words[1].decode()
            sent = sent[int(words[-1]) + 2 :]


Use = Callable[[FeatureGround], AsyncGenerator[None]]


class Feature(NamedTuple):
    """A feature: its name in the table, its group, the first series that has it, and its use. What comes before the
    ``yield`` prepares the server; what comes after uses the feature, and asserts what it does.
    """

    name: str
    group: str
    since: Series
    use: Use


_FEATURES: list[Feature] = []


def every_feature() -> list[Feature]:
    for name in ("feature_uses", "feature_stores"):
        importlib.import_module(f"tests.kit.{name}")
    return _FEATURES


def series_of(version: str) -> Series:
    major, minor = version.split(".")
    return int(major), int(minor)


def feature(name: str, group: str, since: str) -> Callable[[Use], Use]:
    def add(use: Use) -> Use:
        _FEATURES.append(Feature(name, group, series_of(since), use))
        return use

    return add


@asynccontextmanager
async def world_of(series: str) -> AsyncGenerator[FeatureGround]:
    """A fresh server of the series, with nothing in it."""
    binary = await asyncio.to_thread(binary_of, series)
    async with (
        run_server(jetstream=True, binary=binary) as server,
        FaultProxy(server.host, server.port, record=True) as proxy,
        natsproto.connect(server.url) as admin,
        natsproto.connect(proxy.url) as nc,
    ):
        version = ".".join(nc.server_info.version.split(".")[:2])
        assert series in (NEWEST, version)
        yield FeatureGround(series_of(version), admin, nc, proxy)


def feature_table() -> str:
    """The table of docs/support.md."""
    by_group: dict[str, dict[Series, list[str]]] = {}
    for one in every_feature():
        by_group.setdefault(one.group, {}).setdefault(one.since, []).append(one.name)
    lines = ["| part | nats-server | features |", "|---|---|---|"]
    for group, found in by_group.items():
        for since, names in sorted(found.items()):
            lines.append(f"| {group} | {since[0]}.{since[1]} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- what the features do


if __name__ == "__main__":
    print(importlib.import_module("tests.kit.features").table(), end="")  # the module that those of uses import
