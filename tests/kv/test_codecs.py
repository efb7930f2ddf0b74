"""Other names for keys and other types for values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto import Client, Event
from natsproto.codecs import JSON, Codec, msgpack, msgspec, pydantic
from natsproto.errors import ConfigError, InvalidPayload, InvalidSubject, KeyDeleted
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.kv import KeyValueNotice
from natsproto.jetstream.kv._keys import (
    Base64Keys,
    KeyChain,
    KeyCodec,
    PathKeys,
    SubjectKeys,
    check_key_filter,
    check_key_name,
    without_covered,
)
from natsproto.protocol.subject import matches
from tests.kit.contents import all_keys

_TERM = st.text(st.sampled_from("abzAZ09-/_="), min_size=1)
_KEYS = st.lists(_TERM, min_size=1).map(".".join)


@pytest.mark.parametrize(
    ("codec", "key", "stored"),
    [
        (Base64Keys(), "Acme Inc.contact", "QWNtZSBJbmM.Y29udGFjdA"),
        (Base64Keys(), "größe.€", "Z3LDtsOfZQ.4oKs"),
        (PathKeys(), "user/profile/settings", "user.profile.settings"),
        (PathKeys(), "/etc/hosts", "_root_.etc.hosts"),
        (PathKeys(), "/", "_root_"),
        (KeyChain(PathKeys(), Base64Keys()), "/etc/größe", "X3Jvb3Rf.ZXRj.Z3LDtsOfZQ"),
    ],
)
async def test_keys_are_stored_as_adr_54_says(jetstream: JetStream, codec: KeyCodec, key: str, stored: str) -> None:
    kv = await jetstream.create_key_value(bucket="b", key_codec=codec)
    plain = await jetstream.key_value("b")
    revision = await kv.put(key, b"1")
    assert (await plain.get(stored)).revision == revision
    assert (await kv.get(key)).key == key
    assert [found async for found in kv.keys(key)] == [key]
    assert list(await kv.get_many([key])) == [key]
    assert [entry.key for entry in await kv.history(key)] == [key]


async def test_filters_go_through_the_codec(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", key_codec=KeyChain(PathKeys(), Base64Keys()))
    for key in ("users/ann smith/mail", "users/bob/mail", "users/bob/phone", "other"):
        await kv.put(key, b"1")
    assert [key async for key in kv.keys("users/*/mail")] == ["users/ann smith/mail", "users/bob/mail"]
    assert [key async for key in kv.keys("users/bob/>")] == ["users/bob/mail", "users/bob/phone"]
    assert sorted(await kv.get_many(["users/>"])) == ["users/ann smith/mail", "users/bob/mail", "users/bob/phone"]
    async with kv.watch("users/bob/*") as watcher:
        assert [entry.key async for entry in watcher.initial()] == ["users/bob/mail", "users/bob/phone"]


async def test_unreadable_keys_are_left_out_and_reported(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value("b", key_codec=Base64Keys())
    plain = await jetstream.key_value("b")
    events: list[Event] = []
    nats_client.add_listener(events.append)
    await plain.put("=", b"foreign")
    await kv.put("ours", b"1")
    async with kv.watch() as watcher, kv.cache() as cache:
        assert [entry.key async for entry in watcher.initial()] == ["ours"]
        assert await all_keys(kv) == ["ours"]
        assert dict(cache) == {"ours": b"1"}
        assert list(await kv.get_many([">"])) == ["ours"]
        await plain.put("Zg.x", b"foreign")
        revision = await kv.put("more", b"2")
        assert (await watcher.next(20)).key == "more"
        await cache.wait_for(revision, timeout=20)
        assert dict(cache) == {"ours": b"1", "more": b"2"}
    told = [event for event in events if isinstance(event, KeyValueNotice)]
    assert sorted(event.keys for event in told) == [("=",)] * 4 + [("Zg.x",)] * 2
    assert "key token '='" in str(told[0].error)
    assert {event.bucket for event in told} == {"b"}


async def test_a_bucket_of_unreadable_keys_is_empty(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b", key_codec=Base64Keys())
    await (await jetstream.key_value("b")).put("=", b"foreign")
    async with kv.watch() as watcher, asyncio.timeout(20):
        await watcher.ready()
        assert [entry async for entry in watcher.initial()] == []
    assert await all_keys(kv) == []
    async with kv.cache() as cache:
        assert not cache


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ("YQ", "a"),
        ("YQ==", "a"),
        ("YWI=.YWJj", "ab.abc"),
        ("fn5-", "~~~"),
        ("fn5+", "~~~"),
        ("Pz8_", "???"),
        ("Pz8/", "???"),
    ],
)
def test_base64_keys_read_what_others_write(stored: str, key: str) -> None:
    assert Base64Keys().decode(stored) == Base64Keys(padded=True).decode(stored) == key


@pytest.mark.parametrize("stored", ["=", "YQ=", "YQ===", "Y", "YR", "YR==", "6Q==", "a b", "YQ=YQ"])
def test_base64_keys_refuse_what_nobody_writes(stored: str) -> None:
    with pytest.raises(InvalidPayload, match="key token"):
        Base64Keys().decode(stored)


def test_padded_base64_keys_are_those_of_nats_js() -> None:
    codec = Base64Keys(padded=True)
    assert codec.encode("ab.a???") == "YWI=.YT8/Pw=="
    assert codec.encode_filter("a.*.>") == "YQ==.*.>"


OLD_KEYS = ["user:1", "with@host", "größe", "a.b:c", "tilde~", "$x"]


@pytest.mark.parametrize("direct", [True, False])
async def test_keys_outside_adr_8_can_be_moved(jetstream: JetStream, nats_client: Client, direct: bool) -> None:
    new = await jetstream.create_key_value("b")
    for key in OLD_KEYS:
        await nats_client.request(f"$KV.b.{key}", key.encode())
        with pytest.raises(InvalidSubject):
            await new.get(key)
        with pytest.raises(InvalidSubject):
            await new.delete(key)
    old = await jetstream.key_value("b", key_codec=SubjectKeys())
    assert await all_keys(old) == OLD_KEYS
    assert [key async for key in old.keys("a.*", "user:1")] == ["user:1", "a.b:c"]
    for key in OLD_KEYS:
        entry = await old.get(key, direct=direct)
        assert (entry.key, entry.value) == (key, key.encode())
        assert [found.value for found in await old.history(key)] == [key.encode()]
        await new.put(f"moved.{OLD_KEYS.index(key)}", entry.value)
        await old.purge(key, revision=entry.revision)
        with pytest.raises(KeyDeleted):
            await old.get(key, direct=direct)
    assert await all_keys(old) == [f"moved.{place}" for place in range(len(OLD_KEYS))]


@pytest.mark.parametrize("key", ["", "a b", "a..b", ".a", "a*", "*", ">", "a\r\nb", "\ud800"])
async def test_subject_keys_are_subjects(jetstream: JetStream, key: str) -> None:
    kv = await jetstream.create_key_value("b", key_codec=SubjectKeys())
    for call in (lambda: kv.get(key), lambda: kv.put(key, b"x"), lambda: kv.delete(key), lambda: kv.history(key)):
        with pytest.raises(InvalidSubject):
            await call()


class FaultyKeys:
    """A key codec with a bug."""

    def encode(self, key: str) -> str:
        return key

    def decode(self, key: str) -> str:
        raise AttributeError(f"no such table: {key}")

    def encode_filter(self, pattern: str) -> str:
        return pattern


async def test_the_error_of_a_key_codec_is_not_hidden(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", key_codec=FaultyKeys())
    await kv.put("k", b"1")
    async with kv.watch() as watcher:
        delivered = await watcher.next()
    for entry in (await kv.get("k"), await kv.get("k", direct=False), delivered):
        with pytest.raises(AttributeError, match=r"^no such table: k$"):
            entry.key  # noqa: B018
        with pytest.raises(AttributeError, match=r"^'KeyValueEntry' object has no attribute 'keys'$"):
            entry.keys  # type: ignore[attr-defined]  # noqa: B018


def test_a_codec_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        KeyChain()


async def test_a_key_codec_needs_all_its_methods(jetstream: JetStream) -> None:
    with pytest.raises(ConfigError, match="encode_filter"):
        await jetstream.key_value("b", key_codec=JSON, bind=True)  # type: ignore[call-overload]
    kv = await jetstream.key_value("b", bind=True)
    with pytest.raises(ConfigError, match="no method encode"):
        kv.typed(int, object())  # type: ignore[call-overload]


@given(st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_a_key_in_base64(token: str) -> None:
    codec = Base64Keys()
    key = check_key_name(codec.encode(token))
    assert codec.decode(key) == token


@given(st.lists(st.text(st.sampled_from("abzAZ09-_="), min_size=1), min_size=1), st.booleans())
def test_paths_come_back(parts: list[str], rooted: bool) -> None:
    path = ("/" if rooted else "") + "/".join(parts)
    if parts[0] == "_root_" and not rooted:
        return
    assert PathKeys().decode(check_key_name(PathKeys().encode(path))) == path


@given(_KEYS)
def test_a_valid_key_is_a_valid_filter(key: str) -> None:
    assert check_key_filter(check_key_name(key)) == key


_PATTERNS = st.lists(st.sampled_from(["a", "b", "*", ">"]), min_size=1, max_size=3).map(
    lambda tokens: ".".join(token for index, token in enumerate(tokens) if token != ">" or index == len(tokens) - 1)
)


@given(st.lists(_PATTERNS.filter(bool), min_size=1, max_size=5), st.lists(st.sampled_from("abc"), min_size=1))
def test_filters_without_covered_ones_match_the_same(filters: list[str], tokens: list[str]) -> None:
    left = without_covered(filters)
    key = ".".join(tokens)
    assert set(left) <= set(filters)
    assert any(matches(f, key) for f in left) == any(matches(f, key) for f in filters)


def test_a_filter_that_another_one_covers_is_left_out() -> None:
    assert without_covered(["eu.*", "eu.de", "eu.>", "eu.*", "us.ny"]) == ("eu.>", "us.ny")
    assert without_covered([">", "a", "*.b"]) == (">",)
    assert without_covered(["*.a", "b.*", "a"]) == ("*.a", "b.*", "a")


@given(st.text())
def test_key_that_is_invalid_is_refused(text: str) -> None:
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-/_=.")
    valid = bool(text) and set(text) <= allowed and all(text.split("."))
    try:
        assert check_key_name(text) == text
        assert valid
    except InvalidSubject:
        assert not valid


# ---------------------------------------------------------------- values


@dataclass
class FlowerOrder:
    flower: str
    amount: int


@pytest.mark.parametrize(
    "codec", [lambda: JSON, pydantic, msgspec, msgpack], ids=["JSON", "pydantic", "msgspec", "msgpack"]
)
async def test_values_of_a_type(jetstream: JetStream, codec: Callable[[], Codec]) -> None:
    made = codec()
    kv = (await jetstream.create_key_value(bucket="b", history=5, allow_atomic=True)).typed(FlowerOrder, made)
    rose, tulip = FlowerOrder("rose", 5), FlowerOrder("tulip", 6)
    await kv.put("a", rose)
    await kv.update("a", tulip, 1)
    await kv.create("b", rose)
    async with kv.atomic() as batch:
        await batch.put("c", tulip)
    opened = await jetstream.key_value("b", kind=FlowerOrder, codec=made)
    entry = await opened.get("a")
    assert entry.value == tulip
    assert entry.value is entry.value
    assert entry.data == made.encode(tulip)
    assert [entry.value for entry in await opened.history("a")] == [rose, tulip]
    assert {key: entry.value for key, entry in (await opened.get_many([">"])).items()} == {
        "a": tulip,
        "b": rose,
        "c": tulip,
    }
    async with kv.cache() as cache:
        assert dict(cache) == {"a": tulip, "b": rose, "c": tulip}
    await kv.delete("a")
    async with kv.watch("a") as watcher:
        with pytest.raises(KeyDeleted):
            (await watcher.next(5)).value  # noqa: B018


async def test_value_that_does_not_fit_harms_only_its_reader(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    orders = await jetstream.key_value("b", kind=FlowerOrder)
    await kv.put("a", b"{}")
    entry = await orders.get("a")
    assert (entry.data, entry.revision) == (b"{}", 1)
    with pytest.raises(InvalidPayload, match=r"flower.*\(key 'a' in bucket 'b', revision 1\)"):
        entry.value  # noqa: B018
    with pytest.raises(InvalidPayload):
        await orders.put("a", object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be bytes"):
        await kv.put("a", "text")  # type: ignore[arg-type]
    assert (await kv.get("a")).revision == 1
