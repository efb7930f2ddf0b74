"""Records: frozen, slotted, keyword-only values that are checked when a program makes them.

Owns the record class, the declaration of a field, and the checks of values that need no conversion. It knows no JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast

from natsproto import errors
from natsproto._help.introspection import DocWithFields, html_table
from natsproto._help.nats_py_names import FIELD_MEANINGS, FIELDS, hint
from natsproto._value import did_you_mean

if TYPE_CHECKING:
    import dataclasses

R = TypeVar("R", bound="BaseRecord")

_ENVELOPE = frozenset({"type", "total", "offset", "limit"})  # keys of the reply around a record

REQUIRED = object()
"""The default of a field that has none."""


class Field:
    """One field of a record: its JSON key and its conversions.

    ``accept(what, value)`` checks an argument of the user and raises TypeError or ConfigError. ``read`` converts a
    value from the server and raises TypeError or ValueError; None when a value of the type ``exact`` needs no
    conversion. ``write`` converts the value to JSON; None when it is JSON already. ``always``: sent even when falsy.
    """

    __slots__ = ("accept", "always", "default", "exact", "key", "put", "read", "write")

    def __init__(
        self,
        key: str,
        default: object,
        accept: Callable[[str, object], object],
        *,
        exact: type = object,
        read: Callable[[object], object] | None = None,
        write: Callable[[object], object] | None = None,
        always: bool = False,
    ) -> None:
        self.key, self.default, self.always = key, default, always
        self.accept, self.exact, self.read, self.write = accept, exact, read, write
        self.put: Callable[[object, object], None] = _unbound


def _unbound(record: object, value: object) -> None:
    raise TypeError("a field belongs to a record class")


class BaseRecordType(type):
    """Creates record classes: the fields of the class body become slots and a table of ``Field``."""

    _fields: dict[str, Field]  # by attribute name, inherited ones first
    _plan: tuple[tuple[str, Field, type, object, Callable[[object], object] | None], ...]  # the same for reading
    _keys: frozenset[str]  # every wire key that is not extra

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, object]) -> BaseRecordType:
        """Remove the fields from the body, since slots take their names."""
        own = {attribute: field for attribute, field in body.items() if isinstance(field, Field)}
        for attribute in own:
            del body[attribute]
        body["__slots__"] = tuple(own)
        body["__doc__"] = DocWithFields(cast("str | None", body.get("__doc__")))
        cls = super().__new__(mcs, name, bases, body)
        fields: dict[str, Field] = dict(bases[0]._fields) if bases and isinstance(bases[0], BaseRecordType) else {}
        for attribute, field in own.items():
            field.key = field.key or attribute
            field.put = cls.__dict__[attribute].__set__
            fields[attribute] = field
        cls._fields = fields
        cls._plan = tuple(
            (field.key, field, field.exact, field.default, field.read)
            for attribute, field in fields.items()
            if attribute != "extra"
        )
        cls._keys = _ENVELOPE.union(key for key, *_ in cls._plan)
        return cls


class _DataclassFields:
    """``__dataclass_fields__``, computed when read, so that the functions of ``dataclasses`` accept records."""

    def __get__(self, record: object, owner: BaseRecordType) -> dict[str, object]:
        import dataclasses

        found: dict[str, object] = {}
        for name, field in owner._fields.items():
            view: dataclasses.Field[object] = dataclasses.field(kw_only=True)
            if isinstance(field.default, dict):
                view.default_factory = dict
            elif field.default is not REQUIRED:
                view.default = field.default
            view.name, view.type = name, owner.__annotations__.get(name, "object")
            view._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            found[name] = view
        return found


class BaseRecord(metaclass=BaseRecordType):
    """A frozen value with named fields, created from keyword arguments. Equal when all fields are. None stands for a
    field that is left out.

    ``extra`` has the fields of a newer server that this version does not know; they are sent back unchanged.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]
    else:
        __dataclass_fields__ = _DataclassFields()

    def __init__(self, **given: object) -> None:
        kind = type(self)
        for name, field in kind._fields.items():
            if given.get(name) is not None or (field.default is REQUIRED and name in given):
                value = field.accept(name, given.pop(name))
            elif (value := field.default) is REQUIRED:
                raise _misnamed(kind, given, f"needs {name}=")
            else:
                given.pop(name, None)  # None: as if it was left out
                value = {} if type(value) is dict else value
            field.put(self, value)
        if given:
            raise _misnamed(kind, given)

    def replace(self: R, **changes: object) -> R:
        """Return a copy with some fields changed; they are checked as in the constructor."""
        fields = type(self)._fields
        if not changes.keys() <= fields.keys():
            raise _misnamed(type(self), changes)
        return changed(self, {name: fields[name].accept(name, value) for name, value in changes.items()})

    __replace__ = replace

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self)._fields)

    __hash__: ClassVar[None]  # type: ignore[assignment]  # records hold maps

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: use replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._shown())})"

    def _repr_html_(self) -> str:
        """The same as a table in a notebook."""
        return html_table(type(self).__name__, self._shown())

    def _shown(self) -> Iterator[tuple[str, object]]:
        for name, field in type(self)._fields.items():
            if (value := getattr(self, name)) != field.default:
                yield name, value

    def __reduce__(self) -> tuple[object, ...]:
        kind = type(self)
        return restored, (kind, tuple(getattr(self, name) for name in kind._fields))


def _misnamed(kind: type[BaseRecord], given: Iterable[str], missing: str = "") -> TypeError:
    """Return the error for unknown names, one of which may be a misspelled required field."""
    strange = [name for name in given if name not in kind._fields]
    advice = [hint(name, FIELDS) or _meant(kind, name) or did_you_mean(name, kind._fields) for name in strange]
    found = [f"has no field {name!r}{one}" for name, one in zip(strange, advice, strict=True)]
    fields = f"; it has {', '.join(kind._fields)}" if strange and not any(advice) else ""
    return TypeError(f"{kind.__name__} {', '.join([missing] * bool(missing) + found)}{fields}")


def _meant(kind: type[BaseRecord], name: str) -> str:
    """Return the hint for a name that other clients have for a field of this record."""
    meant = [field for field in FIELD_MEANINGS.get(name, ()) if field in kind._fields]
    return f"; did you mean {meant[0]!r}?" if meant else ""


def amended(kind: type[R], given: R | str | None, fields: Mapping[str, object], key: str) -> R:
    """Return a copy of a record with other values of some fields, or a new record of these fields.

    A str is the value of the field ``key``. TypeError for unknown fields; ConfigError for two names.
    """
    if given is None:
        return kind(**fields)  # checked by the constructor
    if isinstance(given, str):
        other = fields.get(key, given)
        if other != given:
            raise errors.ConfigError(key, other, f"differs from {given!r}: give one of them")
        return kind(**{**fields, key: given})
    if not isinstance(given, kind):
        raise TypeError(f"the first argument must be the {key} or a {kind.__name__}, not {type(given).__name__}")
    return given.replace(**fields)


def named_changes(
    kind: type[R], given: str | None, fields: Mapping[str, object], *keys: str
) -> tuple[R, dict[str, Any]]:
    """Return a record of the name and the changes alone, and the changes. The name may be one of the fields, too.

    TypeError without a name; ConfigError for two names.
    """
    changes: dict[str, Any] = dict(fields)
    names = [] if given is None else [given]
    names += [cast("str", changes.pop(key)) for key in keys if key in changes]
    if not names:
        raise TypeError(f"the {keys[0]} is needed to update it: pass it first")
    partial = kind(**{keys[0]: names[0], **changes})
    for other in names:
        if other != names[0]:
            raise errors.ConfigError(keys[0], other, f"differs from {names[0]!r}, which cannot be renamed")
    return partial, changes


def changed(record: R, values: Mapping[str, object]) -> R:
    """``replace`` without checks, for values of natsproto's own."""
    copy = type(record).__new__(type(record))
    for name, field in type(record)._fields.items():
        field.put(copy, values[name] if name in values else getattr(record, name))
    return copy


def restored(kind: type[R], values: tuple[object, ...]) -> R:
    """Create a record from all its values, ``extra`` first and the others in their order, unchecked."""
    record = kind.__new__(kind)
    for field, value in zip(kind._fields.values(), values, strict=True):
        field.put(record, value)
    return record


# ---------------------------------------------------------------- checks of what a program passes


def wrong_type(what: str, value: object, wanted: str) -> NoReturn:
    raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")


def accept_text(what: str, value: object) -> object:
    if not isinstance(value, str):
        wrong_type(what, value, "a str")
    return value


def accept_flag(what: str, value: object) -> object:
    if not isinstance(value, bool):
        wrong_type(what, value, "a bool")
    return value


def accept_strings(what: str, value: object) -> object:
    return tuple(accept_text(what, one) for one in each(what, value, "strings"))


def accept_integers(what: str, value: object) -> object:
    return tuple(each(what, value, "ints"))


def accept_map(what: str, value: object) -> object:
    if not isinstance(value, Mapping):
        wrong_type(what, value, "a mapping")
    return dict(value)


def accept_labels(what: str, value: object) -> object:
    found = cast("dict[object, object]", accept_map(what, value))
    for label, content in found.items():
        if not (isinstance(label, str) and isinstance(content, str)):
            raise TypeError(f"{what} must map str to str, not {label!r} to {content!r}")
    return found


def accept_blob(what: str, value: object) -> object:
    if not isinstance(value, bytes | bytearray | memoryview):
        wrong_type(what, value, "bytes")
    return bytes(value)


def each(what: str, value: object, wanted: str) -> Iterable[object]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        wrong_type(what, value, f"a list or tuple of {wanted}")
    return value
