"""nkeys and xkeys: the text form is that of the nkeys package, and damage is told without a word of the secret."""

from __future__ import annotations

import nacl.public
import nkeys  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.auth import KeyKind, KeyPair, XKey, verify
from natsproto.auth._keys import _PREFIXES, _encode
from natsproto.errors import ConfigError, InvalidCredentials

KINDS: tuple[KeyKind, ...] = ("account", "cluster", "operator", "server", "user")


@pytest.mark.parametrize("kind", KINDS)
def test_nkeys_package_agrees_on_keys(kind: KeyKind) -> None:
    made = KeyPair.generate(kind)
    theirs = nkeys.from_seed(bytearray(made.seed, "ascii"))
    assert theirs.public_key.decode() == made.public_key
    assert theirs.sign(b"nonce") == made.sign(b"nonce")
    again = KeyPair.from_seed(made.seed)
    assert (again.kind, again.public_key, again.seed) == (kind, made.public_key, made.seed)
    assert made.seed not in repr(made)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_signature_fits_its_data_alone(data: bytes, other: bytes) -> None:
    pair = KeyPair.generate("account")
    signature = pair.sign(data)
    assert verify(pair.public_key, data, signature)
    assert verify(pair.public_key, other, signature) == (other == data)
    assert not verify(KeyPair.generate("account").public_key, data, signature)
    assert not verify(pair.public_key, data, signature[:-1])


@given(st.binary(max_size=300))
def test_xkey_opens_what_was_sealed_for_it(data: bytes) -> None:
    ana, ben, eve = XKey.generate(), XKey.from_seed(XKey.generate().seed), XKey.generate()
    sealed = ana.seal(data, ben.public_key)
    assert len(sealed) == len(data) + 44
    assert ben.open(sealed, ana.public_key) == data
    for reader, sender, altered in (
        (eve, ana, sealed),
        (ben, eve, sealed),
        (ben, ana, sealed[:-1]),
        (ben, ana, sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (ben, ana, b"xkv2" + sealed[4:]),
        (ben, ana, b""),
    ):
        with pytest.raises(InvalidCredentials):
            reader.open(altered, sender.public_key)


def test_xkey_has_the_form_of_nacl_boxes() -> None:
    ana, ben = XKey.generate(), XKey.generate()
    box = nacl.public.Box(ben._key, ana._key.public_key)
    assert box.decrypt(ana.seal(b"salt", ben.public_key)[4:]) == b"salt"
    assert (ana.public_key[0], ana.seed[:2], len(ana.seed)) == ("X", "SX", 58)


@given(st.text(max_size=60))
def test_any_text_is_no_key(text: str) -> None:
    for read in (KeyPair.from_seed, XKey.from_seed, lambda key: verify(key, b"", b"")):
        with pytest.raises(InvalidCredentials):
            read(text)
        with pytest.raises(InvalidCredentials) as raised:
            read(text + "XK7Q2WZ9PLM4")
        assert "XK7Q2WZ9PLM4" not in str(raised.value)  # the text alone may be words of the message by chance


def test_wrong_kinds_of_keys_are_named() -> None:
    pair, xkey = KeyPair.generate("user"), XKey.generate()
    with pytest.raises(InvalidCredentials, match="use XKey"):
        KeyPair.from_seed(xkey.seed)
    with pytest.raises(InvalidCredentials, match="of a user key"):
        XKey.from_seed(pair.seed)
    with pytest.raises(InvalidCredentials, match="kind curve"):
        xkey.seal(b"", pair.public_key)
    with pytest.raises(InvalidCredentials, match="not a seed"):
        KeyPair.from_seed(pair.public_key)
    with pytest.raises(ConfigError, match="must be one of"):
        KeyPair.generate("curve")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        KeyPair.from_seed(pair.seed.encode())  # type: ignore[arg-type]


@pytest.mark.parametrize("point", [bytes(32), bytes([1, *bytes(31)])])
def test_xkeys_that_are_no_keys_are_refused(point: bytes) -> None:
    """With such a point everybody knows the shared key."""
    weak = _encode(bytes([_PREFIXES["curve"]]), point)
    with pytest.raises(InvalidCredentials, match="not a usable xkey"):
        XKey.generate().seal(b"secret", weak)
    with pytest.raises(InvalidCredentials, match="not a usable xkey"):
        XKey.generate().open(b"xkv1" + bytes(60), weak)
