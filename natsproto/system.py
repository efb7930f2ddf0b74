"""Queries of the servers' monitoring data through the system account.

Owns the requests under ``$SYS.REQ``. The data of a response depend on the server's version and stay untyped; only the
server's identity is typed. Most requests need a user of the system account; any user may call ``user_info``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import timedelta
from types import MappingProxyType
from typing import Literal, TypeAlias

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._help.async_hints import items
from natsproto._value import Value
from natsproto.account_events import AccountEvents
from natsproto.protocol.frames import Message

ServerKind: TypeAlias = Literal[
    "STATSZ", "VARZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "SUBSZ", "JSZ", "ACCOUNTZ", "HEALTHZ",
    "PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ", "IDZ",
]  # fmt: skip
"""The kinds of monitoring data of a server."""

AccountKind: TypeAlias = Literal["CONNZ", "LEAFZ", "SUBSZ", "JSZ", "INFO", "CONNS", "STATZ"]
"""The kinds of monitoring data of an account."""


class SystemReply(Value):
    """The response of one server: its identity, and its ``data`` in the format of its version."""

    server_name: str
    """``server_name`` of its configuration, or its id."""
    server_id: str
    """Its public key, new at every start."""
    cluster: str
    version: str
    data: Mapping[str, object]


class System:
    """Queries the servers' monitoring data. Created by ``Client.system``.

    ``timeout`` is the time for responses in seconds; waiting ends earlier when none arrives for ``stall`` seconds. None
    is no limit; one of them must be set.
    ``filters`` are the request's fields as the server documents them (``limit``, ``account`` …).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @items
    def servers(
        self,
        /,
        kind: ServerKind = "STATSZ",
        *,
        timeout: float | timedelta | None = 2.0,
        stall: float | timedelta | None = 0.5,
        **filters: object,
    ) -> AsyncGenerator[SystemReply]:
        """Yield the response of every server of the cluster.

        NoResponders when this is not the system account; ServerError when a server refuses the request;
        PermissionDenied, and the other errors of ``request_many``.

        Args:
            kind: Which monitoring data, as the server's endpoints are called.
            timeout: Seconds for all answers together; None: until ``stall`` ends it.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            **filters: Options of the endpoint, as the NATS documentation names them.
        """
        replies = self._connection.request_many(
            f"$SYS.REQ.SERVER.PING.{kind}", _body(filters), timeout=timeout, stall=stall
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
        """Return the response of one server. NoResponders for an unknown server, and outside the system account.

        Args:
            server_id: Which server: ``server_info.server_id``, a key that begins with N.
            kind: Which monitoring data, as the server's endpoint is called.
            timeout: Seconds to wait for the answer; None: the option ``request_timeout``.
            **filters: Options of the endpoint, as the NATS documentation names them.
        """
        subject = f"$SYS.REQ.SERVER.{server_id}.{kind}"
        return _reply(await self._connection.request(subject, _body(filters), timeout=timeout))

    @items
    def account(
        self,
        /,
        account: str,
        kind: AccountKind = "INFO",
        *,
        timeout: float | timedelta | None = 2.0,
        stall: float | timedelta | None = 0.5,
        **filters: object,
    ) -> AsyncGenerator[SystemReply]:
        """Yield the response of every server that has the account. Errors are those of ``servers``.

        Args:
            account: The public key or the name of the account.
            kind: Which monitoring data of the account.
            timeout: Seconds for all answers together; None: until ``stall`` ends it.
            stall: Seconds without another reply after which the replies count as complete. None: no such limit.
            **filters: Options of the endpoint, as the NATS documentation names them.
        """
        subject = f"$SYS.REQ.ACCOUNT.{account}.{kind}"
        return _read(self._connection.request_many(subject, _body(filters), timeout=timeout, stall=stall))

    def events(self, account: str = "*") -> AccountEvents:
        """Return the events of an account's clients: connected, disconnected, refused. Use it with ``async with``.

        ``account`` is a name or public key; the default is all accounts. PermissionDenied ends the events for users
        without permission; InvalidSubject for an invalid name.

        Args:
            account: The account whose clients to follow; "*": all accounts.
        """
        return AccountEvents(self._connection, account)

    async def user_info(self, *, timeout: float | timedelta | None = None) -> SystemReply:
        """Return the server's data about this connection's user: account, permissions, expiry. For every user.

        Args:
            timeout: Seconds to wait for the answer; None: the option ``request_timeout``.
        """
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
        raise errors.ServerError(f"cannot decode the response: {exc}") from None
    error = fields.get("error")
    if isinstance(error, dict):
        raise errors.ServerError(str(error.get("description", error)))
    server, data = fields.get("server"), fields.get("data")
    if not isinstance(server, dict):
        server = fields  # an IDZ response consists of the identity only
    if not isinstance(data, dict):
        # Some responses have no envelope (CONNS of an account), some are a single value.
        data = {key: value for key, value in fields.items() if key != "server"} if data is None else {"value": data}
    return SystemReply(
        server_name=str(server.get("name", "")),
        server_id=str(server.get("id", "")),
        cluster=str(server.get("cluster", "")),
        version=str(server.get("ver", "")),
        data=MappingProxyType(data),
    )
