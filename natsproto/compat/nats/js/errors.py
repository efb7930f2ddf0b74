"""``nats.js.errors``: the exceptions of JetStream, under the names of nats-py."""

from __future__ import annotations

from typing import Any, NoReturn

from natsproto.compat._peers import EntryPeer, MessagePeer
from natsproto.compat.nats import errors
from natsproto.compat.nats.js import api as api


class Error(errors.Error):
    def __init__(self, description: str | None = None) -> None:
        self.description = description

    def __str__(self) -> str:
        return f"nats: {self.text}" if self.text else f"nats: JetStream.{type(self).__name__} {self.description or ''}"


class APIError(Error):
    def __init__(
        self,
        code: int | None = None,
        description: str | None = None,
        err_code: int | None = None,
        stream: str | None = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(description)
        self.code: int | None = code
        self.err_code: int | None = err_code
        self.stream: str | None = stream
        self.seq: int | None = seq

    @classmethod
    def from_msg(cls, msg: MessagePeer) -> NoReturn:
        header = msg.header or {}
        status = int(header.get("Status", 0))
        if status == 503:
            raise ServiceUnavailableError
        raise APIError(code=status, description=header.get("Description"))

    @classmethod
    def from_error(cls, err: dict[str, Any]) -> NoReturn:
        """Raises what the ``error`` object of a reply says."""
        raise BY_CODE.get(err["code"], APIError)(**err)

    def __str__(self) -> str:
        if self.text:
            return super().__str__()
        return (
            f"nats: {type(self).__name__}: code={self.code} err_code={self.err_code} description='{self.description}'"
        )


class ServiceUnavailableError(APIError):
    """JetStream is not there (503)."""


class ServerError(APIError):
    """The server failed (500)."""


class NotFoundError(APIError):
    """There is no such thing (404)."""


class BadRequestError(APIError):
    """The request is wrong (400)."""


BY_CODE: dict[int, type[APIError]] = {
    503: ServiceUnavailableError,
    500: ServerError,
    404: NotFoundError,
    400: BadRequestError,
}


class ConsumerInvalidResetError(BadRequestError):
    """The consumer cannot be reset to that sequence."""


class ConsumerSequenceMismatchError(Error):
    def __init__(
        self,
        stream_resume_sequence: int | None = None,
        consumer_sequence: int | None = None,
        last_consumer_sequence: int | None = None,
    ) -> None:
        self.stream_resume_sequence = stream_resume_sequence
        self.consumer_sequence = consumer_sequence
        self.last_consumer_sequence = last_consumer_sequence

    def __str__(self) -> str:
        behind = (self.last_consumer_sequence or 0) - (self.consumer_sequence or 0)
        return (
            f"nats: sequence mismatch for consumer at sequence {self.consumer_sequence} ({behind} sequences behind), "
            f"should restart consumer from stream sequence {self.stream_resume_sequence}"
        )


class KeyValueError(APIError):
    """Base of what goes wrong with a bucket."""


class KeyDeletedError(KeyValueError, NotFoundError):
    text = "key was deleted"

    def __init__(self, entry: EntryPeer | None = None, op: str | None = None) -> None:
        super().__init__()
        self.entry: EntryPeer | None = entry
        self.op: str | None = op


class KeyNotFoundError(KeyValueError, NotFoundError):
    def __init__(self, entry: EntryPeer | None = None, op: str | None = None, message: str | None = None) -> None:
        super().__init__()
        self.entry: EntryPeer | None = entry
        self.op: str | None = op
        self.message: str | None = message

    def __str__(self) -> str:
        return "nats: key not found" + (f": {self.message}" if self.message else "")


class KeyWrongLastSequenceError(KeyValueError, BadRequestError):
    def __init__(self, description: str | None = None) -> None:
        super().__init__(description=description)

    def __str__(self) -> str:
        return f"nats: {self.description}"


class NoStreamResponseError(Error):
    text = "no response from stream"


class TooManyStalledMsgsError(Error):
    text = "stalled with too many outstanding async published messages"


class FetchTimeoutError(errors.TimeoutError):
    text = "fetch timeout"


class BucketNotFoundError(NotFoundError):
    """There is no such bucket."""


class BadBucketError(APIError):
    """The stream of that name is no bucket."""


class NoKeysError(KeyValueError):
    text = "no keys found"


class KeyHistoryTooLargeError(KeyValueError):
    text = "history limited to a max of 64"


class InvalidKeyError(Error):
    """The key has a character that keys cannot have."""


class InvalidBucketNameError(Error):
    """The name has a character that buckets cannot have."""


class InvalidObjectNameError(Error):
    """The object needs a name."""


class BadObjectMetaError(Error):
    """The description of the object cannot be read."""


class LinkIsABucketError(Error):
    """The link is to a store, not to an object."""


class DigestMismatchError(Error):
    """The content does not fit its digest."""


class ObjectNotFoundError(NotFoundError):
    """There is no such object."""


class ObjectDeletedError(NotFoundError):
    """The object was deleted."""


class ObjectAlreadyExists(Error):
    """There is an object of that name."""


class KeyValueLimitMarkerTTLNotSupportedError(Error):
    text = "limit marker TTLs not supported by server"
