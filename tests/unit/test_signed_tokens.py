"""Signed tokens: what verifies, what doesn't, and the settings `secret` and `public_url`."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import ConfigError, Holdfast
from holdfast.model.signed_tokens import MAX_TOKEN_CHARS, LinkSettings, Signer, TokenRefused

OLD, NEW = "o" * 32, "n" * 40
SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
LATER = NOW + 60 * SECOND


class Value(msgspec.Struct, array_like=True):
    name: str
    number: int


VALUE = Value("grüße", 2**40)


def refusal(signer: Signer, token: str, purpose: str = "gate", now: int = NOW, kind: type = Value) -> str:
    with pytest.raises(TokenRefused) as refused:
        signer.verify(purpose, token, kind, now)
    return refused.value.reason


def test_a_token_returns_the_signed_value_and_its_expiry():
    token = Signer([NEW]).sign("gate", VALUE, LATER)
    assert Signer([NEW]).verify("gate", token, Value, NOW) == (VALUE, LATER)
    assert len(token) < 110
    assert token.replace("-", "").replace("_", "").isalnum()


def test_a_token_expires_at_its_time():
    signer = Signer([NEW])
    token = signer.sign("gate", VALUE, LATER)
    assert signer.verify("gate", token, Value, LATER - 1)
    assert refusal(signer, token, now=LATER) == "expired"


def test_a_token_for_one_purpose_is_none_for_another():
    signer = Signer([NEW])
    assert refusal(signer, signer.sign("stream", VALUE, LATER)) == "forged"
    assert refusal(signer, signer.sign("gate", VALUE, LATER), purpose="gates") == "forged"


def test_each_changed_character_is_noticed():
    signer = Signer([NEW])
    token = signer.sign("gate", VALUE, LATER)
    for at in range(len(token)):
        for letter in "AQgw_":
            changed = token[:at] + letter + token[at + 1 :]
            if changed != token:
                assert refusal(signer, changed) in ("malformed", "unknown key", "forged")


@pytest.mark.parametrize(
    "token", ["", "a", "AAAA", "=", "é" * 100, "a b", "A" * 97, "A" * (MAX_TOKEN_CHARS + 1), "\x00"]
)
def test_text_that_is_no_token_is_refused(token):
    assert refusal(Signer([NEW]), token) == "malformed"


def test_a_cut_or_extended_token_is_refused():
    signer = Signer([NEW])
    token = signer.sign("gate", VALUE, LATER)
    for changed in (token[:-4], token[4:], token + "AAAA", token + "=", token + "\n", f" {token}"):
        assert refusal(signer, changed) in ("malformed", "unknown key", "forged")


def test_a_value_of_another_type_is_refused():
    signer = Signer([NEW])
    for value in ([1, 2], {"name": "x"}, "text", None, ["x"]):
        assert refusal(signer, signer.sign("gate", value, LATER)) == "malformed"


def test_the_first_secret_signs_and_all_verify():
    before = Signer([OLD]).sign("gate", VALUE, LATER)
    during = Signer([NEW, OLD])
    assert during.verify("gate", before, Value, NOW).value == VALUE
    after = during.sign("gate", VALUE, LATER)
    assert Signer([NEW]).verify("gate", after, Value, NOW).value == VALUE
    assert refusal(Signer([NEW]), before) == "unknown key"


def test_a_secret_must_be_long():
    for secret in ("x" * 31, [NEW, "short"], [NEW] * 17, b"x" * 40, [1]):
        with pytest.raises(ConfigError, match=r"openssl rand|1 to 16") as refused:
            Holdfast("sqlite:///:memory:", secret=secret)
        assert "short" not in str(refused.value)


def test_secrets_never_appear_in_text():
    links = Holdfast("sqlite:///:memory:", secret=NEW, public_url="https://ops.example.org").links
    assert NEW not in repr(links) + repr(links._signer) + repr(Signer([NEW]))


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", f"{NEW}, {OLD}")
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://ops.example.org/holdfast/")
    links = Holdfast("sqlite:///:memory:").links
    url = links.url("/gate", "gate", VALUE, LATER)
    assert url.startswith("https://ops.example.org/holdfast/gate?token=")
    assert links.host == "ops.example.org"
    token = url.partition("?token=")[2]
    assert Signer([NEW]).verify("gate", token, Value, NOW).value == VALUE
    assert links.verify("gate", Signer([OLD]).sign("gate", VALUE, LATER), Value, NOW)


def test_a_secret_in_code_may_contain_a_comma():
    secret = f"{'a' * 20},{'b' * 20}"
    token = LinkSettings(secret, "https://x.org").url("/", "gate", VALUE, LATER).partition("=")[2]
    assert Signer([secret]).verify("gate", token, Value, NOW)


def test_missing_settings_say_what_to_set(monkeypatch):
    monkeypatch.delenv("HOLDFAST_SECRET", raising=False)
    monkeypatch.delenv("HOLDFAST_PUBLIC_URL", raising=False)
    with pytest.raises(ConfigError, match=r"\$HOLDFAST_SECRET"):
        LinkSettings().url("/gate", "gate", VALUE, LATER)
    with pytest.raises(ConfigError, match=r"\$HOLDFAST_PUBLIC_URL"):
        LinkSettings(NEW).url("/gate", "gate", VALUE, LATER)
    with pytest.raises(TokenRefused):
        LinkSettings().verify("gate", Signer([NEW]).sign("gate", VALUE, LATER), Value, NOW)


@pytest.mark.parametrize(
    "url",
    ["ops.example.org", "ftp://x.org", "https://", "https://a:b@x.org", "https://x.org?a=1", "https://x.org/#a",
     "https://x y", "https://x.org:99999", "https://[::1", "javascript://x.org", "https://x.org\nhost: y", "//x.org"],
)  # fmt: skip
def test_a_public_url_must_be_an_address(url):
    with pytest.raises(ConfigError, match="public_url"):
        LinkSettings(NEW, url)


@pytest.mark.parametrize("url", ["http://localhost:8000", "https://[::1]:8000/a/b/", "https://x.org/"])
def test_a_public_url_loses_its_last_slash(url):
    assert LinkSettings(NEW, url).public_url == url.rstrip("/")
