"""Credentials, and the CONNECT fields made of them.

Owns the creds file format and the signing of the server's nonce. It reads no files: text and nonce come in, fields go
out. No repr, str or error made here contains a secret.
"""

from __future__ import annotations

import binascii
import re
from base64 import b32decode, b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from natsproto import errors
from natsproto._value import Value
from natsproto.errors._base import hide_arguments

_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_SEED = re.compile(rb"S[A-Z2-7]{57}")
_USER_PREFIX = 20 << 3


class Credentials(Value):
    """All credentials of a client; None is left out of CONNECT.

    ``user`` and ``password``; ``token``; a user ``jwt``, signed for by ``seed`` or ``signer`` unless it is a bearer
    token; an ``nkey`` (the public key, not needed with a seed). ``seed`` is an encoded user seed (``SU…``), ``signer``
    takes the bytes of the server's nonce and returns the 64 bytes of their Ed25519 signature. All may be empty: a
    server may require none. InvalidCredentials when the parts do not fit together, TypeError for wrong types.
    """

    user: str | None = None
    password: str | None = None
    token: str | None = None
    jwt: str | None = None
    nkey: str | None = None
    seed: bytes | None = None
    signer: Callable[[bytes], bytes] | None = None

    if not TYPE_CHECKING:
        __init__ = hide_arguments(Value.__init__)

    def _check(self) -> None:
        for name in ("user", "password", "token", "jwt", "nkey"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if self.signer is not None and not callable(self.signer):
            raise TypeError(f"signer must be callable, not {type(self.signer).__name__}")
        if self.jwt is not None and not _JWT.fullmatch(self.jwt):
            raise errors.InvalidCredentials("jwt", "is damaged: must be three base64url parts with dots between them")
        if self.password is not None and self.user is None:
            raise errors.InvalidCredentials("password", "needs a user")
        if self.seed is not None:
            _check_seed(self.seed)
            if self.signer is not None:
                raise errors.InvalidCredentials("seed", "cannot be given together with a signer")
        elif self.signer is None and self.nkey is not None:
            raise errors.InvalidCredentials("nkey", "a public key alone proves nothing: give the seed or a signer")
        elif self.signer is not None and self.nkey is None and self.jwt is None:
            raise errors.InvalidCredentials("signer", "needs a jwt, or the nkey (public key) it signs for")

    def __repr__(self) -> str:
        given = [name for name, value in self._values().items() if value is not None]
        return f"Credentials({', '.join(f'{name}=(hidden)' for name in given)})"


@hide_arguments
def parse_creds(text: str) -> Credentials:
    """Parse the text of a ``.creds`` file: a user JWT and the seed that signs for it.

    Lenient about text around the blocks, the number of dashes (three or more), line ends and blanks.
    InvalidCredentials, without any of the text, when a part is missing or damaged.
    """
    blocks = _blocks(text)
    jwt, seed = blocks.get("JWT"), blocks.get("SEED")
    if jwt is None:
        raise errors.InvalidCredentials("creds", "has no BEGIN NATS USER JWT … END NATS USER JWT block")
    if seed is None:
        raise errors.InvalidCredentials("creds", "has no BEGIN USER NKEY SEED … END USER NKEY SEED block")
    return Credentials(jwt=jwt, seed=_ascii(seed))


@hide_arguments
def parse_seed(text: str) -> bytes:
    """Return the user seed in ``text``: the bare ``SU…``, or the seed block of a key or creds file.

    InvalidCredentials, without any of the text, when there is none or it is damaged.
    """
    seed = _ascii(_blocks(text).get("SEED") or _as_file(text).strip().removeprefix("\ufeff").strip())
    _check_seed(seed)
    return seed


@hide_arguments
def connect_fields(credentials: Credentials, nonce: str) -> dict[str, str]:
    """Return the authentication fields of CONNECT: user, pass, auth_token, jwt, nkey, sig, those that are set.

    ``nonce`` is INFO's, empty when the server sent none; its bytes are signed as they are. Signing with a seed needs
    the package nkeys (``pip install natsproto[nkeys]``). InvalidCredentials when the server sent no nonce, when that
    package is missing, or when a signer fails. The copies of the seed made here are wiped.
    """
    plain = {
        "user": credentials.user,
        "pass": credentials.password,
        "auth_token": credentials.token,
        "jwt": credentials.jwt,
    }
    found = {name: value for name, value in plain.items() if value is not None}
    public = credentials.nkey
    if credentials.seed is not None:
        own, signature = _sign(credentials.seed, _challenge(nonce))
        if public not in (None, own):
            raise errors.InvalidCredentials("nkey", "is not the public key of the seed")
        public = own
    elif credentials.signer is not None:
        signature = _ask(credentials.signer, _challenge(nonce))
    else:
        return found
    if credentials.jwt is None and public is not None:
        found["nkey"] = public
    # Without padding: the server takes other forms too, but not for every signature.
    found["sig"] = urlsafe_b64encode(signature).rstrip(b"=").decode()
    return found


def _blocks(text: str) -> dict[str, str]:
    """Return the lines inside the first JWT block and the first seed block."""
    if not isinstance(text, str):
        raise TypeError(f"credentials must be a str, not {type(text).__name__}")
    blocks: dict[str, str] = {}
    kind, inside = "", list[str]()
    for line in _as_file(text).splitlines():
        line = line.strip().removeprefix("\ufeff")
        words = line.strip("-").split() if line.startswith("---") and line.endswith("---") else []
        if len(words) < 2 or words[0] not in ("BEGIN", "END"):
            inside.append(line)
        elif words[0] == "BEGIN":
            kind, inside = words[-1].upper(), []
        else:
            blocks.setdefault(kind, "".join(inside))
            kind, inside = "", []
    return blocks


def _as_file(text: str) -> str:
    """Return the text of a file as it was before it became the value of a variable: in quotes, in one line with ``\\n``
    in the place of line breaks, or as base64.
    """
    text = text.strip()
    if text[:1] == text[-1:] and text[:1] in ('"', "'"):
        text = text[1:-1].strip()
    if "---" not in text:
        with suppress(ValueError):  # it is not base64
            decoded = b64decode("".join(text.split()), validate=True).decode()
            text = decoded if "---" in decoded else text
    return text.replace("\\r", "").replace("\\n", "\n")


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "replace")  # what is not ASCII becomes "?", which no seed contains


def _check_seed(seed: bytes) -> None:
    """Raise an error unless ``seed`` is a complete user seed: length, prefix and checksum (CRC-16/XMODEM)."""
    if not isinstance(seed, (bytes, bytearray)):
        raise TypeError(f"seed must be bytes, not {type(seed).__name__}")
    if not _SEED.fullmatch(seed):
        raise errors.InvalidCredentials("nkey seed", "must be 58 characters, S and then A-Z and 2-7")
    raw = bytearray(b32decode(seed + b"=" * (-len(seed) % 8)))
    try:
        if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
            raise errors.InvalidCredentials("nkey seed", "is mistyped or damaged: its checksum is wrong")
        # The first five bits, the letter S, say that it is a seed; the next eight say whose.
        if (raw[0] & 7) << 5 | raw[1] >> 3 != _USER_PREFIX:
            raise errors.InvalidCredentials("nkey seed", "is not the seed of a user: those start with SU")
    finally:
        _wipe(raw)


def _challenge(nonce: str) -> bytes:
    if not nonce:
        raise errors.InvalidCredentials(
            "nkey or jwt",
            "the server sent no nonce to sign, so it knows neither nkeys nor JWTs: is this the right server?",
        )
    return nonce.encode("utf-8", "surrogatepass")


def _sign(seed: bytes, challenge: bytes) -> tuple[str, bytes]:
    """Return the public key of ``seed``, and its signature of ``challenge``."""
    try:
        import nkeys  # type: ignore[import-untyped]  # here, since it is an extra
    except ImportError:
        raise errors.InvalidCredentials("nkey seed", "signing needs a package: pip install natsproto[nkeys]") from None
    copy = bytearray(seed)
    pair = nkeys.from_seed(copy)
    try:
        return pair.public_key.decode(), pair.sign(challenge)  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        pair.wipe()
        _wipe(copy)


def _ask(signer: Callable[[bytes], bytes], challenge: bytes) -> bytes:
    try:
        signature = signer(challenge)
    except Exception as exc:
        raise errors.InvalidCredentials("signer", f"failed with {type(exc).__name__}") from exc
    if not isinstance(signature, (bytes, bytearray)) or len(signature) != 64:
        raise errors.InvalidCredentials("signer", "must return the 64 bytes of an Ed25519 signature")
    return bytes(signature)


def _wipe(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))
