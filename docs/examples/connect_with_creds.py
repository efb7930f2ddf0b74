"""Credentials that rotate: a creds file is read again at every attempt to connect.

Run it with ``python docs/examples/connect_with_creds.py`` where ``natsproto[nkeys,server]`` is installed. The server
here has accounts with JWTs, like a server set up with ``nsc``; the first half of this file replaces ``nsc``.
"""

import asyncio
import base64
import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import nkeys  # type: ignore[import-untyped]

import natsproto
from natsproto import Disconnected, Event, Reconnected
from natsproto.testing import run_server


class Key:
    """A key pair of an operator, account or user."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self.pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self.pair.public_key.decode()

    def claim(self, subject: str, name: str, nats: dict[str, object], expires: int = 0) -> str:
        """A JWT about ``subject``, signed with this key (ADR-14)."""
        body = {"jti": "", "iat": int(time.time()), "iss": self.public, "name": name, "sub": subject, "nats": nats}
        if expires:
            body["exp"] = expires
        body["jti"] = base64.b32encode(hashlib.sha256(compact(body)).digest()).rstrip(b"=").decode()
        signed = url64(compact({"typ": "JWT", "alg": "ed25519-nkey"})) + "." + url64(compact(body))
        return signed + "." + url64(self.pair.sign(signed.encode()))


def compact(value: object) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def url64(data: bytes) -> str:
    """Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


operator, account = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
unlimited: dict[str, object] = {"subs": -1, "data": -1, "payload": -1}


def server_config() -> str:
    """A server that trusts the operator and knows one account."""
    limits = {**unlimited, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    trusted = operator.claim(operator.public, "operator", {"type": "operator", "version": 2})
    known = operator.claim(account.public, "shop", {"limits": limits, "type": "account", "version": 2})
    return f"operator: {trusted}\nresolver: MEMORY\nresolver_preload: {{ {account.public}: {known} }}"


def issue_creds(path: Path, name: str, seconds: int) -> None:
    """Write a creds file for a user whose JWT is valid for this many seconds."""
    user = Key(nkeys.PREFIX_BYTE_USER)
    nats: dict[str, object] = {"pub": {}, "sub": {}, **unlimited, "type": "user", "version": 2}
    jwt = account.claim(user.public, name, nats, int(time.time()) + seconds)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )


# ---------------------------------------------------------------- what an application does


async def main() -> None:
    """Connect with a JWT of two seconds, and continue after its expiry with the renewed file."""
    creds = Path(tempfile.mkdtemp()) / "shop.creds"
    issue_creds(creds, "monday", seconds=2)
    back = asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, Disconnected):
            print("disconnected:", event.cause)
        if isinstance(event, Reconnected):
            print("connected again")
            back.set()

    async with run_server(config=server_config()) as server:
        async with natsproto.connect(server.url, creds=creds, on_event=hear) as nc:
            print("connected")
            issue_creds(creds, "tuesday", seconds=3600)  # the file is rotated; no effect yet
            await back.wait()
            await nc.flush()
        print("the application closed the client:", await nc.wait_closed() is None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # the warning about the expiry is expected here
    asyncio.run(main())

# prints: connected
# prints: disconnected: 127.0.0.1:... rejected the credentials: User Authentication Expired
# prints: connected again
# prints: the application closed the client: True
