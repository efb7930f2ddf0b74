"""Where a message of a stream with sources comes from: the header ``Nats-Stream-Source``."""

from __future__ import annotations

from natsproto._value import Value
from natsproto.protocol.headers import Headers

SOURCE_HEADER = "Nats-Stream-Source"


class MessageSource(Value):
    """The origin of a message that a stream has copied from one of its ``sources``. The copies of a mirror have none.

    A server writes it; in a stream without sources a publisher may have written anything.
    """

    stream: str
    """The name of the origin stream; of another account or domain with ``:`` and a hash of its API prefix."""
    seq: int
    """The sequence of the message in the origin stream."""
    filters: tuple[str, ...] = ()
    """The ``filter_subject`` of the source, or the sources of its ``subject_transforms``; ``>``: none."""
    destinations: tuple[str, ...] = ()
    """The destinations of its ``subject_transforms``; ``>``: none."""
    subject: str = ""
    """The subject in the origin stream; "" from a server before 2.10."""
    identity: str = ""
    """A word for the origin stream, which changes when that is deleted and created again. "" from
    a server that does not send it.
    """


def read_source(headers: Headers) -> MessageSource | None:
    """Return the source in the headers of a message; None if there is none that can be read."""
    words = headers.get(SOURCE_HEADER, "").split(" ")
    if len(words) < 2 or not (words[1].isascii() and words[1].isdigit() and len(words[1]) <= 20):
        return None
    filters, destinations, subject, identity = (*words[2:6], "", "", "", "")[:4]
    return MessageSource(
        stream=words[0],
        seq=int(words[1]),
        filters=tuple(filters.split("\f")) if filters else (),
        destinations=tuple(destinations.split("\f")) if destinations else (),
        subject=subject,
        identity=identity,
    )
