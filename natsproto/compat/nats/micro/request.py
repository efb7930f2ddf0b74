"""``nats.micro.request``: the requests that an endpoint handles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from natsproto.compat._options import clean_headers
from natsproto.compat._translate import translate_errors
from natsproto.compat.nats.aio.msg import Msg as Msg
from natsproto.compat.nats.aio.msg import headers_of
from natsproto.service import Request as Received

ERROR_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"


class Request:
    def __init__(self, received: Received) -> None:
        self._received = received

    @property
    def subject(self) -> str:
        return self._received.subject

    @property
    def headers(self) -> dict[str, str] | None:
        return headers_of(self._received)

    @property
    def data(self) -> bytes:
        return self._received.data

    @translate_errors
    async def respond(self, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if not self._received.has_reply:
            raise ValueError("no reply subject set")
        await self._received.respond(data, headers=headers and clean_headers(headers))

    async def respond_error(
        self, code: str, description: str, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        text = " ".join(description.replace("\0", " ").split())[:1024]  # as natsproto's own services say it
        said = {ERROR_CODE_HEADER: code, ERROR_HEADER: text}
        await self.respond(data, headers={**(headers or {}), **said})


Handler = Callable[[Request], Awaitable[None]]


@dataclass
class ServiceError(Exception):
    """An exception that a handler raises to respond with an error."""

    code: str
    description: str

    def __repr__(self) -> str:
        return f"{self.code}:{self.description}"

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "description": self.description}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ServiceError:
        return cls(code=data.get("code", ""), description=data.get("description", ""))
