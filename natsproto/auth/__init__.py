"""Keys, user JWTs and the auth callout, with which a program decides who may connect (ADR-14, ADR-26).

It needs the extra ``natsproto[nkeys]``: the package PyNaCl does all cryptography.
"""

from natsproto.auth._callout import (
    AuthCallout,
    AuthRequest,
    ClientInfo,
    ClientTls,
    ConnectOptions,
    Refused,
    ServerId,
)
from natsproto.auth._claims import Claims, Permission, ResponsePermission, UserClaims, creds_text, decode_jwt
from natsproto.auth._keys import KeyKind, KeyPair, XKey, verify

__all__ = [
    "AuthCallout",
    "AuthRequest",
    "Claims",
    "ClientInfo",
    "ClientTls",
    "ConnectOptions",
    "KeyKind",
    "KeyPair",
    "Permission",
    "Refused",
    "ResponsePermission",
    "ServerId",
    "UserClaims",
    "XKey",
    "creds_text",
    "decode_jwt",
    "verify",
]
