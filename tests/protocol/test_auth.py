"""Credentials and the CONNECT fields made of them. Signatures are checked by another library than the signing one."""

from __future__ import annotations

import base64
import sys
import traceback

import nkeys  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ConfigError, InvalidCredentials
from natsproto.protocol.auth import Credentials, connect_fields, parse_creds, parse_seed

RAW = bytes(range(32))
SEED: bytes = nkeys.encode_seed(RAW, nkeys.PREFIX_BYTE_USER)
PUBLIC: str = nkeys.from_seed(bytearray(SEED)).public_key.decode()
JWT = "eyJ0eXAiOiJKV1QifQ.eyJqdGkiOiJhIn0.c2lnbmF0dXJl-_"
NONCE = "zOnQo5Ab-_Jt2Qk"
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED.decode()}
------END USER NKEY SEED------

*************************************************************
"""


def signed_by_seed(sig: str, nonce: str = NONCE) -> bool:
    raw_public = base64.b32decode(PUBLIC)[1:33]
    signature = base64.urlsafe_b64decode(sig + "=" * (-len(sig) % 4))
    Ed25519PublicKey.from_public_bytes(raw_public).verify(signature, nonce.encode())
    return True


def sign(nonce: bytes) -> bytes:
    signature: bytes = nkeys.from_seed(bytearray(SEED)).sign(nonce)
    return signature


# ---------------------------------------------------------------- creds and seeds


@pytest.mark.parametrize(
    "text",
    [
        CREDS,
        CREDS.replace("\n", "\r\n"),
        "\ufeff" + CREDS,
        "".join(f"  {line}\t\n" for line in CREDS.splitlines()),
        CREDS.replace("------END", "---END").replace("JWT------", "JWT---").replace("-----BEGIN", "--- BEGIN"),
        CREDS.replace("NATS USER JWT", "USER JWT").replace("USER NKEY SEED", "seed"),
        CREDS + CREDS.replace(JWT, "eyJ.other.one"),
    ],
    ids=["as written by nsc", "CRLF", "byte order mark", "indented", "three dashes", "other labels", "two of each"],
)
def test_creds_text_is_read_leniently(text: str) -> None:
    creds = parse_creds(text)
    assert (creds.jwt, creds.seed) == (JWT, SEED)


def test_creds_of_a_variable_are_read() -> None:
    """As environment variables and secret stores hold them; also a seed alone."""
    good = CREDS
    one_line = good.replace("\n", "\\n")
    encoded = base64.b64encode(good.encode()).decode()
    lines = "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
    for text in (
        one_line,
        good.replace("\n", "\\r\\n"),
        f'"{one_line}"',
        f"'{good}'",
        encoded,
        f" {lines}\n",
        f'"{encoded}"',
    ):
        creds = parse_creds(text)
        assert (creds.jwt, creds.seed) == (JWT, SEED)
        assert parse_seed(text) == SEED
    assert parse_seed(f'"{SEED.decode()}\\n"') == SEED


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "NATS USER JWT"),
        ("no blocks at all", "NATS USER JWT"),
        (CREDS.partition("************************* I")[0], "NKEY SEED"),
        (CREDS.replace("-----BEGIN NATS USER JWT-----", ""), "NATS USER JWT"),
        (CREDS.replace("------END USER NKEY SEED------", ""), "NKEY SEED"),
        (CREDS.replace(JWT, "eyJhbGciOiJ.only-two"), "three base64url parts"),
        (CREDS.replace(SEED.decode(), "SUAAAA"), "58 characters"),
        (CREDS.replace(SEED.decode(), SEED.decode()[:-1] + "é"), "58 characters"),
        (CREDS.replace(SEED.decode(), SEED.decode().replace("AAA", "AAB", 1)), "checksum"),
    ],
)
def test_damaged_creds_error_hides_them(text: str, rule: str) -> None:
    with pytest.raises(InvalidCredentials, match=rule) as caught:
        parse_creds(text)
    reported = "".join(traceback.format_exception(caught.value)[-1:])
    assert SEED.decode()[:8] not in reported
    assert "eyJ" not in reported


@pytest.mark.parametrize("text", [SEED.decode(), f"\ufeff {SEED.decode()}\r\n", CREDS])
def test_seed_is_found_bare_or_in_its_block(text: str) -> None:
    assert parse_seed(text) == SEED


def test_seed_of_an_account_is_not_taken_for_a_user() -> None:
    with pytest.raises(InvalidCredentials, match="start with SU"):
        parse_seed(nkeys.encode_seed(RAW, nkeys.PREFIX_BYTE_ACCOUNT).decode())


@given(st.text())
def test_any_text_is_creds_or_invalid_credentials(text: str) -> None:
    for read in (parse_creds, parse_seed):
        with pytest.raises(InvalidCredentials):
            read(text)


def test_creds_that_are_no_text_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        parse_creds(b"text")  # type: ignore[arg-type]


# ---------------------------------------------------------------- Credentials


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"password": "hunter2"}, "needs a user"),
        ({"nkey": PUBLIC}, "give the seed or a signer"),
        ({"signer": sign}, "needs a jwt"),
        ({"seed": SEED, "signer": sign}, "together with a signer"),
        ({"jwt": "hunter2"}, "three base64url parts"),
        ({"seed": b"hunter2"}, "58 characters"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidCredentials, match=rule) as caught:
        Credentials(**fields)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("fields", [{"user": b"me"}, {"token": 1}, {"signer": "x"}, {"seed": SEED.decode()}])
def test_wrong_types_are_type_errors_naming_the_field(fields: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(fields))):
        Credentials(**fields)  # type: ignore[arg-type]


def test_credentials_repr_hides_values() -> None:
    secrets = Credentials(user="me", password="hunter2", token="t0ken", jwt=JWT, seed=SEED)
    for text in (repr(secrets), str(secrets), f"{secrets}"):
        assert text == ("Credentials(user=(hidden), password=(hidden), token=(hidden), jwt=(hidden), seed=(hidden))")


# ---------------------------------------------------------------- CONNECT fields


def test_no_credentials_make_no_fields() -> None:
    assert connect_fields(Credentials(), NONCE) == {}


def test_user_password_token_need_no_nonce() -> None:
    made = Credentials(user="me", password="", token="t")
    assert connect_fields(made, "") == {"user": "me", "pass": "", "auth_token": "t"}


def test_bearer_jwt_is_sent_without_a_signature() -> None:
    assert connect_fields(Credentials(jwt=JWT), "") == {"jwt": JWT}


def test_jwt_is_sent_with_signature_without_nkey() -> None:
    fields = connect_fields(Credentials(jwt=JWT, seed=SEED, token="t"), NONCE)
    assert fields.keys() == {"jwt", "sig", "auth_token"}
    assert signed_by_seed(fields["sig"])


def test_seed_is_sent_as_nkey_and_signature() -> None:
    fields = connect_fields(Credentials(seed=SEED), NONCE)
    assert fields.keys() == {"nkey", "sig"}
    assert fields["nkey"] == PUBLIC
    assert signed_by_seed(fields["sig"])


@given(st.text(alphabet="ABCxyz019+/=_-", min_size=1, max_size=64))
def test_signature_is_unpadded_base64url_of_nonce(nonce: str) -> None:
    sig = connect_fields(Credentials(seed=SEED), nonce)["sig"]
    assert len(sig) == 86
    assert not set(sig) & set("+/=")
    assert signed_by_seed(sig, nonce)


@pytest.mark.parametrize("made", [Credentials(seed=SEED), Credentials(jwt=JWT, signer=sign)])
def test_missing_nonce_is_said_to_be_the_servers(made: Credentials) -> None:
    with pytest.raises(InvalidCredentials, match="the server sent no nonce"):
        connect_fields(made, "")


def test_nkey_of_another_seed_is_refused() -> None:
    assert connect_fields(Credentials(seed=SEED, nkey=PUBLIC), NONCE)["nkey"] == PUBLIC
    with pytest.raises(InvalidCredentials, match="not the public key of the seed"):
        connect_fields(Credentials(seed=SEED, nkey="U" + "A" * 55), NONCE)


def test_signer_signs_the_bytes_of_the_nonce() -> None:
    asked: list[bytes] = []

    def signer(nonce: bytes) -> bytes:
        asked.append(nonce)
        return sign(nonce)

    fields = connect_fields(Credentials(nkey=PUBLIC, signer=signer), NONCE)
    assert asked == [NONCE.encode()]
    assert fields["nkey"] == PUBLIC
    assert signed_by_seed(fields["sig"])
    assert connect_fields(Credentials(jwt=JWT, signer=signer), NONCE).keys() == {"jwt", "sig"}


def test_signer_that_raises_is_reported_with_its_cause() -> None:
    def signer(nonce: bytes) -> bytes:
        raise OSError("the key store says hunter2")

    with pytest.raises(InvalidCredentials, match="failed with OSError") as caught:
        connect_fields(Credentials(jwt=JWT, signer=signer), NONCE)
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("answer", [b"short", "x" * 64, None])
def test_signer_that_returns_no_signature_is_refused(answer: object) -> None:
    with pytest.raises(InvalidCredentials, match="64 bytes"):
        connect_fields(Credentials(jwt=JWT, signer=lambda nonce: answer), NONCE)  # type: ignore[arg-type, return-value]


def test_missing_nkeys_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(InvalidCredentials, match=r"pip install natsproto\[nkeys\]"):
        connect_fields(Credentials(seed=SEED), NONCE)


def test_copies_made_for_signing_are_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[object] = []
    copies: list[bytearray] = []
    make = nkeys.from_seed

    def watched(seed: bytearray) -> object:
        copies.append(seed)
        pairs.append(make(seed))
        return pairs[-1]

    monkeypatch.setattr(nkeys, "from_seed", watched)
    connect_fields(Credentials(seed=SEED), NONCE)
    assert copies == [bytearray(58)]
    assert not hasattr(pairs[0], "_seed")
