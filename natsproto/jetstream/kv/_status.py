"""The status of a bucket (ADR-8)."""

from __future__ import annotations

from collections.abc import Mapping

from natsproto._value import Value
from natsproto.jetstream._config import KeyValueConfig
from natsproto.jetstream._info import StreamInfo


class KeyValueStatus(Value):
    """A bucket: its configuration, and the info of the stream behind it."""

    config: KeyValueConfig
    stream: StreamInfo

    @classmethod
    def of(cls, info: StreamInfo) -> KeyValueStatus:
        """The status that a stream's info tells. ConfigError when it is no bucket."""
        return cls(config=KeyValueConfig.from_stream(info.config), stream=info)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.config.bucket

    @property
    def values(self) -> int:
        """Entries in the bucket, history and deletions included."""
        return self.stream.state.messages

    @property
    def bytes(self) -> int:
        """Bytes of all entries."""
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
        """Seconds for which markers of expired keys are kept; 0: there are none, and no TTL of single keys."""
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
        """The metadata of the bucket, those of the server included."""
        return self.config.metadata
