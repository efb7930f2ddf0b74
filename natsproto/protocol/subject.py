"""Subjects: what may be sent, what matches what (ADR-6).

Owns the rules for subjects, wildcards and queue group names. It knows nothing of who uses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from natsproto import errors

MAX_CONTROL_LINE = 65_536
"""Bytes of arguments on one control line, at most; a server reads 4096 unless it is configured otherwise."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_PLAIN = re.compile(r"[!-)+\-/-=?-~]+(?:\.[!-)+\-/-=?-~]+)*").fullmatch  # ASCII without wildcards: nearly every subject
_NAME = re.compile(r"[^\x00-\x20\x7f]+")


def publish_subject(subject: str, what: str = "subject") -> bytes:
    """Return the wire form of a valid subject for publishing, or raise InvalidSubject with the broken rule."""
    if type(subject) is str and len(subject) <= MAX_CONTROL_LINE and _PLAIN(subject):
        return subject.encode()
    wire = _checked(subject, what)
    if "*" in subject or ">" in subject:
        for token in subject.split("."):
            if token in ("*", ">"):
                raise errors.InvalidSubject(
                    what, subject, f"a wildcard ({token}) can be subscribed to, not published to"
                )
    return wire


def subscribe_subject(subject: str, what: str = "subject") -> bytes:
    """Return the wire form of a valid subject for subscribing; ``*`` and a final ``>`` are wildcards.

    A server takes ``orders*`` for a name, to which nobody publishes; it is refused.
    """
    wire = _checked(subject, what)
    if ">" in subject or "*" in subject:
        for token in (parts := subject.split(".")):
            if len(token) > 1 and ("*" in token or ">" in token):
                raise errors.InvalidSubject(
                    what, subject, f"a wildcard must be a whole token, between dots, which {token!r} is not"
                )
        if ">" in parts[:-1]:
            raise errors.InvalidSubject(what, subject, "'>' matches all that follows and must be the last token")
    return wire


def is_literal(subject: str) -> bool:
    """Return True for a subject without wildcards and empty tokens, so that as a filter it matches only itself.

    A server stores a message on the subject ``$KV.b.>``, whose last token is the character ``>``. As the filter of a
    purge it would match every key: check each subject that was read before it is used as a filter.
    """
    try:
        publish_subject(subject)
    except errors.InvalidSubject:
        return False
    return True


def have_no_wildcards(subjects: Iterable[str]) -> bool:
    """Return True if no subject has a wildcard or an empty token; False if one may have. Cheap for many subjects."""
    text = "\n".join(subjects) + "\n"
    return not (">" in text or "*" in text or ".." in text or ".\n" in text or "\n." in text)


def queue_group(name: str) -> bytes:
    """The wire form of a queue group name, or InvalidSubject."""
    if not isinstance(name, str):
        raise TypeError(f"queue group must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise errors.InvalidSubject("queue group", name, "must not be empty or contain spaces or control characters")
    return _encoded(name, "queue group")


def tokens(subject: str) -> list[str]:
    """The tokens between the dots.

    Args:
        subject: The subject to split at its dots.
    """
    return subject.split(".")


def overlap(first: str, second: str) -> bool:
    """Return True if a subject exists that both patterns match."""
    ours, others = first.split("."), second.split(".")
    for one, other in zip(ours, others, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(ours) == len(others)


def matches(pattern: str, subject: str) -> bool:
    """Return True if a subscription to ``pattern`` receives messages published to ``subject``.

    Both must be valid; ``*`` stands for exactly one token, a final ``>`` for one or more.

    Args:
        pattern: A subject that may have ``*`` and ``>``.
        subject: A subject without wildcards.
    """
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index == len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def is_api_subject(subject: str) -> bool:
    """Return True for a subject whose messages are commands of an API, or entries of a key/value bucket or an object
    store, of this account: ``$JS.API.>``, ``$JS.*.API.>`` (not acknowledgements and flow control of a stream "API"),
    ``$KV.>``, ``$O.>``, ``$SRV.>``, and ``$SYS.>`` without ``$SYS._INBOX.>``, where servers receive replies. Imports
    under another prefix are not known here.
    """
    parts = subject.split(".", 3)
    first = parts[0]
    if len(parts) < 2:
        return False
    if first == "$JS":
        return (parts[1] == "API" and len(parts) > 2) or (parts[2:3] == ["API"] and parts[1] not in ("ACK", "FC"))
    return first in ("$KV", "$O", "$SRV") or (first == "$SYS" and parts[1] != "_INBOX")


def _checked(subject: str, what: str) -> bytes:
    if not isinstance(subject, str):
        raise TypeError(f"{what} must be a str, not {type(subject).__name__}")
    if not subject:
        raise errors.InvalidSubject(what, subject, "must not be empty")
    if _FORBIDDEN.search(subject):
        raise errors.InvalidSubject(what, subject, "must not contain spaces or control characters")
    if subject[0] == "." or subject[-1] == "." or ".." in subject:
        raise errors.InvalidSubject(
            what, subject, "has an empty token: dots separate tokens, each of at least one character"
        )
    return _encoded(subject, what)


def _encoded(text: str, what: str) -> bytes:
    try:
        wire = text.encode()
    except UnicodeEncodeError:
        raise errors.InvalidSubject(what, text, "cannot be encoded as UTF-8") from None
    if len(wire) > MAX_CONTROL_LINE:
        raise errors.InvalidSubject(what, text, f"is {len(wire)} bytes long; a control line holds {MAX_CONTROL_LINE}")
    return wire
