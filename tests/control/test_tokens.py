"""Access tokens: created, listed, checked, revoked; and what is stored."""

from __future__ import annotations

import pytest

from holdfast.control.tokens import parse_token_id, to_credential
from holdfast.errors import ConfigError


def test_token_is_valid_until_revoked(control, harness):
    assert not control.tokens.exist()
    info, token = control.tokens.create("operate", "acme", "ada")
    assert (info.may, info.tenant, info.name, parse_token_id(token)) == ("operate", "acme", "ada", info.id)
    assert control.tokens.exist()
    assert control.tokens.check(info.id, to_credential(token)) == info
    assert control.tokens.check(info.id, to_credential(token + "x")) is None
    assert control.tokens.check("0" * 12, to_credential(token)) is None
    assert (control.tokens.revoke(info.id), control.tokens.revoke(info.id)) == (True, False)
    assert control.tokens.check(info.id, to_credential(token)) is None
    assert not control.tokens.exist()
    assert [each.revoked_at is not None for each in control.tokens.list()] == [True]


def test_neither_token_nor_credential_is_stored(control, harness):
    _, token = control.tokens.create("read")
    kept = str(harness.sql("select id, hash, name, may from {schema}tokens"))
    assert token not in kept
    assert token.split("_", 2)[2] not in kept
    assert to_credential(token) not in kept


def test_invalid_token_is_rejected(control):
    with pytest.raises(ConfigError, match="read or operate"):
        control.tokens.create("everything")
    with pytest.raises(ConfigError, match="tenant must not be empty"):
        control.tokens.create("read", "")
    with pytest.raises(ConfigError, match="token 'nobody' does not exist"):
        control.tokens.revoke("nobody")
