"""``nats.js.errors``: the exceptions of JetStream, under the names of nats-py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from natsproto.compat.nats import errors

if TYPE_CHECKING:
    from natsproto.compat.nats.aio.msg import Msg
    from natsproto.compat.nats.js.kv import KeyValue


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
        self.code, self.err_code, self.stream, self.seq = code, err_code, stream, seq

    @classmethod
    def from_msg(cls, msg: Msg) -> NoReturn:
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
            f"nats: {type(self).__name__}: code={self.code} err_code={self.err_code} description={self.description!r}"
        )


class ServiceUnavailableError(APIError):
    """JetStream is not there (503)."""


class ServerError(APIError):
    """The server failed (500)."""


class NotFoundError(APIError):
    """There is no such thing (404)."""


class BadRequestError(APIError):
    """The request is wrong (400)."""


BY_CODE = {503: ServiceUnavailableError, 500: ServerError, 404: NotFoundError, 400: BadRequestError}


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

    def __init__(self, entry: KeyValue.Entry | None = None, op: str | None = None) -> None:
        super().__init__()
        self.entry, self.op = entry, op


class KeyNotFoundError(KeyValueError, NotFoundError):
    def __init__(self, entry: KeyValue.Entry | None = None, op: str | None = None, message: str | None = None) -> None:
        super().__init__()
        self.entry, self.op, self.message = entry, op, message

    def __str__(self) -> str:
        return "nats: key not found" + (f": {self.message}" if self.message else "")


class KeyWrongLastSequenceError(KeyValueError, BadRequestError):
    def __init__(self, description: str | None = None) -> None:
        super().__init__(description=description)

    def __str__(self) -> str:
        return f"nats: {self.description}"


def _error(name: str, text: str = "", base: type[errors.Error] = Error) -> type[errors.Error]:
    return errors.error(name, text, base, module=__name__)


NoStreamResponseError = _error("NoStreamResponseError", "no response from stream")
TooManyStalledMsgsError = _error(
    "TooManyStalledMsgsError", "stalled with too many outstanding async published messages"
)
FetchTimeoutError = _error("FetchTimeoutError", "fetch timeout", base=errors.TimeoutError)
BucketNotFoundError = _error("BucketNotFoundError", base=NotFoundError)
BadBucketError = _error("BadBucketError", base=APIError)
NoKeysError = _error("NoKeysError", "no keys found", base=KeyValueError)
KeyHistoryTooLargeError = _error("KeyHistoryTooLargeError", "history limited to a max of 64", base=KeyValueError)
InvalidKeyError = _error("InvalidKeyError")
InvalidBucketNameError = _error("InvalidBucketNameError")
InvalidObjectNameError = _error("InvalidObjectNameError")
BadObjectMetaError = _error("BadObjectMetaError")
LinkIsABucketError = _error("LinkIsABucketError")
DigestMismatchError = _error("DigestMismatchError")
ObjectNotFoundError = _error("ObjectNotFoundError", base=NotFoundError)
ObjectDeletedError = _error("ObjectDeletedError", base=NotFoundError)
ObjectAlreadyExists = _error("ObjectAlreadyExists")
KeyValueLimitMarkerTTLNotSupportedError = _error(
    "KeyValueLimitMarkerTTLNotSupportedError", "limit marker TTLs not supported by server"
)
