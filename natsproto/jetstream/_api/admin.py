"""Administration of a JetStream cluster: its leaders, its servers, and the placement of streams.

Owns the calls for operators. Calls for streams and consumers work in their account; calls for the cluster, its servers
and whole accounts need a connection to the system account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from natsproto import errors
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._values.asset_names import check_consumer_name, check_stream_name
from natsproto.jetstream._values.codec import Duration, decode, dumps, nanoseconds, parse
from natsproto.jetstream._values.config_parts import Placement
from natsproto.jetstream._values.error_codes import ErrCode, api_error
from natsproto.jetstream._values.features import RequiredFeature
from natsproto.jetstream._values.info import AccountPurge, MetaRescue, StreamInfo
from natsproto.protocol.subject import publish_subject

_PLACED = RequiredFeature("placement", "2.11", 1)
RESCUE_QUIET_S = 0.5
"""Seconds without a reply after which no server is expected to reply to a rescue."""


class Admin:
    """The administrative calls of the JetStream API: ``js.admin``.

    Every call takes ``timeout`` in seconds (default: that of the JetStream context) and raises ApiError with the
    server's reason (JetStreamUnavailable, StreamNotFound, LimitReached when no peer can take over …), RequestTimeout,
    PermissionDenied and ConnectionLost. LocalProtocolError at once when a call needs the system account and the server
    has reported another account; UnsupportedByServer when the servers are too old.

    Created by ``JetStream.admin``.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    # ---------------------------------------------------------------- in the account of the stream

    async def step_down_stream_leader(
        self, stream: str, *, placement: Placement | None = None, timeout: Duration | None = None
    ) -> None:
        """Make another server the leader of the stream: any, or (server 2.11) one that ``placement`` describes.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            placement: What the new leader must be like (server 2.11); None: any server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        name = check_stream_name(stream)
        await self._step_down(f"STREAM.LEADER.STEPDOWN.{name}", placement, f"step down leader of {name!r}", timeout)

    async def step_down_consumer_leader(
        self, stream: str, consumer: str, *, placement: Placement | None = None, timeout: Duration | None = None
    ) -> None:
        """Make another server the leader of the consumer.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            consumer: A consumer of the stream, by its name.
            placement: What the new leader must be like (server 2.11); None: any server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        names = f"{check_stream_name(stream)}.{check_consumer_name(consumer)}"
        operation = f"step down leader of {names!r}"
        await self._step_down(f"CONSUMER.LEADER.STEPDOWN.{names}", placement, operation, timeout)

    async def remove_stream_peer(self, stream: str, peer: str, *, timeout: Duration | None = None) -> None:
        """Remove a server (by name or peer id) from the stream and its consumers at once; another one replaces it.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            peer: The name or the peer id of the server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        name = check_stream_name(stream)
        await self._do(
            f"STREAM.PEER.REMOVE.{name}", {"peer": peer}, f"remove peer {peer!r} from stream {name!r}", timeout
        )

    async def evacuate_stream_peer(self, stream: str, peer: str, *, timeout: Duration | None = None) -> None:
        """Move the stream and its consumers off a server, after another one has caught up. Server 2.15.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            peer: The name or the peer id of the server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        name = check_stream_name(stream)
        operation = f"evacuate stream {name!r} from {peer!r}"
        await self._api.require_api_level(5, "2.15", operation, timeout)
        await self._do(f"STREAM.PEER.EVACUATE.{name}", {"peer": peer}, operation, timeout)

    async def remove_consumer_peer(
        self, stream: str, consumer: str, peer: str, *, timeout: Duration | None = None
    ) -> None:
        """Remove a server from the consumer at once; another one that holds the stream replaces it. Server 2.15.

        ApiError when no other server holds the stream.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            consumer: A consumer of the stream, by its name.
            peer: The name or the peer id of the server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._move_consumer("REMOVE", f"remove peer {peer!r} from", stream, consumer, peer, timeout)

    async def evacuate_consumer_peer(
        self, stream: str, consumer: str, peer: str, *, timeout: Duration | None = None
    ) -> None:
        """Move the consumer off a server, after another one that holds the stream has caught up. Server 2.15.

        ApiError when no other server holds the stream.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            consumer: A consumer of the stream, by its name.
            peer: The name or the peer id of the server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._move_consumer("EVACUATE", f"evacuate {peer!r} of", stream, consumer, peer, timeout)

    async def _move_consumer(
        self, verb: str, what: str, stream: str, consumer: str, peer: str, timeout: Duration | None
    ) -> None:
        name = f"{check_stream_name(stream)}.{check_consumer_name(consumer)}"
        operation = f"{what} consumer {consumer!r} of stream {stream!r}"
        await self._api.require_api_level(5, "2.15", operation, timeout)
        await self._do(f"CONSUMER.PEER.{verb}.{name}", {"peer": peer}, operation, timeout)

    async def cancel_stream_move(self, stream: str, *, timeout: Duration | None = None) -> None:
        """Cancel an unfinished move, scaling or change of retention. Server 2.15.

        Args:
            stream: A stream of this account, as ``stream_names`` lists it.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        name = check_stream_name(stream)
        operation = f"cancel move of stream {name!r}"
        await self._api.require_api_level(5, "2.15", operation, timeout)
        await self._call(f"STREAM.CANCEL_MOVE.{name}", {}, operation, timeout)

    # ---------------------------------------------------------------- in the system account

    async def step_down_meta_leader(
        self, *, placement: Placement | None = None, timeout: Duration | None = None
    ) -> None:
        """Make another server the meta leader of the cluster: any, or one that ``placement`` describes.

        Args:
            placement: What the new leader must be like (server 2.11); None: any server.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        operation = "step down meta leader"
        self._check_account(operation)
        await self._step_down("META.LEADER.STEPDOWN", placement, operation, timeout)

    async def remove_server(self, server: str = "", *, peer_id: str = "", timeout: Duration | None = None) -> None:
        """Remove a server permanently, by its name, or by its peer id when its name is no longer known.

        Args:
            server: The name of the server; "": given by ``peer_id``.
            peer_id: The id of the server, for one whose name is not known; "": given by ``server``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body, operation = _server(server, peer_id), f"remove server {server or peer_id!r}"
        self._check_account(operation)
        await self._do("SERVER.REMOVE", body, operation, timeout)

    async def evacuate_server(self, server: str = "", *, peer_id: str = "", timeout: Duration | None = None) -> None:
        """Move everything off a server, which stays in the cluster. Server 2.15.

        Args:
            server: The name of the server; "": given by ``peer_id``.
            peer_id: The id of the server, for one whose name is not known; "": given by ``server``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body, operation = _server(server, peer_id), f"evacuate server {server or peer_id!r}"
        await self._api.require_api_level(5, "2.15", operation, timeout)
        await self._system_call("SERVER.EVACUATE", body, operation, timeout)

    async def move_stream(
        self,
        account: str,
        stream: str,
        *,
        server: str = "",
        cluster: str = "",
        domain: str = "",
        tags: Iterable[str] = (),
        timeout: Duration | None = None,
    ) -> StreamInfo:
        """Move a stream off ``server``, or to servers with ``cluster`` and ``tags``; return its new info.

        Args:
            account: The account that owns the stream, as the server calls it.
            stream: A stream of this account, as ``stream_names`` lists it.
            server: The server to leave; "": none in particular.
            cluster: The name of a cluster, whose servers then hold the replicas; "": any cluster.
            domain: Where that cluster is; "": in the present JetStream domain.
            tags: Tags that the new servers must have.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body: dict[str, object] = {"server": server, "cluster": cluster, "domain": domain, "tags": list(tags)}
        payload = await self._system_call(
            f"ACCOUNT.STREAM.MOVE.{_account(account)}.{check_stream_name(stream)}",
            {key: value for key, value in body.items() if value},
            f"move stream {stream!r} of account {account!r}",
            timeout,
        )
        return decode(StreamInfo, payload)

    async def cancel_account_stream_move(self, account: str, stream: str, *, timeout: Duration | None = None) -> None:
        """As ``cancel_stream_move``, for a stream of any account.

        Args:
            account: The account that owns the stream, as the server calls it.
            stream: A stream of this account, as ``stream_names`` lists it.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._system_call(
            f"ACCOUNT.STREAM.CANCEL_MOVE.{_account(account)}.{check_stream_name(stream)}",
            {},
            f"cancel move of stream {stream!r} of account {account!r}",
            timeout,
        )

    async def purge_account(self, account: str, *, timeout: Duration | None = None) -> bool:
        """Delete every stream and consumer of an account; return True if the server has started.

        Args:
            account: The account whose streams and consumers are all deleted.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        payload = await self._system_call(
            f"ACCOUNT.PURGE.{_account(account)}", {}, f"purge account {account!r}", timeout
        )
        return decode(AccountPurge, payload).initiated

    async def rescue_meta(self, quorum: int, *, timeout: Duration | None = None) -> Sequence[MetaRescue]:
        """Lower the quorum of the cluster after the other servers were lost permanently. UNSAFE: a server that returns
        may have different metadata. Server 2.15.

        Every running server replies; the replies of those that agreed are returned. ApiError of the first reply when
        none agreed. It ends half a second after the last reply, or at ``timeout``.

        Args:
            quorum: The number of servers that must agree from now on.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        api, operation = self._api, f"rescue meta with a quorum of {quorum}"
        self._check_account(operation)
        if type(quorum) is not int or quorum < 1:
            raise errors.ConfigError("quorum", quorum, "must be a positive number of servers")
        await api.require_api_level(5, "2.15", operation, timeout)
        wait = nanoseconds(api.timeout if timeout is None else timeout) / 1e9
        agreed: list[MetaRescue] = []
        refused: list[errors.ApiError] = []
        inbox = api.connection.new_inbox()
        async with api.connection.subscribe(inbox) as answers:
            await api.connection.publish(f"{api.prefix}.META.RESCUE", dumps({"quorum_needed": quorum}), reply=inbox)
            while came := await answers._read_batch(RESCUE_QUIET_S if agreed or refused else wait):
                for answer in came:
                    if answer.is_no_responders:
                        raise errors.JetStreamNotEnabled(
                            503, ErrCode.NOT_ENABLED, f"no server answers on {api.prefix}.META.RESCUE", operation
                        )
                    payload = parse(answer.data, operation)
                    if "error" in payload:
                        refused.append(api_error(payload, operation))
                    else:
                        agreed.append(decode(MetaRescue, payload))
        if refused and not agreed:
            raise refused[0]
        return agreed

    # ---------------------------------------------------------------- internals

    async def _step_down(
        self, endpoint: str, placement: Placement | None, operation: str, timeout: Duration | None
    ) -> None:
        if placement is not None:
            await self._api.require_feature(_PLACED, operation, timeout)
        await self._do(endpoint, {} if placement is None else {"placement": placement}, operation, timeout)

    async def _do(self, endpoint: str, body: Mapping[str, object], operation: str, timeout: Duration | None) -> None:
        await self._api.call_expecting_success(endpoint, body or b"", operation=operation, timeout=timeout)

    async def _call(
        self, endpoint: str, body: Mapping[str, object], operation: str, timeout: Duration | None
    ) -> dict[str, object]:
        return await self._api.call(endpoint, body or b"", operation=operation, timeout=timeout)

    async def _system_call(
        self, endpoint: str, body: Mapping[str, object], operation: str, timeout: Duration | None
    ) -> dict[str, object]:
        self._check_account(operation)
        return await self._call(endpoint, body, operation, timeout)

    def _check_account(self, operation: str) -> None:
        """Raise LocalProtocolError in another account, where the server silently drops these calls."""
        info = self._api.connection.server_info
        if info.remote_account and not info.acc_is_sys:
            raise errors.LocalProtocolError(
                f"{operation}: needs a connection to the system account; this one is of account {info.remote_account!r}"
            )


def _server(server: str, peer_id: str) -> dict[str, str]:
    if bool(server) == bool(peer_id):
        raise errors.ConfigError("server", server, "give the name of a server, or its peer id")
    return {"peer": server} if server else {"peer": "", "peer_id": peer_id}


def _account(account: str) -> str:
    """Return the name of an account, checked as a token of a subject."""
    publish_subject(account, "account")
    if "." in account:
        raise errors.ConfigError("account", account, "must not contain a dot: it is a token of the subject")
    return account
