"""NATS JWTs (ADR-14): the permissions of a user, signed by the user's account.

Owns the JSON of claims and the text of creds files. It signs with a KeyPair and needs no server.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from natsproto import errors
from natsproto._durations import seconds
from natsproto._value import Value
from natsproto.auth._keys import KeyPair, decode_public, verify
from natsproto.errors._base import hide_arguments

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


class Permission(Value):
    """Subjects that are allowed and denied; wildcards are possible. An empty ``allow`` allows all that is not denied.

    For subscriptions a queue group may follow the subject after a space: ``"orders.> workers"``.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    """Takes precedence over ``allow``."""

    def _check(self) -> None:
        for name in ("allow", "deny"):
            subjects = getattr(self, name)
            if isinstance(subjects, str) or not all(isinstance(one, str) and one for one in subjects):
                raise errors.ConfigError(name, subjects, "must be a sequence of subjects")
            self.__dict__[name] = tuple(subjects)

    def _json(self) -> dict[str, object]:
        return {name: list(getattr(self, name)) for name in ("allow", "deny") if getattr(self, name)}


class ResponsePermission(Value):
    """Allows responses to the reply subjects of received requests: ``max_messages`` each, within ``ttl`` seconds."""

    max_messages: int = 1
    ttl: float | timedelta = 0.0


class UserClaims(Value):
    """The permissions and limits of a user. ``issue`` returns its JWT.

    ``name`` is for logs. ``publish`` and ``subscribe`` are the permitted subjects; ``responses`` permits responses to
    any reply subject. ``max_subscriptions``, ``max_payload`` (bytes) and ``max_data`` (bytes) limit the user; -1 is no
    limit. A ``bearer`` user needs no key. ``connection_types`` are the allowed ones (``STANDARD``, ``WEBSOCKET``,
    ``LEAFNODE``, ``MQTT`` …) and ``source_networks`` the allowed networks (``10.0.0.0/8``); empty allows all. ``tags``
    are arbitrary words, which templates of scoped signing keys can refer to. ``expires_in`` is in seconds from the
    issue; None never expires.

    ``scoped`` is for signing keys that have a permission template in their account; such a user has no permissions or
    limits of its own. ``account`` is the name of the user's account, which the auth callout needs without an operator.
    """

    name: str = ""
    publish: Permission = Permission()
    subscribe: Permission = Permission()
    responses: ResponsePermission | None = None
    max_subscriptions: int = -1
    max_payload: int = -1
    max_data: int = -1
    bearer: bool = False
    connection_types: Sequence[str] = ()
    source_networks: Sequence[str] = ()
    tags: Sequence[str] = ()
    expires_in: float | timedelta | None = None
    scoped: bool = False
    account: str = ""

    def _check(self) -> None:
        for name in ("connection_types", "source_networks", "tags"):
            if isinstance(getattr(self, name), str):
                raise errors.ConfigError(name, getattr(self, name), "must be a sequence of strings")
        if self.expires_in is not None and seconds("expires_in", self.expires_in) < 1:
            raise errors.ConfigError("expires_in", self.expires_in, "must be at least a second, the unit of JWTs")
        if self.scoped:
            defaults = UserClaims()
            own = [name for name in _LIMITS if getattr(self, name) != getattr(defaults, name)]
            if own:
                raise errors.ConfigError("scoped", own[0], "is set by the signing key's template and cannot be given")

    def issue(self, user: str, issuer: KeyPair, *, issuer_account: str = "") -> str:
        """Return the JWT for the public key ``user``, signed by an account key or a signing key of ``issuer_account``.

        ``issuer_account`` is that account's public key. InvalidCredentials when a key is of another kind.

        Args:
            user: The public key of the user.
            issuer: The account's key pair, or one of its signing keys.
            issuer_account: In operator mode the public key of the user's account; "": the issuer is the account.
        """
        decode_public(user, "user")
        if issuer.kind != "account":
            raise errors.InvalidCredentials("issuer", f"must be the key of an account, not of a {issuer.kind}")
        nats = self._nats()
        if issuer_account:
            decode_public(issuer_account, "account")
            nats["issuer_account"] = issuer_account
        expires = None if self.expires_in is None else seconds("expires_in", self.expires_in)
        return encode_jwt("user", user, issuer, nats, name=self.name, audience=self.account, expires_in=expires)

    def _nats(self) -> dict[str, object]:
        nats: dict[str, object] = {}
        if self.tags:
            nats["tags"] = [tag.strip().lower() for tag in self.tags]
        if self.scoped:  # servers refuse any other limits here
            return nats
        nats |= {"subs": self.max_subscriptions, "data": self.max_data, "payload": self.max_payload}
        nats |= {"pub": self.publish._json(), "sub": self.subscribe._json()}
        if self.responses is not None:
            ttl = round(seconds("ttl", self.responses.ttl) * 1e9)
            nats["resp"] = {"max": self.responses.max_messages, "ttl": ttl}
        if self.bearer:
            nats["bearer_token"] = True
        if self.connection_types:
            nats["allowed_connection_types"] = list(self.connection_types)
        if self.source_networks:
            nats["src"] = list(self.source_networks)
        return nats


_LIMITS = (
    "publish", "subscribe", "responses", "max_subscriptions", "max_payload", "max_data", "bearer", "connection_types",
    "source_networks",
)  # fmt: skip


class Claims(Value):
    """The content of a JWT whose signature is verified. ``nats`` contains the raw fields of its ``kind``."""

    kind: str
    id: str
    """The hash of the content, by which a JWT is told from others."""
    issuer: str
    """The public key that signed it: of an operator, an account, or a signing key."""
    subject: str
    """The public key that it is about."""
    audience: str
    """The intended recipient: in a callout the name or key of an account; mostly ""."""
    name: str
    """A name for people; nothing depends on it."""
    issued_at: datetime
    """When it was signed, to the second, UTC."""
    expires_at: datetime | None
    """When it ends, UTC; None: never."""
    not_before: datetime | None
    """When it begins to count, UTC; None: at once."""
    nats: Mapping[str, object]


def encode_jwt(
    kind: str,
    subject: str,
    issuer: KeyPair,
    nats: Mapping[str, object],
    *,
    name: str = "",
    audience: str = "",
    expires_in: float | None = None,
) -> str:
    """Return a signed JWT of version 2."""
    now = int(time.time())
    body: dict[str, object] = {"iat": now, "iss": issuer.public_key, "sub": subject}
    body |= {key: text for key, text in (("name", name), ("aud", audience)) if text}
    if expires_in is not None:
        body["exp"] = now + int(expires_in)
    body["nats"] = {**nats, "type": kind, "version": 2}
    body["jti"] = b32encode(hashlib.sha256(_json(body)).digest()).rstrip(b"=").decode()
    signed = f"{_encode_base64(_json(_HEADER))}.{_encode_base64(_json(body))}"
    return f"{signed}.{_encode_base64(issuer.sign(signed.encode()))}"


@hide_arguments
def decode_jwt(jwt: str) -> Claims:
    """Decode a JWT of any kind. The signature is verified with the key of the issuer named in it.

    The caller decides if that issuer is trusted, and checks ``not_before`` and ``expires_at``. InvalidCredentials,
    without any of the text, for a damaged or modified JWT.

    Args:
        jwt: The JWT: three parts in base64, with dots between them.
    """
    try:
        signed, _, signature = jwt.rpartition(".")
        head, _, tail = signed.partition(".")
        header, body = json.loads(_decode_base64(head)), json.loads(_decode_base64(tail))
        if header["alg"] != _HEADER["alg"]:
            raise errors.InvalidCredentials("jwt", "is not signed with an nkey (ed25519-nkey)")
        if not verify(body["iss"], signed.encode(), _decode_base64(signature)):
            raise errors.InvalidCredentials("jwt", "was modified: its signature does not match")
        nats = body["nats"]
        return Claims(
            kind=str(nats["type"]),
            id=str(body.get("jti", "")),
            issuer=body["iss"],
            subject=str(body["sub"]),
            audience=str(body.get("aud", "")),
            name=str(body.get("name", "")),
            issued_at=datetime.fromtimestamp(body["iat"], UTC),
            expires_at=datetime.fromtimestamp(body["exp"], UTC) if body.get("exp") else None,
            not_before=datetime.fromtimestamp(body["nbf"], UTC) if body.get("nbf") else None,
            nats=MappingProxyType(nats),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RecursionError) as exc:
        if isinstance(exc, errors.InvalidCredentials):
            raise
        raise errors.InvalidCredentials("jwt", "is damaged, or is not a NATS JWT") from None


def creds_text(jwt: str, seed: str) -> str:
    """Return the text of a creds file, as ``nsc`` writes it: a user's JWT and the user's seed.

    Args:
        jwt: What ``UserClaims.issue`` returned.
        seed: The seed of the key pair that the JWT is for, which begins with SU.
    """
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
