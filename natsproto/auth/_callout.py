"""The auth callout (ADR-26): a service that decides for the servers which clients may connect, and as which user.

Owns the decoding of a server's request and the signing of the response. It runs as an ordinary service, so it can be
discovered, measured and drained, and can run in several instances.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, cast

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto._help.introspection import import_late_types
from natsproto._value import Value
from natsproto.auth._claims import Claims, UserClaims, decode_jwt, encode_jwt
from natsproto.auth._keys import KeyPair, XKey, decode_public

if TYPE_CHECKING:
    from natsproto._client import Client
    from natsproto.service import Request, Service

AUTH_SUBJECT = "$SYS.REQ.USER.AUTH"
"""The subject of the servers' requests."""

_AUDIENCE = "nats-authorization-request"
_XKEY_HEADER = "Nats-Server-Xkey"

log = logging.getLogger("natsproto")


class ServerId(Value):
    """The server that sends the request. ``id`` is its public key."""

    name: str
    """``server_name`` of its configuration, or its id."""
    host: str
    """The address that it listens on, often 0.0.0.0."""
    id: str
    version: str
    cluster: str
    """The cluster that it belongs to; "" for none."""
    tags: Sequence[str]
    """The ``server_tags`` of its configuration."""


class ClientInfo(Value):
    """The connecting client, as the server sees it. ``kind`` is ``Client``, ``Leafnode`` …"""

    host: str
    """The address that it connects from."""
    id: int
    """The number that this server gave to the connection."""
    user: str
    """The name it logs in by, as in the server's log; nothing is verified yet."""
    name: str
    """The name that it gave itself in CONNECT."""
    tags: Sequence[str]
    kind: str
    type: str
    """``nats``, ``mqtt`` or ``websocket``."""
    mqtt_id: str
    """The client id of an MQTT client; "" for others."""
    nonce: str
    """The bytes that it had to sign, in base64; "" without keys."""


class ConnectOptions(Value):
    """The credentials and names in the client's CONNECT. The repr shows no secret."""

    user: str
    """The name it logs in by; "" for none."""
    password: str
    """The password of ``user``; "" for none."""
    token: str
    """A login without a user name; "" for none."""
    jwt: str
    """The user JWT that it presents; verify it before you use it."""
    nkey: str
    """Its public key, ``U…``; the server has not verified it."""
    signature: str
    """The signature of the nonce, in base64, which ``nkey`` verifies."""
    name: str
    """The name of the connection, as in monitoring."""
    lang: str
    """The language of the client library: ``go``, ``python3``, ``nats.js`` …"""
    version: str
    """The version of the client library."""

    def __repr__(self) -> str:
        shown = ("user", "nkey", "name", "lang", "version")
        return f"ConnectOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)}, …)"


class ClientTls(Value):
    """The client's TLS connection. Certificates are PEM; each of ``verified_chains`` begins with the client's own."""

    version: str
    """The negotiated one, ``1.2`` or ``1.3``."""
    cipher: str
    """The name of the cipher suite, as IANA writes it."""
    certs: Sequence[str]
    """The certificates of a client for which no chain could be verified."""
    verified_chains: Sequence[Sequence[str]]


class AuthRequest(Value):
    """A server's request. The response is for the public key ``user_nkey``; ``tls`` is None without TLS."""

    server: ServerId
    """The server that waits for the decision."""
    user_nkey: str
    client: ClientInfo
    """The connection as the server sees it."""
    connect: ConnectOptions
    """The claims of the client; nothing of it is verified."""
    tls: ClientTls | None


class Refused(Value):
    """Refuses a client. ``reason`` appears in the server's log; the client does not receive it."""

    reason: str = "not authorized"


Decide = Callable[[AuthRequest], Awaitable[UserClaims | Refused] | UserClaims | Refused]


class AuthCallout:
    """Decides for the servers which clients may connect. ``start`` runs it as a service.

    ``decide`` (def or async def) receives an AuthRequest and returns the claims of the user, or Refused. An exception
    refuses the client too; it is logged and emitted as a HandlerFailed event. ``issuer`` is the account key that the
    server's configuration names. In operator mode it is the key, or a signing key, of the user's account, and
    ``issuer_account`` is that account's public key. ``xkey`` is needed if the server's configuration names its public
    key; requests that are not sealed for it are then refused. ``signer`` (default: ``issuer``) signs the response that
    contains the claims; in operator mode it is the key of the callout's own account if that is another account.

    InvalidCredentials for keys of other kinds.

    Args:
        decide: Called with an AuthRequest, ``def`` or ``async def``; returns UserClaims or Refused.
        issuer: The account key that the server's configuration names, or in operator mode a key of the user's account.
            It signs the users.
        issuer_account: In operator mode the public key of the user's account; "": the issuer is the account.
        xkey: The key that decrypts requests; needed if the server's configuration names its public key.
        signer: The key that signs the responses, if that is not ``issuer``; None: the issuer.
    """

    def __init__(
        self,
        decide: Decide,
        *,
        issuer: KeyPair,
        issuer_account: str = "",
        xkey: XKey | None = None,
        signer: KeyPair | None = None,
    ) -> None:
        self._decide = decide
        self._issuer = issuer
        self._issuer_account = issuer_account
        self._signer = signer or issuer
        self._xkey = xkey
        self._connection: Connection | None = None
        for name, pair in (("issuer", issuer), ("signer", self._signer)):
            if pair.kind != "account":
                raise errors.InvalidCredentials(name, f"must be the key of an account, not of a {pair.kind}")
        if issuer_account:
            decode_public(issuer_account, "account")

    async def start(self, nc: Client, *, name: str = "auth-callout", version: str = "1.0.0") -> Service:
        """Start the service, until it is stopped or ``nc`` is drained. Several instances share the requests.

        ``nc`` must be connected as one of the ``auth_users`` of the server's configuration, who need no callout. Errors
        are those of ``Client.add_service``.

        Args:
            nc: A client in the account of the callout.
            name: What ``discover_services`` shows it as.
            version: A semantic version, which ``discover_services`` shows.
        """
        self._connection = nc
        service = await nc.add_service(name, version, description="decides who may connect")
        service.add_endpoint("auth", self, subject=AUTH_SUBJECT)
        return service

    async def __call__(self, request: Request) -> None:
        """Respond to one request of a server.

        Args:
            request: A question of the server, which contains a signed JWT.
        """
        sealed_for = request.headers.get(_XKEY_HEADER) or ""
        try:
            claims, auth_request = self._decode(request.data, sealed_for)
        except errors.InvalidCredentials as exc:
            log.warning("auth callout: cannot decode a request: %s", exc.rule)
            raise errors.ServiceError(400, "not a valid authorization request") from None
        nats = await self._response_fields(auth_request)
        # The server requires itself as the audience, and the user key that it generated as the subject.
        response = encode_jwt(
            "authorization_response", auth_request.user_nkey, self._signer, nats, audience=auth_request.server.id
        )
        payload = response.encode()
        if self._xkey is not None:
            payload = self._xkey.seal(payload, sealed_for)
        log.debug("auth callout: answered %s", claims.id)
        await request.respond(payload)

    def _decode(self, data: bytes, sealed_for: str) -> tuple[Claims, AuthRequest]:
        if self._xkey is not None:
            if not sealed_for:
                raise errors.InvalidCredentials("request", "is not sealed, although an xkey was given")
            data = self._xkey.open(data, sealed_for)
        elif sealed_for:
            raise errors.InvalidCredentials("request", "is sealed: give the xkey whose public key the server has")
        claims = decode_jwt(data.decode("ascii", "replace"))
        if claims.audience != _AUDIENCE or claims.kind != "authorization_request":
            raise errors.InvalidCredentials("request", "is a JWT of another kind")
        if claims.expires_at is not None and claims.expires_at.timestamp() < time.time():
            raise errors.InvalidCredentials("request", "has expired: the server no longer waits for the response")
        if claims.not_before is not None and claims.not_before.timestamp() > time.time():
            raise errors.InvalidCredentials(
                "request", "is not valid yet: the clocks of the server and of this machine differ"
            )
        decode_public(claims.issuer, "server")
        return claims, _request(claims.nats)

    async def _response_fields(self, auth_request: AuthRequest) -> dict[str, object]:
        """Return the fields of the response: the user's JWT, or the reason for the refusal."""
        try:
            result = self._decide(auth_request)
            decided = await result if isawaitable(result) else result
            if isinstance(decided, UserClaims):
                jwt = decided.issue(auth_request.user_nkey, self._issuer, issuer_account=self._issuer_account)
                return {"jwt": jwt, **self._account()}
            if not isinstance(decided, Refused):
                raise TypeError(f"decide must return UserClaims or Refused, not {type(decided).__name__}")
            return {"error": decided.reason or Refused.reason}
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            log.error("auth callout: decide failed: %r", exc, exc_info=exc)
            if self._connection is not None:
                self._connection._event_bus.emit(HandlerFailed(handler="auth callout", error=exc))
            return {"error": "the auth callout failed"}

    def _account(self) -> dict[str, object]:
        own = self._signer is self._issuer and self._issuer_account
        return {"issuer_account": self._issuer_account} if own else {}


def _request(nats: Mapping[str, object]) -> AuthRequest:
    server, client = _part(nats, "server_id"), _part(nats, "client_info")
    connect, tls = _part(nats, "connect_opts"), _part(nats, "client_tls")
    user = _text(nats, "user_nkey")
    decode_public(user, "user")
    number = client.get("id")
    return AuthRequest(
        server=ServerId(
            **{name: _text(server, name) for name in ("name", "host", "id", "version", "cluster")},
            tags=_texts(server, "tags"),
        ),
        user_nkey=user,
        client=ClientInfo(
            **{name: _text(client, name) for name in ("host", "user", "name", "kind", "type", "mqtt_id", "nonce")},
            id=number if isinstance(number, int) else 0,
            tags=_texts(client, "tags"),
        ),
        connect=ConnectOptions(
            **{name: _text(connect, name) for name in ("user", "jwt", "nkey", "name", "lang", "version")},
            password=_text(connect, "pass"),
            token=_text(connect, "auth_token"),
            signature=_text(connect, "sig"),
        ),
        tls=_tls(tls) if tls else None,
    )


def _tls(tls: Mapping[str, object]) -> ClientTls:
    chains = tls.get("verified_chains")
    return ClientTls(
        version=_text(tls, "version"),
        cipher=_text(tls, "cipher"),
        certs=_texts(tls, "certs"),
        verified_chains=tuple(tuple(map(str, chain)) for chain in chains) if isinstance(chains, list) else (),
    )


def _part(nats: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = nats.get(name)
    return cast("Mapping[str, object]", part) if isinstance(part, Mapping) else {}


def _text(part: Mapping[str, object], name: str) -> str:
    text = part.get(name)
    return text if isinstance(text, str) else ""


def _texts(part: Mapping[str, object], name: str) -> tuple[str, ...]:
    texts = part.get(name)
    return tuple(map(str, texts)) if isinstance(texts, list) else ()


import_late_types(__name__)
