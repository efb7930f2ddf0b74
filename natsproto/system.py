"""What servers tell of themselves: the request side of the system account.

Owns the questions under ``$SYS.REQ``. The answers belong to the server's version, so their data stay as they are;
only who speaks is typed. Most questions are for users of the system account; ``user_info`` is for everybody.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import timedelta
from types import MappingProxyType
from typing import Literal, TypeAlias

from natsproto._async_hints import items
from natsproto._core.connection import Connection
from natsproto._value import Value
from natsproto.account_events import AccountEvents
from natsproto.errors import ServerError
from natsproto.protocol.frames import Message

ServerKind: TypeAlias = Literal[
    "STATSZ", "VARZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ",
    "PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ", "IDZ",
]  # fmt: skip
"""What a server can be asked for."""

AccountKind: TypeAlias = Literal["CONNZ", "LEAFZ", "SUBSZ", "JSZ", "INFO", "CONNS", "STATZ"]
"""What servers can be asked for about an account."""


class SystemReply(Value):
    """What one server answered: who it is, and ``data`` as its version has it."""

    server_name: str
    server_id: str
    cluster: str
    version: str
    data: Mapping[str, object]


class System:
    """Asks the servers of the cluster. Made by ``Client.system``.

    ``max_wait`` and ``stall`` are in seconds: how long answers are waited for, and how long without another one.
    ``filters`` are the fields of the question as the server documents them (``limit``, ``account`` …).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @items
    def servers(
        self,
        /,
        kind: ServerKind = "STATSZ",
        *,
        max_wait: float | timedelta = 2.0,
        stall: float | timedelta | None = 0.5,
        **filters: object,
    ) -> AsyncGenerator[SystemReply]:
        """Yields what every server of the cluster answers to this.

        NoResponders when this is not the system account; ServerError when a server refuses the question;
        PermissionDenied and what else ``request_many`` raises.
        """
        replies = self._connection.request_many(
            f"$SYS.REQ.SERVER.PING.{kind}", _body(filters), max_wait=max_wait, stall=stall
        )
        return _read(replies)

    async def server(
        self,
        /,
        server_id: str,
        kind: ServerKind = "STATSZ",
        *,
        timeout: float | timedelta | None = None,
        **filters: object,
    ) -> SystemReply:
        """What one server answers. NoResponders when there is no such server, or this is not the system account."""
        subject = f"$SYS.REQ.SERVER.{server_id}.{kind}"
        return _reply(await self._connection.request(subject, _body(filters), timeout=timeout))

    @items
    def account(
        self,
        /,
        account: str,
        kind: AccountKind = "INFO",
        *,
        max_wait: float | timedelta = 2.0,
        stall: float | timedelta | None = 0.5,
        **filters: object,
    ) -> AsyncGenerator[SystemReply]:
        """Yields what every server that knows the account says of it; raises what ``servers`` raises."""
        subject = f"$SYS.REQ.ACCOUNT.{account}.{kind}"
        return _read(self._connection.request_many(subject, _body(filters), max_wait=max_wait, stall=stall))

    def events(self, account: str = "*") -> AccountEvents:
        """Clients of an account (its name or public key; all) that connect, leave or are refused: enter it.

        PermissionDenied ends it for users who may not; InvalidSubject for what is no name.
        """
        return AccountEvents(self._connection, account)

    async def user_info(self, *, timeout: float | timedelta | None = None) -> SystemReply:
        """What the server knows of this connection's own user: account, permissions, expiry. For every user."""
        return _reply(await self._connection.request("$SYS.REQ.USER.INFO", timeout=timeout))


async def _read(replies: AsyncGenerator[Message]) -> AsyncGenerator[SystemReply]:
    async with aclosing(replies):
        async for message in replies:
            yield _reply(message)


def _body(filters: Mapping[str, object]) -> bytes:
    return json.dumps(filters).encode() if filters else b""


def _reply(message: Message) -> SystemReply:
    try:
        fields = json.loads(message.data.decode())
        if not isinstance(fields, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as exc:
        raise ServerError(f"an answer that cannot be read: {exc}") from None
    error = fields.get("error")
    if isinstance(error, dict):
        raise ServerError(str(error.get("description", error)))
    server, data = fields.get("server"), fields.get("data")
    if not isinstance(server, dict):
        server = fields  # IDZ says nothing but who it is
    if not isinstance(data, dict):
        # Some answers have nothing around them (CONNS of an account), some are a value alone.
        data = {key: value for key, value in fields.items() if key != "server"} if data is None else {"value": data}
    return SystemReply(
        server_name=str(server.get("name", "")),
        server_id=str(server.get("id", "")),
        cluster=str(server.get("cluster", "")),
        version=str(server.get("ver", "")),
        data=MappingProxyType(data),
    )
