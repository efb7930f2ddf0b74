"""Codecs: what goes out comes back, and what does not fit says where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec as msgspec_library
import pydantic as pydantic_library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.codecs import JSON, Codec, JsonCodec, msgpack, msgspec, pydantic
from natsproto.errors import ConfigError, InvalidPayload


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Size(IntEnum):
    SMALL = 1


class Taste(StrEnum):
    SWEET = "sweet"


OrderId = NewType("OrderId", int)
X = TypeVar("X")


@dataclass(frozen=True)
class Item:
    name: str
    amount: int = 1
    tags: list[str] = field(default_factory=list)
    hidden: str = field(default="computed", init=False)


@dataclass
class Order:
    id: OrderId
    items: Sequence[Item]
    total: float
    paid: bool = False
    note: str | None = None
    at: datetime | None = None
    colours: frozenset[Colour] = frozenset()
    parent: Order | None = None


@dataclass
class Box(Generic[X]):
    content: X


class Address(TypedDict):
    street: str
    number: NotRequired[int]


ROUND_TRIPS: list[tuple[object, object]] = [
    (int, 5),
    (int, 2**80),
    (float, 1.5),
    (float, 2.0),
    (bool, True),
    (str, "ü\u2028\U0001f600"),
    (object, {"a": [1, None]}),
    (Any, [1, "a"]),
    (list, [1, "a"]),
    (list[int], [1, 2]),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str], (1, "a")),
    (tuple, (1, "a")),
    (set[int], {1, 2}),
    (dict, {"a": 1}),
    (dict[str, list[int]], {"a": [1]}),
    (dict[int, str], {1: "a"}),
    (Mapping[str, int], {"a": 1}),
    (int | None, None),
    (int | str, 5),
    (int | str, "a"),
    (float | int, 5),
    (date | datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (Literal["a", 5], 5),
    (Annotated[int, "positive"], 5),
    (OrderId, OrderId(5)),
    (Colour, Colour.RED),
    (Colour, Colour.BLUE),
    (dict[str, Colour], {"a": Colour.BLUE}),
    (Size, Size.SMALL),
    (Taste, Taste.SWEET),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))),
    (date, date(2026, 1, 2)),
    (time, time(1, 2, 3)),
    (UUID, UUID(int=5)),
    (Decimal, Decimal("1.10")),
    (Item, Item("a")),
    (Address, {"street": "a"}),
    (Address, {"street": "a", "number": 5}),
    (Box[int], Box(5)),
    (Order, Order(OrderId(1), [Item("a", 2, ["x"])], 1.5, True, "n", datetime(2026, 1, 2, tzinfo=UTC))),
    (Order, Order(OrderId(1), [], 0, colours=frozenset({Colour.RED}), parent=Order(OrderId(2), [], 1))),
]


@pytest.mark.parametrize(("kind", "value"), ROUND_TRIPS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("codec", [JSON, msgpack()], ids=repr)
def test_what_goes_out_comes_back(codec: Codec, kind: type[object], value: object) -> None:
    if value == 2**80 and codec is not JSON:
        pytest.skip("MessagePack has no such number")
    decoded = codec.decode(codec.encode(value), kind)
    assert decoded == value
    assert type(decoded) is type(value) or isinstance(value, float)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_JSON)
def test_every_plain_value_survives(value: object) -> None:
    try:
        payload = JSON.encode(value)
    except InvalidPayload as exc:
        assert "surrogates" in exc.reason  # noqa: PT017
        return
    assert JSON.decode(payload, object) == value
    assert json.loads(payload) == value


@given(st.binary() | _JSON.map(lambda value: json.dumps(value).encode()))
@pytest.mark.parametrize("kind", [kind for kind, _ in ROUND_TRIPS[::4]] + [Order, Address], ids=str)
def test_any_payload_is_a_value_or_an_invalid_payload(kind: type[object], payload: bytes) -> None:
    for codec in (JSON, msgpack()):
        try:
            codec.decode(payload, kind)
        except InvalidPayload as exc:
            assert exc.operation == "decode"  # noqa: PT017


@pytest.mark.parametrize(
    ("kind", "payload", "complaint"),
    [
        (int, b"1.5", "cannot decode int: must be a whole number, not a number"),
        (int, b"true", "cannot decode int: must be a whole number, not a bool"),
        (float, b"true", "must be a number, not a bool"),
        (bool, b"1", "must be true or false, not a number"),
        (str, b"null", "must be a string, not null"),
        (None, b"5", "must be null, not a number"),
        (list[int], b'[1,"a"]', r"\[1\]: must be a whole number, not a string"),
        (dict[str, list[int]], b'{"a":[1,{}]}', r"\['a'\]\[1\]: must be a whole number, not an object"),
        (dict[int, int], b'{"a":1}', "is not a valid int"),
        (tuple[int, str], b"[1]", "must have 2 items, not 1"),
        (int | list[int], b'"a"', r"a string is none of int \| list\[int\]"),
        (Literal["a", 1], b'"b"', "must be one of 'a', 1"),
        (Colour, b'"green"', "is not a valid Colour"),
        (Colour, b"[]", "must be a Colour, not a list"),
        (datetime, b'"yesterday"', "is not a valid datetime"),
        (Decimal, b'"a"', "is not a valid Decimal"),
        (UUID, b'"a"', "is not a valid UUID"),
        (Item, b"{}", "cannot decode Item: name: is missing"),
        (Item, b"[]", "must be an object, not a list"),
        (Order, b'{"id":1,"total":1,"items":[{"name":"a"},{"name":5}]}', r"items\[1\].name: must be a string"),
        (Address, b'{"number":5}', "street: is missing"),
        (int, b"", "Expecting value"),
        (int, b"\xff", "can't decode byte"),
        (float, b"NaN", "NaN is not valid JSON"),
        (object, b"[" * 100_000, "recursion"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_says_where(kind: type[object], payload: bytes, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=complaint):
        JSON.decode(payload, kind)


def test_unknown_keys_and_computed_fields() -> None:
    payload = b'{"name":"a","new":true,"hidden":"forged"}'
    assert JSON.decode(payload, Item) == Item("a")


def test_union_order_does_not_matter() -> None:
    for kind in (float | int, int | float):
        assert type(JSON.decode(b"[5]", list[kind])[0]) is int  # type: ignore[valid-type]
    for when in (datetime | date, date | datetime):
        assert JSON.decode(b'["2026-01-02"]', list[when]) == [date(2026, 1, 2)]  # type: ignore[valid-type]


@pytest.mark.parametrize("value", [object(), b"bytes", float("nan"), {1: {(1, 2): 3}}, "\ud800", 1j])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidPayload, match=f"cannot encode {type(value).__name__}"):
        JSON.encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    for codec in (JSON, msgpack()):
        with pytest.raises(InvalidPayload):
            codec.encode(value)


class Model(pydantic_library.BaseModel):
    id: int
    at: datetime


class Struct(msgspec_library.Struct):
    id: int
    at: datetime


@pytest.mark.parametrize(
    ("codec", "kind"),
    [(pydantic(), Model), (msgspec(), Struct), (msgspec("msgpack"), Struct), (pydantic(), Item), (msgspec(), Item)],
    ids=str,
)
def test_adapters_round_trip_and_raise_alike(codec: Codec, kind: type[Any]) -> None:
    value = kind("a") if kind is Item else kind(id=5, at=datetime(2026, 1, 2, tzinfo=UTC))
    assert codec.decode(codec.encode(value), kind) == value
    with pytest.raises(InvalidPayload, match=f"cannot decode {kind.__name__}") as raised:
        codec.decode(b"\xc1", kind)
    assert raised.value.__cause__ is not None
    with pytest.raises(InvalidPayload):
        codec.encode(object())


def test_msgpack_carries_bytes() -> None:
    assert msgpack().decode(msgpack().encode({"a": [b"\0"]}), dict[str, list[bytes]]) == {"a": [b"\0"]}


def test_adapter_without_library_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, package in ((pydantic, "pydantic"), (msgspec, "msgspec"), (msgpack, "msgpack")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=f"pip install {package}"):
            make()


def test_the_module_loads_no_library() -> None:
    code = "import sys, natsproto.codecs; print({'pydantic', 'msgspec', 'msgpack'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_codecs_show_what_they_are() -> None:
    assert [repr(codec) for codec in (JsonCodec(), pydantic(), msgspec(), msgspec("msgpack"), msgpack())] == [
        "JSON",
        "pydantic",
        "msgspec(json)",
        "msgspec(msgpack)",
        "msgpack",
    ]
