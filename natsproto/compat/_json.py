"""Dataclasses for the JSON of the JetStream API, each declared by one line with its fields.

Owns that line: ``name`` is required, ``name?`` is None unless a keyword of the class says otherwise (``dict``,
``list``: a new one). After a colon comes the JSON form: ``s`` is nanoseconds (seconds here), ``s0`` the same with 0 for
None, ``t`` an RFC 3339 string (a datetime here), a class name an object or list of that class, ``{name}`` a dict of
them. Without a colon the value is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from natsproto.jetstream import Timestamp

_NS = 1_000_000_000
_EARLIEST, _LATEST = datetime(1678, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)
"""Servers compare no time beyond these, and no message is stored then."""


class Base:
    """Base class of the dataclasses. Fields of a response that the class does not have are kept, and sent back."""

    names: ClassVar[dict[str, str]] = {}
    """The fields that have another name in the JSON."""
    _kinds: ClassVar[dict[str, str]]
    _records: ClassVar[dict[str, type[Base]]] = {}
    _newer: ClassVar[dict[str, Any]] = {}
    """The fields of a newer server, in an instance that came from one."""

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init_subclass__(cls, fields: str = "", **defaults: Any) -> None:
        words = [word.partition(":") for word in fields.split()]
        cls._kinds = {name.rstrip("?"): kind for name, _, kind in words}
        setattr(cls, "__annotations__", dict.fromkeys(cls._kinds, "Any"))  # noqa: B010  # an attribute to checkers
        for name, _, _ in words:
            if name.endswith("?"):
                default = defaults.get(name[:-1])
                setattr(cls, name[:-1], field(default_factory=default) if isinstance(default, type) else default)
        dataclass(cls)
        cls._records[cls.__name__] = cls

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> Self:
        """Decode a response of the server."""
        keys = {name: name if name in resp else cls.names.get(name, name) for name in cls._kinds}
        made = cls(**{name: cls._read(cls._kinds[name], resp[key]) for name, key in keys.items() if key in resp})
        if newer := resp.keys() - keys.values():
            made.__dict__["_newer"] = {name: resp[name] for name in newer}
        return made

    @classmethod
    def _read(cls, kind: str, value: Any) -> Any:
        if value is None or not kind:
            return value
        if isinstance(value, list):
            return [cls._read(kind, item) for item in value]
        if kind[0] == "{":
            return {key: cls._read(kind[1:-1], item) for key, item in value.items()}
        if kind in ("s", "s0"):
            return value / _NS
        return parse_time(value) if kind == "t" else cls._records[kind].from_response(value)

    def evolve(self, **params: Any) -> Self:
        """Return a copy with changed fields."""
        made = replace(self, **params)  # type: ignore[type-var]  # subclasses are dataclasses
        if self._newer:
            made.__dict__["_newer"] = self._newer
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return the fields to send to the server: those that are not None, and those of a newer server."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # as above
        return self._newer | {
            self.names.get(name, name): _written(self._kinds[name], value)
            for name, value in values.items()
            if value is not None or self._kinds[name] == "s0"
        }


def _written(kind: str, value: Any) -> Any:
    if isinstance(value, Base):
        return value.as_dict()
    if isinstance(value, list):
        return [_written(kind, item) for item in value]
    if isinstance(value, datetime):
        value = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        value = min(max(value, _EARLIEST), _LATEST)
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return int((value or 0) * _NS) if kind in ("s", "s0") else value


def parse_time(text: str) -> datetime:
    """Parse a timestamp of the server."""
    return datetime.fromtimestamp(Timestamp.parse(text).timestamp(), UTC)
