"""The shares of members that come and go: sticky, and equal within one partition.

It does no I/O. Every member computes the same from the same configuration and the same living members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from natsproto import errors
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._values.asset_names import check_consumer_name
from natsproto.jetstream.groups._partitions import GroupConfig, PartitioningFilter
from natsproto.protocol.subject import matches

MANAGED_PREFIX: Final = "join-"
"""Names of members that come and go by themselves. All others belong to an administrator."""


def member_name(name: str) -> str:
    """Return the name that a member has in the configuration and in its key. InvalidSubject."""
    checked = check_consumer_name(name)
    if not checked.isascii() or not checked.replace("-", "").replace("_", "").replace("=", "").isalnum():
        raise errors.InvalidSubject("name", name, "only A-Z, a-z, 0-9, '-', '_' and '='")
    return MANAGED_PREFIX + checked


def is_managed(member: str) -> bool:
    """True for a member that comes and goes by itself."""
    return member.startswith(MANAGED_PREFIX)


def is_member(name: str) -> bool:
    """True if a member that comes and goes by itself can have this name."""
    try:
        return is_managed(name) and member_name(name.removeprefix(MANAGED_PREFIX)) == name
    except (errors.ConfigError, errors.InvalidSubject):
        return False


def owners_in(config: GroupConfig) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each member."""
    return {name: config.partitions(name) for name in config.names}


def share_out(config: GroupConfig, living: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each member when these managed ones live; empty without any member.

    Each member keeps what it has, up to its share. Members beyond the number of partitions get none.
    """
    owners = {name: own for name, own in owners_in(config).items() if not is_managed(name) or name in living}
    room = max(0, config.max_members - len(owners))
    owners |= dict.fromkeys(sorted(set(living) - owners.keys())[:room], ())
    if not owners:
        return {}
    share, larger = divmod(config.max_members, len(owners))
    by_size = sorted(owners, key=lambda name: (-len(owners[name]), name))
    sizes = {name: share + (index < larger) for index, name in enumerate(by_size)}
    kept = {name: own[: sizes[name]] for name, own in owners.items()}
    held = {partition for own in kept.values() for partition in own}
    free = iter([partition for partition in range(config.max_members) if partition not in held])
    return {
        name: own
        if len(own) == sizes[name]
        else tuple(sorted([*own, *(next(free) for _ in range(sizes[name] - len(own)))]))
        for name, own in kept.items()
    }


def is_balanced(config: GroupConfig, living: Collection[str]) -> bool:
    """True if the configuration maps the partitions as they should be."""
    wanted = share_out(config, living)
    return not wanted or (not config.members and wanted == owners_in(config))


def key_of(filters: Collection[PartitioningFilter]) -> Callable[[JsMessage], object]:
    """Return a function for the key of a message, by which the server has chosen its partition."""
    numbers: Mapping[str, list[int]] = {
        one.filter: [
            [index for index, token in enumerate(one.filter.split(".")) if token == "*"][number - 1]
            for number in one.partitioning_wildcards
        ]
        for one in filters
    }
    if not any(numbers.values()):
        return lambda message: message.subject

    def key(message: JsMessage) -> object:
        subject = message.subject
        for pattern, chosen in numbers.items():
            if len(numbers) == 1 or matches(pattern, subject):
                tokens = subject.split(".")
                return tuple(tokens[index] for index in chosen) or subject
        return subject

    return key
