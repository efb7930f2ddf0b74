"""Three users of one account: a client, a service and a stranger, with the permissions that such users typically have.

Owns the server's configuration, and what a stranger does with the reply subjects that it has seen.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import natsproto
from natsproto import Client, Message
from natsproto._core.socket.wire import RANDOM_BITS
from natsproto.testing import Server, run_server

SEEN = ("svc.>", "svc.seen", "svc.*", "_INBOX.>")
"""Subjects in which a stranger meets reply subjects; he is not subscribed to those of the client's other requests."""

WRITABLE = ("_INBOX.>", ">", "_INBOX.*.*", "svc.>")
"""Subjects to which he may publish: in three of four draws to every inbox."""


class Stranger(NamedTuple):
    """The permissions of a stranger."""

    subscribe: tuple[str, ...]
    publish: tuple[str, ...]

    @classmethod
    def drawn(cls, chance: random.Random) -> Stranger:
        """Draw permissions: he sees some reply subjects, and nearly always may publish to inboxes."""
        seen = tuple(chance.sample(SEEN, chance.randint(1, len(SEEN))))
        return cls(seen, tuple(chance.sample(WRITABLE, chance.randint(1, 2))))


class Peers(NamedTuple):
    """The server and the three users."""

    server: Server
    client: Client
    service: Client
    stranger: Client


async def publish_literally(server: Server, subject: str, payload: bytes = b"", headers: bytes = b"") -> None:
    """Publish on a subject that the client refuses, such as ``$KV.b.>``, as any user can over a socket; the
    server objects to some of them and stores them nevertheless.
    """
    block = b"NATS/1.0\r\n%b\r\n" % headers
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    writer.write(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode(), len(block), len(block + payload), block, payload))
    writer.write(b"PING\r\n")
    async with asyncio.timeout(10):
        async for line in reader:
            if line.startswith(b"PONG"):
                break
    writer.close()


def _permissions(stranger: Stranger) -> str:
    allowed = {"subscribe": {"allow": stranger.subscribe}, "publish": {"allow": stranger.publish}}
    return json.dumps(allowed)


@asynccontextmanager
async def peers(stranger: Stranger) -> AsyncIterator[Peers]:
    """Run a server with JetStream and connect the three."""
    config = f"""
    jetstream {{}}
    accounts {{ A {{ jetstream: enabled, users: [
      {{ user: client, password: x }},
      {{ user: service, password: x }},
      {{ user: stranger, password: x, permissions: {_permissions(stranger)} }},
    ] }} }}
    """
    with run_server(jetstream=True, config=config) as server:
        async with (
            natsproto.connect(server.url, user="client", password="x") as client,
            natsproto.connect(server.url, user="service", password="x") as service,
            natsproto.connect(server.url, user="stranger", password="x") as bad,
        ):
            yield Peers(server, client, service, bad)


def following(seen: Sequence[str], chance: random.Random) -> list[str]:
    """Return the reply subjects that may follow those that were seen: the next numbers, with any random part."""
    guesses: list[str] = []
    for subject in seen:
        inbox, _, token = subject.rpartition(".")
        if not token.isdecimal():
            continue
        number, bits = int(token) >> RANDOM_BITS, int(token) % 2**RANDOM_BITS
        for ahead in range(1, 21):
            following_number = number + ahead << RANDOM_BITS
            guesses += [
                f"{inbox}.{int(token) + ahead}",
                f"{inbox}.{ahead}",
                f"{inbox}.{number + ahead}",
                f"{inbox}.{following_number}",
                f"{inbox}.{following_number | bits}",
                f"{inbox}.{following_number | bits + ahead}",
                f"{inbox}.{following_number | chance.getrandbits(RANDOM_BITS)}",
            ]
    return guesses


def following_ids(seen: Sequence[str], chance: random.Random) -> list[str]:
    """Return the automatic message ids that may follow those that were seen."""
    guesses: list[str] = []
    for prefix, number, *rest in (msg_id.split("-") for msg_id in seen):
        bits = int(rest[0]) if rest else 0
        for ahead in range(1, 21):
            following_number = f"{prefix}-{int(number) + ahead}"
            guesses += [
                following_number,
                f"{following_number}-{bits}",
                f"{following_number}-{bits + ahead}",
                f"{following_number}-{chance.getrandbits(RANDOM_BITS)}",
            ]
    return guesses


class Ears:
    """The reply subjects that a stranger sees: those of messages, and the subjects of replies to inboxes."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.ids: list[str] = []

    def __call__(self, message: Message) -> None:
        if message.reply is not None:
            self.seen.append(message.reply)
        if message.subject.startswith("_INBOX."):
            self.seen.append(message.subject)
        if message.has_headers and (msg_id := message.headers.get("Nats-Msg-Id")):
            self.ids.append(msg_id)
