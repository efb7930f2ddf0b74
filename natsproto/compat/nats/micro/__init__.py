"""``nats.micro``: services."""

from __future__ import annotations

from typing import Any

from natsproto.compat.nats.aio.client import Client
from natsproto.compat.nats.micro.request import Handler, Request
from natsproto.compat.nats.micro.service import Service, ServiceConfig

__all__ = ["Handler", "Request", "Service", "ServiceConfig", "add_service"]


async def add_service(nc: Client, config: ServiceConfig | None = None, **kwargs: Any) -> Service:
    service = Service(nc, config.evolve(**kwargs) if config is not None else ServiceConfig(**kwargs))
    await service.start()
    return service
