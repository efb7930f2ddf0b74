"""The configuration and state of a key/value bucket."""

from __future__ import annotations

from collections.abc import Mapping

from natsproto._value import Value
from natsproto.jetstream._values.bucket_config import KeyValueConfig
from natsproto.jetstream._values.info import StreamInfo


class KeyValueStatus(Value):
    """The configuration of a bucket, and the info of its stream."""

    config: KeyValueConfig
    """The configuration in use, with the server's values for fields that were left out."""
    stream: StreamInfo
    """``state.messages`` counts all stored entries, with history and markers of deletions."""

    @classmethod
    def _of(cls, info: StreamInfo) -> KeyValueStatus:
        """Return the status from a stream's info. ConfigError when the stream is not a bucket."""
        return cls(config=KeyValueConfig.from_stream(info.config), stream=info)

    @property
    def bucket(self) -> str:
        """The name without ``KV_``, which its stream has."""
        return self.config.bucket

    @property
    def values(self) -> int:
        """Entries in the bucket, including history and deletions."""
        return self.stream.state.messages

    @property
    def bytes(self) -> int:
        """Bytes of all entries with history, markers and overhead."""
        return self.stream.state.bytes

    @property
    def last_revision(self) -> int:
        """The revision of the last entry written."""
        return self.stream.state.last_seq

    @property
    def history(self) -> int:
        """Entries kept per key."""
        return self.config.history

    @property
    def ttl(self) -> float:
        """Seconds after which entries expire; 0 for never."""
        return self.config.ttl

    @property
    def limit_marker_ttl(self) -> float:
        """Seconds for which markers of expired keys are kept; 0: no markers, and no TTL for single keys."""
        return self.config.limit_marker_ttl

    @property
    def is_compressed(self) -> bool:
        """True if it is compressed on disk."""
        return self.config.compression

    @property
    def backing_store(self) -> str:
        """The backing store: "JetStream"."""
        return "JetStream"

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the bucket, including the server's."""
        return self.config.metadata
