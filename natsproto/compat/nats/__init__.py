"""nats-py's API on natsproto: ``import natsproto.compat.nats as nats``, or see ``natsproto.compat.install``."""

from __future__ import annotations

from typing import Any

from natsproto.compat._options import hide_secrets
from natsproto.compat.nats import errors, js, micro
from natsproto.compat.nats.aio.client import Client as NATS

__all__ = ["NATS", "connect", "errors", "js", "micro"]


@hide_secrets
async def connect(servers: str | list[str] = "nats://localhost:4222", **options: Any) -> NATS:
    """Connect to NATS. The options are those of ``Client.connect``."""
    client = NATS()
    await client.connect(servers, **options)
    return client
