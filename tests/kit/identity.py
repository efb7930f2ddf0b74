"""Operators, accounts and users: the keys and JWTs of the decentralized authentication (ADR-14).

Owns what ``nsc`` would make: key pairs, signed claims, creds files, and the configuration of a server that knows
the accounts by heart. Signs with the nkeys package and knows nothing of natsproto.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping

import nkeys  # type: ignore[import-untyped]

__all__ = ["Account", "Key", "Operator", "User"]

_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


class Key:
    """A key pair; ``public`` begins with ``O``, ``A`` or ``U``, ``seed`` with ``S`` and that letter."""

    def __init__(self, prefix: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), prefix).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed, "ascii"))
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def user(cls) -> Key:
        """The key of a user."""
        return cls(nkeys.PREFIX_BYTE_USER)

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature."""
        signature: bytes = self._pair.sign(data)
        return signature

    def claim(
        self,
        subject: str,
        name: str,
        kind: str,
        nats: Mapping[str, object],
        *,
        expires: float = 0,
        audience: str = "",
    ) -> str:
        """A JWT about ``subject``, signed with this key; ``expires`` is a time, 0 for never."""
        body: dict[str, object] = {
            "jti": "",
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**nats, "type": kind, "version": 2},
        }
        if audience:
            body["aud"] = audience
        if expires:
            body["exp"] = int(expires)
        body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).rstrip(b"=").decode()
        signed = f"{_base64(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_base64(_json(body))}"
        return f"{signed}.{_base64(self.sign(signed.encode()))}"


class User:
    """A user as it is known to its owner: a JWT and the seed that signs for it."""

    def __init__(self, jwt: str, key: Key) -> None:
        self.jwt, self.key = jwt, key

    @property
    def creds(self) -> str:
        """The text of the creds file, as nsc writes it."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.key.seed}\n------END USER NKEY SEED------\n"
        )


class Account:
    """An account of ``operator``; ``revoked`` maps public keys of users to times before which they count as revoked."""

    def __init__(self, operator: Key, name: str) -> None:
        self.key, self.name, self._operator = Key(nkeys.PREFIX_BYTE_ACCOUNT), name, operator
        self.revoked: dict[str, int] = {}
        self.limits: dict[str, object] = {}
        self.signing_keys: list[object] = []
        self.authorization: dict[str, object] = {}

    @property
    def jwt(self) -> str:
        """The account's claims as they are now, signed by the operator."""
        limits = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1, **self.limits}
        nats: dict[str, object] = {"limits": limits, "default_permissions": {"pub": {}, "sub": {}}}
        if self.revoked:
            nats["revocations"] = self.revoked
        if self.signing_keys:
            nats["signing_keys"] = self.signing_keys
        if self.authorization:
            nats["authorization"] = self.authorization
        return self._operator.claim(self.key.public, self.name, "account", nats)

    def user(
        self,
        name: str = "user",
        *,
        lives: float = 0,
        key: Key | None = None,
        claims: Mapping[str, object] | None = None,
    ) -> User:
        """A user whose JWT expires ``lives`` seconds from now (0: never), rounded down to a whole second."""
        key = key or Key.user()
        nats = {"pub": {}, "sub": {}, **_UNLIMITED, **(claims or {})}
        expires = time.time() + lives if lives else 0
        return User(self.key.claim(key.public, name, "user", nats, expires=expires), key)

    def revoke(self, user: User) -> None:
        """Withdraws the user's JWT, from the next ``Operator.config`` on."""
        self.revoked[user.key.public] = int(time.time()) + 1


class Operator:
    """The operator of a test server and its accounts, the first of which is ``account``."""

    def __init__(self) -> None:
        self.key = Key(nkeys.PREFIX_BYTE_OPERATOR)
        self.account = Account(self.key, "app")
        self.accounts: list[Account] = []
        """Further ones."""
        self._system = Account(self.key, "SYS")
        self._jwt = self.key.claim(self.key.public, "operator", "operator", {"system_account": self._system.key.public})

    def config(self) -> str:
        """What a server must be told; say it again (and reload) after a change of an account."""
        preload = "\n".join(
            f"  {account.key.public}: {account.jwt}" for account in (self.account, self._system, *self.accounts)
        )
        return f"operator: {self._jwt}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
