"""nkeys and xkeys: key pairs in the text format of NATS.

Owns that format (prefix, CRC-16, base32 without padding). PyNaCl signs, verifies and encrypts.
"""

from __future__ import annotations

import binascii
from base64 import b32decode, b32encode
from typing import Literal, TypeAlias, get_args

from natsproto import errors
from natsproto.errors._base import hide_arguments

try:
    from nacl.exceptions import CryptoError
    from nacl.public import Box, PrivateKey, PublicKey
    from nacl.signing import SigningKey, VerifyKey
except ModuleNotFoundError as exc:
    raise ImportError("natsproto.auth needs the package pynacl: pip install natsproto[nkeys]") from exc

KeyKind: TypeAlias = Literal["account", "cluster", "operator", "server", "user"]
"""The owner of a signing key. The public key begins with A, C, O, N or U."""

_PREFIXES = {"account": 0, "cluster": 2 << 3, "server": 13 << 3, "operator": 14 << 3, "user": 20 << 3, "curve": 23 << 3}
_KINDS = {prefix: kind for kind, prefix in _PREFIXES.items()}
_SEED_PREFIX = 18 << 3
_XKEY_VERSION = b"xkv1"


class KeyPair:
    """An Ed25519 key pair of NATS. Created by ``generate`` and ``from_seed``.

    Its repr shows only the public key. The private key stays in memory as long as the object exists.
    """

    def __init__(self, kind: KeyKind, key: bytes) -> None:
        if kind not in get_args(KeyKind):
            raise errors.ConfigError("kind", kind, f"must be one of {', '.join(get_args(KeyKind))}")
        self.kind: KeyKind = kind
        """The owner of the key: ``account``, ``user`` …"""
        self._key = SigningKey(key)
        self.public_key: str = _encode(bytes([_PREFIXES[kind]]), bytes(self._key.verify_key))
        """The public key: 56 characters, of which the first is the letter of the kind."""

    def __repr__(self) -> str:
        return f"KeyPair({self.public_key})"

    @classmethod
    def generate(cls, kind: KeyKind) -> KeyPair:
        """Generate a key pair from the system's random numbers. ConfigError for an unknown kind.

        Args:
            kind: What the key is for: "account", "user", "operator", "server" or "cluster".
        """
        return cls(kind, bytes(SigningKey.generate()))

    @classmethod
    @hide_arguments
    def from_seed(cls, seed: str) -> KeyPair:
        """Return the key pair of ``seed`` (``SA…``, ``SU…`` …). InvalidCredentials for a damaged seed or an xkey's.

        Args:
            seed: The seed, which begins with S. It is a secret.
        """
        kind, key = _decode_seed(seed)
        if kind == "curve":
            raise errors.InvalidCredentials("nkey seed", "is the seed of an xkey: use XKey.from_seed")
        return cls(kind, key)  # type: ignore[arg-type]  # all kinds but curve

    @property
    def seed(self) -> str:
        """The secret: 58 characters that begin with S and the letter of the kind."""
        return _encode_seed(self.kind, bytes(self._key))

    def sign(self, data: bytes) -> bytes:
        """Return the signature, 64 bytes. The method can be the ``signer`` of ``Credentials``.

        Args:
            data: Any bytes, such as the nonce of a server.
        """
        return self._key.sign(data).signature


class XKey:
    """A Curve25519 key pair, which encrypts data for one recipient and decrypts it, compatible with nkeys of Go.

    Created by ``generate`` and ``from_seed``. Its repr shows only the public key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = PrivateKey(key)
        self.public_key: str = _encode(bytes([_PREFIXES["curve"]]), bytes(self._key.public_key))
        """The public key: 56 characters that begin with X."""

    def __repr__(self) -> str:
        return f"XKey({self.public_key})"

    @classmethod
    def generate(cls) -> XKey:
        """Generate a key pair from the system's random numbers."""
        return cls(bytes(PrivateKey.generate()))

    @classmethod
    @hide_arguments
    def from_seed(cls, seed: str) -> XKey:
        """Return the key pair of ``seed`` (``SX…``). InvalidCredentials for a damaged seed or one of another kind.

        Args:
            seed: The seed, which begins with S. It is a secret.
        """
        kind, key = _decode_seed(seed)
        if kind != "curve":
            raise errors.InvalidCredentials("xkey seed", f"is the seed of a {kind} key: seeds of xkeys start with SX")
        return cls(key)

    @property
    def seed(self) -> str:
        """The secret: 58 characters that begin with SX."""
        return _encode_seed("curve", bytes(self._key))

    def seal(self, data: bytes, recipient: str) -> bytes:
        """Encrypt ``data`` for the holder of the public xkey ``recipient``. The result is 44 bytes longer.

        It authenticates the sender too. InvalidCredentials if ``recipient`` is not a public xkey.

        Args:
            data: The bytes to encrypt.
            recipient: Whose private key can open it: a public key, which begins with X.
        """
        return _XKEY_VERSION + bytes(self._box(recipient).encrypt(data))

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Decrypt data that the holder of the public xkey ``sender`` has sealed for this key pair.

        InvalidCredentials for data from another sender, for another recipient, or modified data.

        Args:
            sealed: What ``seal`` returned.
            sender: Whose key sealed it: a public key, which begins with X.
        """
        if not sealed.startswith(_XKEY_VERSION):
            raise errors.InvalidCredentials("sealed data", "are not sealed with an xkey (version xkv1)")
        box = self._box(sender)
        try:
            return box.decrypt(sealed[len(_XKEY_VERSION) :])
        except (CryptoError, ValueError):
            raise errors.InvalidCredentials(
                "sealed data", "cannot be decrypted: sealed with other keys, or damaged"
            ) from None

    def _box(self, public_key: str) -> Box:
        try:
            return Box(self._key, PublicKey(decode_public(public_key, "curve")))
        except CryptoError:  # a point of low order: everybody could compute the shared key
            raise errors.InvalidCredentials("public key", "is not a usable xkey") from None


def verify(public_key: str, data: bytes, signature: bytes) -> bool:
    """Return True when the holder of ``public_key`` has signed ``data``. InvalidCredentials for another kind of key.

    Args:
        public_key: The text form, which begins with A, C, N, O or U.
        data: The bytes that were signed.
        signature: 64 bytes, as ``KeyPair.sign`` returns them.
    """
    key = VerifyKey(decode_public(public_key, *get_args(KeyKind)))
    try:
        key.verify(data, signature)
    except (CryptoError, ValueError):  # ValueError for signatures of another length
        return False
    return True


def decode_public(public_key: str, *kinds: str) -> bytes:
    """Return the 32 bytes of a public key of one of these kinds. InvalidCredentials for everything else."""
    names = " or ".join(kinds)
    raw = _decode(public_key, "public key")
    if len(raw) != 33 or _KINDS.get(raw[0]) not in kinds:
        raise errors.InvalidCredentials("public key", f"is not a public key of kind {names}")
    return raw[1:]


def _encode(head: bytes, key: bytes) -> str:
    raw = head + key
    return b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def _decode(text: str, what: str) -> bytes:
    """Return the decoded bytes without their checksum. InvalidCredentials without any of the text."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    try:
        raw = b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise errors.InvalidCredentials(what, "may contain only A-Z and 2-7") from None
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise errors.InvalidCredentials(what, "is mistyped or damaged: its checksum is wrong")
    return raw[:-2]


def _encode_seed(kind: str, key: bytes) -> str:
    prefix = _PREFIXES[kind]
    # Five bits for the letter S and eight for the kind, so that both are letters of the base32 text.
    return _encode(bytes([_SEED_PREFIX | prefix >> 5, (prefix & 31) << 3]), key)


def _decode_seed(seed: str) -> tuple[str, bytes]:
    raw = _decode(seed, "nkey seed")
    kind = _KINDS.get((raw[0] & 7) << 5 | raw[1] >> 3) if len(raw) == 34 and raw[0] & 248 == _SEED_PREFIX else None
    if kind is None:
        raise errors.InvalidCredentials("nkey seed", "is not a seed: a seed has 58 characters and starts with S")
    return kind, raw[2:]
