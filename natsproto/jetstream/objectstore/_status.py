"""The status of an object store: the info of its stream, in the words of an object store."""

from __future__ import annotations

from collections.abc import Mapping

from natsproto._value import Value
from natsproto.jetstream._values.bucket_config import ObjectStoreConfig
from natsproto.jetstream._values.info import StreamInfo


class ObjectStoreStatus(Value):
    """The configuration of an object store, and the info of its stream."""

    config: ObjectStoreConfig
    """The configuration in use, with the server's values for fields that were left out."""
    stream: StreamInfo
    """``state.bytes`` counts chunks and infos of all objects, deleted ones too."""

    @classmethod
    def _of(cls, info: StreamInfo) -> ObjectStoreStatus:
        """Return the status from a stream's info. ConfigError when the stream is not an object store."""
        return cls(config=ObjectStoreConfig.from_stream(info.config), stream=info)

    @property
    def bucket(self) -> str:
        """The name without ``OBJ_``, which its stream has."""
        return self.config.bucket

    @property
    def description(self) -> str:
        """The text given when it was created or updated."""
        return self.config.description

    @property
    def bytes(self) -> int:
        """Bytes of all objects and their infos."""
        return self.stream.state.bytes

    @property
    def ttl(self) -> float:
        """Seconds after which objects expire; 0 for never."""
        return self.config.ttl

    @property
    def storage(self) -> str:
        """The storage: "file" or "memory"."""
        return str(self.config.storage)

    @property
    def replicas(self) -> int:
        """How many servers have a copy of each object."""
        return self.config.num_replicas

    @property
    def sealed(self) -> bool:
        """True if the store is read-only."""
        return self.stream.config.sealed

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
        """The metadata of the store, including the server's."""
        return self.config.metadata
