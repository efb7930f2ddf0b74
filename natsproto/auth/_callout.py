"""The auth callout (ADR-26): a service that servers ask who may connect, and as whom.

Owns the reading of a server's request and the signing of the answer. What runs it is an ordinary service, so it can be
found, measured, drained and run in several instances.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, cast

from natsproto._core.connection import Connection
from natsproto._core.events import HandlerFailed
from natsproto._value import Value
from natsproto.auth._claims import Claims, UserClaims, decode_jwt, encode_jwt
from natsproto.auth._keys import KeyPair, XKey, decode_public
from natsproto.errors import InvalidCredentials, ServiceError

if TYPE_CHECKING:
    from natsproto._client import Client
    from natsproto.service import Request, Service

AUTH_SUBJECT = "$SYS.REQ.USER.AUTH"
"""Where servers ask."""

_AUDIENCE = "nats-authorization-request"
_XKEY_HEADER = "Nats-Server-Xkey"

log = logging.getLogger("natsproto")


class ServerId(Value):
    """The server that asks; ``id`` is its public key."""

    name: str
    host: str
    id: str
    version: str
    cluster: str
    tags: Sequence[str]


class ClientInfo(Value):
    """The connection that wants in, as the server sees it: ``kind`` is ``Client``, ``Leafnode`` …"""

    host: str
    id: int
    user: str
    name: str
    tags: Sequence[str]
    kind: str
    type: str
    mqtt_id: str
    nonce: str


class ConnectOptions(Value):
    """What the client has sent to prove itself. The repr shows no secret."""

    user: str
    password: str
    token: str
    jwt: str
    nkey: str
    signature: str
    name: str
    lang: str
    version: str

    def __repr__(self) -> str:
        shown = ("user", "nkey", "name", "lang", "version")
        return f"ConnectOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)}, …)"


class ClientTls(Value):
    """The client's TLS: certificates are PEM; ``verified_chains`` hold the client's own first."""

    version: str
    cipher: str
    certs: Sequence[str]
    verified_chains: Sequence[Sequence[str]]


class AuthRequest(Value):
    """A server's question; ``user_nkey`` is the public key the answer is for, ``tls`` is None without TLS."""

    server: ServerId
    user_nkey: str
    client: ClientInfo
    connect: ConnectOptions
    tls: ClientTls | None


class Refused(Value):
    """The answer that keeps a client out. ``reason`` is for the server's log; the client is not told."""

    reason: str = "not authorized"


Decide = Callable[[AuthRequest], Awaitable[UserClaims | Refused] | UserClaims | Refused]


class AuthCallout:
    """Answers servers that ask who may connect. ``start`` runs it as a service; it is the handler of its endpoint.

    ``decide`` (def or async def) gets an AuthRequest and returns the claims of the user, or Refused. An exception
    refuses too, is logged and announced as HandlerFailed. ``issuer`` is the account key the server's configuration
    names, in operator mode the key, or a signing key, of the account the user is to be in; ``issuer_account`` is then
    that account's public key. ``xkey`` is needed where the server's configuration names its public key: then
    requests that are not sealed for it are refused. ``signer`` (default: ``issuer``) signs the answer around the
    claims: in operator mode the callout's own account, where that is another one.

    InvalidCredentials for keys of other kinds.
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
                raise InvalidCredentials(name, f"must be the key of an account, not of a {pair.kind}")
        if issuer_account:
            decode_public(issuer_account, "account")

    async def start(self, nc: Client, *, name: str = "auth-callout", version: str = "1.0.0") -> Service:
        """Answers from now on, until the service is stopped or ``nc`` is drained; several instances share the work.

        ``nc`` is connected as one of the users that the server's configuration lets in without a callout
        (``auth_users``). Errors are those of ``Client.add_service``.
        """
        self._connection = nc
        service = await nc.add_service(name, version, description="decides who may connect")
        service.add_endpoint("auth", self, subject=AUTH_SUBJECT)
        return service

    async def __call__(self, request: Request) -> None:
        """Answers one request of a server."""
        sealed_for = request.headers.get(_XKEY_HEADER) or ""
        try:
            claims, asked = self._read(request.data, sealed_for)
        except InvalidCredentials as exc:
            log.warning("auth callout: a request cannot be read: %s", exc.rule)
            raise ServiceError(400, "not a request for authorization") from None
        nats = await self._answer(asked)
        # The server wants to find itself as the audience, and the user it made up as the subject.
        answer = encode_jwt("authorization_response", asked.user_nkey, self._signer, nats, audience=asked.server.id)
        payload = answer.encode()
        if self._xkey is not None:
            payload = self._xkey.seal(payload, sealed_for)
        log.debug("auth callout: answered %s", claims.id)
        await request.respond(payload)

    def _read(self, data: bytes, sealed_for: str) -> tuple[Claims, AuthRequest]:
        if self._xkey is not None:
            if not sealed_for:
                raise InvalidCredentials("request", "it is not sealed, although an xkey was given")
            data = self._xkey.open(data, sealed_for)
        elif sealed_for:
            raise InvalidCredentials("request", "it is sealed: give the xkey whose public key the server has")
        claims = decode_jwt(data.decode("ascii", "replace"))
        if claims.audience != _AUDIENCE or claims.kind != "authorization_request":
            raise InvalidCredentials("request", "it is a JWT for something else")
        if claims.expires_at is not None and claims.expires_at.timestamp() < time.time():
            raise InvalidCredentials("request", "it came too late: the server has given up")
        decode_public(claims.issuer, "server")
        return claims, _request(claims.nats)

    async def _answer(self, asked: AuthRequest) -> dict[str, object]:
        """What the answer says: the user's JWT, or why there is none."""
        try:
            verdict = self._decide(asked)
            decided = await verdict if isawaitable(verdict) else verdict
            if isinstance(decided, UserClaims):
                jwt = decided.issue(asked.user_nkey, self._issuer, issuer_account=self._issuer_account)
                return {"jwt": jwt, **self._account()}
            if not isinstance(decided, Refused):
                raise TypeError(f"decide must return UserClaims or Refused, not {type(decided).__name__}")
            return {"error": decided.reason or Refused.reason}
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            log.error("auth callout: decide failed: %r", exc, exc_info=exc)
            if self._connection is not None:
                self._connection._emit(HandlerFailed(where="auth callout", error=exc))
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
