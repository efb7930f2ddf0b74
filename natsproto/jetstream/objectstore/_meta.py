"""PURE. The info of an object: its record, its subjects and its digest (ADR-20).

Owns the JSON of an object's info, the subjects of the info and the chunks, and the format of a digest. It sends nothing
and reads no object.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import cast

from natsproto import errors
from natsproto.jetstream._values.bucket_config import OBJECT_STREAM, OBJECT_SUBJECTS
from natsproto.jetstream._values.codec import NEVER, UINT64, Record, flag, integer, labels, loads, optional, text
from natsproto.jetstream._values.record import Field, changed
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.headers import Headers, HeadersLike

DEFAULT_CHUNK_BYTES = 128 * 1024
"""The default size of a chunk in bytes."""
MAX_NAME_BYTES = 2048
"""Bytes of a name: with more, its subject would not fit into a line of the protocol (4 KiB)."""
_DIGEST_PREFIX = "SHA-256="
_NUID = re.compile(r"[!-)+,\-0-9;<=?-\[\]-~]{1,255}")
"""Printable ASCII without ``. * > / \\ :``."""


def _headers() -> Mapping[str, tuple[str, ...]]:
    """A map of names to lists of values."""

    def accept(what: str, value: object) -> object:
        headers = Headers(cast("HeadersLike", value))
        return {name: tuple(headers.get_all(name)) for name in headers}

    def read(value: object) -> object:
        if type(value) is not dict:
            raise TypeError("must be an object")
        return {name: _texts(values) for name, values in value.items()}

    def write(value: object) -> object:
        return {name: list(values) for name, values in cast("Mapping[str, Sequence[str]]", value).items()}

    return cast("Mapping[str, tuple[str, ...]]", Field("headers", {}, accept, read=read, write=write))


def _mtime() -> Timestamp:
    """The time when it was stored, from the message. The JSON has the time of the writer, or "" (nats-py)."""

    def accept(what: str, value: object) -> object:
        if not isinstance(value, Timestamp):
            raise TypeError(f"{what} must be a Timestamp, not {type(value).__name__}")
        return value

    return cast(Timestamp, Field("mtime", NEVER, accept, read=lambda _: NEVER))


def _texts(values: object) -> tuple[str, ...]:
    if type(values) is str:  # as nats-py writes a given str
        return (values,)
    if type(values) is not list or not all(type(one) is str for one in values):
        raise TypeError("must be lists of strings")
    return tuple(values)


class ObjectLink(Record):
    """The target of a link: an object of a store, or with an empty ``name`` the whole store."""

    bucket: str = text()
    """The store of the target; it may be the same one."""
    name: str = text(default="")


class ObjectOptions(Record):
    """The form of an object: chunks of at most ``max_chunk_size`` bytes, or a link."""

    link: ObjectLink | None = optional(ObjectLink, default=None)
    """The target of a link; None: an object with content of its own."""
    max_chunk_size: int = integer(default=0)
    """Bytes of each chunk but the last; 0: 128 KiB, and none of a link."""


class ObjectInfo(Record):
    """The info of an object; its content is read with ``ObjectStore.get``.

    ``size`` is in bytes, ``chunks`` the number of messages, ``digest`` "SHA-256=" and base64, ``mtime`` the time when
    this info was stored. ``headers`` and ``metadata`` are set by the user. ``nuid`` changes with the content. With
    ``deleted`` the object was deleted; size, chunks and digest are empty then, as they are for a link.
    """

    name: str = text()
    """As it was put; any text."""
    description: str = text(default="")
    headers: Mapping[str, tuple[str, ...]] = _headers()
    metadata: Mapping[str, str] = labels(default=None)
    options: ObjectOptions | None = optional(ObjectOptions, default=None)
    """The size of its chunks, or the target of a link; None: other clients may leave it out."""
    bucket: str = text()
    nuid: str = text(default="", always=True)
    # Sent always: other clients take a missing size for an object that has yet to come.
    size: int = integer(default=0, high=UINT64, always=True)
    mtime: Timestamp = _mtime()
    chunks: int = integer(default=0, always=True)
    digest: str = text(default="")
    deleted: bool = flag(default=False)

    @property
    def link(self) -> ObjectLink | None:
        """The target, if it is a link."""
        return None if self.options is None else self.options.link

    @property
    def chunk_size(self) -> int:
        """The largest size of a chunk in bytes."""
        return (self.options.max_chunk_size if self.options is not None else 0) or DEFAULT_CHUNK_BYTES


def read_info(bucket: str, subject: str, seq: int, data: bytes, mtime: Timestamp) -> ObjectInfo:
    """Return the info in a message of this store, stored at ``mtime`` with sequence ``seq``. InvalidReply, with the
    way to remove the message, if it is not one.

    Anyone who may write to the store may have written it, and its nuid becomes a part of a subject, which is purged,
    and of the name of a file. The way to remove it is by its sequence: its subject may be ``$O.b.M.>``, which as a
    filter matches the entries of all objects.
    """
    try:
        return changed(_check_info(subject, loads(ObjectInfo, data)), {"bucket": bucket, "mtime": mtime})
    except errors.InvalidReply as exc:
        delete = f"(await js.stream({OBJECT_STREAM + bucket!r})).delete_message({seq})"
        rule = f"{exc.rule}; to remove the entry: {delete}"
        raise errors.InvalidReply(f"entry of object store {bucket!r}", exc.path, exc.value, rule) from exc


def _check_info(subject: str, info: ObjectInfo) -> ObjectInfo:
    if subject.rpartition(".")[2] != _encode_name(info.name):
        raise errors.InvalidReply("ObjectInfo", "name", info.name, "must be the name that its subject has")
    for field, number in (("size", info.size), ("chunks", info.chunks)):
        if number < 0:
            raise errors.InvalidReply("ObjectInfo", field, number, "must not be negative")
    if not _NUID.fullmatch(info.nuid) and (info.nuid or info.chunks or info.size):
        raise errors.InvalidReply(
            "ObjectInfo", "nuid", info.nuid, "must be one token without wildcards and parts of a path"
        )
    return info


# ---------------------------------------------------------------- names


def check_object_name(name: str) -> str:
    """Return a valid name: any non-empty text that UTF-8 can encode. ConfigError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an object must be a str, not {type(name).__name__}")
    if not name:
        raise errors.ConfigError("object name", name, "must not be empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise errors.ConfigError("object name", name, "cannot be written as UTF-8") from exc
    if size > MAX_NAME_BYTES:
        raise errors.ConfigError("object name", name, f"is longer than {MAX_NAME_BYTES} bytes")
    return name


@lru_cache(maxsize=1024)
def meta_subject(bucket: str, name: str) -> str:
    """The subject of an object's info. A put needs it twice, and so do those who read the object again."""
    return f"{OBJECT_SUBJECTS}{bucket}.M.{_encode_name(name)}"


def _encode_name(name: str) -> str:
    return urlsafe_b64encode(name.encode("utf-8", "surrogatepass")).decode()


def nuid_for(name: str, unique: str) -> str:
    """Return the nuid of new content for an object with this name. Its end proves that no other object has it."""
    return f"{unique}-{_tag(name)}"


def is_own_nuid(info: ObjectInfo) -> bool:
    """True if the nuid was made for the name of the object, so that no entry of another name owns these chunks.

    False for objects that were renamed, or put by other clients.
    """
    return info.nuid.endswith(f"-{_tag(info.name)}")


def _tag(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def all_meta_subjects(bucket: str) -> str:
    """The subjects of all infos."""
    return f"{OBJECT_SUBJECTS}{bucket}.M.>"


def all_chunk_subjects(bucket: str) -> str:
    """The subjects of all chunks."""
    return f"{OBJECT_SUBJECTS}{bucket}.C.>"


def chunk_subject(bucket: str, nuid: str) -> str:
    """The subject of an object's chunks."""
    return f"{OBJECT_SUBJECTS}{bucket}.C.{nuid}"


# ---------------------------------------------------------------- digests


def digest_text(raw: bytes) -> str:
    """Format a SHA-256 as in an ObjectInfo."""
    return _DIGEST_PREFIX + urlsafe_b64encode(raw).decode()


def digest_bytes(info: ObjectInfo) -> bytes:
    """The SHA-256 of an info, as any client wrote it; b"" when there is none. ObjectStoreError for another kind."""
    if not info.digest:
        return b""
    kind, encoded = info.digest[: len(_DIGEST_PREFIX)], info.digest[len(_DIGEST_PREFIX) :]
    try:
        if kind.upper() != _DIGEST_PREFIX:
            raise ValueError
        return b64decode(encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4), b"-_", validate=True)
    except (ValueError, Base64Error):
        raise errors.ObjectStoreError(
            f"object {info.name!r} in store {info.bucket!r}: its digest {info.digest!r} is not a SHA-256"
        ) from None
