"""A codec reads what was written for a type, or refuses the type by its name."""

from __future__ import annotations

import json
import random
import sys
import time as clock
import typing
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, NotRequired, Required, TypedDict, TypeVar
from uuid import UUID

import msgspec as msgspec_library
import pydantic as pydantic_library
import pytest

from natsproto.codecs import JSON, Codec, msgpack, msgspec, pydantic
from natsproto.codecs._readers import Mismatch
from natsproto.codecs._types import reader_of
from natsproto.errors import ConfigError, InvalidPayload

X = TypeVar("X")
Y = TypeVar("Y")
N = TypeVar("N", bound=int)
C = TypeVar("C", int, str)


class Plain(Enum):
    RED = "red"
    TWO = 2
    PAIR = (1, "a")
    DAY = date(2026, 1, 2)
    YES = True


class Colour(Enum):
    RED = "red"


class Taste(StrEnum):
    SWEET = "sweet"


class Size(IntEnum):
    SMALL = 1


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Found(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Found | None:
        return cls.A if value == "A" else None


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Pair(NamedTuple, Generic[X]):
    one: X
    others: list[X]


Loose = namedtuple("Loose", ["a", "b"])  # as older programs have them


@dataclass
class Account:
    cents: int


@dataclass
class Box(Generic[X]):
    content: X


@dataclass
class Snap(Generic[X, Y]):
    state: X
    before: Snap[X, Y] | None = None
    by_name: dict[str, list[Y]] = field(default_factory=dict)


@dataclass
class AccountBox(Box[Account]):
    name: str = ""


@dataclass
class PairBox(Box[tuple[Y, Y]], Generic[Y]):
    third: Y | None = None


@dataclass
class Bounded(Generic[N, C]):
    number: N
    either: C | None = None


class Keyed(TypedDict, Generic[X]):
    value: X
    more: NotRequired[list[X]]


class Wider(Keyed[int], total=False):
    name: Required[str]
    note: str


@dataclass
class Created:
    order: int
    note: str = ""


@dataclass
class Cancelled:
    order: int
    refund: float = 0.0


@dataclass
class Opened:
    order: int
    kind: Literal["opened"] = "opened"


@dataclass
class Closed:
    order: int
    kind: Literal["closed"] = "closed"
    reason: str | None = None


@dataclass
class Whole:
    x: int


@dataclass
class Text:
    x: str


@dataclass
class Price:
    x: Decimal


@dataclass
class Node:
    value: Node | Whole | list[Node | Whole] | None


@dataclass
class Constant:
    limit: Final[int] = 5


WRITTEN: list[tuple[object, object]] = [
    (tuple[int], (1,)),
    (tuple[int, str, float], (1, "a", 2.5)),
    (tuple[()], ()),
    (Point, Point(1, 2.5)),
    (Pair[date], Pair(date(2026, 1, 2), [date(2026, 1, 3)])),
    (Loose, Loose(1, "a")),
    (list[Point], [Point(1)]),
    *((Plain, member) for member in Plain),
    (Rights, Rights.READ | Rights.WRITE),
    (dict[Colour, int], {Colour.RED: 1}),
    (dict[Size, int], {Size.SMALL: 1}),
    (dict[Taste, int], {Taste.SWEET: 1}),
    (dict[float, int], {1.5: 1, 2.0: 2}),
    (dict[bool, int], {True: 1, False: 2}),
    (dict[None, int], {None: 1}),
    (dict[date, int], {date(2026, 1, 2): 1}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[Literal["a", "b"], int], {"a": 1}),
    (dict[int, dict[int, str]], {1: {-2: "a"}}),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (MappingProxyType[str, int], MappingProxyType({"a": 1})),
    (Box[Account], Box(Account(5))),
    (Box[date], Box(date(2026, 1, 2))),
    (Box[list[Account]], Box([Account(5)])),
    (Box[Box[date]], Box(Box(date(2026, 1, 2)))),
    (Snap[Account, date], Snap(Account(1), Snap(Account(2)), {"a": [date(2026, 1, 2)]})),
    (AccountBox, AccountBox(Account(1), "a")),
    (PairBox[date], PairBox((date(2026, 1, 2), date(2026, 1, 3)), date(2026, 1, 4))),
    (Bounded, Bounded(5, "a")),
    (Keyed[date], {"value": date(2026, 1, 2), "more": []}),
    (Wider, {"value": 1, "name": "a", "more": [2]}),
    (Constant, Constant(6)),
    (Created | Cancelled, Created(1)),
    (Created | Cancelled, Cancelled(2, 99.5)),
    (Created | Cancelled, Created(3, "gift")),
    (list[Created | Cancelled], [Created(1), Cancelled(1)]),
    (dict[str, Cancelled | Created | None], {"a": Created(1), "b": None}),
    (Opened | Closed, Opened(1)),
    (Opened | Closed, Closed(1)),
    (Whole | Text, Text("a")),
    (Price | Box[float], Price(Decimal("1.5"))),
    (Box[int] | Box[str], Box("a")),
    (Account | list[Account], [Account(1)]),
    (list[int] | list[str], ["a"]),
    (list[int] | list[str], []),
    (tuple[int, int] | tuple[int, int, int], (1, 2, 3)),
    (Literal["now"] | datetime, "now"),
    (Literal["now"] | datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (Literal["auto"] | str, "auto"),
    (Literal["auto"] | int | None, 5),
    (Taste | str, Taste.SWEET),
    (Taste | str, "sour"),
    (Size | int, 7),
    (int | float | None, 2.0),
    (date | datetime | time, date(2026, 1, 2)),
    (datetime | date | time, datetime(2026, 1, 2)),
    (date | datetime | time, time(20, 26)),
    (UUID | Decimal | date, UUID(int=12345678901234567890123456789012)),
    (UUID | Decimal | date, Decimal("20260102")),
    (UUID | Decimal | date, Decimal("12345678901234567890123456789012")),
    (Decimal | float, 1.5),
    (Decimal | float, Decimal("1.5")),
    (Any | None, {"a": 1}),
    (Node, Node([Node(Whole(1)), Whole(2), Node(None)])),
]


@pytest.mark.parametrize("codec", [JSON, msgpack()], ids=repr)
@pytest.mark.parametrize(("kind", "value"), WRITTEN, ids=lambda value: str(value)[:60])
def test_what_was_written_is_read(codec: Codec, kind: type[object], value: object) -> None:
    found = codec.decode(codec.encode(value), kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is that of Python 3.12")
def test_aliases_of_python_3_12() -> None:
    scope: dict[str, Any] = {"Account": Account, "Box": Box}
    exec("type Json = None | bool | int | float | str | list[Json] | dict[str, Json]\ntype B[T] = Box[T] | None", scope)
    assert JSON.decode(b'{"a":[1,null,{"b":2.5}]}', scope["Json"]) == {"a": [1, None, {"b": 2.5}]}
    assert JSON.decode(b'{"content":{"cents":1}}', scope["B"][Account]) == Box(Account(1))


@dataclass
class Secret:
    key: InitVar[str]


@dataclass
class Holder:
    account: Account
    inner: list[dict[str, bytes]] = field(default_factory=list)


@dataclass(init=False)
class OwnInit:
    a: int

    def __init__(self, other: int) -> None:
        self.a = other


@dataclass
class Nowhere:
    item: Missing  # type: ignore[name-defined]  # noqa: F821


class Model(pydantic_library.BaseModel):
    id: int


class Struct(msgspec_library.Struct):
    id: int


class UserId(str):
    __slots__ = ()


@dataclass
class Twin:
    order: int
    note: str = ""


class Alike(Enum):
    ONE = date(2026, 1, 2)
    TWO = "2026-01-02"


REFUSED: list[tuple[object, str]] = [
    (bytes, "JSON has no bytes"),
    (Holder, r"type 'Holder': inner\[\]\[\]: JSON has no bytes"),
    (type(sys), "this codec has no module"),
    (UserId, "this codec has no UserId"),
    (timedelta, "this codec has no timedelta"),
    (Path, "this codec has no Path"),
    (deque[int], "deque"),
    (defaultdict[str, int], "defaultdict"),
    (Counter[str], "Counter"),
    (Iterator[int], "Iterator"),
    (type[int], "type"),
    (Callable[[int], int], "this codec has no"),
    (list["Nothing"], "Nothing"),  # type: ignore[name-defined]  # noqa: F821
    (Nowhere, "Missing"),
    (Secret, "InitVar"),
    (OwnInit, "missing a required argument: 'other'"),
    (Model, r"needs codec=natsproto\.codecs\.pydantic\(\)"),
    (list[Struct], r"needs codec=natsproto\.codecs\.msgspec\(\)"),
    (Alike, "are written alike"),
    (Created | Twin, "Created and Twin in a union cannot be told apart"),
    (Box[Created | Twin], "content: Created and Twin in a union cannot be told apart"),
    (str | date, "date and str in a union cannot be told apart"),
    (Colour | str, "Colour and str in a union"),
    (Decimal | str, "cannot be told apart"),
    (list[int] | tuple[int, ...], "cannot be told apart"),
    (list[Created] | list[Cancelled], "cannot be told apart"),
    (set[int] | frozenset[int], "cannot be told apart"),
    (dict[str, int] | Whole, "cannot be told apart"),
    (Any | Whole, "cannot be told apart"),
    (Box[int] | Box[float], "cannot be told apart"),
    (dict[int | str, int], "are all written as strings"),
    (dict[tuple[int, int], int], "cannot be a key"),
    (dict[Account, int], "cannot be a key"),
    (typing.Annotated[list[bytes], [1]], "JSON has no bytes"),
]


@pytest.mark.parametrize(("kind", "reason"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_read_is_refused_by_name(kind: type[object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        JSON.check(kind)
    assert refused.value.name == "type"
    with pytest.raises(ConfigError):
        JSON.decode(b"null", kind)


def test_messagepack_has_bytes_and_keys() -> None:
    for kind, value in (
        (bytes, b"\0"),
        (Holder, Holder(Account(1), [{"a": b"\0"}])),
        (dict[int | str, int], {1: 1, "1": 2}),
    ):
        assert msgpack().decode(msgpack().encode(value), kind) == value


@pytest.mark.parametrize(("codec", "kind"), [(pydantic(), type(sys)), (msgspec(), Created | Cancelled)])
def test_other_libraries_refuse_at_once_too(codec: Any, kind: object) -> None:
    with pytest.raises(ConfigError, match=f"{str(codec)[:7]}.* cannot read it"):
        codec.check(kind)


# ---------------------------------------------------------------- what cannot become the type


@dataclass
class Refusing:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise KeyError("negative")
        _ = 1 // self.value


@pytest.mark.parametrize(
    ("kind", "payload", "complaint"),
    [
        (float, b"1" + b"0" * 400, "too large for a float"),
        (list[float], b"[1e999]", "1e999 is too large"),
        (object, b'{"a":-1e999}', "-1e999 is too large"),
        (Decimal, b"1e999", "too large"),
        (set, b"[[1]]", "unhashable"),
        (set[Any], b"[{}]", "unhashable"),
        (frozenset, b"[[1]]", "unhashable"),
        (set[Account], b'[{"cents":1}]', "unhashable"),
        (Refusing, b'{"value":-1}', "negative"),
        (Refusing, b'{"value":0}', "division"),
        (Whole | Refusing, b'{"value":-1}', "negative"),
        (Literal[1], b"true", "must be one of 1"),
        (Literal[True], b"1", "must be one of True"),
        (dict[int, int], b'{"1_0":1}', "not a valid int"),
        (dict[int, int], b'{" 1":1}', "not a valid int"),
        (dict[int, int], b'{"1.0":1}', "not a valid int"),
        (tuple[int], b"[1,2]", "must have 1 items, not 2"),
        (tuple[int, str, bool], b"[1,2,true]", r"\[1\]: must be a string"),
        (Point, b"[]", "must have 2 items, not 0"),
        (Box[Account], b'{"content":"nonsense"}', "content: must be an object"),
        (Bounded, b'{"number":"a"}', "number: must be a whole number"),
        (Created | Cancelled, b'{"order":1}', "fits Created and Cancelled alike"),
        (Created | Cancelled, b'{"order":"a","note":""}', "order: must be a whole number"),
        (Created | Cancelled, b"{}", "none of"),
        (Opened | Closed, b'{"order":1,"kind":"other"}', "kind: must be one of"),
        (Created | list[int], b'"a"', "a string is none of"),
        (int | list[int], b'["a"]', r"\[0\]: must be a whole number"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_become_the_type(kind: Any, payload: bytes, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=complaint):
        JSON.decode(payload, kind)


def test_a_union_reads_what_newer_programs_send() -> None:
    def read(value: object, kind: Any = Created | Cancelled) -> object:
        return JSON.decode(json.dumps(value).encode(), kind)

    assert read({"order": 1, "note": "a", "more": 1}) == Created(1, "a")
    assert read({"order": 1, "refund": 1.5, "more": 1}) == Cancelled(1, 1.5)
    assert read({"order": 1, "kind": "opened", "reason": "x"}, Opened | Closed) == Opened(1)
    assert read({"x": 1.5}, Price | Box[float]) == Price(Decimal("1.5"))
    assert read({"x": 1, "y": 2}, Whole | Text) == Whole(1)


def test_an_enumeration_finds_what_is_missing() -> None:
    assert JSON.decode(b'"A"', Found) is Found.A
    with pytest.raises(InvalidPayload, match="is not a valid Found"):
        JSON.decode(b'"b"', Found)
    with pytest.raises(InvalidPayload, match="must be a Size, not a bool"):
        JSON.decode(b"true", Size)


# ---------------------------------------------------------------- recursive types


@dataclass
class Not:
    of: Expr


@dataclass
class Neg:
    of: Expr


@dataclass
class Lit:
    value: int


Expr = Not | Neg | Lit


@dataclass
class Rule:
    expr: Expr


@dataclass
class Tree:
    left: Tree | Leaf | None = None
    right: Tree | Leaf | None = None


@dataclass
class Leaf:
    value: int
    right: Leaf | Tree | None = None


def test_a_recursive_union_costs_values_times_types() -> None:
    for inner in ('"x"', '{"value":1}'):
        payload = '{"expr":' + '{"of":' * 60 + inner + "}" * 61
        began = clock.process_time()
        with pytest.raises(InvalidPayload, match=r"none of|fits Not and Neg alike"):
            JSON.decode(payload.encode(), Rule)
        assert clock.process_time() - began < 1  # 2**60 attempts end never
    assert JSON.decode(b'{"expr":{"value":1}}', Rule) == Rule(Lit(1))


def test_random_trees_come_back(seed: int) -> None:
    rng = random.Random(seed)

    def tree(depth: int) -> Tree | Leaf | None:
        if not depth or rng.random() < 0.2:
            return rng.choice([None, Leaf(rng.randrange(9))])
        if rng.random() < 0.4:
            return Leaf(rng.randrange(9), tree(depth - 1))
        return Tree(tree(depth - 1), tree(depth - 1))

    for _ in range(50):
        value = Tree(tree(7), tree(7))
        assert JSON.decode(JSON.encode(value), Tree) == value


def test_a_deep_payload_is_an_invalid_payload() -> None:
    payload = b'{"left":' * 5000 + b"null" + b"}" * 5000
    with pytest.raises(InvalidPayload, match="recursion"):
        JSON.decode(payload, Tree)


def test_a_reader_is_made_once() -> None:
    assert reader_of(Rule) is reader_of(Rule)
    with pytest.raises(Mismatch):
        reader_of(Sequence[int]).read(5, {})
    assert JSON.decode(b"[1]", Sequence[int]) == [1]
    assert JSON.decode(b'{"a":1}', Mapping[str, int]) == {"a": 1}
