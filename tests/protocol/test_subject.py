"""Subjects: what may be sent, and what matches what."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import InvalidSubject
from natsproto.protocol.subject import (
    MAX_CONTROL_LINE,
    is_api_subject,
    matches,
    publish_subject,
    queue_group,
    subscribe_subject,
    tokens,
)

BOTH = (publish_subject, subscribe_subject)

GOOD = (
    "a",
    "a.b.c",
    "$JS.API.INFO",
    "_INBOX.x.1",
    "zażółć.gęślą",
    "a-b_c/d:e",
    "\u00a0",
    "'\"",
)


@pytest.mark.parametrize("check", BOTH)
@pytest.mark.parametrize("subject", GOOD)
def test_a_good_subject_goes_out_as_utf_8(check: Callable[[str], bytes], subject: str) -> None:
    assert check(subject) == subject.encode()


@pytest.mark.parametrize("check", BOTH)
@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        ("", "must not be empty"),
        (" ", "spaces or control characters"),
        ("a b", "spaces or control characters"),
        ("a\tb", "spaces or control characters"),
        ("a\r\nPUB b 0", "spaces or control characters"),
        ("a\n", "spaces or control characters"),
        ("a\0", "spaces or control characters"),
        ("a\x7f", "spaces or control characters"),
        (".", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a..b", "empty token"),
        ("a\ud800", "cannot be encoded as UTF-8"),
    ],
)
def test_a_bad_subject_is_refused_by_its_rule(check: Callable[[str], bytes], subject: str, rule: str) -> None:
    with pytest.raises(InvalidSubject, match=rule) as refused:
        check(subject)
    assert (refused.value.name, refused.value.value) == ("subject", subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "*.a", "a.*.b", "a.>", ">.a"])
def test_a_wildcard_cannot_be_published_to(subject: str) -> None:
    with pytest.raises(InvalidSubject, match="can be subscribed to, not published to"):
        publish_subject(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.*.>"])
def test_a_wildcard_can_be_subscribed_to(subject: str) -> None:
    assert subscribe_subject(subject) == subject.encode()


@pytest.mark.parametrize("subject", [">.a", "a.>.b", ">.>"])
def test_the_tail_wildcard_is_the_last_token(subject: str) -> None:
    with pytest.raises(InvalidSubject, match="must be the last token"):
        subscribe_subject(subject)


@pytest.mark.parametrize("subject", ["orders*", "a*b.c", "*x", "a.b>", ">>", "**"])
def test_a_wildcard_is_a_whole_token(subject: str) -> None:
    with pytest.raises(InvalidSubject, match="must be a whole token"):
        subscribe_subject(subject)
    assert publish_subject(subject) == subject.encode()


@pytest.mark.parametrize("check", [*BOTH, queue_group])
def test_subject_length_limit_is_exact(check: Callable[[str], bytes]) -> None:
    assert len(check("ż" * (MAX_CONTROL_LINE // 2))) == MAX_CONTROL_LINE
    with pytest.raises(InvalidSubject, match="is 65537 bytes long; a control line holds 65536"):
        check("ż" * (MAX_CONTROL_LINE // 2) + "x")


@pytest.mark.parametrize("check", BOTH)
@pytest.mark.parametrize("subject", [None, 5, b"a", ["a"]])
def test_another_type_is_a_type_error(check: Callable[[object], bytes], subject: object) -> None:
    with pytest.raises(TypeError):
        check(subject)


@pytest.mark.parametrize("check", BOTH)
def test_what_is_checked_is_named_in_the_error(check: Callable[[str, str], bytes]) -> None:
    with pytest.raises(InvalidSubject, match=r"^reply subject 'a b':"):
        check("a b", "reply subject")
    with pytest.raises(TypeError, match=r"^reply subject must be a str, not int"):
        check(5, "reply subject")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["workers", "a.b", "*", "ż"])
def test_a_queue_group_is_any_name_without_spaces(name: str) -> None:
    assert queue_group(name) == name.encode()


@pytest.mark.parametrize("name", ["", "a b", "a\r\n", "a\n", "\0", "\t"])
def test_invalid_queue_group_is_rejected(name: str) -> None:
    with pytest.raises(InvalidSubject, match="queue group"):
        queue_group(name)


def test_a_queue_group_is_text() -> None:
    with pytest.raises(TypeError, match="queue group must be a str, not int"):
        queue_group(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidSubject, match="cannot be encoded"):
        queue_group("\ud800")


@given(st.text(max_size=12))
def test_any_subject_is_rejected_or_one_word(text: str) -> None:
    for check in (publish_subject, subscribe_subject, queue_group):
        try:
            wire = check(text)
        except InvalidSubject:
            continue
        assert wire.decode() == text
        assert not re.search(rb"[\x00-\x20\x7f]", wire)


# ---------------------------------------------------------------- matching


def as_pattern(subject: str) -> re.Pattern[str]:
    """The same wildcards as a regular expression."""
    parts = [r"[^.]+" if token == "*" else r".+" if token == ">" else re.escape(token) for token in subject.split(".")]
    return re.compile(r"\.".join(parts), re.DOTALL)


plain = st.lists(st.sampled_from(("a", "b", "a*", ">b")), min_size=1, max_size=5).map(".".join)
wild = st.tuples(
    st.lists(st.sampled_from(("a", "b", "*", "a*", ">b")), min_size=1, max_size=5), st.sampled_from(((), (">",)))
).map(lambda parts: ".".join((*parts[0], *parts[1])))


@given(st.one_of(wild, st.just(">")), plain)
def test_matching_is_that_of_the_regular_expression(pattern: str, subject: str) -> None:
    assert matches(pattern, subject) == bool(as_pattern(pattern).fullmatch(subject))


@given(plain)
def test_subject_matches_itself_and_tail_wildcard(subject: str) -> None:
    assert matches(subject, subject)
    assert matches(">", subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "matched"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("*.b", "a.b", True),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("A", "a", False),
    ],
)
def test_matching_by_example(pattern: str, subject: str, matched: bool) -> None:
    assert matches(pattern, subject) is matched


def test_tokens_stand_between_the_dots() -> None:
    assert tokens("a.b.*.>") == ["a", "b", "*", ">"]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        *[(f"$JS.API.{rest}", True) for rest in ("INFO", "STREAM.DELETE.ORDERS", "DIRECT.GET.S")],
        *[(f"$JS.{domain}.API.STREAM.DELETE.ORDERS", True) for domain in ("hub", "API", "leaf-1")],
        *[(subject, True) for subject in ("$KV.b.key", "$O.b.C.x", "$SRV.STOP", "$SYS.REQ.SERVER.PING", "$SYS.x")],
        *[(subject, False) for subject in ("$JS", "$JS.API", "$KV", "$O", "$SRV", "$SYS", "$SYS._INBOX.a.b", "$KVX.a")],
        *[(f"$JS.{kind}.API.consumer.1.2.3.4.5", False) for kind in ("ACK", "FC")],
        *[(subject, False) for subject in ("$JS.ACK.S.API.1.2.3.4.5", "$JS.SNAPSHOT.ACK.S.x", "_R_.a.b", "_INBOX.a.1")],
        *[(subject, False) for subject in ("orders.$KV.b.key", "KV.b.key", "$", "$.API.a")],
    ],
)
def test_subjects_of_apis_are_known(subject: str, expected: bool) -> None:
    assert is_api_subject(subject) is expected
