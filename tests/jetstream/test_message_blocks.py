"""The headers of many messages are encoded together as they are one by one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import ConfigError, InvalidHeader, NatsError
from natsproto.jetstream._publish.headers import message_block, message_blocks

ids = st.text(st.characters(codec="utf-8"), max_size=12) | st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True)
pairs = st.lists(st.tuples(st.sampled_from(["A", "B-c"]), st.text("xy \u20ac", max_size=4)), max_size=3)
rows = st.lists(st.tuples(ids | st.none(), pairs | st.none()), max_size=6)


@given(rows, st.booleans())
@example([(None, None), (None, [("A", "x")]), (None, []), ("id", None)], True)
@example([("\x00", None), ("", None)], False)  # two rows that are refused for different reasons
def test_blocks_of_many_are_those_of_each(found: list, headers: bool) -> None:  # type: ignore[type-arg]
    expected: list[bytes | None] = []
    refusals: list[type[NatsError]] = []
    for msg_id, own in found:
        both = (own or []) if headers else []
        try:
            expected.append(message_block("a", both or None, {}, msg_id, None))
        except NatsError as exc:
            refusals.append(type(exc))

    def together() -> list[bytes | None]:
        return message_blocks([one for one, _ in found], [own for _, own in found] if headers else ())

    if refusals:
        with pytest.raises(tuple(refusals)):
            together()
    else:
        assert together() == expected


@pytest.mark.parametrize(
    ("msg_id", "own", "error"),
    [
        ("", None, ConfigError),
        (" a", None, ConfigError),
        ("a", [("B", "x\r\ny")], InvalidHeader),
        ("a\r\nb", None, InvalidHeader),
    ],
)
def test_bad_id_or_header_is_named(msg_id: str, own: list[tuple[str, str]] | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        message_blocks(["fine", msg_id], [None, own])
